"""What holds for one message, bag and record holds for several: bounds inside a bag, frames of which a part counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from appliance.bag import message as columns
from appliance.bag.acceptance import Refusal
from appliance.bag.closedbags import RackGone, Stretches
from appliance.bag.closing import Closed, NotDue
from appliance.bag.message import MessageBatch, parse_cursor
from appliance.bag.reader import Level
from appliance.bag.writing import Committed, FrameFile
from appliance.formats.paths import DataName
from tests.support.bags import (
    INCARNATION,
    LOG,
    POLICY,
    SHARD_KEY,
    STRANGER,
    T0,
    TIME_KEY,
    Node,
    key,
    session_witness,
    witness,
)
from tests.support.clocks import HandTime
from tests.support.storage import MemoryStorage, WrappedStorage
from timeagent.canonical import decode, encode
from timeagent.keys import Purpose
from timeagent.trust import Keyring
from timeagent.units import MINUTE, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from appliance.bag.reader import Reading

RADIUS = 5 * MS
TOLERANCE = POLICY.r1_tolerance_ns


@pytest.fixture
def server() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def node(server: MemoryStorage) -> Node:
    node = Node(server)
    server.server_clock_ns = lambda: node.time.midpoint_ns
    return node


def held(node: Node, *payloads: bytes, sequence: int = 1, **head: Any) -> FrameFile:  # noqa: ANN401 - as frame_file
    """A frame under a lease, as every frame is that counts."""
    return node.file(*payloads, sequence=sequence, **{"witnesses": (witness(node.time),)} | head)


def read(reading: Reading) -> list[bytes]:
    return [message.payload for batch in reading for message in batch]


# -- bounds of a reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("until", [-1, 0, 5, 10, 11, 15, 20, 25, SECOND, 5 * SECOND])
def test_reading_that_ended_inside_a_bag_is_gone_on_with_where_it_ended(
    node: Node, until: int, *, sealed: bool
) -> None:
    base = node.time.midpoint_ns
    one, other = [base, base + 10, base + 20], [base + 11, base + 21]
    assert node.writer.write(held(node, b"1", b"2", b"4", timestamps=one)) == Committed()
    assert node.writer.write(held(node, b"3", b"5", timestamps=other, sequence=2)) == Committed()
    node.time.advance(2 * SECOND)
    assert node.writer.write(held(node, b"6", sequence=3)) == Committed()
    node.time.advance(MINUTE)
    if sealed:
        node.sealer.seal(node.grid.rack(T0))
    node.horizon.settle(base + 3 * SECOND)
    stamped = sorted(zip([*one, *other, base + 2 * SECOND], (b"1", b"2", b"4", b"3", b"5", b"6"), strict=True))
    first = node.reader.batches(until_ns=base + until)
    assert read(first) == [payload for stamp, payload in stamped if stamp <= base + until]
    rest = [payload for stamp, payload in stamped if stamp > base + until]
    for reader in (node.reader, node.again().reader):
        assert read(reader.batches(parse_cursor(first.cursor, LOG))) == rest


@pytest.mark.parametrize("past", [-1, 0, 1])
def test_settled_reading_up_to_the_beginning_of_a_bag_has_its_first_message(node: Node, past: int) -> None:
    start = T0 + SECOND
    assert node.writer.write(held(node, b"1")) == Committed()
    node.time.advance(start - node.time.midpoint_ns)
    assert node.writer.write(held(node, b"2", timestamps=[start], sequence=2)) == Committed()
    node.time.advance(MINUTE)
    node.horizon.settle(start + SECOND)
    first = node.reader.batches(until_ns=start + past)
    below = 1 if past < 0 else 2
    assert read(first) == [b"1", b"2"][:below]
    assert read(node.reader.batches(parse_cursor(first.cursor, LOG))) == [b"1", b"2"][below:]


@pytest.mark.parametrize("until", [0, 5, 20, 500 * MS - 1, 500 * MS, SECOND])
def test_batch_says_how_far_it_is_complete_and_no_further(node: Node, until: int) -> None:
    base = node.time.midpoint_ns
    file = held(node, b"1", b"2", timestamps=[base, base + 20])
    assert node.writer.write(file) == Committed()
    node.time.advance(MINUTE)
    node.horizon.settle(base + 3 * SECOND)
    (batch,) = node.reader.batches(until_ns=base + until)
    assert batch.complete_ns == min(file.bag.end_ns, base + until + 1)


def test_reading_that_ends_below_where_it_begins_does_not_go_back(node: Node) -> None:
    base = node.time.midpoint_ns
    assert node.writer.write(held(node, b"1", b"2", timestamps=[base, base + 20])) == Committed()
    node.time.advance(MINUTE)
    node.horizon.settle(base + 3 * SECOND)
    whole = node.reader.batches()
    assert read(whole) == [b"1", b"2"]
    for until in (base - SECOND, base + 10, base + 20):
        again = node.reader.batches(whole.position, until_ns=until)
        assert read(again) == []
        assert again.position == whole.position


@pytest.mark.parametrize("fresh", [False, True])
def test_reading_that_begins_inside_a_bag_has_its_rest_however_many_bags_follow(node: Node, *, fresh: bool) -> None:
    base = node.time.midpoint_ns
    stamps = []
    for number in range(8):
        now = node.time.midpoint_ns
        file = held(node, b"a", b"b", b"c", timestamps=[now, now + 5, now + 9], sequence=number + 1)
        assert node.writer.write(file) == Committed()
        stamps += [now, now + 5, now + 9]
        node.time.advance(SECOND)
    node.time.advance(4 * SECOND)
    for second in range(8):
        assert not isinstance(node.authority.close(node.grid.bag(base + second * SECOND)), NotDue)
    if not fresh:  # it knows of some of them
        assert len(list(node.reader.settled(base + 2 * SECOND - 1, base + 7 * SECOND - 1))) == 15
    for after in (*stamps, base + 6, base + 2 * SECOND + 7):
        for until in (None, base + 6 * SECOND + 5):
            found = (node.again() if fresh else node).reader.settled(after, until)
            expected = [stamp for stamp in stamps if after < stamp and (until is None or stamp <= until)]
            assert [message.timestamp_ns for message in found] == expected


# Racks are sealed later than their bags are closed: until then each of them is followed by its lock files.
def test_horizon_that_is_looked_at_afresh_lies_behind_every_bag_that_is_closed(node: Node) -> None:
    node.time.advance(14 * SECOND)
    for second in range(12):
        assert not isinstance(node.authority.close(node.grid.bag(T0 + second * SECOND)), NotDue)
    assert node.sealer.newest_sealed() is None
    assert node.again().horizon.refresh() == T0 + 12 * SECOND


def test_stretches_that_are_gone_are_one_only_where_they_touch() -> None:
    stretches = Stretches(LOG, ok=True)
    for start, end in ((0, 10), (10, 20), (30, 40), (40, 50), (60, 70)):
        stretches.meet(RackGone(start, end))
    assert stretches.met == [RackGone(0, 20), RackGone(30, 50), RackGone(60, 70)]


@pytest.mark.parametrize("settled", [(True, True), (True, False), (False, True)])
def test_messages_of_several_logs_are_settled_and_complete_as_the_least_of_them(settled: Sequence[bool]) -> None:
    batches = [MessageBatch([], settled=each, complete_ns=ns) for each, ns in zip(settled, (7, 5), strict=True)]
    for each in (batches, batches[::-1]):
        together = columns.merged(each)
        assert (together.settled, together.complete_ns) == (all(settled), 5)


# Whoever seals is faster than whoever lists: then the seal says which bags there are, up to the same instant.
@pytest.mark.parametrize("past", [-1, 0, 1])
def test_latest_reading_up_to_the_beginning_of_a_bag_has_its_first_message(
    node: Node, server: MemoryStorage, past: int
) -> None:
    start = T0 + SECOND
    assert node.writer.write(held(node, b"1")) == Committed()
    node.time.advance(start - node.time.midpoint_ns)
    assert node.writer.write(held(node, b"2", timestamps=[start], sequence=2)) == Committed()
    node.time.advance(MINUTE)
    rack = node.grid.rack(T0)

    class Sealing(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if (verb, path) == ("list_afresh", rack.path):
                node.sealer.seal(rack)
            return call()

    reader = node.again(Sealing(server)).reader
    found = read(reader.batches(until_ns=start + past, level=Level.LATEST))
    assert found == ([b"1"] if past < 0 else [b"1", b"2"])


# -- frames of which a part counts -------------------------------------------------------------------------------------


def token_of(node: Node, offset: int) -> bytes:
    return HandTime(TIME_KEY, node.time.midpoint_ns + offset).token().encode()


@pytest.mark.parametrize(
    ("refusal", "stamps", "head", "kept"),
    [
        (Refusal.EXPIRED, (0, 1, 2, 3), {"expiry_ns": 2}, b"01"),
        (Refusal.FLOOR, (0, 1, 2, 3), {"floor_ns": 1}, b"23"),
        (Refusal.OUTSIDE_BAG, (0, 500 * MS - 1, 500 * MS, 500 * MS + 1), {}, b"01"),
        (Refusal.OUTSIDE_BAG, (-500 * MS - 2, -500 * MS - 1, -500 * MS, 0), {}, b"23"),
        (Refusal.R1, (0, 1, 2, 3), {"token": 1 - TOLERANCE - RADIUS}, b"01"),
        (Refusal.R1, (0, 1, 2, 3), {"token": 2 + TOLERANCE + RADIUS}, b"23"),
    ],
)
def test_rule_is_kept_by_each_message_of_a_frame(
    node: Node, refusal: Refusal, stamps: Sequence[int], head: dict[str, int], kept: bytes
) -> None:
    base = node.time.midpoint_ns
    bounds: dict[str, Any] = {name: base + offset for name, offset in head.items() if name != "token"}
    file = held(
        node,
        *(b"%d" % n for n in range(4)),
        timestamps=[base + offset for offset in stamps],
        bag_at=base,
        witnesses=(witness(node.time, **{"floor_ns": base - 2 * SECOND} | bounds),),
        time=token_of(node, head.get("token", 0)),
    )
    assert node.writer.write(file) == Committed()
    latest = node.latest()
    assert node.reader.rejected == {refusal: 4 - len(kept)}
    node.time.advance(MINUTE)
    node.horizon.settle(base + SECOND)
    assert latest == node.settled() == [bytes([each]) for each in kept]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_message_lies_between_the_bounds_of_every_lease_that_is_named(node: Node, order: Sequence[int]) -> None:
    base = node.time.midpoint_ns
    leases = [
        witness(node.time, "a", floor_ns=base - 5, expiry_ns=base + 9),
        witness(node.time, "b", floor_ns=base, expiry_ns=base + 5),
        witness(node.time, "c", floor_ns=base - 9, expiry_ns=base + 7),
    ]
    file = held(
        node,
        *(b"%d" % n for n in range(8)),
        timestamps=[base + n for n in range(8)],
        witnesses=tuple(leases[n] for n in order),
    )
    assert node.writer.write(file) == Committed()
    assert node.latest() == [b"1", b"2", b"3", b"4"]
    (message, *_) = node.reader.latest()
    assert message.domains == tuple("abc"[n] for n in order)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_lease_is_over_with_its_own_session_lease(node: Node, order: Sequence[int]) -> None:
    base = node.time.midpoint_ns
    pairs = [
        (
            witness(node.time, domain, session_id=name, correlation_id=name),
            session_witness(node.time, session_id=name, expiry_ns=base + last),
        )
        for domain, name, last in (("a", b"s" * 16, 3), ("b", b"t" * 16, 6))
    ]
    stamps = [base + n for n in range(8)]
    file = held(
        node,
        *(b"%d" % n for n in range(8)),
        timestamps=stamps,
        witnesses=tuple(each for n in order for each in pairs[n]),
    )
    assert node.writer.write(file) == Committed()
    assert node.latest() == [b"0", b"1", b"2"]


# -- what is kept of verdicts ------------------------------------------------------------------------------------------


def test_verdict_on_a_frame_is_of_its_bag(node: Node) -> None:
    file = held(node, b"m")
    copy = FrameFile(node.grid.bag(file.bag.end_ns), file.name, file.data)
    assert node.writer.write(file) == Committed()
    assert node.latest() == [b"m"]
    node.time.advance(SECOND)
    assert node.writer.write(copy) == Committed()
    assert node.latest() == [b"m"]
    assert node.reader.rejected == {Refusal.OUTSIDE_BAG: 1}


def test_verdict_on_a_frame_is_of_the_name_of_its_file(node: Node) -> None:
    file = held(node, b"m")
    assert node.writer.write(FrameFile(file.bag, DataName("n2", INCARNATION, 1), file.data)) == Committed()
    assert node.latest() == []
    assert node.writer.write(file) == Committed()
    assert node.latest() == [b"m"]
    assert node.reader.rejected == {Refusal.MISPLACED: 2}


# A trust record that is published before the bag is closed counts for its messages, also for who has read them open.
def test_verdict_on_a_frame_is_of_the_trust_record_that_its_lock_names(node: Node) -> None:
    base = node.time.midpoint_ns
    assert node.writer.write(held(node, b"m")) == Committed()
    assert node.latest() == [b"m"]
    keys = [
        key(TIME_KEY, Purpose.TIME, revoked_from_ns=0),
        key(SHARD_KEY, Purpose.WITNESS),
        key(STRANGER, Purpose.TIME),
    ]
    node.records.keyrings[2] = Keyring(keys)
    closer = Node(node.context.storage, "n2", HandTime(STRANGER, base + MINUTE), node.records, node.grid)
    closer.horizon.settle(base + SECOND)
    assert node.settled() == node.again().settled() == []
    assert node.reader.rejected == {Refusal.TIME_REFUSED: 1}


# The records of a bag go together, in any order in which readers meet them.
def test_each_bag_is_judged_by_both_records_that_its_lock_names(node: Node) -> None:
    long = POLICY.lease_term_max_ns + SECOND
    longer = msgspec.structs.replace(POLICY, lease_term_max_ns=2 * POLICY.lease_term_max_ns)
    barred = Keyring([key(TIME_KEY, Purpose.TIME), key(SHARD_KEY, Purpose.WITNESS, revoked_from_ns=0)])
    fine = node.records.keyrings[1]
    steps = [({}, {}), ({}, {2: longer}), ({2: barred}, {}), ({3: fine}, {}), ({}, {3: POLICY})]
    for number, (trust, policies) in enumerate(steps, 1):
        node.records.keyrings |= trust
        node.records.policies |= {n: msgspec.structs.replace(each, number=n) for n, each in policies.items()}
        granted = witness(node.time, expiry_ns=node.time.midpoint_ns + long)
        newest = node.records.newest()
        file = held(node, b"%d" % number, sequence=number, witnesses=(granted,), policy_number=newest.policy)
        assert node.writer.write(file) == Committed()
        node.time.advance(10 * SECOND)
        node.horizon.settle(node.time.midpoint_ns - 5 * SECOND)
    assert node.settled() == node.again().settled() == [b"2", b"4"]


def test_verdict_on_a_witness_is_of_who_shows_it(node: Node) -> None:
    granted = witness(node.time)
    assert node.writer.write(held(node, b"a", witnesses=(granted,))) == Committed()
    assert node.latest() == [b"a"]
    assert node.writer.write(held(node, b"b", sequence=2, witnesses=(granted,), incarnation=b"j" * 8)) == Committed()
    assert node.latest() == [b"a"]
    assert node.reader.rejected == {Refusal.HOLDER: 1}


def test_verdict_on_a_signature_is_of_all_its_bytes(node: Node) -> None:
    from appliance.formats.witness import SignedWitness

    granted = witness(node.time)
    signed = decode(SignedWitness, granted)
    forged = encode(msgspec.structs.replace(signed, signature=bytes(len(signed.signature))))
    time = node.time.token().encode()
    wrong: tuple[dict[str, Any], ...] = (
        {"witnesses": (granted,), "time": time},
        {"witnesses": (forged,)},
        {"time": time[:-1] + bytes([time[-1] ^ 1])},
    )
    for sequence, changes in enumerate(wrong, 1):
        assert node.writer.write(held(node, b"%d" % sequence, sequence=sequence, **changes)) == Committed()
        assert node.latest() == [b"1"]
    assert node.reader.rejected == {Refusal.WITNESS_REFUSED: 2, Refusal.TIME_REFUSED: 1}


# -- closing -----------------------------------------------------------------------------------------------------------


def test_closer_names_the_newest_records_at_each_bag(node: Node) -> None:
    closed = []
    for number in (1, 2, 3):
        node.records.keyrings[number] = node.records.keyrings[1]
        node.records.policies[number] = msgspec.structs.replace(POLICY, number=number)
        file = held(node, b"m", sequence=number)
        assert node.writer.write(file) == Committed()
        node.time.advance(10 * SECOND)
        closed.append(node.closer.close(file.bag))
    named = [(each.lock.trust_number, each.lock.policy_number) for each in closed if isinstance(each, Closed)]
    assert named == [(1, 1), (2, 2), (3, 3)]
