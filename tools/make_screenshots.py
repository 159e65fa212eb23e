"""Makes the README's screenshot: the real program, its demo model, an example image.

    python tools/make_screenshots.py            writes docs/images/chat.svg
    python tools/make_screenshots.py --png DIR  PNGs at other sizes too, to look at

Owns the conversation that is shown. Nothing in it is faked: the answers are the model's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ("What colour is the circle?", "And the square?")
SIZES = ((80, 24), (100, 36), (200, 50))
PATIENCE_S = 180.0


async def shoot(size: tuple[int, int], image: Path) -> str:
    """The screen as SVG after both questions were answered."""
    from tuichat.engine import Settings
    from tuichat.tui.app import ChatApp

    app = ChatApp(Settings(backend="llava", model="demo"), [str(image)], None, keep=False)
    async with app.run_test(size=size) as pilot:
        screen = app.screen
        async with asyncio.timeout(PATIENCE_S):
            for number, question in enumerate(QUESTIONS, 1):
                screen.query_one("#composer").insert(question)
                await pilot.press("enter")
                while len(_done(screen)) < number:
                    await pilot.pause(0.1)
        await pilot.pause(0.5)
        return app.export_screenshot(
            title="tuichat --backend llava --model demo examples/shapes.png"
        )


def _done(screen: object) -> list[object]:
    link = screen._link  # type: ignore[attr-defined]
    if link.engine is None:
        return []
    return [
        turn
        for turn in link.engine.transcript()
        if turn.role == "assistant" and turn.state == "done"
    ]


def main() -> None:
    """Write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--png", type=Path, help="also write PNGs of every size here")
    parser.add_argument("--image", type=Path, default=ROOT / "examples" / "shapes.png")
    given = parser.parse_args()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="tc-", dir="/tmp") as home:
        os.environ["TUICHAT_HOME"] = home
        target = ROOT / "docs" / "images" / "chat.svg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(asyncio.run(shoot((100, 36), given.image)), "utf-8")
        if given.png is not None:
            import cairosvg

            given.png.mkdir(parents=True, exist_ok=True)
            for size in SIZES:
                svg = asyncio.run(shoot(size, given.image))
                path = given.png / f"chat-{size[0]}x{size[1]}.png"
                cairosvg.svg2png(bytestring=svg.encode(), write_to=str(path))


if __name__ == "__main__":
    main()
