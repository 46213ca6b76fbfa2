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
from functools import partial
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


def check_ceiling(data: bytes, where: str, number: int) -> None:
    """Raise Damaged unless these bytes are a ceiling record of this number, whoever signed it."""
    said = open_ceiling(data, where)[0].number
    if said != number:
        raise Damaged("record-misplaced", f"{where} says that it is number {said}")


type CheckRecord = Callable[[bytes, str, int], object]
"""Raise Damaged or NotTrusted unless these bytes, of a file, are a record of a number."""


class StoredChain:
    """One chain of numbered records on the mount (a ChainPort): a register, ceilings, or epochs."""

    def __init__(self, storage: Storage, path: str, check: CheckRecord = check_ceiling) -> None:
        """Take the chain's directory. Touches nothing yet."""
        self._storage = storage
        self._path = path
        self._check = check
        self._junk: set[int] = set()
        """Numbers under which is what nobody published, as of the last listing: each was logged."""

    def path_of(self, number: int) -> str:
        """Return where a record is."""
        return f"{self._path}/{record_name(number)}"

    def list_afresh(self) -> list[int]:
        """Return the numbers that are there, in order; the directory is opened afresh. Touches the mount.

        The newest records of a chain are never pruned, so that none of them stands behind a gap.
        """
        names = self._storage.list_afresh(self._path)
        there = {number for name in names or () if (number := parse_record_name(name))}
        # One that was deleted, as the log says, may have been published since.
        self._junk = {number for number in self._junk & there if self._refused(number) is not None}
        numbers = sorted(there - self._junk)
        while numbers and numbers[-1] - 1 != (numbers[-2] if len(numbers) > 1 else 0):
            problem = self._refused(numbers[-1])
            if problem is None:
                break
            _log.warning("record-of-nobody code=%s reason=%s hint=delete it", problem.code, problem.message)
            self._junk.add(numbers.pop())
        return numbers

    def _refused(self, number: int) -> Damaged | NotTrusted | None:
        """Return why a number that was listed is no record: a record was linked whole, or never. Touches the mount."""
        data = self.read(number)
        try:
            if data is not None:  # one that is gone by now was there when it was listed
                self._check(data, self.path_of(number), number)
        except (Damaged, NotTrusted) as problem:
            return problem
        return None

    def read(self, number: int) -> bytes | None:
        """Return a record's bytes, or None where there is none. Touches the mount."""
        return self._storage.read(self.path_of(number))

    def link(self, number: int, data: bytes) -> bool:
        """Link a record: True if ours is there now, False if another's is. Touches the mount.

        Raises Environment when it is neither: the directory, or the file prepared for it, went away meanwhile.
        """
        self._storage.ensure_directory(self._path)
        self._storage.ensure_directory(TMP)
        published = self._storage.publish(self.path_of(number), data, TMP)
        if published is Published.ABSENT:
            raise Environment(
                "path-absent",
                f"{self._path} or {TMP} went away while a record was linked",
                hint="see who deletes there",
            )
        return published is Published.WON

    def unlink(self, number: int) -> None:
        """Remove a pruned record. Touches the mount."""
        self._storage.unlink(self.path_of(number))


type RegisterRecord = Policy | TrustRecord | ShardMap

_FORMS: Final[dict[Kind, type[RegisterRecord]]] = {Kind.POLICY: Policy, Kind.TRUST: TrustRecord, Kind.MAP: ShardMap}


class Registers:
    """The records of one cluster, read and verified; what has been read is immutable and kept. Thread-safe."""

    def __init__(self, storage: Storage, cluster_id: bytes, root_key: Verifier) -> None:
        self.cluster_id = cluster_id
        self._storage = storage
        self._root_key = root_key
        self._chains = {
            kind: StoredChain(storage, directory, partial(self._opened, kind))
            for kind, directory in DIRECTORIES.items()
        }
        self._read: dict[tuple[Kind, int], RegisterRecord] = {}
        self._keyrings: dict[int, Keyring] = {}
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
        return self._record(Kind.POLICY, number, Policy)

    def newest_policy(self) -> Policy:
        """Return the newest policy. Raises Damaged, NotTrusted, BadConfiguration. Touches the mount."""
        return self.policy(self._newest(Kind.POLICY))

    def trust(self, number: int) -> TrustRecord:
        """Return a trust record. Raises Damaged, NotTrusted. Touches the mount once per number."""
        return self._record(Kind.TRUST, number, TrustRecord)

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
        return self._record(Kind.MAP, number, ShardMap)

    def predecessors(self, chain: int) -> list[int]:
        """Return the shards after which those begin whose chains are of a map: what that map has no more.

        Raises Damaged, NotTrusted. Touches the mount once per map.
        """
        after = self.map(chain).layout.shards
        return [] if chain == 1 else [each for each in self.map(chain - 1).layout.shards if each not in after]

    def publish(self, kind: Kind, record: RegisterRecord, signer: Signer) -> bool:
        """Link a record under its own number; False if somebody else's is there already. Touches the mount."""
        assert record.cluster_id == self.cluster_id
        assert signer.id == self._root_key.id, "records are signed by the cluster root key"
        return self._chains[kind].link(record.number, sign(kind, record, signer))

    def newest_number(self, kind: Kind) -> int | None:
        """Return the highest number of a register, its directory opened afresh, or None. Touches the mount.

        Where listings cost, the number after the newest that was seen is looked for first: each follows the one before.
        """
        chain, seen = self._chains[kind], self._seen.get(kind)
        try:
            if seen is not None and self.looks_cost and self._storage.size_of(chain.path_of(seen + 1)) is None:
                return seen
            numbers = chain.list_afresh()
        except BaseException:
            self._seen.pop(kind, None)
            self._know()
            raise
        if numbers:
            self._seen[kind] = max(numbers[-1], self._seen.get(kind, 0))
            self._know()
        return numbers[-1] if numbers else None

    def _know(self) -> None:
        trust, policy = self._seen.get(Kind.TRUST), self._seen.get(Kind.POLICY)
        self.known = None if trust is None or policy is None else RecordNumbers(trust=trust, policy=policy)

    def _newest(self, kind: Kind) -> int:
        number = self.newest_number(kind)
        if number is None:
            raise Damaged(
                "no-record",
                f"{DIRECTORIES[kind]}/ holds no record",
                hint="this root was not set up to its end: run tenure init on an empty directory",
            )
        return number

    def _record[R: (Policy, TrustRecord, ShardMap)](self, kind: Kind, number: int, form: type[R]) -> R:
        record = self._read.get((kind, number))
        if record is None:
            data, path = self._chains[kind].read(number), self._chains[kind].path_of(number)
            if data is None:
                raise Damaged("no-record", f"{path} is missing", hint=_RESTORE)
            record = self._read[kind, number] = self._opened(kind, data, path, number)
        assert isinstance(record, form)
        return record

    def _opened(self, kind: Kind, data: bytes, path: str, number: int) -> RegisterRecord:
        try:
            signed = open_signed(kind, data, path)
            record = decode(_FORMS[kind], signed.body, path)
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
        return check_policy(record) if isinstance(record, Policy) else record


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
        if self._last() != number or self._storage.size_of(path) != size or block_bytes > size:
            return None
        self._number, self._size = number + 1, 0
        return self._storage.read_from(path, size - block_bytes, block_bytes)

    def follow(self) -> None:
        """Go on in a new file behind all that a run has left which did not stop. Touches the mount."""
        self._number, self._size = self._last() + 1, 0

    def _last(self) -> int:
        names = self._storage.list_afresh(ledger_path(*self._run, 1).rpartition("/")[0]) or ()
        own = [each[1] for name in names if (each := parse_ledger_name(name)) and each[0] == self._run[2]]
        return max(own, default=0)

    def append(self, data: bytes) -> None:
        """Append whole blocks. Touches the mount.

        Raises what the mount says. Then these blocks may be in the file or not, whole or torn, and what followed a torn
        one would be hidden behind it: whatever is appended next, also the same blocks again, begins a new file.
        """
        if self._size and self._size + len(data) > LEDGER_FILE_BYTES_MAX:
            self._next()
        begun, path = self._size > 0, ledger_path(*self._run, self._number)
        try:
            if not begun:
                self._storage.ensure_directory(path.rpartition("/")[0])
            self._size = self._storage.append(path, data, self._size)
        except BaseException as problem:
            self._next()
            if not (begun and isinstance(problem, Environment) and problem.code == SIZE_NOT_EXPECTED):
                raise
            self.append(data)  # an object store appends to nothing that is there

    def _next(self) -> None:
        self._number += 1
        self._size = 0
