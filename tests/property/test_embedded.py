"""The clock with a bound, against a truth that only the test knows."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.machine import START_NS, HandMachine
from tests.support.values import TIME_KEY
from timeagent.agent.bounded_clock import EmbeddedTime
from timeagent.clock import DRIFT_PPM
from timeagent.errors import BadTime
from timeagent.signedtime import STALENESS_NS
from timeagent.sources.port import Sample
from timeagent.units import DAY, HOUR, MS, SECOND, TimeInterval

STEPS = st.one_of(st.integers(-2 * MS, 2 * MS), st.integers(-100 * MS, 100 * MS), st.integers(-HOUR, HOUR))
SPANS = st.one_of(st.integers(0, 60 * MS), st.integers(0, 3 * SECOND), st.integers(0, HOUR))


class HonestSource:
    """States true - CLOCK_REALTIME with an error inside the radius it claims."""

    name = "honest"

    def __init__(self, machine: HandMachine) -> None:
        self.machine = machine
        self.truth = START_NS
        self.error = 0

    def sample(self) -> Sample:
        offset = TimeInterval.around(self.truth - self.machine.real + self.error, 5 * MS)
        return Sample(offset, self.machine.boot)


@given(st.data())
def test_interval_holds_the_truth_however_the_clock_drifts_and_steps(data: st.DataObject) -> None:
    machine = HandMachine()
    source = HonestSource(machine)
    time = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=DAY)
    handed_out: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        span = data.draw(SPANS)
        drift = data.draw(st.sampled_from([-DRIFT_PPM, 0, DRIFT_PPM]))
        machine.pass_time(span)
        source.truth += span + span * drift // 1_000_000
        if data.draw(st.booleans()):
            machine.step(data.draw(STEPS))
        source.error = data.draw(st.integers(-5 * MS, 5 * MS))
        now = time.now()
        assert now.earliest <= source.truth <= now.latest
        token = time.token()
        first_seen = handed_out.setdefault(token.sequence, source.truth)
        assert source.truth - first_seen <= STALENESS_NS
        over = time.token_over(bytes(32)).interval
        assert over.earliest <= source.truth <= over.latest


# A source that lies is not always found out, but what is said never jumps without a new clock epoch or a silence.
@given(st.data())
def test_lying_source_is_silenced_or_consistent(data: st.DataObject) -> None:
    machine = HandMachine()
    source = HonestSource(machine)
    time = EmbeddedTime(machine, [source], TIME_KEY, radius_ns_max=DAY)
    before: tuple[int, TimeInterval, int] | None = None
    for _ in range(data.draw(st.integers(1, 25))):
        span = data.draw(SPANS)
        source.truth += span
        machine.pass_time(span)
        source.error = data.draw(STEPS)
        try:
            token = time.token_over(bytes(32))
        except BadTime as silenced:
            assert silenced.code == "clock-disrupted"  # noqa: PT017 - one of two good outcomes
            continue
        if before is not None and before[0] == token.clock_epoch:
            carried = before[1].shifted(machine.boot - before[2])
            allowed = carried.widened((machine.boot - before[2]) * DRIFT_PPM // 1_000_000 + 2)
            assert allowed.intersection(token.interval) is not None
        before = (token.clock_epoch, token.interval, machine.boot)
