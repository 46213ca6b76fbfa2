"""The file server's clock as a cross-check."""

import pytest

from tests.support.machine import HandMachine
from timeagent.errors import BadTime, Environment
from timeagent.sources.local import GRANULARITY_NS, MountSource
from timeagent.units import MS, SECOND


def touching(machine: HandMachine, offset: int, *, before: int = 0, after: int = 0, tick: int = 1) -> MountSource:
    """A server whose clock is ahead by ``offset`` and stamps with its last tick."""

    def touch() -> int:
        machine.pass_time(before)
        stamped = (machine.real + offset) // tick * tick
        machine.pass_time(after)
        return stamped

    return MountSource(machine, touch, SECOND)


# However long the call took, and whatever the tick: the server's true offset is inside.
@pytest.mark.parametrize("offset", [0, 7 * SECOND, -7 * SECOND])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (300 * MS, 0), (0, 300 * MS)])
@pytest.mark.parametrize("tick", [1, GRANULARITY_NS])
def test_servers_offset_is_inside_with_the_stated_radius(offset: int, before: int, after: int, tick: int) -> None:
    sample = touching(
        HandMachine(real_ns=1_795_212_607_003_000_001), offset, before=before, after=after, tick=tick
    ).sample()
    assert sample.offset.earliest + SECOND <= offset <= sample.offset.latest - SECOND
    assert sample.offset.latest - sample.offset.earliest <= 2 * SECOND + before + after + GRANULARITY_NS


@pytest.mark.parametrize("problem", [OSError(5, "Input/output error"), Environment("gone", "not mounted")])
def test_mount_that_fails_is_refused_by_name(problem: Exception) -> None:
    def touch() -> int:
        raise problem

    with pytest.raises(BadTime) as refused:
        MountSource(HandMachine(), touch, SECOND).sample()
    assert refused.value.code == "mount-refused"
