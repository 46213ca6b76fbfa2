"""P5: a dead holder blocks its own domains for the stated time, and nobody else; a dead shard likewise.

A turn that is still under way when the run ends has taken until then. Who lives may be in the way for as long as it
has its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import Death, History, Hold, Turn
    from timeagent.units import Instant

SLACK_NS = 2 * SECOND
"""What the operations themselves take, retries and a recheck after the expiry included: simulated ones can be slow."""

GRACE_NS = 2 * SECOND
"""How long what the dead took tentatively stays theirs."""


def check(history: History, record: Record) -> Iterator[str]:
    bounds = {
        "holder died": record.policy.takeover_ns(),
        "shard died": record.policy.restart_ns(),
        "taker died": GRACE_NS,
    }
    for turn in history.turns:
        if turn.over_ns is None and turn.process.dead:
            continue
        over = history.ended_ns if turn.over_ns is None else turn.over_ns
        met = [each for each in history.deaths if each.true_ns < over and _concerns(each, turn, history)]
        free = max((each.true_ns + bounds[each.what] for each in met), default=turn.began_ns)
        free = max(turn.began_ns, free, *_kept_until(turn, over, history))
        if over > free + SLACK_NS:
            how = "needed" if turn.over_ns is not None else "waits in vain for"
            yield (
                f"{turn.process.name} {how} {over - turn.began_ns} ns for a turn on {turn.domain}, which was free at "
                f"{free}, {over - free} ns before ({', '.join(each.what for each in met) or 'nobody died'})"
            )


def _concerns(death: Death, turn: Turn, history: History) -> bool:
    if death.what == "shard died":
        return True
    if death.what == "taker died":
        return death.tentative == turn.domain
    if any(each.process is death.process and _asked(each, turn.domain, death.true_ns) for each in history.turns):
        return True
    return any(hold.process is death.process and _had(hold, turn.domain, death.true_ns) for hold in history.holds)


def _asked(turn: Turn, domain: str, true_ns: Instant) -> bool:
    """Whether who died was asking for the domain: its request may still be granted, to nobody."""
    return turn.domain == domain and turn.over_ns is None and turn.began_ns <= true_ns


def _had(hold: Hold, domain: str, true_ns: Instant) -> bool:
    return hold.domain == domain and hold.until_ns is None and hold.lease.expiry_ns > true_ns


def _kept_until(turn: Turn, over: Instant, history: History) -> Iterator[Instant]:
    """Yield until when others who lived had the domain."""
    yield turn.began_ns
    for hold in history.holds:
        if hold.domain != turn.domain or hold.process is turn.process or hold.from_ns >= over:
            continue
        if hold.until_ns is not None:
            yield hold.until_ns
        elif not hold.process.dead:
            yield hold.lease.expiry_ns
