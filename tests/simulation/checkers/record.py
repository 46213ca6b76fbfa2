"""What the record of a finished run is, read from the server's truth. Shares no code with the protocol, only formats.

A bag's content is what its rack's seal embeds; without a seal, what its lock file lists; without either, what lies in
it now, because nobody is left who could add to it and whoever closes next lists that. A rack whose sealing has begun
holds the bags that it holds now. The rules of acceptance are said here once more, from the protocol's text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec

from appliance.formats.birth import BagKind, LogBirth
from appliance.formats.ceiling import open_ceiling
from appliance.formats.frame import Frame, open_frame
from appliance.formats.framing import Kind, pieces
from appliance.formats.lease import Mode, Phase
from appliance.formats.ledger import open_block
from appliance.formats.lockfile import LockFile, open_lock, open_seal
from appliance.formats.paths import Bag
from appliance.formats.policy import Policy
from appliance.formats.sessionlease import SessionWitness
from appliance.formats.stamped import open_signed, open_stamped
from appliance.formats.witness import CeilingCopy, SignedWitness, Witness
from tests.simulation.cluster import grid_of
from timeagent.canonical import decode
from timeagent.errors import Damaged

if TYPE_CHECKING:
    from appliance.formats.ceiling import CeilingRecord
    from appliance.formats.framing import Piece
    from appliance.formats.witness import BatchHead
    from appliance.formats.witness import Entry as WitnessEntry
    from tests.simulation.history import Key
    from tests.simulation.server import File, Server


class Under(msgspec.Struct, frozen=True, gc=False):
    """One lease that a frame was written under."""

    domain: str
    mode: Mode
    fence: int
    correlation_id: bytes
    floor_ns: int
    expiry_ns: int
    settle_to_ns: int


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One accepted message."""

    key: Key
    bag: Bag
    path: str
    under: tuple[Under, ...]
    born_ns: int
    """True time at which its file appeared."""


class Listed(msgspec.Struct, frozen=True):
    """One bag that exists, with what it holds: data files by name."""

    bag: Bag
    files: dict[str, bytes]
    final: bool
    """Whether a lock file or a seal says so."""


@cache
def _birth(data: bytes) -> LogBirth:
    return decode(LogBirth, open_stamped(Kind.BIRTH, data, "birth").body)


class LogRecord:
    """One log."""

    def __init__(self, server: Server, name: str, policies: Mapping[int, Policy]) -> None:
        self._server = server
        self._policies = policies
        self.name = name
        birth = self._file(f"logs/{name}/log")
        assert birth is not None
        self.grid = grid_of(_birth(birth.data))
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
        for day in self._names(self.grid.log_path):
            if day.count("-") != 2:
                continue
            for clock in self._names(f"{self.grid.log_path}/{day}"):
                rack = self.grid.parse_rack(day, clock)
                if rack is None:
                    continue
                seal = self._file(f"{rack.path}/seal")
                locks: dict[str, bytes] | None = None
                if seal is not None:
                    locks = {entry.bag: entry.lock for entry in open_seal(seal.data, rack.path)[0].entries}
                for name in self._names(rack.path) if locks is None else sorted(locks):
                    bag = self.grid.parse_bag(rack, name)
                    if bag is not None:
                        found[bag.path] = self._listed(bag, None if locks is None else locks[name])
        return found

    def _listed(self, bag: Bag, raw: bytes | None) -> Listed:
        lock_file = self._server.find(f"{bag.path}/lock")
        if raw is None and lock_file is not None:
            raw = lock_file.data
        names = [name for name in self._names(bag.path) if self.grid.data_name(name) is not None]
        if raw is not None:
            lock: LockFile = open_lock(raw, bag.path)[0]
            assert lock.bag == bag.path
            files = {}
            for entry in lock.entries:
                file = self._file(f"{bag.path}/{entry.name}")
                data = b"" if file is None else file.data[: entry.size]
                assert hashlib.sha256(data).digest() == entry.digest, f"{bag.path}/{entry.name} is not what was listed"
                files[entry.name] = data
            return Listed(bag, files, final=True)
        files = {}
        for name in names:
            file = self._file(f"{bag.path}/{name}")
            assert file is not None
            files[name] = file.data
        return Listed(bag, files, final=False)

    @cached_property
    def entries(self) -> list[Entry]:
        """Every accepted message, in order."""
        found: list[Entry] = []
        for listed in self.bags.values():
            once: dict[Key, Entry] = {}  # equal frames in several files of a bag count once
            for name, data in listed.files.items():
                for entry in self._accepted(listed.bag, name, data):
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

    def _accepted(self, bag: Bag, name: str, data: bytes) -> Iterator[Entry]:
        path = f"{bag.path}/{name}"
        parsed = self.grid.data_name(name)
        file = self._file(path)
        assert parsed is not None
        assert file is not None
        for piece in self._pieces(data):
            frame = open_frame(piece, path)
            head = frame.head
            if (head.log, head.writer) != (bag.log, parsed.writer):
                continue
            policy = self._policies[head.policy_number]
            under = self._under(frame, policy)
            if under is None:
                continue
            token = head.signed_time()
            slack = policy.r1_tolerance_ns + token.radius_ns
            for index, (timestamp, payload) in enumerate(zip(frame.timestamps.tolist(), frame.payloads(), strict=True)):
                good = bag.start_ns <= timestamp < bag.end_ns and abs(timestamp - token.midpoint_ns) <= slack
                if good and all(each.floor_ns < timestamp < each.expiry_ns for each in under):
                    key = (timestamp, head.writer, head.incarnation, head.sequence, index, payload)
                    yield Entry(key, bag, path, under, self._server.born_ns(file, piece.end))

    @staticmethod
    def _under(frame: Frame, policy: Policy) -> tuple[Under, ...] | None:
        """Return what the frame was written under; None if one of its witnesses does not count."""
        found = []
        sessions: dict[tuple[bytes, bytes], SessionWitness] = {}
        leases: list[tuple[Witness, bytes]] = []
        for raw in frame.head.witnesses:
            try:
                signed = decode(SignedWitness, raw)
                said, head = signed.statement(), signed.batch_head()
                time = head.signed_time()
            except Damaged:
                return None
            if (
                said.holder.incarnation != frame.head.incarnation
                or said.expiry_ns > time.midpoint_ns + time.radius_ns + policy.lease_term_max_ns
            ):
                return None
            if isinstance(said, SessionWitness):
                sessions[head.incarnation, said.session_id] = said
            else:
                leases.append((said, head.incarnation))
        for witness, run in leases:
            expiry = witness.expiry_ns
            if witness.session_id is not None:
                session = sessions.get((run, witness.session_id))
                if session is None or witness.correlation_id in session.ended:
                    return None
                expiry = session.expiry_ns
            if witness.phase is not Phase.HELD or witness.mode not in (Mode.X, Mode.IX, Mode.SIX):
                return None
            found.append(
                Under(
                    witness.domain,
                    witness.mode,
                    witness.fence,
                    witness.correlation_id,
                    witness.floor_ns,
                    expiry,
                    witness.settle_to_ns,
                )
            )
        return tuple(found)

    def holds(self, path: str, data: bytes) -> bool:
        """Whether the record holds an attempt: its file, or each of its frames in some file of its bag."""
        directory, _, name = path.rpartition("/")
        listed = self.bags.get(directory)
        if listed is None:
            return False
        if self.grid.birth.kind is BagKind.MAILDIR:
            assert listed.files.get(name) in (None, data), f"{path} holds other bytes than were written"
            if name in listed.files:
                return True
        there = {each[piece.offset : piece.end] for each in listed.files.values() for piece in self._pieces(each)}
        return all(data[piece.offset : piece.end] in there for piece in self._pieces(data))

    def _pieces(self, data: bytes) -> list[Piece]:
        """Return the whole pieces of these bytes, which are parsed once."""
        found = self._parsed.get(data)
        if found is None:
            found = self._parsed[data] = pieces(data)[0]
        return found


@lru_cache(maxsize=64)
def _policy(data: bytes) -> Policy:
    return decode(Policy, open_signed(Kind.POLICY, data, "policy").body)


def _policies(server: Server) -> Iterator[tuple[int, Policy]]:
    for name, file in server.directories.get("policy", {}).items():
        if file is not None:
            yield int(name), _policy(file.data)


class SignedTurn(msgspec.Struct, frozen=True, gc=False):
    """What a shard signed at once."""

    head: BatchHead
    entries: tuple[WitnessEntry, ...]


class Record:
    """All logs, and all that shards signed."""

    def __init__(self, server: Server, policy: Policy, blocks: list[bytes]) -> None:
        """``blocks``: those of the ledger, in the order in which they were signed."""
        self.server = server
        self._blocks = blocks
        names = sorted(name for name in server.directories.get("logs", {}) if server.find(f"logs/{name}/log"))
        self.policies = dict(_policies(server))
        self.logs = {name: LogRecord(server, name, self.policies) for name in names}
        self.policy = policy

    @cached_property
    def turns(self) -> list[SignedTurn]:
        """Every turn that was signed, whether or not it reached the mount, in order."""
        blocks = [open_block(pieces(data)[0][0], "a block") for data in self._blocks]
        return [SignedTurn(block.batch_head("a block"), tuple(block.decoded("a block"))) for block in blocks]

    @cached_property
    def ceilings(self) -> dict[bytes, CeilingRecord]:
        """Every ceiling record of which a turn has a copy, by its bytes, in order."""
        return {
            entry.record: open_ceiling(entry.record, "a ceiling")[0]
            for turn in self.turns
            for entry in turn.entries
            if type(entry) is CeilingCopy
        }
