"""state_at(t): leases, shards, bags, clocks and deliveries of scripted trees, at every interesting instant."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

import auditor.timeline.timeline_reader as reader_module
from appliance.formats.chains import CeilingKind
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import SessionEnded, SessionKind, SessionWitness, WitnessKind
from auditor.audit import audit
from auditor.columns.events import BagClosed, FrameWritten, LeaseTold, MapFollowed, RunResumed, event_words
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.timeline.report import Delivered, newest_delivered, text_lines
from auditor.timeline.state import BagPhase, LeasePhase
from auditor.timeline.timeline_reader import Timeline
from tests.fault_injection import sessions
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import Story, flip
from tests.fault_injection.moving import Move
from tests.fault_injection.plants import all_plants
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree
from tests.fault_injection.writer import Writer
from tests.support.plain_timeline import order, plain_working
from tests.support.shares import shares
from tests.support.timelines import empty_timeline, read_timeline
from timeagent.keys import Signer
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from auditor.timeline.state import StateAt

SIGNATURES = Signatures()
SHARES = 4
"""Of the kinds of findings."""


def timeline_in(tree: ClusterTree, *, findings: bool = False) -> Timeline:
    reading = Tree(tree.root)
    found = audit(reading, signatures=SIGNATURES).findings if findings else ()
    return read_timeline(reading, signatures=SIGNATURES, findings=found)


def busy_tree(root: Path) -> ClusterTree:
    """Six leases on three domains, ten frames, bags closed and a rack sealed."""
    story = Story(root)
    for turn in range(2):
        for domain in ("alice", "bob", "carol"):
            lease = story.shard.grant(domain, story.writer)
            story.tree.advance(150 * MS)
            for _ in range(1 + turn):
                story.writer.publish(story.grid, lease)
                story.tree.advance(300 * MS)
            story.shard.end(lease)
    return story.done()


def only_lease(state: StateAt, domain: str = "alice") -> LeasePhase:
    (lease,) = state.domains[domain].leases
    return state.phase(lease)


def test_lease_goes_from_held_by_renewal_to_relinquished(tmp_path: Path) -> None:
    story = Story(tmp_path)
    before = story.tree.now_ns - 1
    lease, _ = story.written()
    granted = lease.witness
    story.tree.advance(2 * SECOND)
    story.shard.prolong(lease)
    renewed = story.tree.now_ns
    story.tree.advance(SECOND)
    story.shard.end(lease)
    timeline = timeline_in(story.done())

    assert "alice" not in timeline.state_at(before).domains
    (first,) = timeline.state_at(renewed - 1).domains["alice"].leases
    assert (first.expiry_ns, first.renewals, first.witness.holder, first.witness.mode) == (
        granted.expiry_ns,
        0,
        granted.holder,
        Mode.X,
    )
    (second,) = timeline.state_at(renewed).domains["alice"].leases
    assert (second.expiry_ns, second.renewals, second.granted_ns) == (
        lease.witness.expiry_ns,
        1,
        first.granted_ns,
    )
    assert (second.frames, second.messages) == (1, 2)
    assert only_lease(timeline.state_at(renewed)) is LeasePhase.HELD
    over = timeline.state_at().domains["alice"]
    assert over.leases == ()
    assert over.previous is not None
    assert timeline.state_at().phase(over.previous) is LeasePhase.RELINQUISHED
    assert over.previous.ending is not None
    assert over.previous.ending.watermark_ns == lease.written_ns
    assert (over.floor_ns, over.fence, over.grants) == (lease.written_ns, granted.fence, 1)


def test_lease_past_its_expiry_is_over_and_then_broken(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease = story.lease()
    story.tree.until(lease.witness.expiry_ns + 2 * SECOND)
    story.shard.end(lease, LeaseOutcome.EXPIRED)
    broken = story.tree.now_ns
    timeline = timeline_in(story.done())
    assert only_lease(timeline.state_at(lease.witness.expiry_ns - 1)) is LeasePhase.HELD
    assert only_lease(timeline.state_at(lease.witness.expiry_ns)) is LeasePhase.OVER
    state = timeline.state_at(broken)
    previous = state.domains["alice"].previous
    assert previous is not None
    assert state.phase(previous) is LeasePhase.BROKEN
    assert state.domains["alice"].floor_ns == lease.witness.expiry_ns


@pytest.mark.parametrize(
    ("outcome", "phase"),
    [
        (LeaseOutcome.REVOKED, LeasePhase.REVOKED),
        (LeaseOutcome.WITHDRAWN, LeasePhase.WITHDRAWN),
        (LeaseOutcome.UNKNOWN, LeasePhase.UNKNOWN),
    ],
)
def test_every_other_outcome_has_its_phase(tmp_path: Path, outcome: LeaseOutcome, phase: LeasePhase) -> None:
    story = Story(tmp_path)
    lease = story.lease()
    story.tree.advance(SECOND)
    story.shard.end(lease, outcome)
    state = timeline_in(story.done()).state_at()
    previous = state.domains["alice"].previous
    assert previous is not None
    assert state.phase(previous) is phase


# A shard may grant and take back within one tick of its clock: an end comes before its beginning then.
def test_lease_that_ended_at_the_instant_of_its_grant_is_over(tmp_path: Path) -> None:
    tree = ClusterTree(tmp_path)
    shard = Shard(tree)
    for _ in range(2):
        tree.advance(SECOND)
        shard.end(shard.grant("alice", Writer(tree)))
    tree.advance(SECOND)
    shard.stop_orderly()
    state = timeline_in(tree).state_at()
    assert state.domains["alice"].leases == ()
    previous = state.domains["alice"].previous
    assert previous is not None
    assert state.phase(previous) is LeasePhase.RELINQUISHED


def test_tentative_lease_is_held_after_its_upgrade(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease = story.lease(phase=Phase.TENTATIVE)
    granted = story.tree.now_ns
    story.tree.advance(SECOND)
    story.shard.prolong(lease, WitnessKind.UPGRADE)
    timeline = timeline_in(story.done())
    assert only_lease(timeline.state_at(granted)) is LeasePhase.TENTATIVE
    assert only_lease(timeline.state_at(granted + SECOND)) is LeasePhase.HELD


def test_new_run_of_a_shard_forgets_its_leases_and_takes_the_ceiling_as_floor(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.lease()
    before = story.tree.now_ns
    story.tree.advance(3 * SECOND)
    run = Shard(story.tree)
    timeline = timeline_in(story.done())
    old = timeline.state_at(before).shards[1, 0]
    assert (old.record.incarnation, old.runs, old.record.kind) == (story.shard.incarnation, 1, CeilingKind.RUNNING)
    assert old.record.ceiling_ns == story.shard.ceiling_ns
    assert only_lease(timeline.state_at(before)) is LeasePhase.HELD
    state = timeline.state_at()
    assert only_lease(state) is LeasePhase.FORGOTTEN
    new = state.shards[1, 0]
    assert (new.record.incarnation, new.runs) == (run.incarnation, 2)
    assert new.record.floor_ns == old.record.ceiling_ns


def test_bag_is_open_due_closed_and_sealed_and_delivered_when_it_is_closed(tmp_path: Path) -> None:
    story = Story(tmp_path)
    _, path = story.written()
    written = story.tree.now_ns
    bag = story.grid.bag(written)
    timeline = timeline_in(story.done())
    closings = {event.bag_ns: event for event in timeline.events if isinstance(event, BagClosed)}
    closed = closings[bag.start_ns].instant_ns

    def at(instant: int) -> tuple[BagPhase, int, int]:
        state = timeline.state_at(instant)
        log = state.logs["orders"]
        return state.bag_phase(state.bags["orders", bag.start_ns]), log.delivered, log.pending

    assert path.startswith(bag.path)
    assert at(written) == (BagPhase.OPEN, 0, 2)
    assert at(bag.due_ns) == (BagPhase.DUE, 0, 2)
    assert at(closed) == (BagPhase.CLOSED, 2, 0)
    assert timeline.state_at(closed).logs["orders"].horizon_ns == bag.end_ns
    state = timeline.state_at()
    sealed = state.bags["orders", bag.start_ns]
    assert sealed.closed is not None
    assert (sealed.closed.closer, sealed.sealer, sealed.closed.files, sealed.closed.accepted) == ("n2", "n1", 1, 2)
    assert state.bag_phase(sealed) is BagPhase.SEALED
    assert state.logs["orders"].horizon_ns == bag.rack.end_ns


# A clock that was at the beginning of its time when a log was made, or a log that nobody wrote to for years.
def test_log_that_was_made_in_1970_costs_no_more_than_what_happened_in_it(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.grid = story.tree.log(change={"created_ns": 0, "span_ns": 10 * MS})
    story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.advance(4 * SECOND)
    story.tree.close_due(story.grid)
    log = timeline_in(story.tree).state_at().logs["orders"]
    assert (log.horizon_ns, log.delivered) == (bag.end_ns, 2)
    story.tree.until(bag.rack.end_ns + 10 * SECOND)
    story.tree.seal(bag.rack)
    state = timeline_in(story.tree).state_at()
    assert state.logs["orders"].horizon_ns == bag.rack.end_ns
    assert state.bag_phase(state.bags["orders", bag.start_ns]) is BagPhase.SEALED


def test_prelock_without_a_lock_file_means_closing(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.put(f"{bag.path}/prelock", b"")
    timeline = timeline_in(story.tree)
    state = timeline.state_at(bag.due_ns)
    assert state.bag_phase(state.bags["orders", bag.start_ns]) is BagPhase.CLOSING
    state = timeline.state_at(bag.due_ns - 1)
    assert state.bag_phase(state.bags["orders", bag.start_ns]) is BagPhase.OPEN


def test_late_file_is_void_and_never_delivered(tmp_path: Path) -> None:
    story = Story(tmp_path)
    _, path = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.advance(4 * SECOND)
    story.tree.close(bag, omit=[path.rpartition("/")[2]])
    state = timeline_in(story.tree).state_at()
    known = state.bags["orders", bag.start_ns]
    assert (known.written, known.messages) == (1, 0)
    assert known.closed is not None
    assert (known.closed.files, known.closed.void_files, known.closed.accepted) == (0, 1, 0)
    log = state.logs["orders"]
    assert (log.delivered, log.pending) == (0, 0)


def test_clock_of_each_node_is_what_it_signed_last(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.written()
    written = story.tree.now_ns
    timeline = timeline_in(story.done())
    clock = timeline.state_at(written).clocks["n2"]
    assert abs(clock.reading.midpoint_ns - written) <= 50 * MS
    assert clock.reading.radius_ns == clock.widest_ns > 0
    assert "n2" not in timeline.state_at(written - 1).clocks  # before its frame it had signed nothing
    assert timeline.state_at().clocks["n2"].as_of_ns > written  # it closed the bag


def test_state_does_not_depend_on_the_order_of_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "CHECKPOINT_EVENTS", 3)
    timeline = timeline_in(busy_tree(tmp_path))
    naive = plain_working(events=timeline.events)
    expected: list[tuple[dict[Any, Any], ...]] = [(dict(naive.domains), dict(naive.bags), dict(naive.logs))]
    for event in timeline.events:
        naive.take(event)
        expected.append((dict(naive.domains), dict(naive.bags), dict(naive.logs)))
    positions = list(range(len(timeline.events) + 1)) * 3
    random.Random(7).shuffle(positions)
    for position in positions:
        state = timeline.state_after(position)
        assert (dict(state.domains), dict(state.bags), dict(state.logs)) == expected[position]
        assert state.position == position
    assert len(timeline.events) > 2 * reader_module.CHECKPOINT_EVENTS


def test_state_once_given_never_changes(tmp_path: Path) -> None:
    timeline = timeline_in(busy_tree(tmp_path))
    early = timeline.state_after(4)
    kept = (dict(early.domains), dict(early.bags), dict(early.shards), dict(early.clocks))
    timeline.state_at()
    assert (dict(early.domains), dict(early.bags), dict(early.shards), dict(early.clocks)) == kept


# A clock that is far off puts events into an order that cannot have been.
def test_no_order_of_events_is_too_much(tmp_path: Path) -> None:
    timeline = timeline_in(busy_tree(tmp_path))
    written = {key: (bag.written, bag.messages) for key, bag in timeline.state_at().bags.items()}
    for seed in range(60):
        events = list(timeline.events)
        random.Random(seed).shuffle(events)
        working = plain_working(events=events)
        for event in events:
            working.take(event)
        assert all(log.pending >= 0 for log in working.logs.values())
        assert {key: (bag.written, bag.messages) for key, bag in working.bags.items()} == written


# A node signs a log's first messages with the time that it has, which may be from before the log's first bag.
def test_message_that_was_signed_before_its_log_begins_is_in_its_bag(tmp_path: Path) -> None:
    story = Story(tmp_path)
    first_ns = story.grid.first_ns
    story.tree.nodes[story.writer.node].time.midpoint_ns = first_ns - 20 * MS
    story.writer.publish(story.grid, story.lease(), at=first_ns)
    timeline = timeline_in(story.done())
    (written,) = (each.instant_ns for each in timeline.events if isinstance(each, FrameWritten))
    assert written < first_ns
    assert [bag.messages for bag in timeline.state_at().bags.values()] == [2]


def test_events_of_one_maker_keep_their_order_at_one_instant(tmp_path: Path) -> None:
    timeline = timeline_in(busy_tree(tmp_path))
    assert [order(event) for event in timeline.events] == sorted(order(event) for event in timeline.events)
    told = [event.place[2:] for event in timeline.events if isinstance(event, LeaseTold)]
    assert told == sorted(told)


def test_finding_is_there_from_the_instant_at_which_its_evidence_was_complete(tmp_path: Path) -> None:
    timeline = timeline_in(granted_while_held(tmp_path), findings=True)
    ((instant, finding),) = timeline.findings
    assert finding.code == "early-grant"
    second = [event for event in timeline.events if isinstance(event, LeaseTold)][-1]
    assert instant == second.instant_ns
    assert timeline.state_at(instant - 1).findings == ()
    assert timeline.state_at(instant).findings == (finding,)
    assert timeline.finding(instant - 1, back=False) == (instant, finding) == timeline.finding(instant + 1, back=True)
    assert timeline.finding(instant, back=False) is None


def test_steps_lead_from_bag_to_bag(tmp_path: Path) -> None:
    timeline = timeline_in(busy_tree(tmp_path))
    closings = [event.instant_ns for event in timeline.events if isinstance(event, BagClosed)]
    assert timeline.closing(0, back=False) == closings[0]
    assert timeline.closing(timeline.end_ns + 1, back=True) == closings[-1]
    assert sum(timeline.density(timeline.start_ns, timeline.end_ns, 17)) == len(timeline.events)


def test_events_of_a_domain_are_its_leases_and_what_was_written_under_them(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.written()
    story.shard.grant("bob", story.other)
    timeline = timeline_in(story.done())
    kinds = [type(event) for _, event in timeline.between(0, timeline.end_ns, domain="alice")]
    assert kinds == [LeaseTold, FrameWritten]
    assert [type(event) for _, event in timeline.between(0, timeline.end_ns, domain="bob")] == [LeaseTold]


def test_newest_deliveries_come_in_the_order_of_readers(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.tree.advance(1200 * MS)
    story.writer.publish(story.grid, lease)
    tree = story.done()
    reading = Tree(tree.root)
    timeline = timeline_in(tree)
    state = timeline.state_at()
    every = newest_delivered(timeline, state, reading, "orders", newest=10)
    assert [each.timestamp_ns for each in every] == sorted(each.timestamp_ns for each in every)
    assert len(every) == state.logs["orders"].delivered == 4
    for newest in (1, 2, 3, 4):
        assert newest_delivered(timeline, state, reading, "orders", newest=newest) == every[-newest:]
    assert newest_delivered(timeline, state, reading, "orders", newest=9, domain="bob") == []
    assert newest_delivered(timeline, timeline.state_at(timeline.start_ns), reading, "orders", newest=9) == []


def test_newest_deliveries_are_not_sorted_anew_for_each_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def compared(one: Delivered, other: Delivered) -> bool:
        comparisons.append(None)
        return get(one, other)

    comparisons: list[None] = []
    get = Delivered.__lt__
    monkeypatch.setattr(Delivered, "__lt__", compared)
    story = Story(tmp_path)
    lease, _ = story.written()
    for _ in range(60):
        story.tree.advance(MS)
        story.writer.publish(story.grid, lease, payloads=[b"one"])
    tree = story.done()
    timeline = timeline_in(tree)
    assert len(newest_delivered(timeline, timeline.state_at(), Tree(tree.root), "orders", newest=100)) == 62
    assert len(comparisons) < 1_000


@pytest.mark.parametrize("share", shares(SHARES))
def test_what_readers_accept_is_what_the_audit_says_in_every_planted_tree(tmp_path: Path, share: int) -> None:
    planted = list(all_plants().values())[share::SHARES]
    for number, plants in enumerate(planted):
        tree = plants[0](tmp_path / str(number))
        summary = audit(Tree(tree.root), signatures=SIGNATURES).summary
        closings = [event for event in timeline_in(tree).events if isinstance(event, BagClosed)]
        assert sum(event.accepted for event in closings) == summary.messages, plants[0]
        assert sum(event.rejected for event in closings) == summary.rejected, plants[0]
    assert len(planted) > 30 // SHARES


def test_empty_tree_has_an_empty_state() -> None:
    timeline = empty_timeline()
    state = timeline.state_at()
    assert (state.position, dict(state.domains)) == (0, {})
    assert timeline.density(0, 10, 2) == [0, 0]


def test_lease_under_a_session_stands_and_ends_with_it(tmp_path: Path) -> None:
    story = Story(tmp_path)
    session = b"s" * 16
    lease = story.lease(change={"session_id": session})
    start = story.tree.now_ns

    def tell(kind: SessionKind, expiry_ns: int) -> None:
        story.shard.turn(
            SessionWitness(kind=kind, session_id=session, holder=story.writer.holder, expiry_ns=expiry_ns, ended=())
        )

    tell(SessionKind.GRANT, start + 5 * SECOND)
    story.tree.advance(4 * SECOND)
    tell(SessionKind.RENEWAL, start + 30 * SECOND)
    story.tree.advance(20 * SECOND)
    dropped = story.tree.now_ns
    story.shard.turn(
        SessionEnded(
            session_id=session,
            outcome=LeaseOutcome.DROPPED,
            ended_ns=dropped,
            expiry_ns=start + 30 * SECOND,
            leases=1,
            watermark_ns=start,
            watermark_time=None,
            messages=0,
            chain_head=None,
        )
    )
    timeline = timeline_in(story.tree)
    assert only_lease(timeline.state_at(dropped - 1)) is LeasePhase.HELD
    assert lease.witness.expiry_ns < dropped
    assert only_lease(timeline.state_at(dropped)) is LeasePhase.DROPPED
    state = timeline.state_at(dropped - 1)
    ((under,),) = [state.domains[name].leases for name in state.domains.standing()]
    assert state.expiry(under) == start + 30 * SECOND


# Whoever runs a shard chooses the ids of its session leases: those of another shard are none of its business.
def test_lease_does_not_end_with_another_shards_session_of_that_id(tmp_path: Path) -> None:
    story = Story(tmp_path)
    session = sessions.begin(story.shard, story.writer)
    sessions.under(session, "alice", story.writer)
    expiry = session.witness.expiry_ns
    other = Shard(story.tree, "n2", number=1)
    change = {"session_id": session.witness.session_id, "expiry_ns": expiry + SECOND}
    strange = sessions.begin(other, story.writer, change)
    story.tree.advance(MS)
    sessions.end(strange)
    state = timeline_in(story.tree).state_at()
    assert only_lease(state) is LeasePhase.HELD
    ((lease,),) = [state.domains[name].leases for name in state.domains.standing()]
    assert state.expiry(lease) == expiry


def test_open_bag_stops_a_reader_though_a_later_one_is_closed(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    first = story.grid.bag(story.tree.now_ns)
    story.tree.advance(SECOND)
    story.writer.publish(story.grid, lease)
    second = story.grid.bag(story.tree.now_ns)
    story.tree.advance(4 * SECOND)
    story.tree.close(second)
    state = timeline_in(story.tree).state_at()
    log = state.logs["orders"]
    assert (log.horizon_ns, log.delivered, log.pending) == (first.start_ns, 0, 2)
    story.tree.close(first)
    log = timeline_in(story.tree).state_at().logs["orders"]
    assert (log.horizon_ns, log.delivered, log.pending) == (second.end_ns, 4, 0)


def test_listed_file_with_other_bytes_of_the_same_length_is_missing(tmp_path: Path) -> None:
    story = Story(tmp_path)
    _, path = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.done()
    flip(story.tree, path, 200)
    closed = timeline_in(story.tree).state_at().bags["orders", bag.start_ns].closed
    assert closed is not None
    assert (closed.files, closed.missing, closed.accepted) == (1, 1, 0)


def test_frame_that_a_bag_has_twice_counts_once(tmp_path: Path) -> None:
    story = Story(tmp_path)
    _, path = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    name = path.rpartition("/")[2]
    story.tree.put(f"{bag.path}/{name.replace('00000001', '00000009')}", story.tree.get(path))
    closed = timeline_in(story.done()).state_at().bags["orders", bag.start_ns].closed
    assert closed is not None
    assert (closed.files, closed.accepted) == (2, 2)


def test_what_a_strange_key_signed_never_happened(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.lease(signer=Signer(bytes(32)))
    assert "alice" not in timeline_in(story.done()).state_at().domains


def test_shards_say_which_half_they_are_in_a_move_and_since_when(tmp_path: Path) -> None:
    move = Move(tmp_path)
    lease = move.old.grant("alice", move.writer)
    move.tree.advance(SECOND)
    began = move.tree.now_ns
    move.both()
    move.old.prolong(lease)
    leaving = move.tree.now_ns
    coming = move.coming[0].grant("alice", move.writer)
    move.tree.advance(SECOND)
    move.new()
    move.coming[0].prolong(coming)
    whole, timeline = move.tree.now_ns, timeline_in(move.done())

    def halves(instant: int) -> dict[tuple[int, int], tuple[int, str, int | None]]:
        shards = timeline.state_at(instant).shards.items()
        return {name: (each.going_by, each.half.value, each.half_ns) for name, each in shards}

    assert halves(began - MS) == {(1, 0): (0, "whole", None)}
    assert halves(leaving) == {(1, 0): (2, "leaving", leaving), (2, 0): (2, "coming", began)}
    assert halves(whole) == {(1, 0): (2, "leaving", leaving), (2, 0): (3, "whole", whole)}
    said = [event_words(event) for event in timeline.kinds(MapFollowed)]
    assert said[-1] == "shard 0, chain 2, goes by map 3: whole"


def test_half_of_a_lease_ends_with_the_chain_that_left(tmp_path: Path) -> None:
    move = Move(tmp_path)
    move.both()
    move.take("alice", move.writer)
    both = move.tree.now_ns
    move.new()
    new, timeline = move.tree.now_ns, timeline_in(move.done())

    def shards_of(instant: int) -> list[tuple[int, int]]:
        return [each.told.shard for each in timeline.state_at(instant).domains["alice"].leases]

    assert shards_of(both) == [(1, 0), (2, 0)]
    assert shards_of(new) == [(2, 0)]


def test_run_goes_on_after_a_restart_with_its_leases(tmp_path: Path) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    began, run = story.tree.now_ns, story.shard.incarnation
    story.shard.restart(SECOND)
    story.shard.prolong(lease)
    story.tree.advance(SECOND)
    again = story.tree.now_ns
    story.shard.restart(300 * MS)
    story.shard.end(lease)
    tree = story.done()
    timeline = timeline_in(tree)
    before, after, last = (timeline.state_at(when) for when in (began, again, timeline.end_ns))
    assert only_lease(after) is LeasePhase.HELD
    shards = [state.shards[1, 0] for state in (before, after, last)]
    assert [(each.record.incarnation, each.runs, each.restarts) for each in shards] == [(run, 1, n) for n in range(3)]
    assert len({each.started_ns for each in shards}) == 1
    assert [each.paused_ns and each.paused_ns[1] - each.paused_ns[0] for each in shards] == [
        None, SECOND, 300 * MS,
    ]  # fmt: skip
    said = [event_words(event) for event in timeline.kinds(RunResumed)]
    assert said[0] == f"shard 0 goes on as run {run.hex()} after a restart of 1 s"
    assert "2 restarts, the last at" in "\n".join(text_lines(last, {}))
    assert [each.code for each in audit(Tree(tree.root), signatures=SIGNATURES).findings] == []


# Its chain of batches goes on too: who forgets it has forked it.
def test_run_that_goes_on_under_another_head_is_a_fork(tmp_path: Path) -> None:
    story = Story(tmp_path)
    story.written()
    story.shard.previous = bytes(32)
    story.shard.restart(SECOND)
    found = {each.code for each in audit(Tree(story.done().root), signatures=SIGNATURES).findings}
    assert "chain-fork" in found
