"""Numbered immutable records on the mount: policy, trust, shard map, ceiling chains; and the ledger files beside them.

The newest record is the highest number in its directory, opened afresh; a record is published with link(2) under the
next number, and the first to link it wins. Policy, trust and map are signed by the cluster root key; a record that is
not is an error, never ignored: a cluster must not fall back to an older policy because the newest is damaged.

But numbers have no gaps. What has a number behind a gap and is no such record, nobody published: it counts for nobody,
and whoever finds it logs it once. What is a record counts, gap or not: then those before it are missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from timeagent.canonical import decode
from timeagent.errors import Damaged, Environment, NotTrusted
from timeagent.keys import Signer, Verifier
from timeagent.trust import Keyring, TrustRecord

from ..bag.ports import SIZE_NOT_EXPECTED, Published, RecordNumbers, Storage
from ..formats.chains import open_ceiling
from ..formats.framing import Kind
from ..formats.paths import ledger_path, parse_ledger_name, parse_record_name, record_name
from ..formats.policy import Policy, check_policy
from ..formats.shardmap import ShardMap
from ..formats.stamped import open_signed, sign

DIRECTORIES = {Kind.POLICY: "policy", Kind.TRUST: "trust", Kind.MAP: "map"}
TMP = "tmp"
_log = logging.getLogger(__name__)
_RESTORE = "restore it from a copy of the tree: a numbered record never changes"
_RESTORE_OR_DELETE = f"if this cluster published it, {_RESTORE}; if nobody did, delete it"


class Registers:
    """The records of one cluster, read and verified; what has been read is immutable and kept. Thread-safe."""

    def __init__(self, storage: Storage, cluster_id: bytes, root_key: Verifier) -> None:
        self.cluster_id = cluster_id
        self._storage = storage
        self._root_key = root_key
        self._policies: dict[int, Policy] = {}
        self._trust: dict[int, TrustRecord] = {}
        self._keyrings: dict[int, Keyring] = {}
        self._maps: dict[int, ShardMap] = {}
        self._junk: dict[Kind, set[int]] = {}
        self._seen: dict[Kind, int] = {}
        """The newest number that was seen of each kind, unless the last look failed."""
        self.known: RecordNumbers | None = None
        """Those of trust and policy, if both are."""

    @property
    def looks_cost(self) -> bool:
        """Whether each look for a newer record is paid for."""
        return self._storage.listing_pause_ns > 0

    def newest(self) -> RecordNumbers:
        """Return the newest trust and policy numbers; both directories are opened afresh. Touches the mount."""
        return RecordNumbers(trust=self._newest(Kind.TRUST), policy=self._newest(Kind.POLICY))

    def policy(self, number: int) -> Policy:
        """Return a policy. Raises Damaged, NotTrusted, BadConfiguration. Touches the mount once per number."""
        if number not in self._policies:
            self._policies[number] = check_policy(self._read(Kind.POLICY, number, Policy))
        return self._policies[number]

    def newest_policy(self) -> Policy:
        """Return the newest policy. Raises Damaged, NotTrusted, BadConfiguration. Touches the mount."""
        return self.policy(self._newest(Kind.POLICY))

    def trust(self, number: int) -> TrustRecord:
        """Return a trust record. Raises Damaged, NotTrusted. Touches the mount once per number."""
        if number not in self._trust:
            self._trust[number] = self._read(Kind.TRUST, number, TrustRecord)
        return self._trust[number]

    def newest_trust(self) -> TrustRecord:
        """Return the newest trust record. Raises Damaged, NotTrusted. Touches the mount."""
        return self.trust(self._newest(Kind.TRUST))

    def keyring(self, number: int) -> Keyring:
        if number not in self._keyrings:
            self._keyrings[number] = Keyring(self.trust(number).keys)
        return self._keyrings[number]

    def newest_map(self) -> ShardMap:
        """Return the newest shard map. Raises Damaged, NotTrusted. Touches the mount."""
        return self.map(self._newest(Kind.MAP))

    def map(self, number: int) -> ShardMap:
        """Return a shard map. Raises Damaged, NotTrusted. Touches the mount once per number."""
        if number not in self._maps:
            self._maps[number] = self._read(Kind.MAP, number, ShardMap)
        return self._maps[number]

    def predecessors(self, chain: int) -> list[int]:
        """Return the shards after which those begin whose chains are of a map: what that map has no more.

        Raises Damaged, NotTrusted. Touches the mount once per map.
        """
        after = self.map(chain).layout.shards
        return [] if chain == 1 else [each for each in self.map(chain - 1).layout.shards if each not in after]

    def publish(self, kind: Kind, record: Policy | TrustRecord | ShardMap, signer: Signer) -> bool:
        """Link a record under its own number; False if somebody else's is there already. Touches the mount."""
        assert record.cluster_id == self.cluster_id
        assert signer.id == self._root_key.id, "records are signed by the cluster root key"
        directory = DIRECTORIES[kind]
        self._storage.ensure_directory(directory)
        self._storage.ensure_directory(TMP)
        path = f"{directory}/{record_name(record.number)}"
        return self._storage.publish(path, sign(kind, record, signer), TMP) is Published.WON

    def newest_number(self, kind: Kind) -> int | None:
        """Return the highest number of a register, its directory opened afresh, or None. Touches the mount.

        Where listings cost, the number after the newest that was seen is looked for first: each follows the one before.
        """
        seen = self._seen.get(kind)
        try:
            if seen is not None and self.looks_cost:
                following = f"{DIRECTORIES[kind]}/{record_name(seen + 1)}"
                if self._storage.size_of(following) is None:
                    return seen
            names = self._storage.list_afresh(DIRECTORIES[kind])
        except BaseException:
            self._seen.pop(kind, None)
            self._know()
            raise
        junk = self._junk.setdefault(kind, set())
        numbers = sorted({number for name in names or () if (number := parse_record_name(name))} - junk)
        junk |= _drop_junk(numbers, lambda number: self._is_record(kind, number))
        if numbers:
            self._seen[kind] = max(numbers[-1], self._seen.get(kind, 0))
            self._know()
        return numbers[-1] if numbers else None

    def _know(self) -> None:
        trust, policy = self._seen.get(Kind.TRUST), self._seen.get(Kind.POLICY)
        self.known = None if trust is None or policy is None else RecordNumbers(trust=trust, policy=policy)

    def _is_record(self, kind: Kind, number: int) -> bool:
        """Whether a number is a record of this cluster. Touches the mount."""
        try:
            read: dict[Kind, Callable[[int], object]] = {
                Kind.POLICY: self.policy,
                Kind.TRUST: self.trust,
                Kind.MAP: self.map,
            }
            read[kind](number)
        except (Damaged, NotTrusted) as problem:
            _log.warning("record-of-nobody code=%s reason=%s hint=delete it", problem.code, problem.message)
            return False
        return True

    def _newest(self, kind: Kind) -> int:
        number = self.newest_number(kind)
        if number is None:
            raise Damaged(
                "no-record",
                f"{DIRECTORIES[kind]}/ holds no record",
                hint="this root was not set up to its end: run tenure init on an empty directory",
            )
        return number

    def _read[R: (Policy, TrustRecord, ShardMap)](self, kind: Kind, number: int, form: type[R]) -> R:
        path = f"{DIRECTORIES[kind]}/{record_name(number)}"
        data = self._storage.read(path)
        if data is None:
            raise Damaged("no-record", f"{path} is missing", hint=_RESTORE)
        return self._opened(kind, number, form, data, path)

    def _opened[R: (Policy, TrustRecord, ShardMap)](
        self, kind: Kind, number: int, form: type[R], data: bytes, path: str
    ) -> R:
        try:
            signed = open_signed(kind, data, path)
            record = decode(form, signed.body, path)
        except Damaged as problem:
            raise Damaged(problem.code, problem.message, hint=_RESTORE_OR_DELETE) from None
        if not signed.verified_by(kind, self._root_key):
            raise NotTrusted(
                "record-not-trusted",
                f"{path} is not signed by this cluster's root key",
                hint="it may be another cluster's file: compare the fingerprints of the root keys; if so, delete it",
            )
        if record.number != number or record.cluster_id != self.cluster_id:
            raise NotTrusted(
                "record-misplaced",
                f"{path} says that it is number {record.number} of cluster {record.cluster_id.hex()}",
                hint=_RESTORE_OR_DELETE,
            )
        return record


def _drop_junk(numbers: list[int], is_record: Callable[[int], bool]) -> set[int]:
    """Take from the end of ordered numbers what stands behind a gap and is no record; return what was taken."""
    junk = set()
    while numbers and numbers[-1] - 1 != (numbers[-2] if len(numbers) > 1 else 0) and not is_record(numbers[-1]):
        junk.add(numbers.pop())
    return junk


def _ceiling_number(data: bytes, where: str) -> int:
    return open_ceiling(data, where)[0].number


class StoredChain:
    """One chain of numbered records on the mount (a ChainPort): ceilings, or epochs."""

    def __init__(self, storage: Storage, path: str, number_of: Callable[[bytes, str], int] = _ceiling_number) -> None:
        """Take the chain's directory. Touches nothing yet. ``number_of``: which a record says; raises Damaged."""
        self._storage = storage
        self._path = path
        self._number_of = number_of
        self._junk: set[int] = set()

    def list_afresh(self) -> list[int]:
        """Return the numbers that are there, in order; the directory is opened afresh. Touches the mount.

        The newest records of a chain are never pruned, so that none of them stands behind a gap.
        """
        names = self._storage.list_afresh(self._path)
        numbers = sorted({number for name in names or () if (number := parse_record_name(name))} - self._junk)
        self._junk |= _drop_junk(numbers, self._is_record)
        return numbers

    def _is_record(self, number: int) -> bool:
        """Whether a file is a record of its number, whoever signed it: it was linked whole, or never."""
        path = f"{self._path}/{record_name(number)}"
        data = self._storage.read(path)
        try:
            if data is None or self._number_of(data, path) == number:
                return True  # one that is gone by now was there when it was listed
        except Damaged as problem:
            _log.warning("record-of-nobody code=%s reason=%s hint=delete it", problem.code, problem.message)
        return False

    def read(self, number: int) -> bytes | None:
        """Return a record's bytes, or None where there is none. Touches the mount."""
        return self._storage.read(f"{self._path}/{record_name(number)}")

    def link(self, number: int, data: bytes) -> bool:
        """Link a record: True if ours is there now, False if another's is. Touches the mount.

        Raises Environment when it is neither: the directory, or the file prepared for it, went away meanwhile.
        """
        self._storage.ensure_directory(self._path)
        self._storage.ensure_directory(TMP)
        published = self._storage.publish(f"{self._path}/{record_name(number)}", data, TMP)
        if published is Published.ABSENT:
            raise Environment(
                "path-absent",
                f"{self._path} or {TMP} went away while a record was linked",
                hint="see who deletes there",
            )
        return published is Published.WON

    def unlink(self, number: int) -> None:
        """Remove a pruned record. Touches the mount."""
        self._storage.unlink(f"{self._path}/{record_name(number)}")


LEDGER_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A ledger file is not appended to beyond this: the run goes on in its next one."""


class StoredLedger:
    """The ledger files of one run of a shard (the lease shard's LedgerSink): appended by their only writer."""

    def __init__(self, storage: Storage, map_number: int, shard: int, incarnation: bytes) -> None:
        """Name the run. Touches nothing yet."""
        self._storage = storage
        self._run = (map_number, shard, incarnation)
        self._number = 1
        self._size = 0

    @property
    def end(self) -> tuple[int, int]:
        """Where what was appended ends: the number of the file, and its size."""
        return self._number, self._size

    def resume(self, number: int, size: int, block_bytes: int) -> bytes | None:
        """Go on in a new file behind the end of a run that stopped for a restart; return the last block there.

        None: it does not end there. Touches the mount.
        """
        path = ledger_path(*self._run, number)
        names = self._storage.list_afresh(path.rpartition("/")[0]) or ()
        own = [each[1] for name in names if (each := parse_ledger_name(name)) and each[0] == self._run[2]]
        if max(own, default=0) != number or self._storage.size_of(path) != size or block_bytes > size:
            return None
        self._number, self._size = number + 1, 0
        return self._storage.read_from(path, size - block_bytes, block_bytes)

    def follow(self) -> None:
        """Go on in a new file behind all that a run has left which did not stop. Touches the mount."""
        directory = ledger_path(*self._run, 1).rpartition("/")[0]
        names = self._storage.list_afresh(directory) or ()
        own = [each[1] for name in names if (each := parse_ledger_name(name)) and each[0] == self._run[2]]
        self._number, self._size = max(own, default=0) + 1, 0

    def append(self, data: bytes) -> None:
        """Append whole blocks. Touches the mount.

        Raises what the mount says. Then these blocks may be in the file or not, whole or torn, and what followed a torn
        one would be hidden behind it: whatever is appended next, also the same blocks again, begins a new file.
        """
        if self._size and self._size + len(data) > LEDGER_FILE_BYTES_MAX:
            self._next()
        begun = self._size > 0
        try:
            self._append(data)
        except BaseException as problem:
            self._next()
            if not (begun and isinstance(problem, Environment) and problem.code == SIZE_NOT_EXPECTED):
                raise
            self.append(data)  # an object store appends to nothing that is there

    def _append(self, data: bytes) -> None:
        path = ledger_path(*self._run, self._number)
        if not self._size:
            self._storage.ensure_directory(path.rpartition("/")[0])
        self._size = self._storage.append(path, data, self._size)

    def _next(self) -> None:
        self._number += 1
        self._size = 0
