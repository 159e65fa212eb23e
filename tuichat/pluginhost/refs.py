"""Which backends are installed, by name.

Owns the entry-point group and what an entry point may look like. Refuses to know what a backend
says of itself: that takes an import, and nothing here imports a plugin. Invariant: no
distribution, however broken, hides another; what is wrong with an entry is said in its own
``BackendRef.problem``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tuichat.api.errors import BackendError
from tuichat.sanitize import sanitize_line

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from importlib.metadata import Distribution

GROUP = "tuichat.backends"
_BUNDLED = "tuichat"
_VALUE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*(\.[^\W\d]\w*)*)?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BackendRef:
    """One entry point of the group ``tuichat.backends``; nothing was imported to make it."""

    name: str
    """What follows ``--backend``."""
    distribution: str
    """Name of the installed distribution that registers it, e.g. ``tuichat-echo``."""
    version: str
    """Version of that distribution."""
    entry_point: str
    """Where the plugin is: ``module`` or ``module:attribute``."""
    problem: str | None = None
    """Why it cannot be used, in one sentence; None when its metadata are sound."""

    @property
    def module(self) -> str:
        """The module to import; empty for a malformed entry."""
        return self.entry_point.partition(":")[0]

    @property
    def who(self) -> str:
        """``Backend 'echo' (tuichat-echo 0.1.0)``: the beginning of a sentence about it."""
        return f"Backend {quoted(self.name)} ({self.origin})"

    @property
    def origin(self) -> str:
        """Distribution and version, for people."""
        return sanitize_line(f"{self.distribution} {self.version}".strip())


def backend_refs() -> list[BackendRef]:
    """Every registered backend, by name; sound ones first, bundled before others.

    Only the first sound entry of a name can be chosen; later ones are listed with a problem that
    says who has the name.
    """
    found = sorted(
        _all_refs(),
        key=lambda ref: (ref.name, bool(ref.problem), ref.distribution != _BUNDLED, ref.origin),
    )
    first: dict[str, BackendRef] = {}
    refs = []
    for ref in found:
        holder = first.setdefault(ref.name, ref)
        if holder is not ref and ref.problem is None:
            ref = replace(
                ref,
                problem=f"{ref.who} cannot be chosen: {holder.origin} has that name already; "
                f"uninstall {sanitize_line(holder.distribution)}, or ask the author of one of "
                "them for another name",
            )
        refs.append(ref)
    return refs


def find_backend(name: str) -> BackendRef:
    """The entry that ``--backend name`` selects; it may carry a problem.

    Raises:
        BackendError: no such name; the text offers the nearest one and lists all.
    """
    refs = backend_refs()
    for ref in refs:
        if ref.name == name:
            return ref
    names = sorted({ref.name for ref in refs})
    raise BackendError(
        f"There is no backend {quoted(name)}{nearest(name, names)}; "
        f"installed: {', '.join(map(sanitize_line, names)) or 'none'}"
    )


def quoted(text: str) -> str:
    """``text`` in quotes and fit for a line of a screen."""
    line = sanitize_line(text)
    return f"'{line if len(line) <= 80 else line[:79] + '…'}'"


def nearest(name: str, names: Iterable[str]) -> str:
    """``; did you mean 'llava'?``-like ending of a sentence, or nothing."""
    from difflib import get_close_matches

    known = {known.lower(): known for known in names}
    close = get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f", did you mean {quoted(known[close[0]])}?" if close else ""


def find_module(module: str) -> ModuleSpec | None:
    """Where ``module`` would be imported from, without importing it or any package above it.

    ``importlib.util.find_spec("a.b")`` imports ``a``; this walks the search paths instead.
    """
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
        path = top
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            path = f"{path}.{part}"
            spec = PathFinder.find_spec(path, spec.submodule_search_locations)
    except (ImportError, ValueError, AttributeError):
        # ValueError: the module is loaded and its __spec__ is None. The others: odd finders.
        return None
    return spec


def _all_refs() -> Iterator[BackendRef]:
    from importlib.metadata import distributions

    seen: set[str] = set()
    for distribution in distributions():
        try:
            text = distribution.read_text("entry_points.txt")
        except Exception:
            # Not even text: it cannot be told whether it meant to register a backend.
            _log.warning("unreadable entry points in %s", distribution, exc_info=True)
            continue
        if not text or GROUP not in text:
            continue
        name, version = _identity(distribution)
        # A distribution that lies on the path twice counts once, as for the importer.
        canonical = re.sub(r"[-_.]+", "-", name).lower()
        if canonical not in seen:
            seen.add(canonical)
            yield from _refs_of(distribution, name, version)


def _identity(distribution: Distribution) -> tuple[str, str]:
    try:
        return str(distribution.metadata["Name"]), str(distribution.version)
    except Exception:
        _log.warning("unreadable metadata in %s", distribution, exc_info=True)
        return "unknown distribution", ""


def _refs_of(distribution: Distribution, name: str, version: str) -> Iterator[BackendRef]:
    try:
        entries = [(e.name, e.value) for e in distribution.entry_points if e.group == GROUP]
    except Exception:
        # One malformed line makes importlib.metadata refuse the whole file.
        _log.warning("malformed entry points in %s %s", name, version, exc_info=True)
        ref = BackendRef(name, name, version, "")
        yield _malformed(ref, "its entry_points.txt is malformed")
        return
    for entry_name, raw in entries:
        value = re.sub(r"\s*\[.*\]\s*$", "", raw).replace(" ", "")
        ref = BackendRef(entry_name, name, version, value)
        if not _VALUE.fullmatch(value):
            ref = _malformed(ref, f"its entry point {quoted(raw)} is malformed")
        elif find_module(ref.module) is None:
            ref = replace(
                ref,
                problem=f"{ref.who} cannot be used: its entry point is stale, there is no module "
                f"{quoted(ref.module)}; run pip uninstall {sanitize_line(name)}, or install it "
                "again",
            )
        yield ref


def _malformed(ref: BackendRef, fault: str) -> BackendRef:
    cure = f"install {sanitize_line(ref.distribution)} again or tell its author"
    return replace(ref, entry_point="", problem=f"{ref.who} cannot be used: {fault}; {cure}")
