"""``tenure leave``: a node goes. Its shards are handed over, its daemon stops, its keys count no more.

1. The map gives its shards to others; its daemon hands them over in good order. Needs the root key.
2. Its units are switched off.
3. The trust record revokes its keys, and names no address of it. Needs the root key.

Each step may be repeated, and finds what was done. Without the root key it does the second, and says what remains.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.opening import add_cluster_options, named_root
from timeagent.console import Command, note, print_json, say
from timeagent.units import MS, parse_span

if TYPE_CHECKING:
    from appliance.cluster import Cluster

    from ..node.records import Registers

_LOOK_NS: Final = 500 * MS
NOT_WHOLLY: Final = 1


def _add_leave(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root_path", metavar="ROOT", help="the shared directory")
    parser.add_argument("--root-key", metavar="FILE", help="the cluster's root key; without it: say what remains to do")
    parser.add_argument("--node", metavar="NAME", help="another node, which is lost: its machine is asked nothing")
    parser.add_argument("--to", metavar="NODE", action="append", default=[], help="who gets its shards, in turn")
    parser.add_argument("--wait", metavar="SPAN", default="60s", help="how long the others may take (default: 60s)")
    parser.add_argument("--no-systemd", action="store_true", help="leave this machine's units alone")
    add_cluster_options(parser)


def run_leave(options: argparse.Namespace) -> int:
    """Take a node out of its cluster."""
    from appliance.cli import service

    options.root = str(named_root(options))

    def on_the_mount(step: Any) -> int:  # noqa: ANN401 - one of the three below
        def work() -> int:
            return int(step(options))

        return work() if options.allow_root else service.as_own_user(work)

    status = on_the_mount(_hand_over)
    if status == 0 and options.node is None:
        with_units = service.is_there() and options.node_dir is None and not options.no_systemd
        if with_units:
            service.switch_off(Path(options.root))
        status = on_the_mount(_refuse_running)
    return status or on_the_mount(_finish)


def _opened(options: argparse.Namespace) -> Cluster | None:
    """Open the cluster; None, and a word about it, where this machine is no node of it."""
    from appliance.cli.opening import open_cluster
    from timeagent.errors import BadConfiguration

    try:
        return open_cluster(options)
    except BadConfiguration as problem:
        if problem.code != "not-joined":
            raise
        note(f"tenure: {problem.message}: there is nothing to leave")
        return None


def _hand_over(options: argparse.Namespace) -> int:
    """Give the shards away, and wait until others run them."""
    from appliance.admin.leaving import check_known, give_away
    from appliance.cli.opening import root_key
    from timeagent.errors import ShardUnavailable, TryAgain

    cluster = _opened(options)
    if cluster is None:
        return 0
    with cluster:
        node = options.node or cluster.settings.node
        check_known(cluster.registers, node)
        if options.root_key is None:
            return 0
        given = give_away(cluster.registers, root_key(cluster, options), node, options.to)
        for shard, heir in given.items():
            note(f"tenure: shard {shard} goes to {heir}")
        until = cluster.time.boot_ns() + parse_span(options.wait)
        waiting = set(given)
        while waiting:
            cluster.maps.look()
            for shard in sorted(waiting):
                try:
                    runs = cluster.routes.numbers(shard).node
                except ShardUnavailable:
                    continue
                if runs != node:
                    waiting.discard(shard)
            if waiting and cluster.time.boot_ns() >= until:
                raise TryAgain(
                    "not-handed-over",
                    f"nobody runs shard {', '.join(map(str, sorted(waiting)))} yet; {node} keeps its keys",
                    hint="tenure shards ls says who should; call it again",
                )
            if waiting:
                cluster.time.sleep(_LOOK_NS)
    return 0


def _refuse_running(options: argparse.Namespace) -> int:
    """Raise TryAgain while the daemon of this machine runs: without its keys it could not stop in good order."""
    from timeagent.errors import TryAgain

    from ..node.runtime import daemon_lock, runtime_of

    cluster = _opened(options)
    if cluster is None:
        return 0
    with cluster:
        runtime = runtime_of(cluster.settings, cluster.registers.cluster_id)
        if not runtime.is_dir():
            return 0
        if daemon_lock(runtime).is_held():
            raise TryAgain(
                "daemon-runs",
                f"`tenure node run` of {cluster.settings.node} runs on this machine, and keeps its keys",
                hint="end it with SIGTERM, then call this again",
            )
    return 0


def _finish(options: argparse.Namespace) -> int:
    """Revoke the keys, and say what was not done."""
    from appliance.admin.leaving import has_left, revoke, shards_of
    from appliance.cli.opening import root_key

    cluster = _opened(options)
    if cluster is None:
        if options.json:
            print_json("tenure.leave", {"node": options.node, "left": True, "shards": [], "remains": []})
        return 0
    with cluster:
        node = options.node or cluster.settings.node
        if options.root_key is not None and not has_left(cluster.registers, node):
            key = root_key(cluster, options)
            number = revoke(cluster.registers, key, node, cluster.time.now().midpoint)
            note(f"tenure: trust record {number}: no key of {node} counts from now on")
        left = has_left(cluster.registers, node)
        shards = shards_of(cluster.registers, node)
        remains = _remains(cluster, node, shards, left=left, own=options.node is None)
        if options.json:
            print_json("tenure.leave", {"node": node, "left": left, "shards": shards, "remains": remains})
        else:
            say(f"{node} has left the cluster at {cluster.root}." if left else f"{node} has not left yet.")
            say("What is not done:" if remains else "")
            for line in remains:
                say(f"  {line}")
    return 0 if left else NOT_WHOLLY


def _remains(cluster: Cluster, node: str, shards: list[int], *, left: bool, own: bool) -> list[str]:
    """Return what it leaves to people, in words; commands where there is one."""
    found = []
    if not left:
        heirs = _heirs(cluster.registers, node)
        found += [f"where the root key is: tenure shards move {each} {heirs} --root-key FILE" for each in shards]
        found.append(f"where the root key is: tenure leave {cluster.root} --node {node} --root-key FILE")
    if own:
        found.append(f"settings and keys stay in {cluster.settings.directory}: delete them when nothing needs them")
        found.append("applications of this machine that use the root: end them")
        found.append(f"the mount of {cluster.root}, the package and the user tenure stay")
    else:
        found.append(f"the machine of {node}: end its daemon there, should it come back; it is refused by the others")
    return found


def _heirs(registers: Registers, node: str) -> str:
    from appliance.admin.leaving import heirs

    return next(iter(heirs(registers, node)), "NODE")


COMMANDS: Final = {"leave": Command("Take this machine out of its cluster.", _add_leave, run_leave)}
