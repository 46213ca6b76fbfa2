"""ClockBound's segment: the bound that is in it, and every segment that is no bound."""

import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.machine import HandMachine
from timeagent.errors import BadTime
from timeagent.interval import TimeInterval
from timeagent.sources.clockbound import MAGIC, STALE_NS, ClockBoundSource
from timeagent.units import MS, SECOND

NOW_NS = 100 * SECOND


@dataclass
class Segment:
    """A synchronised daemon; written apart from the decoder that it tests."""

    magic: bytes = MAGIC
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


def source(tmp_path: Path, data: bytes) -> ClockBoundSource:
    path = tmp_path / "shm0"
    path.write_bytes(data)
    return ClockBoundSource(HandMachine(boot_ns=NOW_NS), path)


def refusal(tmp_path: Path, segment: Segment) -> str:
    with pytest.raises(BadTime) as refused:
        source(tmp_path, segment.encode()).sample()
    return refused.value.code


def test_bound_ages_by_the_daemons_own_drift(tmp_path: Path) -> None:
    assert len(Segment().encode()) == 80
    sample = source(tmp_path, Segment().encode()).sample()
    assert sample.offset == TimeInterval.around(0, 3 * MS + 1)
    aged = source(tmp_path, Segment(as_of_ns=NOW_NS - 2 * SECOND).encode()).sample()
    assert aged.offset.radius == 3 * MS + 100_001


@pytest.mark.parametrize("status", [0, 2, 3, 9, -1])
def test_status_that_is_not_synchronized_is_refused(tmp_path: Path, status: int) -> None:
    assert refusal(tmp_path, Segment(status=status)) == "not-synchronized"


def test_segment_that_is_old_or_void_is_refused(tmp_path: Path) -> None:
    source(tmp_path, Segment(as_of_ns=NOW_NS - STALE_NS).encode()).sample()
    assert refusal(tmp_path, Segment(as_of_ns=NOW_NS - STALE_NS - 1)) == "stale"
    assert refusal(tmp_path, Segment(void_after_ns=NOW_NS - 1)) == "stale"
    assert refusal(tmp_path, Segment(as_of_ns=NOW_NS + SECOND)) == "stale"


@pytest.mark.parametrize("bound", [0, -1])
def test_error_of_nothing_is_no_bound(tmp_path: Path, bound: int) -> None:
    assert refusal(tmp_path, Segment(bound_ns=bound)) == "no-bound"


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
    assert refusal(tmp_path, segment) == "clockbound-garbled"


def test_short_and_absent_segments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTime) as refused:
        source(tmp_path, Segment().encode()[:79]).sample()
    assert refused.value.code == "clockbound-garbled"
    with pytest.raises(BadTime) as refused:
        ClockBoundSource(HandMachine(), tmp_path / "nowhere").sample()
    assert refused.value.code == "no-answer"
