"""``SteppedCluster``: a whole cluster in a test's process, with a clock that moves when the test says so, or waits.

Sessions, shards, bags and their protocol are the product's own; the mount is memory, and a shard is called in place.
Whoever waits, and ``advance``, let time pass; every session that is not paused renews meanwhile, as its thread would.
For one thread: nothing here is to be shared between several. Seeded: the same test does the same. How tests use it:
docs/recipes/testing.md.
"""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from appliance.admin.trust import admit
from appliance.bag.reader import Message
from appliance.formats.lease import Holder
from appliance.formats.names import check_purpose
from appliance.formats.paths import chain_path
from appliance.formats.policy import Policy, check_policy
from appliance.formats.shardmap import ShardMap
from appliance.lease.ceiling import CeilingChain, Extended, ShardIdentity
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.wire import Reply, Request, Revoke
from appliance.node.records import StoredChain, StoredLedger
from appliance.recipes.mount_election import MountElection
from appliance.session.held import Lease
from appliance.session.open_logs import LogBook
from appliance.session.session import Session
from timeagent.errors import BadRequest, Environment, ShardUnavailable, TenureError, check_type
from timeagent.keys import Purpose, Signer
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags, sign_time
from timeagent.units import MS, SECOND, Instant, Seconds, Span, TimeInterval, span_of

from ..admin.membership import found_cluster, publish_map
from ..bag.ports import BagContext, Published
from ..formats.birth import checked_kind


class HandTime:
    """Hand-driven time of one node: only sleeping, ``advance`` and setting the midpoint move it."""

    def __init__(self, signer: Signer, start_ns: Instant, radius_ns: Span = 5 * MS) -> None:
        """Begin at an instant, known to a radius. ``signer``: the node's time key."""
        self.signer = signer
        self.midpoint_ns = start_ns
        self.radius_ns = radius_ns
        self.staleness_ns = 250 * MS
        self.status = ClockStatus.SYNCHRONIZED
        self.clock_epoch = 1
        self._boot_ns = 1_000 * MS
        self._sequence = 0

    def now(self) -> TimeInterval:
        return TimeInterval.around(self.midpoint_ns, self.radius_ns)

    def boot_ns(self) -> int:
        return self._boot_ns

    def advance(self, span: Span) -> None:
        assert span >= 0, "set midpoint_ns to step back"
        self.midpoint_ns += span
        self._boot_ns += span

    def sleep(self, span: Span) -> None:
        """Let time pass, as who waits does."""
        if span > 0:
            self.advance(span)

    def token(self) -> SignedTime:
        return self._sign(None)

    def now_and_token(self) -> tuple[TimeInterval, SignedTime]:
        return self.now(), self.token()

    def token_over(self, digest: bytes) -> SignedTime:
        return self._sign(digest)

    def _sign(self, digest: bytes | None) -> SignedTime:
        self._sequence += 1
        return sign_time(
            self.signer,
            self.now(),
            status=self.status,
            flags=TimeFlags.NONE,
            staleness_ns=self.staleness_ns,
            sequence=self._sequence,
            clock_epoch=self.clock_epoch,
            digest=digest,
        )


class MemoryStorage:
    """The server's truth: every verb is atomic and sees everything. Share one between nodes."""

    listing_pause_ns: Span = 0

    def __init__(self, server_clock: Callable[[], Instant] = lambda: 2**62) -> None:
        """Begin empty. ``server_clock``: what the file server's clock says."""
        self.files: dict[str, bytes] = {}
        self.directories: set[str] = {""}
        self.server_clock_ns = server_clock

    def ensure_directory(self, path: str) -> None:
        parts = path.split("/")
        self.directories.update("/".join(parts[: n + 1]) for n in range(len(parts)))

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        there = self.list_afresh(directory)
        return None if there is None else frozenset(names).intersection(there)

    def list_afresh(self, directory: str) -> list[str] | None:
        directory = "" if directory == "." else directory
        if directory not in self.directories:
            return None
        inside = directory and directory + "/"
        below = (path[len(inside) :] for path in (*self.files, *self.directories) if path.startswith(inside))
        return sorted({rest for rest in below if rest and "/" not in rest})

    def read(self, path: str) -> bytes | None:
        return b"" if path in self.directories else self.files.get(path)

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        return (self.read(f"{directory}/{name}") for name in names)

    def size_of(self, path: str) -> int | None:
        data = self.read(path)
        return None if data is None else len(data)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        data = self.read(path)
        return None if data is None else data[offset : offset + limit]

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        return self.publish(path, b"".join(chunks), tmp)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        self.ensure_directory(tmp)
        if path.rpartition("/")[0] not in self.directories:
            return Published.ABSENT
        if path in self.files or path in self.directories:
            return Published.LOST
        self.files[path] = data
        return Published.WON

    def ensure_marker(self, path: str) -> bool:
        if path.rpartition("/")[0] not in self.directories:
            return False
        self.files.setdefault(path, b"")
        return True

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        if path.rpartition("/")[0] not in self.directories or (expected_size and path not in self.files):
            raise Environment("path-absent", f"{path} is not there")
        before = self.files.get(path, b"")
        if len(before) != expected_size or (expected_size == 0 and path in self.files):
            raise Environment("size-not-expected", f"{path} has {len(before)} bytes, not {expected_size}")
        self.files[path] = before + data
        return expected_size + len(data)

    def unlink(self, path: str) -> None:
        self.files.pop(path, None)

    def server_clock(self, tmp: str) -> Instant:
        self.ensure_directory(tmp)
        return self.server_clock_ns()

    def remove_directory(self, path: str) -> bool:
        if self.list_afresh(path):
            return False
        self.directories.discard(path)
        return True


NODE: Final = "node1"
BEGINS_NS: Final[Instant] = 1_795_212_600 * SECOND
"""2026-11-20 22:10:00: it is always then when a test begins."""
BEAT_NS: Final = 250 * MS
"""How far time goes at once: between two steps sessions renew."""

_log = logging.getLogger(__name__)


class SteppedTime(HandTime):
    """The cluster's clock: whoever sleeps lets time pass for all."""

    def __init__(self, cluster: SteppedCluster, signer: Signer) -> None:
        super().__init__(signer, BEGINS_NS)
        self._cluster = cluster

    def sleep(self, span: Span) -> None:
        self._cluster.pass_time(span)


class InPlace:
    """The way to one shard: it is called in place, or does not answer."""

    def __init__(self) -> None:
        self.shard: Shard | None = None

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        """Return the replies at once. Raises ShardUnavailable while it is stopped."""
        del timeout_ns
        if self.shard is None:
            raise ShardUnavailable("no-answer", "the test has stopped this shard", hint="start_shard")
        return self.shard.turn(requests)


class SteppedCluster:
    """One node, some shards, memory in the place of the mount. Use it in a ``with`` block, or close it."""

    def __init__(self, *, shards: int = 1, seed: int = 0, policy: Policy | None = None) -> None:
        """Found it. ``policy``: its numbers count, in the place of the default's. Raises BadRequest."""
        check_type(int, shards=shards, seed=seed)
        check_type(Policy | None, policy=policy)
        if shards < 1:
            raise BadRequest("bad-shards", f"{shards} shards", hint="name 1 or more")
        self._random = random.Random(seed)  # noqa: S311 - names and jitter, the same in every run
        cluster_id = self._random.randbytes(16)
        self.policy = check_policy(policy or Policy(number=1, cluster_id=cluster_id, rack_ns=60 * SECOND))
        root, self._keys = self._signer(), {each: self._signer() for each in _PURPOSES}
        self.time = SteppedTime(self, self._keys[Purpose.TIME])
        self.storage = MemoryStorage(lambda: self.time.midpoint_ns)
        self._records = found_cluster(self.storage, Path("/"), self.policy, root)
        admit(self._records, root, NODE, {each: key.public for each, key in self._keys.items()}, BEGINS_NS)
        publish_map(self._records, root, [NODE] * shards)
        self.map: ShardMap = self._records.newest_map()
        self._context = BagContext(self.storage, self.time, self._records, NODE)
        self._directory = tempfile.TemporaryDirectory(prefix="tenure-testing-")
        self._stores: list[LeaseStore] = []
        self._ways = [InPlace() for _ in range(shards)]
        self._sessions: list[Session] = []
        self._paused: set[Session] = set()
        self._passing = False
        for shard in range(shards):
            self.start_shard(shard)

    def _signer(self) -> Signer:
        return Signer(self._random.randbytes(32))

    # -- time ----------------------------------------------------------------------------------------------------------

    def advance(self, seconds: Seconds) -> None:
        """Let time pass; sessions that are not paused renew meanwhile."""
        self.pass_time(span_of(seconds, "seconds"))

    def pass_time(self, span: Span) -> None:
        """As ``advance``, in nanoseconds."""
        while span > 0:
            self.time.advance(min(span, BEAT_NS))
            span -= BEAT_NS
            if not self._passing:  # who renews may wait, too
                self._passing = True
                try:
                    self._renew()
                finally:
                    self._passing = False

    def _renew(self) -> None:
        for session in self._sessions:
            if session not in self._paused:
                try:
                    session.renew_due()
                except TenureError as problem:
                    _log.info("renewal-failed code=%s", problem.code)

    def pause(self, session: Session) -> None:
        """Have a session stand still: nothing of it is renewed until it is woken. Idempotent."""
        check_type(Session, session=session)
        self._paused.add(session)

    def wake(self, session: Session) -> None:
        """Let a session that was paused go on: it renews what it still can. Idempotent."""
        check_type(Session, session=session)
        self._paused.discard(session)
        self._renew()

    # -- leases --------------------------------------------------------------------------------------------------------

    def session(self, purpose: str = "", *, session_leases: bool = False) -> Session:
        """Begin a session, as ``Cluster.session`` does: a process of its own."""
        check_type(bool, session_leases=session_leases)
        session = Session(
            self._context,
            LogBook(self._context),
            self,
            self.policy,
            purpose,
            self.chance(),
            background=False,
            session_leases=session_leases,
        )
        self._sessions.append(session)
        return session

    def chance(self) -> random.Random:
        return random.Random(self._random.getrandbits(64))  # noqa: S311 - names and jitter, the same in every run

    def lose(self, lease: Lease, reason: str = "the test says so") -> None:
        """End a lease against its holder's will, as an operator does, and let its holder hear of it."""
        check_type(Lease, lease=lease)
        request = Revoke(
            request_id=self._random.randbytes(16),
            domain=lease.domain,
            correlation_id=lease.correlation_id,
            by=Holder(node=NODE, process=1, boot=bytes(16), incarnation=bytes(8), purpose=check_purpose(reason)),
        )
        self.transport(lease.shard).call([request], self.policy.attempt_timeout_ns)
        self.pass_time(self.policy.renew_period_ns + BEAT_NS)

    def stop_shard(self, shard: int = 0) -> None:
        """Have a shard answer nobody, as if its node had died."""
        self.transport(shard).shard = None

    def start_shard(self, shard: int = 0) -> None:
        """Begin a new run of a shard, which knows nothing of the one before, as after a crash."""
        way = self.transport(shard)
        identity = ShardIdentity(self.policy.cluster_id, 1, shard, NODE, self._random.randbytes(8))
        store = LeaseStore(Path(self._directory.name) / f"{len(self._stores)}.db")
        self._stores.append(store)
        signer = self._keys[Purpose.WITNESS]
        chain = CeilingChain(StoredChain(self.storage, chain_path(1, shard)), self.time, signer, self.policy, identity)
        running = Shard(
            identity,
            self.map,
            self.policy,
            store=store,
            chain=chain,
            time=self.time,
            signer=signer,
            ledger=StoredLedger(self.storage, 1, shard, identity.incarnation),
            randomness=self.chance(),
        )
        began = running.start()
        assert isinstance(began, Extended), began
        way.shard = running

    def transport(self, shard: int) -> InPlace:
        """Return the way to a shard. Raises BadRequest."""
        check_type(int, shard=shard)
        if not 0 <= shard < len(self._ways):
            raise BadRequest("no-such-shard", f"there is no shard {shard}", hint=f"0 to {len(self._ways) - 1}")
        return self._ways[shard]

    def election(self, name: str, candidate: str, *, term_s: Seconds = 10) -> MountElection:
        """Take part in an election on the mount alone. Its leader is extended by nobody but ``leadership.extend``."""
        return MountElection(
            self.storage,
            self.time,
            self._keys[Purpose.WITNESS],
            (self.policy.cluster_id, NODE),
            self.chance(),
            name,
            candidate,
            span_of(term_s, "term_s"),
            background=False,
        )

    # -- messages ------------------------------------------------------------------------------------------------------

    def create_log(self, name: str, kind: str = "maildir") -> None:
        LogBook(self._context).opened_or_made(name, checked_kind(kind))

    def close_bags(self, log: str) -> Instant:
        """Let so much time pass that everything that was written by now is final; return the horizon."""
        return LogBook(self._context).opened(log).horizon.settle(self.time.now().latest + 1)

    def read(self, log: str) -> list[Message]:
        """Return what is final of a log, in order: after ``close_bags`` that is all."""
        return list(LogBook(self._context).opened(log).reader.settled())

    # -- its end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End all sessions and shards. Idempotent."""
        for session in self._sessions:
            session.close()
        for store in self._stores:
            store.close()
        self._stores.clear()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


_PURPOSES: Final = (Purpose.TIME, Purpose.WITNESS)
