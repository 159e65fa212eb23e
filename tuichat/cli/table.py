"""Plain tables that fit the terminal.

Owns cell widths, clipping and alignment. Refuses to know what the cells mean. Invariant: no line
is wider than asked for, and no cell holds a control character.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Sequence

from tuichat.sanitize import sanitize_line

_GAP = "  "
_NARROWEST = 8


def output_width() -> int | None:
    """Columns of the terminal that stdout is; None for a file or a pipe, where nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cell_width(text: str) -> int:
    """Terminal cells that ``text`` takes: 0 for combining marks, 2 for wide characters."""
    return sum(map(_char_width, text))


def clip(text: str, width: int) -> str:
    """``text`` cut to ``width`` cells, with an ellipsis where it was cut."""
    if cell_width(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _char_width(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…" if width > 0 else ""


def render(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, flexible: int, width: int | None
) -> str:
    """The table as lines; columns are as wide as their longest cell.

    Args:
        flexible: index of the column that gives way when the table is wider than ``width``.
        width: cells available; None for no limit.
    """
    lines = [[sanitize_line(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(cell_width, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        if excess > 0:
            widths[flexible] = max(_NARROWEST, widths[flexible] - excess)
    drawn = (
        _GAP.join(_pad(clip(cell, size), size) for cell, size in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(
        line.rstrip() if width is None else clip(line.rstrip(), width) for line in drawn
    )


def _pad(text: str, width: int) -> str:
    return text + " " * (width - cell_width(text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
