import itertools

import msgspec
import pytest

from appliance.formats.birth import LogBirth, check_grid
from appliance.formats.paths import (
    DataName,
    Grid,
    chain_path,
    ledger_path,
    parse_data_name,
    parse_ledger_name,
    parse_record_name,
    record_name,
)
from tests.support.values import birth
from timeagent.units import DAY, HOUR, INSTANT_MAX, MINUTE, MS, SECOND, parse_instant

MIDNIGHT = parse_instant("2026-11-20T00:00:00Z")


def grid(**changes: object) -> Grid:
    changed: LogBirth = msgspec.structs.replace(birth(), created_ns=MIDNIGHT, **changes)
    check_grid(changed.span_ns, changed.grace_ns, changed.rack_ns)
    return Grid(changed)


GRIDS = {
    "defaults": grid(),
    "short spans": grid(span_ns=10 * MS, grace_ns=0, rack_ns=10 * SECOND),
    "racks of half a minute": grid(span_ns=250 * MS, grace_ns=1_500 * MS, rack_ns=30 * SECOND),
    "racks of ninety seconds": grid(span_ns=3 * SECOND, rack_ns=90 * SECOND),
    "one bag a rack": grid(span_ns=MINUTE, rack_ns=MINUTE),
    "racks of a day": grid(span_ns=HOUR, rack_ns=DAY),
}


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("midnight", [MIDNIGHT + DAY, parse_instant("2028-02-29T00:00:00Z")])
def test_every_instant_lies_in_exactly_one_bag_and_rack(name: str, midnight: int) -> None:
    of = GRIDS[name]
    span, rack_ns = of.birth.span_ns, of.birth.rack_ns
    for edge in (midnight, midnight + span, midnight + rack_ns, midnight + 12 * HOUR):
        for instant in (edge - 1, edge, edge + 1):
            bag, rack = of.bag(instant), of.rack(instant)
            assert bag.start_ns <= instant < bag.end_ns == bag.start_ns + span
            assert rack.start_ns <= bag.start_ns
            assert bag.end_ns <= rack.end_ns == rack.start_ns + rack_ns
            assert bag.rack == rack
            assert bag.due_ns == bag.end_ns + of.birth.grace_ns
        assert of.bag(edge - 1).end_ns == of.bag(edge).start_ns if edge % span == 0 else True


@pytest.mark.parametrize("name", GRIDS)
def test_names_are_read_back(name: str) -> None:
    of = GRIDS[name]
    for instant in (MIDNIGHT, MIDNIGHT + DAY - 1, MIDNIGHT + 22 * HOUR + 10 * MINUTE + 7 * SECOND + 999 * MS):
        bag = of.bag(instant)
        day, rack_name = bag.rack.path.split("/")[-2:]
        rack = of.parse_rack(day, rack_name)
        assert rack == bag.rack
        assert of.parse_bag(rack, bag.name) == bag


def test_names_are_those_of_the_document() -> None:
    at = MIDNIGHT + 22 * HOUR + 10 * MINUTE + 7 * SECOND
    bag = grid().bag(at)
    assert bag.path == "logs/events/2026-11-20/22-10/22-10-07.000-1000-2000"
    assert GRIDS["racks of half a minute"].bag(at + 250 * MS).path == (
        "logs/events/2026-11-20/22-10-00/22-10-07.250-250-1500"
    )
    assert grid().bag(MIDNIGHT).path == "logs/events/2026-11-20/00-00/00-00-00.000-1000-2000"
    assert grid().bag(MIDNIGHT - 1).path == "logs/events/2026-11-19/23-50/23-59-59.000-1000-2000"


OFF_GRID_RACKS = [
    ("2026-11-20", "22-05"),
    ("2026-11-20", "22-10-00"),
    ("2026-11-20", "22"),
    ("2026-11-20", "24-00"),
    ("2026-11-20", "22-60"),
    ("2026-11-20", "2210"),
    ("2026-11-20", "-2-10"),
    ("2026-11-20", "\u0662\u0662-\u0661\u0660"),
    ("2026-11-20", "22-10 "),
    ("2026-11-20", "22-10\n"),
    ("2026-11-31", "22-10"),
    ("0000-11-20", "22-10"),
    ("1969-12-31", "23-50"),
    ("2026-11-2", "22-10"),
    ("9999-12-31", "23-50"),
    ("9999-12-31", "94-00"),
    ("2262-04-12", "00-00"),
    ("\u0662\u0660\u0662\u0666-11-20", "22-10"),
    ("20261120", "22-10"),
    ("2026-11-20x", "22-10"),
    ("2026-11-19", "23-50"),  # before the log was born
]


@pytest.mark.parametrize(("day", "name"), OFF_GRID_RACKS)
def test_rack_off_the_grid_does_not_exist(day: str, name: str) -> None:
    assert grid().parse_rack(day, name) is None


OFF_GRID_BAGS = [
    "22-10-07.000-1000-2001",
    "22-10-07.000-1001-2000",
    "22-10-07.000-1000",
    "22-10-07.500-1000-2000",
    "22-10-07-1000-2000",
    "22-10-07.000-1000-2000-",
    "22-10-07.000-1000-2000 ",
    "22-10-07.000-1000-2000\n",
    "22-10-60.000-1000-2000",
    "22-20-00.000-1000-2000",  # of the next rack
    "22-09-59.000-1000-2000",
    "94-10-07.000-1000-2000",
    "022-10-07.000-1000-2000",
    "+2-10-07.000-1000-2000",
    "\u0662\u0662-10-07.000-1000-2000",
    "22-10-07.\u0660\u0660\u0660-1000-2000",
    "22-10-07.",
    "22-10-07",
    "",
    "prelock",
    "seal",
]


@pytest.mark.parametrize("name", OFF_GRID_BAGS)
def test_bag_off_the_grid_does_not_exist(name: str) -> None:
    of = grid()
    rack = of.parse_rack("2026-11-20", "22-10")
    assert rack is not None
    assert of.parse_bag(rack, "22-10-07.000-1000-2000") is not None
    assert of.parse_bag(rack, name) is None


def test_log_born_in_the_middle_of_a_rack_begins_there() -> None:
    born = MIDNIGHT + 22 * HOUR + 13 * MINUTE
    of = Grid(msgspec.structs.replace(birth(), created_ns=born))
    rack = of.rack(born)
    assert rack.start_ns == born - 3 * MINUTE
    assert of.parse_rack("2026-11-20", "22-10") == rack
    bags = of.bags(rack)
    assert bags[0].start_ns == born
    assert len(bags) == 7 * 60
    assert of.parse_bag(rack, "22-13-00.000-1000-2000") == bags[0]
    assert of.parse_bag(rack, "22-12-59.000-1000-2000") is None
    following = of.next_rack(rack)
    assert of.rack(following.start_ns - 1) == rack
    assert len(of.bags(following)) == 600


# A birth record states the start of a bag; should it not, the log begins with the bag that holds the instant.
def test_first_bag_holds_the_instant_of_birth() -> None:
    of = Grid(msgspec.structs.replace(birth(), created_ns=MIDNIGHT + 5))
    assert of.first_ns == MIDNIGHT
    assert of.bags(of.rack(MIDNIGHT))[0].start_ns == MIDNIGHT


def test_racks_follow_each_other_over_midnight() -> None:
    of = grid()
    last = of.rack(MIDNIGHT + DAY - 1)
    first = of.next_rack(last)
    assert (last.path, first.path) == ("logs/events/2026-11-20/23-50", "logs/events/2026-11-21/00-00")
    assert of.rack(first.start_ns - 1) == last


def test_bags_of_a_rack_tile_it() -> None:
    for of in GRIDS.values():
        rack = of.rack(MIDNIGHT + DAY)
        bags = of.bags(rack)
        assert bags[0].start_ns == rack.start_ns
        assert bags[-1].end_ns == rack.end_ns
        assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(bags))
        assert sorted(bag.name for bag in bags) == [bag.name for bag in bags]


# Remembered bags are a matter of speed; forgetting them must change nothing.
def test_forgotten_racks_are_the_same_racks_and_few_are_kept() -> None:
    of = grid()
    first = of.rack(MIDNIGHT)
    assert of.rack(MIDNIGHT + 1) is first
    for number in range(5_000):
        of.rack(MIDNIGHT + number * of.birth.rack_ns)
    assert of.rack(MIDNIGHT) == first
    assert of._rack.cache_info().currsize < 5_000


def test_forgotten_bags_are_the_same_bags() -> None:
    of = grid()
    first = of.bag(MIDNIGHT)
    for second in range(5_000):
        of.bag(MIDNIGHT + second * SECOND)
    assert of._bag.cache_info().currsize < 5_000
    assert of.bag(MIDNIGHT) == first


def test_last_instant_has_a_bag() -> None:
    assert grid().bag(INSTANT_MAX - SECOND).path.startswith("logs/events/2262-04-11/23-40/")


DATA = DataName("node-a", bytes(range(8)), 7)


def test_data_name_is_read_back() -> None:
    assert DATA.text() == "node-a.0001020304050607.00000007.msg"
    for name in (DATA, DataName("a", bytes(8), 123_456_789, "log"), DataName("a", bytes(8), 0)):
        assert parse_data_name(name.text()) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "prelock",
        "lock",
        ".nfs0001",
        "node-a.0001020304050607.7.msg",
        "node-a.0001020304050607.000000007.msg",
        "node-a.0001020304050607.00000007.tmp",
        "node-a.0001020304050607.00000007.msg\n",
        "node-a.000102030405060.00000007.msg",
        "node-a.000102030405060G.00000007.msg",
        "node-a.000102030405060A.00000007.msg",
        "Node-a.0001020304050607.00000007.msg",
        "-a.0001020304050607.00000007.msg",
        "a-.0001020304050607.00000007.msg",
        ".0001020304050607.00000007.msg",
        "node-a.0001020304050607.\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0667.msg",
        "node-a.0001020304050607." + "1" * 20 + ".msg",
    ],
)
def test_any_other_name_is_a_foreign_file(name: str) -> None:
    assert parse_data_name(name) is None


@pytest.mark.parametrize("number", [1, 99_999_999, 100_000_000, INSTANT_MAX])
def test_record_number_is_read_back(number: int) -> None:
    assert parse_record_name(record_name(number)) == number


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1",
        "00000000",
        "000000001",
        "0000000a",
        "00000001\n",
        "\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661",
        "1" * 20,
        "tmp",
    ],
)
def test_any_other_name_is_no_record(name: str) -> None:
    assert parse_record_name(name) is None


def test_names_of_records_sort_by_number_up_to_eight_digits() -> None:
    assert record_name(9) < record_name(10) < record_name(99_999_999)


def test_chains_and_ledgers_have_places_of_their_own() -> None:
    assert chain_path(1, 2) == "shards/00000001/0002"
    assert ledger_path(1, 2, bytes(range(8))) == "ledger/00000001/0002/0001020304050607.ledger"
    assert ledger_path(1, 2, bytes(range(8)), 2) == "ledger/00000001/0002/0001020304050607.2.ledger"


@pytest.mark.parametrize("number", [1, 2, 9, 10, 11, 99, 123456])
def test_a_ledger_name_is_read_back(number: int) -> None:
    name = ledger_path(1, 2, bytes(range(8)), number).rpartition("/")[2]
    assert parse_ledger_name(name) == (bytes(range(8)), number)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "0001020304050607",
        "00.ledger",
        "0001020304050607.1.ledger",
        "0001020304050607.0.ledger",
        "0001020304050607.02.ledger",
        "0001020304050607.ledger.2",
        "000102030405060A.ledger",
        "0001020304050607.-2.ledger",
    ],
)
def test_what_is_no_ledger_name_is_none(name: str) -> None:
    assert parse_ledger_name(name) is None
