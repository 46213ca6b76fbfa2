"""Rules about a writer's sequence of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.finding import Finding
    from auditor.index import Index


def check_sequences(index: Index) -> Iterator[Finding]:
    """sequence-reused and lost-frame. A sequence that no frame names proves nothing."""
    for writer, incarnation, sequence, places in index.reused_sequences():
        subject = f"frame {sequence} of {writer} ({incarnation.hex()})"
        reason = f"{len(places)} frames claim to be {subject}"
        yield found("sequence-reused", subject, reason, places)
    for writer, incarnation, sequence, places in index.lost_frames():
        subject = f"frame {sequence} of {writer} ({incarnation.hex()})"
        reason = f"a later frame of its writer says that {subject} was committed; it is in no bag"
        yield found("lost-frame", subject, reason, places)
