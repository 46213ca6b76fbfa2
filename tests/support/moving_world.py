"""Sessions over shards that are moved all the time, step by step and at random: who believes what, and what is read.

Beside the simulator, whose schedules have a mount, crashes and clocks, and seldom an upgrade in the middle of a move.
Here everything else is left out, so that some hundred steps take a moment: sessions that miss maps and answers, shards
that stop for a restart and go on.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from appliance.admin.moving import ended, moved, resharded
from appliance.bag.writing import Committed
from appliance.formats.lease import Mode, conflicts, covers
from appliance.formats.shardmap import ShardMap, chain_of
from appliance.lease.ceiling import NOTHING_BEFORE, Beginning, CeilingChain, Extended, ShardIdentity, StoppedOrderly
from appliance.lease.shard import Shard
from appliance.lease.whole_shard import Suspension
from appliance.lease.wire import NO_REQUEST, Inspect, LeasePage, Revoke
from appliance.session.endings import LossReason
from appliance.session.open_logs import LogBook
from appliance.session.session import Session
from tests.support.cluster import HandSite, HandTransport
from tests.support.values import CLUSTER, NODE, WITNESS_KEY
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.lease.store import LeaseStore
    from appliance.session.held import Lease

STEPS = 300
LOG = "alpha"
WRITES = (Mode.X, Mode.IX, Mode.SIX)
READS = (Mode.X, Mode.S, Mode.SIX)


class Member:
    """One session, with the map that it knows, and its ways to the shards, on which messages are lost."""

    def __init__(self, world: MovingWorld) -> None:
        self._world = world
        self.map = world.map
        self.ways: dict[int, HandTransport] = {}
        chance, context = world.steps, world.context()
        self.session = Session(
            context,
            LogBook(context, None),
            self,
            world.policy,
            "",
            random.Random(chance.getrandbits(64)),
            background=False,
            session_leases=chance.random() < 0.7,
        )

    def transport(self, shard: int) -> HandTransport:
        way = self.ways.setdefault(shard, HandTransport())
        way.before = lambda _: setattr(way, "shard", self._world.transport(shard).shard)
        return way

    def held(self, modes: tuple[Mode, ...]) -> list[Lease]:
        return [each for each in self.session.keeper.held if each.ended is None and each.mode in modes]


class MovingWorld(HandSite):
    """All of it. ``calm``: nothing is lost, and everybody is told of a map at once: then no lease is lost either."""

    def __init__(self, path: Path, seed: int) -> None:
        self.steps = random.Random(seed)
        super().__init__(path, shards=self.steps.choice((1, 1, 2)))
        self.calm = self.steps.random() < 0.3
        self.moves = 0
        self.committed: dict[bytes, list[tuple[str, Mode, int]]] = {}
        """Domain, mode and fence of what each message was written under."""
        self.revoked: set[bytes] = set()
        """Leases, and halves, whose holder may not have heard yet that somebody ended them."""
        self._domains = "abcd"[: self.steps.choice((1, 2, 3, 4))]
        self._maps = {1: self.map}
        self._store_of: dict[int, LeaseStore] = dict(enumerate(self._stores))
        self._left: tuple[int, ...] = ()
        """Of the move that is under way or was the last: the shards that leave."""
        self._ends: dict[int, StoppedOrderly] = {}
        self._stopped: dict[int, Suspension] = {}
        self._had: dict[str, list[tuple[Mode, int, Member]]] = {each: [] for each in self._domains}
        self._members = [Member(self) for _ in range(self.steps.choice((1, 2, 2, 3)))]

    # -- shards --------------------------------------------------------------------------------------------------------

    def _running(self, shard: int) -> Shard:
        found = self.transport(shard).shard
        assert found is not None
        return found

    def _stop(self, shard: int) -> None:
        said = self._running(shard).suspend("boot")
        assert isinstance(said, Suspension)
        self._stopped[shard], self.transport(shard).shard = said, None

    def _go_on(self, shard: int) -> None:
        said = self._stopped.pop(shard)
        identity = ShardIdentity(CLUSTER, *chain_of(shard), NODE, said.incarnation)
        origin = None if identity.map_number == 1 else lambda: NOTHING_BEFORE
        running = Shard(
            identity,
            self._maps[said.going_by],
            self.policy,
            store=self._store_of[shard],
            chain=CeilingChain(self._chains[shard], self.time, WITNESS_KEY, self.policy, identity, origin),
            time=self.time,
            signer=WITNESS_KEY,
            ledger=self._ledgers[shard],
            randomness=self.chance,
        )
        assert isinstance(running.resume(said), Extended)
        self.transport(shard).shard = running

    def _behind(self) -> list[int]:
        """Return the shards that have something to do before they are what the newest map says."""
        ending = [each for each in self._left if self.map.before is None and each not in self._ends]
        known = [each for each in self.map.shards if each not in self._stopped and each in self._store_of]
        late = [each for each in known if self._running(each).going_by < self.map.number]
        new = [each for each in self.map.layout.shards if each not in self._store_of]
        return new or ending or late

    def _move(self) -> None:
        """Take the next step of a move; of the next one, if none is under way."""
        if behind := self._behind():
            self._catch_up(self.steps.choice(behind))
        elif self._stopped:
            return
        elif self.map.before is None:
            places = len(self.map.owners)
            to = self.steps.choice(
                (moved(self.map, {self.steps.randrange(places): NODE}), resharded(self.map, 1, [NODE]))
                if places == 2
                else (moved(self.map, {0: NODE}), resharded(self.map, 2, [NODE]))
            )
            number, before = self.map.number + 1, self.map.layout
            self._publish(ShardMap(number, CLUSTER, to.owners, to.chains, before))
            self._left, self._ends = self.map.leaving, {}
            self.moves += 1
        elif all(self.time.now().surely_past(self._alone_until_ns(each)) for each in self._left):
            self._publish(ended(self.map))

    def _publish(self, shard_map: ShardMap) -> None:
        self.map = self._maps[shard_map.number] = shard_map

    def _alone_until_ns(self, shard: int) -> int:
        (page,) = self._running(shard).turn([Inspect(after_domain="", leases_max=1)])
        assert isinstance(page, LeasePage)
        return page.numbers.alone_until_ns

    def _catch_up(self, shard: int) -> None:
        if shard not in self._store_of:
            self.start(shard)
            self._store_of[shard] = self._stores[-1]
        elif shard in self._left and self.map.before is None:
            if shard in self._stopped:
                self._go_on(shard)
            self._running(shard).go_by(self.map)
            end = self._running(shard).stop_orderly()
            assert isinstance(end, StoppedOrderly)
            self._ends[shard], self.transport(shard).shard = end, None
        else:
            floors, settles = (
                [getattr(end, name) for end in self._ends.values()] for name in ("floor_ns", "settle_to_ns")
            )
            self._running(shard).go_by(self.map, Beginning(max(floors, default=0), max(settles, default=0)))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take all steps; look after each what everybody believes, and at the end what everybody reads."""
        kinds = [self._acquire] * 12 + [self._give] * 4 + [self._strengthen] * 6 + [self._renew] * 14
        kinds += [self._pass_time] * 16 + [self._learn] * 8 + [self._write] * 12 + [self._read] * 2 + [self._lose] * 6
        others = [self._move] * 18 + [self._stop_one] * 4 + [self._revoke] * 2
        for number in range(STEPS):
            member = self.steps.choice(self._members)
            step = self.steps.choice([*kinds, *others])
            if self.calm:
                self._everybody_knows()
            with suppress(TenureError):
                step(member, b"%d" % number) if step in kinds else step()  # type: ignore[operator]
            if self._stopped and self.steps.random() < 0.15:
                self._go_on(self.steps.choice(sorted(self._stopped)))
            self._look()
        self._advance(60 * SECOND)
        if self.committed:
            self._judge([each.payload for each in self.settled(LOG)])

    def _everybody_knows(self) -> None:
        for shard in list(self._stopped):
            self._go_on(shard)
        while behind := self._behind():
            self._catch_up(behind[0])
        for each in self._members:
            each.map = self.map
            each.session.renew_due()

    def _advance(self, span: int) -> None:
        self.time.advance(span)
        for way in (*self.transports, *self.coming.values()):
            if way.shard is not None:
                way.shard.housekeeping()

    def _pass_time(self, member: Member, name: bytes) -> None:
        del member, name
        period = self.policy.renew_period_ns
        self._advance(
            self.steps.choice((10 * MS, 200 * MS, period // 4, *(() if self.calm else (SECOND, period, period))))
        )

    def _learn(self, member: Member, name: bytes) -> None:
        del name
        member.map = self.map

    def _lose(self, member: Member, name: bytes) -> None:
        """Let what is said to one shard next be lost, or what it answers, or not."""
        del name
        if not self.calm:
            kinds: Any = self.steps.choice(((None, "lost", "done"), ("lost",), ("done",)))
            way = member.transport(self.steps.choice(self.map.shards))
            way.script = [self.steps.choice(kinds) for _ in range(self.steps.choice((0, 1, 3, 6, 20, 60)))]

    def _stop_one(self) -> None:
        up = [each for each in self._store_of if self.transport(each).shard is not None]
        if up:
            self._stop(self.steps.choice(up))

    def _revoke(self) -> None:
        """End a lease, or one half of it, without a word to its holder. Who settles that meanwhile renews nothing."""
        held = [each for member in self._members for each in member.held(tuple(Mode))]
        if held and not self.calm:
            lease = self.steps.choice(held)
            half = self.steps.choice([lease, lease.second or lease])
            shard = self.transport(half.shard).shard
            if shard is not None:
                by = half.signed.witness().holder
                shard.turn(
                    [Revoke(request_id=NO_REQUEST, domain=half.domain, correlation_id=half.correlation_id, by=by)]
                )
                self.revoked |= {lease.correlation_id, half.correlation_id}

    def _is_revoked(self, lease: Lease) -> bool:
        return any(each.correlation_id in self.revoked for each in (lease, lease.second or lease))

    def _acquire(self, member: Member, name: bytes) -> None:
        del name
        chance = self.steps
        domains = chance.sample(self._domains, min(len(self._domains), chance.choice((1, 1, 2, 3))))
        options: dict[str, Any] = {}
        if chance.random() < 0.15:
            options["hold_s_max"] = chance.choice((3, 8, 20))
        if chance.random() < 0.2:
            options["sticky_s"] = chance.choice((1, 10))
        if chance.random() < 0.15:
            options["session_lease"] = chance.random() < 0.5
        member.session.acquire(*domains, mode=chance.choice(list(Mode)), timeout_s=0, record_only=True, **options)

    def _give(self, member: Member, name: bytes) -> None:
        del name
        member.session.relinquish(self._some(member.held(tuple(Mode))))

    def _some(self, leases: list[Lease]) -> list[Lease]:
        return self.steps.sample(leases, self.steps.randint(1, len(leases))) if leases else []

    def _strengthen(self, member: Member, name: bytes) -> None:
        del name
        weak = [each for each in member.held(tuple(Mode)) if each.mode is not Mode.X]
        if weak:
            lease = self.steps.choice(weak)
            mode = self.steps.choice([each for each in Mode if covers(each, lease.mode) and each is not lease.mode])
            member.session.upgrade(lease, mode, timeout_s=0, record_only=True)

    def _renew(self, member: Member, name: bytes) -> None:
        del name
        member.session.renew_due()

    def _write(self, member: Member, name: bytes) -> None:
        if leases := self._some(member.held(WRITES)):
            under = [(each.domain, each.mode) for each in leases]
            if isinstance(member.session.publish(LOG, [name], under=leases), Committed):
                fences = [each.fence for each in leases]
                self.committed[name] = [(*each, fence) for each, fence in zip(under, fences, strict=True)]

    def _read(self, member: Member, name: bytes) -> None:
        del name
        if leases := self._some([each for each in member.held(READS) if not self._is_revoked(each)]):
            domains = {each.domain for each in leases}
            found = Counter(each.payload for each in member.session.read(LOG, under=leases))
            for payload, under in self.committed.items():
                assert found[payload] == 1 or domains.isdisjoint(each for each, _, _ in under), payload

    # -- what has to be so ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for domain, had in self._had.items():
            sure = [
                (member, lease)
                for member in self._members
                for lease in member.session.keeper.held
                if lease.domain == domain and lease.surely_held() and not self._is_revoked(lease)
            ]
            for place, (member, lease) in enumerate(sure):
                for other, beside in sure[:place]:
                    both = member is not other and conflicts(lease.mode, beside.mode)
                    assert not both, f"two holders believe at once: {lease}, {beside}"
                if (lease.mode, lease.fence, member) not in had:
                    for mode, fence, whose in had:
                        below = conflicts(mode, lease.mode) and lease.fence < fence + (whose is not member)
                        assert not below, f"an earlier holder had {mode} with fence {fence}: {lease}"
                    had.append((lease.mode, lease.fence, member))
        if self.calm:
            losses = [each.loss for member in self._members for each in member.session.keeper.held if each.loss]
            assert all(loss.reason is LossReason.HOLD_CAP for loss in losses), losses

    def _judge(self, found: list[bytes]) -> None:
        """Every message that was Committed is there once, and none before that of an earlier holder."""
        times = Counter(found)
        assert all(times[each] == 1 for each in self.committed), times
        before: list[tuple[str, Mode, int]] = []
        for under in (self.committed[each] for each in found if each in self.committed):
            for domain, mode, fence in under:
                older = [each for each in before if each[0] == domain and conflicts(mode, each[1]) and each[2] > fence]
                assert not older, f"{domain} with fence {fence} after {older}"
            before += under
