"""How a machine's own shard comes to run, and how it ends (docs/protocol/lease.md, "Who runs a shard").

A shard that was stopped for a restart has left its leases in its file, and whoever takes the lock next goes on with
them (``lease/whole_shard.py``). Otherwise each start is a new incarnation with an empty database. A shard that another
node runs is waited for as long as it may still grant: to begin at once would be safe, and everybody would settle up to
a ceiling for nothing.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Final

import msgspec

from timeagent import VERSION
from timeagent.canonical import decode, encode
from timeagent.clock import NodeTime
from timeagent.errors import BadTime, Damaged, Environment, ShardUnavailable, TenureError, TryAgain
from timeagent.notify import Pulse
from timeagent.units import MS, SECOND, Instant, Span, rfc3339

from ..bag.ports import Storage
from ..formats.chains import CeilingKind, CeilingRecord, open_ceiling
from ..formats.paths import chain_path
from ..formats.policy import PolicyNumbers
from ..formats.shardmap import ShardMap, chain_of, shard_text
from ..formats.witness import Half
from ..lease import ceiling
from ..lease.ceiling import Succession, newest_record
from ..lease.server import ShardServer
from ..lease.shard import Shard
from ..lease.store import LeaseStore
from ..lease.turn_log import LogLost, TurnLog
from ..lease.whole_shard import Suspension
from .hosted_shard import PAUSE_NS, START_TRIES, CountedLedger, HostedShard, Running, ShardRuntime, stopping_ns
from .own_keys import OwnKeys
from .record_watch import PAID_LOOK_NS, MapWatch, TrustWatch
from .records import Registers, StoredChain, StoredLedger
from .runtime import LocalLock, group_id, shard_socket
from .settings import Settings

_log = logging.getLogger(__name__)

OWNERS_TIME_NS: Final = 60 * SECOND
"""How long owners under an earlier map have to stop in good order, as seen by a process without a daemon's patience."""

NODES_NAMED: Final = 5
"""How many other nodes a message names."""

CHECK_NS: Final[Span] = 2 * SECOND
"""How often a shard that runs here is looked for in its chain."""

LOOK_NS: Final[Span] = 250 * MS
"""How often the loop of an application's shard looks whether it may go on."""


@contextlib.contextmanager
def kept[C: (LeaseStore, TurnLog)](thing: C) -> Iterator[C]:
    """Begin something with it: it is closed where nothing comes of that. LogLost becomes ShardUnavailable."""
    try:
        yield thing
    except LogLost as problem:
        thing.close()
        raise ShardUnavailable(problem.code, problem.message, hint=problem.hint) from None
    except BaseException:
        thing.close()
        raise


def append_missing(ledger: StoredLedger, log: TurnLog) -> None:
    """Have a ledger get what a log says that it may lack, by now: another run may have gone on meanwhile."""
    blocks = log.blocks()
    if blocks:
        ledger.follow()
        ledger.append(b"".join(blocks))


@dataclass(eq=False)
class ShardHost:
    """Runs the shards that the map gives to this node, one process of this machine at a time. Made without any."""

    _storage: Storage
    _registers: Registers
    _settings: Settings
    keys: OwnKeys
    _time: NodeTime
    _policy: PolicyNumbers
    _directory: Path
    """This node's, on tmpfs."""
    _random: random.Random
    _trust: TrustWatch
    _shard_runtime: ShardRuntime
    drains: bool = False
    """Whether close() has every lease end, and is not for a restart."""
    hindered: dict[int, TenureError] = field(default_factory=dict)
    """Why a shard did not begin here when that was tried last. Read by other threads."""

    def __post_init__(self) -> None:
        self._hosted: dict[int, HostedShard] = {}
        self._lock = self._shard_runtime.mutex()
        self._closed = False
        self._pulse: Pulse | None = None
        self._looked: dict[int, Instant] = {}
        self._leaving: dict[int, Running] = {}
        self._successions: dict[int, Succession] = {}
        self._nothing_left: set[int] = set()
        self._maps: MapWatch | None = None
        self._maps_asked: Instant = -PAID_LOOK_NS

    def follow(self, maps: MapWatch) -> None:
        """Have the shards that run here without a daemon go by the newest map."""
        self._maps = maps

    def be_daemon(self, pulse: Pulse) -> None:
        """Be the daemon: shards that begin from now on serve other nodes, beat in its pulse, and give way to nobody."""
        self._pulse = pulse

    def missing_daemon(self, shard: int) -> ShardUnavailable | None:
        """Return that a shard of this node waits for this node's daemon, or None. Never blocks; touches tmpfs only."""
        others = self._other_nodes()
        if self._pulse is not None or not others or self._shard_runtime.daemon_runs():
            return None
        node = self._settings.node
        return ShardUnavailable(
            "no-daemon",
            f"the daemon of node {node} does not run, and shard {shard_text(shard)} is run by no application: this "
            f"cluster has other nodes ({', '.join(others[:NODES_NAMED])}), which only a daemon answers",
            hint=f"start it, on {node}: tenure node run, or its unit, tenure-node@NAME",
        )

    def _other_nodes(self) -> list[str]:
        return [node for node in self._trust.members() if node != self._settings.node]

    def keys_end(self) -> str | None:
        """Return why no shard may go on here: the keys it signs with end too soon for a later orderly stop; or None."""
        return self.keys.refusal(self._time, stopping_ns(self._policy))

    def hosted(self, shard: int) -> HostedShard | None:
        """Return a shard that runs here now. Thread-safe; never waits for one that is being started."""
        return self._hosted.get(shard)

    def try_host(self, shard: int, shard_map: ShardMap) -> bool:
        """Run a shard here unless another process of this machine does, or another node still may. True: it runs, here.

        One that was stopped for a restart goes on. Any other begins with an empty database: a new incarnation. Hosts
        nothing once closed. Raises BadTime, Environment, Damaged, ShardUnavailable (code ``no-daemon``: an application
        runs no shard in a cluster of several nodes), NotTrusted (for keys that are revoked, or end: it would be in the
        way).
        """
        with self._lock:
            if shard in self._hosted:
                hosted = self._hosted[shard]
                why = hosted.ended()
                if why is None:
                    return True
                _log.warning("shard-ended shard=%d reason=%s", shard, why)
                del self._hosted[shard]
                try:
                    hosted.abandon()
                finally:  # whatever its store says at the end: nobody could take the place of what is not there
                    self._give_up(shard, hosted.place)
            if self._closed or (self._pulse is None and self._shard_runtime.daemon_runs()):
                return False
            if (missing := self.missing_daemon(shard)) is not None:
                raise missing
            if shard_map.owner_of(shard) is None:
                return False
            with self._place(shard) as place:
                if place is None:
                    return False
                try:
                    if self.waits_for(shard, shard_map) is None:
                        self.keys.check_trusted(self._registers, self._time, stopping_ns(self._policy))
                        # The mount may remember that there is no such directory, though an owner has begun since.
                        self._storage.ensure_directory(chain_path(*chain_of(shard)))
                        if self._waits_for_owner(shard) is None:
                            self._hosted[shard] = self._start(shard, shard_map, place)
                except TenureError as problem:
                    self.hindered[shard] = problem
                    raise
                self.hindered.pop(shard, None)
                return shard in self._hosted

    @contextlib.contextmanager
    def _place(self, shard: int) -> Iterator[LocalLock | None]:
        """Have the lock by which a shard runs here, for as long as one does that was begun in the block; None: not."""
        lock = self._shard_runtime.lock(shard)
        if not lock.try_acquire():
            yield None
            return
        try:
            yield lock
        finally:
            if shard not in self._hosted:
                self._give_up(shard, lock)

    def resumable(self) -> list[int]:
        """Return the shards that do not run here, and of which a run may have left something. Touches tmpfs only."""
        left = self._shard_runtime.left()
        return [shard for shard in left if self.hosted(shard) is None and shard not in self._nothing_left]

    def go_on(self, shard: int) -> bool:
        """Go on with what a run left here for a restart, whatever the newest map makes of its shard. True: it runs.

        It need not be its owner's, and the chains before it need not have ended: as little as for the run that stopped.
        Begins nothing. Touches the mount; raises as ``try_host``.
        """
        with self._lock:
            if shard in self._hosted or self._closed:
                return False
            with self._place(shard) as place:
                if place is None:
                    return False
                newest_record(self._port(*chain_of(shard)))  # while the mount does not answer nothing is taken
                self.keys.check_trusted(self._registers, self._time, stopping_ns(self._policy))
                with self._turn_log(shard) as log:
                    resumed = self._gone_on(self._fresh(shard), place, log)
                if resumed is None:
                    if log is not None:
                        log.close()
                    self._nothing_left.add(shard)
                    return False
                self._hosted[shard] = resumed
                self.hindered.pop(shard, None)
                return True

    def waits_for(self, shard: int, shard_map: ShardMap) -> str | None:
        """Return why this node should not begin with a shard yet, or None. Touches the mount; raises what that says.

        For the sake of others only: whoever begins is safe at any time (``lease/ceiling.py``).
        """
        follows = self._follows(shard, shard_map)
        if isinstance(follows, ceiling.InDoubt):
            return follows.reason
        return self._waits_for_owner(shard)

    def _waits_for_owner(self, shard: int) -> str | None:
        newest = newest_record(self._port(*chain_of(shard)))
        return None if newest is None or newest.node == self._settings.node else self._courtesy(newest)

    def _courtesy(self, newest: CeilingRecord) -> str | None:
        """Return why the owner by a chain's newest record should be given time, or None."""
        if newest.kind is not CeilingKind.RUNNING or self._time.now().surely_past(newest.ceiling_ns):
            return None
        return f"node {newest.node} may grant until {rfc3339(newest.ceiling_ns)}"

    def go_by(self, shard: int, newest: ShardMap) -> bool:
        """Have a shard that runs here go by a newer map; False: chains that its own follows have not ended yet.

        Blocks as ``HostedShard.go_by``; touches the mount where it becomes whole. Raises BadTime, Damaged.
        """
        hosted = self.hosted(shard)
        if hosted is None or hosted.shard.going_by >= newest.number:
            return True
        follows = self._follows(shard, newest)
        if isinstance(follows, ceiling.InDoubt):
            _log.debug("map-not-yet shard=%d reason=%s", shard, follows.reason)
            return False
        hosted.go_by(newest, follows)
        _log.info("shard-goes-by shard=%d map=%d half=%s", shard, newest.number, newest.half_of(shard))
        return True

    def _follows(self, shard: int, shard_map: ShardMap) -> ceiling.Beginning | ceiling.InDoubt:
        """Return how the chains ended that a shard's own follows; end them. While it comes, that does not matter yet.

        Their owners are given time to end them by themselves, as long as they may still grant. Touches the mount.
        """
        chain, _ = chain_of(shard)
        if chain == 1 or shard_map.half_of(shard) is Half.COMING:
            return ceiling.NOTHING_BEFORE
        if chain not in self._successions:
            patience = OWNERS_TIME_NS if self._pulse is None else 2 * self._policy.granted_ns_max + 2 * SECOND
            until = self._time.boot_ns() + patience

            def polite(newest: CeilingRecord) -> str | None:
                return None if self._time.boot_ns() >= until else self._courtesy(newest)

            self._successions[chain] = Succession(
                self._registers.cluster_id,
                self._registers.predecessors,
                self._port,
                self._time,
                self.keys.witness,
                self._settings.node,
                self._random.randbytes(8),
                polite,
            )
        return self._successions[chain].beginning(chain)

    def _port(self, map_number: int, shard: int) -> StoredChain:
        return StoredChain(self._storage, chain_path(map_number, shard))

    @property
    def check_ns(self) -> Span:
        """How often it is worth a look whether another runs a shard that runs here: who grants finds out by itself."""
        return PAID_LOOK_NS if self._storage.listing_pause_ns else CHECK_NS

    def superseded(self, shard: int) -> bool:
        """Whether another has linked a record after the one by which a shard grants here. Touches the mount."""
        hosted = self.hosted(shard)
        if hosted is None:
            return False
        number = hosted.chain.number  # before the listing: it grows
        port = self._port(*chain_of(shard))
        if self._storage.listing_pause_ns and port.read(number + 1) is None:
            return False
        newest = newest_record(port)
        return newest is not None and newest.number > number and newest.incarnation != hosted.identity.incarnation

    def everything(self) -> dict[int, HostedShard]:
        """Return the shards that run here now. Thread-safe; never waits for one that is being started."""
        return dict(self._hosted)

    def leave(self, shard: int) -> None:
        """Stop a shard orderly and give its lock up. Blocks as long as ``HostedShard.stop``; idempotent."""
        self._let_go(shard, HostedShard.stop)

    def suspend(self, shard: int) -> None:
        """Leave a shard, with its leases, to the next process of this machine that takes its lock. Idempotent."""
        self._let_go(shard, HostedShard.suspend)

    def drop(self, shard: int) -> None:
        """End a shard that another has taken over."""
        self._let_go(shard, HostedShard.abandon)

    def _let_go(self, shard: int, end: Callable[[HostedShard], None]) -> None:
        with self._lock:
            found = self._hosted.get(shard)
        if found is None:
            return
        try:
            end(found)
        finally:
            with self._lock:
                if self._hosted.get(shard) is found:
                    del self._hosted[shard]
                    self._give_up(shard, found.place)

    def _give_up(self, shard: int, place: LocalLock) -> None:
        place.release()
        if self._pulse is not None:
            self._pulse.forget(f"shard {shard_text(shard)}")

    def broken(self) -> dict[int, str]:
        """Return the shards whose server has ended by itself, each with the reason."""
        return {shard: why for shard, hosted in self.everything().items() if (why := hosted.broken()) is not None}

    def close(self) -> None:
        """Stop every shard that runs here, for a restart or orderly (``drains``), and give up its lock. Idempotent."""
        with self._lock:
            self._closed = True
        with contextlib.ExitStack() as each:  # whatever another says at its end
            for shard in reversed(self.everything()):
                # Until it has stopped it is reached: holders give back what they have.
                each.callback(self._let_go, shard, HostedShard.stop if self.drains else HostedShard.suspend)

    def _start(self, shard: int, shard_map: ShardMap, place: LocalLock) -> HostedShard:
        identity = self._fresh(shard)
        with self._turn_log(shard) as log:
            if (going_on := self._gone_on(identity, place, log)) is not None:
                return going_on
            follows = self._follows(shard, shard_map)
            if isinstance(follows, ceiling.InDoubt):
                why = f"shard {shard_text(shard)} cannot begin yet: {follows.reason}"
                raise ShardUnavailable("chains-before", why)
            if log is not None:
                self._begin_log(log)
            with kept(self._shard_runtime.store(shard)) as store:
                return self._begun(identity, place, shard_map, store, log, follows)

    def _fresh(self, shard: int) -> ceiling.ShardIdentity:
        incarnation = self._random.randbytes(8)
        cluster_id = self._registers.cluster_id
        chain_map, place = chain_of(shard)
        node, since = self._settings.node, self._time.now().midpoint
        return ceiling.ShardIdentity(cluster_id, chain_map, place, node, incarnation, since_ns=since, release=VERSION)

    @contextlib.contextmanager
    def _turn_log(self, shard: int) -> Iterator[TurnLog | None]:
        patience = 2 * self._policy.attempt_timeout_ns
        store = self._shard_runtime.key_values(self._settings, patience)
        if store is None:
            yield None
            return
        run = self._random.randbytes(16)
        with kept(TurnLog(store, self._registers.cluster_id, shard, run, self._time, patience)) as log:
            yield log

    def _gone_on(self, fresh: ceiling.ShardIdentity, place: LocalLock, log: TurnLog | None) -> HostedShard | None:
        """Go on with what a run left, or with the turns that are kept; None: nobody may. Touches the mount."""
        if log is None:
            left = self._shard_runtime.taken_over(fresh.number)
            return None if left is None else self._resumed(fresh, place, *left)
        try:
            head = log.found()
            newest = ceiling.newest_of(self._port(*chain_of(fresh.number)))
            if head is None or not head.said or newest is None:
                return None
            said = decode(Suspension, head.said, "the head of a shard's log")
            record, _ = open_ceiling(newest[1], f"record {newest[0]} of a chain")
            why = said.difference(fresh, said.boot) or head.difference(said, record)
            if why is None:
                log.take(record.number)
                with kept(self._shard_runtime.store(fresh.number)) as store:
                    log.load(store, said)
                boot = self._shard_runtime.boot()
                going_on = msgspec.structs.replace(said, boot=boot, ceiling=newest[1], pending=b"")
                return self._resumed(fresh, place, store, encode(going_on), log)
        except Damaged as problem:
            why = problem.message
        _log.warning("shard-not-resumed shard=%d reason=%s", fresh.number, why)
        return None

    def _begin_log(self, log: TurnLog) -> None:
        """Take a log over for a run that begins empty; the ledger gets what it may lack of the run before."""
        said = None
        with contextlib.suppress(Damaged):
            if (head := log.found()) is not None and head.said:
                said = decode(Suspension, head.said, "the head of a shard's log")
        log.take(0)
        if said is not None:
            append_missing(StoredLedger(self._storage, said.map_number, said.shard, said.incarnation), log)

    def _resumed(
        self, fresh: ceiling.ShardIdentity, place: LocalLock, store: LeaseStore, raw: bytes, log: TurnLog | None = None
    ) -> HostedShard | None:
        """Go on with what a run has left, in the place of one that begins; None: nobody may, and the log says why."""
        with kept(store):
            try:
                said = decode(Suspension, raw, "what a run left")
                why = said.difference(fresh, self._shard_runtime.boot())
                if why is None:
                    identity = said.identity(fresh.release)
                    until = self._time.boot_ns() + self._policy.lease_term_max_ns
                    shard_map = self._until_read(lambda: self._registers.map(said.going_by), until)
                    hosted = self._begun(identity, place, shard_map, store, log, said)
                    _log.info("shard-resumed shard=%d leases=%d", identity.number, store.leases)
                    return hosted
            except TenureError as problem:
                why = problem.message
        _log.warning("shard-not-resumed shard=%d leases=%d reason=%s", fresh.number, store.leases, why)
        store.close()
        return None

    def _begun(
        self,
        identity: ceiling.ShardIdentity,
        place: LocalLock,
        shard_map: ShardMap,
        store: LeaseStore,
        log: TurnLog | None,
        after: ceiling.Beginning | Suspension,
    ) -> HostedShard:
        """Begin a run: empty, ``after`` the chains that its own follows; or go on after what another run has said."""
        said, follows = (after, ceiling.NOTHING_BEFORE) if isinstance(after, Suspension) else (None, after)
        origin = None if said is not None or identity.map_number == 1 else (lambda: follows)
        stored, signer = self._port(identity.map_number, identity.shard), self.keys.witness
        apart = self._shard_runtime.chain_apart
        look = self._registers.newest_map
        chain = ceiling.CeilingChain(stored, self._time, signer, self._policy, identity, origin, apart, look)
        ledger = CountedLedger(self._storage, identity.map_number, identity.shard, identity.incarnation)
        spool = self._shard_runtime.spool(ledger)
        if log is not None:
            log.written = lambda: spool.blocks_written
        running = Shard(
            identity,
            shard_map,
            self._policy,
            store=store,
            chain=chain,
            time=self._time,
            signer=signer,
            ledger=spool,
            randomness=self._random,
            follows=follows,
            waited=ledger.lease_counts.waited,
            log=log,
        )
        # By the end of the longest term every lease that was left is over.
        patience = START_TRIES * PAUSE_NS if said is None else self._policy.lease_term_max_ns
        shard, until = identity.number, self._time.boot_ns() + patience
        lacks = log
        while True:
            began: ceiling.Extension
            try:
                if said is None:
                    began = running.start()
                elif log is not None:
                    if lacks is not None:
                        append_missing(ledger, lacks)
                        lacks = None
                    began = running.resume(said)
                else:  # only if its ledger ends where the run before ended
                    last = ledger.resume(said.ledger_file, said.ledger_bytes, said.block_bytes)
                    why = said.ledger_difference(last)
                    began = running.resume(said) if why is None else ceiling.Deposed(why)
            except (BadTime, Environment, TryAgain) as problem:
                if said is None:
                    raise
                began = ceiling.InDoubt(problem.message)
            if isinstance(began, ceiling.Extended):
                guard, means = self._shard_runtime.mutex(), self._shard_runtime
                served = running, store, self._server(running, shard, guard), chain, ledger, spool, guard
                return HostedShard(identity, *served, means, self._time, self._policy, log, place)
            if isinstance(began, ceiling.Deposed):
                raise ShardUnavailable("deposed", f"shard {shard_text(shard)} cannot begin here: {began.reason}")
            if self._time.boot_ns() >= until:
                raise Environment(
                    "chain-in-doubt",
                    f"shard {shard_text(shard)} cannot begin: {began.reason}",
                    hint="a record of its chain has to be linked first: see whether the root is writable and has room",
                )
            self._time.sleep(PAUSE_NS)

    def _until_read(self, read: Callable[[], ShardMap], until: Instant) -> ShardMap:
        """Return a map that is needed where giving up would cost everybody a wait: a mount may fail for a moment."""
        while True:
            try:
                return read()
            except (Environment, TryAgain):
                if self._time.boot_ns() >= until:
                    raise
                self._time.sleep(PAUSE_NS)

    def _server(self, running: Shard, shard: int, guard: Lock) -> ShardServer:
        pulse, on_tick = self._pulse, lambda: self._give_way(shard)
        if pulse is not None:
            name = f"shard {shard_text(shard)}"
            pulse.watch(name)
            on_tick = lambda: pulse.beat(name)  # noqa: E731
        return ShardServer(
            running,
            shard_socket(self._directory, shard),
            guard,
            clock=self._time,
            trust=self._trust if pulse is not None else None,
            group=group_id(self._settings.group),
            on_tick=on_tick,
        )

    def _go_on(self, shard: int, newest: ShardMap) -> None:
        """Have an application's shard go by a newer map, or end with the map before."""
        try:
            self.go_by(shard, newest)
            if newest.owner_of(shard) is None:
                self.leave(shard)
        except TenureError as problem:
            _log.warning("map-not-followed shard=%d code=%s reason=%s", shard, problem.code, problem.message)

    def _give_way(self, shard: int) -> None:
        """Begin to end an application's shard, beside its loop, once there is a reason. Touches tmpfs only."""
        now = self._time.boot_ns()
        if now - self._looked.get(shard, 0) < LOOK_NS:
            return
        self._looked[shard] = now
        leaving = self._leaving.get(shard)
        if leaving is not None and leaving.is_alive():
            return
        maps, hosted = self._maps, self.hosted(shard)
        if maps is not None and hosted is not None:
            if not self._storage.listing_pause_ns or now - self._maps_asked >= PAID_LOOK_NS:
                self._maps_asked = now
                maps.look()
            if (newest := maps.newest).number > hosted.shard.going_by:
                self._beside(shard, f"tenure-map-{shard}", lambda: self._go_on(shard, newest))
                return
        give_up, why = self.suspend, None if hosted is None else hosted.ended()
        if why:
            give_up = self.drop  # who asks for it next begins another run
        elif self._shard_runtime.daemon_runs():
            why = "the daemon runs"
        elif self._other_nodes():
            why = "the cluster has other nodes"
        else:
            why, give_up = self.keys_end(), self.leave
        if why is not None:
            _log.info("shard-gives-way shard=%d reason=%s", shard, why)
            self._beside(shard, f"tenure-leave-{shard}", lambda: give_up(shard))

    def _beside(self, shard: int, name: str, body: Callable[[], object]) -> None:
        """Begin something beside a shard's loop. Without a thread for it the loop goes on, and looks again soon."""
        try:
            self._leaving[shard] = self._shard_runtime.spawn(name, body)
        except Environment as problem:
            _log.warning("shard-stays shard=%d code=%s reason=%s", shard, problem.code, problem.message)
