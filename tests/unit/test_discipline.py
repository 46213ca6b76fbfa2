"""Every state meets every event: what is said next, in which clock epoch, and what there is to tell."""

import pytest

from timeagent.agent.discipline import (
    DISRUPTED_NS,
    FRESH_NS,
    VOID_AFTER_NS,
    AgentState,
    Agreed,
    Bound,
    ClockMoment,
    ClockMoved,
    Contradicted,
    Event,
    Rules,
    SourcesContradict,
    Voice,
    Weight,
    combine,
    decide,
    hull,
    tolerated,
)
from timeagent.signedtime import ClockStatus
from timeagent.units import SECOND, TimeInterval

RULES = Rules(SECOND)
THEN = ClockMoment(1000 * SECOND)
NOW = ClockMoment(1001 * SECOND)
BOUND = Bound(TimeInterval(-5, 5), THEN)
EDGE = 5 + 200_000
"""How far the bound reaches a second later."""


def unknown(epoch: int, said: Bound | None = None) -> AgentState:
    return AgentState(ClockStatus.UNKNOWN, epoch, said)


def synchronized(epoch: int, bound: Bound) -> AgentState:
    return AgentState(ClockStatus.SYNCHRONIZED, epoch, bound)


def free_running(epoch: int, bound: Bound) -> AgentState:
    return AgentState(ClockStatus.FREE_RUNNING, epoch, bound)


def disrupted(epoch: int, until_ns: int, said: Bound | None, apart_ns: int = 0) -> AgentState:
    return AgentState(ClockStatus.DISRUPTED, epoch, said, until_ns, apart_ns)


def agreed(low: int = -3, high: int = 3, *, assumed: bool = False, cluster: bool = False) -> Agreed:
    return Agreed(TimeInterval(low, high), ("a",), (), assumed, cluster)


LIARS = Contradicted((Voice("a", TimeInterval(0, 1)), Voice("b", TimeInterval(5, 6))), 0)
STEP = ClockMoved("step", 10 * SECOND)
UNKNOWN = unknown(7)
WAITING = unknown(7, BOUND)
SYNCHRONIZED = synchronized(7, BOUND)
FREE = free_running(7, BOUND)
DISRUPTED = disrupted(7, NOW.boot_ns + 1, BOUND)
DUE = disrupted(7, NOW.boot_ns, BOUND)
AFTER = Bound(TimeInterval(-3, 3), NOW, source="a")
SILENCE = NOW.boot_ns + DISRUPTED_NS

TABLE: list[tuple[AgentState, Event, AgentState, SourcesContradict | None]] = [
    (UNKNOWN, agreed(), synchronized(7, AFTER), None),
    (WAITING, agreed(), synchronized(7, AFTER), None),
    (SYNCHRONIZED, agreed(), synchronized(7, AFTER), None),
    (FREE, agreed(), synchronized(7, AFTER), None),
    (DISRUPTED, agreed(), disrupted(7, NOW.boot_ns + 1, AFTER), None),
    (DUE, agreed(), synchronized(7, AFTER), None),
    (UNKNOWN, LIARS, disrupted(8, SILENCE, None), SourcesContradict(8, None, LIARS)),
    *[
        (
            state,
            LIARS,
            disrupted(8, SILENCE, BOUND),
            SourcesContradict(8, TimeInterval(-EDGE, EDGE), LIARS),
        )
        for state in (WAITING, SYNCHRONIZED, FREE, DISRUPTED, DUE)
    ],
    (UNKNOWN, STEP, unknown(8), None),
    (WAITING, STEP, unknown(8, BOUND), None),
    (SYNCHRONIZED, STEP, unknown(8, BOUND), None),
    (FREE, STEP, unknown(8, BOUND), None),
    (DISRUPTED, STEP, disrupted(8, NOW.boot_ns + 1, BOUND), None),
    *[(state, None, state, None) for state in (UNKNOWN, WAITING, SYNCHRONIZED, FREE, DISRUPTED, DUE)],
]


@pytest.mark.parametrize(("state", "event", "then", "outcome"), TABLE)
def test_every_state_meets_every_event(
    state: AgentState, event: Event, then: AgentState, outcome: SourcesContradict | None
) -> None:
    assert decide(state, event, NOW, RULES) == (then, outcome)


def test_table_is_whole() -> None:
    met = {(state.status, type(event)) for state, event, _, _ in TABLE}
    states, events = (
        set(ClockStatus),
        {Agreed, Contradicted, ClockMoved, type(None)},
    )
    assert met == {(state, event) for state in states for event in events}


# At the very edge of what was said both can be true; one nanosecond further one of the two was wrong.
@pytest.mark.parametrize("state", [WAITING, SYNCHRONIZED, FREE, DUE])
@pytest.mark.parametrize("sign", [1, -1])
def test_sample_beyond_what_was_said_disrupts(state: AgentState, sign: int) -> None:
    def at(near: int) -> Agreed:
        ends = sorted((sign * near, sign * (near + 10)))
        return agreed(*ends)

    assert decide(state, at(EDGE), NOW, RULES)[0].status is ClockStatus.SYNCHRONIZED
    heard = at(EDGE + 1)
    then, outcome = decide(state, heard, NOW, RULES)
    assert then == disrupted(8, SILENCE, Bound(heard.ahead, NOW, source="a"), 1)
    assert outcome == SourcesContradict(8, TimeInterval(-EDGE, EDGE), heard)


# After the silence the reading that contradicted counts, in the epoch that began with it.
def test_disrupted_is_left_by_a_sample_after_the_silence() -> None:
    heard = agreed(SECOND, SECOND + 10)
    state, _ = decide(SYNCHRONIZED, heard, NOW, RULES)
    last = ClockMoment(NOW.boot_ns + DISRUPTED_NS - 1)
    state, _ = decide(state, heard, last, RULES)
    assert state.status is ClockStatus.DISRUPTED
    state, _ = decide(state, None, ClockMoment(NOW.boot_ns + DISRUPTED_NS), RULES)
    assert state.status is ClockStatus.DISRUPTED
    state, _ = decide(state, heard, ClockMoment(NOW.boot_ns + DISRUPTED_NS), RULES)
    assert state == synchronized(8, Bound(heard.ahead, ClockMoment(NOW.boot_ns + DISRUPTED_NS), source="a"))


def test_second_contradiction_begins_the_silence_again() -> None:
    state, _ = decide(SYNCHRONIZED, agreed(SECOND, SECOND + 10), NOW, RULES)
    later = ClockMoment(NOW.boot_ns + DISRUPTED_NS - 1)
    state, outcome = decide(state, agreed(), later, RULES)
    assert state.status is ClockStatus.DISRUPTED
    assert (state.epoch, state.until_ns) == (9, later.boot_ns + DISRUPTED_NS)
    assert isinstance(outcome, SourcesContradict)


@pytest.mark.parametrize(
    ("age", "state"),
    [
        (FRESH_NS, SYNCHRONIZED),
        (FRESH_NS + 1, FREE),
        (VOID_AFTER_NS, FREE),
        (VOID_AFTER_NS + 1, WAITING),
    ],
)
def test_measurement_that_is_not_repeated_runs_free_and_is_void_at_last(age: int, state: AgentState) -> None:
    assert decide(SYNCHRONIZED, None, ClockMoment(THEN.boot_ns + age), RULES)[0] == state


def test_slew_beyond_the_drift_bound_widens_what_was_said() -> None:
    slewed = ClockMoment(NOW.boot_ns, slewed_ns=1_000_000)
    assert decide(SYNCHRONIZED, agreed(EDGE + 1_000_000, SECOND), slewed, RULES)[0].status is ClockStatus.SYNCHRONIZED
    assert decide(SYNCHRONIZED, agreed(EDGE + 1_000_001, SECOND), slewed, RULES)[0].status is ClockStatus.DISRUPTED


def test_assumption_is_free_running_and_does_not_age() -> None:
    state, _ = decide(UNKNOWN, agreed(assumed=True), THEN, RULES)
    assert state == free_running(7, Bound(TimeInterval(-3, 3), THEN, assumed=True, source="a"))
    assert decide(state, agreed(3, 9, assumed=True), NOW, RULES)[0].status is ClockStatus.FREE_RUNNING
    assert decide(state, agreed(4, 9, assumed=True), NOW, RULES)[0].status is ClockStatus.DISRUPTED


@pytest.mark.parametrize("state", [SYNCHRONIZED, FREE])
def test_assumption_does_not_replace_a_measurement_before_it_is_void(state: AgentState) -> None:
    stated = agreed(-SECOND, SECOND, assumed=True)
    assert decide(state, stated, NOW, RULES) == (state, None)
    void = ClockMoment(THEN.boot_ns + VOID_AFTER_NS + 1)
    assert decide(state, stated, void, RULES)[0] == free_running(7, Bound(stated.ahead, void, assumed=True, source="a"))


def test_time_of_a_cluster_stays_labelled() -> None:
    state, _ = decide(UNKNOWN, agreed(cluster=True), NOW, RULES)
    assert state.bound is not None
    assert state.bound.cluster_time


def voice(name: str, low: int, high: int, weight: Weight = Weight.MEASURE, *, cluster: bool = False) -> Voice:
    return Voice(name, TimeInterval(low, high), weight, cluster_time=cluster)


def check(name: str, low: int, high: int) -> Voice:
    return voice(name, low, high, Weight.CROSS_CHECK)


@pytest.mark.parametrize(
    ("intervals", "liars", "expected"),
    [
        ([(1, 5)], 0, (1, 5)),
        ([(1, 5), (3, 9)], 0, (3, 5)),
        ([(1, 5), (5, 9)], 0, (5, 5)),  # both ends belong to an interval
        ([(1, 5), (6, 9)], 0, None),
        ([(1, 5), (6, 9)], 1, (1, 9)),
        ([(8, 12), (11, 13), (10, 12)], 0, (11, 12)),
        ([(8, 12), (11, 13), (14, 15)], 1, (11, 12)),
        ([(8, 9), (11, 13), (14, 15)], 1, None),
        ([(0, 10), (0, 1), (9, 10)], 1, (0, 10)),  # two islands: true time may be on either
        ([(5, 5), (5, 5), (5, 5)], 0, (5, 5)),
    ],
)
def test_hull_of_what_enough_intervals_hold(
    intervals: list[tuple[int, int]], liars: int, expected: tuple[int, int] | None
) -> None:
    found = hull([TimeInterval(*each) for each in intervals], liars)
    assert found == (TimeInterval(*expected) if expected else None)


@pytest.mark.parametrize(
    ("voices", "liars", "expected"),
    [(1, None, 0), (2, None, 0), (3, None, 1), (4, None, 1), (5, None, 2), (5, 1, 1), (3, 2, 1), (5, 0, 0)],
)
def test_liars_are_always_fewer_than_half(voices: int, liars: int | None, expected: int) -> None:
    assert tolerated(voices, liars) == expected


def test_one_liar_of_three_is_named_and_changes_nothing() -> None:
    said = combine([voice("a", 0, 10), voice("b", 2, 8), voice("liar", 100, 101)])
    assert said == Agreed(TimeInterval(2, 8), ("a", "b"), ("liar",), assumed=False, cluster_time=False)


def test_two_who_disagree_contradict_each_other() -> None:
    voices = (voice("a", 0, 1), voice("b", 5, 6))
    assert combine(voices) == Contradicted(voices, 0)


def test_nobody_says_nothing() -> None:
    assert combine([]) is None


# The file server's clock is good to seconds and often wrong: alone it is no time.
def test_cross_check_alone_is_no_time() -> None:
    assert combine([check("mount", 0, 10)]) is None


def test_cross_check_never_shapes_the_interval() -> None:
    said = combine([voice("a", 4, 6), check("mount", 5, 1000)])
    assert isinstance(said, Agreed)
    assert said.ahead == TimeInterval(4, 6)
    assert said.voices == ("a",)


def test_cross_check_votes() -> None:
    assert isinstance(combine([voice("a", 4, 6), check("mount", 50, 1000)]), Contradicted)
    tolerant = combine([voice("a", 4, 6), voice("b", 4, 6), check("mount", 50, 1000)])
    assert isinstance(tolerant, Agreed)
    assert tolerant.dissenting == ("mount",)
    outvoted = combine([voice("a", 4, 6), check("mount", 50, 1000), check("roughtime", 50, 1000)])
    assert isinstance(outvoted, Contradicted)
    assert outvoted.tolerated == 1


def test_assumption_counts_only_where_nothing_measures() -> None:
    assumed = voice("assumed", -100, 100, Weight.ASSUMED)
    said = combine([assumed])
    assert isinstance(said, Agreed)
    assert said.assumed
    measured = combine([voice("a", 4, 6), assumed])
    assert isinstance(measured, Agreed)
    assert (measured.ahead, measured.assumed, measured.voices) == (TimeInterval(4, 6), False, ("a",))


def test_time_of_a_cluster_is_labelled() -> None:
    said = combine([voice("a", 0, 10, cluster=True), voice("b", 2, 8)])
    assert isinstance(said, Agreed)
    assert said.cluster_time
