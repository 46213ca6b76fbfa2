"""EmbeddedTime under a hand-driven machine: what it signs, for how long, and what it refuses."""

import threading
from unittest.mock import patch

import pytest

from tests.support.machine import HandMachine, StatedSource
from tests.support.values import TIME_KEY
from timeagent.agent.bounded_clock import PERIOD_NS, STEP_NS, EmbeddedTime
from timeagent.agent.discipline import DISRUPTED_NS, Hearing
from timeagent.clock import SystemClock
from timeagent.errors import BadTime
from timeagent.keys import Signer
from timeagent.signedtime import STALENESS_NS, ClockStatus, TimeFlags
from timeagent.sources.local import AssumedSource
from timeagent.units import HOUR, MS, SECOND

KEY = TIME_KEY.verifier()
RADIUS_MAX = 250 * MS


@pytest.fixture
def machine() -> HandMachine:
    return HandMachine()


@pytest.fixture
def source(machine: HandMachine) -> StatedSource:
    return StatedSource(machine)


@pytest.fixture
def time(machine: HandMachine, source: StatedSource) -> EmbeddedTime:
    return EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=RADIUS_MAX)


def test_token_states_what_now_says(time: EmbeddedTime) -> None:
    token = time.token()
    assert token.interval == time.now()
    assert token.verified_by(KEY)
    assert token.status is ClockStatus.SYNCHRONIZED
    assert token.flags == TimeFlags.NONE
    assert token.staleness_ns == STALENESS_NS


def test_one_token_is_handed_out_for_a_period(time: EmbeddedTime, machine: HandMachine) -> None:
    token = time.token()
    machine.pass_time(PERIOD_NS - 1)
    assert time.token() is token
    machine.pass_time(1)
    later = time.token()
    assert later.sequence > token.sequence
    assert later.midpoint_ns == machine.real


def test_token_over_a_digest_is_made_now_and_covers_it(time: EmbeddedTime, machine: HandMachine) -> None:
    digest = bytes(range(32))
    page = time.token()
    machine.pass_time(1)
    token = time.token_over(digest)
    assert token.midpoint_ns == machine.real
    assert token.verified_by(KEY, digest)
    assert token.staleness_ns == 0
    assert time.token() is page


def test_assumed_time_is_labelled_in_every_token(machine: HandMachine) -> None:
    time = EmbeddedTime(machine, [AssumedSource(machine, RADIUS_MAX)], TIME_KEY, radius_ns_max=RADIUS_MAX)
    assert time.token().flags == TimeFlags.ASSUMED
    assert time.token_over(bytes(32)).flags == TimeFlags.ASSUMED | TimeFlags.NONCE
    assert time.token().status is ClockStatus.FREE_RUNNING


# The token in hand was signed about the clock as it was before.
@pytest.mark.parametrize("sign", [1, -1])
def test_token_of_another_clock_epoch_is_never_handed_out(machine: HandMachine, sign: int) -> None:
    time = EmbeddedTime(machine, [StatedSource(machine, 200 * MS)], TIME_KEY, radius_ns_max=RADIUS_MAX)
    token = time.token()
    machine.step(sign * (STEP_NS + 1))
    later = time.token()
    assert later.clock_epoch == token.clock_epoch + 1
    assert later.midpoint_ns == machine.real


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_after_a_contradiction_nothing_is_signed_for_a_while(
    time: EmbeddedTime, machine: HandMachine, step: int
) -> None:
    epoch = time.token().clock_epoch
    machine.step(step)
    for ask in (time.now, time.token, time.look, lambda: time.token_over(bytes(32))):
        with pytest.raises(BadTime) as refused:
            ask()
        assert refused.value.code == "clock-disrupted"
    machine.pass_time(DISRUPTED_NS)
    assert time.token().clock_epoch > epoch
    assert time.now().earliest <= machine.real <= time.now().latest


# Within its period a token could still be handed out although the clock may no longer be believed.
def test_token_is_not_handed_out_when_now_is_refused(machine: HandMachine) -> None:
    source = StatedSource(machine, RADIUS_MAX)
    time = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=RADIUS_MAX)
    time.token()
    machine.pass_time(1)
    for ask in (time.now, time.token):
        with pytest.raises(BadTime) as refused:
            ask()
        assert refused.value.code == "radius-too-wide"


class SlowSigner(Signer):
    """A signer during whose work this process is stopped."""

    def __init__(self, machine: HandMachine, pauses: list[int]) -> None:
        self.machine = machine
        self.pauses = pauses
        self.id = TIME_KEY.id

    def sign(self, context: str, payload: bytes) -> bytes:
        self.machine.pass_time(self.pauses.pop(0))
        return TIME_KEY.sign(context, payload)


@pytest.mark.parametrize(("pause", "signings"), [(STALENESS_NS, 1), (STALENESS_NS + 1, 2)])
def test_token_that_went_stale_while_it_was_signed_is_signed_again(
    machine: HandMachine, source: StatedSource, pause: int, signings: int
) -> None:
    signer = SlowSigner(machine, [pause, 0])
    time = EmbeddedTime(machine, [source], signer, radius_ns_max=RADIUS_MAX)
    token = time.token()
    assert token.sequence == signings
    assert machine.real - token.midpoint_ns <= STALENESS_NS


def test_machine_that_always_stalls_is_refused_by_name(machine: HandMachine, source: StatedSource) -> None:
    signer = SlowSigner(machine, [SECOND] * 9)
    time = EmbeddedTime(machine, [source], signer, radius_ns_max=RADIUS_MAX)
    with pytest.raises(BadTime) as refused:
        time.token()
    assert refused.value.code == "stalled"
    assert 0 < len(signer.pauses) < 9


# A pause between looking at the clock and dating the token made it look younger than it was.
def test_token_is_dated_by_the_look_and_not_after_it(
    time: EmbeddedTime, machine: HandMachine, source: StatedSource
) -> None:
    source.at_sample = lambda: machine.pass_time(40 * MS)
    token = time.token()
    machine.pass_time(PERIOD_NS)
    assert time.token() is not token
    for _ in range(200):
        token = time.token()
        assert machine.real - token.midpoint_ns < PERIOD_NS
        machine.pass_time(7 * MS)


# Sequence numbers begin anew with each process: so does the clock epoch, on one machine and boot too.
def test_two_processes_have_two_clock_epochs(machine: HandMachine, source: StatedSource) -> None:
    first = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=RADIUS_MAX).token()
    machine.pass_time(1)
    second = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=RADIUS_MAX).token()
    assert first.clock_epoch != second.clock_epoch
    named = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=RADIUS_MAX, clock_epoch=5).token()
    assert named.clock_epoch == 5


def test_look_says_where_the_time_is_from(time: EmbeddedTime, machine: HandMachine, source: StatedSource) -> None:
    assert time.look().source == "stated"
    machine.pass_time(SECOND)
    source.refusal = BadTime("no-bound", "nothing today")
    with pytest.raises(BadTime, match="nothing today"):
        time.look()


def test_waiting_and_boot_time_are_the_machines(time: EmbeddedTime, machine: HandMachine) -> None:
    before = time.boot_ns()
    time.sleep(5 * MS)
    assert time.boot_ns() == before + 5 * MS == machine.boot


class WatchingSigner(Signer):
    """A signer that is only ever asked by the thread that holds the lock."""

    def __init__(self) -> None:
        self.id = TIME_KEY.id
        self.lock: threading.Lock | None = None
        self.asked = 0

    def sign(self, context: str, payload: bytes) -> bytes:
        assert self.lock is not None
        assert self.lock.locked()
        self.asked += 1
        return TIME_KEY.sign(context, payload)


def test_clock_and_key_are_used_under_the_lock(machine: HandMachine, source: StatedSource) -> None:
    signer = WatchingSigner()
    time = EmbeddedTime(machine, [source], signer, radius_ns_max=RADIUS_MAX)
    signer.lock = time._lock

    def locked(*_: object) -> None:
        assert time._lock.locked()

    machine.at_read = source.at_sample = locked
    for ask in (time.token, time.now, time.look, lambda: time.token_over(bytes(32))):
        ask()
    with patch.object(Hearing, "refusals", locked):
        time.refusals()
    assert signer.asked == 2
    assert not time._lock.locked()


def test_threads_never_share_a_sequence_number() -> None:
    machine = SystemClock()
    time = EmbeddedTime(machine, [AssumedSource(machine, RADIUS_MAX)], TIME_KEY, radius_ns_max=RADIUS_MAX)
    sequences: list[int] = []

    def work() -> None:
        sequences.extend(time.token_over(bytes(32)).sequence for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sequences) == list(range(1, 201))
