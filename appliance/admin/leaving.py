"""A node goes: its shards are given to others, then its keys count no more. Needs the root key, and not the node.

Each step may be repeated after it was cut off, and finds what was done. What the node signed stays accepted for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from timeagent.errors import BadRequest
from timeagent.keys import Signer
from timeagent.trust import Purpose
from timeagent.units import Instant

from ..node.records import Registers
from . import trust
from .moving import check_nodes


def shards_of(registers: Registers, node: str) -> list[int]:
    """Return the shards that the newest map gives to a node. Touches the mount."""
    return [shard for shard, owner in enumerate(registers.newest_map().owners) if owner == node]


def has_left(registers: Registers, node: str) -> bool:
    """Whether no key of a node counts any more, and no shard is its own. Touches the mount."""
    keys = registers.trust(registers.newest().trust).keys
    return not shards_of(registers, node) and all(e.revoked_from_ns is not None for e in keys if e.node == node)


def check_known(registers: Registers, node: str) -> None:
    """Raise BadRequest for a node that the cluster never had: who mistyped it would read that it has left."""
    trust.check_known(registers.trust(registers.newest().trust).keys, node)


def heirs(registers: Registers, node: str) -> list[str]:
    """Return the nodes that could have its shards: those with an address and a key that counts. Touches the mount."""
    entries = registers.trust(registers.newest().trust).keys
    return sorted(
        {
            entry.node
            for entry in entries
            if entry.purpose is Purpose.TLS and entry.address and entry.revoked_from_ns is None and entry.node != node
        }
    )


def given_away(registers: Registers, node: str, to: Sequence[str] = ()) -> dict[int, str]:
    """Return who is to have a node's shards, by place; none may be left.

    ``to``: to these in turn; empty: to whom each shard would fall if the node died. Raises BadRequest where there is
    nobody. Touches the mount.
    """
    mine = shards_of(registers, node)
    others = list(to) or heirs(registers, node)
    if mine and (not others or node in others):
        raise BadRequest(
            "no-heir",
            f"no other node answers anywhere: nobody could have the shards {', '.join(map(str, mine))} of {node}",
            hint="tenure trust move NODE HOST:PORT says where one answers; --to names another",
        )
    newest = registers.newest_map()
    check_nodes(registers, others)
    return {
        place: to[turn % len(to)] if to else newest.heirs(newest.layout.shards[place], others)[1]
        for turn, place in enumerate(mine)
    }


def revoke(registers: Registers, root_key: Signer, node: str, now: Instant) -> int:
    """Let no key of a node count from now on, and have nobody look for it; return the trust record's number.

    Idempotent. Raises BadRequest for an unknown node, TryAgain. Touches the mount.
    """
    entries = registers.trust(registers.newest().trust).keys
    if any(entry.node == node and entry.address for entry in entries):
        trust.move_node(registers, root_key, node, None)
    return trust.revoke_node(registers, root_key, node, now)
