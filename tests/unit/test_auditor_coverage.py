"""What no bag of a copy holds is told at once where every bag that could hold it is closed there; it proves nothing."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest

from auditor.columns.index import Coverage, Index
from auditor.columns.parts import Part
from auditor.evidence.finding import Verdict

SETTLED_NS = 10_000
FIRST_NS, LAST_NS = 120, 250
"""The timestamps of what is missing."""


def tree(*spans: tuple[str, int, int, bool, bool], sealed: tuple[tuple[str, int, int], ...] = ()) -> Index:
    """Two logs, from 100 on: bags as (log, start, end, closed, blind), and racks that are sealed."""
    told, index = Part(), Index()
    for log in ("mails", "lines"):
        told.add_bag(log, 0, 100, closed=True)
    for log, start, end, closed, blind in spans:
        told.add_bag(log, start, end, closed=closed, blind=blind)
    for log, start, end in sealed:
        told.add_bag(log, start, end, closed=True)
    index.take(told.done())
    return index


def whole(log: str, *starts: int) -> tuple[tuple[str, int, int, bool, bool], ...]:
    return tuple((log, start, start + 100, True, False) for start in starts)


MAILS = whole("mails", 100, 200, 300)


def both(index: Index, settled_ns: int = SETTLED_NS) -> tuple[Verdict | None, Verdict | None]:
    coverage = Coverage(index, settled_ns)
    return coverage.missing_frame(FIRST_NS, LAST_NS), coverage.missing_within(FIRST_NS, LAST_NS)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(lambda: tree(*MAILS, *whole("lines", 100, 200)), id="bags"),
        pytest.param(lambda: tree(*MAILS, *whole("lines", 100, 200, 500)), id="what is missing later matters not"),
        pytest.param(lambda: tree(*MAILS, sealed=(("lines", 100, 400),)), id="sealed rack"),
        pytest.param(lambda: tree(*MAILS, *whole("lines", 200), sealed=(("lines", 100, 200),)), id="both"),
    ],
)
def test_what_every_bag_that_could_hold_it_lacks_is_told_at_once(index: Callable[[], Index]) -> None:
    assert both(index(), LAST_NS) == (Verdict.INDETERMINATE, Verdict.INDETERMINATE)


# A plain copy lists a rack before some bags of it are made, and copies one before it is closed; later bags are closed.
@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(whole("lines", 200, 300), id="first bag absent"),
        pytest.param(whole("lines", 100, 300), id="last bag absent"),
        pytest.param(whole("lines", 300, 400), id="all absent, later ones closed"),
        pytest.param((), id="nothing of that log"),
    ],
)
def test_bag_that_is_absent_from_the_copy_may_hold_it(lines: tuple[tuple[str, int, int, bool, bool], ...]) -> None:
    index = tree(*MAILS, *lines)
    assert both(index) == (Verdict.INDETERMINATE, Verdict.INDETERMINATE)
    assert both(index, LAST_NS) == (None, None)


@pytest.mark.parametrize(("closed", "blind"), [(False, False), (True, True)])
def test_bag_that_is_open_or_cannot_be_read_may_hold_it(*, closed: bool, blind: bool) -> None:
    index = tree(*MAILS, ("lines", 100, 200, closed, blind), *whole("lines", 200, 300))
    assert both(index) == (Verdict.INDETERMINATE, None)
    assert both(index, LAST_NS) == (None, None)


def test_nothing_is_said_of_what_may_not_have_been_closed_yet() -> None:
    index = tree(*MAILS, *whole("lines", 200, 300))
    assert Coverage(index, LAST_NS).missing_frame(FIRST_NS, LAST_NS) is None
    assert Coverage(index, LAST_NS + 1).missing_frame(FIRST_NS, LAST_NS) is Verdict.INDETERMINATE


def test_without_any_log_nothing_is_gone() -> None:
    assert Coverage(Index(), SETTLED_NS).missing_frame(FIRST_NS, LAST_NS) is Verdict.INDETERMINATE


@pytest.mark.parametrize("seed", range(20))
def test_bags_of_any_spans_are_found_as_if_each_were_looked_at(seed: int) -> None:
    draw = random.Random(seed)
    spans = [
        (
            draw.choice(["mails", "lines"]),
            start,
            start + draw.choice([1, 10, 90, 2**62]),
            draw.random() < 0.9,
            draw.random() < 0.1,
        )
        for start in (draw.randrange(100, 400) for _ in range(draw.randrange(40)))
    ]
    index = tree(*spans)
    for first in range(90, 500, 7):
        last = first + draw.randrange(60)
        near = [each for each in spans if each[1] <= last and each[2] > first]
        assert index.bags_within(first, last) == (not all(each[3] for each in near), any(each[4] for each in near))


# A tree of which one log is read names all that was written to the others as missing.
def test_all_bags_are_not_gone_over_for_each_frame_that_is_missing() -> None:
    index = tree(*whole("lines", *range(100, 2_000_000, 100)), ("mails", 0, 2**63 - 1, True, True))
    coverage = Coverage(index, SETTLED_NS)
    assert coverage.missing_within(1_000_050, 1_000_150) is None
    tracemalloc.start()
    try:
        assert coverage.missing_frame(1_000_050, 1_000_150) is coverage.missing_within(1_000_050, 1_000_150) is None
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()
