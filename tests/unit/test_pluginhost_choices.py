"""``--model`` and ``-o KEY=VALUE`` against what a backend declares."""

from __future__ import annotations

import pytest

from tuichat.api import BackendError, BackendInfo, KnownModel, Option
from tuichat.pluginhost.catalog import BackendRef, parse_options, resolve_model

REF = BackendRef("glass", "tuichat-glass", "2.0", "glass")
OPTIONS = (
    Option("layers", "int", 12, "how many", scope="load"),
    Option("delay", "float", 1, "seconds"),
    Option("shout", "bool", False, "loudly"),
    Option("tone", "str", None, "how", choices=("warm", "dry")),
    Option("note", "str", "", "anything"),
)
INFO = BackendInfo(
    title="Glass",
    api_version=1,
    models=(KnownModel("org/small"), KnownModel("org/large")),
    default_model="org/small",
    demo_model="/there/demo",
    options=OPTIONS,
)


def test_defaults_are_typed_and_split_by_scope() -> None:
    load, turn = parse_options(INFO, [])
    assert load == {"layers": 12}
    assert turn == {"delay": 1.0, "shout": False, "tone": None, "note": ""}
    assert type(turn["delay"]) is float


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("layers=24", 24),
        ("layers= -3 ", -3),
        ("delay=0.25", 0.25),
        ("delay=3", 3.0),
        ("delay=1e-3", 0.001),
        ("shout=true", True),
        ("shout=YES", True),
        ("shout=1", True),
        ("shout=off", False),
        ("tone=dry", "dry"),
        ("note=a=b, c", "a=b, c"),
        ("note=", ""),
        (" note = x ", " x "),
    ],
)
def test_values_get_their_type(pair: str, value: object) -> None:
    load, turn = parse_options(INFO, [pair])
    given = {**load, **turn}[pair.partition("=")[0].strip()]
    assert given == value
    assert type(given) is type(value)


def test_the_last_of_two_counts() -> None:
    assert parse_options(INFO, ["layers=1", "layers=2"])[0] == {"layers": 2}


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        ("shout", "not of the form KEY=VALUE"),
        ("=1", "not of the form KEY=VALUE"),
        ("layer=1", "did you mean 'layers'?"),
        ("LAYERS=1", "did you mean 'layers'?"),
        ("zzz=1", "it has layers, delay, shout, tone, note"),
        ("layers=1.5", "The option layers must be a whole number, and '1.5' is not"),
        ("delay=fast", "must be a number"),
        ("delay=nan", "must be a number"),
        ("delay=inf", "must be a number"),
        ("shout=maybe", "must be true or false"),
        ("tone=drly", "did you mean 'dry'?; allowed: warm, dry"),
        ("\x1b[31m=1", "'␛[31m'"),
    ],
)
def test_a_wrong_pair_is_refused_with_the_right_one(pair: str, said: str) -> None:
    with pytest.raises(BackendError) as caught:
        parse_options(INFO, [pair])
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_backend_without_options_says_so() -> None:
    with pytest.raises(BackendError, match="Bare has no option 'x'; it has no options"):
        parse_options(BackendInfo(title="Bare", api_version=1), ["x=1"])


def test_models() -> None:
    assert resolve_model(INFO, REF, None) == "org/small"
    assert resolve_model(INFO, REF, "demo") == "/there/demo"
    assert resolve_model(INFO, REF, "./demo") == "./demo"
    assert resolve_model(INFO, REF, "org/large") == "org/large"


def test_a_backend_without_demo_or_default_says_what_to_give() -> None:
    bare = BackendInfo(title="Bare", api_version=1, models=INFO.models)
    with pytest.raises(BackendError, match="Backend 'glass' ships no demo model; leave --model"):
        resolve_model(bare, REF, "demo")
    with pytest.raises(BackendError, match=r"no default model; give one .* org/small, org/large$"):
        resolve_model(bare, REF, None)
    with pytest.raises(BackendError, match=r"give one with --model$"):
        resolve_model(BackendInfo(title="Bare", api_version=1), REF, "")
