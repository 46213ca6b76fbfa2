"""Scenarios: what happens at the file server: restarts, no room, who may do what; and a program that breaks a rule."""

from __future__ import annotations

import time
from typing import Final

from tests.nfs_lab.channel import MachineError
from tests.nfs_lab.lab import MOUNT, SQUASHED
from tests.nfs_lab.scenario import Scenario, Stage
from tests.nfs_lab.site import USER

FULL_S: Final = 15.0
OPEN_S: Final = 15.0
NOT_TRUSTED: Final = 77
"""The exit code of what refuses to run as the superuser."""


def grace(stage: Stage) -> str:
    """Restart the NFS server while one of the clients that it knows is dead: on v4 it waits for that one."""
    stage.tellers.await_progress(*stage.lab.nodes, count=1)
    held = stage.tellers.await_holding(stage.writer)
    stage.writer.cut_power()
    at = time.monotonic()
    stage.lab.server.shell("systemctl restart nfs-server", 600)
    stage.tellers.await_progress(*stage.others(stage.writer), count=1)
    first = time.monotonic() - at
    stage.tellers.await_takeover(held, at)
    stage.site.back(stage.writer)
    stage.tellers.keep_going()
    stage.tellers.await_progress(*stage.lab.nodes)
    return f"the others' first message after {first:.0f} s; all at work after {time.monotonic() - at:.0f} s"


def full(stage: Stage) -> str:
    """Leave no room on the export for a while."""
    stage.tellers.await_progress(*stage.lab.nodes, count=1)
    before = stage.tellers.interruptions.copy()
    stage.lab.server.shell(
        "dd if=/dev/zero of=/disk/filler bs=1M 2>/dev/null; dd if=/dev/zero of=/disk/rest bs=1k 2>/dev/null; df /disk"
    )
    at = time.monotonic()
    stage.hold(FULL_S)
    meanwhile = stage.acknowledged(at + 2, *stage.lab.nodes)
    stage.lab.server.shell("rm /disk/filler /disk/rest")
    emptied = time.monotonic()
    stage.tellers.await_progress(*stage.lab.nodes)
    work = time.monotonic() - emptied
    refused = stage.refused(before)
    return f"{meanwhile} acknowledged while full, refused: {refused}; at work {work:.0f} s after there was room"


def squash(stage: Stage) -> str:
    """Show what the superuser of a client can do with root_squash and without, under load."""
    words = f"HOME=/root TENURE_ROOT={MOUNT} tenure publish bank /dev/null --lease root/1"
    node = stage.writer
    seen = []
    for squashing in ("root_squash", "no_root_squash"):
        stage.lab.server.shell(f"exportfs -o rw,sync,no_subtree_check,{squashing},fsid=1 10.77.0.0/24:{SQUASHED}")
        stage.hold(OPEN_S)
        refused = node.try_shell(words, 300)["code"]
        wrote = node.try_shell(f"touch {MOUNT}/logs/of-root", 300)["code"] == 0
        kept = node.shell(f"rm -f {MOUNT}/logs/of-root; id -u {USER}", 300)
        stage.tellers.await_progress(*stage.lab.nodes)
        if refused != NOT_TRUSTED:
            raise MachineError(f"tenure as root ended with {refused}, not {NOT_TRUSTED}")
        seen.append(f"{squashing}: root {'can' if wrote else 'cannot'} write, tenure as root ends with {refused}")
        assert kept.strip() == "742"
    stage.lab.server.shell("exportfs -ra")
    return "; ".join(seen)


def forged(stage: Stage) -> str:
    """Let an application write a million under a witness that it made up: the referee has to say so."""
    place = stage.first.shell("dirname $(find /etc/tenure /var/lib/tenure -name node.toml)").strip()
    words = f"--program -m appliance.demo.rogue forged-witness --root {MOUNT} --node-dir {place}"
    said = stage.site.command(stage.first, words)
    stage.tellers.await_progress(*stage.lab.nodes)
    return f"it was told: {said.strip()}"


def whole(stage: Stage) -> str:
    """Let all tellers finish."""
    stage.tellers.stop()
    heard = stage.tellers.heard()
    return f"{len(heard)} acknowledged, {sum(bool(entry.after_expiry) for entry in heard)} of them after a takeover"


WHOLE: Final = Scenario(
    "whole",
    "at the end of a run: the tellers finish, and every node reads the record from its beginning",
    "one record, the same for every node, with all that was acknowledged since the beginning",
    whole,
    anew=True,
)
"""The last of every run."""

SCENARIOS: Final = (
    Scenario(
        "grace",
        "the NFS server is restarted while one of its clients is dead",
        "all that need the mount wait until the server's grace time is over; nothing is lost",
        grace,
    ),
    Scenario(
        "full",
        "no room on the export for 15 s",
        "writes are refused or in doubt, never falsely acknowledged; once there is room all go on without help",
        full,
    ),
    Scenario(
        "squash",
        "root_squash on, then off",
        "tenure refuses to run as the superuser either way (77); its own user's work goes on",
        squash,
    ),
    Scenario(
        "forged",
        "planted: an application writes under a witness that it made up",
        "no reader takes it, and the audit reports it",
        forged,
        may=frozenset({"forged-witness"}),
        must=frozenset({"forged-witness"}),
        short=True,
    ),
)
