"""Messages in order; what is rejected is counted; what is missing is damage."""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from appliance.bag.acceptance import FrameVerdict, Judge, Refusal
from appliance.bag.writing import Committed
from appliance.formats.framing import Frame
from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.paths import LOCK, PRELOCK, Bag, DataName
from appliance.formats.witness import Half
from tests.support.bags import (
    INCARNATION,
    POLICY,
    SHARD_KEY,
    STRANGER,
    T0,
    TIME_KEY,
    WHOLE,
    FixedRecords,
    Node,
    Part,
    key,
    session_witness,
    time_key,
    witness,
)
from tests.support.clocks import HandTime
from tests.support.steps import steps
from tests.support.storage import MemoryStorage, RecordingStorage, WrappedStorage
from timeagent.errors import Damaged, Environment, TryAgain
from timeagent.keys import Purpose
from timeagent.signedtime import ClockStatus
from timeagent.trust import Keyring
from timeagent.units import MINUTE, MS, SECOND, Span, rfc3339


@pytest.fixture
def server() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def node(server: MemoryStorage) -> Node:
    node = Node(server)
    server.server_clock_ns = lambda: node.time.midpoint_ns
    return node


def close_all(node: Node) -> None:
    node.horizon.settle(node.time.midpoint_ns)


def test_order_is_timestamp_writer_incarnation_sequence_index(node: Node) -> None:
    base = node.time.midpoint_ns
    stamps = [[base + n, base + n + 10, base + n + 10 + s] for s, n in itertools.product((1, 2), (0, 10, 5))]
    sequence = 0
    for writer, incarnation in itertools.product(("n2", "n1"), (b"b" * 8, b"a" * 8)):
        for each in stamps:
            sequence += 1
            file = node.file(
                b"x", b"y", b"z", sequence=sequence, writer=writer, incarnation=incarnation, timestamps=each
            )
            assert node.writer.write(file) == Committed()
    close_all(node)
    messages = list(node.again().reader.settled())
    keys = [(m.timestamp_ns, m.writer, m.incarnation, m.sequence, m.index) for m in messages]
    assert len(keys) == 2 * 2 * 6 * 3
    assert keys == sorted(keys)


def test_message_says_where_it_stands(node: Node) -> None:
    file = node.file(b"", b"two", witnesses=(witness(node.time, "d1"), witness(node.time, "d2")))
    node.writer.write(file)
    close_all(node)
    first, second = node.reader.settled()
    assert (first.payload, second.payload) == (b"", b"two")
    assert (second.timestamp_ns, second.index, second.sequence) == (first.timestamp_ns + 1, 1, 1)
    assert (second.writer, second.incarnation, second.attempt_id) == ("n1", INCARNATION, (1).to_bytes(16, "big"))
    assert second.domains == ("d1", "d2")
    assert (second.bag_path, second.file_name) == (file.bag.path, file.name.text())
    assert repr(second) == f"<Message {rfc3339(second.timestamp_ns)} b'two' of n1 in {second.log}>"


def test_long_message_is_shown_in_a_line(node: Node) -> None:
    node.writer.write(node.file(bytes(10_000)))
    close_all(node)
    (message,) = node.reader.settled()
    assert " of 10000 bytes of n1 in " in repr(message)
    assert len(repr(message)) < 400


def test_settled_reads_nothing_of_open_bags(node: Node) -> None:
    node.writer.write(node.file(b"a"))
    node.horizon.settle(T0 + SECOND)
    node.writer.write(node.file(b"b", sequence=2))
    assert node.settled() == [b"a"]
    assert node.latest() == [b"a", b"b"]


def test_reading_goes_on_where_it_stopped_and_touches_only_those_bags(node: Node, server: MemoryStorage) -> None:
    stamps = []
    for sequence in range(1, 13):
        node.writer.write(node.file(b"%d" % sequence, sequence=sequence))
        stamps.append(node.time.midpoint_ns)
        node.time.advance(SECOND)
    close_all(node)
    recorder = RecordingStorage(server)
    reader = node.again(recorder).reader
    payloads = [message.payload for message in reader.settled(stamps[3], stamps[5])]
    assert payloads == [b"5", b"6"]
    read = {path for verb, path in recorder.calls if verb == "read" and path.endswith(".msg")}
    assert len(read) == 3
    assert [m.payload for m in reader.settled(stamps[5])] == [b"%d" % n for n in range(7, 13)]
    assert list(reader.settled(stamps[-1])) == []
    assert [m.payload for m in reader.latest(stamps[9])] == [b"11", b"12"]


def test_sealed_racks_and_closed_bags_read_alike(node: Node, server: MemoryStorage) -> None:
    for sequence in range(1, 26):
        node.writer.write(node.file(b"%d" % sequence, sequence=sequence))
        node.time.advance(SECOND)
    close_all(node)
    expected = [b"%d" % n for n in range(1, 26)]
    assert node.again().settled() == expected
    node.sealer.seal(node.grid.rack(T0))
    assert node.again().settled() == expected
    node.time.advance(MINUTE)
    node.sealer.seal(node.grid.rack(T0 + 2 * POLICY.rack_ns))
    assert node.again().settled() == node.again().latest() == expected


def test_latest_finishes_a_closing_and_answers_from_the_lock(node: Node, server: MemoryStorage) -> None:
    listed, late = node.file(b"listed"), node.file(b"late", sequence=2)
    node.writer.write(listed)
    node.again().closer.help(listed.bag)
    server.publish(f"{late.bag.path}/{late.name.text()}", late.data, "tmp")
    assert node.again().latest() == [b"listed"]


def test_latest_asks_the_seal_where_sealing_has_begun(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    server.ensure_directory(file.bag.rack.path)
    server.ensure_marker(f"{file.bag.rack.path}/{PRELOCK}")
    node.again().sealer.seal(file.bag.rack)
    server.ensure_directory(file.bag.path)
    server.publish(f"{file.bag.path}/{file.name.text()}", file.data, "tmp")
    assert node.again().latest() == []


# Closing begins after the listing and before the look: what was read may be missing from the lock file.
def test_latest_looks_for_the_prelock_after_it_has_read(node: Node, server: MemoryStorage) -> None:
    file = node.file()
    node.writer.write(file)

    class Closing(RecordingStorage):
        def read(self, path: str) -> bytes | None:
            data = super().read(path)
            if path.endswith(".msg") and f"{file.bag.path}/{LOCK}" not in server.files:
                hidden = server.files.pop(path)
                node.again().closer.help(file.bag)
                server.files[path] = hidden
            return data

    assert node.again(Closing(server)).latest() == []


def test_equal_frames_in_one_bag_count_once(node: Node, server: MemoryStorage) -> None:
    file = node.file(b"once")
    node.writer.write(file)
    path = f"{file.bag.path}/{file.name.text()}"
    server.files[path] = file.data + file.data
    close_all(node)
    assert node.settled() == [b"once"]


def test_frames_of_one_number_are_not_compared_each_with_each(node: Node, server: MemoryStorage) -> None:
    def read(count: int) -> int:
        files = [node.file(b"%d" % number) for number in range(count)]
        node.writer.write(files[0])
        server.files[f"{files[0].bag.path}/{files[0].name.text()}"] = b"".join(each.data for each in files)
        close_all(node)
        found: list[bytes] = []
        spent = steps(lambda: found.extend(node.settled()), "appliance")
        assert len(set(found)) >= count
        return spent

    few = read(30)
    node.time.advance(MINUTE)
    assert read(240) < 12 * few


# A copy under a lower name is rejected, and must not take the frame with it.
def test_misplaced_copy_does_not_stand_for_the_frame(node: Node, server: MemoryStorage) -> None:
    file = node.file(b"m")
    node.writer.write(file)
    copy = DataName("a", INCARNATION, 1)
    server.publish(f"{file.bag.path}/{copy.text()}", file.data, "tmp")
    close_all(node)
    assert node.settled() == [b"m"]
    assert node.reader.rejected == {Refusal.MISPLACED: 1}


# The latest are read over and over; what was judged is kept by its bytes, not by the name under which they stand.
def test_frame_that_is_read_again_is_judged_once_and_counted_each_time(
    node: Node, server: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[bytes] = []
    verdict = Judge.verdict

    def noted(self: Judge, frame: Frame, name: DataName, bag: Bag) -> FrameVerdict:
        judged.append(frame.raw)
        return verdict(self, frame, name, bag)

    monkeypatch.setattr(Judge, "verdict", noted)
    now = node.time.midpoint_ns
    good = node.file(b"good")
    node.writer.write(good)
    node.writer.write(node.file(b"late", sequence=2, timestamps=(now + MINUTE,), bag_at=now))
    for times in (1, 2, 3):
        assert node.latest() == [b"good"]
        assert node.reader.rejected == {Refusal.OUTSIDE_BAG: times}
    assert len(judged) == 2
    path = f"{good.bag.path}/{good.name.text()}"
    server.files[path] = server.files[path][:-1] + b"x"
    assert node.latest() == [], "other bytes under the same name are judged for themselves"


@pytest.mark.parametrize("damage", ["missing", "altered", "short"])
def test_listed_file_that_is_not_as_listed_is_damage(node: Node, server: MemoryStorage, damage: str) -> None:
    file = node.file()
    node.writer.write(file)
    close_all(node)
    path = f"{file.bag.path}/{file.name.text()}"
    if damage == "missing":
        del server.files[path]
    else:
        server.files[path] = file.data[:-1] + (b"" if damage == "short" else b"?")
    with pytest.raises(Damaged) as caught:
        node.settled()
    assert path in caught.value.message


def test_bytes_after_the_listed_size_are_not_read(node: Node, server: MemoryStorage) -> None:
    file, later = node.file(b"a"), node.file(b"b", sequence=2)
    node.writer.write(file)
    close_all(node)
    server.files[f"{file.bag.path}/{file.name.text()}"] += later.data
    assert node.settled() == [b"a"]


def test_messages_are_judged_by_the_records_that_the_lock_names(node: Node) -> None:
    node.writer.write(node.file(b"a"))
    node.horizon.settle(T0 + SECOND)
    node.records.keyrings[2] = Keyring([key(TIME_KEY, Purpose.TIME, revoked_from_ns=0), key(STRANGER, Purpose.TIME)])
    node.writer.write(node.file(b"b", sequence=2))
    other = Node(node.context.storage, "n2", HandTime(STRANGER, node.time.midpoint_ns), node.records, node.grid)
    close_all(other)
    assert node.again().settled() == other.settled() == [b"a"]


def at(offset: int) -> Callable[[Node], dict[str, Any]]:
    return lambda node: {"timestamps": [node.time.midpoint_ns + offset], "bag_at": node.time.midpoint_ns}


def under(**changes: Any) -> Callable[[Node], dict[str, Any]]:  # noqa: ANN401 - as witness
    return lambda node: {"witnesses": (witness(node.time), witness(node.time, "d2", **changes))}


def in_session(lease: dict[str, Any] | None = None, **changes: Any) -> Callable[[Node], dict[str, Any]]:  # noqa: ANN401
    """A lease under a session lease with the session's witness, which is changed."""

    def make(node: Node) -> dict[str, Any]:
        mine = witness(node.time, session_id=b"s" * 16, **(lease or {}))
        return {"witnesses": (mine, session_witness(node.time, **changes))}

    return make


def parts(*each: dict[str, Any]) -> Callable[[Node], dict[str, Any]]:
    """Witnesses of one lease, each as it is changed."""
    return lambda node: {"witnesses": tuple(witness(node.time, **changes) for changes in each)}


def parts_in_sessions(*each: tuple[Part, Part]) -> Callable[[Node], dict[str, Any]]:
    """Witnesses of one lease from two shards, each under a session lease: what either was signed as."""

    def make(node: Node) -> dict[str, Any]:
        found: list[bytes] = []
        for shard, (lease, session) in enumerate(each):
            name = bytes([shard]) * 16
            found.append(witness(node.time, session_id=name, part=lease, shard=shard))
            found.append(session_witness(node.time, session_id=name, part=session, shard=shard))
        return {"witnesses": tuple(found)}

    return make


def known_to(radius: Span) -> Callable[[Node], dict[str, Any]]:
    return lambda node: {"time": HandTime(TIME_KEY, node.time.midpoint_ns, radius).token().encode()}


def granted_by(radius: Span) -> Callable[[Node], dict[str, Any]]:
    """A lease of a shard whose clock is known to so much."""

    def make(node: Node) -> dict[str, Any]:
        return {"witnesses": (witness(HandTime(TIME_KEY, node.time.midpoint_ns, radius)),)}

    return make


def token(**changes: Any) -> Callable[[Node], dict[str, Any]]:  # noqa: ANN401 - of several types
    def make(node: Node) -> dict[str, Any]:
        other = HandTime(changes.pop("signer", TIME_KEY), node.time.midpoint_ns + changes.pop("offset", 0))
        other.status = changes.pop("status", ClockStatus.SYNCHRONIZED)
        return {"time": other.token().encode()}

    return make


STAMP = T0 + 500 * MS
TERM = POLICY.lease_term_max_ns
RADIUS = 5 * MS
TOLERANCE = POLICY.r1_tolerance_ns
HOLDER = Holder(node="n1", process=1, boot=b"b" * 16, incarnation=b"j" * 8)
OTHER = msgspec.structs.replace(HOLDER, incarnation=INCARNATION, process=2)
LEAVING, COMING = (2, Half.LEAVING), (2, Half.COMING)

# Each rule is broken by the least that breaks it; None: the most that keeps it.
CASES: list[tuple[Refusal | None, Callable[[Node], dict[str, Any]]]] = [
    (None, at(0)),
    (Refusal.OUTSIDE_BAG, at(500 * MS)),
    (None, at(500 * MS - 1)),
    (Refusal.OUTSIDE_BAG, at(-500 * MS - 1)),
    (None, at(-500 * MS)),
    (Refusal.MISPLACED, lambda _: {"cluster_id": b"x" * 16}),
    (Refusal.MISPLACED, lambda _: {"log": "other"}),
    (Refusal.MISPLACED, lambda _: {"name": DataName("n2", INCARNATION, 1)}),
    (None, lambda _: {"name": DataName("n1", b"j" * 8, 1)}),
    (None, lambda _: {"name": DataName("n1", INCARNATION, 2)}),
    (Refusal.TIME_REFUSED, token(signer=STRANGER)),
    (Refusal.TIME_REFUSED, token(signer=SHARD_KEY)),
    (Refusal.TIME_REFUSED, token(signer=time_key("n2"))),
    (Refusal.RADIUS, known_to(POLICY.radius_ns_max + 1)),
    (None, known_to(POLICY.radius_ns_max)),
    (Refusal.RADIUS, granted_by(POLICY.radius_ns_max + 1)),
    (None, granted_by(POLICY.radius_ns_max)),
    (Refusal.NO_LEASE, lambda _: {"witnesses": ()}),
    (Refusal.NO_LEASE, lambda node: {"witnesses": (session_witness(node.time),)}),
    (Refusal.TIME_REFUSED, token(status=ClockStatus.DISRUPTED)),
    (Refusal.TIME_REFUSED, lambda node: {"time": node.time.token().encode()[:-1] + b"?"}),
    (Refusal.TIME_REFUSED, lambda node: {"time": node.time.token_over(b"d" * 32).encode()}),
    (Refusal.TIME_REFUSED, lambda _: {"time": bytes(128)}),
    (Refusal.R1, token(offset=TOLERANCE + RADIUS + 1)),
    (None, token(offset=TOLERANCE + RADIUS)),
    (Refusal.R1, token(offset=-TOLERANCE - RADIUS - 1)),
    (None, token(offset=-TOLERANCE - RADIUS)),
    (Refusal.WITNESS_REFUSED, under(signer=STRANGER)),
    (Refusal.WITNESS_REFUSED, under(signer=TIME_KEY)),
    (Refusal.WITNESS_REFUSED, lambda _: {"witnesses": (b"?",)}),
    (Refusal.WITNESS_REFUSED, lambda node: {"witnesses": (witness(node.time).replace(b"d", b"e", 1),)}),
    (Refusal.TENTATIVE, under(phase=Phase.TENTATIVE)),
    (Refusal.MODE, under(mode=Mode.S)),
    (Refusal.MODE, under(mode=Mode.IS)),
    (None, under(mode=Mode.IX)),
    (None, under(mode=Mode.SIX)),
    (Refusal.SESSION, under(session_id=b"s" * 16)),
    (None, in_session()),
    (None, in_session(ended=(b"x" * 16,))),
    (Refusal.SESSION, in_session(ended=(b"x" * 16, b"g" * 16))),
    (Refusal.SESSION, in_session(session_id=b"t" * 16)),
    (Refusal.SESSION, in_session(run=b"T" * 8)),
    (Refusal.SESSION, in_session(shard=1)),
    (Refusal.SESSION, in_session(holder=OTHER)),
    (Refusal.SESSION, lambda node: in_session()(node) | {"witnesses": 2 * in_session()(node)["witnesses"]}),
    (Refusal.HOLDER, in_session(holder=HOLDER)),
    (Refusal.WITNESS_REFUSED, in_session(signer=STRANGER)),
    (Refusal.TERM, in_session(expiry_ns=STAMP + TERM + RADIUS + 1)),
    (Refusal.EXPIRED, in_session(expiry_ns=STAMP)),
    (None, in_session(expiry_ns=STAMP + 1)),
    (None, in_session({"expiry_ns": STAMP - SECOND})),
    (Refusal.FLOOR, in_session({"floor_ns": STAMP})),
    (Refusal.TERM, under(expiry_ns=STAMP + TERM + RADIUS + 1)),
    (None, under(expiry_ns=STAMP + TERM + RADIUS)),
    (Refusal.HOLDER, under(holder=HOLDER)),
    (Refusal.HOLDER, under(holder=msgspec.structs.replace(HOLDER, incarnation=INCARNATION, node="n2"))),
    (Refusal.EXPIRED, under(expiry_ns=STAMP)),
    (None, under(expiry_ns=STAMP + 1)),
    (Refusal.FLOOR, under(floor_ns=STAMP)),
    (None, under(floor_ns=STAMP - 1)),
    (None, parts({"part": LEAVING}, {"part": COMING})),
    (Refusal.HALF, parts({"part": LEAVING})),
    (Refusal.HALF, parts({"part": COMING})),
    (Refusal.HALF, parts({"part": LEAVING}, {"part": LEAVING})),
    (Refusal.HALF, parts({"part": LEAVING}, {"part": (3, Half.COMING)})),
    (Refusal.HALF, parts({"part": LEAVING}, {"part": (2, Half.WHOLE)})),
    (Refusal.HALF, parts({"part": LEAVING}, {"part": COMING, "domain": "d2"})),
    (Refusal.HALF, parts({"part": LEAVING}, {"part": COMING, "holder": OTHER})),
    (Refusal.HALF, parts({"part": LEAVING}, {"part": COMING}, {"part": COMING, "domain": "d2"})),
    (None, parts({"part": LEAVING}, {"part": COMING}, {"domain": "d2"})),
    (Refusal.EXPIRED, parts({"part": LEAVING, "expiry_ns": STAMP}, {"part": COMING})),
    (Refusal.EXPIRED, parts({"part": LEAVING}, {"part": COMING, "expiry_ns": STAMP})),
    (Refusal.FLOOR, parts({"part": LEAVING, "floor_ns": STAMP}, {"part": COMING})),
    (Refusal.FLOOR, parts({"part": LEAVING}, {"part": COMING, "floor_ns": STAMP})),
    # Under session leases: granted before the phase and renewed in it; granted in it; renewed by the map after it.
    (Refusal.HALF, parts_in_sessions((WHOLE, LEAVING))),
    (Refusal.HALF, parts_in_sessions((LEAVING, WHOLE))),
    (None, parts_in_sessions((WHOLE, LEAVING), (COMING, COMING))),
    (None, parts_in_sessions((LEAVING, WHOLE), (COMING, COMING))),
    (None, parts_in_sessions((COMING, (3, Half.WHOLE)))),
    (Refusal.HALF, parts_in_sessions((LEAVING, LEAVING), (COMING, (3, Half.WHOLE)))),
]


@pytest.mark.parametrize(("refusal", "how"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_each_rule_rejects_what_breaks_it_and_no_more(
    node: Node, refusal: Refusal | None, how: Callable[[Node], dict[str, Any]]
) -> None:
    file = node.file(b"m", **how(node))
    assert node.writer.write(file) == Committed()
    before = node.latest()
    assert node.reader.rejected == ({} if refusal is None else {refusal: 1})
    close_all(node)
    assert before == node.settled() == ([b"m"] if refusal is None else [])


def test_every_refusal_has_a_case() -> None:
    assert {case[0] for case in CASES} | {Refusal.DAMAGED} == {None, *Refusal}


def test_only_the_messages_that_break_a_rule_are_rejected(node: Node) -> None:
    base = node.time.midpoint_ns
    granted = witness(node.time, floor_ns=base + 1, expiry_ns=base + 4)
    file = node.file(*(b"%d" % n for n in range(6)), timestamps=[base + n for n in range(6)], witnesses=(granted,))
    node.writer.write(file)
    close_all(node)
    assert node.settled() == [b"2", b"3"]
    assert node.reader.rejected == {Refusal.FLOOR: 2, Refusal.EXPIRED: 2}


def test_piece_that_is_no_frame_is_counted_and_passed_over(node: Node, server: MemoryStorage) -> None:
    from appliance.formats.framing import Kind, pack

    file = node.file(b"a")
    node.writer.write(file)
    server.files[f"{file.bag.path}/{file.name.text()}"] = pack(Kind.FRAME, b"?") + file.data + pack(Kind.LEDGER, b"?")
    close_all(node)
    assert node.settled() == [b"a"]
    assert node.reader.rejected == {Refusal.DAMAGED: 2}


def test_signature_is_checked_once_for_many_frames(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from appliance.bag import acceptance
    from appliance.formats.witness import head_refused

    counted: list[bytes] = []

    def counting(head: bytes, signature: bytes, keyring: Keyring, cluster_id: bytes) -> str | None:
        counted.append(head)
        return head_refused(head, signature, keyring, cluster_id)

    monkeypatch.setattr(acceptance, "head_refused", counting)
    granted = witness(node.time)
    for sequence in range(1, 6):
        node.writer.write(node.file(b"m", sequence=sequence, witnesses=(granted,)))
    close_all(node)
    assert len(node.settled()) == 5
    assert len(counted) == 1


def test_record_that_is_missing_is_damage(node: Node) -> None:
    node.writer.write(node.file())
    close_all(node)
    other = Node(node.context.storage, records=FixedRecords(policies={2: POLICY}), time=node.time, grid=node.grid)
    with pytest.raises(Damaged, match="policy record 1"):
        other.settled()


# What was good when it was written stays good, however often the policy changes before its bag is closed; and whoever
# knows the new policy is held to it.
@pytest.mark.parametrize(
    ("named", "term_s", "good"),
    [
        (1, 10, True),
        (1, 11, False),
        (2, 5, True),
        (2, 6, False),
        (3, 20, True),
        (3, 21, False),
        (0, 20, True),
        (9, 21, False),
    ],
)
def test_frame_is_judged_by_the_policy_that_it_names(node: Node, named: int, term_s: int, *, good: bool) -> None:
    for number, term in ((2, 5), (3, 20)):
        node.records.policies[number] = msgspec.structs.replace(POLICY, number=number, lease_term_max_ns=term * SECOND)
    granted = witness(node.time, expiry_ns=node.time.midpoint_ns + term_s * SECOND)
    node.writer.write(node.file(witnesses=(granted,), policy_number=named))
    expected = [b"m"] if good else []
    assert node.latest() == expected
    close_all(node)
    assert node.settled() == node.again().latest() == expected
    assert node.reader.rejected[Refusal.TERM] == (0 if good else 2)


@pytest.mark.parametrize(("named", "good"), [(1, True), (2, False), (3, True)])
def test_tolerance_is_that_of_the_policy_that_the_frame_names(node: Node, named: int, *, good: bool) -> None:
    for number, tolerance in ((2, 760 * MS), (3, 2 * SECOND)):
        node.records.policies[number] = msgspec.structs.replace(POLICY, number=number, r1_tolerance_ns=tolerance)
    far = node.time.token().radius_ns + 900 * MS
    written = node.file(timestamps=[node.time.midpoint_ns + far], policy_number=named)
    node.writer.write(written)
    close_all(node)
    node.time.advance(SECOND)
    close_all(node)
    assert node.settled() == ([b"m"] if good else [])


# ESTALE, while a server exports its directory anew: what earlier holders wrote would be missing under a lease.
@pytest.mark.parametrize("at", ["rack", "day"])
def test_directory_that_the_mount_hides_for_a_moment_is_not_read_as_empty(server: MemoryStorage, at: str) -> None:
    hides: list[str] = []

    class Hiding(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if hides == [path] and verb == "list_afresh":
                hides.clear()
                return None  # type: ignore[return-value]  # as it says that there is no directory
            return call()

    node = Node(Hiding(server))
    assert isinstance(node.writer.write(node.file(b"m")), Committed)
    rack = node.grid.rack(node.time.midpoint_ns).path
    hides.append(rack if at == "rack" else rack.rpartition("/")[0])
    with pytest.raises(TryAgain, match=r"the mount hides .* try again"):
        node.again().latest()
    assert hides == []
    assert node.again().latest() == [b"m"]


# Python lets who asks a failed generator again believe that it has come to its end.
def test_pass_that_failed_is_not_taken_for_one_that_has_ended(server: MemoryStorage) -> None:
    class Failing(WrappedStorage):
        fails = False

        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            del verb
            if path.endswith(".msg") and self.fails:
                raise Environment("planted", f"read {path}: failed")
            return call()

    storage = Failing(server)
    node = Node(storage)
    for sequence in (1, 2):
        node.writer.write(node.file(b"%d" % sequence, sequence=sequence))
        node.time.advance(SECOND)
    close_all(node)
    reading = node.reader.batches()
    assert next(reading).payloads() == [b"1"]
    reached, storage.fails = reading.position, True
    for _ in range(2):
        with pytest.raises(Environment, match="planted"):
            next(reading)
        storage.fails = False
    assert reading.position == reached
    assert [batch.payloads() for batch in node.reader.batches(reading.position)] == [[b"2"]]
