"""P5: a dead holder blocks its own domains for the stated time, and nobody else; a dead shard likewise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History

SLACK_NS = 2 * SECOND
"""What the operations themselves take, retries and a recheck after the expiry included: simulated ones can be slow."""

GRACE_NS = 2 * SECOND
"""How long what the dead took tentatively stays theirs."""


def check(history: History, record: Record) -> Iterator[str]:
    bounds = {
        "free": 0,
        "holder died": record.policy.takeover_ns(),
        "shard died": record.policy.restart_ns(),
        "taker died": GRACE_NS,
    }
    for turn in history.turns:
        bound = bounds[turn.met] + SLACK_NS
        if turn.took_ns > bound:
            yield f"{turn.who} needed {turn.took_ns} ns for a turn on {turn.domain} ({turn.met}); {bound} are stated"
