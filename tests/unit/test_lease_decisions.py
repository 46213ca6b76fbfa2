import itertools

import msgspec
import pytest

from appliance.formats.hints import NOTHING_WRITTEN, nothing_known
from appliance.formats.lease import Ending, LeaseOutcome, Mode, Phase, conflicts, covers
from appliance.formats.witness import Ended, Witness, WitnessKind, others_digest
from appliance.lease import decisions
from appliance.lease.decisions import decide, raised
from appliance.lease.domain import (
    Again,
    Ahead,
    Bounds,
    Break,
    Command,
    Decision,
    Free,
    Grant,
    LeaseRecord,
    Memory,
    Nothing,
    State,
    Taken,
)
from appliance.lease.wire import Acquire, Age, Denied, Over, Reason, Refused, Relinquish, Renew, Unavailable, Upgrade
from tests.support.shards import HOLDER, RIVAL
from tests.support.values import page_token
from timeagent.units import SECOND, TimeInterval

MINE, OTHER, THIRD = b"\1" * 16, b"\2" * 16, b"\4" * 16
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
    fence=1000,
    floor_ns=800,
    settle_to_ns=700,
    hints=nothing_known(100),
    previous_id=LAST.correlation_id,
    last_ended=LAST,
    floor_set_by=LAST,
)


def lease(
    mode: Mode = Mode.X,
    phase: Phase = Phase.HELD,
    name: bytes = MINE,
    *,
    expiry_ns: int = 5000,
    age_ns: int = 1000,
) -> LeaseRecord:
    return LeaseRecord(
        mode=mode,
        phase=phase,
        holder=HOLDER,
        correlation_id=name,
        fence=1000,
        granted_ns=1000,
        expiry_ns=expiry_ns,
        floor_ns=800,
        settle_to_ns=700,
        lowest_ns=800,
        age=Age(first_try_ns=age_ns, request_id=name),
        granted_by=name,
        answered=name,
    )


def taken(*leases: LeaseRecord) -> Taken:
    return Taken(memory=MEMORY, leases=leases)


STATES: list[State] = [
    Free(memory=Memory(fence=0, floor_ns=0, settle_to_ns=0, hints=NOTHING_WRITTEN)),
    Free(memory=MEMORY),
    taken(lease(phase=Phase.TENTATIVE)),
    taken(lease()),
    taken(lease(Mode.S)),
    taken(lease(Mode.IX, Phase.TENTATIVE), lease(Mode.IX, name=THIRD, expiry_ns=4000)),
    taken(lease(Mode.S), lease(Mode.S, Phase.TENTATIVE, THIRD), lease(Mode.IS, name=b"\5" * 16, expiry_ns=6000)),
]


def acquire(
    age_ns: int, request_id: bytes = OTHER, phase: Phase = Phase.HELD, mode: Mode = Mode.X, ahead: Ahead | None = None
) -> Grant:
    request = Acquire(
        map_number=1,
        request_id=request_id,
        domain="a",
        mode=mode,
        phase=phase,
        holder=RIVAL,
        age=Age(first_try_ns=age_ns, request_id=request_id),
        term_ns=3000,
        expiry_ns_max=50_000,
    )
    return Grant(request, bytes(8), ahead)


def upgrade(name: bytes = MINE, mode: Mode | None = None, request_id: bytes = OTHER) -> Upgrade:
    return Upgrade(
        map_number=1,
        request_id=request_id,
        domain="a",
        correlation_id=name,
        term_ns=3000,
        expiry_ns_max=50_000,
        mode=mode,
    )


def renew(name: bytes = MINE, request_id: bytes = OTHER) -> Renew:
    return Renew(
        map_number=1, request_id=request_id, domain="a", correlation_id=name, term_ns=3000, expiry_ns_max=50_000
    )


def relinquish(name: bytes, watermark_ns: int | None = None) -> Relinquish:
    token = page_token(watermark_ns).encode() if watermark_ns else None
    return Relinquish(
        request_id=OTHER,
        domain="a",
        correlation_id=name,
        watermark_ns=watermark_ns,
        watermark_time=token,
        messages=0,
        chain_head=None,
    )


QUEUE = Ahead(ages=[Age(first_try_ns=998, request_id=THIRD)], holder=RIVAL, since_ns=1500, until_ns=5000)
COMMANDS: list[Command] = [
    *(acquire(age, name, phase) for age in (999, 1001) for name in (MINE, OTHER) for phase in Phase),
    *(acquire(age, mode=mode, ahead=ahead) for age in (997, 999, 1001) for mode in Mode for ahead in (None, QUEUE)),
    *(upgrade(name, mode, request) for request in (MINE, OTHER) for name in (MINE, OTHER) for mode in (None, *Mode)),
    *(renew(name, request) for request in (MINE, OTHER) for name in (MINE, OTHER, LAST.correlation_id)),
    *(relinquish(name, mark) for name in (MINE, OTHER) for mark in (None, 800, 801, 4999, 5000)),
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
        hint_bytes_left=10_000,
    )


def leases_of(state: State) -> tuple[LeaseRecord, ...]:
    return () if isinstance(state, Free) else state.leases


@pytest.mark.parametrize("state", STATES)
def test_every_command_in_every_state_has_an_answer_and_nothing_falls(state: State) -> None:
    for command, earliest in itertools.product(COMMANDS, (2000, 4001, 5000, 5001, 39_990)):
        answered_and_nothing_falls(state, command, earliest)


def answered_and_nothing_falls(state: State, command: Command, earliest: int) -> None:
    decision = decide("a", state, command, bounds(earliest))
    before, after = state.memory, decision.state.memory
    assert after.fence >= before.fence
    assert after.floor_ns >= before.floor_ns
    assert after.settle_to_ns >= before.settle_to_ns
    assert isinstance(decision.answer, Nothing) is isinstance(command, Break)
    were = {each.correlation_id for each in leases_of(state)}
    left = leases_of(decision.state)
    for each in left:
        assert each.expiry_ns <= 40_000
        assert each.fence <= after.fence
    for one, other in itertools.combinations(left, 2):
        assert not conflicts(one.mode, other.mode)
    assert were - {each.correlation_id for each in left} == {each.ending.correlation_id for each in decision.ended}
    if decision.ended:
        assert (decision.ended[-1].floor_ns, decision.ended[-1].settle_to_ns) == (after.floor_ns, after.settle_to_ns)
    if isinstance(decision.answer, Denied | Refused | Unavailable):
        assert decision.state is state
    # The same again changes nothing more.
    again = decide("a", decision.state, command, bounds(earliest))
    assert again.state is decision.state
    assert again.ended == ()


@pytest.mark.parametrize("phase", Phase)
def test_lease_is_broken_when_surely_past_and_not_a_nanosecond_before(phase: Phase) -> None:
    state = taken(lease(phase=phase))
    assert decide("a", state, Break(), bounds(5000)).state is state
    broken = decide("a", state, Break(), bounds(5001))
    assert isinstance(broken.state, Free)
    moved = 5000 if phase is Phase.HELD else 0
    assert broken.state.memory.floor_ns == max(800, moved)
    assert broken.state.memory.settle_to_ns == max(700, moved)


def test_only_tentative_leases_are_withdrawn_by_a_stopping_shard() -> None:
    assert isinstance(decide("a", STATES[2], Break(stopping=True), bounds(2000)).state, Free)
    assert decide("a", STATES[3], Break(stopping=True), bounds(2000)).state is STATES[3]
    left = decide("a", STATES[6], Break(stopping=True), bounds(2000)).state
    assert [each.phase for each in leases_of(left)] == [Phase.HELD, Phase.HELD]


def test_same_request_has_the_same_answer() -> None:
    for state in STATES[2:]:
        check_again(state, decide("a", state, acquire(999, MINE), bounds(9000)))
        check_again(state, decide("a", state, upgrade(mode=Mode.X, request_id=MINE), bounds(9000)))


def check_again(state: State, decision: Decision) -> None:
    """Check that an answer states what the lease is, as a renewal, and that nothing has changed."""
    (lease,) = (each for each in leases_of(state) if each.correlation_id == MINE)
    assert isinstance(decision.answer, Again)
    witness = decision.answer.witness
    assert (witness.kind, witness.correlation_id, witness.expiry_ns) == (WitnessKind.RENEWAL, MINE, lease.expiry_ns)
    assert (witness.fence, witness.mode, witness.phase) == (lease.fence, lease.mode, lease.phase)
    assert (witness.floor_ns, witness.settle_to_ns) == (lease.floor_ns, lease.settle_to_ns)
    assert decision.state is state


# Readers reject a witness that states an expiry too far beyond its signed time: a clock that went back signs none.
def test_same_answer_is_not_signed_by_a_clock_that_went_back() -> None:
    decision = decide("a", STATES[3], acquire(999, MINE), bounds(900))
    assert isinstance(decision.answer, Unavailable)
    assert decision.answer.code == "no-later-expiry"


def test_wound_that_could_not_be_granted_is_not_made() -> None:
    state = STATES[2]
    decision = decide("a", state, acquire(1), bounds(2000, ceiling=2010))
    assert decision.state is state
    assert decision.ended == ()


# -- several holders ---------------------------------------------------------------------------------------------------

MATRIX = {
    Mode.IS: {Mode.IS, Mode.IX, Mode.S, Mode.SIX},
    Mode.IX: {Mode.IS, Mode.IX},
    Mode.S: {Mode.IS, Mode.S},
    Mode.SIX: {Mode.IS},
    Mode.X: set(),
}


@pytest.mark.parametrize(("held", "asked"), list(itertools.product(Mode, Mode)))
def test_two_holders_are_granted_exactly_what_the_matrix_allows(held: Mode, asked: Mode) -> None:
    assert conflicts(held, asked) is (asked not in MATRIX[held])
    decision = decide("a", taken(lease(held)), acquire(1, mode=asked), bounds(2000))
    assert isinstance(decision.answer, Witness) is (asked in MATRIX[held])
    assert len(leases_of(decision.state)) == 1 + (asked in MATRIX[held])


# Stronger is what excludes more: the order of the lock modes, told from the matrix alone.
def test_mode_covers_another_if_it_excludes_all_that_the_other_does() -> None:
    for stronger, weaker in itertools.product(Mode, Mode):
        assert covers(stronger, weaker) is (MATRIX[stronger] <= MATRIX[weaker])


def test_request_breaks_all_that_is_in_its_way_or_nothing() -> None:
    three = taken(lease(Mode.S, expiry_ns=3000), lease(Mode.S, name=THIRD, expiry_ns=4000))
    early = decide("a", three, acquire(1), bounds(3500))
    assert isinstance(early.answer, Denied)
    assert (early.answer.until_ns, early.answer.earliest_ns) == (4000, 4011)
    assert early.ended == ()
    late = decide("a", three, acquire(1), bounds(4001))
    assert isinstance(late.answer, Witness)
    assert [each.ending.correlation_id for each in late.ended] == [MINE, THIRD]
    assert (late.answer.floor_ns, late.answer.settle_to_ns) == (4000, 4000)


def test_reader_that_is_past_its_expiry_is_in_no_other_readers_way() -> None:
    decision = decide("a", taken(lease(Mode.S)), acquire(1, mode=Mode.S), bounds(9000))
    assert len(leases_of(decision.state)) == 2
    assert decision.ended == ()


def test_older_request_wounds_every_younger_tentative_lease_in_its_way_and_no_held_one() -> None:
    young = [lease(Mode.S, Phase.TENTATIVE), lease(Mode.S, Phase.TENTATIVE, THIRD, age_ns=1500)]
    assert isinstance(decide("a", taken(*young), acquire(999), bounds(2000)).answer, Witness)
    assert isinstance(decide("a", taken(*young), acquire(1200), bounds(2000)).answer, Denied)
    mixed = decide("a", taken(young[0], lease(Mode.S, name=THIRD)), acquire(999), bounds(2000))
    assert isinstance(mixed.answer, Denied)
    assert mixed.answer.reason is Reason.HELD


def test_domain_has_only_so_many_holders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "HOLDERS_MAX", 2)
    two = taken(lease(Mode.S), lease(Mode.S, name=THIRD, expiry_ns=3000))
    full = decide("a", two, acquire(1, mode=Mode.S), bounds(2000))
    assert isinstance(full.answer, Unavailable)
    assert full.answer.code == "busy"


# Watermarks of any mode, and expiries of what was not given back, whichever order they end in.
def test_floor_and_settle_to_gather_what_all_holders_left() -> None:
    state: State = taken(
        lease(Mode.IX), lease(Mode.IX, name=THIRD, expiry_ns=4500), lease(Mode.IX, name=b"\5" * 16, expiry_ns=4000)
    )
    given = decide("a", state, relinquish(MINE, 4800), bounds(4000))
    assert (given.state.memory.floor_ns, given.state.memory.settle_to_ns) == (4800, 700)
    low = decide("a", given.state, relinquish(THIRD, 801), bounds(4000))
    assert (low.state.memory.floor_ns, low.state.memory.settle_to_ns) == (4800, 700)
    broken = decide("a", low.state, acquire(1), bounds(4001))
    assert isinstance(broken.answer, Witness)
    assert (broken.answer.floor_ns, broken.answer.settle_to_ns) == (4800, 4000)
    assert broken.answer.last_ended is not None
    assert broken.answer.last_ended.correlation_id == b"\5" * 16
    assert broken.answer.floor_set_by is not None
    assert broken.answer.floor_set_by.correlation_id == MINE


def test_witness_counts_the_leases_that_it_does_not_describe() -> None:
    ids = [bytes([n]) * 16 for n in range(5, 10)]
    state: State = taken(*(lease(Mode.IX, name=each) for each in ids))
    ended: list[Ended] = []
    for name, mark in zip(ids, (900, 1000, None, None, None), strict=True):
        decision = decide("a", state, relinquish(name, mark), bounds(3000))
        state = decision.state
        ended += decision.ended
    decision = decide("a", state, acquire(1), bounds(3000))
    witness = decision.answer
    assert isinstance(witness, Witness)
    assert witness.last_ended == ended[4].ending
    assert witness.floor_set_by == ended[1].ending
    assert witness.others == 3
    assert witness.others_digest == others_digest([ended[0], ended[2], ended[3]])
    renewal = decide("a", decision.state, renew(witness.correlation_id, THIRD), bounds(3000)).answer
    assert isinstance(renewal, Witness)
    said = ("previous_id", "last_ended", "floor_set_by", "others", "others_digest", "floor_ns", "settle_to_ns")
    assert [getattr(renewal, each) for each in said] == [getattr(witness, each) for each in said]


# By the chain that it follows a shard knows nothing of what was written below its floor, but what it was told itself.
@pytest.mark.parametrize(("floor_ns", "known_from_ns"), [(50, 100), (100, 100), (101, 101), (800, 800), (900, 900)])
def test_what_is_raised_states_no_less_and_claims_to_know_no_more(floor_ns: int, known_from_ns: int) -> None:
    setter = msgspec.structs.replace(LAST, correlation_id=b"\7" * 16)
    memory = msgspec.structs.replace(MEMORY, floor_set_by=setter)
    after = msgspec.structs.replace(
        memory,
        floor_ns=max(800, floor_ns),
        settle_to_ns=750,
        floor_set_by=setter if floor_ns <= 800 else None,
        hints=nothing_known(known_from_ns),
    )
    assert raised(Free(memory=memory), 999, floor_ns, 750) == Free(memory=after)
    state = raised(Taken(memory=memory, leases=(lease(),)), 999, floor_ns, 750)
    assert state.memory == after
    renewal = decide("a", state, renew(MINE, THIRD), bounds(3000)).answer
    assert isinstance(renewal, Witness)
    assert (renewal.floor_ns, renewal.settle_to_ns) == (800, 700)
    assert (renewal.last_ended, renewal.floor_set_by) == (LAST, setter)


@pytest.mark.parametrize("state", STATES)
def test_state_that_states_no_less_already_is_raised_to_itself(state: State) -> None:
    assert raised(state, 0, 0, 0) is state


# What ended beside it since does not concern who was granted before: its renewal says what its grant said.
def test_renewal_repeats_the_past_of_its_grant_whatever_ended_since() -> None:
    first = decide("a", Free(memory=MEMORY), acquire(1, MINE, mode=Mode.S), bounds(2000))
    second = decide("a", first.state, acquire(2, mode=Mode.S), bounds(2000))
    grants = [first.answer, second.answer]
    assert all(isinstance(each, Witness) for each in grants)
    one, two = (each for each in grants if isinstance(each, Witness))
    assert two.previous_id == one.correlation_id
    gone = decide("a", second.state, relinquish(two.correlation_id), bounds(2000))
    third = decide("a", gone.state, acquire(3, THIRD, mode=Mode.S), bounds(2000))
    assert isinstance(third.answer, Witness)
    assert (third.answer.previous_id, third.answer.last_ended) == (two.correlation_id, gone.ended[0].ending)
    renewal = decide("a", third.state, renew(one.correlation_id, THIRD), bounds(2000)).answer
    assert isinstance(renewal, Witness)
    assert (renewal.previous_id, renewal.last_ended) == (one.previous_id, one.last_ended)
    assert renewal.last_ended == LAST


# -- queue -------------------------------------------------------------------------------------------------------------


def test_who_comes_later_goes_behind_those_who_wait_whatever_its_mode() -> None:
    for state in (Free(memory=MEMORY), taken(lease(Mode.S)), taken(lease(expiry_ns=1500))):
        denied = decide("a", state, acquire(1, mode=Mode.S, ahead=QUEUE), bounds(2000))
        assert isinstance(denied.answer, Denied)
        assert (denied.answer.reason, denied.answer.holder, denied.answer.since_ns) == (Reason.QUEUED, RIVAL, 1500)
        assert denied.ended == ()


def test_only_who_is_older_than_all_that_wait_wounds_past_them() -> None:
    young = taken(lease(phase=Phase.TENTATIVE))
    assert isinstance(decide("a", young, acquire(999, ahead=QUEUE), bounds(2000)).answer, Denied)
    assert isinstance(decide("a", young, acquire(997, ahead=QUEUE), bounds(2000)).answer, Witness)


# The first of the queue may wait for the tentative lease, its holder for what the oldest has: who waits for whom is no
# circle only if the oldest waits for nobody who is younger, in its way or not.
def test_oldest_passes_those_who_wait_also_where_it_goes_with_what_is_tentative() -> None:
    young = taken(lease(Mode.S, phase=Phase.TENTATIVE))
    assert isinstance(decide("a", young, acquire(999, mode=Mode.S, ahead=QUEUE), bounds(2000)).answer, Denied)
    assert isinstance(decide("a", young, acquire(997, mode=Mode.S, ahead=QUEUE), bounds(2000)).answer, Witness)
    held = taken(lease(Mode.S))
    assert isinstance(decide("a", held, acquire(997, mode=Mode.S, ahead=QUEUE), bounds(2000)).answer, Denied)


# -- a stronger mode ---------------------------------------------------------------------------------------------------


def test_stronger_mode_has_a_fence_above_all_that_were_granted_meanwhile() -> None:
    state = msgspec.structs.replace(taken(lease(Mode.S)), memory=msgspec.structs.replace(MEMORY, fence=9_000))
    decision = decide("a", state, upgrade(mode=Mode.X), bounds(2000))
    assert isinstance(decision.answer, Witness)
    assert (decision.answer.mode, decision.answer.fence, decision.answer.correlation_id) == (Mode.X, 9_001, MINE)
    assert decision.state.memory.fence == 9_001
    check_again(decision.state, decide("a", decision.state, upgrade(mode=Mode.X), bounds(2000)))


def test_stronger_mode_waits_for_what_it_excludes_and_breaks_what_is_past() -> None:
    state = taken(lease(Mode.S, expiry_ns=6000), lease(Mode.S, name=THIRD))
    denied = decide("a", state, upgrade(mode=Mode.X), bounds(2000))
    assert isinstance(denied.answer, Denied)
    assert denied.answer.until_ns == 5000
    granted = decide("a", state, upgrade(mode=Mode.X), bounds(5001))
    assert isinstance(granted.answer, Witness)
    assert (granted.answer.floor_ns, granted.answer.settle_to_ns) == (5000, 5000)
    assert [each.ending.correlation_id for each in granted.ended] == [THIRD]
    beside = taken(lease(Mode.S), lease(Mode.IS, name=THIRD))
    assert isinstance(decide("a", beside, upgrade(mode=Mode.SIX), bounds(2000)).answer, Witness)


def test_upgrade_beyond_what_there_is_is_refused_by_name() -> None:
    cases = [
        (lease(), None, "already-held"),
        (lease(Mode.S), Mode.S, "already-held"),
        (lease(Mode.S), Mode.IX, "mode-not-stronger"),
        (lease(Mode.X), Mode.S, "mode-not-stronger"),
        (lease(Mode.S, Phase.TENTATIVE), Mode.X, "tentative-mode"),
    ]
    for each, mode, code in cases:
        refused = decide("a", taken(each), upgrade(mode=mode), bounds(2000)).answer
        assert isinstance(refused, Refused)
        assert refused.code == code


def test_stronger_mode_whose_fence_would_lie_above_the_ceiling_is_not_granted() -> None:
    state = msgspec.structs.replace(taken(lease(Mode.S)), memory=msgspec.structs.replace(MEMORY, fence=40_000))
    answer = decide("a", state, upgrade(mode=Mode.X), bounds(2000)).answer
    assert isinstance(answer, Unavailable)


# It wrote under IX before others, who have ended since, wrote higher: what it gives back is below its newer floor.
def test_watermark_of_before_a_stronger_mode_is_taken() -> None:
    both = taken(lease(Mode.IX), lease(Mode.IX, name=THIRD))
    higher = decide("a", both, relinquish(THIRD, 3000), bounds(3000)).state
    strong = decide("a", higher, upgrade(mode=Mode.X), bounds(3000))
    assert isinstance(strong.answer, Witness)
    assert strong.answer.floor_ns == 3000
    over = decide("a", strong.state, relinquish(MINE, 900), bounds(3000))
    assert isinstance(over.answer, Over)
    assert over.answer.outcome is LeaseOutcome.RELINQUISHED
    assert over.state.memory.floor_ns == 3000
