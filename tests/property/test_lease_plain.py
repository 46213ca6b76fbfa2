"""Plain turns against the general ones: whatever is asked for, all give the same replies, ledger and states.

There are three of them where the native core is built: each request by itself, in bulk by Python, in bulk by the core.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.formats.hints import Hints
from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.witness import Witness
from appliance.lease import store as store_module
from appliance.lease.domain import ExclusiveLease, FreedDomain
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.wire import Acquire, Attend, Granted, Over, Reply, Request, Revoke, SessionGranted, Task, Withdraw
from tests.support.sessions import begin, drop, stated
from tests.support.shards import HOLDER, RIVAL, TERM, Caller, World, acquire, opened, relinquish, renew, upgrade
from timeagent import core
from timeagent.core import NativeCore, chosen
from timeagent.errors import Environment
from timeagent.signedtime import SignedTime
from timeagent.units import MS, SECOND

BUILT = chosen("")

DOMAINS = ("a", "b", "tree/c")
KNOWN = ("a", "b", "tree/c", "e", "f")
BAD = Holder(node="Not A Node", process=1, boot=bytes(16), incarnation=bytes(8))

SPOILED: dict[str, list[Any]] = {
    "mode": [Mode.S, Mode.S, Mode.S, Mode.IX],
    "phase": [Phase.TENTATIVE],
    "holder": [RIVAL, RIVAL, BAD],
    "term_ns": [0, 1, 2 * TERM, SECOND],
    "expiry_ns_max": [0, 1],
    "wait_ns": [SECOND, 5 * SECOND],
    "keep_ns": [SECOND, SECOND, SECOND],
    "hints_wanted": [True, True, True],
    "session_id": [b"s" * 16],
    "map_number": [0, 2],
    "domain": ["", "x\n", "e", "f", "new"],
}
GIVEN_BACK: dict[str, list[Any]] = {
    "watermark_ns": [0, 1],
    "watermark_time": [b"t" * 128],
    "messages": [1],
    "chain_head": [bytes(32)],
    "hints": [Hints(complete_from_ns=7)],
    "abandoned": [True],
    "correlation_id": [b"c" * 16],
    "domain": ["a", "e"],
}


SPOILS, OTHER_WORDS = (
    [{name: value} for name, values in fields.items() for value in values] for fields in (SPOILED, GIVEN_BACK)
)
RARE = ["renew", "upgrade", "revoke", "withdraw", "attend", "begin", "drop"]

type Asked = tuple[str, Any, dict[str, Any]]
"""What, about which domain or lease, and what is not as usual."""

NOTHING: st.SearchStrategy[dict[str, Any]] = st.just({})
WHICH = st.integers(0, 3)
ASKED = st.one_of(
    st.tuples(st.just("acquire"), st.sampled_from(DOMAINS), NOTHING),
    st.tuples(st.just("acquire"), st.sampled_from(DOMAINS), st.sampled_from(SPOILS)),
    st.tuples(st.just("again"), WHICH, NOTHING),
    st.tuples(st.just("relinquish"), WHICH, NOTHING),
    st.tuples(st.just("relinquish"), WHICH, st.sampled_from(OTHER_WORDS)),
    st.tuples(st.just("written"), WHICH, NOTHING),
    st.tuples(st.sampled_from(RARE), WHICH, NOTHING),
)
TURN = st.tuples(
    st.lists(ASKED, max_size=5),
    st.sampled_from([0, 0, 1, SECOND, TERM + 2 * SECOND]),
    st.sampled_from(["", "", "", "", "fails", "stopping", "small"]),
)
TURNS = st.lists(TURN, min_size=1, max_size=10)


def one_by_one(*asked: Asked) -> list[Any]:
    """A turn for each."""
    return [([each], 1, "") for each in asked]


RIVAL_KEEPS = {"holder": RIVAL, "keep_ns": SECOND}
TAKE: Asked = ("acquire", "a", {})
GIVE: Asked = ("relinquish", 0, {})
SHARE: Asked = ("acquire", "a", {"mode": Mode.S})
EPISODES = [
    # A place is kept, and nobody hears of the domain while it is free.
    one_by_one(TAKE, ("acquire", "a", RIVAL_KEEPS), GIVE, TAKE),
    # Who set the floor is neither the last nor the one before it.
    [([], TERM + 2 * SECOND, "")] * 3 + one_by_one(TAKE, ("written", 0, {}), TAKE, GIVE, TAKE, GIVE, TAKE, GIVE),
    # More than one have ended since the last grant.
    one_by_one(SHARE, SHARE, GIVE, GIVE, TAKE, GIVE, TAKE),
    # There is room for one more domain.
    [([("acquire", "a", {"domain": "new"}), ("acquire", "a", {"domain": "new"})], 0, "small")],
    # The same, where the second is not plain.
    [([("acquire", "a", {"domain": "new"}), ("acquire", "a", {"domain": "new", "mode": Mode.S})], 0, "small")],
    # Part of a term fits below the ceiling, which cannot be moved.
    [([TAKE], 0, ""), ([("acquire", "a", {"domain": "new"})], 5 * SECOND, "no ceiling")],
]


def history(seed: int, length: int) -> list[Any]:
    """A long one from a seed: what is rare in a short one happens in it."""
    chance = random.Random(seed)

    def asked() -> Asked:
        what = chance.choice(["acquire"] * 6 + ["relinquish"] * 5 + ["again", "written", chance.choice(RARE)])
        other = {}
        if chance.random() < 0.3:
            other = chance.choice({"acquire": SPOILS, "relinquish": OTHER_WORDS}.get(what, [{}]))
        return what, chance.choice(DOMAINS) if what == "acquire" else chance.randrange(4), other

    found: list[Any] = []
    while len(found) < length:
        if chance.random() < 0.1:
            found += chance.choice(EPISODES)
        later = chance.choice([0, 0, 0, 0, 0, 1, 1, SECOND, TERM + 2 * SECOND, -3 * SECOND])
        how = chance.choice([*[""] * 12, "fails", "stopping", "small", "no ceiling", "old signed time"])
        found.append(([asked() for _ in range(chance.randint(1, 4))], later, how))
    return found


class Side:
    """One of the shards that have to do the same."""

    def __init__(self, *, plain: bool, native: NativeCore | None = None) -> None:
        self.native = native
        self.world = World(Path("unused"))
        self.store = LeaseStore(Path(":memory:"))
        self.world.stores.append(self.store)
        self._shard()
        self.store = LeaseStore(Path(":memory:"))
        self.world.stores.append(self.store)
        self.shard = self._shard()  # the second: its floor lies ahead of its clock
        if not plain:
            self.shard._plain._holders = {}  # who is not known has no plain lease
        self.callers: list[Caller] = []
        self.lag_ns = 0
        self._token = self.world.time.token
        self.world.time.token = self._older_token  # type: ignore[method-assign]

    def _older_token(self) -> SignedTime:
        self.world.time.midpoint_ns -= self.lag_ns
        try:
            return self._token()
        finally:
            self.world.time.midpoint_ns += self.lag_ns

    def _shard(self) -> Shard:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.support.shards.LeaseStore", lambda _: self.store)
            return self.world.started()

    def serve(self, requests: Sequence[Task], *, fails: bool) -> list[Reply | None] | str:
        """Take them through a turn; everybody who can be made to wait does."""
        waiters = {n: Caller() for n, each in enumerate(requests) if getattr(each, "wait_ns", 0)}
        self.callers += waiters.values()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(core, "native", self.native)
            if fails:
                patch.setattr(self.shard._batch_signer, "sign", lambda *_: fail())
            try:
                return self.shard.serve(requests, waiters)
            except Environment as problem:
                return problem.code

    def told(self) -> list[list[Reply]]:
        return [each.replies for each in self.callers]

    def numbers(self) -> tuple[int, ...]:
        store = self.store
        return store.domains, store.leases, store.hint_bytes, len(store.sessions), store.dead_leases

    def known(self) -> dict[str, object]:
        return {domain: self.store.read(domain) for domain in KNOWN}


def fail() -> None:
    raise Environment("store-full", "planted")


class Sides:
    """The two or three, and what they have granted so far."""

    def __init__(self, native: NativeCore | None) -> None:
        self.general, self.plain = Side(plain=False), Side(plain=True)
        self.all = [self.general, self.plain, *([] if native is None else [Side(plain=True, native=native)])]
        self.holders = World(Path("unused"))  # with chance and time of its own: what asks takes none of the shards'
        self.leases: list[Witness] = []
        self.ended: list[Witness] = []
        self.acquires: list[Acquire] = []
        self.sessions: list[Any] = []
        self.number = 0
        self.plain_kept = 0

    def request(self, what: str, which: Any, other: dict[str, Any]) -> Task | None:  # noqa: ANN401 - a name or a number
        """One request, made once for both."""
        world = self.holders
        self.number += 1
        name = self.number.to_bytes(16, "big")
        if what == "acquire":
            made = acquire(world, which, request_id=name)
            if other.get("session_id") and self.sessions:
                other = {"session_id": self.sessions[-1].session_id}
            if other.get("expiry_ns_max") == 1:
                other = {"expiry_ns_max": world.time.midpoint_ns + SECOND}
            if other.get("domain") == "new":
                other = {**other, "domain": f"new-{self.number}"}
            asked = msgspec.structs.replace(made, **other)
            self.acquires.append(asked)
            return asked
        if what == "again":
            return self.acquires[-1 - which % len(self.acquires)] if self.acquires else None
        if what == "begin":
            return msgspec.structs.replace(begin(world), request_id=name)
        if what == "drop":
            return msgspec.structs.replace(drop(world, self.sessions[-1]), request_id=name) if self.sessions else None
        if what == "attend":
            return Attend(request_id=name, holder=HOLDER, run=bytes(8), heard=0, wait_ns=SECOND)
        if what == "withdraw":
            return Withdraw(holder=HOLDER, domains=DOMAINS)
        return self._about_a_lease(what, which, name, other)

    def _about_a_lease(self, what: str, which: int, name: bytes, other: dict[str, Any]) -> Task | None:
        world = self.holders
        leases = self.ended if self.number % 8 == 0 else self.leases  # now and then about one that is over
        if not leases:
            return None
        lease = leases[-1 - which % len(leases)]
        made: Request
        match what:
            case "relinquish":
                if other.get("watermark_ns") == 1:
                    other = {"watermark_ns": lease.floor_ns}
                made = msgspec.structs.replace(relinquish(world, lease), **other)
            case "written":
                made = relinquish(world, lease, world.time.midpoint_ns)
            case "renew":
                made = renew(world, lease)
            case "upgrade":
                made = msgspec.structs.replace(upgrade(world, lease), mode=Mode.X)
            case _:
                made = Revoke(request_id=name, domain=lease.domain, correlation_id=lease.correlation_id, by=RIVAL)
        return msgspec.structs.replace(made, request_id=name)

    def serve(self, requests: list[Task], *, fails: bool = False) -> list[Reply | None] | str:
        """Take requests through a turn of each; they must agree."""
        replies = [side.serve(requests, fails=fails) for side in self.all]
        for side, reply in zip(self.all, replies, strict=True):
            assert reply == replies[0]
            assert side.told() == self.general.told()
            assert side.world.ledger.data == self.general.world.ledger.data
            assert side.numbers() == self.general.numbers()
            assert side.known() == self.general.known()
        return replies[0]

    def turn(self, asked: list[tuple[str, Any, dict[str, Any]]], later: int, how: str) -> None:
        """One turn of both; they must agree."""
        for world in (self.holders, *(each.world for each in self.all)):
            world.time.advance(max(0, later))
            world.time.midpoint_ns += min(0, later)  # a clock that is set back
        for side in self.all:
            side.shard._handler.stopping = how == "stopping"
            side.lag_ns = 200 * MS if how == "old signed time" else 0
            side.world.chain.faults = {"link": ["lost"] * 9, "list": ["lost"] * 9} if how == "no ceiling" else {}
            side.shard._eviction.domains_max = side.store.domains + 1 if how == "small" else 10_000
        requests = [made for each in asked if (made := self.request(*each)) is not None]
        replies = self.serve(requests, fails=how == "fails")
        if not isinstance(replies, str):
            for reply in replies:
                if isinstance(reply, Granted):
                    self.leases.append(opened(reply)[1])
                elif isinstance(reply, Over) and reply.ending is not None:
                    over = reply.ending.correlation_id
                    self.ended += [each for each in self.leases if each.correlation_id == over]
                    self.leases = [each for each in self.leases if each.correlation_id != over]
                elif isinstance(reply, SessionGranted):
                    self.sessions.append(stated(reply))
        for side in self.all[2:]:  # the core keeps in short what Python keeps in short
            assert [type(side.store.states.get(each)) for each in KNOWN] == [
                type(self.plain.store.states.get(each)) for each in KNOWN
            ]
        kept = [self.plain.store.states.get(domain) for domain in KNOWN]
        self.plain_kept += sum(type(each) in (FreedDomain, ExclusiveLease) for each in kept)

    def agree_on_all(self) -> None:
        """What is asked of all rows together."""
        late = self.plain.world.time.midpoint_ns + 100 * TERM
        other = self.general.store
        for one in (each.store for each in self.all):
            assert one.past(late, 99) == other.past(late, 99)
            assert one.idle(late, 99) == other.idle(late, 99)
            assert (one.highest(), one.latest_expiry()) == (other.highest(), other.latest_expiry())
            assert one.page("", 99) == other.page("", 99)

    def close(self) -> None:
        for each in self.all:
            each.world.close()


def both(turns: Sequence[Any], native: NativeCore | None = BUILT) -> int:
    """Let all do the same turns; return how often a state was kept plain."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "UNWRITTEN_MAX", 2)
        patch.setattr(store_module, "RECENT_MAX", 2)
        pair = Sides(native)
        try:
            for asked, later, how in turns:
                pair.turn(asked, later, how)
            pair.agree_on_all()
        finally:
            pair.close()
    return pair.plain_kept


@given(TURNS)
def test_plain_turns_do_what_the_general_ones_do(turns: list[Any]) -> None:
    both(turns)


@pytest.mark.parametrize("seed", range(5))
def test_plain_turns_do_what_the_general_ones_do_for_long(seed: int) -> None:
    assert both(history(seed, 200)) > 100


# The lease of a ``Session`` is one: it asks for hints, and is answered with them.
def test_lease_with_hints_is_plain_too() -> None:
    side = Side(plain=True)
    try:
        side.world.time.advance(2 * TERM)  # beyond the shard's floor
        side.serve([acquire(side.world, "a")], fails=False)  # whose holder is known from then on
        for domain, hints in (("b", False), ("e", True)):
            request = msgspec.structs.replace(acquire(side.world, domain), hints_wanted=hints)
            replies = side.serve([request], fails=False)
            assert isinstance(replies[0], Granted)
            assert (replies[0].hints is not None) == hints
            assert isinstance(side.store.states[domain], ExclusiveLease)
    finally:
        side.world.close()
