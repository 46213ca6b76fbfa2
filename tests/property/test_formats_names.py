"""Names on the mount: every instant has one bag and rack, and every name means one thing."""

from datetime import date

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from appliance.formats.birth import check_grid
from appliance.formats.merkle import KnownPaths, root
from appliance.formats.names import check_node
from appliance.formats.paths import DataName, Grid, parse_data_name, parse_record_name, record_name
from appliance.formats.shardmap import ShardMap
from tests.support.values import birth, root_and_paths
from timeagent.errors import BadConfiguration, BadRequest
from timeagent.units import DAY, INSTANT_MAX, MS, SECOND

RACKS = st.sampled_from([s * SECOND for s in range(1, DAY // SECOND + 1) if DAY % (s * SECOND) == 0])
INSTANTS = st.integers(0, INSTANT_MAX - 2 * DAY)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    rack = draw(RACKS)
    spans = [
        ms * MS for ms in (10, 20, 25, 50, 100, 125, 200, 250, 500, 1000, 2000, 5000, 60_000) if rack % (ms * MS) == 0
    ]
    span = draw(st.sampled_from([*spans, rack]))
    grace = draw(st.integers(0, 100_000)) * MS
    check_grid(span, grace, rack)
    created = draw(INSTANTS) // span * span
    return Grid(msgspec.structs.replace(birth(), created_ns=created, span_ns=span, grace_ns=grace, rack_ns=rack))


@given(grids(), INSTANTS)
def test_instant_lies_in_one_bag_of_one_rack_and_both_names_are_read_back(grid: Grid, instant: int) -> None:
    bag, rack = grid.bag(instant), grid.rack(instant)
    assert rack.start_ns <= bag.start_ns <= instant < bag.end_ns <= rack.end_ns
    assert bag.rack == rack
    assert grid.bag(bag.end_ns).start_ns == bag.end_ns
    assert grid.bag(bag.start_ns) == bag == grid.bag(bag.end_ns - 1)
    day, name = rack.path.split("/")[-2:]
    alive = rack.end_ns > grid.first_ns
    assert grid.parse_rack(day, name) == (rack if alive else None)
    assert grid.parse_bag(rack, bag.name) == (bag if bag.start_ns >= grid.first_ns else None)


@given(grids(), INSTANTS, st.integers(-3, 3))
def test_name_is_taken_by_its_own_rack_only(grid: Grid, instant: int, away: int) -> None:
    assume(away != 0)
    bag = grid.bag(max(instant, grid.first_ns))
    start = bag.rack.start_ns + away * grid.birth.rack_ns
    assume(start >= 0)
    assert grid.parse_bag(grid.rack(start), bag.name) is None


@given(grids(), st.text(max_size=30))
def test_arbitrary_names_are_off_the_grid(grid: Grid, name: str) -> None:
    rack = grid.rack(grid.first_ns)
    parsed = grid.parse_bag(rack, name)
    assert parsed is None or parsed.name == name
    parsed_rack = grid.parse_rack("2026-11-20", name)
    assert parsed_rack is None or parsed_rack.path.endswith(f"/{name}")
    grid.parse_rack(name, "22-10")


@given(grids(), st.dates(), st.lists(st.integers(0, 99), min_size=2, max_size=3))
def test_any_day_and_clock_is_a_rack_or_none(grid: Grid, day: date, clock: list[int]) -> None:
    rack = grid.parse_rack(str(day), "-".join(f"{part:02d}" for part in clock))
    assert rack is None or grid.rack(rack.start_ns) == rack


@given(st.integers(), st.integers(), st.integers())
def test_arbitrary_numbers_are_no_grid(span: int, grace: int, rack: int) -> None:
    with pytest.raises(BadConfiguration):
        check_grid(span, grace, rack)


@given(
    st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 10**19 - 1),
    st.sampled_from(["msg", "log"]),
)
def test_data_name_is_read_back(writer: str, incarnation: bytes, sequence: int, suffix: str) -> None:
    name = DataName(writer, incarnation, sequence, suffix)
    assert parse_data_name(name.text()) == name
    assert check_node(writer) == writer


DATA_NAMES = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.[0-9a-f]{16}\.([0-9]{8}|[1-9][0-9]{8,18})\.(msg|log)", fullmatch=True
)
ALMOST = st.builds(
    "".join, st.tuples(st.sampled_from(["", "\n", ".", "-", "a"]), DATA_NAMES, st.text("\n.~a", max_size=1))
)
"""File names: no slash, and not empty."""


@given(
    grids(), st.lists(st.one_of(DATA_NAMES, ALMOST, st.text(min_size=1, max_size=40).filter(lambda n: "/" not in n)))
)
def test_data_files_of_a_listing_are_those_whose_names_say_so_one_by_one(grid: Grid, names: list[str]) -> None:
    assert grid.data_of(names) == [name for name in names if grid.data_name(name) is not None]


@given(st.text(max_size=40))
def test_arbitrary_text_is_a_foreign_file_or_means_itself(text: str) -> None:
    name = parse_data_name(text)
    assert name is None or name.text() == text
    number = parse_record_name(text)
    assert number is None or record_name(number) == text
    try:
        assert check_node(text) == text
    except BadRequest as refused:
        assert refused.code == "bad-node-name"  # noqa: PT017 - either is good


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=40), st.data())
def test_paths_lead_to_the_root_and_other_leaves_do_not(leaves: list[bytes], data: st.DataObject) -> None:
    top, paths = root_and_paths(leaves)
    index = data.draw(st.integers(0, len(leaves) - 1))
    assert KnownPaths(len(leaves), top).holds(leaves[index], index, paths[index])
    other = data.draw(st.binary(max_size=9))
    assert other == leaves[index] or not KnownPaths(len(leaves), top).holds(other, index, paths[index])
    changed = [*leaves[:index], other, *leaves[index + 1 :]]
    assert (root(changed) == top) == (changed == leaves)
    assert root([*leaves, other]) != top


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50), st.integers(1, 40))
def test_new_shard_takes_a_domain_or_leaves_it_where_it_is(domain: str, shards: int) -> None:
    before = ShardMap(number=1, cluster_id=bytes(16), owners=("a",) * shards).shard_of(domain)
    after = ShardMap(number=2, cluster_id=bytes(16), owners=("b",) * (shards + 1)).shard_of(domain)
    assert after in {before, shards}
