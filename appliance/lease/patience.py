"""How a holder waits for a lease: in calls that the shard holds back, one after the other, until its time is up.

One call waits no longer than an attempt may take. Then it is made again under the same request id, which has kept its
place meanwhile: so a shard that has died, or an answer that was lost, is noticed soon. A shard without anybody to hold
an answer back for (a call inside one process) answers at once; then a pause is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.units import MS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from timeagent.clock import NodeTime
    from timeagent.units import Instant, Span

    from ..formats.policy import PolicyNumbers

PAUSE_NS_MIN: Final[Span] = 5 * MS
PAUSE_NS_MAX: Final[Span] = 250 * MS
"""Who is not waited for asks again after this at the latest: a lease may be relinquished before its expiry."""


class Patience:
    """The time that is left for one wait. Reads the boot clock only to count it down."""

    def __init__(
        self, time: NodeTime, policy: PolicyNumbers, timeout_ns: Span, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Begin to wait. Once ``given_up`` is true, no time is left."""
        self._time = time
        self._given_up = given_up
        self._slice_ns = policy.attempt_timeout_ns
        self._until_ns = time.boot_ns() + timeout_ns
        self._called_ns = 0
        self._waited_ns = 0
        self._kept_ns = 0
        self._pause_ns = PAUSE_NS_MIN

    def left_ns(self) -> Span:
        """Return how much time is left."""
        return 0 if self._given_up() else max(0, self._until_ns - self._time.boot_ns())

    def over(self) -> bool:
        """Whether no time is left."""
        return self.left_ns() == 0

    def next_call(self) -> tuple[Span, Span]:
        """Return how long the next call may wait, and how long its place is to be kept afterwards: 0 for the last."""
        left = self.left_ns()
        self._called_ns, self._waited_ns = self._time.boot_ns(), min(left, self._slice_ns)
        self._kept_ns = self._slice_ns if self._waited_ns < left else 0
        return self._waited_ns, self._kept_ns

    @property
    def keeps_a_place(self) -> bool:
        """Whether the last call asked for its place to be kept: one more, without waiting, gives it up."""
        return self._kept_ns > 0

    def pause(self, chance: random.Random, earliest_ns: Instant | None = None) -> None:
        """Sleep if the last call was answered before its time, longer each time. ``earliest_ns``: no longer than that.

        A little longer by chance, so that those who wait do not come all at once.
        """
        if self._time.boot_ns() - self._called_ns >= self._waited_ns // 2 > 0:
            self._pause_ns = PAUSE_NS_MIN
            return
        pause = self._pause_ns
        if earliest_ns is not None:
            pause = min(max(earliest_ns - self._time.now().midpoint, PAUSE_NS_MIN), pause)
        self._pause_ns = min(2 * self._pause_ns, PAUSE_NS_MAX)
        self._time.sleep(min(pause + chance.randrange(pause // 4 + 1), self.left_ns()))
