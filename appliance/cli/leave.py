"""``tenure leave``: a node goes. Its shards are handed over, its daemon stops, its keys count no more.

1. Its shards are moved to others, and nobody loses a lease by it. Needs the root key.
2. Its units are switched off.
3. The trust record revokes its keys, and names no address of it. Needs the root key.

Each step may be repeated, and finds what was done. Without the root key it does the second, and says what remains.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from timeagent.console import argument, command, note, present
from timeagent.errors import BadConfiguration, ShardUnavailable, TryAgain
from timeagent.units import MS, parse_span

from ..admin.leaving import check_known, given_away, has_left, heirs, revoke, shards_of
from ..admin.moving import moved
from ..formats.shardmap import shard_text
from ..node.runtime import daemon_lock, runtime_of
from . import service
from .opening import add_cluster_options, named_root, open_cluster, root_key
from .shards import carry_out, check_answer

if TYPE_CHECKING:  # what a cluster loads may begin threads: it is loaded behind the fork of service.as_own_user
    from appliance.cluster import Cluster

_LOOK_NS: Final = 500 * MS
NOT_WHOLLY: Final = 1


def run_leave(options: Namespace) -> int:
    root = named_root(options)
    options.root = str(root)

    def on_the_mount(step: Callable[[Cluster | None, Namespace], int]) -> int:
        return service.as_own_user(lambda: _with_cluster(step, options), allow_root=options.allow_root)

    status = on_the_mount(_hand_over)
    if status == 0 and options.node is None:
        if isinstance(root, Path) and service.is_there() and options.node_dir is None and not options.no_systemd:
            service.switch_off(root)
        status = on_the_mount(_refuse_running)
    return status or on_the_mount(_finish)


def _with_cluster(step: Callable[[Cluster | None, Namespace], int], options: Namespace) -> int:
    """Open the cluster for a step; None, and a word about it, where this machine is no node of it."""
    try:
        cluster = open_cluster(options)
    except BadConfiguration as problem:
        if problem.code != "not-joined":
            raise
        note(f"tenure: {problem.message}: there is nothing to leave")
        return step(None, options)
    with cluster:
        return step(cluster, options)


def _hand_over(cluster: Cluster | None, options: Namespace) -> int:
    """Give the shards away, and wait until others run them."""
    if cluster is None:
        return 0
    node = options.node or cluster.settings.node
    check_known(cluster.registers, node)
    if options.root_key is None:
        return 0
    key, newest = root_key(cluster, options), cluster.registers.newest_map()
    if newest.before is not None:  # a move that was cut off, perhaps this one
        carry_out(cluster, key, lambda _: newest.layout)
    given = given_away(cluster.registers, node, options.to)
    if given:
        way_out = "start tenure-node there, or name nodes that answer: --to NODE"
        check_answer(cluster, lambda before: moved(before, given), way_out)
        carry_out(cluster, key, lambda before: moved(before, given))
    until = cluster.time.boot_ns() + parse_span(options.wait)
    waiting = {cluster.map.layout.shards[place] for place in given}
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
                f"nobody runs shard {', '.join(map(shard_text, sorted(waiting)))} yet; {node} keeps its keys",
                hint="tenure shards ls says who should; call it again",
            )
        if waiting:
            cluster.time.sleep(_LOOK_NS)
    return 0


def _refuse_running(cluster: Cluster | None, _options: Namespace) -> int:
    """Raise TryAgain while the daemon of this machine runs: without its keys it could not stop in good order."""
    if cluster is None:
        return 0
    runtime = runtime_of(cluster.settings, cluster.registers.cluster_id)
    if runtime.is_dir() and daemon_lock(runtime).is_held():
        raise TryAgain(
            "daemon-runs",
            f"`tenure node run` of {cluster.settings.node} runs on this machine, and keeps its keys",
            hint="end it with SIGINT (Ctrl-C), then call this again",
        )
    return 0


def _finish(cluster: Cluster | None, options: Namespace) -> int:
    """Revoke the keys, and say what was not done."""
    if cluster is None:
        return present(options, "tenure.leave", {"node": options.node, "left": True, "shards": [], "remains": []})
    node = options.node or cluster.settings.node
    if options.root_key is not None and not has_left(cluster.registers, node):
        key = root_key(cluster, options)
        number = revoke(cluster.registers, key, node, cluster.time.now().midpoint)
        note(f"tenure: trust record {number}: no key of {node} counts from now on")
    left = has_left(cluster.registers, node)
    shards = shards_of(cluster.registers, node)
    remains = _remains(cluster, node, shards, left=left, own=options.node is None)
    present(
        options,
        "tenure.leave",
        {"node": node, "left": left, "shards": shards, "remains": remains},
        f"{node} has left the cluster at {cluster.root}." if left else f"{node} has not left yet.",
        "What is not done:" if remains else "",
        *(f"  {line}" for line in remains),
    )
    return 0 if left else NOT_WHOLLY


def _remains(cluster: Cluster, node: str, shards: list[int], *, left: bool, own: bool) -> list[str]:
    """Return what it leaves to people, in words; commands where there is one."""
    found = []
    if not left:
        heir = next(iter(heirs(cluster.registers, node)), "NODE")
        found += [f"where the root key is: tenure shards move {each} {heir} --root-key FILE" for each in shards]
        found.append(f"where the root key is: tenure leave {cluster.root} --node {node} --root-key FILE")
    if own:
        found.append(f"settings and keys stay in {cluster.settings.directory}: delete them when nothing needs them")
        found.append("applications of this machine that use the root: end them")
        found.append(f"the mount of {cluster.root}, the package and the user tenure stay")
    else:
        found.append(f"the machine of {node}: end its daemon there, should it come back; it is refused by the others")
    return found


COMMANDS: Final = {
    "leave": command(
        "Take this machine out of its cluster.",
        run_leave,
        argument("root_path", metavar="ROOT", help="the shared directory"),
        argument("--root-key", metavar="FILE", help="the cluster's root key; without it: say what remains to do"),
        argument("--node", metavar="NAME", help="another node, which is lost: its machine is asked nothing"),
        argument("--to", metavar="NODE", action="append", default=[], help="who gets its shards, in turn"),
        argument("--wait", metavar="SPAN", default="60s", help="how long the others may take (default: 60s)"),
        argument("--no-systemd", action="store_true", help="leave this machine's units alone"),
        add_cluster_options,
    )
}
