"""Sessions, the tree of turns, and the images in it."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tuichat.api import SessionNotFound, StoreError
from tuichat.images import LoadedImage, check_image
from tuichat.store import HEAD, Owner, Posted, Store
from tuichat.store.sessions import make_title, new_id


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as store:
        yield store


@pytest.fixture
def owner(store: Store) -> Iterator[Owner]:
    with store.register_owner() as owner:
        yield owner


def picture(colour: str = "red", name: str = "red.png") -> LoadedImage:
    buffer = BytesIO()
    Image.new("RGB", (40, 20), colour).save(buffer, "PNG")
    return check_image(buffer.getvalue(), name)


def new_session(store: Store) -> str:
    return store.create_session(backend="llava", model="demo")


def ask(store: Store, session: str, text: str, **options: object) -> Posted:
    options.setdefault("images", [])
    return store.post(
        session,
        text,
        poster="poster",
        backend="llava",
        model="demo",
        **options,  # type: ignore[arg-type]
    )


def answer(store: Store, reply_id: int, text: str, owner: Owner) -> None:
    assert store.claim(reply_id, owner.token)
    store.append(reply_id, 1, text, owner=owner.token)
    store.finish(reply_id, owner=owner.token, state="done", stop_reason="end")


# ------------------------------------------------------------------ posting and reading


def test_post_commits_question_and_empty_reply_together(store: Store) -> None:
    session = new_session(store)
    posted = ask(store, session, "What is it?", params={"temperature": 0.5})
    user, reply = store.path(session)
    assert (user.id, user.parent_id, user.role, user.text) == (
        posted.user_id,
        None,
        "user",
        "What is it?",
    )
    assert (user.state, user.finished_at) == ("done", user.created_at)
    assert (reply.id, reply.parent_id, reply.role) == (posted.reply_id, posted.user_id, "assistant")
    assert (reply.state, reply.text, reply.last_seq) == ("queued", "", 0)
    assert (reply.backend, reply.model, reply.params) == ("llava", "demo", {"temperature": 0.5})
    assert (reply.usage, reply.timing, reply.dtype, reply.notices) == (None, None, None, [])
    assert store.session(session).head == reply.id
    assert store.turn(reply.id) == reply


def test_post_that_fails_leaves_no_trace(store: Store) -> None:
    session = new_session(store)
    ask(store, session, "good")
    before = store.path(session)
    record = store.session(session)
    with pytest.raises(StoreError, match="not in the store"):
        ask(store, session, "bad", images=[("0" * 64, "gone.png")])
    assert store.path(session) == before
    assert store.session(session) == record
    assert store.search("bad") == []


def test_a_turn_posted_while_one_runs_follows_it(store: Store, owner: Owner) -> None:
    session = new_session(store)
    first = ask(store, session, "one")
    assert store.claim(first.reply_id, owner.token)
    second = ask(store, session, "two")
    assert store.turn(second.user_id).parent_id == first.reply_id
    assert [turn.text for turn in store.history(second.reply_id)] == ["one", "", "two"]
    assert [turn.state for turn in store.history(second.reply_id)] == ["done", "running", "done"]


def test_two_windows_lose_no_turn(store: Store) -> None:
    session = new_session(store)

    def window(name: str) -> None:
        with Store.open(store.root) as other:
            for number in range(20):
                ask(other, session, f"{name} {number}")

    threads = [threading.Thread(target=window, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path = store.path(session)
    assert [turn.role for turn in path] == ["user", "assistant"] * 40
    asked = [turn.text for turn in path if turn.role == "user"]
    for name in ("a", "b"):
        assert [text for text in asked if text.startswith(name)] == [
            f"{name} {number}" for number in range(20)
        ]


def test_regenerate_makes_a_sibling_and_moves_the_head(store: Store, owner: Owner) -> None:
    session = new_session(store)
    first = ask(store, session, "colour?")
    answer(store, first.reply_id, "red", owner)
    again = store.regenerate(
        first.reply_id, poster="poster", backend="glm4v", model="other", params={"seed": 1}
    )
    assert store.session(session).head == again
    user, reply = store.path(session)
    assert (user.id, reply.id) == (first.user_id, again)
    assert reply.siblings == store.turn(first.reply_id).siblings == (first.reply_id, again)
    assert (reply.backend, reply.model, reply.params) == ("glm4v", "other", {"seed": 1})
    assert store.turn(first.reply_id).text == "red"
    assert [turn.id for turn in store.path(session, first.reply_id)] == [
        first.user_id,
        first.reply_id,
    ]
    assert store.session(session).turns == 3


def test_an_edit_is_a_sibling(store: Store, owner: Owner) -> None:
    session = new_session(store)
    first = ask(store, session, "one")
    answer(store, first.reply_id, "1", owner)
    second = ask(store, session, "two")
    edited = ask(store, session, "two, better", parent_id=first.reply_id)
    root = ask(store, session, "one, better", parent_id=None)
    assert store.turn(edited.user_id).siblings == (second.user_id, edited.user_id)
    assert store.turn(root.user_id).siblings == (first.user_id, root.user_id)
    assert [turn.text for turn in store.path(session)] == ["one, better", ""]
    assert [turn.text for turn in store.path(session, second.reply_id)] == ["one", "1", "two", ""]
    following = ask(store, session, "on", parent_id=HEAD)
    assert store.turn(following.user_id).parent_id == root.reply_id


def test_first_turns_of_other_sessions_are_no_siblings(store: Store) -> None:
    one, other = new_session(store), new_session(store)
    first = ask(store, one, "a")
    ask(store, other, "b")
    assert store.turn(first.user_id).siblings == (first.user_id,)


def test_a_parent_has_to_be_a_reply_of_the_session(store: Store) -> None:
    one, other = new_session(store), new_session(store)
    posted, foreign = ask(store, one, "a"), ask(store, other, "b")
    for parent in (posted.user_id, foreign.reply_id, 12345):
        with pytest.raises(StoreError, match="can only follow a reply"):
            ask(store, one, "x", parent_id=parent)
    with pytest.raises(StoreError, match="no message"):
        store.path(one, foreign.reply_id)


def test_what_does_not_exist_is_an_error(store: Store, owner: Owner) -> None:
    session = new_session(store)
    posted = ask(store, session, "a")
    with pytest.raises(StoreError, match="no message 99"):
        store.turn(99)
    for call in (store.history, store.blocked_by):
        with pytest.raises(StoreError, match="no reply"):
            call(posted.user_id)
    with pytest.raises(StoreError, match="no reply 99"):
        store.regenerate(99, poster="p", backend="b", model="m")
    with pytest.raises(StoreError, match="no reply 99"):
        store.claim(99, owner.token)
    with pytest.raises(SessionNotFound):
        store.path("nosuchone0")
    with pytest.raises(SessionNotFound):
        ask(store, "nosuchone0", "x")
    assert store.path(new_session(store)) == []


def test_a_long_conversation_is_read_fast(store: Store) -> None:
    session = new_session(store)
    for number in range(300):
        ask(store, session, f"question {number}")
    start = time.monotonic()
    assert len(store.path(session)) == 600
    assert time.monotonic() - start < 0.5


# ------------------------------------------------------------------ sessions


def test_ids_are_short_typable_and_sorted_by_time() -> None:
    moments = [1_704_067_200 + step * 0.5 for step in range(0, 10**8, 10**6)]
    ids = [new_id(moment) for moment in moments]
    assert ids == sorted(ids)
    assert all(len(text) == 10 and not set(text) & set("ilouILOU") for text in ids)


def test_listing_is_by_use_and_hides_what_is_empty(store: Store) -> None:
    one, two, three = (new_session(store) for _ in range(3))
    new_session(store)
    for session in (one, two, three):
        ask(store, session, f"in {session}\nmore")
    ask(store, one, "again", images=[store.put_image(picture()), store.put_image(picture())])
    records = store.list_sessions()
    assert [record.id for record in records] == [one, three, two]
    assert [record.id for record in store.list_sessions(limit=1)] == [one]
    assert (records[0].title, records[0].turns, records[0].images) == (f"in {one}", 4, 2)
    assert store.resolve_session("last").id == one


def test_resolving_what_a_person_types(store: Store) -> None:
    with pytest.raises(SessionNotFound, match="No session is stored yet"):
        store.resolve_session("last")
    session = new_session(store)
    ask(store, session, "the [/bold] one\x1b[31m")
    for text in (session, session.upper(), f" {session} ", session[:9]):
        assert store.resolve_session(text).id == session
    typed = session.replace("0", "O").replace("1", "l")
    assert store.resolve_session(typed).id == session
    for text in ("", "abc", session[:3], "zzzzzzzzzz", "%%%%", "'; DROP TABLE session", "\0\ud800"):
        with pytest.raises(SessionNotFound):
            store.resolve_session(text)


def test_ambiguous_and_mistyped_ids_offer_near_ones(store: Store) -> None:
    one, two = new_session(store), new_session(store)
    for session in (one, two):
        ask(store, session, f"about {session}\x1b")
    with pytest.raises(SessionNotFound, match="Several sessions") as caught:
        store.resolve_session(one[:4])
    assert one in str(caught.value)
    assert two in str(caught.value)
    wrong = one[:8] + ("zz" if one[8:] != "zz" else "yy")
    with pytest.raises(SessionNotFound, match="did you mean") as caught:
        store.resolve_session(wrong)
    assert f"{one} “about {one}␛”" in str(caught.value)
    with pytest.raises(SessionNotFound, match="did you mean"):
        store.session(wrong)


def test_set_session_changes_only_what_is_given(store: Store) -> None:
    session = store.create_session(system="s", backend="b", model="m")
    store.set_session(session, title="t", backend=None)
    record = store.session(session)
    assert (record.title, record.system, record.backend, record.model) == ("t", "s", None, "m")
    ask(store, session, "a first question does not replace a given title")
    assert store.session(session).title == "t"
    with pytest.raises(SessionNotFound):
        store.set_session("nosuchone0", title="x")


@pytest.mark.parametrize(
    ("text", "names", "title"),
    [
        ("One line", [], "One line"),
        ("\n\n  first \nsecond", [], "first"),
        ("", ["a.png", "b.png"], "a.png"),
        (" \n ", [], ""),
        ("x" * 80, [], "x" * 59 + "…"),
        ("a\u2028b", [], "a"),
    ],
)
def test_titles(text: str, names: list[str], title: str) -> None:
    assert make_title(text, names) == title


def test_a_session_is_held_by_one_window(store: Store) -> None:
    session = new_session(store)
    hold = store.hold_session(session)
    assert hold is not None
    with Store.open(store.root) as window:
        assert window.hold_session(session) is None
        hold.release()
        hold.release()
        again = window.hold_session(session)
        assert again is not None
        again.release()
    with pytest.raises(SessionNotFound):
        store.hold_session("../../etc/x")


# ------------------------------------------------------------------ images


def test_images_stay_in_their_turn_in_order_under_their_names(store: Store) -> None:
    session = new_session(store)
    red = store.put_image(picture("red", "r\udcff.png"))
    blue = store.put_image(picture("blue", "blue.png"))
    ask(store, session, "which?", images=[blue, red, (blue.digest, "same again.png")])
    ask(store, session, "and now?")
    first, _, third, _ = store.path(session)
    assert [image.name for image in first.images] == ["blue.png", "r\udcff.png", "same again.png"]
    assert first.images[:2] == (blue, red)
    assert third.images == ()
    assert store.session(session).images == 3


def test_bytes_are_stored_once_under_their_digest(store: Store) -> None:
    image = picture()
    records = [store.put_image(image) for _ in range(3)]
    assert records[0] == records[2]
    assert records[0].size == len(image.data)
    files = [path for path in (store.root / "blobs").rglob("*") if path.is_file()]
    digest = hashlib.sha256(image.data).hexdigest()
    assert files == [store.root / "blobs" / digest[:2] / digest]
    assert files[0].stat().st_mode & 0o077 == 0
    assert store.image_bytes(digest) == image.data


def test_changed_and_missing_bytes_are_noticed_and_mended(store: Store) -> None:
    session = new_session(store)
    image = picture("red", "evil\x1b.png")
    record = store.put_image(image)
    ask(store, session, "?", images=[record])
    path = store.root / "blobs" / record.digest[:2] / record.digest
    path.write_bytes(image.data[:-1] + b"X")
    with pytest.raises(StoreError, match=r"evil␛\.png was changed or damaged"):
        store.image_bytes(record.digest)
    path.unlink()
    with pytest.raises(StoreError, match=r"evil␛\.png is missing"):
        store.image_bytes(record.digest)
    assert store.path(session)[0].images == (record,)  # the conversation still opens
    for damage in (lambda: None, lambda: path.write_bytes(b"X"), lambda: path.write_bytes(b"")):
        damage()
        store.put_image(image)
        assert store.image_bytes(record.digest) == image.data


@pytest.mark.parametrize("digest", ["", "../../../etc/passwd", "a" * 63, "G" * 64, "a" * 65])
def test_what_is_no_digest_never_becomes_a_path(store: Store, digest: str) -> None:
    with pytest.raises(StoreError, match="no image digest"):
        store.image_bytes(digest)


def test_a_blob_that_cannot_be_written_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match="The disk is full"):
            store.put_image(picture())
    assert not [path for path in (store.root / "blobs").rglob("*") if path.is_file()]
    assert store.put_image(picture()).width == 40


# ------------------------------------------------------------------ search


def test_search_finds_words_in_any_script(store: Store, owner: Owner) -> None:
    session = new_session(store)
    one = ask(store, session, "A GREEN triangle 图像里有一个红色的圆 100% done")
    answer(store, one.reply_id, "Das ist ein grünes Dreieck, 可能是。", owner)
    other = new_session(store)
    two = ask(store, other, "green grass_x")

    def found(query: str) -> list[int]:
        return [hit.turn_id for hit in store.search(query)]

    assert found("green") == [two.user_id, one.user_id]
    assert found("triangle green") == [one.user_id]
    assert found("红色的圆") == [one.user_id]
    assert found("红色") == [one.user_id]  # shorter than a trigram
    assert found("圆") == [one.user_id]
    assert found("可能是 grün") == [one.reply_id]
    assert found("0% 图像里") == [one.user_id]
    assert found("s_") == [two.user_id]
    assert found("%") == [one.user_id]
    for nothing in ("", "  ", "purple", "green purple", "!_"):
        assert found(nothing) == []
    for syntax in (
        '"',
        "green OR purple",
        "NEAR(a b)",
        "text:green",
        "*",
        "gre*",
        "a\0b",
        "\ud800",
    ):
        assert found(syntax) == []
    assert [hit.turn_id for hit in store.search("green", limit=1)] == [two.user_id]


def test_search_hits_say_where_they_are(store: Store) -> None:
    session = new_session(store)
    posted = ask(store, session, "Title\n" + "before " * 30 + "needle\n in it " + "after " * 30)
    (hit,) = store.search("NEEDLE")
    assert (hit.session_id, hit.turn_id, hit.role) == (session, posted.user_id, "user")
    assert hit.title == "Title"
    assert "before needle in it after" in hit.snippet
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert len(hit.snippet) < 100
