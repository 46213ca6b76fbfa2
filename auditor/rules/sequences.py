"""Rules about a writer's sequence of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditor.finding import NamedInterval, Verdict
from timeagent.units import rfc3339

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.coverage import Coverage
    from auditor.finding import Finding
    from auditor.index import Index


def check_sequences(index: Index, coverage: Coverage) -> Iterator[Finding]:
    """sequence-reused, sequence-disorder and lost-frame. A sequence that no frame names proves nothing."""
    for writer, incarnation, sequence, places in index.reused_sequences():
        subject = f"frame {sequence} of {writer} ({incarnation.hex()})"
        reason = f"{len(places)} frames claim to be {subject}"
        yield found("sequence-reused", subject, reason, places)
    for writer, incarnation, before, top, earlier, sequence, first, later in index.disordered_frames():
        subject = f"frame {sequence} of {writer} ({incarnation.hex()})"
        reason = (
            f"{subject} begins at {rfc3339(first)}, not above {rfc3339(top)}, "
            f"with which frame {before} of that writer ends"
        )
        times = [NamedInterval.at(f"frame {before}", top), NamedInterval.at(f"frame {sequence}", first)]
        yield found("sequence-disorder", subject, reason, [earlier, later], times)
    for writer, incarnation, sequence, named_ns, places in index.lost_frames():
        verdict = coverage.missing(named_ns)
        if verdict is None:
            continue
        nowhere = "it is in no bag" if verdict is Verdict.VIOLATION else "it is not in this copy"
        subject = f"frame {sequence} of {writer} ({incarnation.hex()})"
        reason = f"a later frame of its writer says that {subject} was committed; {nowhere}"
        yield found("lost-frame", subject, reason, places, verdict=verdict)
