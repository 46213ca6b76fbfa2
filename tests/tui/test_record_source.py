"""A copied tree behind the screens: any instant of it, and from every identifier on to what it names."""

import json
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from appliance.cluster import Cluster
from appliance.demo.machines import set_up_place
from auditor.audit import audit
from auditor.columns.events import FrameWritten
from auditor.evidence.finding import Evidence
from auditor.evidence.tree import Tree
from tenure.__main__ import main
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import Story
from tests.fault_injection.moving import Move
from tests.support.copies import indexed_here
from tests.support.machine import HandMachine
from timeagent.clock import SystemClock
from timeagent.errors import BadRequest, Damaged, TenureError
from timeagent.units import MS, SECOND
from tui.model.findings import evidence_of
from tui.model.overview import json_fields, text_snapshot
from tui.model.replaying import MomentRequest, ReplayPlace, moment_of
from tui.model.state import (
    BagSubject,
    DomainSubject,
    LeaseOrigin,
    LeaseSubject,
    NodeSubject,
    Reach,
    Subject,
    ViewKind,
)
from tui.model.words import Condition, condition, node_rows
from tui.sources.record import RecordSource


def read(tree: Path) -> RecordSource:
    source = RecordSource(tree, HandMachine())
    (question,) = source.questions()
    with indexed_here():
        question.put()
    assert source.reading.error is None
    return source


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tree: one lease that was given back, one that is out, both written under."""
    path = tmp_path_factory.mktemp("copy") / "demo"
    # A machine's own directory is named after its cluster: two of one seed would be in each other's way.
    place = set_up_place(path, 1, SystemClock().realtime_ns(), random.Random(str(path)))
    machine = place.machines[0]
    with Cluster.open(place.mount, node_dir=machine.directory, allow_root=True) as cluster:
        with cluster.session("counting") as session:
            with session.acquire("account/1") as leases:
                assert session.publish("bank", [b"one", b"two"], under=leases)
            with session.acquire("account/1", "account/2") as leases:
                assert session.publish("bank", [b"three"], under=leases)
        cluster.settle("bank", cluster.time.now().latest)
    return place.mount


def test_domain_has_its_own_name_as_data_whatever_a_terminal_is_shown(tmp_path: Path) -> None:
    name = "shop\u3000north\u202e"
    story = Story(tmp_path / "tree")
    story.writer.publish(story.grid, story.shard.grant(name, story.writer))
    source = read(story.done().root)
    assert source.record is not None
    written = next(each.instant_ns for each in source.record.timeline.events if isinstance(each, FrameWritten))
    state = source.state_at(written)
    (row,) = state.leases
    assert json_fields(state)["leases"][0]["domain"] == row.domain == name
    assert "shop\\u3000north\\u202e" in text_snapshot(state, 200)
    lease = LeaseSubject(name, row.correlation_id)
    assert lease in [line.subject for line in source.details(DomainSubject(name), written)]
    assert DomainSubject(name) in [line.subject for line in source.details(lease, written)]


def test_bundle_is_not_taken_for_the_whole_copy(tmp_path: Path) -> None:
    tree, bundle = granted_while_held(tmp_path / "tree"), tmp_path / "x.tar"
    (finding,) = audit(Tree(tree.root)).findings
    assert main(["bundle", finding.id, str(tree.root), "--output", str(bundle)]) == 0
    shown = text_snapshot(read(bundle).state_at(), 120)
    assert "  BUNDLE  " in shown
    assert f"this is a bundle, of finding {finding.id}" in shown
    assert "  COPY  " in (shown := text_snapshot(read(tree.root).state_at(), 120))
    assert "this is" not in shown


def test_nothing_is_claimed_of_a_copy_that_is_still_being_read(copy: Path) -> None:
    source = RecordSource(copy, HandMachine())
    state = source.state_at()
    assert (state.view, state.mount.reach, state.findings, state.cluster_id) == (
        ViewKind.RECORD,
        Reach.WAITING,
        None,
        "",
    )
    with pytest.raises(TenureError, match="still being read"):
        source.details(DomainSubject("account/1"))


def test_tree_that_is_none_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    source = RecordSource(tmp_path, HandMachine())
    source.reading.put()
    assert isinstance(source.reading.error, Damaged)
    assert source.state_at().mount.reach is Reach.SILENT


def test_copy_that_was_audited_into_a_file_shows_the_same(copy: Path, tmp_path: Path) -> None:
    index_file = tmp_path / "index"
    assert main(["audit", str(copy), "--db", str(index_file)]) == 0
    source = RecordSource(copy, HandMachine(), index_file)
    source.reading.put()
    assert source.record is not None
    assert source.state_at() == read(copy).state_at()


def test_index_that_is_none_is_an_error_with_a_way_out(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "index").write_text("no index")
    source = RecordSource(copy, HandMachine(), tmp_path / "index")
    source.reading.put()
    assert source.reading.error is not None
    assert source.reading.error.code == "not-an-index"


def test_index_alone_shows_the_same_and_says_what_needs_the_copy(copy: Path, tmp_path: Path) -> None:
    tree, index_file = tmp_path / "tree", tmp_path / "index"
    shutil.copytree(copy, tree)
    whole = RecordSource(tree, HandMachine(), index_file)
    whole.reading.put()
    expected = whole.state_at()
    assert whole.record is not None
    whole.record.timeline.close()
    shutil.rmtree(tree)
    source = RecordSource(None, HandMachine(), index_file)
    source.reading.put()
    assert source.record is not None
    assert replace(source.state_at(), path="") == replace(expected, path="")
    assert [line.subject for line in source.details(DomainSubject("account/1")) if line.subject]
    where = source.record.timeline.events[0].where
    with pytest.raises(BadRequest) as caught:
        source.details(where)
    assert (caught.value.code, "--offline" in caught.value.hint) == ("needs-tree", True)
    events = source.record.timeline.events
    wish = MomentRequest(ReplayPlace(len(events), source.record.timeline.end_ns), 60 * SECOND, 90, 5)
    moment = moment_of(source.record.timeline, source.record.leases, source.record.copy, wish)
    assert moment.bars
    assert "only its index is here" in moment.delivered[0]


def test_finding_is_told_from_the_index_alone(tmp_path: Path) -> None:
    granted_while_held(tmp_path / "tree")
    whole = RecordSource(tmp_path / "tree", HandMachine(), tmp_path / "index")
    whole.reading.put()
    assert whole.record is not None
    whole.record.timeline.close()
    shutil.rmtree(tmp_path / "tree")
    source = RecordSource(None, HandMachine(), tmp_path / "index")
    source.reading.put()
    record = source.record
    assert record is not None
    (finding,) = record.audit.findings
    looked = evidence_of(finding, record)
    assert [check.holds for check in looked.link.checks] == [False]
    assert len(looked.link.under) == len(finding.evidence)
    assert any("--offline COPY" in line for line in looked.explanation)
    text = "\n".join(looked.explanation)
    assert finding.explanation in text
    assert "alice" in text


def test_passing_index_leaves_nothing_behind(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = read(copy)
    assert list(tmp_path.iterdir()) == []
    assert source.state_at().logs


def test_reading_a_copy_says_how_far_it_is(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = RecordSource(copy, HandMachine())
    said = []
    step = source._step

    def heard(done: int, total: int, messages: int, part: str) -> None:
        step(done, total, messages, part)
        said.append((source.state_at().mount.problem, total))

    monkeypatch.setattr(source, "_step", heard)
    source.reading.put()
    assert said
    for done, (line, total) in enumerate(said, 1):
        filled = 20 * done // total
        assert f"[{'#' * filled}{'.' * (20 - filled)}] {done:,} of {total:,} parts" in line
    assert filled == 20


def test_wrong_use_of_an_index_is_named(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in (
        (["--db", str(tmp_path / "absent"), "--once"], "no-index"),
        (["--root", str(copy), "--db", "index"], "two-roots"),
        (["--db", "index", "--write"], "cannot-write"),
    ):
        assert main(["top", *words]) == 2
        assert f"[{code}]" in capsys.readouterr().err
    assert main(["top", "--offline", ".", "--once"]) == 65, "as audit ."
    assert f"{Path.cwd()} " in capsys.readouterr().err
    assert main(["top", "--offline", "", "--once"]) == 2
    assert "[empty-value]" in capsys.readouterr().err
    assert main(["top", str(copy), "--db", str(tmp_path / "index"), "--once"]) == 0
    of_copy = capsys.readouterr().out
    assert main(["top", "--db", str(tmp_path / "index"), "--once", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "tenure.top"
    assert "account/2" in of_copy or "bank" in of_copy


# Its head is whole: what is wrong is found where it is read.
@pytest.mark.parametrize("words", [["--once"], []])
def test_index_that_lacks_a_table_is_refused_by_name(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    file = tmp_path / "index"
    assert main(["audit", str(copy), "--db", str(file)]) == 0
    apsw.Connection(str(file)).execute("DROP TABLE standing")
    monkeypatch.setattr("tui.cli._open_screen", lambda source: source.state_at())
    monkeypatch.setattr("tui.cli._as_text", lambda _: bool(words))
    assert main(["top", "--db", str(file), *words]) == 2
    said = capsys.readouterr().err
    assert f"{file} is damaged" in said
    assert "[not-an-index]" in said


def test_end_of_a_copy_has_what_the_audit_found(copy: Path) -> None:
    state = read(copy).state_at()
    assert state.findings == ()
    assert [log.name for log in state.logs] == ["bank"]
    assert {cell.damage for cell in state.logs[0].bags} == {""}
    assert [clock.node for clock in state.clocks] == ["node1"]


def test_same_instant_is_the_same_value(copy: Path) -> None:
    source = read(copy)
    assert source.state_at() is source.state_at()
    assert source.state_at(0).clock.now.midpoint == source.state_at().first_ns


def test_leases_stand_as_they_stood(copy: Path) -> None:
    source = read(copy)
    assert source.record is not None
    timeline = source.record.timeline
    seen = set()
    for event in timeline.events:
        state = source.state_at(event.instant_ns)
        for row in state.leases:
            assert row.origin is LeaseOrigin.RECORD
            seen.add((row.domain, condition(row, state.clock.now)))
    assert seen >= {("account/1", Condition.HELD), ("account/2", Condition.HELD)}


def test_shards_of_a_move_say_which_half_they_are(tmp_path: Path) -> None:
    move = Move(tmp_path)
    lease = move.old.grant("alice", move.writer)
    move.both()
    move.old.prolong(lease)
    move.coming[0].grant("alice", move.writer)
    both = move.tree.now_ns
    move.new()
    new = move.tree.now_ns
    source = read(move.done().root)

    def shown(instant: int) -> list[tuple[str, str]]:
        state = source.state_at(instant)
        rows = [row for node in state.nodes for row in node_rows(node, state.clock.now)]
        return sorted((row[1].text, row[-1].text) for row in rows if row[1].text != "-")

    assert shown(both) == [("0", "leaving since 22:00:01"), ("0 (chain 2)", "coming since 22:00:01")]
    assert shown(new) == [("0 (chain 2)", "")]
    lines = source.details(NodeSubject("n1"), both)
    assert any("leaving since" in cell.text for line in lines for cell in line.cells)


def followed(source: RecordSource, first: list[Subject], instant: int | None = None) -> set[Subject]:
    """Every subject that is reached from some, each opened."""
    waiting, found = list(first), set(first)
    while waiting:
        details = source.details(waiting.pop(), instant)
        assert details
        for line in details:
            assert line.cells
            if line.subject is not None and line.subject not in found:
                found.add(line.subject)
                waiting.append(line.subject)
    return found


def test_every_identifier_leads_to_what_it_names(copy: Path) -> None:
    source = read(copy)
    reached = followed(source, [DomainSubject("account/1")])
    kinds = {type(each) for each in reached}
    assert {DomainSubject, LeaseSubject, NodeSubject, Evidence} <= kinds
    paths = {each.path.rpartition("/")[2] for each in reached if isinstance(each, Evidence)}
    assert "lock" in paths
    assert any(name.endswith(".ledger") for name in paths)


def test_message_is_found_from_its_domain(copy: Path) -> None:
    source = read(copy)
    reached = followed(source, [DomainSubject("account/2")])
    text = "\n".join("".join(cell.text for cell in line.cells) for each in reached for line in source.details(each))
    assert "three" in text
    assert "relinquished" in text


def test_bag_has_its_files_and_who_closed_it(copy: Path) -> None:
    source = read(copy)
    assert source.record is not None
    timeline = source.record.timeline  # its last bags may all be empty: a demo takes as long as it takes
    instants = range(timeline.end_ns, timeline.start_ns, -SECOND // 10)
    written = next(cell for at in instants for cell in source.state_at(at).logs[0].bags if cell.files)
    lines = ["".join(cell.text for cell in line.cells) for line in source.details(BagSubject("bank", written.start_ns))]
    text = "\n".join(lines)
    assert "by node1" in text
    assert "listed" in text


# What the list of a bag will say is known only when it is closed: before that, its files are just there.
def test_bag_has_the_files_of_the_instant_and_not_of_the_end(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.written()
    bag, first = story.grid.bag(story.tree.now_ns), story.tree.now_ns
    story.tree.advance(100 * MS)
    story.writer.publish(story.grid, story.lease())
    second = story.tree.now_ns
    late = story.tree.root / story.writer.publish(story.grid, story.lease())
    hidden = late.read_bytes()
    late.unlink()
    story.done()
    late.write_bytes(hidden)
    source = read(tmp_path)

    def shown(instant: int | None) -> str:
        lines = source.details(BagSubject("orders", bag.start_ns), instant)
        return "\n".join("".join(cell.text for cell in line.cells) for line in lines)

    assert "1 file" in shown(first)
    assert source.state_at(first).logs[0].bags[-1].files == 1
    before, after = shown(second + 1), shown(None)
    assert "3 files" in before
    assert before.count("bag open") == 3
    assert "NOT LISTED" not in before
    assert "closed without it" not in before
    assert after.count("NOT LISTED") == 1
    assert "closed without it" in after
    assert "2 listed" in after
