"""``tenure shards``: which shards there are, whose they are, who runs them; giving them to other nodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.opening import add_cluster_options, open_cluster, root_key
from appliance.lease.wire import shard_fields
from timeagent.console import Command, counted, instant_fields, note, print_json, say
from timeagent.errors import ShardUnavailable
from timeagent.units import span_text

if TYPE_CHECKING:
    from appliance.cluster import Cluster
    from appliance.formats.shardmap import ShardMap
    from appliance.lease.wire import ShardNumbers
    from timeagent.units import Instant


def _add_shards(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    ls = verbs.add_parser("ls", help="every shard: whose it is, who runs it, how it stands (also without a verb)")
    move = verbs.add_parser("move", help="give one shard to another node")
    reshard = verbs.add_parser("reshard", help="have another number of shards")
    move.add_argument("shard", metavar="SHARD", type=int)
    move.add_argument("node", metavar="NODE")
    reshard.add_argument("count", metavar="N", type=int)
    reshard.add_argument("--nodes", metavar="NODE,...", help="over these nodes (default: those that have shards)")
    for verb in (move, reshard):
        verb.add_argument("--root-key", metavar="FILE", required=True, help="the cluster's root key")
        add_cluster_options(verb, repeated=True)
    add_cluster_options(ls, repeated=True)
    add_cluster_options(parser)


def run_shards(options: argparse.Namespace) -> int:
    """Run one verb; ``ls`` without any."""
    verbs = {None: _list, "ls": _list, "move": _move, "reshard": _reshard}
    with open_cluster(options) as cluster:
        return verbs[options.verb](cluster, options)


def _list(cluster: Cluster, options: argparse.Namespace) -> int:
    """Ask every shard how it stands; none is started for that. 69 if none answers."""
    now = cluster.time.now().midpoint
    shown: list[dict[str, Any]] = []
    releases: dict[str, str] = {}
    for shard, owner in enumerate(cluster.map.owners):
        fields: dict[str, Any] = {"shard": shard, "owner": owner, "where": cluster.routes.where(shard)}
        line = f"shard {shard}  {owner}  {fields['where']}  "
        try:
            numbers = cluster.routes.numbers(shard)
        except ShardUnavailable as problem:
            fields |= {"node": owner, "answers": False, "code": problem.code, "reason": problem.message}
            said = "" if problem.code == "no-answer" else "no answer: "  # else the message says so
            line += f"{said}{problem.message} [{problem.code}]"
        else:
            fields |= {"answers": True} | shard_fields(numbers)
            releases[numbers.node] = numbers.release
            line += _stand(numbers, owner, now)
        shown.append(fields)
        if not options.json:
            say(line)
    skewed = len(set(releases.values())) > 1
    if skewed:
        note("tenure: nodes run different releases: " + ", ".join(f"{n} {r}" for n, r in sorted(releases.items())))
    if options.json:
        print_json(
            "tenure.shards",
            {
                "map": cluster.map.number,
                "layout": cluster.maps.placement.layout.number,
                **instant_fields("now", now),
                "seen_from": cluster.settings.node,
                "releases": releases,
                "version_skew": skewed,
                "shards": shown,
            },
        )
    return 0 if any(fields["answers"] for fields in shown) else ShardUnavailable.exit_status


def _stand(numbers: ShardNumbers, owner: str, now: Instant) -> str:
    left = numbers.ceiling_ns - now
    right = f"may grant for {span_text(left)}" if left > 0 else "idle"
    away = "" if numbers.node == owner else f"run by {numbers.node}, "
    since = f"since {span_text(max(0, now - numbers.since_ns))}"
    return f"{away}{counted(numbers.leases, 'lease')}, {right}, incarnation {numbers.incarnation.hex()} {since}"


def _move(cluster: Cluster, options: argparse.Namespace) -> int:
    from ..admin.records import move_shard

    before = cluster.map.owners
    record = move_shard(cluster.registers, root_key(cluster, options), options.shard, options.node)
    text = f"Map {record.number}: shard {options.shard} goes from {before[options.shard]} to {options.node}."
    return _said(options, record, text)


def _reshard(cluster: Cluster, options: argparse.Namespace) -> int:
    from ..admin.records import reshard

    nodes = options.nodes.split(",") if options.nodes else list(dict.fromkeys(cluster.map.owners))
    record = reshard(cluster.registers, root_key(cluster, options), options.count, nodes)
    return _said(options, record, f"Map {record.number}: {counted(len(record.owners), 'shard')}, all beginning anew.")


def _said(options: argparse.Namespace, record: ShardMap, text: str) -> int:
    if options.json:
        print_json("tenure.map-changed", {"number": record.number, "owners": list(record.owners)})
    else:
        say(text)
    return 0


COMMANDS: Final = {"shards": Command("Which shards there are, who runs them; moving them.", _add_shards, run_shards)}
