"""The next policy and the next shard map of a cluster, signed by the root key (docs/operators.md).

There is no instant from which a policy counts, and nobody has to acknowledge it: each process takes it up when it sees
it (``record_watch.py``), and each frame is judged by the policy that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.errors import BadRequest, TryAgain

from ..formats.framing import Kind
from ..formats.policy import Policy, check_policy
from ..formats.shardmap import SHARDS_MAX, ShardMap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from timeagent.keys import Signer

    from ..node.records import Registers

SPANS: Final = tuple(name for name in Policy.__struct_fields__ if name not in ("number", "cluster_id"))
"""What a policy says, all of it in nanoseconds, in the order of the record."""


def next_policy(newest: Policy, changes: Mapping[str, int]) -> Policy:
    """Return the policy that comes after one, or the same one if nothing would change.

    ``changes``: new values of some of SPANS. Raises BadConfiguration, naming both values, if a relation fails.
    """
    assert set(changes) <= set(SPANS)
    if all(getattr(newest, name) == value for name, value in changes.items()):
        return newest
    return check_policy(msgspec.structs.replace(newest, number=newest.number + 1, **changes))


def publish_policy(registers: Registers, root_key: Signer, policy: Policy) -> None:
    """Link a policy under its number. Touches the mount. Raises TryAgain if somebody else has taken that number."""
    if not registers.publish(Kind.POLICY, policy, root_key):
        raise TryAgain(
            "policy-changed",
            f"somebody else has published policy {policy.number} meanwhile",
            hint="look at it with tenure policy show, then decide anew",
        )


def move_shard(registers: Registers, root_key: Signer, shard: int, node: str) -> ShardMap:
    """Publish a map that gives one shard to another node; return it. Its chain goes on. Touches the mount.

    Raises BadRequest for a shard that the map does not have, a node that the trust record does not know, and a shard
    that belongs to it already.
    """
    newest = registers.newest_map()
    if not 0 <= shard < len(newest.owners):
        raise BadRequest(
            "no-such-shard",
            f"map {newest.number} has the shards 0 to {len(newest.owners) - 1}, not {shard}",
            hint="tenure shards ls",
        )
    _check_nodes(registers, [node])
    if newest.owners[shard] == node:
        raise BadRequest(
            "moved-already", f"shard {shard} belongs to {node} by map {newest.number}", hint="see shards ls"
        )
    owners = [*newest.owners]
    owners[shard] = node
    return _published(registers, root_key, newest, owners, newest.chains)


def reshard(registers: Registers, root_key: Signer, count: int, nodes: Sequence[str]) -> ShardMap:
    """Publish a map with another number of shards, spread over nodes; return it. All chains begin anew.

    Shards that stay keep their owner where it is one of the nodes. Raises BadRequest as ``move_shard``.
    """
    newest = registers.newest_map()
    if not 1 <= count <= SHARDS_MAX:
        raise BadRequest("bad-shards", f"{count} shards: a map has 1 to {SHARDS_MAX}", hint="name another number")
    if count == len(newest.owners):
        raise BadRequest(
            "resharded-already",
            f"map {newest.number} has {count} shards already",
            hint="tenure shards move gives one to another node",
        )
    _check_nodes(registers, nodes)
    owners = [owner for owner in newest.owners[:count] if owner in nodes]
    share = -(-count // len(nodes))
    spread = [node for _ in range(share) for node in nodes]
    kept = [owner if owner in nodes else None for owner in newest.owners[:count]] + [None] * (
        count - len(newest.owners)
    )
    for owner in owners:
        if owner in spread:
            spread.remove(owner)
    return _published(
        registers, root_key, newest, [owner or spread.pop(0) for owner in kept], (newest.number + 1,) * count
    )


def _check_nodes(registers: Registers, nodes: Sequence[str]) -> None:
    known = {entry.node for entry in registers.trust(registers.newest().trust).keys}
    unknown = sorted(set(nodes) - known)
    if unknown or not nodes:
        raise BadRequest(
            "unknown-node",
            f"the cluster has no node {', '.join(unknown) or '(none named)'}",
            hint="tenure trust ls names them",
        )


def _published(
    registers: Registers, root_key: Signer, newest: ShardMap, owners: Sequence[str], chains: tuple[int, ...]
) -> ShardMap:
    record = msgspec.structs.replace(newest, number=newest.number + 1, owners=tuple(owners), chains=chains)
    if not registers.publish(Kind.MAP, record, root_key):
        raise TryAgain("map-outrun", f"map {record.number} was published by another just now", hint="look, and repeat")
    return record
