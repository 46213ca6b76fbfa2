"""The screen, driven by the pilot: recorded states, a clock that stands still, nothing from a mount."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from threading import Event

import pytest
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Static

from appliance.formats.lease import Mode
from tests.support.machine import HandMachine
from tests.support.screens import (
    NOW_NS,
    POLICY,
    HandFeed,
    RecordedSource,
    clock_view,
    later,
    lease,
    log,
    shard,
    silent_shard,
    state,
    with_shards,
)
from tests.tui.piloting import text_at
from timeagent.units import MS, SECOND
from tui.app import StateArrived, TopApp
from tui.cli import status_line
from tui.feed import AskedQuestion, Feed
from tui.model.overview import text_snapshot
from tui.model.state import ClusterState, LeaseRows
from tui.screens.cluster import LeaseTable, NodeTable
from tui.widgets.bag_grid import BagStrip
from tui.widgets.dialogs import HelpScreen
from tui.widgets.lines import FilterField, WordsLine
from tui.widgets.row_table import RowTable

WIDE, SMALL = (120, 36), (80, 24)

type Course = Callable[[Pilot[None], HandFeed], Awaitable[None]]


def drive(course: Course, *states: ClusterState, size: tuple[int, int] = WIDE) -> None:
    """Open the screen on recorded states and let a course run over it."""

    async def run() -> None:
        feed = HandFeed(RecordedSource(*(states or (state(),))))
        app = TopApp(feed)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await course(pilot, feed)
        assert feed.stopped

    asyncio.run(run())


async def advance(pilot: Pilot[None], feed: HandFeed, to: ClusterState) -> None:
    feed.source = RecordedSource(to)
    feed.hand_over()
    await pilot.pause()


def table(pilot: Pilot[None], kind: type[RowTable]) -> list[str]:
    """The title and the lines of a table that are seen."""
    found = pilot.app.screen_stack[1].query_one(kind)
    return [str(found.border_title), *(text_at(found, y) for y in range(found.size.height))]


def line(pilot: Pilot[None], name: str) -> str:
    found = pilot.app.screen_stack[1].query_one(f"#{name}", WordsLine)
    return found.words


def seen(pilot: Pilot[None]) -> list[str]:
    """Every line of the terminal, as text."""
    width, height = pilot.app.size
    lines = pilot.app.screen._compositor.render_strips()
    assert len(lines) == height
    return ["".join(segment.text for segment in strip)[:width] for strip in lines]


def under_cursor(leases: LeaseTable) -> str:
    assert leases.row is not None
    return f"{leases.row.domain} on {leases.row.node}"


def test_screen_shows_who_holds_what() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        lines = table(pilot, LeaseTable)
        assert lines[0] == "Leases   2"
        assert [word for word in lines[2].split() if word not in "▸●"][:7] == [
            "account/01",
            "X",
            "held",
            "node1/4242",
            "billing",
            "7.0",
            "s",
        ]
        assert "…604.003" in lines[2]
        assert "node2/77" in lines[3]
        assert "HEALTHY" in line(pilot, "health")
        assert "LIVE" in line(pilot, "title")
        assert "22:10:07.395 .. 22:10:07.405 UTC  ±5 ms  source kernel, synchronized" in line(pilot, "clock")

    drive(course)


def test_time_left_counts_down_with_every_state() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        for quarter, left in enumerate(("7.0 s", "6.7 s", "6.5 s", "6.2 s")):
            await advance(pilot, feed, later(state(), quarter * 250 * MS))
            assert left in table(pilot, LeaseTable)[2]

    drive(course)


def test_killed_holder_is_seen_to_expire_and_to_be_recovered() -> None:
    dying = state(leases=(lease(left_ns=2 * SECOND, holder_present=False),))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert "◐ account/01" in table(pilot, LeaseTable)[2]
        assert "will expire in 2.0 s: process gone" in table(pilot, LeaseTable)[2]
        assert "ATTENTION" in line(pilot, "health")
        assert "1 lease will expire, not renewed" in line(pilot, "health")
        await advance(pilot, feed, later(dying, 3 * SECOND))
        assert "✗ account/01" in table(pilot, LeaseTable)[2]
        assert "expired, recovering, resumes at 22:10:14" in table(pilot, LeaseTable)[2]
        await advance(pilot, feed, later(dying, 3 * SECOND + POLICY.takeover_ns()))
        assert "free to take" in table(pilot, LeaseTable)[2]

    drive(course, dying)


def test_silent_shard_is_not_zero() -> None:
    quiet = with_shards(silent_shard(0), silent_shard(1, "node2"), leases=())

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        nodes = table(pilot, NodeTable)
        assert "✗ no answer 3.2 s" in nodes[2]
        assert "?" in nodes[2].split()
        assert "0" not in nodes[3].split()
        assert table(pilot, LeaseTable)[0] == "Leases   ?; shards 0, 1 silent"
        assert "not known: 2 of 2 shards have no answer" in table(pilot, LeaseTable)[2]
        assert "0 of 2 shards answer · leases ?" in line(pilot, "health")

    drive(course, quiet)


def test_nothing_known_yet_is_not_nothing() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert table(pilot, LeaseTable)[0] == "Leases   ?"
        for kind in (LeaseTable, NodeTable, BagStrip):
            assert table(pilot, kind)[2].strip() == "not known: the mount has not answered yet"

    empty = state(cluster_id="", nodes=(), leases=(), logs=())
    drive(course, empty)


def test_bags_are_a_strip_with_a_legend_in_words() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        title, _, row = table(pilot, BagStrip)
        assert "▯ open  ◧ closing  ■ closed  ▣ sealed  · nobody wrote" in title
        assert "▣▣▣■■·■◧▯ horizon 22:10:05.4, 2.0 s ago" in row

    drive(course, state(logs=(log(states="ssscc.cgo"),)))


def test_filter_narrows_while_typed_and_escape_ends_it() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press("slash", *"nightly")
        assert table(pilot, LeaseTable)[0] == "Leases   2   1 shown, filter: nightly"
        assert "account/02" in table(pilot, LeaseTable)[2]
        assert table(pilot, LeaseTable)[3] == ""
        await pilot.press("enter")
        assert isinstance(pilot.app.focused, LeaseTable)
        assert "1 shown" in table(pilot, LeaseTable)[0]
        await pilot.press("escape")
        assert table(pilot, LeaseTable)[0] == "Leases   2"
        await pilot.press("slash", *"zzz")
        assert table(pilot, LeaseTable)[2].strip() == "none of 2 leases matches the filter"
        await pilot.press("escape")
        assert isinstance(pilot.app.focused, LeaseTable)
        assert not pilot.app.screen.query_one(FilterField).display

    drive(course)


# In the filter, the keys of the screen are letters.
def test_letters_typed_into_the_filter_are_no_commands() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press("slash", "q", "question_mark", "space", "d")
        assert pilot.app.screen.query_one(FilterField).value == "q? d"
        assert "PAUSED" not in line(pilot, "title")

    drive(course)


# A terminal hands over what was typed, or pasted, all at once.
def test_keys_that_arrive_together_reach_the_filter() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        theme = pilot.app.theme
        for key in ("slash", "slash", *"nod"):
            pilot.app.post_message(Key(key, "/" if key == "slash" else key))
        await pilot.pause()
        assert pilot.app.screen.query_one(FilterField).value == "/nod"
        assert pilot.app.theme == theme

    drive(course)


def test_pause_holds_the_picture_until_it_is_released() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press("space")
        assert "PAUSED" in line(pilot, "title")
        await advance(pilot, feed, later(state(), 2 * SECOND))
        assert "7.0 s" in table(pilot, LeaseTable)[2]
        await pilot.press("r")
        await pilot.pause()
        assert "5.0 s" in table(pilot, LeaseTable)[2]
        assert "PAUSED" in line(pilot, "title")
        await advance(pilot, feed, later(state(), 3 * SECOND))
        assert "5.0 s" in table(pilot, LeaseTable)[2]
        await pilot.press("space")
        await pilot.pause()
        assert "4.0 s" in table(pilot, LeaseTable)[2]
        assert "LIVE" in line(pilot, "title")

    drive(course)


# A copy is told of once: what came while one paused is all that there is.
def test_what_came_in_a_pause_is_shown_after_it() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        feed.ask_now = lambda: None  # type: ignore[method-assign]
        await pilot.press("space")
        await advance(pilot, feed, later(state(), 2 * SECOND))
        assert "7.0 s" in table(pilot, LeaseTable)[2]
        await pilot.press("space")
        await pilot.pause()
        assert "5.0 s" in table(pilot, LeaseTable)[2]

    drive(course)


def test_picture_that_is_asked_for_in_a_pause_is_of_the_answers_to_it() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press("space", "r")
        await advance(pilot, feed, later(state(), 2 * SECOND))
        assert "7.0 s" in table(pilot, LeaseTable)[2], "what was known as it was asked"
        for _ in range(300):
            await pilot.pause(0.01)
            if "5.0 s" in table(pilot, LeaseTable)[2]:
                break
        assert "5.0 s" in table(pilot, LeaseTable)[2]
        assert "PAUSED" in line(pilot, "title")

    drive(course)


def test_cursor_stays_on_its_lease_where_others_hold_the_domain_too() -> None:
    readers = [lease("shared", mode=Mode.S, node=f"node{n}", fence=n, correlation_id=f"{n}" * 32) for n in (2, 1)]

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press("down")
        leases = pilot.app.screen.query_one(LeaseTable)
        assert under_cursor(leases) == "shared on node1"
        third = lease("shared", mode=Mode.S, node="node3", fence=3, correlation_id="3" * 32)
        await advance(pilot, feed, state(leases=LeaseRows((third, *readers))))
        assert under_cursor(leases) == "shared on node1"
        await pilot.press("enter")
        await pilot.pause()
        assert "overview > domain shared" in seen(pilot)[2]

    drive(course, state(leases=LeaseRows(readers)))


def test_refresh_asks_at_once() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press("r")
        assert feed.asked == 1

    drive(course)


def test_help_lists_every_binding_of_the_screen() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        bindings = [active.binding for active in pilot.app.screen.active_bindings.values()]
        expected = {each.description for each in bindings if each.description and not each.system}
        keys = {pilot.app.get_key_display(each) for each in bindings if each.description and not each.system}
        assert {"Quit", "Help", "Filter", "Pause", "Refresh", "Next part", "Down", "Last row"} <= expected
        await pilot.press("question_mark")
        assert isinstance(pilot.app.screen, HelpScreen)
        text = str(pilot.app.screen.query_one("#keys", Static).content)
        assert [each for each in sorted(expected) if each not in text] == []
        assert [each for each in sorted(keys) if each not in text] == []
        assert "◐ will expire" in str(pilot.app.screen.query_one("#symbols", Static).content)
        await pilot.press("escape")
        assert not isinstance(pilot.app.screen, HelpScreen)

    drive(course)


@pytest.mark.parametrize("keys", [("2", "e"), ("question_mark",), ("slash", "a")])
def test_ctrl_c_leaves_it_also_from_a_dialog_and_from_a_field(keys: tuple[str, ...]) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press(*keys)
        assert pilot.app.is_running
        await pilot.press("ctrl+c")
        assert not pilot.app.is_running or pilot.app._exit

    drive(course)


@pytest.mark.parametrize("key", ["escape", "question_mark", "q"])
def test_help_goes_on_being_fed_and_any_of_its_keys_closes_it(key: str) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        await pilot.press("question_mark")
        await advance(pilot, feed, later(state(), SECOND))
        assert "6.0 s" in table(pilot, LeaseTable)[2]
        await pilot.press(key)
        assert not isinstance(pilot.app.screen, HelpScreen)

    drive(course)


def test_a_small_terminal_shows_all_that_matters() -> None:
    rows = (
        lease("account/01", holder_present=False),
        lease("account/02", left_ns=-SECOND),
        lease("account/03", node="node3", process=4_194_304),
    )
    shards = (shard(0), silent_shard(1, "node2", 59 * SECOND), shard(2, "node3", resumes_ns=NOW_NS + SECOND))
    shown = with_shards(*shards, leases=rows, clock=clock_view(assumed=True))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        lines = seen(pilot)
        text = "\n".join(lines)
        for words in (
            "LIVE",
            "22:10:07.4 UTC ±5 ms assumed",
            "✗ NOT HEALTHY  2 of 3 shards answer",
            "shard 1: no answer from node2 for 59.0 s",
            "→ is node2 stopped, or down? tenure status, there",
            "expired, recovering; 1 lease will expire, not renewed",
            "✗ no answer 59.0 s",
            "resumes 22:10:17 once back",
            "restarted, resumes 22:10:09",
            "node3",
            "● answers",
            "+11.0 s",
            "will expire in 7.0 s: process gone",
            "expired, recovering, resumes at 22:10:1",
            "● account/03",
            "node3/4194304",
            "▯ open  ◧ closing  ■ closed  ▣ sealed  · nobody wrote",
            "horizon 22:10:05.4, 2.0 s ago",
            "22:10:07.395 .. 22:10:07.405 UTC  ±5 ms  source assumed",
            "not measured",
            "Quit",
            "Help",
            "Filter",
            "Pause",
            "Refresh",
        ):
            assert words in text, f"{words!r} is missing in:\n{text}"
        assert all("…" not in each for each in lines[1:] if "…604" not in each)

    drive(course, shown, size=SMALL)


def test_long_tables_scroll_and_render_only_what_is_seen() -> None:
    many = tuple(lease(f"account/{n:05d}") for n in range(10_000))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert "account/00000" in table(pilot, LeaseTable)[2]
        await pilot.press("G")
        await pilot.pause()
        assert "account/09999" in table(pilot, LeaseTable)[-1]
        assert "domain" in table(pilot, LeaseTable)[1]
        await pilot.press("g")
        await pilot.pause()
        await pilot.press("j")
        await pilot.pause()
        assert table(pilot, LeaseTable)[3].startswith("▸● account/00001")

    drive(course, state(leases=many), size=SMALL)


def test_tab_goes_from_table_to_table() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        visited = []
        for _ in range(3):
            visited.append(type(pilot.app.focused))
            await pilot.press("tab")
        assert set(visited) == {LeaseTable, NodeTable, BagStrip}

    drive(course)


def test_dark_and_light_show_the_same_words() -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        dark = seen(pilot)
        theme = pilot.app.theme
        await pilot.press("d")
        await pilot.pause()
        assert pilot.app.theme != theme
        assert seen(pilot) == dark

    drive(course)


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    colours = []

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        assert pilot.app.no_color
        for strip in pilot.app.screen._compositor.render_strips():
            for segment in strip.apply_filter(pilot.app._filters[0], pilot.app.background_colors[1]):
                if segment.style is not None and segment.style.color is not None:
                    triplet = segment.style.color.get_truecolor()
                    colours.append(len(set(triplet)) == 1)

    drive(course)
    assert colours
    assert all(colours)


def test_quit_ends_with_zero() -> None:
    async def run() -> int | None:
        app = TopApp(HandFeed(RecordedSource(state())))
        async with app.run_test(size=SMALL) as pilot:
            await pilot.press("q")
        return app.return_code

    assert asyncio.run(run()) == 0


# Only the newest state is worth drawing: those that wait behind a slow terminal give way.
def test_newer_state_replaces_one_that_waits() -> None:
    assert StateArrived(state()).can_replace(StateArrived(state()))


class HungSource(RecordedSource):
    """A source whose one question hangs until it is let go, on a clock that is driven by hand."""

    def __init__(self, machine: HandMachine) -> None:
        super().__init__(state())
        self.let_go = Event()
        self.asked = Event()
        self.mount = AskedQuestion("mount", 250 * MS, machine, self._hang)
        self._questions = (self.mount,)

    def _hang(self) -> None:
        self.asked.set()
        assert self.let_go.wait(60)

    def state_at(self, instant: int | None = None) -> ClusterState:
        freshness = self.mount.freshness()
        return replace(super().state_at(instant), mount=freshness, cluster_id="", nodes=(), leases=LeaseRows(), logs=())


def test_hung_mount_leaves_the_keys_alive_and_is_named() -> None:
    machine = HandMachine(NOW_NS)
    source = HungSource(machine)

    async def run() -> None:
        app = TopApp(Feed(source, machine, frame_ns=100 * MS))
        async with app.run_test(size=SMALL) as pilot:
            assert source.asked.wait(60)
            machine.pass_time(7 * SECOND)
            for _ in range(200):
                await pilot.pause(0.01)
                if "no answer from the mount for 7.0 s" in line(pilot, "health"):
                    break
            assert "NOT HEALTHY" in line(pilot, "health")
            assert "no answer from the mount for 7.0 s" in line(pilot, "health")
            assert "NO ANSWER" in line(pilot, "title")
            assert "Leases   ?" in table(pilot, LeaseTable)[0]
            await pilot.press("question_mark")
            assert isinstance(app.screen, HelpScreen)
            await pilot.press("escape", "slash", "x")
            assert app.screen.query_one(FilterField).value == "x"
            await pilot.press("escape", "q")
        assert app.return_code == 0

    try:
        asyncio.run(run())
        assert not source.let_go.is_set()
    finally:
        source.let_go.set()


def test_bug_in_a_thread_ends_the_program() -> None:
    class Broken(RecordedSource):
        def state_at(self, instant: int | None = None) -> ClusterState:
            del instant
            raise AssertionError("a planted bug")

    async def run() -> None:
        app = TopApp(Feed(Broken(state()), HandMachine()))
        async with app.run_test(size=SMALL) as pilot:
            for _ in range(500):
                if not app.is_running:
                    break
                await pilot.pause(0.01)

    with pytest.raises(AssertionError, match="a planted bug"):
        asyncio.run(run())


@pytest.mark.parametrize("shown", [state(), with_shards(silent_shard())], ids=["well", "ill"])
def test_tabs_keep_their_names_in_a_small_terminal_and_are_clicked(shown: ClusterState) -> None:
    names = ["Overview", "Leases", "Bags", "Time", "Findings", "Replay"]

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        del feed
        for number, name in (*enumerate(names, 1), (1, "Overview")):
            tabs = seen(pilot)[1]
            assert all(f"{place} {each}" in tabs for place, each in enumerate(names, 1)), tabs
            assert "HEALTHY" in tabs
            await pilot.click("#tabs", offset=(tabs.index(name) + len(name) - 1, 0))
            await pilot.pause()
            assert f"[{number} {name}]" in seen(pilot)[1]

    drive(course, shown, size=SMALL)


def test_click_puts_the_cursor_on_the_row_that_was_clicked_and_two_open_it() -> None:
    shown = state(leases=LeaseRows([lease(f"a/{number:03}") for number in range(100)]))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        del feed
        leases = pilot.app.screen.query_one(LeaseTable)
        for key in ("home", "end"):
            await pilot.press(key)
            await pilot.pause()
            for name in ("a/000", "a/003") if key == "home" else ("a/098", "a/099"):
                place = next(y for y, each in enumerate(seen(pilot)) if f"● {name}" in each)
                await pilot.click(offset=(10, place))
                assert under_cursor(leases) == f"{name} on node1"
        await pilot.click(offset=(10, leases.region.y + 1))
        assert under_cursor(leases) == "a/099 on node1", "the heading is no row"
        await pilot.click(offset=(10, place), times=2)
        await pilot.pause()
        assert "overview > domain a/099" in seen(pilot)[2]

    drive(course, shown)


OBEYED = "\x1b]0;mine\x07\x1b[2J\u202e\u2028"


@pytest.mark.parametrize(
    "shown",
    [
        state(leases=(lease("a", purpose=OBEYED),)),
        state(leases=(lease("a", node=f"n{OBEYED}"),)),
        state(leases=(lease(f"a{OBEYED}"),)),
        state(path=f"/srv/{OBEYED}"),
        state(logs=(replace(log(), problem=OBEYED),)),
        with_shards(shard(0, runner=f"n{OBEYED}")),
        with_shards(silent_shard(0, f"n{OBEYED}")),
    ],
    ids=["purpose", "holder", "domain", "path", "log", "runner", "node"],
)
def test_terminal_is_given_nothing_that_it_obeys(shown: ClusterState) -> None:
    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        del feed
        for keys in ("1", "2", "3", "4", "2 enter", "2 R", "1 tab enter"):
            await pilot.press(*keys.split())
            await pilot.pause()
            assert all(each.isprintable() for each in seen(pilot)), keys
        assert text_snapshot(shown, 120).replace("\n", "").isprintable()
        assert status_line(shown).isprintable()

    drive(course, shown)


def test_four_domains_that_begin_and_end_alike_are_four_on_every_screen() -> None:
    names = [f"account/alpha/{number}/of-the-tenant-in-the-north/{side}" for number in (1, 2) for side in ("a", "b")]
    shown = state(leases=LeaseRows([lease(name) for name in names]))

    for size in (SMALL, WIDE):

        async def course(pilot: Pilot[None], feed: HandFeed) -> None:
            del feed
            assert len({each.replace("▸", " ") for each in table(pilot, LeaseTable)[2:6]}) == 4
            await pilot.press("2")
            await pilot.pause()
            rows = [each.replace("▸", " ") for each in seen(pilot) if "● account/" in each]
            assert len(rows) == len(set(rows)) == 4, rows

        drive(course, shown, size=size)


def test_rows_that_are_scrolled_to_are_laid_out_together_with_those_in_sight() -> None:
    names = [f"a/{number:03}" for number in range(100)] + [f"b/{'long-' * 9}{number:03}" for number in range(100)]
    shown = state(leases=LeaseRows([lease(name) for name in names]))

    async def course(pilot: Pilot[None], feed: HandFeed) -> None:
        del feed
        for _ in range(8):
            await pilot.press("pagedown")
            await pilot.pause()
            title, *lines = table(pilot, LeaseTable)
            heads = [each.index("X") for each in lines[1:] if " X " in each]
            assert len(set(heads)) <= 1, "\n".join([title, *lines])

    drive(course, shown, size=WIDE)
