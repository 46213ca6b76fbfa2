"""The next trust record and the next policy: made from the newest, signed by the root key.

A key is never taken out of the record. It is valid for a stretch of time, and a revocation ends that stretch at an
instant: what it signed for an earlier one stays accepted, so an archive can be judged years after its keys are gone.

There is no instant from which a policy counts, and nobody has to acknowledge it: each process takes it up when it sees
it (``record_watch.py``), and each frame is judged by the policy that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec.structs import replace

from timeagent.errors import BadRequest, NotTrusted, TryAgain
from timeagent.keys import Purpose, Signer
from timeagent.trust import KeyEntry, TrustRecord
from timeagent.units import DAY, INSTANT_MAX, Instant, Span

from ..formats.framing import Kind
from ..formats.names import Address, check_node
from ..formats.policy import Policy, check_policy
from ..node.records import Registers

KEY_LIFE_NS: Final = 3650 * DAY
"""How long a node's keys are valid: until they are rotated or revoked."""

KEY_BACKDATE_NS: Final = DAY
"""A new key is valid from a day before: the clocks that judge it need not agree with the founder's."""

KEY_OVERLAP_NS: Final = DAY
"""How long a key that was replaced stays valid: processes take the next one up within this time."""

_TRIES: Final = 100


def name_taken(node: str) -> NotTrusted:
    return NotTrusted(
        "node-exists",
        f"the cluster has a node {node} already",
        hint="choose another --node name; one that had left comes back, on its machine, with trust rotate",
    )


def admit(
    registers: Registers,
    root_key: Signer,
    node: str,
    publics: Mapping[Purpose, bytes],
    now: Instant,
    address: Address | None = None,
) -> int:
    """Publish the next trust record, with a new node's keys added; return its number.

    ``address``: where the node will answer others. Idempotent: a node that has just these keys is let in already.
    Raises NotTrusted if the node's name is taken, TryAgain if others keep winning. Safe to race: a lost number is tried
    again on top of the winner's. Touches the mount, as all here.
    """
    check_node(node)
    entries = _entries(node, publics, now, address)

    def with_node(known: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
        there = {(entry.purpose, entry.public) for entry in known if entry.node == node}
        if there == set(publics.items()):
            return known
        if there:
            raise name_taken(node)
        return known + entries

    return _publish(registers, root_key, with_node)


def issue(
    registers: Registers,
    root_key: Signer,
    node: str,
    publics: Mapping[Purpose, bytes],
    now: Instant,
    *,
    overlap_ns: Span | None = None,
) -> int:
    """Publish the next trust record, with keys added that were made elsewhere, by a known or a new node.

    ``overlap_ns``: the node's earlier keys for the same purposes end so long after ``now``; None: they stay as they
    are. A TLS key takes over the address of the one before it. Raises BadRequest for a key that the record knows.
    """
    check_node(node)

    def with_keys(known: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
        twice = next((entry for entry in known if entry.public in publics.values()), None)
        if twice is not None:
            raise BadRequest(
                "key-known",
                f"the trust record knows this key already, as the {twice.purpose} key of {twice.node}",
                hint="if this repeats a call that was cut off, it is done; else make a new key: one node, one purpose",
            )
        address = next((e.address for e in reversed(known) if e.node == node and e.purpose is Purpose.TLS), None)
        fresh = _entries(node, publics, now, address)
        if overlap_ns is None:
            return known + fresh
        end = now + overlap_ns
        earlier = [entry.public for entry in known if entry.node == node and entry.purpose in publics]
        return _changed(known, earlier, lambda e: replace(e, valid_until_ns=min(e.valid_until_ns, end))) + fresh

    return _publish(registers, root_key, with_keys)


def revoke_node(registers: Registers, root_key: Signer, node: str, from_ns: Instant) -> int:
    """Publish the next trust record, with every key of a node revoked from an instant; return its number.

    What the node signed for an earlier instant stays accepted, and so does an earlier revocation. Connections of the
    node end within about a second of other nodes seeing the record. Raises BadRequest for an unknown node, TryAgain.
    """
    return _publish(registers, root_key, lambda known: _revoked(known, check_known(known, node), from_ns))


def revoke_keys(registers: Registers, root_key: Signer, publics: Collection[bytes], from_ns: Instant) -> int:
    """Publish the next trust record, with these of its keys revoked from an instant."""
    return _publish(registers, root_key, lambda known: _revoked(known, publics, from_ns))


def move_node(registers: Registers, root_key: Signer, node: str, address: Address | None) -> int:
    """Publish the next trust record, in which a node answers elsewhere (None: nowhere); return its number.

    Raises BadRequest for an unknown node, NotTrusted for one without a TLS key, TryAgain.
    """

    def moved(known: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
        check_known(known, node)
        own = {entry.public for entry in known if entry.node == node and entry.purpose is Purpose.TLS}
        if not own:
            raise NotTrusted(
                "no-tls-key",
                f"node {node} has no TLS key, and so answers nobody",
                hint=f"tenure trust rotate --purpose tls on {node}, or trust issue {node} --public FILE",
            )
        return _changed(known, own, lambda entry: replace(entry, address=str(address) if address else None))

    return _publish(registers, root_key, moved)


def check_known(known: Collection[KeyEntry], node: str) -> set[bytes]:
    """Return the keys of a node. Raises BadRequest for one that the cluster never had."""
    publics = {entry.public for entry in known if entry.node == node}
    if not publics:
        raise BadRequest("unknown-node", f"the cluster has no node {node}", hint="tenure trust ls names them")
    return publics


def _entries(
    node: str, publics: Mapping[Purpose, bytes], now: Instant, address: Address | str | None
) -> tuple[KeyEntry, ...]:
    return tuple(
        KeyEntry(
            node=node,
            purpose=purpose,
            public=public,
            valid_from_ns=max(0, now - KEY_BACKDATE_NS),
            valid_until_ns=min(now + KEY_LIFE_NS, INSTANT_MAX),
            address=str(address) if address and purpose is Purpose.TLS else None,
        )
        for purpose, public in publics.items()
    )


def _revoked(known: tuple[KeyEntry, ...], publics: Collection[bytes], from_ns: Instant) -> tuple[KeyEntry, ...]:
    """Return the entries with some of them revoked; an earlier revocation of one stands."""
    stands = {entry.public: entry.revoked_from_ns for entry in known if entry.revoked_from_ns is not None}
    at = {public: min(from_ns, stands.get(public, from_ns)) for public in publics}
    return _changed(known, publics, lambda entry: replace(entry, revoked_from_ns=at[entry.public]))


def _changed(
    known: tuple[KeyEntry, ...], publics: Collection[bytes], change: Callable[[KeyEntry], KeyEntry]
) -> tuple[KeyEntry, ...]:
    return tuple(change(entry) if entry.public in publics else entry for entry in known)


def _publish(
    registers: Registers, root_key: Signer, change: Callable[[tuple[KeyEntry, ...]], tuple[KeyEntry, ...]]
) -> int:
    """Publish a changed trust record on top of the newest, whoever wins in between; return its number.

    Nothing is published where ``change`` returns what it was given: that is so already.
    """
    for _ in range(_TRIES):
        number = registers.newest_number(Kind.TRUST)
        known = () if number is None else registers.trust(number).keys
        keys = change(known)
        if number is not None and keys is known:
            return number
        record = TrustRecord(number=(number or 0) + 1, cluster_id=registers.cluster_id, keys=keys)
        if registers.publish(Kind.TRUST, record, root_key):
            return record.number
    raise TryAgain("trust-contended", f"{_TRIES} trust records were published by others", hint="try again")


def next_policy(newest: Policy, changes: Mapping[str, int]) -> Policy:
    """Return the policy that comes after one, or the same one if nothing would change.

    ``changes``: new values of some of its spans. Raises BadConfiguration, naming both values, if a relation fails.
    """
    if all(getattr(newest, name) == value for name, value in changes.items()):
        return newest
    return check_policy(replace(newest, number=newest.number + 1, **changes))


def publish_policy(registers: Registers, root_key: Signer, policy: Policy) -> None:
    """Link a policy under its number. Touches the mount. Raises TryAgain if somebody else has taken that number."""
    if not registers.publish(Kind.POLICY, policy, root_key):
        raise TryAgain(
            "policy-changed",
            f"somebody else has published policy {policy.number} meanwhile",
            hint="look at it with tenure policy show, then decide anew",
        )
