"""One plugin, imported and checked.

Owns the way from an entry point to a plugin manager that holds exactly that plugin: the import,
the API version, the hooks. Refuses to know the other plugins. Invariant: whoever gets a
``Registered`` can call every hook by the signatures of ``tuichat.api.hookspecs``; everything else
is a ``BackendError`` that names the plugin, its distribution and the cause.

It imports the plugin, so only a worker and the describing subprocess may call it.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

import pluggy

from tuichat.api import API_VERSION, BackendError, BackendInfo, hookspecs
from tuichat.pluginhost.failures import brief, to_sentence
from tuichat.pluginhost.refs import BackendRef, nearest, quoted

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Registered:
    """A plugin whose hooks were all checked."""

    ref: BackendRef
    info: BackendInfo
    manager: pluggy.PluginManager
    """Holds this plugin and nothing else."""


def register(ref: BackendRef) -> Registered:
    """Import the plugin of ``ref``, check it, and ask what it is.

    The version is checked before the signatures: a hook that does not fit is most often written
    for another version, and then the version is what its user can do something about.

    Raises:
        BackendError: a stale or malformed entry; whatever the import raises, SystemExit
            included; no ``tuichat_backend``; an API version that this tuichat does not know; an
            unknown hook, a wrong argument, a hook that is a generator function; a wrong type.
    """
    if ref.problem is not None:
        raise BackendError(ref.problem)
    plugin = _import(ref)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    # Without specifications nothing is verified yet; only tuichat_backend is called like this.
    _register(ref, manager, plugin)
    info = _read_info(ref, manager)
    if info.api_version != API_VERSION:
        _refuse_version(ref, info.api_version)
    _check_hooks(ref, manager)
    return Registered(ref, info, manager)


def checked(whose: str, hook: str, value: Any, kind: type[_T]) -> _T:
    """``value`` with every field of the type that ``kind`` declares, lists turned into tuples.

    Args:
        whose: the backend, for the sentence.
        hook: which hook answered.
        kind: ``BackendInfo``, ``ModelFacts``, ``DtypeReport``: plain values all the way down.

    Raises:
        BackendError: ``value`` is something else, or a field of it is (a ``torch.dtype``, say).
    """
    import msgspec

    if not isinstance(value, kind):
        raise BackendError(
            f"{whose} answers {hook} with {a_thing(value)}, not a {kind.__name__}; tell its author"
        )
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except Exception as error:
        problem = brief(str(error))
    raise BackendError(
        f"{whose} answers {hook} with a wrong {kind.__name__}: {problem}; tell its author"
    )


def a_thing(value: Any) -> str:
    """The type of ``value``, in words: ``nothing``, ``a value of type 'dict'``."""
    return "nothing" if value is None else f"a value of type {quoted(type(value).__name__)}"


def _import(ref: BackendRef) -> Any:
    _, _, attribute = ref.entry_point.partition(":")
    try:
        module = importlib.import_module(ref.module)
        return attrgetter(attribute)(module) if attribute else module
    except BaseException as error:
        failure = to_sentence(error, f"{ref.who} cannot be imported")
    raise failure


def _register(ref: BackendRef, manager: pluggy.PluginManager, plugin: Any) -> None:
    try:
        manager.register(plugin, name=ref.name)
        return
    except BaseException as error:
        failure = to_sentence(error, f"{ref.who} cannot be registered")
    raise failure


def _read_info(ref: BackendRef, manager: pluggy.PluginManager) -> BackendInfo:
    caller = getattr(manager.hook, "tuichat_backend", None)
    if caller is None:
        raise BackendError(
            f"{ref.who} has no hook tuichat_backend marked with @hookimpl; tell its author"
        )
    try:
        answers = caller()
    except BaseException as error:
        failure = to_sentence(error, f"{ref.who} cannot say what it is")
    else:
        return checked(ref.who, "tuichat_backend", answers[0] if answers else None, BackendInfo)
    raise failure


def _refuse_version(ref: BackendRef, version: int) -> NoReturn:
    cure = "upgrade tuichat" if version > API_VERSION else f"upgrade {ref.distribution}"
    raise BackendError(
        f"{ref.who} is written for version {version} of the plugin API and this tuichat has "
        f"version {API_VERSION}; {cure}"
    )


def _check_hooks(ref: BackendRef, manager: pluggy.PluginManager) -> None:
    try:
        manager.add_hookspecs(hookspecs)
    except pluggy.PluginValidationError as error:
        # Its own text begins with the repr of the module; the other lines hold the reason.
        lines = [line for line in str(error).splitlines() if line.strip()]
        fault = brief("; ".join(lines[1:]) or str(error))
    else:
        fault = _unknown_hook(manager) or _generator_hook(manager)
    if fault:
        raise BackendError(
            f"{ref.who} does not fit version {API_VERSION} of the plugin API, which it names: "
            f"{fault}; tell its author"
        )


def _callers(manager: pluggy.PluginManager) -> list[pluggy.HookCaller]:
    return [c for c in vars(manager.hook).values() if isinstance(c, pluggy.HookCaller)]


def _unknown_hook(manager: pluggy.PluginManager) -> str:
    """What ``check_pending`` finds, with the nearest name instead of the repr of a module."""
    known = [caller.name for caller in _callers(manager) if caller.has_spec()]
    for caller in _callers(manager):
        required = [one for one in caller.get_hookimpls() if not one.optionalhook]
        if required and not caller.has_spec():
            return f"there is no hook {quoted(caller.name)}{nearest(caller.name, known)}"
    return ""


def _generator_hook(manager: pluggy.PluginManager) -> str:
    """A ``yield`` in a hook makes it answer for every model, before any of its code has run."""
    for caller in _callers(manager):
        for implementation in caller.get_hookimpls():
            wraps = implementation.wrapper or implementation.hookwrapper
            function = implementation.function
            if (inspect.isgeneratorfunction(function) and not wraps) or (
                inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
            ):
                return (
                    f"its hook {caller.name} is a generator or async function, and must return "
                    "(put the loop into a function of its own, and return the iterator)"
                )
    return ""
