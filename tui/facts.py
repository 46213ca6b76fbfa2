"""Lines about a subject: what the details of records, live clusters and bytes share. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.units import SECOND, rfc3339

from .subjects import Line
from .words import Cell, Tone, clock_text

if TYPE_CHECKING:
    from timeagent.units import Instant

    from .subjects import Subject

LABEL: Final = 12
DIGITS: Final = 3
DAY_SHOWN_NS: Final = 18 * 3600 * SECOND
"""An instant that is further away than this from what is looked at is shown with its day."""


def fact(label: str, text: str, subject: Subject | None = None, tone: Tone = Tone.PLAIN) -> Line:
    """Return a line: what, and how it is."""
    return Line((Cell(f"{label:{LABEL}} ", Tone.DIM), Cell(text, tone)), subject)


def heading(text: str) -> Line:
    """Return a line above others."""
    return Line((Cell(text, Tone.STRONG),))


def words(text: str, subject: Subject | None = None, tone: Tone = Tone.PLAIN) -> Line:
    """Return a line that stands below a heading."""
    return Line((Cell(f"  {text}", tone),), subject)


BLANK: Final = Line((Cell(""),))


def moment(instant: Instant | None, near: Instant | None = None) -> str:
    """Return an instant to the millisecond, with its day where it is far from another.

    "not known" for None, "none" for 0: what was never set.
    """
    if instant is None:
        return "not known"
    if instant == 0:
        return "none"
    if near is not None and abs(instant - near) < DAY_SHOWN_NS:
        return clock_text(instant, DIGITS)
    return f"{rfc3339(instant)[: len('2026-11-20T22:10:07.400')]}Z".replace("T", " ")
