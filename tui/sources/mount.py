"""Reads the mount: records, ceiling chains, ledgers and bags. Blocks as long as the mount does.

Works on a mount in use and on a copy, with and without this node's settings. Writes nothing, by construction: all that
it calls is given a storage that cannot write, and a time that cannot sign.

What ledgers say is not verified: that is the auditor's work. A ledger grows for as long as its shard runs, so it is
read from near its end and then only what is new.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from appliance.admin.membership import read_marker
from appliance.bag.horizon import Horizon
from appliance.bag.logs import ClosingState, list_logs, open_log, racks_there, view_rack
from appliance.bag.ports import BagContext, Storage
from appliance.bag.roots import cluster_storage_at
from appliance.cli.service import key_ends
from appliance.cluster import Cluster, known_nodes, time_sources
from appliance.doctor.file_system import room_of
from appliance.doctor.health import CheckVerdict, HealthCheck, judge_keys, judge_space, judge_tmpfs
from appliance.formats.chains import CeilingRecord, open_ceiling
from appliance.formats.framing import Kind, Piece, pack, piece_at, pieces
from appliance.formats.lease import LeaseOutcome
from appliance.formats.paths import LOCK, LOGS, Grid, chain_path, ledger_path, parse_ledger_name
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap, chain_of, shard_number, shard_text
from appliance.formats.witness import Ended, Stopped, Witness, open_block
from appliance.node.own_keys import NOTICE_NS
from appliance.node.records import Registers, StoredChain
from appliance.node.runtime import runtime_of
from appliance.node.settings import FILE as SETTINGS_FILE
from auditor.evidence.opening import find_root
from timeagent.agent.bounded_clock import EmbeddedTime
from timeagent.clock import MachineClock
from timeagent.errors import BadConfiguration, BadTime, Damaged, Environment, NotTrusted, TenureError
from timeagent.keys import NoKey, Verifier
from timeagent.units import DAY, Instant

from ..model.state import BagCell, LogView, newest_bags

FIRST_READ_BYTES: Final = 4 * 1024 * 1024
"""How much of a ledger's end is read at first: leases are renewed, so live ones are mentioned there again."""

READ_BYTES_MAX: Final = 4 * 1024 * 1024
DOMAINS_MAX: Final = 20_000
_MAGIC: Final = pack(Kind.LEDGER, b"")[:4]


@dataclass(frozen=True, slots=True)
class LedgerLease:
    """The newest that a ledger says about one domain."""

    witness: Witness
    shard: int
    incarnation: bytes
    signed_ns: Instant
    """When the shard said so, by its own clock."""
    ended: LeaseOutcome | None = None
    """How that lease ended, if the ledger says that it did."""


@dataclass(frozen=True, slots=True)
class LedgersTell:
    leases: tuple[LedgerLease, ...]
    """The last known lease of each domain that is not known to have ended."""
    fences: dict[str, int]
    """The newest fence of each domain, ended or not."""
    previous: dict[bytes, LeaseOutcome]
    """How the lease before each known grant ended, by the grant's correlation id."""


class LedgerBook:
    """The newest of each domain, from all ledgers that were read. One thread."""

    def __init__(self) -> None:
        self._domains: OrderedDict[str, LedgerLease] = OrderedDict()
        self._previous: OrderedDict[bytes, LeaseOutcome] = OrderedDict()
        self._granting: set[bytes] = set()
        """The runs that granted something since they stopped last: others have nothing here."""
        self._told: LedgersTell | None = None

    def told(self) -> LedgersTell:
        """Return what they say. The very same value until there is another block: rows are made from it."""
        if self._told is None:
            self._told = LedgersTell(
                tuple(known for known in self._domains.values() if known.ended is None),
                {domain: known.witness.fence for domain, known in self._domains.items()},
                dict(self._previous),
            )
        return self._told

    def take(self, piece: Piece, where: str) -> None:
        """Take in one block. Raises Damaged."""
        self._told = None
        block = open_block(piece, where)
        head = block.batch_head(where)
        signed_ns, shard = head.signed_time(where).midpoint_ns, shard_number(head.map_number, head.shard)
        for entry in block.decoded(where):
            match entry:
                case Witness():
                    self._grant(LedgerLease(entry, shard, head.incarnation, signed_ns))
                case Ended():
                    known = self._domains.get(entry.domain)
                    if known is not None and known.witness.correlation_id == entry.ending.correlation_id:
                        self._domains[entry.domain] = replace(known, ended=entry.ending.outcome)
                case Stopped() if head.incarnation in self._granting:  # in order: it waited until nothing was out
                    self._granting.remove(head.incarnation)
                    for domain in [d for d, known in self._domains.items() if known.incarnation == head.incarnation]:
                        del self._domains[domain]
                case _:
                    pass

    def _grant(self, new: LedgerLease) -> None:
        witness, known = new.witness, self._domains.get(new.witness.domain)
        if known is not None and (known.witness.fence, known.witness.expiry_ns) > (witness.fence, witness.expiry_ns):
            return
        self._granting.add(new.incarnation)
        _put(self._domains, witness.domain, new)
        if witness.last_ended is not None:
            _put(self._previous, witness.correlation_id, witness.last_ended.outcome)


def _put[K, V](kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > DOMAINS_MAX:
        kept.popitem(last=False)


class LedgerTail:
    """One ledger file, read from near its end and then onwards. One thread."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset: int | None = None
        self._stuck_at: int | None = None
        """The size at which nothing whole began at the offset: worth trying again when the file has grown."""

    def read(self, book: LedgerBook) -> int | None:
        """Take in what is new; return the file's size, None if there is no file. Raises Environment."""
        try:
            # Touches the mount: opened, read, closed. A copy may hold anything under this name.
            if not self._file.is_file():
                return None
            with self._file.open("rb", buffering=0) as file:
                size = file.seek(0, 2)
                first = self._offset is None
                start = max(0, size - FIRST_READ_BYTES) if self._offset is None else self._offset
                if start >= size or size == self._stuck_at:
                    self._offset = start
                    return size
                file.seek(start)
                data = file.read(min(READ_BYTES_MAX, size - start))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise Environment("ledger-unreadable", f"cannot read {self._file}: {problem.strerror}") from None
        begin = _synchronised(data) if first and start else 0
        found, _ = pieces(data[begin:])
        for piece in found:
            if piece.kind is Kind.LEDGER:
                with contextlib.suppress(Damaged):  # the auditor's business; what stands beside it counts
                    book.take(piece, f"{self._file}, block at {begin + piece.offset} of what was read")
        taken = found[-1].end if found else 0
        self._offset = start + begin + taken
        self._stuck_at = None if taken else size
        return size


TRIES_MAX: Final = 64
"""In so many places: each may cost a digest of all behind it, and no ledger has as many that begin no block."""


def _synchronised(data: bytes) -> int:
    """Return where the first whole block begins in bytes that begin anywhere; their end if none is found.

    Not where a ceiling record does: a block holds copies of those.
    """
    offset = data.find(_MAGIC)
    for _ in range(TRIES_MAX):
        if offset < 0:
            break
        piece = piece_at(data, offset)
        if isinstance(piece, Piece) and piece.kind is Kind.LEDGER:
            return offset
        offset = data.find(_MAGIC, offset + 1)
    return len(data)


_KEPT_MAX: Final = 8_192


class WatchingStorage:
    """A Storage whose writing verbs are refused. Listings of closed bags, which cannot change, are kept."""

    def __init__(self, inner: Storage) -> None:
        self._list_afresh, self.listing_pause_ns = inner.list_afresh, inner.listing_pause_ns
        self._closed: dict[str, list[str]] = {}
        self.look, self.size_of = inner.look, inner.size_of
        self.read, self.read_each, self.read_from = inner.read, inner.read_each, inner.read_from

    def list_afresh(self, directory: str) -> list[str] | None:
        """Open the directory afresh and return its names; those of a bag that was seen closed, without asking."""
        kept = self._closed.get(directory)
        if kept is not None:
            return kept
        names = self._list_afresh(directory)
        if names and LOCK in names and directory.startswith(f"{LOGS}/"):
            if len(self._closed) >= _KEPT_MAX:
                self._closed.clear()
            self._closed[directory] = names
        return names

    def _refuse(self, *what: object, **_named: object) -> NoReturn:
        raise Environment(
            "read-only", f"{what[0]}: whoever only looks does not write there", hint="leave that to a node"
        )

    ensure_directory = ensure_marker = publish = publish_stream = append = _refuse
    unlink = remove_directory = server_clock = _refuse


BAGS_SHOWN: Final = 240
"""How many bags of a log are kept for the screen, the newest."""

RACKS_SHOWN: Final = 3
MACHINES: Final = "machines"
"""Where a demo keeps what would be each machine's own disk, beside the root."""

_CHAIN_LOOK_BACK: Final = 64
_RUNS_READ: Final = 2
_LEDGERS_READ: Final = 2
"""So many files of a run are looked at: what is out is mentioned in the newest."""


@dataclass(frozen=True, slots=True)
class MountLocation:
    path: Path
    """A root, a copy of one, or the directory that holds either."""
    node_dir: Path | None = None
    allow_root: bool = False
    needs_node: bool = False
    """Whether it is an error that this machine has no node settings."""


@dataclass(frozen=True, slots=True)
class ChainEnd:
    record: CeilingRecord
    ledger_bytes: int | None


@dataclass(frozen=True, slots=True)
class MountAnswer:
    root: Path
    cluster_id: bytes
    own_node: str
    offline: str
    policy: Policy
    shard_map: ShardMap
    nodes: tuple[str, ...]
    chains: dict[int, ChainEnd]
    ledgers: LedgersTell
    logs: tuple[LogView, ...]
    checks: tuple[HealthCheck, ...]
    """Of this node's keys, and of what room is left; none of a copy."""


class OpenMount:
    """A root that was found and opened: what is kept between one reading and the next. One thread."""

    def __init__(self, where: MountLocation, machine: MachineClock) -> None:
        """Find the root and, where this machine has node settings, open the cluster. Touches the mount.

        Raises Environment, Damaged, BadConfiguration (not a root); with a ``node_dir`` that was named, also why it
        cannot be used. Without one, that is only noted: the view is offline then.
        """
        self._where = where
        self.root = find_root(where.path.absolute())
        storage = WatchingStorage(cluster_storage_at(self.root))
        marker = read_marker(storage, self.root)
        self.cluster, self.offline = self._opened(storage)
        if self.cluster is not None:
            self.registers = self.cluster.registers
        else:
            self.registers = Registers(storage, marker.cluster_id, Verifier(marker.root_key))
        sources = time_sources(machine, self.registers.newest_policy())
        # Any radius is told: who only looks harms nobody.
        self.time = EmbeddedTime(machine, sources, NoKey(), radius_ns_max=DAY)
        self._own_node = self.cluster.settings.node if self.cluster else ""
        self._storage = storage
        self._context = BagContext(storage, self.time, self.registers, self._own_node or "watching")
        self._horizons: dict[str, tuple[Grid, Horizon]] = {}
        self._book = LedgerBook()
        self._tails: dict[str, LedgerTail] = {}
        self._runs: dict[int, tuple[bytes, list[bytes]]] = {}

    def _opened(self, storage: WatchingStorage) -> tuple[Cluster | None, str]:
        where = self._where
        beside = [*self.root.parent.glob(f"{MACHINES}/*/{SETTINGS_FILE}")]
        node_dir = where.node_dir or (min(beside).parent if beside else None)
        try:
            cluster = Cluster.open(self.root, node_dir=node_dir, allow_root=where.allow_root, storage=storage)
            with contextlib.ExitStack() as unfit:
                unfit.callback(cluster.close)  # it is opened anew with every look
                _ = cluster.routes  # this machine's tmpfs directory: local, and not to be raced for by several threads
                unfit.pop_all()
        except (BadConfiguration, NotTrusted) as problem:
            if where.node_dir is not None or where.needs_node:
                raise
            return None, problem.message + ("; with --allow-root it does" if problem.code == "root-user" else "")
        return cluster, ""

    def read(self) -> MountAnswer:
        """Read what has changed. Raises TenureError where the records cannot be read. Touches the mount."""
        shard_map = self.registers.newest_map()
        chains: dict[int, ChainEnd] = {}
        unread: list[HealthCheck] = []
        for shard in shard_map.shards:  # what cannot be read of one hides nothing of the others
            try:
                if (end := self._chain(shard)) is not None:
                    chains[shard] = end
            except (Damaged, Environment) as problem:
                name = f"record of shard {shard_text(shard)}"
                unread.append(HealthCheck(name, CheckVerdict.FAIL, problem.message, problem.hint))
        return MountAnswer(
            self.root,
            self.registers.cluster_id,
            self._own_node,
            self.offline,
            self.registers.newest_policy(),
            shard_map,
            tuple(known_nodes(self.registers)),
            chains,
            self._book.told(),
            tuple(self._log(name) for name in list_logs(self._context)),
            (*unread, *self._checks()),
        )

    def _checks(self) -> Iterator[HealthCheck]:
        if self.cluster is None:
            return
        cluster, now = self.cluster, 0
        refused: TenureError | None = None
        ends: dict[str, int | None] = {purpose: key.end_ns for purpose, key in cluster.keys.keys.items()}
        try:
            cluster.check_trusted_now()
            now, by = cluster.time.now().midpoint, cluster.time.token().key_id
            ends["time"] = cluster.watch_trust().keyring.end_ns(by)  # the agent's, where one runs
            ends |= key_ends(cluster.settings, self.registers.cluster_id)
        except BadTime:
            ends.clear()
        except TenureError as problem:
            refused = problem
        soon = {purpose: end for purpose, end in ends.items() if end and end - now <= NOTICE_NS}
        yield judge_keys(self._own_node, refused, soon)
        runtime = runtime_of(cluster.settings, self.registers.cluster_id)
        with contextlib.suppress(OSError):
            yield judge_tmpfs(runtime, room_of(runtime).bytes_left)
        with contextlib.suppress(OSError):
            yield from judge_space(room_of(self.root))

    # -- chains and ledgers --------------------------------------------------------------------------------------------

    def _chain(self, shard: int) -> ChainEnd | None:
        name = chain_of(shard)
        chain = StoredChain(self._storage, chain_path(*name))
        numbers = chain.list_afresh()
        newest = self._record(chain, numbers[-1]) if numbers else None
        if newest is None:
            return None
        if shard not in self._runs or self._runs[shard][0] != newest.incarnation:
            self._runs[shard] = (newest.incarnation, self._incarnations(chain, numbers))
        size = None
        names = self._storage.list_afresh(ledger_path(*name, bytes(8)).rpartition("/")[0]) or []
        files = sorted(each for name in names if (each := parse_ledger_name(name)) is not None)
        for incarnation in reversed(self._runs[shard][1]):
            size = None
            for file in [file for file in files if file[0] == incarnation][-_LEDGERS_READ:]:
                path = ledger_path(*name, *file)
                size = self._tails.setdefault(path, LedgerTail(self.root / path)).read(self._book)
        return ChainEnd(newest, size)

    def _incarnations(self, chain: StoredChain, numbers: list[int]) -> list[bytes]:
        """Return the newest runs of a chain, newest first: a lease of the run before can still be out."""
        found: list[bytes] = []
        for number in reversed(numbers[-_CHAIN_LOOK_BACK:]):
            record = self._record(chain, number)
            if record is not None and record.incarnation not in found:
                found.append(record.incarnation)
            if len(found) == _RUNS_READ:
                break
        return found

    @staticmethod
    def _record(chain: StoredChain, number: int) -> CeilingRecord | None:
        data = chain.read(number)
        return None if data is None else open_ceiling(data, f"ceiling record {number}")[0]

    # -- bags ----------------------------------------------------------------------------------------------------------

    def _log(self, name: str) -> LogView:
        try:
            if name not in self._horizons:
                birth = open_log(self._context, name)
                if birth is None:
                    return LogView(name, (), None, "it is gone")
                grid = Grid(birth)
                self._horizons[name] = (grid, Horizon(self._context, grid))
            grid, horizon = self._horizons[name]
            bags, reached_ns = self._bags(grid), horizon.reached
            with contextlib.suppress(TenureError):  # somebody is sealing: what was reached before stays true
                reached_ns = horizon.refresh()
            return LogView(name, bags, reached_ns, span_ns=grid.birth.span_ns)
        except TenureError as problem:
            return LogView(name, (), None, problem.message)

    def _bags(self, grid: Grid) -> tuple[BagCell, ...]:
        found: dict[Instant, BagCell] = {}
        for count, rack in enumerate(racks_there(self._context.storage, grid), 1):
            view = view_rack(self._context, grid, rack)
            sealed = view.state is ClosingState.SEALED
            for bag in view.bags:
                state = ClosingState.SEALED if sealed else bag.state
                found[bag.bag.start_ns] = BagCell(bag.bag.start_ns, bag.bag.due_ns, state, len(bag.files), bag.bag.path)
            if count == RACKS_SHOWN or len(found) >= BAGS_SHOWN:
                break
        return newest_bags(found, grid.birth.span_ns, grid.birth.grace_ns, BAGS_SHOWN)
