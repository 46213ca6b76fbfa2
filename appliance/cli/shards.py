"""``tenure shards``: which shards there are, whose they are, who runs them; giving them to other nodes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from appliance.cluster import Cluster
from appliance.lease.wire import ShardNumbers, shard_fields
from timeagent.console import argument, counted, instant_fields, note, present, with_verbs
from timeagent.errors import BadRequest, ShardUnavailable
from timeagent.keys import Signer
from timeagent.units import MS, Instant, Span, parse_span, span_text

from ..admin.moving import Finish, begin, check_nodes, moved, moves_text, resharded, shared
from ..formats.shardmap import Layout, ShardMap, chain_of, shard_text
from ..formats.witness import Half
from .opening import ROOT_KEY, add_cluster_options, cluster_command, note_skew, root_key

_LOOK_NS: Final[Span] = 500 * MS
_ANSWERS: Final = ("not-here", "runs")
"""What is said of a shard by a node that answers."""


def _list(cluster: Cluster, options: Namespace) -> int:
    """Ask every shard how it stands; none is started for that. 69 if none answers."""
    shown: list[dict[str, Any]] = []
    lines: list[str] = []
    releases: dict[str, str] = {}
    for shard in cluster.map.shards:
        owner, where = cluster.map.owner_of(shard) or "", cluster.routes.where(shard)
        fields: dict[str, Any] = {"shard": shard, "place": chain_of(shard)[1], "owner": owner, "where": where}
        try:
            numbers = cluster.routes.numbers(shard)
        except ShardUnavailable as problem:
            fields |= {"node": owner, "answers": False, "code": problem.code, "reason": problem.message}
            said = "" if problem.code == "no-answer" else "no answer: "  # else the message says so
            stands = f"{said}{problem.message} [{problem.code}]"
        else:
            fields |= {"answers": True} | shard_fields(numbers)
            releases[numbers.node] = numbers.release
            stands = _stand(numbers, owner, cluster.time.now().midpoint)
        shown.append(fields)
        lines.append(f"shard {shard_text(shard)}  {owner}  {where}  {stands}")
    is_skewed = note_skew(releases)
    fields = {"map": cluster.map.number, **instant_fields("now", cluster.time.now().midpoint)}
    fields |= {"seen_from": cluster.settings.node}
    fields |= {"releases": releases, "version_skew": is_skewed, "shards": shown}
    answered = any(each["answers"] for each in shown)
    return present(options, "tenure.shards", fields, *lines, status=0 if answered else ShardUnavailable.exit_status)


def _stand(numbers: ShardNumbers, owner: str, now: Instant) -> str:
    left = numbers.ceiling_ns - now
    right = f"may grant for {span_text(left)}" if left > 0 else "idle"
    away = "" if numbers.node == owner else f"run by {numbers.node}, "
    since = f"since {span_text(max(0, now - numbers.since_ns))}"
    phase = "" if numbers.half is Half.WHOLE else f"{numbers.half} by map {numbers.going_by}, "
    return f"{away}{phase}{counted(numbers.leases, 'lease')}, {right}, incarnation {numbers.incarnation.hex()} {since}"


def _move(cluster: Cluster, options: Namespace) -> int:
    newest, place, node = cluster.registers.newest_map(), options.shard, options.node
    layout = newest.layout if newest.before is None else newest.before
    if not 0 <= place < len(layout.owners):
        what = f"map {newest.number} has the shards 0 to {len(layout.owners) - 1}, not {place}"
        raise BadRequest("no-such-shard", what, hint="tenure shards ls")
    check_nodes(cluster.registers, [node])
    its_own = newest.before is None and newest.owners[place] == node
    if its_own and runner(cluster, newest.layout.shards[place]) in (None, node):
        what = f"shard {place} belongs to {node} by map {newest.number}, and runs there"
        raise BadRequest("moved-already", what, hint="shards ls")
    return _carried_out(cluster, options, lambda before: moved(before, {place: node}))


def runner(cluster: Cluster, shard: int) -> str | None:
    """Return which node runs a shard, as far as that is known."""
    try:
        return cluster.routes.numbers(shard).node
    except ShardUnavailable:
        return None


def _reshard(cluster: Cluster, options: Namespace) -> int:
    newest = cluster.registers.newest_map()
    owners = (newest.before or newest.layout).owners
    nodes = options.nodes.split(",") if options.nodes else list(dict.fromkeys(owners))
    check_nodes(cluster.registers, nodes)
    if newest.before is None and options.count == len(newest.owners):
        hint = "tenure shards move gives one to another node"
        raise BadRequest("resharded-already", f"map {newest.number} has {options.count} shards already", hint=hint)
    keys = cluster.registers.newest_trust().keys
    spared = sorted({entry.node for entry in keys if entry.revoked_from_ns is None} - set(nodes))
    if spared:
        note(f"tenure: no shard for {', '.join(spared)}: --nodes names those that get one")
    return _carried_out(cluster, options, lambda before: resharded(before, options.count, nodes))


def _finish(cluster: Cluster, options: Namespace) -> int:
    newest = cluster.registers.newest_map()
    if newest.before is None:
        return _told(options, newest, "no shard is being moved.")
    return _told_owners(options, finish_move(cluster, root_key(cluster, options), newest))


def _carried_out(cluster: Cluster, options: Namespace, layout: Callable[[ShardMap], Layout]) -> int:
    key = root_key(cluster, options)
    if not options.silent_too:
        check_answer(
            cluster, layout, "start tenure-node there; or name nodes that answer; --silent-too begins all the same"
        )
    return _told_owners(options, carry_out(cluster, key, layout))


def _told_owners(options: Namespace, record: ShardMap) -> int:
    owners = ", ".join(f"{place} {owner}" for place, owner in enumerate(record.owners))
    return _told(options, record, f"{counted(len(record.owners), 'shard')} ({owners}).")


def _told(options: Namespace, record: ShardMap, text: str, status: int = 0) -> int:
    fields = {"number": record.number, "owners": list(record.owners)}
    return present(options, "tenure.map-changed", fields, f"Map {record.number}: {text}", status=status)


def check_answer(cluster: Cluster, layout: Callable[[ShardMap], Layout], way_out: str) -> None:
    """Raise ShardUnavailable where a node does not answer that gets a shard by a move that has not begun.

    While a domain moves its leases are held from both shards: nobody would get one, or could renew for long.
    """
    newest = cluster.registers.newest_map()
    if newest.before is not None:
        return
    to = layout(newest)
    if {*newest.owners, *to.owners} == {cluster.settings.node}:
        return  # a cluster of one node: its shards may run in applications
    gets = {to.owners[chain_of(shard)[1]] for shard in set(to.shards) - set(newest.layout.shards)}
    answers = {node: cluster.routes.probe(newest.shards[0], node) for node in sorted(gets)}
    silent = [node for node, said in answers.items() if said not in _ANSWERS]
    if silent:
        raise ShardUnavailable(
            "node-silent",
            f"node {', '.join(silent)} does not answer ({answers[silent[0]]}), and would get a shard: while that "
            "moves, each of its leases is held from both nodes, and none could be had",
            hint=way_out,
        )


def carry_out(cluster: Cluster, key: Signer, layout: Callable[[ShardMap], Layout]) -> ShardMap:
    """Move shards to a layout and wait until that is done; return the map that ends it. Raises what ``begin`` does."""
    return finish_move(cluster, key, begin(cluster.registers, key, layout))


def finish_move(cluster: Cluster, key: Signer, both: ShardMap) -> ShardMap:
    """Wait until a move that has begun is done; return the map that ends it, whoever publishes that."""
    note(f"tenure: map {both.number}: {moves_text(both)}; leases are held from both shards meanwhile")
    cluster.maps.refresh()
    finish = Finish(
        cluster.registers,
        cluster.context.storage,
        cluster.time,
        cluster.routes.numbers,
        lambda why: note(f"tenure: waiting: {why}"),
    )
    record = finish.run(key, both)
    finish.wait_for_ends(both)
    cluster.maps.refresh()
    return record


def give_share(cluster: Cluster, key: Signer, node: str, wait_ns: Span) -> None:
    """Give a node its share of the shards once it answers, if it has none; say what remains where it does not in time.

    Raises what ``carry_out`` does.
    """
    until = cluster.time.boot_ns() + wait_ns
    told = False
    while cluster.routes.probe(cluster.map.shards[0], node) not in _ANSWERS:
        if cluster.time.boot_ns() >= until:
            note(f"tenure: {node} does not answer yet; once it runs: tenure shards share {node} --root-key FILE")
            return
        if not told:
            note(f"tenure: waiting until {node} answers, to give it its share of the shards")
        told = True
        cluster.watch_trust().look()
        cluster.time.sleep(_LOOK_NS)
    newest = cluster.registers.newest_map()
    if newest.before is not None:
        note(f"tenure: a move is under way by map {newest.number}, and is ended first")
        newest = finish_move(cluster, key, newest)
    if shared(newest, node) is not None:
        carry_out(cluster, key, lambda before: shared(before, node) or before.layout)


def _share(cluster: Cluster, options: Namespace) -> int:
    check_nodes(cluster.registers, [options.node])
    give_share(cluster, root_key(cluster, options), options.node, parse_span(options.wait))
    record = cluster.registers.newest_map()
    has = ", ".join(str(place) for place, owner in enumerate(record.owners) if owner == options.node)
    text = f"{options.node} has of {counted(len(record.owners), 'shard')}: {has or 'none'}."
    return _told(options, record, text, status=0 if has else ShardUnavailable.exit_status)


_verb: Final = partial(cluster_command, repeated=True)

WAIT: Final = argument("--wait SPAN", "how long the node may take to answer (60s)", default="60s")

_SILENT_TOO: Final = argument("--silent-too", "also to a node that does not answer: its leases wait for it")

_VERBS: Final = {
    "ls": _verb("every shard: whose it is, who runs it, how it stands (also without a verb)", _list),
    "move": _verb(
        "give one shard to another node, or to its own where another runs it; who renews loses no lease",
        _move,
        argument("shard SHARD", type=int),
        argument("node NODE"),
        _SILENT_TOO,
        ROOT_KEY,
    ),
    "reshard": _verb(
        "have another number of shards; who renews loses no lease",
        _reshard,
        argument("count N", type=int),
        argument("--nodes NODE,...", "over these nodes (default: those that have shards)"),
        _SILENT_TOO,
        ROOT_KEY,
    ),
    "share": _verb(
        "give a node that has none its share of the shards; who renews loses no lease",
        _share,
        argument("node NODE"),
        WAIT,
        ROOT_KEY,
    ),
    "finish": _verb("end a move that was cut off", _finish, ROOT_KEY),
}
COMMANDS: Final = {
    "shards": with_verbs(
        "Which shards there are, who runs them; moving them.", _VERBS, add_cluster_options, default="ls"
    )
}
