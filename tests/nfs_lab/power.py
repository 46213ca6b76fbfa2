"""Scenarios: machines that lose their power, are rebooted, are upgraded."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tests.nfs_lab.scenario import Scenario, Stage

if TYPE_CHECKING:
    from tests.nfs_lab.machine import Machine

AWAY_S: Final = 3.0
NEXT: Final = "next"
"""The name of the version that nodes are upgraded to."""


def cut(stage: Stage, node: Machine, others: list[Machine]) -> str:
    """Cut a node's power in the middle of its work; say how long what it held was away."""
    held = stage.tellers.await_holding(node)
    node.cut_power()
    at = time.monotonic()
    takeover = stage.tellers.await_takeover(held, at)
    stage.site.back(node)
    stage.tellers.keep_going()
    stage.tellers.await_progress(*stage.lab.nodes)
    meanwhile = stage.acknowledged(at, *others)
    return f"taken over after {takeover:.0f} s; {meanwhile} acknowledged by the others until all were back at work"


def writer(stage: Stage) -> str:
    """Cut the power of a node that writes."""
    return cut(stage, stage.writer, stage.others(stage.writer))


def owner(stage: Stage) -> str:
    """Cut the power of a node that owns a shard."""
    return cut(stage, stage.owner, stage.others(stage.owner))


def server(stage: Stage) -> str:
    """Cut the power of the file server."""
    stage.tellers.await_progress(*stage.lab.nodes, count=1)
    stage.lab.server.cut_power()
    at = time.monotonic()
    stage.hold(AWAY_S)
    stage.lab.restart(stage.lab.server)
    up = time.monotonic() - at
    stage.tellers.keep_going()
    stage.tellers.await_progress(*stage.lab.nodes)
    return f"server back after {up:.0f} s, all at work after {time.monotonic() - at:.0f} s"


def everything(stage: Stage) -> str:
    """Cut the power of all machines at once."""
    stage.tellers.await_progress(*stage.lab.nodes, count=1)
    for machine in stage.lab.machines.values():
        machine.cut_power()
    at = time.monotonic()
    stage.site.back(*stage.lab.machines.values())
    stage.tellers.keep_going()
    stage.tellers.await_progress(*stage.lab.nodes)
    return f"four machines dark at once; all at work after {time.monotonic() - at:.0f} s"


def reboot(stage: Stage) -> str:
    """Reboot a node that owns a shard, in good order, by a cold boot."""
    node = stage.owner
    stage.tellers.await_progress(node, count=1)
    at = time.monotonic()
    stage.tellers.stop_one(node)
    stage.site.stop(node)
    node.cut_power()
    node.cuts -= 1  # it was stopped
    before = stage.acknowledged(at, *stage.others(node))
    stage.site.back(node, cold=True)
    stage.tellers.start(node)
    stage.tellers.await_progress(*stage.lab.nodes)
    total = stage.acknowledged(at, *stage.others(node))
    return f"back at work after {time.monotonic() - at:.0f} s; the others acknowledged {total - before} while it booted"


def upgrade(stage: Stage) -> str:
    """Give one node after the other another version, while the rest works."""
    at = time.monotonic()
    for node in stage.lab.nodes:
        stage.tellers.stop_one(node)
        stage.site.stop(node)
        node.write("/etc/tenure-version", NEXT + "\n")
        stage.site.start(node)
        stage.tellers.start(node)
        stage.tellers.await_progress(*stage.lab.nodes)
    count = stage.acknowledged(at, *stage.lab.nodes)
    return f"three nodes, one after the other, in {time.monotonic() - at:.0f} s; {count} acknowledged meanwhile"


SCENARIOS: Final = (
    Scenario(
        "writer-power",
        "power cut of a writer",
        "what it was told is in the record; what it held is taken over after 13.75 s and the closing's operations; "
        "nobody else waits",
        writer,
        short=True,
    ),
    Scenario(
        "owner-power",
        "power cut of a shard's owner",
        "its shard forgets and begins empty; domains of other shards go on; within 16 s and its own start all are free",
        owner,
    ),
    Scenario(
        "server-power",
        "power cut of the NFS server, writes in flight",
        "whoever needs the mount waits; what was acknowledged is on its disk; no outcome is a false one",
        server,
        short=True,
    ),
    Scenario(
        "all-power",
        "power cut of all four machines at once",
        "nothing is repaired by anybody; what was acknowledged is in the record",
        everything,
    ),
    Scenario(
        "reboot",
        "a node is rebooted in good order",
        "its shard ends orderly and another node runs it, or it comes back; nobody waits for a term",
        reboot,
    ),
    Scenario(
        "upgrade",
        "rolling upgrade of all nodes to another version",
        "both versions read and write one record; the bank goes on",
        upgrade,
    ),
)
