"""Text from outside on its way to a widget.

Owns the one door: ``plain`` and ``plain_line`` make the ``Content`` that every widget here shows.
Refuses markup: what a string says about colours or clicks is shown, never obeyed. Invariant: the
result holds no control character but ``\\n`` and ``\\t``, and no clickable or styled span that its
caller did not name.
"""

from __future__ import annotations

from textual.content import Content

from tuichat.sanitize import sanitize, sanitize_line

MUTED = "$foreground 62%"
"""What is said quietly. ``$text-muted`` is for stylesheets: in a ``Content`` it has no background
to be mixed with, and comes out white."""


def plain(text: str, style: str = "") -> Content:
    """``text`` as it is, in one style of ours, its line breaks kept."""
    return Content.styled(sanitize(text), style)


def plain_line(text: str, style: str = "") -> Content:
    """``text`` on one line, in one style of ours."""
    return Content.styled(sanitize_line(text), style)


def joined(parts: list[Content], separator: str = " · ", style: str = "") -> Content:
    """The parts that are not empty, with ``separator`` between them."""
    return Content.styled(separator, style).join([part for part in parts if part.plain])
