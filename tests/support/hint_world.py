"""Random histories of leases and messages; at each turn a narrow reading must give the full one, filtered."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

from appliance.bag.closedbags import ListedFiles
from appliance.bag.packer import Packer
from appliance.bag.writing import Unknown
from appliance.formats.birth import BagKind
from appliance.formats.lease import Mode
from appliance.formats.policy import Policy
from appliance.node.writer_client import Doubt, Handed, SharedWriter
from appliance.node.writer_server import NodeWriter
from appliance.node.writer_wire import Submit
from appliance.session.open_logs import LogBook
from tests.support.cluster import HandSite
from tests.support.storage import WrappedStorage
from tests.support.values import CLUSTER, NODE
from timeagent.errors import Environment, LeaseLost, TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.bag.horizon import Horizon
    from appliance.bag.reader import Message
    from appliance.bag.writing import Outcome, Writer
    from appliance.formats.paths import Bag, Grid
    from appliance.session.held import Lease
    from appliance.session.session import Session

LOGS = {"files": BagKind.MAILDIR, "appended": BagKind.LOG}
DOMAINS = ("a", "b")
STEPS = 30
POLICY = Policy(number=1, cluster_id=CLUSTER, rack_ns=10 * SECOND, seal_delay_ns=5 * SECOND)


class LossyStorage(WrappedStorage):
    """Some publications are done and reported failed, or not done."""

    chance: random.Random
    share = 0.0

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if verb in ("publish", "append") and path.endswith((".msg", ".log")) and self.chance.random() < self.share:
            if self.chance.random() < 0.7:
                call()
            raise Environment("planted", f"the reply to {verb} {path} was lost")
        return call()


class Door:
    """The node's writer, called in place. Some of its answers are lost, and some of what it was handed."""

    def __init__(self, site: HandSite, chance: random.Random, storage: LossyStorage) -> None:
        book = LogBook(site.context(storage))
        self._incarnation = chance.randbytes(8)
        self._service = NodeWriter(CLUSTER, NODE, self._incarnation, book.opened)
        self._chance = chance

    def submit(self, bag: Bag, frames: bytes) -> Handed:
        told: list[Outcome] = []
        silent = self._chance.random() < 0.2
        if not silent or self._chance.random() < 0.5:
            call = Submit(number=1, log=bag.log, bag_start_ns=bag.start_ns, frames=frames)
            assert self._service.submit(call, told.append) is None
            self._service.batchers[""].turn()
        if silent or isinstance(told[0], Unknown):
            return Doubt("planted", self._incarnation)
        return told[0]


class HintWorld:
    """One history. Three processes, one of which writes through the node's writer; two domains, a log of each kind."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.site = HandSite(
            path,
            policy=POLICY,
            domains_max=chance.choice((3, 100)),
            hint_bytes_max=chance.choice((300, 1_000_000, 1_000_000)),
        )
        self.storage = LossyStorage(self.site.storage)
        self.storage.chance = chance
        self.storage.share = chance.choice((0.0, 0.3))
        book = LogBook(self.site.context())
        for log, kind in LOGS.items():
            book.opened_or_made(log, kind)
        self.door = Door(self.site, chance, self.storage)
        self.sessions = [self.session(n) for n in range(3)]
        self.held: list[tuple[Session, Lease]] = []
        self.number = 0
        self.narrow = 0
        """How many readings did not need the whole log."""

    def session(self, number: int) -> Session:
        return self.site.session(str(number), self.storage, share=self.shared if number == 2 else None)

    def shared(self, writer: Writer, grid: Grid, horizon: Horizon) -> Writer:
        return SharedWriter(writer, self.door, grid, horizon.authority, ListedFiles(self.storage))

    def run(self) -> None:
        steps = (
            [self.take] * 6
            + [self.write] * 8
            + [self.read] * 3
            + [self.give] * 5
            + [self.renew] * 3
            + [self.advance] * 3
            + [self.crash, self.restart, self.crowd, self.seal]
        )
        for _ in range(STEPS):
            with suppress(LeaseLost):
                self.chance.choice(steps)()
            self.held = [each for each in self.held if each[1].ended is None]

    # -- what happens --------------------------------------------------------------------------------------------------

    def take(self) -> None:
        session = self.chance.choice(self.sessions)
        mode = self.chance.choice((Mode.X, Mode.X, Mode.S, Mode.SIX, Mode.IX, Mode.IX))
        domains = self.chance.sample(DOMAINS, self.chance.choice((1, 1, 1, 2)))
        with suppress(TenureError):
            leases = session.acquire(*domains, mode=mode, timeout_s=0)
            self.held += [(session, lease) for lease in leases]
            self.read()

    def some(self) -> tuple[Session, list[Lease]] | None:
        """Some leases of one session."""
        if not self.held:
            return None
        session, lease = self.chance.choice(self.held)
        mine = [each for owner, each in self.held if owner is session]
        return (session, mine) if self.chance.random() < 0.3 else (session, [lease])

    def write(self) -> None:
        chosen = self.some()
        if chosen is None or not all(lease.mode.may_write for lease in chosen[1]):
            return
        self.number += 1
        batch = [b"%d" % self.number] * self.chance.choice((1, 2))
        chosen[0].publish(self.chance.choice(tuple(LOGS)), batch, under=chosen[1])
        self.site.time.advance(MS)

    def give(self) -> None:
        chosen = self.some()
        if chosen is not None:
            if self.chance.random() < 0.3:
                self.renew()
            chosen[0].relinquish(chosen[1])

    def renew(self) -> None:
        self.site.time.advance(POLICY.renew_period_ns)
        fault = self.chance.choice((None, None, "lost", "done"))
        self.site.transports[0].script = [fault] * self.chance.choice((1, 3)) if fault else []
        for session in self.sessions:
            session.renew_due()
        self.site.transports[0].script = []

    def advance(self) -> None:
        self.site.time.advance(self.chance.choice((MS, 400 * MS, SECOND, 4 * SECOND)))

    def crash(self) -> None:
        """A process dies with its leases, which expire; another takes its place."""
        number = self.chance.randrange(3)
        dead, self.sessions[number] = self.sessions[number], self.session(number)
        self.held = [each for each in self.held if each[0] is not dead]
        if self.chance.random() < 0.7:
            self.site.time.advance(POLICY.lease_term_max_ns)

    def restart(self) -> None:
        self.site.start()

    def crowd(self) -> None:
        """Others need room in the shard, much later."""
        aged = POLICY.span_ns + POLICY.grace_ns + 4 * POLICY.radius_ns_max + SECOND
        for domain in "pqr":
            self.site.time.advance(aged)
            with suppress(TenureError), self.site.session().acquire(domain, timeout_s=0):
                pass

    def seal(self) -> None:
        """Racks are sealed, and perhaps packed."""
        self.site.time.advance(POLICY.rack_ns + 2 * SECOND)
        packs = self.chance.random() < 0.5
        for log in LOGS:
            context = self.site.context()
            book = LogBook(context).opened(log)
            rack = book.grid.rack(self.site.time.midpoint_ns - POLICY.rack_ns - 2 * SECOND)
            book.horizon.settle(rack.end_ns)
            if packs:
                Packer(context, book.grid, book.horizon.authority.sealer).pack(rack)

    # -- what must hold ------------------------------------------------------------------------------------------------

    def read(self) -> None:
        chosen = self.some()
        if chosen is None:
            return
        session, leases = chosen
        domains = {lease.domain for lease in leases}
        for log in LOGS:
            whole = session.read(log, under=leases)
            wanted = [each for each in whole if not domains.isdisjoint(each.domains)]
            for after in (0, *self.instants(leases, log, whole)):
                above = [each for each in wanted if each.timestamp_ns > after]
                for last in (None, 1, 3):
                    found = session.read_domains(log, under=leases, after_ns=after, last=last)
                    assert found == (above if last is None else above[-last:]), (log, after, last)
                if above and any(lease.hints and lease.hints.reach_ns(log) <= after for lease in leases):
                    self.narrow += 1

    def instants(self, leases: list[Lease], log: str, whole: list[Message]) -> list[int]:
        """From where to read: where hints begin, and from some message on."""
        reaches = [lease.hints.reach_ns(log) for lease in leases if lease.hints is not None]
        stamps = [each.timestamp_ns for each in whole]
        return [*reaches, *self.chance.sample(stamps, min(2, len(stamps)))]

    def close(self) -> None:
        self.site.close()
