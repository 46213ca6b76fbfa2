"""Where virtual machines are impossible: the demo over two mounts of one loopback export, and what that does not show.

Two mounts with ``nosharecache`` have caches of their own: what one client sees of the other is real. One kernel,
one clock and one power supply are not.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.demo.director import Director, audit, verify
from appliance.demo.machines import set_up_place
from appliance.node.settings import save_settings
from timeagent.clock import SystemClock
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_COVERED: Final = (
    "power cuts of machines and of the server",
    "pauses of a machine, clocks of their own, clocks that are set",
    "partitions",
    "units under systemd, reboots, upgrades",
)
TRADE_NS: Final = 20 * SECOND


def missing() -> str:
    """Return what this host lacks for a loopback export; empty: nothing."""
    if os.geteuid() != 0:
        return "mounting needs root"
    for tool in ("exportfs", "mount.nfs", "rpc.nfsd"):
        if shutil.which(tool) is None and not Path("/usr/sbin", tool).exists():
            return f"there is no {tool}: apt install nfs-kernel-server"
    if not Path("/proc/fs/nfsd/versions").exists():
        return "the kernel's NFS server does not run: systemctl start nfs-server"
    if "nfs" not in Path("/proc/filesystems").read_text().split():
        return "the kernel has no NFS client: modprobe nfs"
    return ""


def run_loopback(why: str, say: Callable[[str], None]) -> int:
    """Run what can be run without machines; return the exit code: 0 also where that is nothing, which is said."""
    say(f"NO VIRTUAL MACHINES: {why}")
    if lack := missing():
        say(f"AND NO LOOPBACK EXPORT: {lack}")
        say("NOTHING OF THE LAB WAS COVERED")
        return 0
    good = True
    for vers in ("4.2", "3"):
        good = run_over(vers, say) and good
    for each in NOT_COVERED:
        say(f"NOT COVERED: {each}")
    return 0 if good else 1


def run_over(vers: str, say: Callable[[str], None]) -> bool:
    """Run the demo, each of its two nodes on a mount of its own; say whether its promises held."""
    clock = SystemClock()
    with ExitStack() as stack:
        top = Path(tempfile.mkdtemp(prefix="tenure-loopback-"))
        stack.callback(shutil.rmtree, top)
        export = top / "export"
        export.mkdir(mode=0o777)
        options = "rw,sync,no_subtree_check,no_root_squash,insecure,fsid=742"
        subprocess.run(["exportfs", "-o", options, f"127.0.0.1:{export}"], check=True)
        stack.callback(subprocess.run, ["exportfs", "-u", f"127.0.0.1:{export}"], check=True)
        mounts = [top / name for name in ("one", "other")]
        for mount in mounts:
            mount.mkdir()
            words = ["mount", "-t", "nfs", "-o", f"vers={vers},nosharecache", f"127.0.0.1:{export}", str(mount)]
            subprocess.run(words, check=True)
            stack.callback(subprocess.run, ["umount", "-f", str(mount)], check=True)
        place = set_up_place(mounts[0] / "demo", len(mounts), clock.realtime_ns(), random.Random(os.urandom(32)))
        machines = [
            replace(settings, root=mount / "demo" / "cluster")
            for settings, mount in zip(place.machines, mounts, strict=True)
        ]
        for settings in machines:
            save_settings(settings)
        director = Director(replace(place, machines=tuple(machines)), clock, random.Random(1), say)
        try:
            director.begin(None)
            director.trade(TRADE_NS)
            director.cut_power()
            director.take_over()
            director.trade(TRADE_NS)
            director.finish()
            director.close()
            told = {each for machine in director.machines for each in machine.acknowledged()}
            verdict = verify(director.place, told)
            _, report = audit(director.place)
        finally:
            director.discard()
    summary = report["summary"]
    say(f"loopback, v{vers}: {len(told)} acknowledged, lost {verdict.lost}, {summary['violations']} violations")
    return verdict.good and summary["violations"] == 0 and summary["messages"] > 0
