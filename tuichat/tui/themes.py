"""The two themes of the program.

Owns their colours. Refuses to style a widget: stylesheets use the variables. Invariant: text keeps
a contrast of at least 4.5 on every surface it stands on, and no state is told by colour alone.
"""

from __future__ import annotations

import os

from textual.theme import Theme

DARK = Theme(
    name="tuichat-dark",
    primary="#7aa2f7",
    secondary="#7dcfb6",
    accent="#e5b567",
    foreground="#d5dae3",
    background="#11141a",
    surface="#171b23",
    panel="#1f2530",
    success="#8fce8f",
    warning="#e5b567",
    error="#f7768e",
    dark=True,
)

LIGHT = Theme(
    name="tuichat-light",
    primary="#2c5bbd",
    secondary="#0f6e5c",
    accent="#8a5a00",
    foreground="#1d2330",
    background="#fbfbf9",
    surface="#f2f2ee",
    panel="#e6e6e0",
    success="#2b7a2b",
    warning="#8a5a00",
    error="#b3213b",
    dark=False,
)


def initial_theme() -> str | None:
    """The theme to begin with; None leaves Textual's own, which ``TEXTUAL_THEME`` names.

    ``COLORFGBG`` is how xterm, rxvt, Konsole and iTerm2 tell their background: the last number is
    its colour, 7 and 15 are the light ones.
    """
    if os.environ.get("TEXTUAL_THEME"):
        return None
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return LIGHT.name if background in ("7", "15") else DARK.name
