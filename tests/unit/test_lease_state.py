import itertools

import pytest

from appliance.formats.lease import Ending, LeaseOutcome, Mode, Phase
from appliance.lease.state import (
    Again,
    Bounds,
    Break,
    Command,
    Free,
    Grant,
    Held,
    Lease,
    Memory,
    Nothing,
    State,
    Tentative,
    decide,
)
from appliance.lease.wire import Acquire, Age, Relinquish, Renew, Upgrade
from tests.support.shards import HOLDER, RIVAL
from tests.support.values import page_token
from timeagent.interval import TimeInterval
from timeagent.units import SECOND

MINE, OTHER = b"\1" * 16, b"\2" * 16
LAST = Ending(
    correlation_id=b"\3" * 16,
    outcome=LeaseOutcome.RELINQUISHED,
    ended_ns=900,
    watermark_ns=800,
    watermark_time=None,
    messages=1,
    chain_head=None,
)
MEMORY = Memory(
    fence=1000, floor_ns=800, settle_to_ns=700, previous_id=LAST.correlation_id, last_ended=LAST, floor_set_by=LAST
)
LEASE = Lease(
    mode=Mode.X,
    holder=HOLDER,
    correlation_id=MINE,
    fence=1000,
    granted_ns=1000,
    expiry_ns=5000,
    floor_ns=800,
    settle_to_ns=700,
    age=Age(first_try_ns=1000, request_id=MINE),
    granted_by=MINE,
    answered=MINE,
)
STATES: list[State] = [
    Free(memory=Memory(fence=0, floor_ns=0, settle_to_ns=0)),
    Free(memory=MEMORY),
    Tentative(memory=MEMORY, lease=LEASE),
    Held(memory=MEMORY, lease=LEASE),
]


def grant(age_ns: int, request_id: bytes, phase: Phase = Phase.HELD) -> Grant:
    request = Acquire(
        request_id=request_id,
        domain="a",
        mode=Mode.X,
        phase=phase,
        holder=RIVAL,
        age=Age(first_try_ns=age_ns, request_id=request_id),
        term_ns=3000,
        expiry_ns_max=50_000,
    )
    return Grant(request, bytes(8))


def relinquish(correlation_id: bytes, watermark_ns: int | None = None) -> Relinquish:
    token = page_token(watermark_ns).encode() if watermark_ns else None
    return Relinquish(
        request_id=OTHER,
        domain="a",
        correlation_id=correlation_id,
        watermark_ns=watermark_ns,
        watermark_time=token,
        messages=0,
        chain_head=None,
    )


COMMANDS: list[Command] = [
    *(grant(age, name, phase) for age in (999, 1001) for name in (MINE, OTHER) for phase in Phase),
    *(
        kind(request_id=name, domain="a", correlation_id=lease, term_ns=3000, expiry_ns_max=50_000)
        for kind in (Upgrade, Renew)
        for name in (MINE, OTHER)
        for lease in (MINE, OTHER, LAST.correlation_id)
    ),
    *(relinquish(lease, mark) for lease in (MINE, OTHER) for mark in (None, 800, 801, 4999, 5000)),
    Break(),
    Break(stopping=True),
]


def bounds(earliest: int, radius: int = 10, ceiling: int = 40_000) -> Bounds:
    return Bounds(
        now=TimeInterval(earliest, earliest + 2 * radius),
        term_ns_max=4000,
        ceiling_ns=ceiling,
        signed_ns_max=earliest + radius + 4000,
        shard_floor_ns=600,
        r1_tolerance_ns=SECOND,
    )


@pytest.mark.parametrize(
    ("state", "command", "earliest"), list(itertools.product(STATES, COMMANDS, (2000, 5000, 5001, 39_990)))
)
def test_every_command_in_every_state_has_an_answer_and_nothing_falls(
    state: State, command: Command, earliest: int
) -> None:
    decision = decide("a", state, command, bounds(earliest))
    before, after = state.memory, decision.state.memory
    assert after.fence >= before.fence
    assert after.floor_ns >= before.floor_ns
    assert after.settle_to_ns >= before.settle_to_ns
    assert isinstance(decision.answer, Nothing) is isinstance(command, Break)
    if not isinstance(decision.state, Free):
        assert decision.state.lease.expiry_ns <= 40_000
        assert decision.state.lease.fence <= decision.state.memory.fence
    over = not isinstance(state, Free) and (
        isinstance(decision.state, Free) or decision.state.lease.correlation_id != MINE
    )
    assert len(decision.ended) == over
    # The same again changes nothing more, except that a lease may be given to who asks for a free domain.
    again = decide("a", decision.state, command, bounds(earliest))
    assert again.state is decision.state
    assert again.ended == ()


@pytest.mark.parametrize("taken", [Tentative, Held])
def test_lease_is_broken_when_surely_past_and_not_a_nanosecond_before(taken: type[Tentative | Held]) -> None:
    state = taken(memory=MEMORY, lease=LEASE)
    assert decide("a", state, Break(), bounds(5000)).state is state
    broken = decide("a", state, Break(), bounds(5001))
    assert isinstance(broken.state, Free)
    moved = 5000 if taken is Held else 0
    assert broken.state.memory.floor_ns == max(800, moved)
    assert broken.state.memory.settle_to_ns == max(700, moved)


def test_only_a_tentative_lease_is_withdrawn_by_a_stopping_shard() -> None:
    assert isinstance(decide("a", STATES[2], Break(stopping=True), bounds(2000)).state, Free)
    assert decide("a", STATES[3], Break(stopping=True), bounds(2000)).state is STATES[3]


def test_same_request_has_the_same_answer() -> None:
    for state in STATES[2:]:
        assert decide("a", state, grant(999, MINE), bounds(9000)).answer == Again(MINE)


def test_wound_that_could_not_be_granted_is_not_made() -> None:
    state = STATES[2]
    decision = decide("a", state, grant(1, OTHER), bounds(2000, ceiling=2010))
    assert decision.state is state
    assert decision.ended == ()
