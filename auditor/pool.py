"""Several processes that read parts of one tree: results come back in the order in which they were asked for.

The processes are forked, so that they begin with everything that the parent knows, and need nothing sent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

JOBS_MAX: Final = 64
UNITS_WORTH_IT: Final = 8
"""With fewer parts than this, starting processes costs more than they save."""

_work: Callable[[Any], bytes] | None = None


def default_jobs(units: int) -> int:
    """Return how many processes are worth it for so many parts."""
    return min(len(os.sched_getaffinity(0)), JOBS_MAX, units) if units >= UNITS_WORTH_IT else 1


def in_order[T](work: Callable[[T], bytes], units: Sequence[T], jobs: int) -> Iterator[bytes]:
    """Yield what ``work`` returns for each unit, in order, from so many processes.

    Call it from a program with one thread. When the caller stops asking, or is interrupted, the processes end.
    """
    global _work  # noqa: PLW0603 - what a forked process begins with
    if not units:
        return
    _work = work
    context = multiprocessing.get_context("fork")
    with context.Pool(min(jobs, len(units)), _begin) as pool:  # leaving it terminates them
        yield from pool.imap(_one, units)
    _work = None


def _begin() -> None:
    """Leave an interrupt to the parent, which ends its processes: at once, whatever they are doing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _one(unit: object) -> bytes:
    assert _work is not None
    return _work(unit)
