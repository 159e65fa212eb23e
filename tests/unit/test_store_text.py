"""Every text comes back out of the store exactly as it went in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tuichat.store import Store
from tuichat.store.text import escape, from_bytes, unescape

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
STRANGE = "a\0b\x1a0041\x1a\ud800\udc80\udfff\u2028\u2029\r\n\t\x1b[31m‮🎉é́ "


@given(ANY_TEXT)
@example(STRANGE)
@example("\x1a001a")
@example("\ud83d\ude00")  # two halves are not the whole
def test_escape_is_reversible_and_storable(text: str) -> None:
    stored = escape(text)
    assert "\0" not in stored
    stored.encode("utf-8")
    assert unescape(stored) == text
    assert from_bytes(stored.encode()) == text


@given(ANY_TEXT, ANY_TEXT)
def test_escape_is_unambiguous(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(st.text(st.characters(exclude_characters="\0\x1a", exclude_categories=["Cs"])))
def test_ordinary_text_is_stored_as_it_is(text: str) -> None:
    assert escape(text) == text


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with Store.temporary() as store:
        yield store


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=60)
@given(question=ANY_TEXT, pieces=st.lists(ANY_TEXT, max_size=4), extra=ANY_TEXT)
@example(question=STRANGE, pieces=[STRANGE, STRANGE], extra=STRANGE)
def test_whole_round_trip(store: Store, question: str, pieces: list[str], extra: str) -> None:
    owner = store.register_owner()
    session = store.create_session(system=extra, backend=extra, model=extra)
    posted = store.post(
        session, question, [], poster=owner.token, backend=extra, model=extra, params={"o": extra}
    )
    assert store.claim(posted.reply_id, owner.token)
    for seq, piece in enumerate(pieces, 1):
        store.append(posted.reply_id, seq, piece, piece[::-1], owner=owner.token)
    running = store.turn(posted.reply_id)
    store.finish(
        posted.reply_id,
        owner=owner.token,
        state="failed",
        error=extra,
        usage={extra: 1},
        dtype=[{"component": extra}],
        notices=[extra],
    )
    owner.release()

    user, reply = store.path(session)
    assert user.text == question
    assert running.text == reply.text == "".join(pieces)
    assert running.thinking == reply.thinking == "".join(piece[::-1] for piece in pieces)
    assert (reply.error, reply.backend, reply.model) == (extra, extra, extra)
    assert (reply.usage, reply.params) == ({extra: 1}, {"o": extra})
    assert (reply.dtype, reply.notices) == ([{"component": extra}], [extra])
    assert store.session(session).system == extra


def test_bytes_that_are_no_text_are_read_all_the_same(tmp_path: Path) -> None:
    """Another program's damage in one row costs nobody the session."""
    with Store.open(tmp_path) as store:
        session = store.create_session(backend="b", model="m")
        posted = store.post(session, "question", [], poster="p", backend="b", model="m")
        raw = sqlite3.connect(tmp_path / "tuichat.db")
        raw.execute("UPDATE turn SET text = CAST(x'61ff62' AS TEXT) WHERE id = ?", [posted.user_id])
        raw.execute("UPDATE turn SET params = '{broken' WHERE id = ?", [posted.reply_id])
        raw.execute("UPDATE turn SET notices = '7' WHERE id = ?", [posted.reply_id])
        raw.commit()
        raw.close()
        user, reply = store.path(session)
        assert user.text == "a\udcffb"
        assert (reply.params, reply.notices) == ({}, [])
