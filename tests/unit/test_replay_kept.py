"""The timeline in a database: what a plain list of events says, at every event, and the tree gone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import apsw
import msgspec
import pytest

import auditor.timeline.fold as fold_module
import auditor.timeline.state as layers_module
import auditor.timeline.timeline_reader as kept_module
import auditor.timeline.timeline_writer as keeping_module
from appliance.formats.paths import chain_path
from auditor.audit import Options, audit
from auditor.columns.audit_file import INDEX_FORMAT, open_index, temporary_database
from auditor.columns.events import BagClosed, CeilingLinked, FrameWritten, LeaseEnded, SessionTold, end_name
from auditor.columns.parts import Narrowing
from auditor.evidence.finding import Evidence
from auditor.evidence.records import load_records
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.explain.context import Traces
from auditor.timeline.clocks import name_clocks
from auditor.timeline.fold import Working
from auditor.timeline.timeline_reader import AuditedTree, open_audited
from auditor.timeline.what_if import read_one_by_one
from tenure.__main__ import main
from tests.fault_injection import sessions
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.faults_packs import packed
from tests.fault_injection.faults_trust import ending
from tests.fault_injection.fixtures import Story, eventful_tree, small_tree, two_sealed_racks
from tests.fault_injection.plants import all_plants
from tests.fault_injection.shard import Shard
from tests.golden.make_trees import STORIES, TREES
from tests.simulation.audited import write_tree
from tests.simulation.scenarios import SCENARIOS
from tests.support.mutants import plant_in_text
from tests.support.plain_timeline import Gathered, PlainTimeline, order
from tests.support.shares import shares
from timeagent.errors import BadRequest, Environment
from timeagent.keys import Purpose
from timeagent.units import INSTANT_MAX, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from auditor.columns.events import Event
    from auditor.evidence.finding import Finding
    from auditor.timeline.timeline_reader import Timeline

SIGNATURES = Signatures()
SPACING = 7
"""Checkpoints so near that a small tree has many."""
OPEN: list[AuditedTree] = []
"""What was opened: nobody writes to a database while another reads it."""


@pytest.fixture(autouse=True)
def near_checkpoints(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept_module, "CHECKPOINT_EVENTS", SPACING)
    monkeypatch.setattr(keeping_module, "BLOCK_EVENTS", 5)
    monkeypatch.setattr(kept_module, "BLOCKS_AT_HAND", 3)
    monkeypatch.setattr(keeping_module, "PIECE_BYTES", 900)
    monkeypatch.setattr(kept_module, "FILES_AT_HAND", 2)
    monkeypatch.setattr(kept_module, "STATES_APART", 2)
    monkeypatch.setattr(kept_module, "STATES_AT_HAND", 3)
    monkeypatch.setattr(layers_module, "WRITTEN_AT_HAND", 2)
    yield
    close()


def close() -> None:
    """Let go of every database."""
    while OPEN:
        OPEN.pop().close()


def plain_timeline(root: Path, signatures: Signatures, findings: Iterable[Finding]) -> PlainTimeline:
    tree, found = Tree(root), Gathered()
    records, _ = load_records(tree, signatures, None)
    read_one_by_one(tree, records, signatures, found)
    return PlainTimeline(found.events(), findings=findings, marks=found.marks)


def both(root: Path, file: Path, *, signatures: Signatures = SIGNATURES) -> tuple[PlainTimeline, AuditedTree]:
    """The timeline of a tree as a plain list, and that of a database that its audit made."""
    close()
    result = audit(Tree(root), signatures=signatures, options=Options(index_file=file, timeline=True))
    memory = plain_timeline(root, signatures, result.findings)
    kept = open_audited(file)
    OPEN.append(kept)
    assert kept.audit == result
    return memory, kept


def same_leases(memory: PlainTimeline, kept: Timeline, middle: int) -> None:
    """Compare the leases of every domain, whole and in halves, and its session leases."""
    of_memory, of_database = Traces(cast("Timeline", memory)), Traces(kept)
    step = max(1, (memory.end_ns + 10 * SECOND - memory.start_ns) // 40)
    moments = [(at, at) for at in range(memory.start_ns, memory.end_ns + 10 * SECOND, step)]
    assert set(kept.state_at().domains) == set(memory.state_at().domains)
    for domain in memory.state_at().domains:
        assert of_database.of(domain) == of_memory.of(domain)
        whole = (memory.start_ns, memory.end_ns), (memory.start_ns, middle), (middle, memory.end_ns)
        for span in (*whole, *moments):
            assert of_database.within(domain, *span) == of_memory.within(domain, *span)
    for told in memory.kinds(SessionTold):
        name = told.place[1], told.witness.session_id
        assert kept.session(*name) == memory.session(*name)
    assert kept.session(b"no", b"ne") is memory.session(b"no", b"ne") is None


def closing(root: Path) -> Path:
    """A written bag that somebody has begun to close."""
    story = Story(root)
    story.written()
    story.tree.put(f"{story.grid.bag(story.tree.now_ns).path}/prelock", b"")
    story.tree.advance(10 * SECOND)
    Shard(story.tree)
    return story.tree.root


def same(memory: PlainTimeline, kept: Timeline, draw: random.Random) -> None:
    """Compare everything that they are asked, in an order of its own."""
    assert list(kept.events) == list(memory.events)
    assert (kept.start_ns, kept.end_ns, kept.findings) == (memory.start_ns, memory.end_ns, memory.findings)
    positions = list(range(len(memory.events) + 1))
    draw.shuffle(positions)
    for first in (len(positions) // 3, len(positions) // 2):
        early, was = kept.state_after(first), memory.state_after(first)
        for position in range(first, min(first + SPACING, len(positions))):  # a state once given stays as it was
            assert kept.state_after(position).position == position
        assert early == was
    for position in positions:
        state, expected = kept.state_after(position), memory.state_after(position)
        assert state == expected, position
        assert state.domains.standing() == expected.domains.standing()
        for log in expected.logs:
            for newest in (None, 0, 1, 2):
                assert state.bags.bags_of(log, newest) == expected.bags.bags_of(log, newest)
    instants = sorted({event.instant_ns for event in memory.events})
    for instant in [edge for each in instants for edge in (each - 1, each, each + 1)]:
        same_steps(memory, kept, instant)
    same_lists(memory, kept)


def same_steps(memory: PlainTimeline, kept: Timeline, instant: int) -> None:
    assert kept.position(instant) == memory.position(instant)
    assert kept.position_before(instant) == memory.position_before(instant)
    assert all(kept.closing(instant, back=back) == memory.closing(instant, back=back) for back in (False, True))


def same_lists(memory: PlainTimeline, kept: Timeline) -> None:
    state = memory.state_at()
    middle = (memory.start_ns + memory.end_ns) // 2
    half = memory.position(middle)
    assert kept.density(memory.start_ns, memory.end_ns, 17) == memory.density(memory.start_ns, memory.end_ns, 17)
    for domain in (None, *state.domains, "none such"):
        for first, last in ((memory.start_ns, memory.end_ns), (middle, memory.end_ns), (memory.start_ns, middle)):
            assert list(kept.between(first, last, domain=domain)) == list(memory.between(first, last, domain=domain))
        if domain is not None:
            for back in (False, True):
                assert kept.next_about(half, domain, back=back) == memory.next_about(half, domain, back=back)
    for log in (*state.logs, "none such"):
        assert list(kept.between(middle, memory.end_ns, log=log)) == list(
            memory.between(middle, memory.end_ns, log=log)
        )
        for before in (middle, memory.end_ns, *(start for name, start in state.bags if name == log)):
            given = list(kept.delivered_backwards(log, before))
            assert sorted(given, key=order) == sorted(memory.delivered_backwards(log, before), key=order)
            assert [(-each.bag_ns, -each.newest_accepted_ns) for each in given] == sorted(
                (-each.bag_ns, -each.newest_accepted_ns) for each in given
            )
    for log, start in state.bags:
        assert kept.frames_in(log, start) == memory.frames_in(log, start)
    for node in (*state.clocks, "none such"):
        assert list(kept.signed_by(node, half)) == list(memory.signed_by(node, half))
    same_leases(memory, kept, middle)
    places = {event.where for event in memory.events}
    places |= {Evidence(event.file) for event in memory.events if isinstance(event, FrameWritten)}
    for place in (*sorted(places), Evidence("none such")):
        assert list(kept.resting_on([place])) == list(memory.resting_on([place])), place
    for path in (*{event.path for event in memory.kinds(BagClosed)}, "none such"):
        assert kept.closing_of(path) == memory.closing_of(path)
    for linked in memory.kinds(CeilingLinked):
        for number in (linked.record.number, linked.record.number + 999):
            assert kept.ceiling(linked.shard, number) == memory.ceiling(linked.shard, number)
    for kind in (BagClosed, CeilingLinked):
        assert list(kept.kinds(kind)) == list(memory.kinds(kind))


@pytest.mark.parametrize("name", sorted(STORIES))
def test_golden_tree_is_the_same_from_a_database(name: str, tmp_path: Path) -> None:
    memory, kept = both(TREES / name / "tree", tmp_path / "index")
    same(memory, kept.timeline, random.Random(name))


@pytest.mark.parametrize("share", shares(3))
def test_every_planted_tree_is_the_same_from_a_database(tmp_path: Path, share: int) -> None:
    for number, plants in enumerate([*all_plants().values()][share::3]):
        tree = plants[0](tmp_path / str(number))
        memory, kept = both(tree.root, tmp_path / f"{number}.db")
        same(memory, kept.timeline, random.Random(number))


def test_refused_ceiling_record_is_the_same_from_a_database(tmp_path: Path) -> None:
    story = ending(tmp_path / "tree", "n1", Purpose.WITNESS)
    story.shard.extend()
    memory, kept = both(story.done().root, tmp_path / "index")
    assert {each.code for each in kept.timeline.findings_until(2**62)} == {"ended-key"}
    same(memory, kept.timeline, random.Random(5))


@pytest.mark.verify
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_simulated_tree_is_the_same_from_a_database(scenario: str, tmp_path: Path) -> None:
    for seed in (700, 701):
        world = SCENARIOS[scenario](seed)
        world.run()
        write_tree(world, tmp_path / str(seed))
        memory, kept = both(tmp_path / str(seed), tmp_path / f"{seed}.db", signatures=Signatures())
        same(memory, kept.timeline, random.Random(seed))


def test_session_lease_that_expired_in_1970_is_known_too(tmp_path: Path) -> None:
    story = Story(tmp_path / "tree")
    session = sessions.begin(story.shard, story.writer, {"expiry_ns": 0})
    sessions.under(session, "alice", story.writer)
    memory, kept = both(story.tree.root, tmp_path / "index")
    assert kept.timeline.session(story.shard.incarnation, session.witness.session_id) == (0, None)
    same(memory, kept.timeline, random.Random(9))


def test_tree_is_not_needed(tmp_path: Path) -> None:
    tree = eventful_tree(tmp_path / "tree")
    memory, _ = both(tree.root, tmp_path / "index")
    shutil.rmtree(tree.root)
    same(memory, open_audited(tmp_path / "index").timeline, random.Random(3))


def test_second_audit_keeps_the_timeline_and_what_changed_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = Story(tmp_path / "tree")
    story.written()
    before, _ = both(story.tree.root, tmp_path / "index")
    with monkeypatch.context() as patch:
        patch.setattr(keeping_module.TimelineWriter, "write", None)  # were it made again, this would fail
        both(story.tree.root, tmp_path / "index")
    story.done()
    after, kept = both(story.tree.root, tmp_path / "index")
    assert len(after.events) > len(before.events)
    same(after, kept.timeline, random.Random(4))


# The chain of a shard is no part of any rack or ledger: a run that only linked a record must be seen too.
def test_new_ceiling_record_alone_is_read(tmp_path: Path) -> None:
    tree = eventful_tree(tmp_path / "tree")
    both(tree.root, tmp_path / "index")
    Shard(tree, "n1")
    memory, kept = both(tree.root, tmp_path / "index")
    same(memory, kept.timeline, random.Random(5))


# What is linked while an audit judges is not in the timeline that it keeps, and has to be in that of the next.
def test_ceiling_record_that_came_during_an_audit_is_read_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, file = small_tree(tmp_path / "tree"), tmp_path / "index"
    shutil.copytree(tree.root / "ledger", tmp_path / "ledger")
    Shard(tree)  # links another, of whose ledger the copy has nothing yet
    shutil.rmtree(tree.root / "ledger")
    (tmp_path / "ledger").rename(tree.root / "ledger")
    chain = tree.root / chain_path(1, 0)
    newest = max(chain.iterdir())
    kept = newest.read_bytes()
    newest.unlink()
    judge = name_clocks

    def meanwhile(*given: Any) -> Any:  # noqa: ANN401 - of name_clocks
        newest.write_bytes(kept)
        return judge(*given)

    with monkeypatch.context() as patch:
        patch.setattr("auditor.audit.name_clocks", meanwhile)
        audit(Tree(tree.root), options=Options(index_file=file, timeline=True))
    audit(Tree(tree.root), options=Options(index_file=file, timeline=True))
    records = len([*chain.iterdir()])
    assert len([*open_audited(file).timeline.kinds(CeilingLinked)]) == records


def test_audit_of_a_part_keeps_what_was_read_of_the_rest(tmp_path: Path) -> None:
    tree, file = two_sealed_racks(tmp_path / "tree"), tmp_path / "index"

    def parts() -> int:
        db = open_index(file)
        ((count,),) = db.execute("SELECT count(*) FROM part")
        db.close()
        return int(count)

    audit(Tree(tree.root), options=Options(index_file=file, timeline=True))
    whole = parts()
    later = Narrowing(since_ns=INSTANT_MAX)
    audit(Tree(tree.root), options=Options(index_file=file, timeline=True, narrowing=later))
    assert parts() == whole


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE piece SET value = x'00'",
        "DELETE FROM text",
        "DELETE FROM block",
        "UPDATE posting SET positions = x'ffffff7f'",
        "UPDATE posting SET positions = x'01', more = x''",
    ],
)
def test_damaged_index_is_refused_by_every_command_that_reads_it(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, file = granted_while_held(tmp_path / "tree"), tmp_path / "index"
    (finding,) = audit(Tree(tree.root), options=Options(index_file=file, timeline=True)).findings
    db = sqlite3.connect(file)
    db.execute(damage)
    db.commit()
    db.close()
    whole = file.read_bytes()
    refused = 0
    for words in (
        ("replay", "--db", str(file), "--json"),
        ("replay", "--db", str(file), "--step", "event", "--domain", "alice"),
        ("explain", finding.id, str(tree.root), "--db", str(file)),
        ("audit", str(tree.root), "--db", str(file)),
    ):
        file.write_bytes(whole)
        status = main([*words])
        said = capsys.readouterr().err
        assert status in (0, 1, 2, 74), (words, said)
        refused += status in (2, 74)
    assert refused


def test_part_of_a_tree_leaves_the_timeline_of_the_whole(tmp_path: Path) -> None:
    tree = eventful_tree(tmp_path / "tree")
    memory, _ = both(tree.root, tmp_path / "index")
    close()
    narrowed = Options(index_file=tmp_path / "index", timeline=True, narrowing=Narrowing(domains=("bob",)))
    audit(Tree(tree.root), options=narrowed)
    same(memory, open_audited(tmp_path / "index").timeline, random.Random(6))
    audit(Tree(tree.root), options=Options(index_file=tmp_path / "other", timeline=True, narrowing=narrowed.narrowing))
    with pytest.raises(BadRequest, match="no timeline"):
        open_audited(tmp_path / "other")


# -- other files -------------------------------------------------------------------------------------------------------


def refusal(file: Path) -> str:
    with pytest.raises(BadRequest) as caught:
        open_audited(file)
    assert caught.value.hint
    return caught.value.code


def test_what_is_no_index_is_refused_with_a_way_out(tmp_path: Path) -> None:
    assert refusal(tmp_path / "absent") == "no-index"
    (tmp_path / "text").write_text("no database at all, and longer than a header of one is, " * 20)
    assert refusal(tmp_path / "text") == "not-an-index"
    apsw.Connection(str(tmp_path / "other")).execute("CREATE TABLE mine (x)")
    assert refusal(tmp_path / "other") == "not-an-index"
    assert not (tmp_path / "absent").exists()


# Linux lets nobody read where this begins: as a disk, or a mount, that fails.
def test_index_that_cannot_be_read_is_named() -> None:
    with pytest.raises(Environment, match="/proc/self/mem failed: disk I/O error"):
        open_audited(Path("/proc/self/mem"))


def test_index_of_another_format_is_named_and_the_next_audit_begins_it_anew(tmp_path: Path) -> None:
    tree = eventful_tree(tmp_path / "tree")
    both(tree.root, tmp_path / "index")
    close()
    db = apsw.Connection(str(tmp_path / "index"))
    db.execute(f"PRAGMA user_version = {INDEX_FORMAT - 1}")
    db.execute("CREATE TABLE of_that_format (x)")
    db.close()
    assert refusal(tmp_path / "index") == "other-index-format"
    memory, kept = both(tree.root, tmp_path / "index")
    same(memory, kept.timeline, random.Random(8))
    rows = apsw.Connection(str(tmp_path / "index")).execute(
        "SELECT count(*) FROM sqlite_schema WHERE name = 'of_that_format'"
    )
    assert next(rows) == (0,)


@pytest.mark.parametrize("value", [b'{"events": 1}', b'{"state"', b"\xff", b"[]"], ids=range(4))
def test_damaged_timeline_is_refused(tmp_path: Path, value: bytes) -> None:
    tree, options = eventful_tree(tmp_path / "tree"), Options(index_file=tmp_path / "index", timeline=True)
    audit(Tree(tree.root), signatures=SIGNATURES, options=options)
    apsw.Connection(str(tmp_path / "index")).execute("UPDATE timeline SET value = ?", (value,))
    assert refusal(tmp_path / "index") == "not-an-index"
    if value != b'{"events": 1}':  # of which nothing is wrong but that it says nothing of a timeline
        with pytest.raises(Environment, match="the index"):
            audit(Tree(tree.root), signatures=SIGNATURES, options=options)


@pytest.mark.parametrize("heard_first", [True, False])
def test_end_is_told_by_its_shard_and_not_by_who_heard_of_it(*, heard_first: bool, tmp_path: Path) -> None:
    told = plain_timeline(eventful_tree(tmp_path / "tree").root, SIGNATURES, ())
    own = next(event for event in told.events if isinstance(event, LeaseEnded) and not event.heard)
    heard = msgspec.structs.replace(own, floor_ns=None, settle_to_ns=None)
    rows, name = keeping_module.EventRows(), end_name(own.ending.correlation_id, own.domain)
    for rows.rank, event in enumerate([heard, own] if heard_first else [own, heard]):
        rows.add(event, name)
    writer = keeping_module.TimelineWriter(temporary_database())
    writer.take(rows.encoded())
    assert list(writer.write().events) == [own]


def test_file_that_somebody_reads_is_not_written_beneath_him(tmp_path: Path) -> None:
    tree = eventful_tree(tmp_path / "tree")
    _, kept = both(tree.root, tmp_path / "index")
    with pytest.raises(BadRequest) as caught:
        audit(Tree(tree.root), options=Options(index_file=tmp_path / "index", timeline=True, reread=True))
    assert caught.value.code == "index-in-use"
    assert kept.timeline.state_at().domains


# A replay that begins meanwhile is given what was there before. That the audit kept nothing must not be lost with it.
@pytest.mark.parametrize("narrowing", [Narrowing(), Narrowing(since_ns=1)])
def test_file_that_somebody_reads_when_the_audit_is_done_is_told_of(narrowing: Narrowing, tmp_path: Path) -> None:
    file = tmp_path / "index"
    audit(Tree(small_tree(tmp_path / "one").root), options=Options(index_file=file, timeline=True))
    other, held = eventful_tree(tmp_path / "other"), list[AuditedTree]()

    def read(*_: object) -> None:
        held[:] = held or [open_audited(file)]

    options = Options(index_file=file, timeline=True, narrowing=narrowing)
    with pytest.raises(BadRequest, match="cannot be written") as caught:
        audit(Tree(other.root), options=options, progress=read)
    assert caught.value.code == "index-in-use"
    held[0].close()
    audit(Tree(other.root), options=options)


def test_file_of_an_audit_that_was_killed_is_refused_with_the_way_out(tmp_path: Path) -> None:
    tree, file = small_tree(tmp_path / "tree"), tmp_path / "index"
    audit(Tree(tree.root), options=Options(index_file=file, timeline=True))
    if (child := os.fork()) == 0:
        db = apsw.Connection(str(file))
        db.execute("PRAGMA synchronous = OFF; PRAGMA cache_size = 1; BEGIN IMMEDIATE").fetchall()
        db.execute("UPDATE part SET part = zeroblob(100000)").fetchall()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(BadRequest) as caught:
        open_audited(file)
    assert "one was killed: audit into it again" in caught.value.hint
    audit(Tree(tree.root), options=Options(index_file=file, timeline=True))
    assert open_audited(file).timeline.state_at().logs


def test_findings_of_an_audit_that_was_interrupted_are_not_taken_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    tree, file = granted_while_held(tmp_path / "tree"), tmp_path / "index"
    before = both(tree.root, file)[1].audit
    close()
    monkeypatch.setattr(keeping_module, "StoredEvents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        audit(Tree(tree.root), signatures=SIGNATURES, options=Options(index_file=file, timeline=True))
    OPEN.append(open_audited(file))
    assert before.findings
    assert OPEN[0].audit == before


# SQLite has rolled back everything by then.
def test_disk_that_is_full_when_findings_are_kept_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = keeping_module.keep_findings

    def fill(db: apsw.Connection, findings: Sequence[Finding]) -> None:
        db.pragma("max_page_count", db.pragma("page_count"))
        keep(db, [*findings] * 2000)

    tree, file = granted_while_held(tmp_path / "tree"), tmp_path / "index"
    monkeypatch.setattr(keeping_module, "keep_findings", fill)
    with pytest.raises(Environment, match="database or disk is full"):
        audit(Tree(tree.root), signatures=SIGNATURES, options=Options(index_file=file, timeline=True))


# Bits of a database change, and it does not say so.
@pytest.mark.parametrize(
    "damage", ["UPDATE timeline SET value = '{'", "INSERT INTO part VALUES (CAST(x'ff' AS TEXT), x'', x'')"]
)
def test_damaged_text_in_the_file_of_an_audit_is_no_bug(damage: str, tmp_path: Path) -> None:
    tree, file = small_tree(tmp_path / "tree"), tmp_path / "index"
    audit(Tree(tree.root), options=Options(index_file=file, timeline=True))
    apsw.Connection(str(file)).execute(damage)
    with pytest.raises(Environment, match="failed") as caught:
        audit(Tree(tree.root), options=Options(index_file=file, timeline=True))
    assert "remove the file if it was damaged" in caught.value.hint


def test_step_back_takes_the_events_since_a_state_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = eventful_tree(tmp_path / "tree")
    monkeypatch.setattr(kept_module, "CHECKPOINT_EVENTS", 1_000)
    monkeypatch.setattr(kept_module, "STATES_AT_HAND", 1_000)
    timeline = both(tree.root, tmp_path / "index")[1].timeline
    taken: list[Event] = []
    take = Working.take

    def told(working: Working, event: Event) -> None:
        taken.append(event)
        take(working, event)

    monkeypatch.setattr(Working, "take", told)
    count = len(timeline.events)
    timeline.state_after(count - 1)
    assert taken == list(timeline.events)[: count - 1]
    for position in range(count - 2, -1, -1):
        taken.clear()
        timeline.state_after(position)
        assert len(taken) <= kept_module.STATES_APART


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("_fold", "(number - begin) % STATES_APART == 0", "False"),
        ("_remember", "self._at_hand[position] = working", "self._at_hand = type(self._at_hand)({position: working})"),
    ],
)
def test_events_that_are_gone_through_again_and_again_are_found(
    name: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_in_text(monkeypatch, kept_module, f"Timeline.{name}", old, new)
    with pytest.raises(AssertionError):
        test_step_back_takes_the_events_since_a_state_at_hand(tmp_path, monkeypatch)


# -- mutants -----------------------------------------------------------------------------------------------------------

MUTANTS: list[tuple[Any, str, str, str]] = [
    (layers_module, "Layer.__getitem__", "position <= ?", "position < ?"),
    (layers_module, "Layer.__getitem__", "ORDER BY position DESC LIMIT 1", "ORDER BY position LIMIT 1"),
    (layers_module, "Layer.__copy__", "self.changed.copy()", "self.changed"),
    (layers_module, "Layer.__iter__", "[*known, *self.changed]", "known"),
    (layers_module, "Layer.__iter__", "AND position <= ?", "AND position >= ? - 10000"),
    (layers_module, "Layer.__getitem__", "AND part IS ?", "AND part >= ?"),
    (layers_module, "Layer.keep", "self._written |= self.changed", "self._written = self.changed | self._written"),
    (layers_module, "DomainLayer.standing", "until > ?", "until >= ?"),
    (layers_module, "DomainLayer.standing", "since <= ?", "since < ?"),
    (layers_module, "DomainLayer.standing", "found - self.changed.keys()", "found"),
    (layers_module, "DomainLayer.keep", "INSERT OR IGNORE", "INSERT OR REPLACE"),
    (layers_module, "DomainLayer.keep", "WHERE until = ? AND domain = ?", "WHERE until >= ? AND domain <> ?"),
    (layers_module, "BagLayer.bags_of", "ORDER BY part DESC", "ORDER BY part"),
    (layers_module, "BagLayer.bags_of", "max(position)", "min(position)"),
    (layers_module, "BagLayer.bags_of", "{name for name in self.changed if name[0] == log}", "set()"),
    (layers_module, "BagLayer.starts", "position <= ?", "position > ?"),
    (layers_module, "BagLayer.starts", "name == log and first <= start < end", "False"),
    (fold_module, "Working.at", "mark = ? AND", "mark <> ? AND"),
    (kept_module, "Timeline.position_before", "without=True", "without=False"),
    (kept_module, "Timeline._fold", "position <= ?", "position <= ? + 1"),
    (kept_module, "Timeline._fold", "working.keep(self._db, number)", "working.keep(self._db, number - 1)"),
    (kept_module, "Timeline._fold", "self._at_hand[near].copy()", "self._at_hand[near]"),
    (kept_module, "Timeline._fold", "begin <= each <= position", "begin <= each"),
    (kept_module, "Timeline._fold", "self._remember(number, working.copy())", "self._remember(number, working)"),
    (kept_module, "Timeline.closing", "'right'", "'left'"),
    (kept_module, "Timeline.closing", "- back", "- 0"),
    (kept_module, "Timeline._about", "found > start", "found >= start"),
    (kept_module, "Timeline.next_about", "- back", "- 0"),
    (kept_module, "Timeline.delivered_backwards", "-newest", "newest"),
    (kept_module, "Timeline.delivered_backwards", "> 0", ">= 0"),
    (kept_module, "Timeline.signed_by", "[::-1]", ""),
    (kept_module, "Timeline.lease_events", "until >= first", "until > first + 1000000000"),
    (kept_module, "Timeline.lease_events", "since <= last", "since <= first"),
    (kept_module, "Timeline.ceiling", "ceiling_name(shard, number)", "ceiling_name(shard, number + 1)"),
    (kept_module, "Timeline.session", "max(initial=0)", "min(initial=0)"),
    (kept_module, "StoredEvents.until", "'<='", "'<'"),
    (kept_module, "StoredEvents.until", "number DESC'", "number'"),
    (kept_module, "StoredEvents.beginning_at", "[first:end]", "[first:]"),
    (kept_module, "StoredEvents.lists", "part < ?", "part <= ?"),
    (kept_module, "StoredEvents.__getitem__", "number % self._size", "(number + 1) % self._size"),
    (keeping_module, "TimelineWriter._finish", "rows['kind'], rows['instant']", "rows['instant'], rows['kind']"),
    (keeping_module, "TimelineWriter._finish", "place, sequence, names", "place, -sequence, names"),
    (keeping_module, "TimelineWriter._finish", "names[maker]", "maker"),
    (keeping_module, "TimelineWriter._of_leases", "self._post(Posting.ABOUT, domains, events)", "pass"),
    (keeping_module, "TimelineWriter._span", "np.maximum", "np.minimum"),
    (keeping_module, "TimelineWriter._span", "at[firsts]", "at"),
    (keeping_module, "TimelineWriter._write_blocks", "at % BLOCK_EVENTS", "at"),
    (kept_module, "StoredEvents._read", "block.leases['event'] == place", "block.leases['event'] >= place"),
    (keeping_module, "TimelineWriter._cut", "at - np.array(cuts)[which]", "at"),
    (keeping_module, "TimelineWriter._part", "event.rank < self._named.setdefault(name, event).rank", "False"),
    (keeping_module, "TimelineWriter._by_entry", "not in gone", "in gone"),
    (keeping_module, "TimelineWriter._part", "base + rank", "-base - rank"),
    (keeping_module, "TimelineWriter._columns", "_lowest(", "_lowest(-"),
    (keeping_module, "TimelineWriter._last", "max(event.witness.expiry_ns, under)", "under"),
    (keeping_module, "TimelineWriter._plain", "np.maximum(until[under]", "np.minimum(until[under]"),
    (keeping_module, "TimelineWriter._not_known", "rank < self._named[name].rank", "False"),
    (keeping_module, "TimelineWriter._write_postings", "= True", "= False"),
    (keeping_module, "TimelineWriter._frames", "told=False", "told=True"),
    (keeping_module, "keep_findings", "max(instants or named, default=end)", "max(named, default=end)"),
]


def looked_at(directory: Path) -> Iterator[tuple[str, Path]]:
    """Yield trees that together show each mutant, as they grow."""
    for name in sorted(STORIES):
        yield name, TREES / name / "tree"
    yield "eventful", eventful_tree(directory / "eventful").root
    yield "packed", packed(directory / "packed")[0].root
    yield "closing", closing(directory / "closing")
    yield "overlap", granted_while_held(directory / "overlap").root
    for code in ("timestamp-below-floor", "damaged-ledger", "ended-lease-forgotten"):
        yield code, all_plants()[code][0](directory / code).root


@pytest.mark.verify
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant[1]}: {mutant[3]}")
def test_a_mutant_is_found(mutant: tuple[Any, str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, old, new = mutant
    plant_in_text(monkeypatch, module, name, old, new)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever way it shows
        found_by(tmp_path)


def found_by(tmp_path: Path) -> None:
    """Do what the tests above do, in little."""
    for name, root in looked_at(tmp_path):
        memory, kept = both(root, tmp_path / f"{name}.db")
        same(memory, kept.timeline, random.Random(name))
    story = Story(tmp_path / "tree")
    story.written()
    both(story.tree.root, tmp_path / "index")
    story.done()
    memory, kept = both(story.tree.root, tmp_path / "index")
    same(memory, kept.timeline, random.Random(4))


def test_what_finds_the_mutants_finds_nothing_without_one(tmp_path: Path) -> None:
    found_by(tmp_path)
