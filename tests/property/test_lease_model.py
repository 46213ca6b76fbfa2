"""Random commands, clocks, faults and restarts against a simple model: a dict of what each domain's holders were told.

The model knows no protocol. It remembers, for each domain, every held grant and how it ended for its holder, and checks
of each new one that it lies above all that went before and may not be beside it. Some ask and wait: of those it checks
that they get their turn in their order, and nothing once they are gone.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.formats.chains import open_ceiling
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import Witness, WitnessKind
from appliance.lease.ceiling import Extended
from appliance.lease.shard import Shard
from appliance.lease.wire import Acquire, Encoded, Granted, Over, Reply, Request
from tests.support.shards import HOLDER, RIVAL, TERM, World, acquire, heard, one, opened, relinquish, renew, upgrade
from timeagent.units import MS, SECOND

SPANS = (0, 1, 5 * MS, 5 * MS + 1, 100 * MS, SECOND, 4 * SECOND, TERM, 3 * TERM)
MODES = (Mode.X, Mode.X, Mode.S, Mode.S, Mode.IX, Mode.IS, Mode.SIX)
BESIDE = {"X": "", "S": "S IS", "IX": "IX IS", "IS": "S IX IS SIX", "SIX": "IS"}
"""Which modes others may have beside one, as the model has learned it by heart."""

ACQUIRE = st.tuples(
    st.just("acquire"),
    st.sampled_from("aab"),
    st.sampled_from((Phase.HELD, Phase.HELD, Phase.TENTATIVE)),
    st.sampled_from((SECOND, TERM)),
    st.booleans(),
    st.sampled_from(MODES),
)
WAIT = st.tuples(st.just("wait"), st.sampled_from("aab"), st.sampled_from(MODES), st.sampled_from((SECOND, 3 * TERM)))
TO_EXPIRY = st.tuples(st.just("to expiry"), st.integers(-1, 1))
GIVE = st.tuples(st.just("relinquish"), st.integers(0, 2), st.one_of(st.none(), st.sampled_from((0, 1, 50, 100))))
STEP = st.one_of(
    ACQUIRE,
    ACQUIRE,
    WAIT,
    WAIT,
    GIVE,
    GIVE,
    st.tuples(st.just("leave"), st.integers(0, 2)),
    st.tuples(st.just("stronger"), st.integers(0, 2), st.sampled_from(MODES)),
    TO_EXPIRY,
    st.tuples(st.sampled_from(("renew", "upgrade")), st.integers(0, 2)),
    st.tuples(st.just("advance"), st.sampled_from(SPANS)),
    st.tuples(st.sampled_from(("housekeeping", "die", "stop", "again", "again"))),
    st.tuples(st.just("fault"), st.sampled_from(("link", "list")), st.sampled_from(("lost", "done"))),
    st.tuples(st.just("back"), st.sampled_from((1, SECOND, 30 * SECOND))),
)


def excludes(one_mode: str, other: str) -> bool:
    """Whether two holders must not have these at once."""
    return other not in BESIDE[one_mode].split()


@dataclass(eq=False)
class Caller:
    """Somebody who waits, in the order in which they came."""

    request: Acquire
    gone: bool = False
    reply: Reply | None = None

    def answer(self, said: Reply | Encoded) -> None:
        reply = heard(said)
        assert not self.gone or not isinstance(reply, Granted), "a lease is granted to somebody who is gone"
        assert self.reply is None, "somebody is answered twice"
        self.reply = reply


@dataclass
class Held:
    """One held grant, as its holder knows it."""

    first: Witness
    expiry_ns: int
    mode: Mode
    ended_at: int | None = None
    """Up to where it can have written: its watermark, or its floor where it wrote nothing. None: up to the expiry."""


@dataclass
class Model:
    """What the holders were told, by domain."""

    grants: dict[str, list[Held]] = field(default_factory=dict)
    live: list[Witness] = field(default_factory=list)
    fences: dict[str, int] = field(default_factory=dict)
    known: set[bytes] = field(default_factory=set)
    steady: bool = True
    """The clock never went back and no shard died: then leases exclude each other in time as well."""

    def told(self, witness: Witness, earliest_ns: int) -> None:
        """A holder got a witness: check it, and remember it."""
        if witness.correlation_id not in self.known:
            assert witness.kind is WitnessKind.GRANT
            self.known.add(witness.correlation_id)
            self._grows(witness)
        before = self.grants.setdefault(witness.domain, [])
        if witness.phase is Phase.HELD:
            mine = next((each for each in before if each.first.correlation_id == witness.correlation_id), None)
            if mine is None:
                self._follows(witness, before, earliest_ns)
                before.append(Held(witness, witness.expiry_ns, witness.mode))
            elif witness.mode is not mine.mode:
                assert witness.kind is WitnessKind.UPGRADE
                self._grows(witness)
                self._follows(witness, [each for each in before if each is not mine], earliest_ns)
                mine.mode, mine.expiry_ns = witness.mode, witness.expiry_ns
                before.remove(mine)
                before.append(mine)
            else:
                later = before[before.index(mine) + 1 :]
                assert not any(excludes(mine.mode, each.mode) for each in later), "a lease is renewed under another"
                assert witness.expiry_ns >= mine.expiry_ns, "an expiry falls"
                mine.expiry_ns = witness.expiry_ns
        others = [each for each in self.live if each.correlation_id != witness.correlation_id]
        self.live = [*others[-2:], witness]

    def _grows(self, witness: Witness) -> None:
        assert witness.fence > self.fences.get(witness.domain, 0), "a fence repeats or falls"
        self.fences[witness.domain] = witness.fence

    def _follows(self, witness: Witness, before: list[Held], earliest_ns: int) -> None:
        for each in before:
            end = each.expiry_ns if each.ended_at is None else each.ended_at
            assert witness.floor_ns >= each.first.floor_ns, "a floor falls"
            if each.ended_at is None and not excludes(each.mode, witness.mode):
                continue  # it may be out still
            assert witness.floor_ns >= end, "two holders can write the same instant"
            if each.ended_at is None:
                assert witness.settle_to_ns >= each.expiry_ns, "what was left behind is not settled"
                assert not self.steady or earliest_ns > each.expiry_ns, "two held leases overlap in time"


@dataclass
class Run:
    """A world, its shard, and the model beside it."""

    world: World
    shard: Shard
    model: Model = field(default_factory=Model)
    last: Request | None = None
    last_reply: Reply | None = None
    callers: list[Caller] = field(default_factory=list)

    def ask(self, request: Request) -> Reply:
        reply = one(self.shard, request)
        self.last, self.last_reply = request, reply
        self.heard(reply)
        return reply

    def wait(self, domain: str, mode: Mode, wait_ns: int) -> None:
        plain = acquire(self.world, domain, mode=mode)
        caller = Caller(msgspec.structs.replace(plain, wait_ns=wait_ns))
        (reply,) = self.shard.serve([caller.request], {0: caller})
        if reply is None:
            self.callers.append(caller)
        else:
            self.heard(reply)

    def look(self) -> None:
        """What the loop around a shard does, and what those who waited hear of it."""
        while self.shard.due_in() == 0:
            self.shard.serve([])
        for caller in list(self.callers):
            if caller.reply is None:
                continue
            if isinstance(caller.reply, Granted) and self.model.steady:
                earlier = [each for each in self.callers if each.request.domain == caller.request.domain]
                assert earlier[0] is caller, "somebody who came later passes"
            self.callers.remove(caller)
            self.heard(caller.reply)

    def heard(self, reply: Reply) -> None:
        if isinstance(reply, Granted):
            signed, witness = opened(reply)
            head = signed.batch_head()
            record = open_ceiling(self.world.chain.records[head.ceiling_number], "the chain")[0]
            assert record.incarnation == head.incarnation, "granted under another's record"
            assert max(witness.expiry_ns, witness.fence) <= record.ceiling_ns, "granted beyond the own ceiling"
            assert witness.expiry_ns <= head.signed_time().midpoint_ns + TERM + head.signed_time().radius_ns
            self.model.told(witness, self.world.time.now().earliest)

    def lease(self, index: int) -> Witness | None:
        return self.model.live[index % len(self.model.live)] if self.model.live else None

    def step(self, step: tuple[object, ...]) -> None:
        self._holders(step)
        self._surroundings(step)
        self.look()

    def _holders(self, step: tuple[object, ...]) -> None:
        world = self.world
        match step:
            case ("acquire", str() as domain, Phase() as phase, int() as term, bool() as old, Mode() as mode):
                holder = RIVAL if old else HOLDER
                age = 1 if old else None
                self.ask(acquire(world, domain, phase=phase, term_ns=term, holder=holder, age_ns=age, mode=mode))
            case ("wait", str() as domain, Mode() as mode, int() as wait_ns):
                self.wait(domain, mode, wait_ns)
            case ("leave", int() as index) if self.callers:
                caller = self.callers.pop(index % len(self.callers))
                caller.gone = True
                if index:  # else the loop has not noticed yet
                    self.shard.abandon([caller])
            case ("stronger", int() as index, Mode() as mode) if (lease := self.lease(index)) is not None:
                self.ask(msgspec.structs.replace(upgrade(world, lease), mode=mode))
            case ("renew" | "upgrade" as verb, int() as index) if (lease := self.lease(index)) is not None:
                self.ask(renew(world, lease) if verb == "renew" else upgrade(world, lease))
            case ("relinquish", int() as index, share) if (lease := self.lease(index)) is not None:
                assert share is None or isinstance(share, int)
                self.relinquish(lease, share)

    def _surroundings(self, step: tuple[object, ...]) -> None:
        world, time = self.world, self.world.time
        match step:
            case ("advance", int() as span):
                time.advance(span)
            case ("to expiry", int() as nudge) if self.model.live:
                newest = self.model.live[-1]
                time.advance(max(0, newest.expiry_ns + time.radius_ns + nudge - time.midpoint_ns))
                self.ask(acquire(world, newest.domain, holder=RIVAL))
            case ("back", int() as span):
                time.midpoint_ns -= span
                self.model.steady = False
            case ("housekeeping",):
                self.shard.housekeeping()
            case ("again",) if self.last is not None:
                self.again(self.last)
            case ("die",):
                self.restart()
                self.model.steady = False
            case ("stop",):
                self.stop()
            case ("fault", str() as verb, str() as fault):
                world.chain.faults.setdefault(verb, []).append(fault)

    def again(self, request: Request) -> None:
        """The same request once more: the same answer, as long as it was a grant or an ending.

        A shard remembers the last ending of a domain: of one before it, it says that it does not know.
        """
        before = self.last_reply
        after = self.ask(request)
        if isinstance(before, Over) and before.ending is not None:
            assert isinstance(after, Over)
            assert after == before or (after.outcome is LeaseOutcome.UNKNOWN and after.ending is None)
        if isinstance(before, Granted) and isinstance(after, Granted):
            first, second = opened(before)[1], opened(after)[1]
            assert second == msgspec.structs.replace(first, kind=second.kind), "a request is granted twice"
            assert second.kind in (first.kind, WitnessKind.RENEWAL)

    def relinquish(self, lease: Witness, share: int | None) -> None:
        watermark = None
        if share is not None:
            low = lease.floor_ns + 1
            watermark = low + (lease.expiry_ns - 1 - low) * share // 100
        held = [each for each in self.model.grants[lease.domain] if each.first.correlation_id == lease.correlation_id]
        reply = self.ask(relinquish(self.world, lease, watermark))
        if isinstance(reply, Over) and reply.outcome is LeaseOutcome.RELINQUISHED and reply.ending is not None and held:
            held[0].ended_at = reply.ending.watermark_ns or held[0].first.floor_ns

    def restart(self) -> None:
        self.shard = self.world.shard()
        self.callers = []
        while not isinstance(self.shard.start(), Extended):
            pass
        self.last = None

    def stop(self) -> None:
        """Stop orderly if nothing is in the way; the successor starts at once. Else the shard dies while stopping."""
        if type(self.shard.stop_orderly()).__name__ != "StoppedOrderly":
            self.model.steady = False
        self.restart()


STEPS = st.lists(STEP, min_size=20, max_size=50)


def follow(steps: list[tuple[object, ...]]) -> None:
    """Do the steps in a new world, against a new model."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory), domains_max=2)
        try:
            run = Run(world, world.started())
            for step in steps:
                run.step(step)
        finally:
            world.close()


@given(STEPS)
def test_no_two_holders_can_write_the_same_instant(steps: list[tuple[object, ...]]) -> None:
    follow(steps)


def test_model_notices_two_holders_of_one_instant() -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        witness = opened(one(world.started(), acquire(world, "a")))[1]
        model = Model()
        model.told(witness, world.time.now().earliest)
        forged = msgspec.structs.replace(witness, correlation_id=bytes(16), fence=witness.fence + 1)
        with pytest.raises(AssertionError, match="same instant"):
            model.told(forged, world.time.now().earliest)
        world.close()
