"""Scenarios: machines that stand still, machines that cannot reach each other, clocks that are set."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from tests.nfs_lab.lab import SERVER
from tests.nfs_lab.scenario import Scenario, Stage

PAUSE_S: Final = 30.0
"""Longer than a term (10 s), a bag's span and grace (3 s) and the bounds of the clocks."""

CUT_S: Final = 20.0
WRONG_S: Final = 20.0

CLOCK_CODES: Final = frozenset({"r2-breach", "r1-breach"})
"""What a clock that broke its bounds may have done, and the audit then says."""


def pause(stage: Stage, *, clocks: bool) -> str:
    """Let a node stand still in mid-work, beyond its leases and bags; its clocks run on, or stand still with it."""
    node = stage.writer
    held = stage.tellers.await_holding(node)
    at = time.monotonic()
    if clocks:
        node.freeze()
    else:
        node.stop_with_clocks()
    takeover = stage.tellers.await_takeover(held, at)
    stage.hold(max(0.0, PAUSE_S - (time.monotonic() - at)))
    before = stage.tellers.interruptions.copy()
    if clocks:
        node.thaw()
    else:
        node.go_on()
    woken = time.monotonic()
    stage.hold(WRONG_S)
    if not clocks:
        node.shell("chronyc -n makestep", 600)
    stage.tellers.await_progress(*stage.lab.nodes)
    refused = stage.refused(before)
    return (
        f"taken over after {takeover:.0f} s; at work {time.monotonic() - woken:.0f} s after it went on; "
        f"refused since then: {refused}"
    )


def partition(stage: Stage, one: str, other: str, *, one_way: bool = False) -> str:
    """Cut a connection for a while, then heal it."""
    away = stage.lab.machines[other] if one == SERVER else stage.lab.machines[one]
    stage.tellers.await_progress(away, count=1)
    at = time.monotonic()
    stage.lab.cut(one, other, one_way=one_way)
    stage.hold(CUT_S)
    meanwhile = stage.acknowledged(at, *stage.others(away))
    its = stage.acknowledged(at + 1, away)
    stage.lab.heal()
    healed = time.monotonic()
    stage.tellers.await_progress(*stage.lab.nodes)
    return (
        f"cut for {CUT_S:.0f} s: {meanwhile} acknowledged by the others, {its} by {away.name}; "
        f"all at work {time.monotonic() - healed:.0f} s after the heal"
    )


def step(stage: Stage, seconds: float) -> str:
    """Set a node's clock wrong; after a while let chrony set it right."""
    node = stage.writer
    stage.tellers.await_progress(node, count=1)
    at = time.monotonic()
    before = stage.tellers.interruptions.copy()
    node.set_clock(seconds)
    stage.hold(WRONG_S)
    wrong, others = stage.acknowledged(at + 1, node), stage.acknowledged(at, *stage.others(node))
    status = node.try_shell("HOME=/var/lib/tenure TENURE_ROOT=/srv/tenure tenure time now", 300, "tenure")
    node.shell("systemctl restart chrony; chronyc -n waitsync 600 0.1 0 1 >/dev/null", 900)
    stage.tellers.await_progress(*stage.lab.nodes)
    refused = stage.refused(before)
    said = "; ".join(line for line in status["out"].splitlines() if line.startswith(("radius", "status")))
    return (
        f"{wrong} acknowledged by it and {others} by the others meanwhile; refused: {refused}; "
        f"`tenure time now` said: {said}; at work {time.monotonic() - at - WRONG_S:.0f} s after chrony was told"
    )


CLOCK_PROMISE: Final = (
    "its time is refused or its writes are, until chrony has it right again; nobody else waits, and nothing that "
    "was acknowledged is lost; a time that was signed wrong is reported"
)

SCENARIOS: Final = (
    Scenario(
        "pause",
        "a node stands still for 30 s, its clocks run on",
        "its leases are over, its bags closed without it; what it had begun is void or in the record, and it is told",
        partial(pause, clocks=True),
        may=CLOCK_CODES,
        short=True,
    ),
    Scenario(
        "pause-clocks",
        "a node stands still for 30 s with all its clocks (its token looks fresh afterwards)",
        "the same, though its own time tells it nothing: the looks after each publication do",
        partial(pause, clocks=False),
        may=CLOCK_CODES,
    ),
    Scenario(
        "cut-server",
        "a node cannot reach the NFS server for 20 s",
        "it waits, the others do not; its writes have one of three outcomes, and a true one",
        partial(partition, one="node3", other=SERVER),
        short=True,
    ),
    Scenario(
        "cut-owner-server",
        "a shard's owner cannot reach the NFS server for 20 s",
        "its shard grants up to its ceiling and then nothing; nobody's messages are lost",
        partial(partition, one="node2", other=SERVER),
    ),
    Scenario(
        "cut-nodes",
        "two nodes cannot reach each other for 20 s, both reach the server",
        "leases of the other's shard cannot be had meanwhile; those of the own one can; nothing else",
        partial(partition, one="node1", other="node2"),
    ),
    Scenario(
        "cut-one-way",
        "replies of the NFS server to a node are lost for 20 s, its requests arrive",
        "what was done and not answered is found done: no message twice, none lost",
        partial(partition, one=SERVER, other="node3", one_way=True),
    ),
    *(
        Scenario(
            f"clock{name}",
            f"a node's clock is set {name} off",
            CLOCK_PROMISE,
            partial(step, seconds=s),
            may=CLOCK_CODES,
        )
        for name, s in (("+2s", 2.0), ("-2s", -2.0), ("+1h", 3600.0), ("-1h", -3600.0))
    ),
)
