"""Breaches that the corpus plants among millions of clean messages: each breaks one rule, with good signatures.

A fault is planted in one frame, in the lease that it is written under, or in the file that holds it. What the rest of
the tree says stays true, so that the audit must find exactly what was planted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.formats.lease import Phase
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .story import Change

GRANT_FAULTS: Final = (
    "timestamp-after-expiry",
    "timestamp-below-floor",
    "grant-overlap",
    "fence-not-growing",
    "term-above-policy",
    "tentative-write",
    "foreign-lease",
)
"""In the witness."""
FRAME_FAULTS: Final = ("r1-breach", "forged-time", "forged-witness", "sequence-reused", "lost-frame")
"""In the frame."""
ENDING_FAULTS: Final = ("count-mismatch", "watermark-below-message")
"""In what the holder said when it relinquished."""
FILE_FAULTS: Final = ("altered-file", "lost-file", "late-writer")
"""In the file, after its bag was closed."""
CODES: Final = GRANT_FAULTS + FRAME_FAULTS + ENDING_FAULTS + FILE_FAULTS


def witness_change(code: str, *, now_ns: int, floor_ns: int, granted_floor_ns: int, fence: int) -> Change:
    """Return the fields of a witness that break a rule. ``granted_floor_ns``, ``fence``: of the grant before it."""
    match code:
        case "timestamp-after-expiry":
            return {"expiry_ns": now_ns + 5 * MS}
        case "timestamp-below-floor":
            return {"floor_ns": now_ns + 45 * MS, "settle_to_ns": 0}
        case "grant-overlap":
            assert granted_floor_ns < floor_ns
            return {"floor_ns": granted_floor_ns}
        case "fence-not-growing":
            return {"fence": fence, "correlation_id": fence.to_bytes(8, "big") + b"repeated"}
        case "term-above-policy":
            return {"expiry_ns": now_ns + 10 * SECOND + 500 * MS}
        case "tentative-write":
            return {"phase": Phase.TENTATIVE}
        case _:
            return {}


def victims(wanted: Mapping[str, int], clean: Iterator[int]) -> dict[int, str]:
    """Return which frame gets which fault. ``clean``: frames that may be hit, far enough from each other."""
    chosen: dict[int, str] = {}
    most = max(wanted.values(), default=0)
    for turn in range(most):
        for code, count in sorted(wanted.items()):
            if turn < count:
                frame = next(clean, None)
                if frame is None:
                    raise ValueError(f"{sum(wanted.values())} faults do not fit into so few messages")
                chosen[frame] = code
    return chosen
