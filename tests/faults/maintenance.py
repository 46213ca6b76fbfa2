"""Maintenance under holders: three daemons on this machine, a holder for each shard, and whatever an operator does.

    python -m tests.faults.maintenance [--rounds 10] [--short]      exit 0 only when nobody lost a lease

Each holder is a process of its own that says itself, at every look at its own clock, whether it has its lease. Between
two steps each of them has to be renewed once more; at the end all of them have what they had at the beginning, and the
audit finds nothing. A further step is a function in STEPS.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.cli import service
from appliance.node import settings
from appliance.node.settings import load_settings, save_settings
from tests.faults.test_moves import audit_is_clean, domain_in
from tests.support.daemons import Daemons
from tests.support.holding import Holder, patient_policy
from tests.support.ports import free_port
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.units import Span

NODES = ("node1", "node2", "node3")
EARLIER = "0.0.1"
"""The release from which a daemon is upgraded."""
DAEMON_RUNS = 75
"""What `leave` says first: the shards are given away, and the daemon has to be ended."""
TERM_NS, SHORT_TERM_NS = 12 * SECOND, 6 * SECOND
"""So long each move takes: what was taken before it has to be past, or renewed. A busy machine needs the longer one."""


def restart(daemons: Daemons, node: str) -> None:
    """As ``systemctl restart``."""
    daemons.restart(node)


def upgrade(daemons: Daemons, node: str) -> None:
    """Go over from an earlier release, with daemons in the place of units."""
    assert daemons.stop(node) == 0
    daemons.start_with_release(node, EARLIER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "is_there", lambda: True)
        patch.setattr(service, "restart", lambda _: daemons.restart(node))
        patch.setattr(settings, "node_directories", lambda _: [daemons.site.node_dir(node)])
        done = daemons.command("node", "upgrade", "--root", str(daemons.site.root), "--allow-root")
    assert done.returncode == 0, done.stderr


def rotate(daemons: Daemons, node: str) -> None:
    """Make a node's next keys, which all its processes take up."""
    _as_operator(daemons, node, "trust", "rotate", "--overlap", "1h")


def change_policy(daemons: Daemons, node: str) -> None:
    """Publish another policy: a period goes up or down."""
    now = daemons.site.registers.newest_policy().ceiling_period_ns
    other = "900ms" if now != 900_000_000 else "800ms"
    _as_operator(daemons, node, "policy", "set", "--ceiling-period", other)


def move(daemons: Daemons, node: str) -> None:
    """Give a shard of a node to the next one, if it has any."""
    owners = daemons.site.registers.newest_map().owners
    if node in owners:
        to = NODES[(NODES.index(node) + 1) % len(NODES)]
        _as_operator(daemons, node, "shards", "move", str(owners.index(node)), to)


def reshard(daemons: Daemons, node: str) -> None:
    """Have one shard, three or five, in turn, over all nodes."""
    count = {1: 3, 3: 5}.get(len(daemons.site.registers.newest_map().owners), 1)
    _as_operator(daemons, node, "shards", "reshard", str(count), "--nodes", ",".join(NODES))


def join_and_leave(daemons: Daemons, node: str) -> None:
    """Let another node in, which gets its share of the shards; then it leaves, and the others have them again."""
    site = daemons.site
    name = f"extra{len(site.settings)}"
    place = site.node_dir(node).parent / name
    words = (str(site.root), "--node-dir", str(place), "--allow-root", "--root-key", str(site.root_key_file))
    done = daemons.command("join", *words, "--node", name, "--listen", f"127.0.0.1:{free_port()}")
    assert done.returncode == 0, done.stderr
    site.settings[name] = replace(load_settings(place), runtime=site.tmpfs / name)
    save_settings(site.settings[name])
    daemons.start(name)
    _as_operator(daemons, node, "shards", "share", name)
    assert name in site.registers.newest_map().owners
    done = daemons.command("leave", *words)
    assert done.returncode == DAEMON_RUNS, done.stderr
    assert name not in site.registers.newest_map().owners
    assert daemons.stop(name) == 0
    done = daemons.command("leave", *words)
    assert done.returncode == 0, done.stderr


def _as_operator(daemons: Daemons, node: str, *words: str) -> None:
    done = daemons.tenure(node, *words, "--root-key", str(daemons.site.root_key_file))
    assert done.returncode == 0, done.stderr


STEPS: tuple[Callable[[Daemons, str], None], ...] = (restart, upgrade, rotate, change_policy, move)
"""What is done at each node in turn, in every round."""

ONCE: tuple[Callable[[Daemons, str], None], ...] = (reshard, join_and_leave)
"""What is done to the cluster as a whole, in every round."""


def play(
    place: Path,
    rounds: int,
    steps: tuple[Callable[[Daemons, str], None], ...] = (*STEPS, *ONCE),
    term_ns: Span = TERM_NS,
) -> dict[str, str]:
    """Do it; return how each holder ended, by its domain. Raises AssertionError where one is not renewed."""
    with Daemons(place, *NODES, policy=patient_policy(place, term_ns)) as daemons, ExitStack() as stack:
        daemons.start(*NODES)
        with daemons.site.open("node1") as cluster:
            domains = [domain_in(cluster, shard) for shard in range(len(NODES))]
        holders = [stack.enter_context(Holder(daemons, "node1", domain)).renewed() for domain in domains]
        for number in range(rounds):
            for step in steps:
                for node in NODES if (rounds > 1 or step is restart) and step not in ONCE else NODES[:1]:
                    print(f"round {number + 1}: {step.__name__} {node}", flush=True)
                    step(daemons, node)
                    for holder in holders:
                        holder.renewed()
        ends = {holder.domain: holder.close() for holder in holders}
        for node in NODES:
            assert daemons.stop(node) == 0
        audit_is_clean(daemons)
        return ends


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--short", action="store_true", help="one round; all but restarts at one node only")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tenure-maintenance-") as place:
        rounds, term_ns = (1, SHORT_TERM_NS) if options.short else (options.rounds, TERM_NS)
        ends = play(Path(place), rounds, term_ns=term_ns)
    lost = {domain: end for domain, end in ends.items() if end != "kept"}
    print(f"maintenance: {len(ends) - len(lost)} of {len(ends)} holders kept their leases", lost or "; audit clean")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
