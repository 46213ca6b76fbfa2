import pytest

from appliance.formats.birth import SPAN_NS_MIN, BagKind, check_grid
from timeagent.errors import BadConfiguration
from timeagent.units import DAY, HOUR, MINUTE, MS, SECOND


@pytest.mark.parametrize(
    ("span", "grace", "rack"),
    [
        (SECOND, 2 * SECOND, 10 * MINUTE),
        (SPAN_NS_MIN, 0, SECOND),
        (DAY, DAY, DAY),
        (SECOND, 1_500 * MS, 90 * SECOND),
        (HOUR, 0, DAY),
    ],
)
def test_grid_that_names_can_say_is_taken(span: int, grace: int, rack: int) -> None:
    check_grid(span, grace, rack)


@pytest.mark.parametrize(
    ("span", "grace", "rack"),
    [
        (0, 0, MINUTE),
        (-SECOND, 0, MINUTE),
        (SPAN_NS_MIN - 1, 0, MINUTE),
        (SPAN_NS_MIN - MS, 0, 9 * SECOND),
        (SECOND + 1, 0, MINUTE),
        (SECOND, 1, MINUTE),
        (SECOND, -SECOND, MINUTE),
        (7 * SECOND, 0, MINUTE),  # a bag across two racks
        (2 * MINUTE, 0, MINUTE),
        (SECOND, 0, 0),
        (SECOND, 0, -MINUTE),
        (500 * MS, 0, 1_500 * MS),
        (SECOND, 0, 7 * MINUTE),  # a rack across two days
        (SECOND, 0, 2 * DAY),
    ],
)
def test_grid_that_names_cannot_say_is_refused(span: int, grace: int, rack: int) -> None:
    with pytest.raises(BadConfiguration) as refused:
        check_grid(span, grace, rack)
    assert refused.value.code == "bad-grid"
    assert refused.value.hint


def test_kinds_of_bags_are_two() -> None:
    assert [str(kind) for kind in BagKind] == ["maildir", "log"]
