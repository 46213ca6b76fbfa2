"""The screens behind the numbers, driven by the pilot: the shell, the leases, what is empty."""

from dataclasses import replace
from functools import partial

import pytest
from textual.pilot import Pilot

import tui.widgets.row_table
from appliance.formats.shardmap import shard_number
from tests.support.copies import until
from tests.support.screens import (
    HandFeed,
    RecordedSource,
    busy_state,
    later,
    lease,
    shard,
    silent,
    state,
    with_shards,
)
from tests.support.shares import sampled
from tests.tui.piloting import SIZES, drive, press, rows, screen, seen, text_at
from timeagent.units import SECOND
from tui.app import SCREENS, DetailScreen
from tui.model.state import ClusterState, Freshness, LeaseRows, LeaseSubject, Reach, ViewKind
from tui.screens.cluster import BagsScreen, LeaseFacts, LeaseList, LeasesScreen, OverviewScreen
from tui.widgets.lines import FilterField
from tui.widgets.row_table import INLINE_MAX

# -- the shell ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", sampled(SIZES, 3))
def test_every_screen_opens_by_its_number_and_says_whether_it_is_healthy(size: tuple[int, int]) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        for entry in SCREENS:
            text = await press(pilot, entry.key)
            assert entry.name == screen(pilot).NAME
            assert f"[{entry.key} {entry.title}]" in text
            for words in ("✗ NOT HEALTHY", "read-only", "LIVE", "22:10:07.4 UTC", "Help", "Quit"):
                assert words in text, f"{words} is missing in:\n{text}"
            assert all(len(line) == size[0] for line in text.splitlines())

    drive(course, size=size)


def test_what_is_not_known_is_not_shown_as_nothing() -> None:
    unknown = ClusterState("/srv/x", state().clock, silent(7 * SECOND, ""))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        for entry in SCREENS:
            text = await press(pilot, entry.key)
            assert "NO ANSWER" in text
            assert "not known" in text or "not audited" in text
            assert " 0 " not in text

    drive(course, unknown)


def test_shard_of_a_later_map_is_named_alike_everywhere() -> None:
    number = shard_number(2, 0)
    shown = with_shards(shard(number), leases=(lease(shard=number),))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        del feed
        for key in "12":
            assert "0 (chain 2)" in await press(pilot, key)

    drive(course, shown)


def test_states_reach_only_the_screen_that_is_seen_and_it_is_fresh_when_opened() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2", "1")
        feed.source = RecordedSource(later(busy_state(), 3 * SECOND))
        feed.hand_over()
        await pilot.pause()
        assert "22:10:10.4" in seen(pilot)
        assert "22:10:10.4" in await press(pilot, "2")

    drive(course)


def test_numbers_leave_what_was_opened_and_escape_goes_back_step_by_step() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2", "enter")
        assert isinstance(screen(pilot), DetailScreen)
        text = await press(pilot, "enter")
        assert "leases > lease" in text
        assert len(pilot.app.screen_stack) == 4
        await press(pilot, "escape")
        assert len(pilot.app.screen_stack) == 3
        await press(pilot, "escape", "escape", "escape")
        assert isinstance(screen(pilot), LeasesScreen)
        await press(pilot, "enter", "enter", "1")
        assert isinstance(screen(pilot), OverviewScreen)
        assert len(pilot.app.screen_stack) == 2

    drive(course)


def test_screen_keeps_its_place_while_another_is_seen() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2", "j", "j", "1", "2")
        assert screen(pilot).subject() == LeaseSubject("account/03", "5f" * 16)

    drive(course)


def test_palette_does_what_the_keys_do() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "colon")
        await press(pilot, *"Bags")
        for _ in range(200):
            await pilot.pause(0.02)
            if "Bags  (3)" in seen(pilot):
                break
        await press(pilot, "enter")
        for _ in range(200):
            await pilot.pause(0.02)
            if isinstance(pilot.app.screen, BagsScreen):
                break
        assert isinstance(pilot.app.screen, BagsScreen)

    drive(course)


def test_copy_puts_the_identifier_into_the_clipboard() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "y")
        assert pilot.app.clipboard == "account/01"
        await press(pilot, "2", "y")
        assert pilot.app.clipboard == "5f" * 16
        await press(pilot, "4", "j", "y")
        assert pilot.app.clipboard == "node2"

    drive(course)


@pytest.mark.parametrize("entry", SCREENS, ids=lambda entry: entry.name)
def test_resize_loses_nothing(entry: object) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        before = await press(pilot, entry.key)  # type: ignore[attr-defined]
        for size in SIZES[::-1]:
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await pilot.resize_terminal(120, 36)
        await pilot.pause()
        await pilot.pause()
        assert seen(pilot) == before

    drive(course)


# -- leases ------------------------------------------------------------------------------------------------------------


def test_leases_are_sorted_turned_and_grouped_by_keys() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2")
        assert "account/02" in rows(pilot)[1]
        await press(pilot, "s")
        table = screen(pilot).query_one(LeaseList)
        assert table.wanted.order == "expiry"
        assert "account/05" in rows(pilot)[0]
        await press(pilot, "S")
        assert "index/compact" in rows(pilot)[0]
        text = await press(pilot, "b")
        assert table.wanted.group == "node"
        assert "▾ node1  5" in text
        assert "sort: expiry ▼   by node" in text

    drive(course)


def _stands(table: LeaseList, place: int) -> bool:
    return table.cursor == place


def test_cursor_stays_with_its_lease_where_a_thread_arranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.widgets.row_table, "INLINE_MAX", 5)
    rows_made = tuple(lease(f"account/{n:04}", correlation_id=f"{n:032x}") for n in range(2_000))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2")
        table = screen(pilot).query_one(LeaseList)
        await until(pilot, lambda: table.row is not None)
        await press(pilot, "j")
        for place in (1_998, 1):
            await pilot.press("S")
            await until(pilot, partial(_stands, table, place))
            assert table.row is not None
            assert table.row.domain == "account/0001"

    drive(course, state(leases=rows_made))


def test_facts_of_a_lease_go_with_its_row_where_a_thread_narrows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tui.widgets.row_table, "INLINE_MAX", 5)

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        del feed
        await press(pilot, "2", "s")
        table, facts = screen(pilot).query_one(LeaseList), screen(pilot).query_one(LeaseFacts)
        await until(pilot, lambda: table.count)
        assert "fence" in facts.words
        await press(pilot, "slash", "~")
        await until(pilot, lambda: not table.count)
        await pilot.pause()
        assert facts.words == ""
        await press(pilot, "escape")
        await until(pilot, lambda: table.count)
        await pilot.pause()
        assert "fence" in facts.words

    drive(course)


def test_cursor_stays_with_its_lease_through_sort_filter_and_refresh() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2", "j", "j", "s", "S")
        assert screen(pilot).subject() == LeaseSubject("account/03", "5f" * 16)
        more = LeaseRows([lease("aaa"), *busy_state().leases])
        feed.source = RecordedSource(replace(busy_state(), leases=more))
        feed.hand_over()
        await pilot.pause()
        assert screen(pilot).subject() == LeaseSubject("account/03", "5f" * 16)
        await press(pilot, "slash", *"account", "enter")
        assert screen(pilot).subject() == LeaseSubject("account/03", "5f" * 16)

    drive(course)


def test_lease_under_the_cursor_is_told_whole() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "2", "j", "j")
        assert "fence 1795212604003000001" in text
        assert "waiting 0" in text
        assert "the one before: expired" in text
        assert "0.7 s!" in text
        text = await press(pilot, "G")
        assert "waiting not known" in text

    drive(course)


def test_lease_is_told_to_its_last_line_where_another_is_too_long() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.resize_terminal(80, 24)
        text = await press(pilot, "2", "j", "j")
        told = [line.split()[0] for line in text.splitlines()[-6:-1]]
        assert told == ["holder", "lease", "from", "until", "stands"]

    drive(course)


def test_filter_that_matches_nothing_says_so() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        text = await press(pilot, "2", "slash", *"zzz")
        assert "none of 8 leases matches the filter" in text
        assert "filter: zzz" in text
        await press(pilot, "escape")
        assert not screen(pilot).query_one(FilterField).display
        assert screen(pilot).query_one(LeaseList).count == 8

    drive(course)


def test_many_leases_are_arranged_behind_the_screen() -> None:
    many = LeaseRows(lease(f"account/{n:06d}", n * SECOND % (10 * SECOND)) for n in range(INLINE_MAX + 1))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await press(pilot, "2")
        table = screen(pilot).query_one(LeaseList)
        for _ in range(500):
            if table.count:
                break
            await pilot.pause(0.02)
        assert table.count == INLINE_MAX + 1
        await press(pilot, "slash", *"005000", "enter")
        for _ in range(500):
            if table.count == 1:
                break
            await pilot.pause(0.02)
        assert "account/005000" in text_at(table, 1)

    drive(course, state(leases=many))


# -- a copy ------------------------------------------------------------------------------------------------------------


def test_copy_that_is_being_read_says_how_far_it_is() -> None:
    reading = ClusterState(
        "/copy",
        state().clock,
        Freshness(Reach.WAITING, problem="auditing the copy: 3 of 9 parts"),
        view=ViewKind.RECORD,
    )

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert "READING" in seen(pilot)
        assert "auditing the copy: 3 of 9 parts" in seen(pilot)
        assert "auditing the copy: 3 of 9 parts" in await press(pilot, "2")
        assert "HEALTHY" not in seen(pilot)

    drive(course, reading)
