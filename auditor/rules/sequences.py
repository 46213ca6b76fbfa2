"""Rules about a writer's sequence of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditor.finding import NamedInterval
from auditor.sequences import disordered_frames, frames_before_named, lost_frames, reused_sequences
from timeagent.units import rfc3339

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.coverage import Coverage
    from auditor.finding import Finding
    from auditor.index import Index


def check_sequences(index: Index, coverage: Coverage) -> Iterator[Finding]:
    """sequence-reused, sequence-disorder, lost-frame and r2-breach. A sequence that no frame names proves nothing."""
    for run, sequence, places in reused_sequences(index):
        subject = run.frame(sequence)
        yield found("sequence-reused", subject, f"{len(places)} frames claim to be {subject}", places)
    for run, before, top, earlier, sequence, first, later in disordered_frames(index):
        subject = run.frame(sequence)
        reason = (
            f"{subject} begins at {rfc3339(first)}, not above {rfc3339(top)}, "
            f"with which frame {before} of that writer ends"
        )
        times = [NamedInterval.at(f"frame {before}", top), NamedInterval.at(f"frame {sequence}", first)]
        yield found("sequence-disorder", subject, reason, [earlier, later], times)
    for run, sequence, first_ns, last_ns, where in lost_frames(index):
        verdict = coverage.missing_frame(first_ns, last_ns)
        if verdict is None:
            continue
        subject = run.frame(sequence)
        reason = f"a later frame of its writer says that {subject} was committed; it is in no bag of this copy"
        yield found("lost-frame", subject, reason, [where], verdict=verdict)
    yield from _signed_before_named(index)


def _signed_before_named(index: Index) -> Iterator[Finding]:
    """r2-breach: who names a frame by its digest has seen it, and with it the signed time that the digest covers.

    A session takes the signed time of a frame and the reference under one lock, and takes note of an outcome under the
    same: the frame that is named was stamped before (``appliance.session.stamping``), by the same node's clock.
    """
    for run, frame, named in frames_before_named(index):
        subject = run.frame(frame.sequence)
        reason = (
            f"{subject} names frame {named.sequence} as committed, and that one was signed after the frame's time "
            "was surely over"
        )
        times = [
            NamedInterval(f"frame {each.sequence}", each.earliest_ns, each.latest_ns, node=run.writer)
            for each in (named, frame)
        ]
        title = "a frame was signed before one that it names as committed"
        yield found("r2-breach", subject, reason, [named.where, frame.where], times, title=title)
