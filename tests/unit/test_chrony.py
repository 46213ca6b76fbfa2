"""chrony's tracking report: the bound that is in it, and every report that is no bound."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.chrony import UPDATED_S, Report, chrony_float
from tests.support.machine import HandMachine
from timeagent.errors import BadTime
from timeagent.sources.chrony import (
    LOCAL_REFERENCE,
    SEGMENT_MAGIC,
    SEGMENT_STALE_NS,
    STALE_UPDATES,
    TRACKING_BYTES,
    ChronySource,
    ClockBoundSource,
    parse_tracking,
    tracking_request,
)
from timeagent.sources.port import Sample
from timeagent.units import MS, SECOND, US, TimeInterval


def source(
    report: Report, *, cluster_time: str = "", change: Callable[[bytes], bytes] = lambda data: data
) -> tuple[HandMachine, ChronySource]:
    machine = HandMachine(real_ns=UPDATED_S * SECOND + SECOND)

    def exchange(request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        sequence = int.from_bytes(request[8:12], "big")
        machine.pass_time(MS)
        assert not wanted(report.encode(sequence ^ 1))
        data = change(report.encode(sequence))
        assert wanted(data) or len(data) < 20
        return data

    return machine, ChronySource(machine, exchange, random.Random(5), cluster_time=cluster_time)


def sampled(report: Report, *, cluster_time: str = "") -> Sample:
    return source(report, cluster_time=cluster_time)[1].sample()


def refusal(report: Report, **given: Callable[[bytes], bytes]) -> BadTime:
    with pytest.raises(BadTime) as refused:
        source(report, **given)[1].sample()  # type: ignore[arg-type]
    return refused.value


# No one of the three is a bound: a server 0.3 s ahead was once reported as 0.15 s of correction, 0.3 s of delay.
@pytest.mark.parametrize(
    ("correction", "delay", "dispersion", "radius"),
    [
        (0.0, 0.002, 0.001, 2 * MS),
        (0.25, 0.002, 0.001, 252 * MS),
        (-0.25, 0.002, 0.001, 252 * MS),
        (0.15, 0.3, 0.0001, 300_100 * US),
        (0.0, 0.0, 0.001, MS),
    ],
)
def test_bound_is_half_the_delay_and_the_dispersion_and_the_correction(
    correction: float, delay: float, dispersion: float, radius: int
) -> None:
    sample = sampled(Report(correction=correction, delay=delay, dispersion=dispersion))
    assert not sample.assumed
    assert sample.offset == TimeInterval.around(0, sample.offset.radius)
    assert abs(sample.offset.radius - radius) < 100  # 25 bits of coefficient


# A pause between chronyd's answer and our look at the clock must age the sample, not hide.
def test_sample_is_dated_before_the_answer() -> None:
    machine, chrony = source(Report())
    began = machine.boot
    assert chrony.sample().boot_ns == began


@pytest.mark.parametrize(
    "report", [Report(reference=0, delay=1.0, dispersion=1.0), Report(leap=3), Report(stratum=0), Report(stratum=16)]
)
def test_unsynchronised_chronyd_is_refused(report: Report) -> None:
    assert refusal(report).code == "not-synchronized"


LOCAL = Report(reference=LOCAL_REFERENCE, stratum=8, delay=0.0, dispersion=0.0, interval=0.0)


# It reports leap Normal, and no error at all: who believes it signs plus or minus nothing.
def test_local_reference_is_refused() -> None:
    problem = refusal(LOCAL)
    assert problem.code == "local-reference"
    assert "cluster_time" in problem.hint


def test_local_reference_is_taken_and_labelled_where_a_cluster_time_is_named() -> None:
    old = replace(LOCAL, seconds=UPDATED_S - 3600)  # its own clock needs no update
    sample = sampled(old, cluster_time="node1")
    assert sample.cluster_time
    assert sample.offset == TimeInterval(0, 0)


# A client of such a server cannot see that its server serves its own clock.
def test_every_sample_is_labelled_where_a_cluster_time_is_named() -> None:
    assert sampled(Report(), cluster_time="node1").cluster_time
    assert not sampled(Report()).cluster_time


def test_no_error_from_another_reference_is_no_bound() -> None:
    assert refusal(Report(delay=0.0, dispersion=0.0)).code == "no-bound"
    assert refusal(Report(delay=-1.0)).code == "no-bound"
    assert refusal(Report(dispersion=-1.0)).code == "no-bound"


# chronyd says "synchronised" for very long after its servers died. The time of its update is blurred by a second.
@pytest.mark.parametrize(("late", "good"), [(-2, True), (0, True), (1, False)])
def test_update_that_is_too_old_is_stale(late: int, good: bool) -> None:  # noqa: FBT001
    report = Report(interval=16.0, seconds=UPDATED_S - STALE_UPDATES * 16 - late, nanoseconds=10 * MS)
    if good:
        sampled(report)
    else:
        assert refusal(report).code == "stale"


def test_update_is_dated_by_chronyds_corrected_clock() -> None:
    assert sampled(Report(correction=3600.0, seconds=UPDATED_S + 3600)).offset.radius > 3600 * SECOND
    assert refusal(Report(correction=3600.0)).code == "stale"


def test_gap_between_updates_is_no_long_interval() -> None:
    assert refusal(Report(interval=100_000.0, seconds=UPDATED_S - 8 * 1024 - 3)).code == "stale"


@pytest.mark.parametrize("report", [Report(version=5), Report(kind=1), Report(command=34)])
def test_reply_to_something_else_is_refused(report: Report) -> None:
    assert refusal(report).code == "chrony-garbled"


@pytest.mark.parametrize("report", [Report(status=2), Report(reply=1)])
def test_refusal_of_chronyd_is_named(report: Report) -> None:
    assert refusal(report).code == "chrony-refused"


@pytest.mark.parametrize("length", [0, 1, 20, 27, 28, TRACKING_BYTES - 1, TRACKING_BYTES + 1])
def test_reply_of_another_length_is_refused(length: int) -> None:
    assert refusal(Report(), change=lambda data: data.ljust(length, b"\0")[:length]).code == "chrony-garbled"


def test_request_is_as_long_as_its_reply() -> None:
    request = tracking_request(0x01020304)
    assert len(request) == TRACKING_BYTES
    assert request[:12] == bytes.fromhex("060100000021000001020304")


@given(st.floats(min_value=1e-9, max_value=4000.0), st.booleans())
def test_float_is_read_and_rounded_away_from_zero(value: float, negative: bool) -> None:  # noqa: FBT001
    signed = -value if negative else value
    tracking = parse_tracking(Report(correction=signed).encode(1), 1)
    assert abs(tracking.correction_ns - signed * SECOND) <= 1 + value * SECOND / 2**23
    assert (tracking.correction_ns < 0) == negative


def test_float_at_its_ends() -> None:
    assert chrony_float(1.0) != chrony_float(-1.0)
    assert parse_tracking(Report(correction=-1.0, delay=0.5).encode(9), 9).correction_ns == -SECOND


@given(st.binary(max_size=2 * TRACKING_BYTES))
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    for body in (data, Report().encode(1)[:28] + data):
        try:
            tracking = parse_tracking(body, 1)
        except BadTime:
            continue
        assert tracking.reference >= 0


# chronyd 4.3 as client of a server that serves its own clock, which was faked to be 0.3 s ahead; and that server.
CLIENT = bytes.fromhex(
    "0602000000210005000000000000000000c0ffee0000000000000000"
    "7f0000017f00000100000000000000000000000000010000000900000000"
    "00006b011eef0a1f48b1fe99995cde95408ae0a9a23c03767de9facb66fb06f315e00099987de886ad5e04824f06"
)
SERVER = bytes.fromhex(
    "0602000000210005000000000000000000c0ffee0000000000000000"
    "7f7f01010000000000000000000000000000000000000000000800000000"
    "00006b011ee92f8a2a54000000000000000000000000000000000000000000000000000000000000000000000000"
)


def test_reports_of_a_real_chronyd_are_read() -> None:
    client = parse_tracking(CLIENT, 0xC0FFEE)
    assert (client.reference, client.stratum, client.leap) == (0x7F000001, 9, 0)
    assert (client.correction_ns, client.root_delay_ns, client.root_dispersion_ns) == (149_999_083, 299_991_519, 64_220)
    assert abs(client.updated_ns - 1_795_235_567_169_822_385) < SECOND
    server = parse_tracking(SERVER, 0xC0FFEE)
    assert (server.reference, server.root_delay_ns, server.root_dispersion_ns) == (LOCAL_REFERENCE, 0, 0)


def test_captured_bytes_are_what_the_encoder_of_these_tests_makes() -> None:
    ours = Report(reference=LOCAL_REFERENCE, stratum=8, delay=0.0, dispersion=0.0, interval=0.0).encode(0xC0FFEE)
    assert len(ours) == len(SERVER)
    assert ours[:32] == SERVER[:32]
    assert ours[68:] == SERVER[68:]


NOW_NS = 100 * SECOND


@dataclass
class Segment:
    """A synchronised daemon; written apart from the decoder that it tests."""

    magic: bytes = SEGMENT_MAGIC
    size: int = 80
    version: int = 2
    generation: int = 4
    as_of_ns: int = NOW_NS
    void_after_ns: int = NOW_NS + 1000 * SECOND
    bound_ns: int = 3 * MS
    drift_ppb: int = 50_000
    status: int = 1

    def encode(self) -> bytes:
        as_of, void = divmod(self.as_of_ns, SECOND), divmod(self.void_after_ns, SECOND)
        head = self.magic + struct.pack("=IHH", self.size, self.version, self.generation)
        times = struct.pack("=4q", *as_of, *void)
        return head + times + struct.pack("=qQIiQ", self.bound_ns, 0, self.drift_ppb, self.status, 0)


def segment_source(tmp_path: Path, data: bytes) -> ClockBoundSource:
    path = tmp_path / "shm0"
    path.write_bytes(data)
    return ClockBoundSource(HandMachine(boot_ns=NOW_NS), path)


def segment_refusal(tmp_path: Path, segment: Segment) -> str:
    with pytest.raises(BadTime) as refused:
        segment_source(tmp_path, segment.encode()).sample()
    return refused.value.code


def test_bound_ages_by_the_daemons_own_drift(tmp_path: Path) -> None:
    assert len(Segment().encode()) == 80
    sample = segment_source(tmp_path, Segment().encode()).sample()
    assert sample.offset == TimeInterval.around(0, 3 * MS + 1)
    aged = segment_source(tmp_path, Segment(as_of_ns=NOW_NS - 2 * SECOND).encode()).sample()
    assert aged.offset.radius == 3 * MS + 100_001


@pytest.mark.parametrize("status", [0, 2, 3, 9, -1])
def test_status_that_is_not_synchronized_is_refused(tmp_path: Path, status: int) -> None:
    assert segment_refusal(tmp_path, Segment(status=status)) == "not-synchronized"


def test_segment_that_is_old_or_void_is_refused(tmp_path: Path) -> None:
    segment_source(tmp_path, Segment(as_of_ns=NOW_NS - SEGMENT_STALE_NS).encode()).sample()
    assert segment_refusal(tmp_path, Segment(as_of_ns=NOW_NS - SEGMENT_STALE_NS - 1)) == "stale"
    assert segment_refusal(tmp_path, Segment(void_after_ns=NOW_NS - 1)) == "stale"
    assert segment_refusal(tmp_path, Segment(as_of_ns=NOW_NS + SECOND)) == "stale"


# CLOCK_MONOTONIC stands still meanwhile: by that clock the bound looks fresh.
def test_segment_from_before_the_machine_was_suspended_is_refused(tmp_path: Path) -> None:
    path, machine = tmp_path / "shm0", HandMachine(boot_ns=NOW_NS)
    path.write_bytes(Segment().encode())
    source = ClockBoundSource(machine, path)
    source.sample()
    machine.suspend(SECOND)
    machine.pass_time(50 * MS)
    for _ in range(2):
        with pytest.raises(BadTime, match="stale"):
            source.sample()
    path.write_bytes(Segment(as_of_ns=NOW_NS + 50 * MS).encode())
    assert source.sample().offset.radius == 3 * MS + 1


@pytest.mark.parametrize("bound", [0, -1])
def test_error_of_nothing_is_no_bound(tmp_path: Path, bound: int) -> None:
    assert segment_refusal(tmp_path, Segment(bound_ns=bound)) == "no-bound"


@pytest.mark.parametrize(
    "segment",
    [
        Segment(magic=bytes(8)),
        Segment(version=1),
        Segment(version=3),
        Segment(size=79),
        Segment(generation=0),
        Segment(generation=5),
    ],
)
def test_segment_that_is_none_or_always_being_written_is_refused(tmp_path: Path, segment: Segment) -> None:
    assert segment_refusal(tmp_path, segment) == "clockbound-garbled"


def test_short_and_absent_segments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTime) as refused:
        segment_source(tmp_path, Segment().encode()[:79]).sample()
    assert refused.value.code == "clockbound-garbled"
    with pytest.raises(BadTime) as refused:
        ClockBoundSource(HandMachine(), tmp_path / "nowhere").sample()
    assert refused.value.code == "no-answer"
