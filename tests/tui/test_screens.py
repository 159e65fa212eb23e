"""The whole screen, character by character, at three sizes; and the choice of the theme.

Characters rather than colours: what a release of Textual changes in its colours is not ours, what
stands where is. The session is made with fixed figures, so that nothing depends on the clock.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tuichat.tui import themes

GOLDEN = Path(__file__).parent / "golden"
ANSWER = "The **circle** is red.\n\n- one\n- two\n\n```python\nprint(1 + 1)\n```\n"


@pytest.fixture
def session(chat_home: Path, image_file: Path) -> str:
    """Two questions: one answered, one stopped."""
    from tuichat.images import load_image
    from tuichat.store import Store

    store = Store.open()
    owner = store.register_owner()
    session = store.create_session(system=None, backend="echo", model="echo")
    record = store.put_image(load_image(image_file))
    asked = [("What colour is the circle?", [record]), ("And the ground?", [])]
    for (text, images), state, reply in zip(
        asked, ("done", "stopped"), (ANSWER, "It is"), strict=True
    ):
        posted = store.post(session, text, images, poster=owner.token, backend="echo", model="echo")
        assert store.claim(posted.reply_id, owner.token)
        store.append(posted.reply_id, 1, reply, owner=owner.token)
        store.finish(
            posted.reply_id,
            owner=owner.token,
            state=state,
            usage={"prompt_tokens": 613, "image_tokens": 576, "new_tokens": 12},
            timing={"first_token_s": 0.31, "total_s": 1.0, "tokens_per_s": 41.0},
        )
    owner.release()
    store.close()
    return session


def _characters(app) -> str:
    height = app.size.height
    lines = app.screen._compositor.render_strips()
    # Without the end of the scroll bar's thumb, which tells of heights above what is shown.
    rows = ("".join(segment.text for segment in strip) for strip in lines)
    text = "\n".join(re.sub("[▁-█]$", "", row).rstrip() for row in rows)
    assert len(lines) == height
    return text + "\n"


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (200, 50)], ids=lambda size: f"{size[0]}")
async def test_the_screen(
    open_chat, session: str, image_file: Path, size: tuple[int, int], request: pytest.FixtureRequest
) -> None:
    async with open_chat(image_file, session=session, size=size) as chat:
        await chat.until_seen("■ stopped")
        await chat.until(lambda: chat.chips and chat.chips[0].tokens is not None, "the cost")
        chat.composer.cursor_blink = False
        await chat.until(lambda: not chat._drawing(), "the turns")
        golden = GOLDEN / f"{size[0]}x{size[1]}.txt"
        # The layout settles at its own time; what it settles to is what counts.
        for _ in range(100):
            await chat.pilot.pause(0.1)
            shown = _characters(chat.app).replace(f"{image_file.stat().st_size} B", "250 B")
            if golden.exists() and shown == golden.read_text():
                break
    if not golden.exists():
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(shown)
        pytest.fail(f"{golden.name} was written: look at it, and run the test again")
    assert shown == golden.read_text()


@pytest.mark.parametrize(
    ("variables", "theme"),
    [
        ({}, "tuichat-dark"),
        ({"COLORFGBG": "15;0"}, "tuichat-dark"),
        ({"COLORFGBG": "0;15"}, "tuichat-light"),
        ({"COLORFGBG": "0;default;7"}, "tuichat-light"),
        ({"COLORFGBG": "nonsense"}, "tuichat-dark"),
        ({"COLORFGBG": "0;15", "TEXTUAL_THEME": "nord"}, None),
    ],
)
def test_the_theme_follows_the_terminal(
    variables: dict[str, str], theme: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COLORFGBG", "TEXTUAL_THEME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert themes.initial_theme() == theme


@pytest.mark.parametrize("theme", [themes.DARK, themes.LIGHT], ids=lambda theme: theme.name)
def test_text_stands_out_from_every_surface(theme) -> None:
    from textual.color import Color

    def luminance(color: Color) -> float:
        channels = [value / 255 for value in color.rgb]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for surface in (theme.background, theme.surface, theme.panel):
        ground = luminance(Color.parse(surface))
        for ink in (theme.foreground, theme.primary, theme.secondary, theme.error, theme.warning):
            text = luminance(Color.parse(ink))
            high, low = max(text, ground), min(text, ground)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, surface)
