"""What lies around a finding, in words, as values, and as a picture."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from appliance.formats.lease import LeaseOutcome
from appliance.formats.paths import LOCK
from auditor.audit import audit
from auditor.evidence.finding import Evidence
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.explain.context import NEIGHBOURS, context_of
from auditor.explain.picture import WIDTH, draw
from auditor.explain.words import context_lines, evidence_lines
from tenure.__main__ import main
from tests.fault_injection.faults_chains import two_grants_after_one
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.faults_moves import written_under_the_half_that_leaves
from tests.fault_injection.faults_time import bag_closed_before_its_message
from tests.fault_injection.fixtures import Story
from tests.fault_injection.plants import all_plants
from tests.fault_injection.shard import Shard
from tests.support.shares import shares
from tests.support.timelines import read_timeline
from timeagent.units import DAY, HOUR, SECOND

if TYPE_CHECKING:
    from auditor.evidence.finding import Finding
    from auditor.explain.context import Context
    from tests.fault_injection.tree import Change, ClusterTree

SIGNATURES = Signatures()
HOSTILE = "\x1b[31mEVIL\x07\x9b"
SVG = "{http://www.w3.org/2000/svg}"


def surroundings(tree: ClusterTree, code: str) -> tuple[Finding, Context]:
    reading = Tree(tree.root)
    result = audit(reading, signatures=SIGNATURES)
    finding = next(each for each in result.findings if each.code == code)
    return finding, context_of(finding, read_timeline(reading, signatures=SIGNATURES, findings=result.findings))


def run(*arguments: str | Path) -> int:
    return main(["explain", *map(str, arguments)])


def chain_of_leases(root: Path) -> ClusterTree:
    """Nine leases, one after another; the fifth and the sixth overlap."""
    story = Story(root)
    for turn in range(9):
        lease = story.lease()
        story.tree.advance(SECOND)
        if turn != 4:
            story.shard.end(lease)
    return story.done()


def test_both_leases_are_concerned_and_their_neighbours_in_the_chain_are_shown(tmp_path: Path) -> None:
    finding, context = surroundings(chain_of_leases(tmp_path), "early-grant")
    concerned = [each.witness.correlation_id in context.concerned for each in context.leases]
    assert concerned.count(True) == 2
    assert concerned == [False] * NEIGHBOURS + [True, True] + [False] * NEIGHBOURS
    fences = [each.witness.fence for each in context.leases]
    assert fences == sorted(fences)
    ends = [each.end for each in context.leases]
    assert ends[0] is not None
    assert ends[0].outcome is LeaseOutcome.RELINQUISHED
    assert ends[NEIGHBOURS] is None
    assert finding.id
    assert all(context.first_ns <= each.instant_ns <= context.last_ns for each in context.events)


# What a shard says of the end stands, at one instant, before what it says of the grant.
def test_lease_that_ended_at_the_instant_of_its_grant_is_shown_with_its_end(tmp_path: Path) -> None:
    _, context = surroundings(two_grants_after_one(tmp_path), "chain-fork")
    instant = [each for each in context.leases if each.end is not None and each.end.ended_ns == each.granted_ns]
    assert len(instant) == 2


def test_restart_between_two_grants_is_told(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.lease()
    story.tree.advance(2 * SECOND)
    Shard(story.tree).grant("alice", story.other, change={"floor_ns": 0, "settle_to_ns": 0})
    _, context = surroundings(story.done(), "early-grant")
    assert [each.words for each in context.restarts] == ["shard 0 on n1 began a new run after a crash"]


def test_restart_that_a_run_outlives_is_told(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.lease()
    story.shard.restart(2 * SECOND)
    Shard(story.tree).grant("alice", story.other, change={"floor_ns": 0, "settle_to_ns": 0})
    _, context = surroundings(story.done(), "early-grant")
    assert context.restarts[0].about["how"] == "went on after 2 s"
    assert any("shard 0 on n1 went on after 2 s" in line for line in context_lines(context))


def test_closing_and_what_readers_made_of_it_are_told(tmp_path: Path) -> None:
    _, context = surroundings(bag_closed_before_its_message(tmp_path), "r2-breach")
    assert [type(each).__name__ for each in context.closings] == ["BagClosed"]
    assert context.readers() == (4, 4)
    assert {reading.node for reading in context.readings} >= {"n2"}


def test_long_list_of_a_bag_says_how_much_more_there_is(tmp_path: Path) -> None:
    story = Story(tmp_path)
    for _ in range(15):
        story.written()
    root = story.done().root
    (path,) = root.rglob(LOCK)
    lock = Evidence(str(path.relative_to(root)), 0, path.stat().st_size)
    lines = list(evidence_lines(lock, Tree(root)))
    assert sum("lists " in line for line in lines) == 12
    assert lines[-1] == "  and 3 more"


def test_place_that_holds_nothing_is_told_apart_from_a_directory(tmp_path: Path) -> None:
    tree = Tree(Story(tmp_path).done().root)
    assert list(evidence_lines(Evidence("logs", 0, 0), tree))[-1] == "  is a directory"
    assert list(evidence_lines(Evidence("logs/none", 0, 0), tree))[-1] == "  is not there"


def test_what_cannot_be_read_or_is_empty_is_not_called_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Story(tmp_path).done().root
    (root / "policy/00000002").symlink_to("elsewhere")
    (root / "logs/orders/empty").mkdir()
    for finding in audit(Tree(root), signatures=SIGNATURES).findings:
        run(finding.id, root)
        run(finding.id, root, "--chain")
    out = capsys.readouterr().out
    assert out.count("is a directory") == out.count("cannot be read: it is a link: none is followed") == 2
    assert "is not there" not in out


def test_words_name_neighbours_restarts_and_readers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain_of_leases(tmp_path)
    finding = audit(Tree(tmp_path), signatures=SIGNATURES).findings[0]
    assert run(finding.id, tmp_path) == 1
    text = capsys.readouterr().out
    assert text.count("\n  * ") == 2
    assert "relinquished at" in text


def test_phase_of_a_move_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finding, context = surroundings(written_under_the_half_that_leaves(tmp_path), "half-lease-write")
    assert [(each.shard, each.half.value) for each in context.moves] == [((1, 0), "leaving"), ((2, 0), "coming")]
    assert run(finding.id, tmp_path) == 1
    text = capsys.readouterr().out
    assert "shard 0, chain 1, goes by map 2: leaving" in text
    assert "leaving by map 2, under ceiling record 1" in text


def numbers(element: ET.Element, *names: str) -> list[float]:
    return [float(element.get(name, "0")) for name in names]


def test_picture_has_a_bar_per_lease_where_it_was_and_nothing_outside_the_paper(tmp_path: Path) -> None:
    finding, context = surroundings(granted_while_held(tmp_path), "early-grant")
    root = ET.fromstring(draw(finding, context))
    height = float(root.get("height", "0"))
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("class") == "concerned"]
    assert len(bars) == 2
    (first_x, first_width), (second_x, _) = (numbers(each, "x", "width") for each in bars)
    assert first_x < second_x < first_x + first_width  # they overlap, and the second begins later
    for each in root.iter():
        if each.tag in (f"{SVG}rect", f"{SVG}line", f"{SVG}text"):
            for x in numbers(each, "x", "x1", "x2"):
                assert 0 <= x <= WIDTH
            for y in numbers(each, "y", "y1", "y2"):
                assert 0 <= y <= height
    words = " ".join(each.text or "" for each in root.iter(f"{SVG}text"))
    for named in ("early-grant", "VIOLATION", finding.id, "n2:4711", "the grant", "Clock bounds"):
        assert named in words


def rows_of(picture: str) -> dict[float, list[tuple[float, float]]]:
    """Return where words begin and end, by the row that they stand in."""
    rows: dict[float, list[tuple[float, float]]] = {}
    for each in ET.fromstring(picture).iter(f"{SVG}text"):
        x, y = numbers(each, "x", "y")
        width = 6.0 * len(each.text or "")
        begin = {"middle": x - width / 2, "end": x - width}.get(each.get("text-anchor", ""), x)
        rows.setdefault(y, []).append((begin, begin + width))
    return {y: sorted(row) for y, row in rows.items()}


def test_words_of_one_row_do_not_run_into_each_other_or_off_the_paper(tmp_path: Path) -> None:
    finding, context = surroundings(bag_closed_before_its_message(tmp_path), "r2-breach")
    for y, row in rows_of(draw(finding, context)).items():
        assert all(before[1] <= after[0] + 1 for before, after in pairwise(row))
        assert row[0][0] >= 0
        assert row[-1][1] <= WIDTH + 20 or y < 80  # the explanation is wrapped by characters


@pytest.mark.parametrize("span", [20 * HOUR, 4 * DAY, 9 * DAY, 60 * DAY, 300 * DAY, 3000 * DAY])
def test_time_line_of_a_long_time_has_its_marks_all_along_it(tmp_path: Path, span: int) -> None:
    finding, context = surroundings(granted_while_held(tmp_path), "early-grant")
    picture = draw(finding, replace(context, last_ns=context.first_ns + span))
    (named,) = (each for each in ET.fromstring(picture).iter(f"{SVG}text") if (each.text or "").startswith("UTC, "))
    ticks = rows_of(picture)[numbers(named, "y")[0]]
    assert all(before[1] <= after[0] for before, after in pairwise(ticks))
    assert len(ticks) > 3
    assert ticks[-1][1] > WIDTH * 2 / 3


def test_instants_that_lie_too_close_are_drawn_again_larger(tmp_path: Path) -> None:
    finding, context = surroundings(bag_closed_before_its_message(tmp_path / "near"), "r2-breach")
    assert "times as large" in draw(finding, context)
    finding, context = surroundings(granted_while_held(tmp_path / "far"), "early-grant")
    assert "times as large" not in draw(finding, context)


@pytest.mark.parametrize("share", shares(3))
def test_every_planted_fault_has_a_picture_that_is_the_same_twice(tmp_path: Path, share: int) -> None:
    drawn = 0
    for number, plants in enumerate([*all_plants().values()][share::3]):
        tree = Tree(plants[0](tmp_path / str(number)).root)
        result = audit(tree, signatures=SIGNATURES)
        timeline = read_timeline(tree, signatures=SIGNATURES, findings=result.findings)
        for finding in result.findings[:2]:
            picture = draw(finding, context_of(finding, timeline))
            ET.fromstring(picture)
            assert picture == draw(finding, context_of(finding, timeline))
            drawn += 1
    assert drawn > 10


# 0 is a floor that nothing moved, or a watermark of nothing.
def test_no_words_of_a_finding_name_a_day_of_1970(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for code in ("early-grant", "chain-fork", "timestamp-after-expiry", "watermark-below-message"):
        for plant in all_plants()[code][:2]:
            root = tmp_path / plant.__name__
            for finding in audit(Tree(plant(root).root), signatures=SIGNATURES).findings:
                assert run(finding.id, root) == 1
                assert run(finding.id, root, "--chain") == 1
    out = capsys.readouterr().out
    assert "floor none" in out
    assert "1970-01-01T00:00:00.000000000Z" not in out
    assert "00:00:00.000000" not in out


def test_picture_says_no_more_than_text_can_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(tmp_path)
    name = "a<b>&\x1b[31m" + "x" * 300
    story.shard.grant(name, story.writer)
    story.tree.advance(SECOND)
    story.shard.grant(name, story.other)
    story.done()
    finding = audit(Tree(tmp_path), signatures=SIGNATURES).findings[0]
    assert run(finding.id, tmp_path, "--svg") == 1
    picture = capsys.readouterr().out
    assert "\x1b" not in picture
    assert not re.search("<b>", picture)
    ET.fromstring(picture)


# A terminal obeys what it is shown, in the middle of a line and by one character (C1) too.
@pytest.mark.parametrize("change", [{"closer": HOSTILE}, {"bag": HOSTILE, "log": HOSTILE}], ids=["closer", "bag"])
@pytest.mark.parametrize("form", [(), ("--chain",), ("--json",)], ids=["words", "chain", "json"])
def test_record_that_a_stranger_wrote_commands_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Change, form: tuple[str, ...]
) -> None:
    story = Story(tmp_path)
    story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.done(seal=False)
    story.tree.close(bag, change=change)
    (finding,) = audit(Tree(tmp_path), signatures=SIGNATURES).findings
    assert run(finding.id, tmp_path, *form) == 1
    assert main(["replay", str(tmp_path), *(form if form == ("--json",) else ())]) == 0
    out = capsys.readouterr().out
    assert "EVIL" in out
    assert all(line.isprintable() for line in out.splitlines())


def test_one_picture_is_of_one_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    story = Story(tmp_path)
    for domain in ("alice", "bob"):
        for writer in (story.writer, story.other):
            story.shard.grant(domain, writer)
            story.tree.advance(SECOND)
    story.done()
    ids = [each.id for each in audit(Tree(tmp_path), signatures=SIGNATURES).findings]
    common = [each for each in "0123456789abcdef" if sum(name.startswith(each) for name in ids) > 1]
    if common:
        assert run(common[0], tmp_path, "--svg") == 2
        assert "[several-findings]" in capsys.readouterr().err
    assert run("zz", tmp_path, "--svg") == 2
    assert "[no-such-finding]" in capsys.readouterr().err


def test_picture_in_the_docs_is_of_today(repository: Path) -> None:
    tree = Tree(repository / "tests/golden/trees/early-grant/tree")
    (finding,) = audit(tree, signatures=SIGNATURES).findings
    timeline = read_timeline(tree, signatures=SIGNATURES, findings=[finding])
    assert (repository / "docs/pictures/early-grant.svg").read_text() == draw(finding, context_of(finding, timeline))
