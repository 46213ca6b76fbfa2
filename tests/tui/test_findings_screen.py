"""The findings of a copy, driven by keys: list, chain, explanation, drill-down, export; small and large terminals."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence.finding import Evidence
from auditor.evidence.tree import Tree
from auditor.explain.archive import Archive, read_archive
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import Story, eventful_tree
from tests.support.copies import SIZES, SMALL, WIDE, drive_copy, seen, until
from tests.support.shares import sampled
from timeagent.errors import Environment
from timeagent.units import SECOND
from tui.app import DetailScreen
from tui.feed import ArchiveLoader
from tui.model.state import FindingSubject
from tui.screens.findings import ChainTable, FindingsScreen, FindingTable
from tui.screens.replay import ReplayScreen
from tui.widgets.dialogs import ExportScreen
from tui.widgets.lines import FilterField

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from tests.fault_injection.tree import ClusterTree
    from tui.app import TopApp


def several_findings(root: Path) -> ClusterTree:
    """A violation, and a file that came too late for its bag."""
    story = Story(root)
    story.shard.grant("alice", story.writer)
    story.shard.grant("alice", story.other)
    _lease, path = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.advance(4 * SECOND)
    story.tree.close(bag, omit=[path.rpartition("/")[2]])
    return story.done()


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return several_findings(tmp_path_factory.mktemp("bad") / "tree").root


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eventful_tree(tmp_path_factory.mktemp("good") / "tree").root


async def open_findings(pilot: Pilot[None], app: TopApp) -> FindingsScreen:
    await pilot.press("5")
    await until(pilot, lambda: isinstance(app.screen, FindingsScreen) and app.archives.archive is not None)
    screen = app.screen
    assert isinstance(screen, FindingsScreen)
    await until(pilot, lambda: bool(codes(app)) or any("every promise was kept" in line for line in seen(app)))
    await pilot.pause()
    return screen


def title(app: TopApp, kind: type[FindingTable | ChainTable]) -> str:
    return str(app.screen.query_one(kind).border_title)


def chain(app: TopApp) -> list[str]:
    table = app.screen.query_one(ChainTable)
    return ["".join(cell.text for cell in line.cells) for line in table._lines]


async def chain_there(pilot: Pilot[None], app: TopApp) -> None:
    await until(pilot, lambda: len(chain(app)) > 3)
    await pilot.pause()


def codes(app: TopApp) -> list[str]:
    return [finding.code for finding in app.screen.query_one(FindingTable).findings]


@pytest.mark.parametrize("size", sampled(SIZES, 3))
def test_worst_finding_is_first_and_its_failing_check_is_in_sight(bad: Path, size: tuple[int, int]) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await chain_there(pilot, app)
        lines = seen(app)
        found = audit(Tree(bad)).findings
        assert codes(app) == [finding.code for finding in found]
        assert any("✗" in line and "violation" in line and found[0].code in line for line in lines)
        assert any(f"✗ {sum(f.verdict == 'violation' for f in found)} violation" in line for line in lines)
        assert any("▸" in line and "✗ the lease before was over: granted by" in line for line in lines)
        assert len(lines) == size[1]
        assert "Help" in lines[-1] or size[0] < 120

    drive_copy(bad, course, size=size)


def test_keys_lead_from_list_to_chain_to_the_bytes_and_back(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        screen = await open_findings(pilot, app)
        await chain_there(pilot, app)
        assert isinstance(screen.subject(), FindingSubject)
        await pilot.press("enter")
        assert isinstance(app.focused, ChainTable)
        await pilot.press("g", "j")
        assert isinstance(screen.subject(), Evidence)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DetailScreen) and "batch" in "\n".join(seen(app)))
        assert seen(app)[2].strip().startswith("findings ")
        await pilot.press("escape")
        assert app.screen is screen
        await pilot.press("escape")
        assert isinstance(app.focused, FindingTable)

    drive_copy(bad, course)


def test_links_close_and_open_and_say_what_fails_inside(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await chain_there(pilot, app)
        before = chain(app)
        await pilot.press("enter", "g", "h")
        assert len(chain(app)) == 1
        assert "inside" in chain(app)[0]
        await pilot.press("l")
        assert chain(app) == before
        await pilot.press("f")
        assert "✗" in chain(app)[app.screen.query_one(ChainTable).cursor]

    drive_copy(bad, course)


def test_explanation_takes_the_place_of_the_chain(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await chain_there(pilot, app)
        await pilot.press("x")
        assert any(line.startswith("The leases around it") for line in chain(app))
        assert title(app, ChainTable).startswith("Explanation of")
        await pilot.press("x")
        assert title(app, ChainTable).startswith("Evidence of")

    drive_copy(bad, course)


def test_filter_sort_and_group_keep_the_cursor_on_its_finding(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        table = app.screen.query_one(FindingTable)
        every = codes(app)
        assert len(every) > 1
        await pilot.press("G")
        last = table.finding
        assert last is not None
        await pilot.press("S")
        assert (codes(app), table.finding) == (every[::-1], last)
        await pilot.press("b")
        assert "by verdict" in title(app, FindingTable)
        assert table.finding == last
        await pilot.press("slash", *last.code[:4], "enter")
        assert codes(app) == [last.code]
        assert f"Findings 1 of {len(every)}" in title(app, FindingTable)
        await pilot.press("escape")
        assert len(codes(app)) == len(every)

    drive_copy(bad, course)


def test_filter_that_matches_nothing_says_so(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await pilot.press("slash", *"zzz")
        assert isinstance(app.focused, FilterField)
        await pilot.pause()
        assert any("nothing matches the filter" in line for line in seen(app))
        assert chain(app) == []

    drive_copy(bad, course)


def test_copy_without_findings_says_that_all_is_well(good: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        text = "\n".join(seen(app))
        assert "● 0 violations" in text
        assert "nothing found: every promise was kept" in text

    drive_copy(good, course, size=WIDE)


def test_replay_opens_at_the_instant_of_the_finding_and_follows_its_domain(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await chain_there(pilot, app)
        finding = app.screen.query_one(FindingTable).finding
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen.idle)
        replay = app.screen
        assert isinstance(replay, ReplayScreen)
        assert replay.timeline is not None
        placed = [instant for instant, each in replay.timeline.findings if finding and each.id == finding.id]
        assert [replay.place.instant_ns] == placed
        assert replay.follow == "alice"
        await until(pilot, lambda: app.instant == placed[0])

    drive_copy(bad, course)


def has_files(directory: Path, count: int) -> bool:
    return len(list(directory.iterdir())) == count


def test_what_is_seen_is_exported_and_nothing_is_written_over(bad: Path, tmp_path: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        app.export_to = tmp_path
        await open_findings(pilot, app)
        for number, key in enumerate(("j", "c", "s", "j"), 1):
            await pilot.press("e")
            await until(pilot, lambda: isinstance(app.screen, ExportScreen))
            await pilot.press(key)
            await until(pilot, partial(has_files, tmp_path, number))
        await pilot.press("e", "escape")
        await pilot.pause()
        assert has_files(tmp_path, 4)

    drive_copy(bad, course)
    found = audit(Tree(bad)).findings
    first, second = sorted(tmp_path.glob("tenure-findings-*.jsonl"))
    assert [json.loads(line) for line in first.read_text().splitlines()] == [each.fields() for each in found]
    assert first.read_text() == second.read_text()
    (table,) = tmp_path.glob("*.csv")
    with table.open() as file:
        assert [row["id"] for row in csv.DictReader(file)] == [each.id for each in found]
    (picture,) = tmp_path.glob("*.svg")
    assert picture.read_text().startswith("<svg")


def test_export_that_fails_is_told(bad: Path, tmp_path: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        app.export_to = tmp_path / "gone"
        await open_findings(pilot, app)
        await pilot.press("e", "j")
        await until(pilot, lambda: any("cannot write" in str(each.message) for each in app._notifications))

    drive_copy(bad, course)


# Everybody on the machine can open such a page: it only looks, also where its program might write.
def test_page_in_a_browser_writes_no_file(bad: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.app.TopApp.is_web", True)

    async def course(pilot: Pilot[None], app: TopApp) -> None:
        app.export_to = tmp_path
        await open_findings(pilot, app)
        await pilot.press("e", "j")
        await until(pilot, lambda: bool(app._notifications))
        assert [each.message for each in app._notifications] == [
            "a page in a browser writes no file; open tenure top in a terminal"
        ]

    drive_copy(bad, course)
    assert has_files(tmp_path, 0)


def test_evidence_that_cannot_be_read_is_told_and_the_list_stays(bad: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Environment("io", "the file server does not answer", hint="wait")

    monkeypatch.setattr("tui.model.findings.lineage", refuse)

    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await until(pilot, lambda: any("no answer: the file server" in line for line in seen(app)))
        assert codes(app)

    drive_copy(bad, course)


def test_root_that_cannot_be_audited_says_why_and_can_be_tried_again(
    bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArchiveLoader, "take_record", lambda _: None)  # as of a live cluster

    def refuse(*_: object, **__: object) -> Archive:
        raise Environment("io", "the file server does not answer", hint="look at it")

    monkeypatch.setattr("auditor.explain.archive.read_archive", refuse)

    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await pilot.press("5", "a")
        await until(pilot, lambda: any("no audit: the file server does not answer" in line for line in seen(app)))
        monkeypatch.setattr("auditor.explain.archive.read_archive", read_archive)
        await pilot.press("a")
        await until(pilot, lambda: app.archives.archive is not None)
        await until(pilot, lambda: bool(codes(app)))

    drive_copy(bad, course)


def has_size(app: TopApp, size: tuple[int, int]) -> bool:
    return tuple(app.size) == size


def test_screen_can_be_made_small_and_large_again(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await chain_there(pilot, app)
        for size in (SMALL, (200, 60), (60, 15), WIDE):
            await pilot.resize_terminal(*size)
            await until(pilot, partial(has_size, app, size))
            await pilot.pause()
            lines = seen(app)
            assert len(lines) == size[1]
            assert any("early-grant" in line for line in lines)
        table, chains = app.screen.query_one(FindingTable), app.screen.query_one(ChainTable)
        assert table.region.y == chains.region.y
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: chains.region.y > table.region.y)

    drive_copy(bad, course)


def test_explanation_fills_the_width_that_there_is(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await chain_there(pilot, app)
        await pilot.press("x")
        await until(pilot, lambda: "Explanation" in title(app, ChainTable))
        wide = chain(app)
        await pilot.resize_terminal(*SMALL)
        await until(pilot, lambda: len(chain(app)) > len(wide))
        assert max(map(len, chain(app))) <= SMALL[0]
        assert " ".join(chain(app)).split() == " ".join(wide).split()

    drive_copy(bad, course, size=(200, 60))


def test_help_lists_the_keys_of_the_screen(bad: Path) -> None:
    async def course(pilot: Pilot[None], app: TopApp) -> None:
        await open_findings(pilot, app)
        await pilot.press("question_mark")
        await pilot.pause()
        text = "\n".join(seen(app))
        for word in ("Explain", "Replay", "Group", "Export", "Audit now"):
            assert word in text

    drive_copy(bad, course, size=(120, 60))


def test_incident_of_the_fault_demo_is_found_and_explained_in_at_most_five_keys(tmp_path: Path) -> None:
    """docs/operators.md shows these keys one by one."""
    root = granted_while_held(tmp_path / "tree").root
    keys = ["5", "x", "x", "t"]
    assert len(keys) <= 5

    async def course(pilot: Pilot[None], app: TopApp) -> None:
        assert "✗ NOT HEALTHY" in "\n".join(seen(app))
        await pilot.press(keys[0])
        await until(pilot, lambda: isinstance(app.screen, FindingsScreen) and app.archives.archive is not None)
        await chain_there(pilot, app)
        assert "✗ the lease before was over: granted by" in "\n".join(seen(app))
        await pilot.press(keys[1])
        await pilot.pause()
        assert "VIOLATION      early-grant: a lease was granted while" in "\n".join(chain(app))
        await pilot.press(keys[2], keys[3])
        await until(pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen.idle)
        await pilot.pause()
        assert "╬" in "\n".join(seen(app))

    drive_copy(root, course)
