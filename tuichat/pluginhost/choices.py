"""From what a person chose to what a backend is given.

Owns the meaning of ``--model`` and of ``-o KEY=VALUE``. Refuses to know any option by name: all
come from the ``BackendInfo``. Invariant: what is returned is typed, complete and within what the
backend declared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuichat.api.errors import BackendError
from tuichat.api.types import BackendInfo, Option
from tuichat.pluginhost.refs import BackendRef, nearest, quoted

OptionValue = int | float | bool | str | None
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_ARTICLES = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def resolve_model(info: BackendInfo, ref: BackendRef, model: str | None) -> str:
    """The model to load: None is the backend's default, ``demo`` its bundled demo model.

    Raises:
        BackendError: the backend has no such model; the text says what to give instead.
    """
    if model == "demo":
        if info.demo_model is None:
            raise BackendError(
                f"Backend {quoted(ref.name)} ships no demo model; leave --model out for its "
                "default, or give a hub id or a local folder"
            )
        return info.demo_model
    if model:
        return model
    if info.default_model is None:
        known = ", ".join(known.id for known in info.models)
        raise BackendError(
            f"Backend {quoted(ref.name)} has no default model; give one with --model"
            + (f", for instance one of {known}" if known else "")
        )
    return info.default_model


def parse_options(
    info: BackendInfo, pairs: Sequence[str]
) -> tuple[dict[str, OptionValue], dict[str, OptionValue]]:
    """Options of scope ``load`` and of scope ``turn``, defaults filled in.

    Args:
        pairs: ``KEY=VALUE`` each; of two with the same key the later one counts.

    Raises:
        BackendError: no ``=``, an unknown key (with the nearest one), a value of another type or
            outside the declared choices.
    """
    options = {option.name: option for option in info.options}
    values: dict[str, OptionValue] = {name: _default(option) for name, option in options.items()}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise BackendError(f"The option {quoted(pair)} is not of the form KEY=VALUE")
        if key not in options:
            known = f"it has {', '.join(options)}" if options else "it has no options"
            raise BackendError(
                f"{info.title} has no option {quoted(key)}{nearest(key, options)}; {known}"
            )
        values[key] = _value(options[key], text)
    return (
        {name: values[name] for name, option in options.items() if option.scope == "load"},
        {name: values[name] for name, option in options.items() if option.scope == "turn"},
    )


def _default(option: Option) -> OptionValue:
    # JSON and authors alike write 1 for 1.0.
    if option.type == "float" and isinstance(option.default, int):
        return float(option.default)
    return option.default


def _value(option: Option, text: str) -> OptionValue:
    if option.type == "str":
        if option.choices and text not in option.choices:
            raise BackendError(
                f"The option {option.name} is {quoted(text)}{nearest(text, option.choices)}; "
                f"allowed: {', '.join(option.choices)}"
            )
        return text
    word = text.strip().lower()
    try:
        if option.type == "int":
            return int(word)
        if option.type == "float":
            number = float(word)
            if math.isfinite(number):
                return number
        elif word in _TRUE or word in _FALSE:
            return word in _TRUE
    except ValueError:
        pass
    raise BackendError(
        f"The option {option.name} must be {_ARTICLES[option.type]}, and {quoted(text)} is not"
    )
