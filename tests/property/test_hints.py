"""Hints: whatever was written, broken, evicted, restarted or packed, a narrow reading gives what the full one gives."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from appliance.formats.hints import LOGS_MAX, PLACES_MAX, HintedFile, Hints, LogBound, capped, joined
from tests.support.hint_world import HintWorld

LOG = st.sampled_from([f"log{n}" for n in range(LOGS_MAX + 2)])
INSTANT = st.integers(0, 60)
PLACE = st.builds(
    lambda log, bag, name, last: HintedFile(log=log, bag_start_ns=bag, file_name=name, last_ns=last),
    LOG,
    st.integers(0, 3),
    st.sampled_from("abcdefgh*"),
    INSTANT,
)
HINTS = st.builds(
    lambda complete, bounds, places: Hints(
        complete_from_ns=complete,
        bounds=tuple(LogBound(log=log, above_ns=at) for log, at in sorted(bounds.items())),
        places=tuple({place.file: place for place in places}.values()),
    ),
    st.integers(0, 20),
    st.dictionaries(LOG, INSTANT, max_size=LOGS_MAX),
    st.lists(PLACE, max_size=PLACES_MAX),
)


def claims(hints: Hints, message: HintedFile) -> bool:
    """Whether a message is either not spoken of, or where the hints say."""
    if message.last_ns <= hints.reach_ns(message.log):
        return True
    return any(place.file == message.file and message.last_ns <= place.last_ns for place in hints.places)


@given(HINTS, HINTS, st.integers(0, PLACES_MAX), st.none() | st.integers(0, 600))
def test_what_two_claim_the_joined_one_claims_within_its_limits(
    one: Hints, other: Hints, places_max: int, bytes_max: int | None
) -> None:
    both = joined(one, other, places_max=places_max, bytes_max=bytes_max)
    for message in (*one.places, *other.places):
        assert claims(both, message)
    for hints in (one, other):
        assert both.complete_from_ns >= hints.complete_from_ns
        assert all(both.reach_ns(bound.log) >= bound.above_ns for bound in hints.bounds)
    assert len(both.places) <= places_max
    assert len(both.bounds) <= LOGS_MAX
    assert bytes_max is None or both.bytes <= bytes_max
    assert joined(both, both, places_max=places_max, bytes_max=bytes_max) == both


@given(HINTS, INSTANT)
def test_capped_hints_still_claim_what_is_not_above(hints: Hints, highest: int) -> None:
    low = capped(hints, highest)
    assert low.complete_from_ns <= highest
    for message in hints.places:
        if message.last_ns <= highest:
            assert claims(low, message)


def test_place_that_does_not_fit_costs_its_own_log_only() -> None:
    hot = [HintedFile(log="hot", bag_start_ns=n, file_name="f", last_ns=10 + n) for n in range(PLACES_MAX)]
    cold = HintedFile(log="cold", bag_start_ns=1, file_name="f", last_ns=2)
    hints = joined(Hints(places=(cold,)), Hints(places=tuple(hot)))
    assert cold in hints.places
    assert (hints.reach_ns("cold"), hints.reach_ns("hot")) == (0, 10)
    assert hot[-1] in hints.places


@example(11)  # an append is in doubt and was done
@given(st.integers(0, 2**32))
def test_narrow_reading_gives_what_the_full_one_gives(seed: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = HintWorld(Path(directory), seed)
        try:
            world.run()
        finally:
            world.close()
