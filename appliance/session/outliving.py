"""Waiting until no earlier holder of a domain can believe any more that it has it: before anything but messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.errors import TryAgain
from timeagent.units import MS, rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeagent.clock import NodeTime
    from timeagent.units import Instant, Span

    from .held import Lease
    from .session import Session

SLICE_NS: Final[Span] = 100 * MS
"""How long a wait goes on before the leases are looked after again."""


def outlive_earlier_holders(
    session: Session, time: NodeTime, leases: Sequence[Lease], until_boot_ns: int, given_up: Callable[[], bool]
) -> None:
    """Wait until every lease that ended without being relinquished is surely past, renewing meanwhile.

    Raises TryAgain, code ``warming``, LeaseLost, BadTime: then the leases are given back.
    """
    target = max(lease.settle_to_ns for lease in leases)
    try:
        while not (now := time.now()).surely_past(target):
            check_in_time(
                time,
                max(leases, key=lambda lease: lease.settle_to_ns).domain,
                target,
                0 if given_up() else until_boot_ns,
            )
            session.check_held(leases)
            session.renew_due()
            time.sleep(max(MS, min(SLICE_NS, target - now.earliest)))
    except BaseException:
        session.relinquish(leases)
        raise


def check_in_time(time: NodeTime, domain: str, target: Instant, until_boot_ns: int) -> None:
    """Raise TryAgain, code ``warming``, where the time for the wait is over."""
    if time.boot_ns() >= until_boot_ns:
        raise TryAgain(
            "warming",
            f"an earlier holder of {domain!r} may believe until {rfc3339(target)} that it holds it",
            hint="allow more time: an earlier holder died, or its shard did; who only writes messages need not wait",
        )
