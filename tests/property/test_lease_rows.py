"""What a row says of a domain is what its state was, be it written short or whole."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.formats.hints import NOTHING_WRITTEN, Hints, nothing_known
from appliance.formats.lease import Ending, LeaseOutcome, Mode, Phase
from appliance.lease import state_rows
from appliance.lease.domain import (
    DomainDefaults,
    ExclusiveLease,
    Free,
    FreedDomain,
    LeaseRecord,
    Memory,
    Past,
    State,
    Taken,
    defaults_of,
    expanded,
    memory_of,
)
from appliance.lease.state_rows import StateRows
from appliance.lease.wire import Age
from tests.support.shards import HOLDER, RIVAL

FLOOR, SETTLE_TO, FENCE = 70, 80, 1000
ORDINARY = FENCE.to_bytes(8, "big") + b"chance  "
ENDING = Ending(
    correlation_id=b"e" * 16,
    outcome=LeaseOutcome.EXPIRED,
    ended_ns=5,
    watermark_ns=None,
    watermark_time=None,
    messages=0,
    chain_head=None,
)
LEASE = LeaseRecord(
    mode=Mode.X,
    phase=Phase.HELD,
    holder=HOLDER,
    correlation_id=ORDINARY,
    fence=FENCE,
    granted_ns=FENCE - 1,
    expiry_ns=2000,
    floor_ns=FLOOR,
    settle_to_ns=SETTLE_TO,
    lowest_ns=FLOOR,
    age=Age(first_try_ns=999, request_id=b"r" * 16),
    granted_by=b"r" * 16,
    answered=b"r" * 16,
)
MEMORY = Memory(fence=FENCE, floor_ns=FLOOR, settle_to_ns=SETTLE_TO, hints=nothing_known(FLOOR), previous_id=ORDINARY)
OTHER_LEASE: dict[str, object] = {
    "mode": Mode.SIX,
    "phase": Phase.TENTATIVE,
    "holder": RIVAL,
    "correlation_id": b"c" * 16,
    "fence": 3,
    "granted_ns": FENCE,
    "expiry_ns": 2**63 - 1,
    "floor_ns": 1,
    "settle_to_ns": 1,
    "lowest_ns": 1,
    "age": Age(first_try_ns=2**63 - 1, request_id=b"t" * 16),
    "granted_by": b"g" * 16,
    "answered": b"a" * 16,
    "previous_id": b"p" * 16,
    "past": Past(last_ended=ENDING, floor_set_by=None, others=0, others_digest=None),
    "hints": Hints(complete_from_ns=5),
    "session_id": b"s" * 16,
}
OTHER_MEMORY: dict[str, object] = {
    "fence": 3,
    "floor_ns": 1,
    "settle_to_ns": 1,
    "hints": NOTHING_WRITTEN,
    "previous_id": b"c" * 16,
    "last_ended": ENDING,
    "floor_set_by": ENDING,
    "ended_request": b"q" * 16,
    "before_last": (),
}


def changed[S: (LeaseRecord, Memory)](ordinary: S, other: dict[str, object]) -> st.SearchStrategy[S]:
    """An ordinary one, of which a field or two are not."""

    def made(fields: list[str]) -> S:
        return msgspec.structs.replace(ordinary, **{each: other[each] for each in fields})

    return st.lists(st.sampled_from(sorted(other)), max_size=2).map(made)


LEASES = st.one_of(st.just(LEASE), changed(LEASE, OTHER_LEASE))
MEMORIES = st.one_of(st.just(MEMORY), changed(MEMORY, OTHER_MEMORY))
TAKEN = st.builds(Taken, memory=MEMORIES, leases=st.lists(LEASES, min_size=1, max_size=2).map(tuple))
OTHER_NAME = Taken(
    memory=msgspec.structs.replace(MEMORY, previous_id=b"c" * 16),
    leases=(msgspec.structs.replace(LEASE, correlation_id=b"c" * 16),),
)
FREED = memory_of(FreedDomain(defaults_of(MEMORY), ORDINARY, 5, b"q" * 16))
STATES: st.SearchStrategy[State] = st.one_of(
    TAKEN, TAKEN, st.just(OTHER_NAME), st.builds(Free, memory=MEMORIES | changed(FREED, OTHER_MEMORY))
)


def written() -> StateRows:
    found = StateRows()
    found.begin(FLOOR, SETTLE_TO)
    return found


SOME_STATES = st.lists(STATES, max_size=4)


def read_back(states: list[State]) -> None:
    store = written()
    for state in states:
        _, expiry, _, fence, _, _, raw = store.row(state)
        assert expanded(store.state(raw, expiry, fence)) == state


@given(SOME_STATES)
def test_row_is_read_as_the_state_that_was_written(states: list[State]) -> None:
    read_back(states)


UNKNOWN = Memory(fence=0, floor_ns=FLOOR, settle_to_ns=SETTLE_TO, hints=nothing_known(FLOOR))
DEFAULTS: st.SearchStrategy[DomainDefaults] = st.sampled_from(
    [
        defaults_of(UNKNOWN),
        defaults_of(msgspec.structs.replace(UNKNOWN, floor_set_by=ENDING)),
        defaults_of(msgspec.structs.replace(UNKNOWN, hints=Hints(complete_from_ns=5))),
        defaults_of(msgspec.structs.replace(UNKNOWN, floor_ns=71)),
        defaults_of(msgspec.structs.replace(UNKNOWN, settle_to_ns=81)),
    ]
)
IDS = st.sampled_from([b"r" * 16, b"q" * 16])


type Plain = FreedDomain | ExclusiveLease


@st.composite
def plain_states(draw: st.DrawFn) -> Plain:
    """A plain state as a turn makes it: what was before has the same ground."""
    defaults = draw(DEFAULTS)
    given = FreedDomain(
        defaults, draw(st.sampled_from([ORDINARY, b"o" * 16])), draw(st.integers(0, 2**63 - 1)), draw(IDS)
    )
    if draw(st.booleans()):
        return given
    memory = defaults.memory
    befores: list[FreedDomain | Memory] = [given, memory, msgspec.structs.replace(memory, last_ended=ENDING)]
    before = draw(st.sampled_from(befores))
    age = Age(first_try_ns=draw(st.integers(0, 2**63 - 1)), request_id=draw(IDS))
    granted = draw(st.sampled_from([FENCE - 1, FENCE - 2]))
    return ExclusiveLease(
        defaults, before, draw(st.sampled_from([HOLDER, RIVAL])), ORDINARY, granted, 2000, age, draw(IDS)
    )


SOME_PLAIN = st.lists(plain_states(), max_size=4)


def read_back_plain(states: list[Plain]) -> None:
    store = written()
    for state in states:
        columns = store.row(state)
        assert columns[:6] == store.row(expanded(state))[:6]
        _, expiry, _, fence, _, _, raw = columns
        assert expanded(store.state(raw, expiry, fence)) == expanded(state)


@settings(max_examples=100)
@given(SOME_PLAIN)
def test_row_of_a_plain_state_is_read_as_the_state_that_it_stands_for(states: list[Plain]) -> None:
    read_back_plain(states)


# What a domain is in after it was given back, and granted again, is most of what a shard that is used remembers.
def test_plain_states_are_written_short() -> None:
    store = written()
    defaults = defaults_of(UNKNOWN)
    given = FreedDomain(defaults, ORDINARY, 5, b"r" * 16)
    age = Age(first_try_ns=1, request_id=b"r" * 16)
    assert len(store.row(given)[-1]) == 33
    assert len(store.row(ExclusiveLease(defaults, given, HOLDER, ORDINARY, 6, 7, age, b"r" * 16))[-1]) == 84
    assert (
        len(store.row(ExclusiveLease(defaults, defaults.memory, HOLDER, ORDINARY, FENCE - 1, 7, age, b"r" * 16))[-1])
        == 43
    )


def first_lease(**other: object) -> Taken:
    """What a domain is in after its first grant."""
    return Taken(memory=MEMORY, leases=(msgspec.structs.replace(LEASE, **other),))


# A million leases have to fit: the test would notice if what is ordinary were written whole.
@pytest.mark.parametrize(
    ("other", "size"),
    [({}, 43), ({"phase": Phase.TENTATIVE}, 43), ({"answered": b"a" * 16}, 59), ({"session_id": b"s" * 16}, 67)],
)
def test_first_lease_of_a_domain_is_written_short(other: dict[str, object], size: int) -> None:
    store = written()
    state = first_lease(**other)
    _, expiry, latest, fence, floor, settle_to, raw = store.row(state)
    assert len(raw) == size
    assert (floor, settle_to) == (None, None)
    assert latest in (None, 0)
    assert expanded(store.state(raw, expiry, fence)) == state


def test_leases_of_more_holders_than_have_numbers_are_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_rows, "HOLDERS_MAX", 1)
    store = written()
    for holder, short in ((HOLDER, True), (RIVAL, False), (HOLDER, True)):
        state = first_lease(holder=holder)
        _, expiry, _, fence, _, _, raw = store.row(state)
        assert (len(raw) == 43) is short
        assert expanded(store.state(raw, expiry, fence)) == state
