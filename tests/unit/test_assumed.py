import pytest

from tests.support.machine import HandMachine
from timeagent.interval import TimeInterval
from timeagent.signedtime import ClockStatus
from timeagent.sources.local import AssumedSource
from timeagent.sources.port import Sample


def test_stated_radius_is_labelled() -> None:
    machine = HandMachine()
    expected = Sample("assumed", TimeInterval(-7, 7), machine.boot, ClockStatus.FREE_RUNNING, assumed=True)
    assert AssumedSource(machine, 7).sample() == expected


@pytest.mark.parametrize("radius", [0, -1])
def test_radius_is_positive(radius: int) -> None:
    with pytest.raises(AssertionError):
        AssumedSource(HandMachine(), radius)
