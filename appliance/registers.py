"""Numbered immutable records on the mount: policy, trust, shard map, ceiling chains; and the ledger files beside them.

The newest record is the highest number in its directory, opened afresh; a record is published with link(2) under the
next number, and the first to link it wins. Policy, trust and map are signed by the cluster root key; a record that is
not is an error, never ignored: a cluster must not fall back to an older policy because the newest is damaged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from timeagent.canonical import decode
from timeagent.errors import Damaged, Environment, NotTrusted
from timeagent.trust import Keyring, TrustRecord

from .bag.records import RecordNumbers
from .bag.storage import Published
from .formats.framing import Kind
from .formats.paths import ledger_path, parse_record_name, record_name
from .formats.policy import Policy, check_policy
from .formats.shardmap import ShardMap
from .formats.stamped import open_signed, sign

if TYPE_CHECKING:
    from timeagent.keys import Signer, Verifier

    from .bag.storage import Storage

DIRECTORIES = {Kind.POLICY: "policy", Kind.TRUST: "trust", Kind.MAP: "map"}
TMP = "tmp"
_RESTORE = "restore it from a copy of the tree: a numbered record never changes"


class Registers:
    """The records of one cluster, read and verified; what has been read is immutable and kept."""

    def __init__(self, storage: Storage, cluster_id: bytes, root_key: Verifier) -> None:
        """Take the pinned root key. Reads nothing yet."""
        self.cluster_id = cluster_id
        self._storage = storage
        self._root_key = root_key
        self._policies: dict[int, Policy] = {}
        self._trust: dict[int, TrustRecord] = {}
        self._keyrings: dict[int, Keyring] = {}
        self._maps: dict[int, ShardMap] = {}

    def newest(self) -> RecordNumbers:
        """Return the newest trust and policy numbers; both directories are opened afresh. Touches the mount."""
        return RecordNumbers(trust=self._newest(Kind.TRUST), policy=self._newest(Kind.POLICY))

    def policy(self, number: int) -> Policy:
        """Return a policy. Raises Damaged, NotTrusted, BadConfiguration. Touches the mount once per number."""
        if number not in self._policies:
            self._policies[number] = check_policy(self._read(Kind.POLICY, number, Policy))
        return self._policies[number]

    def newest_policy(self) -> Policy:
        """Return the newest policy."""
        return self.policy(self._newest(Kind.POLICY))

    def trust(self, number: int) -> TrustRecord:
        """Return a trust record. Raises Damaged, NotTrusted. Touches the mount once per number."""
        if number not in self._trust:
            self._trust[number] = self._read(Kind.TRUST, number, TrustRecord)
        return self._trust[number]

    def keyring(self, number: int) -> Keyring:
        """Return the keys of a trust record."""
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

    def layouts(self, newest: ShardMap) -> list[ShardMap]:
        """Return the maps that have chains of their own, in order, up to a map.

        A map with as many shards as the one before says who should own them and goes on with its chains; one with
        another number of shards begins chains of its own. Raises Damaged, NotTrusted. Touches the mount once per map.
        """
        maps = [self.map(number) for number in range(1, newest.number)] + [newest]
        return [
            each
            for before, each in zip([None, *maps], maps, strict=False)
            if before is None or len(before.owners) != len(each.owners)
        ]

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
        """Return the highest number of a register, its directory opened afresh, or None. Touches the mount."""
        names = self._storage.list_afresh(DIRECTORIES[kind])
        return max(filter(None, map(parse_record_name, names or ())), default=None)

    def _newest(self, kind: Kind) -> int:
        number = self.newest_number(kind)
        if number is None:
            raise Damaged(
                "no-record",
                f"{DIRECTORIES[kind]}/ holds no record",
                hint="this root was not set up to its end: run leasehold init on an empty directory",
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
            raise Damaged(problem.code, problem.message, hint=_RESTORE) from None
        if not signed.verified_by(kind, self._root_key):
            raise NotTrusted(
                "record-not-trusted",
                f"{path} is not signed by this cluster's root key",
                hint="compare the root key's fingerprint with the cluster's: this may be another cluster's file",
            )
        if record.number != number or record.cluster_id != self.cluster_id:
            raise NotTrusted(
                "record-misplaced",
                f"{path} says that it is number {record.number} of cluster {record.cluster_id.hex()}",
                hint=_RESTORE,
            )
        return record


class StoredChain:
    """One ceiling chain on the mount (the lease shard's ChainPort)."""

    def __init__(self, storage: Storage, path: str) -> None:
        """Take the chain's directory. Touches nothing yet."""
        self._storage = storage
        self._path = path

    def list_afresh(self) -> list[int]:
        """Return the numbers that are there, in order; the directory is opened afresh. Touches the mount."""
        names = self._storage.list_afresh(self._path)
        return sorted(filter(None, map(parse_record_name, names or ())))

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

    def append(self, data: bytes) -> None:
        """Append whole blocks. Touches the mount.

        Raises what the mount says. Then these blocks may be in the file or not, whole or torn, and what followed a torn
        one would be hidden behind it: whatever is appended next, also the same blocks again, begins a new file.
        """
        if self._size and self._size + len(data) > LEDGER_FILE_BYTES_MAX:
            self._next()
        path = ledger_path(*self._run, self._number)
        try:
            if not self._size:
                self._storage.ensure_directory(path.rpartition("/")[0])
            self._size = self._storage.append(path, data, self._size)
        except BaseException:
            self._next()
            raise

    def _next(self) -> None:
        self._number += 1
        self._size = 0
