"""A cluster is founded on an empty directory; nodes come, and go.

The root key signs the policy, the trust records and the shard maps. It is made with the cluster and stays where the
founder's settings are: whoever has it can let nodes in.

A node comes without it, too. Each step may be repeated after it was cut off, and finds what was done: a machine makes
its keys and asks, who has the root key approves, the machine goes on.

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
import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from timeagent.errors import BadRequest, Damaged, Environment, NotTrusted, TenureError
from timeagent.keys import (
    Purpose,
    Signer,
    Verifier,
    fingerprint,
    key_file_name,
    load_node_key,
    load_private_key,
    make_node_keys,
    newest_number,
    parse_public_line,
    public_line,
    save_private_key,
    stage_keys,
    take_up,
)
from timeagent.trust import KeyEntry
from timeagent.units import Instant

from ..bag.ports import Published, Storage
from ..bag.roots import Root
from ..formats.birth import Marker, decode_marker
from ..formats.framing import Kind
from ..formats.names import Address, check_node, parse_address
from ..formats.paths import MARKER, record_name
from ..formats.policy import Policy, check_policy
from ..formats.shardmap import ShardMap
from ..node.records import DIRECTORIES, TMP, Registers
from ..node.settings import FILE, ROOT_KEY, Settings, is_there, new_directory, save_settings
from . import trust
from .moving import check_nodes

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
        for kind, opened in ((Kind.MAP, registers.map), (Kind.TRUST, registers.trust), (Kind.POLICY, registers.policy)):
            with contextlib.suppress(TenureError):
                opened(1)  # raises for what is of another cluster, if by the same root key
                storage.unlink(f"{DIRECTORIES[kind]}/{record_name(1)}")
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
    if foreign and set(foreign) <= set(_OURS):
        raise Environment(
            "root-not-empty",
            f"{root} holds {' and '.join(foreign)}, and no {MARKER}: an init is at work there, or was cut off",
            hint=f"wait; if none is at work on any machine, remove {', '.join(foreign)} there, then call it again",
        )
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
        try:
            publics = make_node_keys(directory)
        except Environment as problem:
            if problem.code == "key-exists":  # all that is there by now is another's, who was faster
                paths.clear()
            raise
        if root_key:
            try:
                save_private_key(*root_key)
            except Environment:  # not made: one that is there by now is another's
                paths.remove(root_key[0])
                raise
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
    key_file = root_key_file or place / ROOT_KEY
    kept = root_key_file is not None and is_there(root_key_file)
    root_key = load_private_key(key_file) if kept else Signer.generate()
    settings = Settings(place, node, root, root_key.public, listen=listen.at)
    new_root_key = None if kept else (key_file, root_key)
    with _local_files(settings, new_root_key) as publics, _founded(storage, root, policy, root_key) as registers:
        trust.admit(registers, root_key, node, publics, now, listen.reached_at)
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
    """Make a node's keys, or find those of an earlier try, and let it in; its settings come last. May be repeated.

    The trust record may be there though its link was reported failed: without these keys nobody could be that node.
    """
    check_may_join(registers, directory, check_node(node), listen.reached_at)
    request = prepared(directory, node, listen.reached_at)
    trust.admit(registers, root_key, node, request.publics, now, request.address)
    settings = Settings(directory, node, root, root_key.public, listen=listen.at)
    save_settings(settings)
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


_ADDRESS: Final = "address "
_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Request:
    """What a machine asks for: a node's name, its public keys, and where others reach it."""

    node: str
    publics: Publics
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
    try:
        for line in data[:_BYTES_MAX].decode("ascii", "replace").splitlines():
            owner, _, purpose = line.rpartition(" ")[2].partition(":")
            if line.startswith(_ADDRESS):
                address = parse_address(line.removeprefix(_ADDRESS))
            elif owner == node and purpose in list(Purpose):
                publics[Purpose(purpose)] = parse_public_line(line, f"the line of {purpose}")
    except BadRequest as problem:
        raise Damaged("bad-request", f"{where}: {problem.message}", hint="join again") from None
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
    missing = [purpose for purpose in Purpose if not newest_number(directory, purpose)]
    if missing == list(Purpose):
        make_node_keys(directory)
    else:
        take_up(directory, stage_keys(directory, missing))
    publics = {purpose: load_node_key(directory, purpose).public for purpose in Purpose}
    return Request(check_node(node), publics, address)


def check_may_join(registers: Registers, directory: Path, node: str, address: Address | None) -> None:
    """Raise NotTrusted where the cluster knows the node, and not by a key of this directory that counts.

    Nobody could let it in. Raises BadRequest where it knows it by another address than that of this call: it would be
    looked for where it does not listen. Touches the mount, and a local disk.
    """
    number = registers.newest_number(Kind.TRUST)  # None: nobody has been let in yet
    known = [entry for entry in registers.trust(number).keys if entry.node == node] if number else []
    counting = {entry.public for entry in known if entry.revoked_from_ns is None}
    there = [purpose for purpose in Purpose if newest_number(directory, purpose)]
    if known and not any(load_node_key(directory, purpose).public in counting for purpose in there):
        raise trust.name_taken(node)
    reached = next((entry.address for entry in reversed(known) if entry.purpose is Purpose.TLS), None)
    if known and reached != (str(address) if address else None):
        what = f"{node} was let in as reached at {reached or 'no address'}, and this call says {address or 'none'}"
        hint = "say --listen and --address as before; once it is in, tenure trust move says where it answers"
        raise BadRequest("other-address", what, hint=hint)


def ask(storage: Storage, request: Request) -> None:
    """Put the request on the mount, in the place of another one of that name. Idempotent. Raises Environment."""
    path = request_path(request.node)
    if storage.read(path) != request.encode():
        storage.unlink(path)
        if storage.publish(path, request.encode(), TMP) is not Published.WON:
            what = f"{path} is taken: by what cannot be removed, or by another machine that asks just now"
            raise Environment("request-in-the-way", what, hint="see what it is; then join again")


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
    first: dict[Purpose, KeyEntry] = {}
    for entry in registers.newest_trust().keys:
        if entry.node == node:
            first.setdefault(entry.purpose, entry)
    if set(first) != set(Purpose):
        return None
    address = first[Purpose.TLS].address
    publics = {purpose: entry.public for purpose, entry in first.items()}
    return Request(node, publics, parse_address(address) if address else None)


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


def has_left(registers: Registers, node: str, now: Instant) -> bool:
    """Whether no key of a node counts at an instant, nor later, and no shard is its own. Touches the mount."""
    keys = (each for each in registers.newest_trust().keys if each.node == node)
    ended = all(each.revoked_from_ns is not None and each.revoked_from_ns <= now for each in keys)
    return ended and not shards_of(registers, node)


def heirs(registers: Registers, node: str) -> list[str]:
    """Return the nodes that could have its shards: those with an address and a key that counts. Touches the mount."""
    entries = [each for each in registers.newest_trust().keys if each.purpose is Purpose.TLS and each.node != node]
    return sorted({each.node for each in entries if each.address and each.revoked_from_ns is None})


def given_away(registers: Registers, node: str, to: Sequence[str] = ()) -> dict[int, str]:
    """Return who is to have a node's shards, by place; none may be left.

    ``to``: to these in turn; empty: to whom each shard would fall if the node died. Raises BadRequest where there is
    nobody. Touches the mount.
    """
    mine = shards_of(registers, node)
    others = list(to) or heirs(registers, node)
    if node in to:
        raise BadRequest("no-heir", f"{node} leaves, and cannot have its own shards", hint="name another --to NODE")
    if mine and not others:
        raise BadRequest(
            "no-heir",
            f"no other node answers anywhere: nobody could have the shards {', '.join(map(str, mine))} of {node}",
            hint="tenure trust move NODE HOST:PORT says where one answers; --to names another",
        )
    newest = registers.newest_map()
    check_nodes(registers, others or [node])
    return {
        place: to[turn % len(to)] if to else newest.heirs(newest.layout.shards[place], others)[1]
        for turn, place in enumerate(mine)
    }


def given_last(registers: Registers, node: str) -> set[int]:
    """Return the shards that the last move took from a node to others. Touches the mount."""
    newest = registers.newest_map()
    both = newest if newest.before is not None or newest.number == 1 else registers.map(newest.number - 1)
    was = both.owners if both.before is None else both.before.owners
    moves = zip(newest.layout.shards, was, newest.owners, strict=False)
    return {shard for shard, before, after in moves if before == node != after}


def revoke(registers: Registers, root_key: Signer, node: str, now: Instant) -> int:
    """Let no key of a node count from now on, and have nobody look for it; return the trust record's number.

    Idempotent. Raises BadRequest for an unknown node, TryAgain. Touches the mount.
    """
    entries = registers.newest_trust().keys
    if any(entry.node == node and entry.address for entry in entries):
        trust.move_node(registers, root_key, node, None)
    return trust.revoke_node(registers, root_key, node, now)
