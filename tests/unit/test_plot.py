"""Intervals drawn: in place, to scale, and honest about what does not fit."""

import pytest

from timeagent.showing import ASCII, LABEL, Row, plot
from timeagent.units import MS, SECOND, TimeInterval

NOW = 1_795_212_607_000_000_000


def around(middle: int, radius: int) -> TimeInterval:
    return TimeInterval.around(NOW + middle, radius)


def bars(rows: list[Row], shared: TimeInterval | None) -> list[str]:
    return [line[LABEL + 1 :] for line in plot(rows, shared, 92, ASCII)[1:]]


def test_bars_are_drawn_to_scale_around_what_they_share() -> None:
    shared = around(0, 5 * MS)
    one, two, together = bars([Row("a", around(0, 10 * MS), "10 ms"), Row("b", shared, "5 ms")], shared)
    assert one.index("[") < two.index("[") < two.index("]") < one.index("]")
    assert one.index("|") == two.index("|") == 25
    assert together.index("#") == two.index("[")
    assert abs((one.index("]") - one.index("[")) - 2 * (two.index("]") - two.index("["))) <= 2
    assert one.endswith("10 ms")


def test_interval_beside_the_others_is_drawn_beside_them() -> None:
    shared = around(0, MS)
    honest, liar, _ = bars([Row("a", shared, ""), Row("liar", around(10 * MS, MS), "")], shared)
    assert honest.index("]") < liar.index("[")


# A cross-check of a second beside bounds of a millisecond would leave nothing of them.
def test_interval_that_does_not_fit_says_so_with_arrows() -> None:
    shared = around(0, MS)
    narrow, wide, far, _ = bars(
        [Row("a", shared, ""), Row("mount", around(0, SECOND), ""), Row("far", around(SECOND, MS), "")], shared
    )
    assert narrow.count("=") > 10
    assert wide.startswith("<")
    assert ">" in wide
    assert far.strip() == ">"


def test_silence_and_disagreement_are_said_in_words() -> None:
    assert plot([Row("chrony", None, "no bound")], None, 80) == [f"{'chrony':{LABEL}} no bound"]
    lines = plot([Row("a", around(0, MS), "x"), Row("b", None, "no bound")], None, 80)
    assert lines[2].rstrip().endswith("no bound")
    assert "nothing" in lines[-1]


@pytest.mark.parametrize("columns", [0, 20, 40, 80, 300])
@pytest.mark.parametrize("radius", [0, 1, 5 * MS, 10**18])
def test_any_width_and_any_radius_can_be_drawn(columns: int, radius: int) -> None:
    lines = plot([Row("a long name of a source", around(0, radius), "x")], around(0, radius), columns)
    assert len(lines) == 3
    assert "─" not in lines[0]
