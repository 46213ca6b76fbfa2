"""What a holder chooses to do with a lease that another asks for."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadRequest

if TYPE_CHECKING:
    from timeagent.units import Span


class Recall(StrEnum):
    """What a session does with a lease that another asks for."""

    IGNORE = "ignore"
    """It is kept until its holder gives it back."""
    YIELD = "yield"
    """So too, but it is given back where its session and an older request may wait for each other (``Circle``)."""
    FINISH = "finish"
    """Its holder is told, and it is given back when the holder has finished: at the end of its block."""
    FLUSH = "flush"
    """Its holder's functions are called, in a thread, and may publish under it; then it is given back."""
    RELINQUISH = "relinquish"
    """It is given back at once: nothing more is begun under it."""


KEPT: Final = frozenset({Recall.IGNORE, Recall.YIELD})
"""With these nothing is done when another asks: nobody listens for it."""


def chosen_recall(recall: Recall | str | None, sticky_ns: Span | None) -> Recall:
    """Return what was chosen: without a choice sticky leases are finished with, and others kept. Raises BadRequest."""
    try:
        chosen = Recall(recall) if recall is not None else Recall.IGNORE if sticky_ns is None else Recall.FINISH
    except ValueError:
        raise BadRequest(
            "bad-recall", f"{recall!r} is no answer to a recall", hint=f"one of {', '.join(Recall)}"
        ) from None
    if sticky_ns is not None and (chosen in KEPT or sticky_ns <= 0):
        raise BadRequest(
            "bad-sticky",
            f"a lease that is kept between uses for {sticky_ns} ns, with {str(chosen)!r} as the answer to a recall, "
            "would be kept from everybody else, or not at all",
            hint="name a span above 0, and finish, flush or relinquish",
        )
    return chosen
