"""Setting up a cluster on an empty directory, and letting nodes in.

The root key signs the policy, the trust records and the shard maps. It is made here and stays where the founder's
settings are: whoever has it can let nodes in.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.errors import BadConfiguration, Environment, NotTrusted
from timeagent.keys import Signer, Verifier, load_private_key, save_private_key
from timeagent.trust import KeyEntry, Purpose, TrustRecord
from timeagent.units import DAY

from .bag.storage import Published, Storage
from .formats.framing import Kind
from .formats.marker import Marker, decode_marker
from .formats.names import check_node
from .formats.paths import MARKER
from .formats.policy import Policy, check_policy
from .formats.shardmap import ShardMap
from .registers import TMP, Registers
from .settings import ROOT_KEY, Settings, make_node_keys, node_directories, save_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeagent.units import Instant

KEY_LIFE_NS: Final = 3650 * DAY
"""How long a node's keys are valid: until they are rotated or revoked."""

KEY_BACKDATE_NS: Final = DAY
"""A new key is valid from a day before: the clocks that judge it need not agree with the founder's."""

LEFTOVER: Final = frozenset({TMP, "lost+found"})


def read_marker(storage: Storage, root: Path) -> Marker:
    """Return the marker of a root. Raises Environment where there is none: an unmounted mount point is empty."""
    data = storage.read(MARKER)
    if data is None:
        names = storage.list_afresh(".")
        if names is None:
            raise Environment("no-root", f"{root} does not exist", hint="is the file system mounted?")
        if not names:
            raise Environment(
                "empty-root",
                f"{root} is an empty directory: not a leasehold root, or its file system is not mounted",
                hint=f"mount it, or set up a new cluster: leasehold init {root}",
            )
        raise BadConfiguration(
            "not-a-root",
            f"{root} is not a leasehold root: it has no file {MARKER}",
            hint=f"name the root itself, or set up a new cluster in an empty directory: leasehold init {root}",
        )
    return decode_marker(data, str(root / MARKER))


def found_cluster(storage: Storage, root: Path, policy: Policy, root_key: Signer, cluster_id: bytes) -> Registers:
    """Make a root of an empty directory: marker and policy 1. Raises Environment, naming what is in the way."""
    check_policy(policy)
    names = storage.list_afresh(".")
    if names is None:
        raise Environment("no-root", f"{root} does not exist", hint=f"mkdir {root}")
    if MARKER in names:
        raise Environment(
            "root-exists", f"{root} is a leasehold root already", hint=f"to let this machine in: leasehold join {root}"
        )
    foreign = sorted(set(names) - LEFTOVER)
    if foreign:
        raise Environment(
            "root-not-empty",
            f"{root} is not empty: it holds {foreign[0]!r}" + (f" and {len(foreign) - 1} more" if foreign[1:] else ""),
            hint="name an empty directory",
        )
    storage.ensure_directory(TMP)
    marker = Marker(cluster_id, root_key.public)
    if storage.publish(MARKER, marker.encode(), TMP) is not Published.WON:
        raise Environment("root-exists", f"somebody else is setting up {root} right now", hint="join theirs")
    registers = Registers(storage, cluster_id, Verifier(root_key.public))
    registers.publish(Kind.POLICY, policy, root_key)
    for directory in ("logs", "shards", "ledger"):
        storage.ensure_directory(directory)
    return registers


def admit(registers: Registers, root_key: Signer, node: str, keys: tuple[Signer, Signer], now: Instant) -> int:
    """Publish the next trust record, with a node's time and witness keys added; return its number.

    Raises NotTrusted if the node's name is taken. Safe to race: a lost number is tried again on top of the winner's.
    """
    check_node(node)
    while True:
        known, number = _trusted(registers)
        if any(entry.node == node for entry in known):
            raise NotTrusted("node-exists", f"the cluster has a node {node} already", hint="choose another --node name")
        purposes = zip((Purpose.TIME, Purpose.WITNESS), keys, strict=True)
        entries = tuple(
            KeyEntry(
                node=node,
                purpose=purpose,
                public=key.public,
                valid_from_ns=now - KEY_BACKDATE_NS,
                valid_until_ns=now + KEY_LIFE_NS,
            )
            for purpose, key in purposes
        )
        record = TrustRecord(number=number + 1, cluster_id=registers.cluster_id, keys=known + entries)
        if registers.publish(Kind.TRUST, record, root_key):
            return record.number


def _trusted(registers: Registers) -> tuple[tuple[KeyEntry, ...], int]:
    number = registers.newest_number(Kind.TRUST)
    return ((), 0) if number is None else (registers.trust(number).keys, number)


def publish_map(registers: Registers, root_key: Signer, owners: Sequence[str]) -> None:
    """Publish the first shard map: shard k belongs to ``owners[k]``."""
    registers.publish(Kind.MAP, ShardMap(number=1, cluster_id=registers.cluster_id, owners=tuple(owners)), root_key)


def set_up(
    storage: Storage, root: Path, node: str, policy: Policy, cluster_id: bytes, now: Instant, directory: Path | None
) -> Settings:
    """What ``leasehold init`` does: found the cluster, let this node in, give it the one shard, save its settings."""
    check_node(node)
    place = directory or node_directories(cluster_id)[-1]
    if (place / ROOT_KEY).exists():
        raise Environment("key-exists", f"{place / ROOT_KEY} exists already", hint="name another --node-dir")
    root_key = Signer.generate()
    registers = found_cluster(
        storage, root, msgspec.structs.replace(policy, cluster_id=cluster_id), root_key, cluster_id
    )
    settings = enroll(registers, root, root_key, node, now, place)
    save_private_key(place / ROOT_KEY, root_key)
    publish_map(registers, root_key, [node])
    return settings


def enroll(registers: Registers, root: Path, root_key: Signer, node: str, now: Instant, directory: Path) -> Settings:
    """Make a node's keys in its directory, let it in, save its settings."""
    keys = make_node_keys(directory)
    admit(registers, root_key, node, keys, now)
    settings = Settings(directory, node, root, root_key.public, None, {})
    save_settings(settings)
    return settings


def join_cluster(
    storage: Storage, root: Path, node: str, root_key_file: Path, now: Instant, directory: Path | None
) -> Settings:
    """What ``leasehold join`` does, with the root key at hand. Raises NotTrusted for another cluster's key."""
    marker = read_marker(storage, root)
    root_key = load_private_key(root_key_file)
    if root_key.public != marker.root_key:
        raise NotTrusted(
            "other-cluster",
            f"{root_key_file} is not the root key of the cluster at {root} ({marker.fingerprint})",
            hint="take root.key from the machine that ran leasehold init",
        )
    registers = Registers(storage, marker.cluster_id, Verifier(marker.root_key))
    place = directory or node_directories(marker.cluster_id)[-1]
    return enroll(registers, root, root_key, node, now, place)
