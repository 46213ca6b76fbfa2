"""What the kernel, a stated radius and the file server's clock say of the time, and when they are refused."""

import ctypes
import errno

import pytest

from tests.support.machine import HandMachine
from timeagent.errors import BadTime, Environment
from timeagent.sources.local import (
    GRANULARITY_NS,
    SLEW_ALLOWANCE_NS,
    AssumedSource,
    KernelSource,
    MountSource,
    ReadTimex,
    Timex,
    read_timex,
)
from timeagent.sources.port import Sample
from timeagent.units import MS, SECOND, US, TimeInterval

UNSYNC = 0x0040
NANO = 0x2000


def answering(state: int = 0, **fields: int) -> ReadTimex:
    def read(timex: Timex) -> int:
        assert timex.modes == 0, "a reader changes nothing"
        for name, value in fields.items():
            setattr(timex, name, value)
        return state

    return read


def sampled(state: int = 0, **fields: int) -> TimeInterval:
    sample = KernelSource(HandMachine(), answering(state, **fields)).sample()
    assert not sample.assumed
    return sample.offset


def test_structure_has_the_size_of_the_kernels() -> None:
    assert ctypes.sizeof(Timex) == 208


def test_bound_is_error_and_remaining_offset_and_allowance() -> None:
    assert sampled(maxerror=3_001, esterror=12) == TimeInterval.around(0, 3_001 * US + SLEW_ALLOWANCE_NS)
    assert sampled(maxerror=1, esterror=1, offset=-7) == TimeInterval.around(0, 8 * US + SLEW_ALLOWANCE_NS)
    assert sampled(maxerror=1, esterror=1, offset=-7, status=NANO) == TimeInterval.around(0, US + 7 + SLEW_ALLOWANCE_NS)


@pytest.mark.parametrize("state", [1, 2, 3, 4])
def test_announced_leap_second_is_no_error(state: int) -> None:
    assert sampled(state, maxerror=1_001, esterror=1).radius == 1_001 * US + SLEW_ALLOWANCE_NS


@pytest.mark.parametrize(("state", "status"), [(5, 0), (0, UNSYNC), (5, UNSYNC)])
def test_unsynchronised_kernel_is_refused(state: int, status: int) -> None:
    with pytest.raises(BadTime) as refused:
        sampled(state, status=status, maxerror=1_001, esterror=1)
    assert refused.value.code == "not-synchronized"
    assert f"0x{status:04x}" in refused.value.message
    assert refused.value.hint


# systemd-timesyncd writes zeros; the kernel then adds 500 us to maxerror each second and leaves esterror alone.
@pytest.mark.parametrize("seconds", [0, 1, 2, 32, 2048])
def test_fake_zero_is_refused_at_any_age(seconds: int) -> None:
    with pytest.raises(BadTime) as refused:
        sampled(maxerror=500 * seconds, esterror=0)
    assert refused.value.code == "no-bound"
    assert "timesyncd" in refused.value.message


# chrony beside a hardware clock estimates less than a microsecond, and still states a bound of its own.
@pytest.mark.parametrize("maxerror", [1, 499, 501])
def test_real_bound_with_a_tiny_estimate_is_taken(maxerror: int) -> None:
    assert sampled(maxerror=maxerror, esterror=0).radius == maxerror * US + SLEW_ALLOWANCE_NS


def test_failing_call_names_the_reason() -> None:
    def read(timex: Timex) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    with pytest.raises(BadTime, match="Operation not permitted") as refused:
        KernelSource(HandMachine(), read).sample()
    assert refused.value.code == "kernel-refused"


# A pause between the kernel's answer and our look at the clock must age the sample, not hide.
def test_sample_is_dated_before_the_answer() -> None:
    machine = HandMachine()
    began = machine.boot

    def read(timex: Timex) -> int:
        machine.pass_time(100 * MS)
        return answering(maxerror=1_001, esterror=1)(timex)

    assert KernelSource(machine, read).sample().boot_ns == began


def test_this_machines_kernel_answers() -> None:
    timex = Timex()
    assert 0 <= read_timex(timex) <= 5
    assert timex.maxerror >= 0


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
