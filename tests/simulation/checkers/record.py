"""What the record of a finished run is, read from the server's truth. Shares no code with the protocol.

A bag's content is what its rack's seal embeds; without a seal, what its lock file lists; without either, what lies in
it now, because nobody is left who could add to it and whoever closes next lists that. A rack whose sealing has begun
holds the bags that it holds now. The rules of acceptance are said here once more, from the protocol's text, over bytes
that reading.py has read: by the trust record that the lock file names, and the policy that the frame does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tests.simulation.checkers import reading
from tests.simulation.checkers.forms import (
    BatchHead,
    Broken,
    CeilingCopy,
    Holder,
    LogBirth,
    PlacedBirth,
    Policy,
    SessionWitness,
    TrustRecord,
    Witness,
    need,
)
from tests.simulation.checkers.naming import Stretch, author_of, bag_of, rack_of

if TYPE_CHECKING:
    from tests.simulation.checkers.forms import CeilingRecord, KeyEntry
    from tests.simulation.checkers.forms import Entry as BatchEntry
    from tests.simulation.checkers.reading import Frame, Piece, Stated, Time
    from tests.simulation.history import Key
    from tests.simulation.server import File
    from tests.simulation.world import World

LEASES_MAX = 64
USABLE = (1, 2)
"""The statuses of a signed time that may be relied on: synchronized and free-running."""


class Under(msgspec.Struct, frozen=True, gc=False):
    """One lease that a frame was written under."""

    domain: str
    mode: str
    fence: int
    correlation_id: bytes
    floor_ns: int
    expiry_ns: int
    settle_to_ns: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One accepted message."""

    key: Key
    bag: Stretch
    path: str
    under: tuple[Under, ...]
    born_ns: int
    """True time at which its file appeared."""


class Listed(msgspec.Struct, frozen=True):
    """One bag that exists, with what it holds: data files by name."""

    bag: Stretch
    files: dict[str, bytes]
    final: bool
    """Whether a lock file or a seal says so."""
    numbers: Numbers
    """By which records it is judged: those that its lock file names, or the newest that there are."""


class Numbers(NamedTuple):
    trust: int
    policy: int


class Keys:
    """The keys of one trust record."""

    def __init__(self, record: TrustRecord, *, real: bool) -> None:
        """``real``: whether signatures are Ed25519's."""
        self._entries = {reading.key_id(each.public): each for each in record.keys}
        self._real = real
        self._good: dict[bytes, bool] = {}
        """Signed heads that were looked at, by their bytes."""

    def _entry(self, key: bytes, purpose: str, at: int) -> KeyEntry | None:
        """Return a key that is good for a purpose at an instant."""
        entry = self._entries.get(key)
        if entry is None or entry.purpose != purpose or not entry.valid_from_ns <= at < entry.valid_until_ns:
            return None
        return entry if entry.revoked_from_ns is None or at < entry.revoked_from_ns else None

    def time_of(self, time: Time) -> str | None:
        """Return which node's this signed time of the page door is; None: it does not count."""
        entry = self._entry(time.key_id, "time", time.midpoint_ns)
        if entry is None or time.status not in USABLE or time.flags & reading.NONCE_DOOR:
            return None
        good = reading.verified(entry.public, "signed time", time.body, time.signature, real=self._real)
        return entry.node if good else None

    def vouches(self, stated: Stated) -> bool:
        """Whether the head of a witness is signed by its node's keys."""
        known = self._good.get(stated.raw_head + stated.signature)
        if known is None:
            head = stated.head
            entry = self._entry(head.key_id, "witness", stated.time.midpoint_ns)
            known = entry is not None and entry.node == head.node == self.time_of(stated.time)
            if known and entry is not None:
                known = reading.verified(
                    entry.public, "witness batch", stated.raw_head, stated.signature, real=self._real
                )
            self._good[stated.raw_head + stated.signature] = known
        return known


@lru_cache(maxsize=16)
def _birth(data: bytes) -> LogBirth:
    with suppress(Broken):
        return reading.stamped(reading.BIRTH, LogBirth, data)
    return reading.stamped(reading.BIRTH, PlacedBirth, data)


class LogRecord:
    """One log."""

    def __init__(self, record: Record, name: str) -> None:
        self._server = record.server
        self._record = record
        self.name = name
        birth = self._file(f"logs/{name}/log")
        assert birth is not None
        self.birth = _birth(birth.data)
        self.voided: set[bytes] = set()
        """Messages that a person took out again: a key that was good when its frame was written was ended before the
        bag was closed. Known when the entries are."""
        self._parsed: dict[bytes, list[Piece]] = {}

    def _file(self, path: str) -> File | None:
        """Return a file, be it removed since: what a pack holds is checked by kept.py.

        The first of that name: a request that comes late may link the same bytes again after the directory was swept.
        """
        removed = self._server.graves.get(path)
        return self._server.find(path) if removed is None else removed[0]

    def _names(self, path: str) -> list[str]:
        return sorted(self._server.directories.get(path, {}))

    @cached_property
    def bags(self) -> dict[str, Listed]:
        """Every bag that exists, by path."""
        found: dict[str, Listed] = {}
        for day in self._names(f"logs/{self.name}"):
            if day.count("-") != 2:
                continue
            for clock in self._names(f"logs/{self.name}/{day}"):
                rack = rack_of(self.birth, day, clock)
                if rack is None:
                    continue
                seal = self._file(f"{rack.path}/seal")
                locks: dict[str, bytes] | None = None
                if seal is not None:
                    locks = {entry.bag: entry.lock for entry in reading.seal_file(seal.data).entries}
                for name in self._names(rack.path) if locks is None else sorted(locks):
                    bag = bag_of(self.birth, rack, name)
                    if bag is not None:
                        found[bag.path] = self._listed(bag, None if locks is None else locks[name])
        return found

    def _listed(self, bag: Stretch, raw: bytes | None) -> Listed:
        lock_file = self._server.find(f"{bag.path}/lock")
        if raw is None and lock_file is not None:
            raw = lock_file.data
        names = [name for name in self._names(bag.path) if author_of(self.birth, name) is not None]
        if raw is not None:
            lock = reading.lock_file(raw)
            need(
                (lock.cluster_id, lock.log, lock.bag) == (self.birth.cluster_id, self.name, bag.path), "another's list"
            )
            files = {}
            for entry in lock.entries:
                file = self._file(f"{bag.path}/{entry.name}")
                data = b"" if file is None else file.data[: entry.size]
                assert reading.digest_of(data) == entry.digest, f"{bag.path}/{entry.name} is not what was listed"
                files[entry.name] = data
            return Listed(bag, files, final=True, numbers=Numbers(lock.trust_number, lock.policy_number))
        files = {}
        for name in names:
            file = self._file(f"{bag.path}/{name}")
            assert file is not None
            files[name] = file.data
        return Listed(bag, files, final=False, numbers=self._record.newest)

    @cached_property
    def entries(self) -> list[Entry]:
        """Every accepted message, in order."""
        found: list[Entry] = []
        for listed in self.bags.values():
            once: dict[Key, Entry] = {}  # equal frames in several files of a bag count once
            for name, data in listed.files.items():
                for entry in self._accepted(listed, name, data):
                    known = once.get(entry.key)
                    if known is None or entry.born_ns < known.born_ns:
                        once[entry.key] = entry
            found += once.values()
        return sorted(found, key=lambda entry: entry.key[:5])

    @cached_property
    def keys(self) -> frozenset[Key]:
        """Every accepted message, as readers see it."""
        return frozenset(entry.key for entry in self.entries)

    @cached_property
    def payloads(self) -> dict[str, set[bytes]]:
        """What the accepted messages of each bag say, by its path."""
        found: dict[str, set[bytes]] = {}
        for entry in self.entries:
            found.setdefault(entry.bag.path, set()).add(entry.key[5])
        return found

    def _accepted(self, listed: Listed, name: str, data: bytes) -> Iterator[Entry]:
        bag, named = listed.bag, listed.numbers
        path = f"{bag.path}/{name}"
        author = author_of(self.birth, name)
        file = self._file(path)
        assert author is not None
        assert file is not None
        keys = self._record.keys(named.trust)
        self._record.policy_of(named.policy)
        for piece in self._pieces(data):
            try:
                need(piece.kind == reading.FRAME, "no frame")
                frame = reading.frame(piece.payload)
                head, time = frame.head, frame.time
                at_home = (head.cluster_id, head.log, head.writer) == (self.birth.cluster_id, self.name, author.writer)
                need(at_home, "another's")
                if named.trust > head.trust_number and not self._trusted(frame, keys):
                    if self._trusted(frame, self._record.keys(head.trust_number)):
                        self.voided.update(frame.messages)
                    continue
                need(keys.time_of(time) is not None, "a time that nobody vouches for")
                known = 1 <= head.policy_number < named.policy
                policy = self._record.policy_of(head.policy_number if known else named.policy)
                under = _under(frame, policy, keys, self.birth.cluster_id)
            except Broken:
                continue
            slack = policy.r1_tolerance_ns + time.radius_ns
            for index, (timestamp, payload) in enumerate(zip(frame.timestamps, frame.messages, strict=True)):
                good = bag.start_ns <= timestamp < bag.end_ns and abs(timestamp - time.midpoint_ns) <= slack
                if good and all(each.floor_ns < timestamp < each.expiry_ns for each in under):
                    key = (timestamp, head.writer, head.incarnation, head.sequence, index, payload)
                    yield Entry(key, bag, path, under, self._server.born_ns(file, piece.end))

    @staticmethod
    def _trusted(frame: Frame, keys: Keys) -> bool:
        """Whether all keys by which a frame is signed are good."""
        times = keys.time_of(frame.time) is not None
        return times and all(keys.vouches(reading.stated(raw)) for raw in frame.head.witnesses)

    def holds(self, path: str, data: bytes) -> bool:
        """Whether the record holds an attempt: its file, or each of its frames in some file of its bag."""
        directory, _, name = path.rpartition("/")
        listed = self.bags.get(directory)
        if listed is None:
            return False
        if self.birth.kind == "maildir":
            assert listed.files.get(name) in (None, data), f"{path} holds other bytes than were written"
            if name in listed.files:
                return True
        there = {each[piece.offset : piece.end] for each in listed.files.values() for piece in self._pieces(each)}
        return all(data[piece.offset : piece.end] in there for piece in self._pieces(data))

    def _pieces(self, data: bytes) -> list[Piece]:
        """Return the whole pieces of these bytes, which are parsed once."""
        found = self._parsed.get(data)
        if found is None:
            found = self._parsed[data] = reading.pieces(data)
        return found


def _under(frame: Frame, policy: Policy, keys: Keys, cluster_id: bytes) -> tuple[Under, ...]:
    """Return what the frame was written under. Raises Broken if one of its witnesses does not count, or it has none."""
    sessions: dict[tuple[int, int, bytes, bytes], tuple[SessionWitness, BatchHead]] = {}
    leases: list[tuple[Witness, BatchHead]] = []
    for raw in frame.head.witnesses:
        stated = reading.stated(raw)
        said, head, time = stated.said, stated.head, stated.time
        need(head.cluster_id == cluster_id and keys.vouches(stated), "a witness that nobody vouches for")
        need(said.holder.incarnation == frame.head.incarnation, "another's witness")
        need(said.expiry_ns <= time.midpoint_ns + time.radius_ns + policy.lease_term_max_ns, "too long a term")
        if isinstance(said, SessionWitness):
            name = (head.map_number, head.shard, head.incarnation, said.session_id)
            need(name not in sessions, "a session twice")
            sessions[name] = said, head
        else:
            need(said.phase == "held" and said.mode in ("X", "IX", "SIX"), "a lease that may not be written under")
            leases.append((said, head))
    whole: list[Under] = []
    halves: dict[tuple[str, Holder, int], dict[str, Under]] = {}
    for witness, head in leases:
        under, going_by, half = _standing(witness, head, sessions)
        if half == "whole":
            whole.append(under)
        else:
            halves.setdefault((witness.domain, witness.holder, going_by), {})[half] = under
    found = (*whole, *map(_both, halves.values()))
    need(1 <= len(found) <= LEASES_MAX, "no lease, or too many")
    return found


def _both(halves: Mapping[str, Under]) -> Under:
    """Return what two halves of a lease allow together. Raises Broken where one is missing."""
    need(len(halves) == 2, "half a lease")
    leaving, coming = halves["leaving"], halves["coming"]
    return msgspec.structs.replace(
        coming,
        fence=max(leaving.fence, coming.fence),
        floor_ns=max(leaving.floor_ns, coming.floor_ns),
        expiry_ns=min(leaving.expiry_ns, coming.expiry_ns),
        settle_to_ns=max(leaving.settle_to_ns, coming.settle_to_ns),
    )


def _standing(
    witness: Witness,
    head: BatchHead,
    sessions: Mapping[tuple[int, int, bytes, bytes], tuple[SessionWitness, BatchHead]],
) -> tuple[Under, int, str]:
    """Return what a lease's witness allows; by which map, and how much of a lease it is. Raises Broken."""
    expiry = witness.expiry_ns
    if witness.session_id is not None:
        name = (head.map_number, head.shard, head.incarnation, witness.session_id)
        need(name in sessions, "no witness of the session lease that it is under")
        session, its_head = sessions[name]
        if session.holder != witness.holder or witness.correlation_id in session.ended:
            raise Broken("a session lease that does not cover it")
        expiry = session.expiry_ns
        head = head if head.going_by > its_head.going_by else its_head
    under = Under(
        witness.domain,
        witness.mode,
        witness.fence,
        witness.correlation_id,
        witness.floor_ns,
        expiry,
        witness.settle_to_ns,
    )
    return under, head.going_by, head.half


@lru_cache(maxsize=64)
def _policy(data: bytes) -> Policy:
    return reading.signed(reading.POLICY, Policy, data)


@lru_cache(maxsize=64)
def _trust(data: bytes) -> TrustRecord:
    return reading.signed(reading.TRUST, TrustRecord, data)


class SignedTurn(msgspec.Struct, frozen=True, gc=False):
    """What a shard signed at once."""

    head: BatchHead
    entries: tuple[BatchEntry, ...]


class Record:
    """All logs, and all that shards signed."""

    def __init__(self, world: World) -> None:
        """Take a finished run, whose ledger blocks stand in the order in which they were signed."""
        self.server = server = world.server
        self.policy = world.policy
        self._blocks = dict.fromkeys(world.history.blocks)  # a cloned machine may write the same once more
        self._real = world.founded.real
        self.policies = {number: _policy(data) for number, data in self._numbered("policy")}
        self._trusts = {number: _trust(data) for number, data in self._numbered("trust")}
        self.newest = Numbers(max(self._trusts), max(self.policies))
        self._keys: dict[int, Keys] = {}
        names = sorted(name for name in server.directories.get("logs", {}) if server.find(f"logs/{name}/log"))
        self.logs = {name: LogRecord(self, name) for name in names}

    def _numbered(self, register: str) -> Iterator[tuple[int, bytes]]:
        for name, file in self.server.directories[register].items():
            if file is not None:
                yield int(name), file.data

    def keys(self, number: int) -> Keys:
        """Return the keys of a trust record."""
        if number not in self._keys:
            need(number in self._trusts, f"there is no trust record {number}")
            self._keys[number] = Keys(self._trusts[number], real=self._real)
        return self._keys[number]

    def policy_of(self, number: int) -> Policy:
        """Return a policy."""
        need(number in self.policies, f"there is no policy {number}")
        return self.policies[number]

    @cached_property
    def turns(self) -> list[SignedTurn]:
        """Every turn that was signed, whether or not it reached the mount, in order."""
        return [SignedTurn(*reading.block(data)) for data in self._blocks]

    @cached_property
    def ceilings(self) -> dict[bytes, CeilingRecord]:
        """Every ceiling record of which a turn has a copy, by its bytes, in order."""
        return {
            entry.record: reading.ceiling(entry.record)
            for turn in self.turns
            for entry in turn.entries
            if type(entry) is CeilingCopy
        }
