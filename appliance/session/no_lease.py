"""Why there is no lease: what is raised where one is not to be had."""

from __future__ import annotations

from appliance.lease.client import LeaseDenied, LeaseOver, LeaseUnavailable, Suspect
from appliance.lease.wire import Denied, Refused
from timeagent.clock import NodeTime
from timeagent.errors import BadRequest, BadTime, ShardUnavailable, TryAgain
from timeagent.units import Instant, Span, rfc3339, span_text

type Obstacle = LeaseDenied | LeaseOver | LeaseUnavailable | Suspect | Refused


def raise_final(obstacle: Obstacle) -> None:
    """Raise what waiting cannot mend."""
    if isinstance(obstacle, Refused):
        raise BadRequest(obstacle.code, obstacle.message, hint=obstacle.hint)
    if isinstance(obstacle, Suspect):
        raise BadTime(
            "suspect-witness",
            f"the shard's witness on {obstacle.witness.domain!r} is refused: {obstacle.reason}",
            hint="a clock is out of its bounds: tenure time now, on both nodes",
        )


def given_up_for(obstacle: Obstacle, timeout_ns: Span) -> TryAgain:
    """Return what is raised once so long was waited, by what was in the way last."""
    waited = span_text(timeout_ns)
    match obstacle:
        case LeaseDenied():
            return TryAgain(
                "busy",
                f"{denial_text(obstacle.domain, obstacle)}; waited {waited}, as number {obstacle.place} of those "
                "who wait",
                hint="allow more time, or ask the holder",
            )
        case LeaseUnavailable():
            return ShardUnavailable(
                obstacle.code,
                f"no lease on {obstacle.domain!r} within {waited}: {obstacle.message}",
                hint=obstacle.hint
                or ("tenure time sources, at that node, says why" if obstacle.code == "bad-time" else "")
                or "tenure lease ls shows which shards answer",
            )
        case _:
            return TryAgain("outrun", f"an older request was faster; waited {waited}", hint="try again")


def denial_text(domain: str, denied: LeaseDenied | Denied) -> str:
    """Return who has a domain, since when and until when at least, as people read it."""
    holder = denied.holder
    purpose = f" ({holder.purpose})" if holder.purpose else ""
    return (
        f"{domain!r} is {denied.reason} by {holder.node}/{holder.process}{purpose} since {rfc3339(denied.since_ns)} "
        f"until {rfc3339(denied.until_ns)} at least"
    )


def check_in_time(time: NodeTime, domain: str, target: Instant, until_boot_ns: int) -> None:
    """Raise TryAgain, code ``warming``, where the time for the wait is over."""
    if time.boot_ns() >= until_boot_ns:
        raise TryAgain(
            "warming",
            f"an earlier holder of {domain!r} may believe until {rfc3339(target)} that it holds it",
            hint="allow more time: an earlier holder died, or its shard did; who only writes messages need not wait",
        )
