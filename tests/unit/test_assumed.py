import pytest

from tests.support.machine import HandMachine
from timeagent.errors import BadTime
from timeagent.sources.local import AssumedSource
from timeagent.sources.port import Sample
from timeagent.units import TimeInterval


def test_stated_radius_is_labelled() -> None:
    machine = HandMachine()
    expected = Sample(TimeInterval(-7, 7), machine.boot, assumed=True)
    assert AssumedSource(machine, 7).sample() == expected


def test_source_refuses_while_no_radius_is_stated() -> None:
    source = AssumedSource(HandMachine(), 0)
    with pytest.raises(BadTime) as refused:
        source.sample()
    assert refused.value.code == "nothing-assumed"
    source.state(7)
    assert source.sample().offset == TimeInterval(-7, 7)
    source.state(0)
    with pytest.raises(BadTime):
        source.sample()
