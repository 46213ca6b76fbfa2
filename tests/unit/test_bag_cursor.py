"""A cursor is one line of printable text, of one log, and is refused by name if it is anything else."""

import pytest

from appliance.bag.message import START, Position, before, cursor_text, is_cursor, parse_cursor
from timeagent.errors import BadRequest
from timeagent.units import INSTANT_MAX, parse_instant

POSITIONS = [
    START,
    before(1_700_000_400_000_000_000),
    Position(INSTANT_MAX, "node-a", b"\0\xff" * 4, 2**63 - 1, 1, 65_535),
]


@pytest.mark.parametrize("position", POSITIONS)
def test_cursor_is_read_back(position: Position) -> None:
    text = cursor_text("events", position)
    assert is_cursor(text)
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set(" \"'$&|;<>()*?[]#~=%\\`/")
    assert parse_cursor(text, "events") == position


def test_cursor_of_another_log_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="'events', not of 'other'"):
        parse_cursor(cursor_text("events", START), "other")


GOOD = cursor_text("events", POSITIONS[2])


@pytest.mark.parametrize(
    "text", ["", "c1.", "c1.!", "c1.é", "c2." + GOOD[3:], GOOD[3:], GOOD[:-1], GOOD[:-4], GOOD + "AAAA", GOOD + "\n"]
)
def test_what_is_no_cursor_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadRequest, match="is no cursor"):
        parse_cursor(text, "events")


def test_no_instant_is_taken_for_a_cursor() -> None:
    for text in ("2026-11-20T22:10:07.5Z", "1700000400000000000"):
        assert not is_cursor(text)
        parse_instant(text)
    with pytest.raises(BadRequest):
        parse_instant(GOOD)
