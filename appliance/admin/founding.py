"""Setting up a cluster on an empty directory, letting nodes in, and the next policy.

The root key signs the policy, the trust records and the shard maps. It is made here and stays where the founder's
settings are: whoever has it can let nodes in.

There is no instant from which a policy counts, and nobody has to acknowledge it: each process takes it up when it sees
it (``record_watch.py``), and each frame is judged by the policy that it names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from timeagent.errors import Damaged, Environment, NotTrusted, TenureError, TryAgain
from timeagent.keys import (
    Purpose,
    Signer,
    Verifier,
    fingerprint,
    key_file_name,
    key_id,
    load_private_key,
    make_node_keys,
    save_private_key,
)
from timeagent.units import Instant

from ..bag.ports import Published, Storage
from ..bag.roots import Root
from ..formats.birth import Marker, decode_marker
from ..formats.framing import Kind
from ..formats.names import Address, check_node
from ..formats.paths import MARKER, record_name
from ..formats.policy import Policy, check_policy
from ..formats.shardmap import ShardMap
from ..formats.stamped import open_signed
from ..node.records import DIRECTORIES, TMP, Registers
from ..node.settings import FILE, ROOT_KEY, Settings, is_there, new_directory, save_settings
from .trust import admit

type Publics = Mapping[Purpose, bytes]

LEFTOVER: Final = frozenset({TMP, "lost+found"})
"""What may lie in a directory that is called empty; and of our own directories those that hold nothing."""

_OURS: Final = (*DIRECTORIES.values(), "logs", "shards", "ledger")


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a node listens, and where others reach it: not the same behind a translated address. None: nowhere."""

    at: Address | None = None
    reached_at: Address | None = None


NOWHERE: Final = Listen()


def read_marker(storage: Storage, root: Root) -> Marker:
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
                f"{root} is an empty directory: not a tenure root, or its file system is not mounted",
                hint=f"mount it, or set up a new cluster: tenure init {root}",
            )
        raise Damaged(
            "not-a-root",
            f"{root} is not a tenure root: it has no file {MARKER}",
            hint=f"name the root itself, or set up a new cluster in an empty directory: tenure init {root}",
        )
    try:
        return decode_marker(data, f"{root}/{MARKER}")
    except Damaged as problem:
        hint = "restore it from a copy of the tree, or use a release that knows its format"
        raise Damaged(problem.code, problem.message, hint=hint) from None


def found_cluster(storage: Storage, root: Root, policy: Policy, root_key: Signer) -> Registers:
    """Make a root of an empty directory: policy 1, then the marker. Raises Environment, naming what is in the way."""
    with _founded(storage, root, policy, root_key) as registers:
        return registers


@contextlib.contextmanager
def _founded(storage: Storage, root: Root, policy: Policy, root_key: Signer) -> Iterator[Registers]:
    """Publish policy 1, which decides between two who set up at once, make the directories, and at the end the marker.

    If what is done inside fails, remove what is ours of a new root: nothing stays half-written.
    """
    check_policy(policy)
    refuse_not_empty(storage, root)
    marker = Marker(policy.cluster_id, root_key.public)
    registers = Registers(storage, policy.cluster_id, Verifier(root_key.public))
    try:
        _refuse_taken(root, taken=not registers.publish(Kind.POLICY, policy, root_key))
        for directory in _OURS:
            storage.ensure_directory(directory)
        yield registers
        _refuse_taken(root, taken=storage.publish(MARKER, marker.encode(), TMP) is not Published.WON)
    except BaseException:
        with contextlib.suppress(TenureError):
            if storage.read(MARKER) == marker.encode():
                storage.unlink(MARKER)
        for kind in (Kind.MAP, Kind.TRUST, Kind.POLICY):
            with contextlib.suppress(TenureError):
                path = f"{DIRECTORIES[kind]}/{record_name(1)}"
                data = storage.read(path)
                if data and open_signed(kind, data, path).key_id == key_id(marker.root_key):
                    storage.unlink(path)
        raise


def _refuse_taken(root: Root, *, taken: bool) -> None:
    if taken:
        raise Environment("root-exists", f"somebody else is setting up {root} right now", hint="join theirs")


def refuse_not_empty(storage: Storage, root: Root) -> None:
    """Raise Environment, naming what is in the way, where no cluster can be founded. Touches the mount."""
    names = storage.list_afresh(".")
    if names is None:
        raise Environment("no-root", f"{root} does not exist", hint=f"mkdir {root}")
    if MARKER in names:
        raise Environment(
            "root-exists", f"{root} is a tenure root already", hint=f"to let this machine in: tenure join {root}"
        )
    foreign = sorted(name for name in set(names) - LEFTOVER if name not in _OURS or storage.list_afresh(name))
    if foreign:
        raise Environment(
            "root-not-empty",
            f"{root} is not empty: it holds {foreign[0]!r}" + (f" and {len(foreign) - 1} more" if foreign[1:] else ""),
            hint="name an empty directory",
        )


@contextlib.contextmanager
def _local_files(settings: Settings, root_key: tuple[Path, Signer] | None = None) -> Iterator[Publics]:
    """Make a node's keys and settings and a root key. If what is done inside fails, remove them. Raises Environment."""
    directory = settings.directory
    paths = [directory / name for name in (FILE, *map(key_file_name, Purpose))] + ([root_key[0]] if root_key else [])
    there = next((path for path in paths if is_there(path)), None)
    if there is not None:
        raise Environment("key-exists", f"{there} exists already: a node lives there", hint="name another --node-dir")
    existed = is_there(directory)
    try:
        publics = make_node_keys(directory)
        if root_key:
            save_private_key(*root_key)
        save_settings(settings)
        yield publics
    except BaseException:
        with contextlib.suppress(OSError):
            for path in paths:
                path.unlink(missing_ok=True)
            if not existed:
                directory.rmdir()
        raise


def publish_map(registers: Registers, root_key: Signer, owners: Sequence[str]) -> None:
    """Publish the first shard map: shard k belongs to ``owners[k]``."""
    registers.publish(Kind.MAP, ShardMap(number=1, cluster_id=registers.cluster_id, owners=tuple(owners)), root_key)


def next_policy(newest: Policy, changes: Mapping[str, int]) -> Policy:
    """Return the policy that comes after one, or the same one if nothing would change.

    ``changes``: new values of some of its spans. Raises BadConfiguration, naming both values, if a relation fails.
    """
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


def set_up(
    storage: Storage,
    root: Root,
    node: str,
    policy: Policy,
    now: Instant,
    directory: Path | None,
    listen: Listen = NOWHERE,
    root_key_file: Path | None = None,
) -> Settings:
    """What ``tenure init`` does: found the cluster, let this node in, give it the one shard, save its settings.

    ``root_key_file``: where the root key is to be kept; one that lies there already is used. None: with the settings.
    Either all of it is done, or what was begun is removed again, here and on the mount. The marker comes last.
    """
    check_node(node)
    refuse_not_empty(storage, root)
    place = directory or new_directory(policy.cluster_id)
    kept = root_key_file is not None and is_there(root_key_file)
    root_key = load_private_key(root_key_file) if kept and root_key_file else Signer.generate()
    settings = Settings(place, node, root, root_key.public, listen=listen.at)
    new_root_key = None if kept else (root_key_file or place / ROOT_KEY, root_key)
    with _local_files(settings, new_root_key) as publics, _founded(storage, root, policy, root_key) as registers:
        admit(registers, root_key, node, publics, now, listen.reached_at)
        publish_map(registers, root_key, [node])
    return settings


def enroll(
    registers: Registers,
    root: Root,
    root_key: Signer,
    node: str,
    now: Instant,
    directory: Path,
    listen: Listen = NOWHERE,
) -> Settings:
    """Make a node's keys and settings in its directory, then let it in; if that fails, remove them again."""
    check_node(node)
    settings = Settings(directory, node, root, root_key.public, listen=listen.at)
    with _local_files(settings) as publics:
        admit(registers, root_key, node, publics, now, listen.reached_at)
    return settings


def load_root_key(file: Path, public: bytes, root: Root) -> Signer:
    """Read the root key of a cluster. Raises NotTrusted for that of another one, and what reading a key raises."""
    key = load_private_key(file)
    if key.public != public:
        raise NotTrusted(
            "other-cluster",
            f"{file} is not the root key of the cluster at {root} ({fingerprint(public)})",
            hint="take root.key from the machine that ran tenure init",
        )
    return key
