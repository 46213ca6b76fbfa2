"""The source *mount*: the file server's clock, by the ctime that it gives to a file that is touched now.

The one clock that all writers share, and a cheap cross-check; never a time of its own, because a file server's clock is
often wrong, and its error is only a statement of the settings. How a file is touched comes in by the constructor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.errors import BadTime, TenureError
from timeagent.interval import TimeInterval
from timeagent.signedtime import ClockStatus
from timeagent.units import MS

from .port import Sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.clock import MachineClock
    from timeagent.units import Instant, Span

GRANULARITY_NS: Final[Span] = 10 * MS
"""A kernel stamps files with the instant of its last tick: up to 10 ms ago."""


class MountSource:
    """The file server's clock, plus or minus what it is trusted to."""

    name = "mount"

    def __init__(self, machine: MachineClock, touch: Callable[[], Instant], radius_ns: Span) -> None:
        """Take how a file on the mount is made or changed, returning its new ctime as the server gave it."""
        assert radius_ns > 0
        self._machine = machine
        self._touch = touch
        self._radius_ns = radius_ns

    def sample(self) -> Sample:
        """Touch the file once. Blocks as long as the mount does. Raises BadTime when it fails."""
        boot_ns = self._machine.boot_ns()
        before = self._machine.realtime_ns()
        try:
            stamped = self._touch()
        except TenureError as problem:
            raise BadTime("mount-refused", problem.message, hint=problem.hint) from None
        except OSError as problem:
            raise BadTime(
                "mount-refused", f"cannot touch a file on the mount: {problem.strerror}", hint="is it mounted?"
            ) from None
        after = self._machine.realtime_ns()
        # The server's clock showed `stamped`, or up to a tick more, at some instant between the two readings.
        offset = TimeInterval(min(stamped - after, stamped - before), stamped + GRANULARITY_NS - min(before, after))
        return Sample(self.name, offset.widened(self._radius_ns), boot_ns, ClockStatus.SYNCHRONIZED)
