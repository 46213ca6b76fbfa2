"""Setting up a cluster on an empty directory, and letting nodes in.

The root key signs the policy, the trust records and the shard maps. It is made here and stays where the founder's
settings are: whoever has it can let nodes in.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.errors import Damaged, Environment, LeaseholdError, NotTrusted, TryAgain
from timeagent.keyfiles import key_file_name, make_node_keys
from timeagent.keys import Signer, Verifier, key_id, load_private_key, save_private_key
from timeagent.trust import KeyEntry, Purpose, TrustRecord
from timeagent.units import DAY

from .bag.storage import Published, Storage
from .formats.framing import Kind
from .formats.marker import Marker, decode_marker
from .formats.names import check_node
from .formats.paths import MARKER, record_name
from .formats.policy import Policy, check_policy
from .formats.shardmap import ShardMap
from .formats.stamped import open_signed
from .registers import DIRECTORIES, TMP, Registers
from .settings import (
    FILE,
    ROOT_KEY,
    Settings,
    is_there,
    node_directories,
    save_settings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from timeagent.keyfiles import NodeKeys
    from timeagent.units import Instant

    from .formats.address import Address

KEY_LIFE_NS: Final = 3650 * DAY
"""How long a node's keys are valid: until they are rotated or revoked."""

KEY_BACKDATE_NS: Final = DAY
"""A new key is valid from a day before: the clocks that judge it need not agree with the founder's."""

LEFTOVER: Final = frozenset({TMP, "lost+found"})
"""What may lie in a directory that is called empty; and of our own directories those that hold nothing."""

_OURS: Final = (*DIRECTORIES.values(), "logs", "shards", "ledger")
_ADMIT_TRIES: Final = 100


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a node listens, and where others reach it: not the same behind a translated address."""

    at: Address
    reached_at: Address


def read_marker(storage: Storage, root: Path) -> Marker:
    """Return the marker of a root. Raises Environment where there is none: an unmounted mount point is empty.

    Raises Damaged for a directory with something else in it, or a marker that cannot be read.
    """
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
        raise Damaged(
            "not-a-root",
            f"{root} is not a leasehold root: it has no file {MARKER}",
            hint=f"name the root itself, or set up a new cluster in an empty directory: leasehold init {root}",
        )
    try:
        return decode_marker(data, str(root / MARKER))
    except Damaged as problem:
        hint = "restore it from a copy of the tree, or use a release that knows its format"
        raise Damaged(problem.code, problem.message, hint=hint) from None


def found_cluster(storage: Storage, root: Path, policy: Policy, root_key: Signer, cluster_id: bytes) -> Registers:
    """Make a root of an empty directory: policy 1, then the marker. Raises Environment, naming what is in the way."""
    check_policy(policy)
    _refuse_not_empty(storage, root)
    marker = Marker(cluster_id, root_key.public)
    with _records_undone(storage, marker):
        registers = _lay_ground(storage, root, policy, root_key, cluster_id)
        _mark(storage, root, marker)
    return registers


def _lay_ground(storage: Storage, root: Path, policy: Policy, root_key: Signer, cluster_id: bytes) -> Registers:
    """Publish policy 1, which decides between two who set up at once, and make the directories."""
    registers = Registers(storage, cluster_id, Verifier(root_key.public))
    if not registers.publish(Kind.POLICY, policy, root_key):
        raise _taken(root)
    for directory in _OURS:
        storage.ensure_directory(directory)
    return registers


def _refuse_not_empty(storage: Storage, root: Path) -> None:
    names = storage.list_afresh(".")
    if names is None:
        raise Environment("no-root", f"{root} does not exist", hint=f"mkdir {root}")
    if MARKER in names:
        raise Environment(
            "root-exists", f"{root} is a leasehold root already", hint=f"to let this machine in: leasehold join {root}"
        )
    foreign = sorted(name for name in set(names) - LEFTOVER if name not in _OURS or storage.list_afresh(name))
    if foreign:
        raise Environment(
            "root-not-empty",
            f"{root} is not empty: it holds {foreign[0]!r}" + (f" and {len(foreign) - 1} more" if foreign[1:] else ""),
            hint="name an empty directory",
        )


def _mark(storage: Storage, root: Path, marker: Marker) -> None:
    """Publish the marker: from here on it is a root."""
    if storage.publish(MARKER, marker.encode(), TMP) is not Published.WON:
        raise _taken(root)


def _taken(root: Path) -> Environment:
    return Environment("root-exists", f"somebody else is setting up {root} right now", hint="join theirs")


@contextlib.contextmanager
def _records_undone(storage: Storage, marker: Marker) -> Iterator[None]:
    """If what is done inside fails, remove what is ours of a new root: nothing stays half-written."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(LeaseholdError):
            if storage.read(MARKER) == marker.encode():
                storage.unlink(MARKER)
        for kind in (Kind.MAP, Kind.TRUST, Kind.POLICY):
            with contextlib.suppress(LeaseholdError):
                path = f"{DIRECTORIES[kind]}/{record_name(1)}"
                data = storage.read(path)
                if data and open_signed(kind, data, path).key_id == key_id(marker.root_key):
                    storage.unlink(path)
        raise


@contextlib.contextmanager
def _local_files(settings: Settings, root_key: Signer | None = None) -> Iterator[NodeKeys]:
    """Make a node's keys and settings; if what is done inside fails, remove them. Raises Environment."""
    directory = settings.directory
    names = (FILE, *map(key_file_name, Purpose), *((ROOT_KEY,) if root_key else ()))
    there = next((name for name in names if is_there(directory / name)), None)
    if there is not None:
        raise Environment(
            "key-exists", f"{directory / there} exists already: a node lives there", hint="name another --node-dir"
        )
    existed = is_there(directory)
    try:
        keys = make_node_keys(directory)
        if root_key:
            save_private_key(directory / ROOT_KEY, root_key)
        save_settings(settings)
        yield keys
    except BaseException:
        with contextlib.suppress(OSError):
            for name in names:
                (directory / name).unlink(missing_ok=True)
            if not existed:
                directory.rmdir()
        raise


def admit(
    registers: Registers,
    root_key: Signer,
    node: str,
    keys: NodeKeys,
    now: Instant,
    address: Address | None = None,
) -> int:
    """Publish the next trust record, with a node's keys added; return its number.

    ``address``: where the node will answer others. Raises NotTrusted if the node's name is taken, TryAgain if others
    keep winning. Safe to race: a lost number is tried again on top of the winner's.
    """
    check_node(node)
    entries = tuple(
        KeyEntry(
            node=node,
            purpose=purpose,
            public=key.public,
            valid_from_ns=now - KEY_BACKDATE_NS,
            valid_until_ns=now + KEY_LIFE_NS,
            address=str(address) if address and purpose is Purpose.TLS else None,
        )
        for purpose, key in keys.items()
    )

    def with_node(known: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
        if any(entry.node == node for entry in known):
            raise NotTrusted("node-exists", f"the cluster has a node {node} already", hint="choose another --node name")
        return known + entries

    return _publish_trust(registers, root_key, with_node)


def revoke_node(registers: Registers, root_key: Signer, node: str, from_ns: Instant) -> int:
    """Publish the next trust record, with every key of a node revoked from an instant; return its number.

    What the node signed for an earlier instant stays accepted, and so does an earlier revocation. Connections of the
    node end within about a second of other nodes seeing the record. Raises NotTrusted for an unknown node, TryAgain.
    """

    def without_node(known: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
        if all(entry.node != node for entry in known):
            raise NotTrusted("no-such-node", f"the cluster has no node {node}", hint="leasehold trust ls names them")
        return tuple(
            msgspec.structs.replace(
                entry,
                revoked_from_ns=from_ns if entry.revoked_from_ns is None else min(from_ns, entry.revoked_from_ns),
            )
            if entry.node == node
            else entry
            for entry in known
        )

    return _publish_trust(registers, root_key, without_node)


def move_node(registers: Registers, root_key: Signer, node: str, address: Address | None) -> int:
    """Publish the next trust record, in which a node answers elsewhere (None: nowhere); return its number.

    Raises NotTrusted for a node without a TLS key, TryAgain.
    """

    def moved(known: tuple[KeyEntry, ...]) -> tuple[KeyEntry, ...]:
        if not any(entry.node == node and entry.purpose is Purpose.TLS for entry in known):
            raise NotTrusted("no-such-node", f"the cluster has no node {node}", hint="leasehold trust ls names them")
        return tuple(
            msgspec.structs.replace(entry, address=str(address) if address else None)
            if entry.node == node and entry.purpose is Purpose.TLS
            else entry
            for entry in known
        )

    return _publish_trust(registers, root_key, moved)


def _publish_trust(
    registers: Registers, root_key: Signer, change: Callable[[tuple[KeyEntry, ...]], tuple[KeyEntry, ...]]
) -> int:
    """Publish a changed trust record on top of the newest, whoever wins in between; return its number."""
    for _ in range(_ADMIT_TRIES):
        known, number = _trusted(registers)
        record = TrustRecord(number=number + 1, cluster_id=registers.cluster_id, keys=change(known))
        if registers.publish(Kind.TRUST, record, root_key):
            return record.number
    raise TryAgain("trust-contended", f"{_ADMIT_TRIES} trust records were published by others", hint="try again")


def _trusted(registers: Registers) -> tuple[tuple[KeyEntry, ...], int]:
    number = registers.newest_number(Kind.TRUST)
    return ((), 0) if number is None else (registers.trust(number).keys, number)


def publish_map(registers: Registers, root_key: Signer, owners: Sequence[str]) -> None:
    """Publish the first shard map: shard k belongs to ``owners[k]``."""
    registers.publish(Kind.MAP, ShardMap(number=1, cluster_id=registers.cluster_id, owners=tuple(owners)), root_key)


def set_up(
    storage: Storage,
    root: Path,
    node: str,
    policy: Policy,
    cluster_id: bytes,
    now: Instant,
    directory: Path | None,
    listen: Listen | None = None,
) -> Settings:
    """What ``leasehold init`` does: found the cluster, let this node in, give it the one shard, save its settings.

    Either all of it is done, or what was begun is removed again, here and on the mount. The marker comes last.
    """
    check_node(node)
    policy = check_policy(msgspec.structs.replace(policy, cluster_id=cluster_id))
    _refuse_not_empty(storage, root)
    root_key = Signer.generate()
    place = directory or node_directories(cluster_id)[-1]
    settings = Settings(place, node, root, root_key.public, None, {}, listen.at if listen else None)
    with _local_files(settings, root_key) as keys:
        marker = Marker(cluster_id, root_key.public)
        with _records_undone(storage, marker):
            registers = _lay_ground(storage, root, policy, root_key, cluster_id)
            admit(registers, root_key, node, keys, now, listen.reached_at if listen else None)
            publish_map(registers, root_key, [node])
            _mark(storage, root, marker)
    return settings


def enroll(
    registers: Registers,
    root: Path,
    root_key: Signer,
    node: str,
    now: Instant,
    directory: Path,
    listen: Listen | None = None,
) -> Settings:
    """Make a node's keys and settings in its directory, then let it in; if that fails, remove them again."""
    check_node(node)
    settings = Settings(directory, node, root, root_key.public, None, {}, listen.at if listen else None)
    with _local_files(settings) as keys:
        admit(registers, root_key, node, keys, now, listen.reached_at if listen else None)
    return settings


def join_cluster(
    storage: Storage,
    root: Path,
    node: str,
    root_key_file: Path,
    now: Instant,
    directory: Path | None,
    listen: Listen | None = None,
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
    return enroll(registers, root, root_key, node, now, place, listen)
