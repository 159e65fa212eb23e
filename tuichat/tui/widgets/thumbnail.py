"""A small image in half blocks.

Owns how pixels become cells. Refuses to decode: it is given a function that delivers a bounded RGB
image from another thread, and asks it once. Invariant: painting again costs no decoding and no
scaling; nothing is ever asked of the terminal.

Half blocks are ours, though ``textual-image`` has them: importing any of its renderables sends
queries to the terminal, and so does rendering its half cells (for the size of a cell); both read
the answers from the stdin that Textual is reading. Its pixel protocols come with the issue that
brings our own detection.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    from PIL import Image as PILImage

Source = Callable[[int, int], Awaitable["PILImage.Image"]]
"""Delivers the image scaled to fit (width, height) pixels, RGB."""

_logger = logging.getLogger(__name__)


def fit(width: int, height: int, columns: int, rows: int) -> Size:
    """The largest (columns, rows) inside the given ones that keeps the aspect of an image.

    A cell holds one pixel across and two down, which makes pixels about square. Nothing is scaled
    up, and an extreme aspect still gets one cell.
    """
    scale = min(columns / width, 2 * rows / height, 1.0)
    return Size(max(1, round(width * scale)), max(1, round(height * scale / 2)))


def half_blocks(image: PILImage.Image) -> list[Strip]:
    """One strip for every two rows of an RGB image."""
    width, height = image.size
    data = image.tobytes()

    def colour(x: int, y: int) -> Color:
        at = 3 * (y * width + x)
        return Color.from_rgb(*data[at : at + 3])

    strips: list[Strip] = []
    for top in range(0, height, 2):
        cells = [
            Segment(
                "▀",
                Style(
                    color=colour(x, top),
                    bgcolor=colour(x, top + 1) if top + 1 < height else None,
                ),
            )
            for x in range(width)
        ]
        strips.append(Strip(cells, width))
    return strips


class Thumbnail(Widget):
    """Shows an image within ``columns`` × ``rows`` cells; its place is kept while it is decoded."""

    ALLOW_SELECT = False

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self._limits = (columns, rows)
        self._strips: list[Strip] = []
        self.display = False

    def show(self, source: Source, width: int, height: int) -> None:
        """Show an image of ``width`` × ``height`` pixels as soon as ``source`` delivers it."""
        cells = fit(width, height, *self._limits)
        self.styles.width, self.styles.height = cells
        self.display = True
        self.run_worker(self._load(source, cells), exit_on_error=False)

    async def _load(self, source: Source, cells: Size) -> None:
        try:
            image = await source(cells.width, 2 * cells.height)
        except Exception:
            # A preview is a courtesy: the name and the size stand beside it.
            _logger.warning("no preview", exc_info=True)
            return
        self._strips = half_blocks(image)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of cells; blank until the pixels are there."""
        background = self.rich_style
        if y < len(self._strips):
            return self._strips[y].adjust_cell_length(self.size.width, background)
        return Strip.blank(self.size.width, background)
