import pytest

from tests.support.values import NOW_NS, nonce_token, page_token
from timeagent.signedtime import r1_range, r2_holds
from timeagent.units import MS, SECOND

RADIUS = 5 * MS
STALENESS = 250 * MS
FAR = SECOND + RADIUS


@pytest.mark.parametrize(
    ("distance", "holds"), [(0, True), (FAR, True), (FAR + 1, False), (-FAR, True), (-FAR - 1, False)]
)
def test_r1_holds_up_to_tolerance_and_radius(distance: int, holds: bool) -> None:  # noqa: FBT001
    assert (NOW_NS + distance in r1_range(page_token(), SECOND)) is holds


@pytest.mark.parametrize(("distance", "holds"), [(RADIUS, True), (RADIUS + 1, False)])
def test_r1_takes_the_tolerance_of_the_policy(distance: int, holds: bool) -> None:  # noqa: FBT001
    assert (NOW_NS + distance in r1_range(page_token(), tolerance_ns=0)) is holds


# cause.earliest is its midpoint - 5 ms, effect.latest its midpoint + 5 ms; a page token may be 250 ms old when used.
PAGE_LIMIT = -(2 * RADIUS + STALENESS)


@pytest.mark.parametrize(("later_by", "holds"), [(0, True), (PAGE_LIMIT, True), (PAGE_LIMIT - 1, False)])
def test_r2_allows_a_page_token_its_staleness(later_by: int, holds: bool) -> None:  # noqa: FBT001
    assert r2_holds(page_token(), page_token(NOW_NS + later_by)) is holds


@pytest.mark.parametrize(("later_by", "holds"), [(0, True), (-2 * RADIUS, True), (-2 * RADIUS - 1, False)])
def test_r2_allows_nothing_to_a_digest_that_covers_the_cause(later_by: int, holds: bool) -> None:  # noqa: FBT001
    effect = nonce_token(bytes(32), NOW_NS + later_by)
    assert r2_holds(page_token(), effect, effect_covers_cause=True) is holds


def test_page_token_cannot_cover_anything() -> None:
    with pytest.raises(AssertionError):
        r2_holds(page_token(), page_token(), effect_covers_cause=True)
