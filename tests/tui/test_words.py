"""What a state means in words. Conditions change exactly where the intervals say so."""

from dataclasses import replace

import pytest

from appliance.doctor.health import CheckVerdict, not_well, worst
from appliance.formats.lease import LeaseOutcome, Phase
from appliance.formats.shardmap import shard_number
from tests.support.screens import (
    NOW_NS,
    clock_view,
    later,
    lease,
    log,
    shard,
    silent,
    silent_shard,
    state,
    with_shards,
)
from timeagent.units import DAY, HOUR, MINUTE, MS, SECOND, TimeInterval, rfc3339
from tui.model.overview import health, leases_count, nothing_words, numbers_words, time_line
from tui.model.state import Cell, ClusterState, Freshness, LeaseOrigin, NodeView, Reach, ViewKind
from tui.model.tables import (
    LEASE_COLUMNS,
    LOG_COLUMNS,
    MANY_LEASE_COLUMNS,
    NODE_COLUMNS,
    Column,
    ColumnWidths,
    cells_of,
    fit,
    laid_out,
    layout,
    shortened,
    text_of,
)
from tui.model.words import (
    BAG_CELLS,
    BAG_LEGEND,
    CONDITION_CELLS,
    Condition,
    bytes_text,
    clock_words,
    condition,
    fence_text,
    lease_row,
    lease_words,
    log_words,
    many_lease_row,
    matching,
    node_rows,
    overdue_bags,
    short_span,
)

NOW = TimeInterval.around(NOW_NS, 5 * MS)


def at(instant: int) -> TimeInterval:
    return TimeInterval.around(instant, 5 * MS)


# -- leases ------------------------------------------------------------------------------------------------------------


def test_lease_of_a_present_holder_is_held_until_it_is_surely_past() -> None:
    row = lease()
    assert condition(row, NOW) is Condition.HELD
    assert condition(row, at(row.expiry_ns + 5 * MS)) is Condition.HELD  # earliest == expiry: cannot tell yet
    assert condition(row, at(row.expiry_ns + 5 * MS + 1)) is Condition.RECOVERING


def test_lease_whose_process_is_gone_will_expire_then_recovers_then_is_free() -> None:
    row = lease(left_ns=2 * SECOND, holder_present=False)
    assert lease_words(row, NOW) == "will expire in 2.0 s: process gone"
    after = at(row.expiry_ns + SECOND)
    assert condition(row, after) is Condition.RECOVERING
    assert lease_words(row, after) == "expired, recovering, resumes at 22:10:14"
    assert row.resumes_ns == NOW_NS + (2 + 3) * SECOND + 750 * MS
    done = at(row.resumes_ns + 6 * MS)
    assert condition(row, done) is Condition.OVER
    assert lease_words(row, done) == "expired 3.7 s ago, free to take"


def test_presence_that_is_not_known_is_not_absence() -> None:
    assert condition(lease(holder_present=None), NOW) is Condition.HELD


def test_lease_of_a_silent_shard_will_expire() -> None:
    row = lease(origin=LeaseOrigin.LAST_ANSWER, shard=2)
    assert lease_words(row, NOW) == "will expire in 7.0 s: shard 2 silent"


def test_lease_of_an_earlier_run_will_expire() -> None:
    row = lease(origin=LeaseOrigin.EARLIER_RUN, shard=1)
    assert lease_words(row, NOW) == "will expire in 7.0 s: shard 1 restarted"


def test_lease_from_the_ledger_is_last_known() -> None:
    row = lease(origin=LeaseOrigin.LEDGER, as_of_ns=NOW_NS - 3 * SECOND, holder_present=None)
    assert lease_words(row, NOW) == "last known, 3.0 s ago"


def test_expired_tentative_lease_holds_nobody_up() -> None:
    row = lease(left_ns=-SECOND, phase=Phase.TENTATIVE)
    assert condition(row, NOW) is Condition.OVER


@pytest.mark.parametrize(
    ("outcome", "words"), [(LeaseOutcome.RELINQUISHED, "after relinquished"), (LeaseOutcome.EXPIRED, "after expired !")]
)
def test_held_lease_says_how_the_one_before_ended(outcome: LeaseOutcome, words: str) -> None:
    assert lease_words(lease(previous=outcome), NOW) == words


def test_time_left_below_a_second_is_marked_in_text() -> None:
    assert lease_row(lease(left_ns=999 * MS), NOW)[6].text == "0.9 s!"
    assert lease_row(lease(left_ns=SECOND), NOW)[6].text == "1.0 s "


def test_every_condition_has_a_symbol_of_its_own() -> None:
    assert set(CONDITION_CELLS) == set(Condition)
    assert len({cell.text for cell in CONDITION_CELLS.values()}) == len(Condition)
    assert len({cell.text for cell in BAG_CELLS.values()}) == len(BAG_CELLS)
    assert all(cell.text in BAG_LEGEND for cell in BAG_CELLS.values())


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", ["account/01", "account/02"]),
        ("NODE2", ["account/02"]),
        ("account nightly", ["account/02"]),
        ("!node2", ["account/01"]),
        ("account !nightly", ["account/01"]),
        ("node9", []),
        ("!", []),
    ],
)
def test_filter_wants_every_word(words: str, found: list[str]) -> None:
    leases = state().leases
    assert [leases[place].domain for place in matching(leases.texts, words)] == found


# -- shards and nodes --------------------------------------------------------------------------------------------------


def row_text(node: NodeView) -> str:
    rows = node_rows(node, NOW)
    as_laid = layout(NODE_COLUMNS, 118, rows)
    return " | ".join(text_of(laid_out(NODE_COLUMNS, as_laid, row)) for row in rows)


def test_silent_shard_is_not_zero() -> None:
    text = row_text(NodeView("node1", False, (silent_shard(),)))  # noqa: FBT003
    assert "✗ no answer 3.2 s" in text
    assert "?" in text
    assert " 0 s" not in text
    assert "resumes 22:10:17 once back" in text


def test_shard_that_moved_shows_place_and_chain() -> None:
    moved = replace(shard(), shard=shard_number(8, 0))
    assert " 0 (chain 8) " in row_text(NodeView("node1", False, (moved,)))  # noqa: FBT003


def test_shard_without_leases_is_zero() -> None:
    cells = node_rows(NodeView("node1", False, (shard(leases=0),)), NOW)[0]  # noqa: FBT003
    assert cells[3] == Cell("0")


def test_node_without_shards_says_so() -> None:
    assert "no shard" in row_text(NodeView("node4", False, ()))  # noqa: FBT003


def test_restarted_shard_says_when_it_resumes() -> None:
    text = row_text(NodeView("node1", False, (shard(resumes_ns=NOW_NS + 4 * SECOND),)))  # noqa: FBT003
    assert "restarted, resumes 22:10:12" in text


def test_lost_ledger_blocks_are_shown() -> None:
    assert "2 lost !" in row_text(NodeView("node1", False, (shard(blocks_lost=2),)))  # noqa: FBT003


def test_leases_of_silent_shards_are_not_counted_as_none() -> None:
    silent_only = with_shards(silent_shard(0), silent_shard(1, "node2"), leases=())
    assert leases_count(silent_only) == "?"
    assert nothing_words(silent_only) == "not known: 2 of 2 shards have no answer"
    mixed = with_shards(shard(0), silent_shard(1, "node2"), leases=())
    assert leases_count(mixed) == "at least 0"
    assert "not known" in nothing_words(mixed)
    assert nothing_words(with_shards(shard(0), leases=())) == "no leases are out"


# -- bags and time -----------------------------------------------------------------------------------------------------


def test_log_where_nothing_waits_is_idle_and_not_late() -> None:
    still = log(states="ssccc")
    assert log_words(still, TimeInterval.around(NOW.midpoint + 9 * MINUTE, MS)).text.endswith(", nothing waits")
    later_on = state(logs=(still,), clock=clock_view(NOW_NS + 9 * MINUTE))
    assert "ago" not in numbers_words(later_on)
    waits = state(logs=(still, log(states="ssoc")), clock=clock_view(NOW_NS + 9 * MINUTE))
    assert "min ago" in numbers_words(waits)
    assert still.horizon_ns is not None
    unseen = replace(still, horizon_ns=still.bags[0].start_ns - 1)  # what lies before may be open
    assert log_words(unseen, NOW).text.endswith(" ago")
    assert log_words(replace(still, horizon_ns=None), NOW).text == "horizon ?"


def test_bags_that_could_long_be_closed_are_overdue() -> None:
    assert overdue_bags(log(states="cccoo"), NOW) == 0
    stuck = log(states="ogc......")
    assert overdue_bags(stuck, NOW) == 2
    assert "2 overdue !" in log_words(stuck, NOW).text
    assert worst(health(state(logs=(stuck,)))) is CheckVerdict.UNSURE


def test_assumed_time_is_labelled() -> None:
    assert "assumed" not in text_of(clock_words(clock_view()))
    assert "assumed: stated by the policy, not measured" in text_of(clock_words(clock_view(assumed=True)))


# -- health ------------------------------------------------------------------------------------------------------------


def test_all_is_well() -> None:
    assert health(state()) == health(later(state(), SECOND))
    assert worst(health(state())) is CheckVerdict.PASS


@pytest.mark.parametrize(
    ("seen", "verdict", "reason"),
    [
        (with_shards(silent_shard()), CheckVerdict.FAIL, "shard 0: no answer from node1 for 3.2 s: connection refused"),
        (
            with_shards(shard(freshness=Freshness(Reach.NOT_ASKED, problem="no address", way_out="say it"))),
            CheckVerdict.UNKNOWN,
            "shard 0: not asked: no address",
        ),
        (with_shards(silent_shard(span=99 * MS)), CheckVerdict.FAIL, "shard 0: no answer from node1: "),
        (
            with_shards(replace(silent_shard(), runner="node2")),
            CheckVerdict.FAIL,
            "shard 0: no answer from node2, which stands in for node1, for 3.2 s: connection refused",
        ),
        (state(mount=silent(4 * SECOND, "")), CheckVerdict.FAIL, "mount: no answer from the mount for 4.0 s"),
        (
            state(mount=silent(4 * SECOND, "denied")),
            CheckVerdict.FAIL,
            "mount: no answer from the mount for 4.0 s: denied",
        ),
        (state(leases=(lease(holder_present=False),)), CheckVerdict.UNSURE, "leases: 1 lease will expire, not renewed"),
        (state(leases=(lease(left_ns=-SECOND),)), CheckVerdict.UNSURE, "leases: 1 lease expired, recovering"),
        (
            with_shards(shard(blocks_lost=3)),
            CheckVerdict.UNSURE,
            "shard 0: run by node1, 1 lease: lost 3 ledger blocks",
        ),
        (state(clock=clock_view(radius_ns=SECOND)), CheckVerdict.FAIL, "clock: known to 1 s"),
        (state(offline="no settings"), CheckVerdict.UNKNOWN, "shards: not asked: no settings"),
        (
            ClusterState("/srv/x", clock_view(), Freshness(Reach.WAITING)),
            CheckVerdict.UNKNOWN,
            "mount: no answer yet",
        ),
    ],
)
def test_what_is_wrong_is_said_first(seen: ClusterState, verdict: CheckVerdict, reason: str) -> None:
    first = not_well(health(seen))[0]
    assert first.verdict is verdict
    assert first.words.startswith(reason)
    assert first.way_out


def test_clock_without_a_bound_is_not_healthy() -> None:
    unbounded = replace(clock_view(), bounded=False, problem="no source")
    assert worst(health(state(clock=unbounded))) is CheckVerdict.FAIL


# -- layout ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [LEASE_COLUMNS, NODE_COLUMNS, LOG_COLUMNS])
@pytest.mark.parametrize("width", [40, 78, 79, 80, 99, 118, 200])
def test_rows_fill_no_more_than_the_width(columns: tuple[Column, ...], width: int) -> None:
    rows = [[Cell("x" * 300)] * len(columns)]
    as_laid = layout(columns, width, rows)
    shown = [each for each in as_laid.widths if each]
    assert sum(shown) + len(shown) - 1 <= max(width, 60)
    line = laid_out(columns, as_laid, rows[0])
    assert sum(len(cell.text) for cell in line) == sum(shown) + len(shown) - 1


def test_no_column_is_left_out_where_there_is_room() -> None:
    assert all(fit(LEASE_COLUMNS, 118))


ALIKE = [f"account/alpha-{number:06}-ledger-{side}" for number in range(4) for side in ("east", "west")]
TWINS = ["a" * 40 + "1" + "z" * 40, "a" * 40 + "2" + "z" * 40]
"""They differ only in what would be cut out of their middles."""


WIDE = ["日本語の口座/東京/一番", "日本語の口座/大阪/一番"]


@pytest.mark.parametrize("width", [8, 13, 20])
@pytest.mark.parametrize("names", [ALIKE, TWINS, [*ALIKE, *TWINS, "aaa…zzz", "short"], WIDE])
def test_identifiers_that_are_shortened_stay_apart(names: list[str], width: int) -> None:
    short = shortened(names, width)
    shown = [short.get(name, name) for name in names]
    assert len(set(shown)) == len(names), shown
    assert all(cells_of(text) <= width for text in shown)
    assert all("…" in text for text in short.values())
    assert set(short) == {name for name in names if cells_of(name) > width}


@pytest.mark.parametrize("columns", [LEASE_COLUMNS, MANY_LEASE_COLUMNS])
@pytest.mark.parametrize("width", [78, 118])
def test_identifiers_are_cut_when_nothing_else_can_give_way(columns: tuple[Column, ...], width: int) -> None:
    make = lease_row if columns is LEASE_COLUMNS else many_lease_row
    rows = [make(lease(name), NOW) for name in ALIKE]
    as_laid = layout(columns, width, rows)
    shown = [text_of(laid_out(columns, as_laid, row)) for row in rows]
    assert all(name in line for name, line in zip(ALIKE, shown, strict=True)), "\n".join(shown)
    longer = [make(lease(name + "/of-a-tenant" * 9), NOW) for name in ALIKE]
    as_laid = layout(columns, width, longer)
    shown = [text_of(laid_out(columns, as_laid, row)) for row in longer]
    assert len(set(shown)) == len(ALIKE), "\n".join(shown)
    assert as_laid.widths[1] > width // 2
    ranked = [wide for column, wide in zip(columns, as_laid.widths, strict=True) if column.rank]
    assert not any(ranked), "what can go goes first"


def test_state_that_stands_empty_leaves_its_room_to_the_columns_that_have_something_to_say() -> None:
    quiet = layout(LEASE_COLUMNS, 78, [lease_row(lease(), NOW)]).widths
    dying = layout(LEASE_COLUMNS, 78, [lease_row(lease(holder_present=False), NOW)]).widths
    assert quiet.count(0) < dying.count(0)


def test_text_that_is_cut_says_so() -> None:
    row = [Cell("abcdef"), Cell("abcdef")]
    columns = (Column("a", 4), Column("b", 4, right=True))
    assert text_of(laid_out(columns, ColumnWidths((4, 4), ({}, {})), row)) == "abc… cdef"


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (0, "0.0 s"),
        (59_999 * MS, "59.9 s"),
        (MINUTE, "1 min"),
        (3 * HOUR + 30 * MINUTE, "3.5 h"),
        (2 * DAY, "2 d"),
        (-1_500 * MS, "-1.5 s"),
    ],
)
def test_short_spans(span: int, text: str) -> None:
    assert short_span(span) == text
    assert len(text) <= 7


def test_sizes_and_fences_are_short() -> None:
    assert [bytes_text(size) for size in (0, 999, 1_000, 12_345, 2_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "12.3 kB",
        "2.0 MB",
    ]
    assert fence_text(1_795_214_404_003_000_001) == "…404.003"


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0"), (9_999, "9999"), (10_000, "10k"), (123_456, "123k"), (2**63 - 1, "9E")]
)
def test_number_that_is_too_long_is_told_in_thousands_and_never_cut(number: int, shown: str) -> None:
    row = many_lease_row(lease(waiting=number, renewals=number, messages=number), clock_view().now)
    widths = [column.width for column in MANY_LEASE_COLUMNS]
    assert f" {shown} " in text_of(laid_out(MANY_LEASE_COLUMNS, layout(MANY_LEASE_COLUMNS, 999), row))
    for field, width in zip(row[9:12], widths[9:12], strict=True):
        assert isinstance(field, Cell)
        assert len(field.text) <= width
        assert int(field.text.rstrip("kMGTPE")) in {number // 1000**power for power in range(7)}


def test_copy_of_days_is_not_said_to_be_of_an_hour() -> None:
    record = state(view=ViewKind.RECORD, first_ns=NOW_NS - 3 * DAY - HOUR, last_ns=NOW_NS)
    (line,) = time_line(record)
    assert rfc3339(NOW_NS - 3 * DAY)[:10] in line.text
