"""A node comes without the root key, or goes. Each step may be repeated after it was cut off, and finds what was done.

Joining: a machine makes its keys and asks, who has the root key approves, the machine goes on.

1. ``prepared``, ``ask``: the keys are made in the node's directory, or found there from an earlier try; their public
   lines are put on the mount as ``tmp/join.NODE``, where no reader looks. Whoever can write there could put another
   request in its place, so both sides see the fingerprint of the request, and compare it by another way than the mount;
2. ``accept``, elsewhere: the trust record is published with those keys;
3. ``finish``: the settings are written once the newest trust record knows the keys.

Leaving: a node's shards are given to others, then its keys count no more. Needs the root key, and not the node. What it
signed stays accepted for ever.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from timeagent.errors import BadRequest, Damaged, Environment, NotTrusted
from timeagent.keys import Purpose, Signer, load_node_key, make_node_keys, newest_number, parse_public_line, public_line
from timeagent.units import Instant

from ..bag.ports import Storage
from ..formats.names import Address, check_node, parse_address
from ..node.records import TMP, Registers
from ..node.settings import FILE, Settings, is_there, save_settings
from . import trust
from .moving import check_nodes

_ADDRESS: Final = "address "
_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """What a machine asks for: a node's name, its public keys, and where others reach it."""

    node: str
    publics: Mapping[Purpose, bytes]
    address: Address | None = None

    def encode(self) -> bytes:
        """Return the file's bytes: lines that people can read."""
        lines = [public_line(self.publics[purpose], f"{self.node}:{purpose}") for purpose in Purpose]
        if self.address:
            lines.append(f"{_ADDRESS}{self.address}")
        return ("\n".join(lines) + "\n").encode("ascii")

    @property
    def fingerprint(self) -> str:
        """What to compare: it covers all keys, the name and the address."""
        digest = hashlib.sha256(self.encode()).digest()
        return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


def decode_request(data: bytes, node: str, where: str) -> Request:
    """Read a request for this node. Raises Damaged, naming ``where``."""
    publics: dict[Purpose, bytes] = {}
    address: Address | None = None
    lines = data[:_BYTES_MAX].decode("ascii", "replace").splitlines()
    for line in lines:
        if line.startswith(_ADDRESS):
            address = parse_address(line.removeprefix(_ADDRESS))
            continue
        owner, _, purpose = line.rpartition(" ")[2].partition(":")
        if owner != node or purpose not in list(Purpose):
            raise Damaged("bad-request", f"{where}: {line[:80]!r} does not end in {node}:PURPOSE", hint="join again")
        publics[Purpose(purpose)] = parse_public_line(line, where)
    request = Request(node, publics, address)
    if set(publics) != set(Purpose) or request.encode() != data:
        raise Damaged("bad-request", f"{where} is not a whole request to join", hint="join again")
    return request


def request_path(node: str) -> str:
    return f"{TMP}/join.{check_node(node)}"


def prepared(directory: Path, node: str, address: Address | None) -> Request:
    """Make the node's keys, or find those of an earlier try; return what to ask for. A local disk, not the mount.

    Raises Environment, NotTrusted, BadConfiguration.
    """
    if is_there(directory / FILE):
        raise Environment("key-exists", f"a node lives in {directory} already", hint="name another --node-dir")
    if all(newest_number(directory, purpose) for purpose in Purpose):
        publics = {purpose: load_node_key(directory, purpose).public for purpose in Purpose}
    else:
        publics = make_node_keys(directory)
    return Request(check_node(node), publics, address)


def ask(storage: Storage, request: Request) -> None:
    """Put the request on the mount, in the place of another one of that name. Idempotent."""
    path = request_path(request.node)
    if storage.read(path) != request.encode():
        storage.unlink(path)
        storage.publish(path, request.encode(), TMP)


def asked(storage: Storage, node: str) -> Request:
    """Return the request of a node. Raises NotTrusted where there is none, Damaged."""
    path = request_path(node)
    storage.look(TMP, [])  # opened afresh: a request may have come just now
    data = storage.read(path)
    if data is None:
        raise NotTrusted(
            "no-request",
            f"no machine asks to join as {node}",
            hint=f"on that machine: tenure join ROOT --node {node}",
        )
    return decode_request(data, node, path)


def accept(
    storage: Storage, registers: Registers, root_key: Signer, request: Request, now: Instant, fingerprint: str
) -> int:
    """Let a node in, if the fingerprint is that of its request; return the trust record's number. Idempotent.

    Raises NotTrusted for another fingerprint, or a name that another machine has.
    """
    if fingerprint != request.fingerprint:
        raise NotTrusted(
            "other-request",
            f"the request of {request.node} is {request.fingerprint}, not {fingerprint}",
            hint="compare it with what join says on that machine: somebody else may have asked",
        )
    number = trust.admit(registers, root_key, request.node, request.publics, now, request.address)
    storage.unlink(request_path(request.node))
    return number


def let_in(registers: Registers, node: str) -> Request | None:
    """Return the request that the newest trust record fulfils for a node: its first keys and its address; or None."""
    first: dict[Purpose, bytes] = {}
    address = None
    for entry in registers.newest_trust().keys:
        if entry.node == node and Purpose(entry.purpose) not in first:
            first[Purpose(entry.purpose)] = entry.public
            address = entry.address or address
    return Request(node, first, parse_address(address) if address else None) if set(first) == set(Purpose) else None


def finish(registers: Registers, settings: Settings, request: Request) -> bool:
    """Write the node's settings if the newest trust record knows its keys; return whether it does."""
    known = {(entry.node, entry.purpose, entry.public) for entry in registers.newest_trust().keys}
    there = all((request.node, purpose, public) in known for purpose, public in request.publics.items())
    if there:
        save_settings(settings)
    return there


def shards_of(registers: Registers, node: str) -> list[int]:
    """Return the shards that the newest map gives to a node. Touches the mount."""
    return [shard for shard, owner in enumerate(registers.newest_map().owners) if owner == node]


def has_left(registers: Registers, node: str) -> bool:
    """Whether no key of a node counts any more, and no shard is its own. Touches the mount."""
    keys = registers.newest_trust().keys
    return not shards_of(registers, node) and all(e.revoked_from_ns is not None for e in keys if e.node == node)


def heirs(registers: Registers, node: str) -> list[str]:
    """Return the nodes that could have its shards: those with an address and a key that counts. Touches the mount."""
    entries = registers.newest_trust().keys
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
    entries = registers.newest_trust().keys
    if any(entry.node == node and entry.address for entry in entries):
        trust.move_node(registers, root_key, node, None)
    return trust.revoke_node(registers, root_key, node, now)
