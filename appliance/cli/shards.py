"""``tenure shards``: which shards there are, whose they are, who runs them; giving them to other nodes."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from appliance.cluster import Cluster
from appliance.lease.wire import ShardNumbers, shard_fields
from timeagent.console import argument, counted, instant_fields, note, present, print_json, say, with_verbs
from timeagent.errors import ShardUnavailable
from timeagent.units import Instant, span_text

from ..admin.records import move_shard, reshard
from ..formats.shardmap import ShardMap, shard_text
from .opening import ROOT_KEY, add_cluster_options, cluster_command, root_key


def _list(cluster: Cluster, options: Namespace) -> int:
    """Ask every shard how it stands; none is started for that. 69 if none answers."""
    now = cluster.time.now().midpoint
    shown: list[dict[str, Any]] = []
    releases: dict[str, str] = {}
    for shard in cluster.map.shards:
        owner = cluster.map.owner_of(shard) or ""
        fields: dict[str, Any] = {"shard": shard, "owner": owner, "where": cluster.routes.where(shard)}
        line = f"shard {shard_text(shard)}  {owner}  {fields['where']}  "
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


def _move(cluster: Cluster, options: Namespace) -> int:
    before = cluster.map.owners
    record = move_shard(cluster.registers, root_key(cluster, options), options.shard, options.node)
    text = f"Map {record.number}: shard {options.shard} goes from {before[options.shard]} to {options.node}."
    return _said(options, record, text)


def _reshard(cluster: Cluster, options: Namespace) -> int:
    nodes = options.nodes.split(",") if options.nodes else list(dict.fromkeys(cluster.map.owners))
    record = reshard(cluster.registers, root_key(cluster, options), options.count, nodes)
    return _said(options, record, f"Map {record.number}: {counted(len(record.owners), 'shard')}, all beginning anew.")


def _said(options: Namespace, record: ShardMap, text: str) -> int:
    return present(options, "tenure.map-changed", {"number": record.number, "owners": list(record.owners)}, text)


_VERBS: Final = {
    "ls": cluster_command(
        "every shard: whose it is, who runs it, how it stands (also without a verb)", _list, repeated=True
    ),
    "move": cluster_command(
        "give one shard to another node",
        _move,
        argument("shard", metavar="SHARD", type=int),
        argument("node", metavar="NODE"),
        ROOT_KEY,
        repeated=True,
    ),
    "reshard": cluster_command(
        "have another number of shards",
        _reshard,
        argument("count", metavar="N", type=int),
        argument("--nodes", metavar="NODE,...", help="over these nodes (default: those that have shards)"),
        ROOT_KEY,
        repeated=True,
    ),
}
COMMANDS: Final = {
    "shards": with_verbs(
        "Which shards there are, who runs them; moving them.", _VERBS, add_cluster_options, default="ls"
    )
}
