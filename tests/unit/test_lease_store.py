import contextlib
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import apsw
import msgspec
import pytest

from appliance.formats.hints import NOTHING_WRITTEN
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import SessionEnded
from appliance.lease import store as store_module
from appliance.lease.domain import ExclusiveLease, Free, LeaseRecord, Memory, SessionRecord, State, Taken
from appliance.lease.store import SHARES, UNWRITTEN_MAX, LeaseStore
from appliance.lease.wire import Age
from tests.support.shards import HOLDER, RIVAL
from timeagent.errors import Environment

AGE = Age(first_try_ns=1, request_id=bytes(16))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LeaseStore]:
    each = LeaseStore(tmp_path / "shard.db")
    yield each
    each.close()


def memory(number: int = 1) -> Memory:
    return Memory(fence=number, floor_ns=number, settle_to_ns=number, hints=NOTHING_WRITTEN)


def name(number: int) -> bytes:
    return bytes([number]) * 16


def lease(expiry: int = 10, phase: Phase = Phase.HELD, number: int = 0) -> LeaseRecord:
    return LeaseRecord(
        mode=Mode.X,
        phase=phase,
        holder=HOLDER,
        correlation_id=name(number),
        fence=1,
        granted_ns=1,
        expiry_ns=expiry,
        floor_ns=0,
        settle_to_ns=0,
        lowest_ns=0,
        age=AGE,
        granted_by=bytes(16),
        answered=bytes(16),
    )


def taken(*leases: LeaseRecord, number: int = 1) -> Taken:
    return Taken(memory=memory(number), leases=leases)


def put(store: LeaseStore, domain: str, state: State | None) -> None:
    with store.transaction():
        store.put(domain, state)


def test_state_comes_back_as_it_was_written(store: LeaseStore) -> None:
    states: list[State] = [
        Free(memory=memory()),
        taken(lease(phase=Phase.TENTATIVE)),
        taken(lease(number=1), lease(number=2)),
    ]
    with store.transaction():
        for n, state in enumerate(states):
            store.put(str(n), state)
    for n, state in enumerate(states):
        assert store.read(str(n)) == state
    assert store.read("other") is None
    assert (store.domains, store.leases) == (3, 3)


def test_numbers_follow_the_leases_of_a_domain_as_they_come_and_go(store: LeaseStore) -> None:
    one, two, three = (lease(number=n) for n in (1, 2, 3))
    steps: list[tuple[LeaseRecord, ...]] = [(one,), (one, two), (one, two, three), (three,), (), (one, two), ()]
    for leases in steps:
        put(store, "a", taken(*leases) if leases else Free(memory=memory()))
        assert (store.domains, store.leases) == (1, len(leases))


def test_turn_that_fails_leaves_nothing(store: LeaseStore) -> None:
    def half_a_turn() -> None:
        with store.transaction():
            store.put("a", taken(lease()))
            raise KeyError

    with pytest.raises(KeyError):
        half_a_turn()
    assert (store.read("a"), store.domains, store.leases) == (None, 0, 0)
    put(store, "a", Free(memory=memory()))
    assert store.domains == 1


@pytest.mark.verify
def test_what_is_kept_beside_the_file_does_not_grow_with_the_number_of_large_turns(store: LeaseStore) -> None:
    for turn in range(4):
        with store.transaction():
            for number in range(2 * UNWRITTEN_MAX):
                store.put(f"{turn}-{number}", taken(lease()))
    (rows,) = store._connection.execute("SELECT count(*) FROM entry").fetchone() or (0,)
    assert rows >= 3 * 2 * UNWRITTEN_MAX - UNWRITTEN_MAX
    assert store.domains == 4 * 2 * UNWRITTEN_MAX


def rows_of(store: LeaseStore, table: str = "entry") -> int:
    """How many rows somebody else sees."""
    with contextlib.closing(beside(store)) as other:
        (count,) = other.execute(f"SELECT count(*) FROM {table}").fetchone() or (0,)
    return int(count)


def beside(store: LeaseStore) -> apsw.Connection:
    return apsw.Connection(store._connection.filename, flags=apsw.SQLITE_OPEN_READONLY)


def test_whatever_comes_is_in_the_file_after_twice_the_shares_and_the_dict_stays_small(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "RECENT_MAX", 10)
    monkeypatch.setattr(store_module, "WRITE_MIN", 4)
    for number in range(500):
        put(store, f"{number:03d}", taken(lease()))
    store.write_some()
    for number in range(500, 900):
        put(store, f"{number:03d}", taken(lease()))
    for _ in range(2 * SHARES - 1):
        store.write_some()
    assert rows_of(store) == 900
    put(store, "000", Free(memory=memory()))
    assert len(store.states) <= 12
    assert store.read("250") == taken(lease())


def test_file_says_who_holds_what_and_until_when(store: LeaseStore) -> None:
    session = SessionRecord(
        session_id=name(1), holder=RIVAL, granted_ns=1, expiry_ns=77, begun_by=name(2), answered=name(2), leases=3
    )
    held = ExclusiveLease(store.rows.defaults, memory(0), HOLDER, name(3), 5, 50, AGE, bytes(16))
    with store.transaction():
        store.changed["a"] = store.read("a")
        store.states["a"] = held
        store.put_session(session)
    store.write_some()
    with contextlib.closing(beside(store)) as other:
        assert other.execute("SELECT domain, kind, expiry_ns, fence FROM entry").fetchall() == [
            ("a", 2, 50, int.from_bytes(name(3)[:8], "big"))
        ]
        assert other.execute("SELECT session_id, expiry_ns, leases FROM session").fetchall() == [(name(1), 77, 3)]
        assert other.execute("SELECT node, process, purpose FROM holder").fetchall() == [
            (HOLDER.node, HOLDER.process, HOLDER.purpose)
        ]
    with store.transaction():
        store.put_session(msgspec.structs.replace(session, leases=0, over=over(session)))
    store.write_some()
    assert rows_of(store, "session") == 0


def over(session: SessionRecord) -> SessionEnded:
    return SessionEnded(
        session_id=session.session_id, outcome=LeaseOutcome.DROPPED, ended_ns=5, expiry_ns=77, leases=0,
        watermark_ns=None, watermark_time=None, messages=0, chain_head=None,
    )  # fmt: skip


def test_whoever_reads_the_file_for_long_keeps_no_turn_waiting(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "UNWRITTEN_MAX", 1)
    put(store, "a", taken(lease()))
    store.write_some()
    with contextlib.closing(beside(store)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM entry").fetchone()
        for each in "bcd":
            put(store, each, taken(lease()))
        store.write_some()
        assert store.full
        assert "is being read by another process" in store.why_full()
        assert store.tentative() == []
        assert store.latest_expiry() == 10
        assert {each for each in "abcd" if store.read(each)} == set("abcd")
    store.write_some()
    assert rows_of(store) == 4
    assert not store.full


def test_whoever_reads_the_file_while_a_run_takes_over_is_waited_for_and_not_for_ever(
    store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a", taken(lease()))
    assert store.leave(b"said")
    path = Path(store._connection.filename)
    store.close()
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM entry").fetchone()
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "READER_MS", 1)
            assert LeaseStore.taken_over(path) is None
        reader = Timer(0.2, other.execute, ["ROLLBACK"])
        reader.start()
        found = LeaseStore.taken_over(path)
        reader.join()
    assert found is not None
    assert found[1] == b"said"
    found[0].close()
    assert LeaseStore.taken_over(path) is None, "it is found once"


def test_what_finds_no_room_is_in_no_others_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WRITE_MIN", 4)
    monkeypatch.setattr(store_module, "UNWRITTEN_MAX", 0)
    store = LeaseStore(tmp_path / "full.db")
    put(store, "old", taken(lease(10)))
    store.write_some()
    connection = store._connection
    connection.execute(f"PRAGMA max_page_count = {connection.pragma('page_count')}")
    for number in range(40):
        put(store, f"{number}" + "x" * 400, taken(lease()))
    assert store.full
    put(store, "old", taken(lease(20)))
    for _ in range(20):
        store.write_some()
    assert connection.execute("SELECT expiry_ns FROM entry WHERE domain = 'old'").fetchone() == (20,)
    store.close()


def test_every_start_is_empty_whatever_was_left(tmp_path: Path) -> None:
    path = tmp_path / "shard.db"
    first = LeaseStore(path)
    put(first, "a", Free(memory=memory()))
    first.close()
    second = LeaseStore(path)
    assert second.read("a") is None
    second.close()
    path.write_bytes(b"no database")
    path.with_name(path.name + "-journal").write_bytes(b"left")
    third = LeaseStore(path)
    assert third.read("a") is None
    third.close()


def test_questions_about_many_rows(store: LeaseStore) -> None:
    for number in range(1, 6):
        put(store, f"f{number}", Free(memory=memory(number)))
        put(store, f"h{number}", taken(lease(10 * number), number=number))
    put(store, "s", taken(lease(45), lease(60, number=1), number=9))
    put(store, "t", taken(lease(70), lease(25, Phase.TENTATIVE, number=1), number=99))
    assert store.past(25, 9) == ["h1", "h2"]
    assert store.past(26, 9) == ["h1", "h2", "t"]
    assert store.past(46, 9) == ["h1", "h2", "t", "h3", "h4", "s"]
    assert store.past(99, 1) == ["h1"]
    assert store.tentative() == ["t"]
    assert store.idle(3, 9) == ["f1", "f2"]
    assert store.latest_expiry() == 70
    assert store.highest() == (99, 99, 99)
    put(store, "f1", None)
    with pytest.raises(AssertionError, match="not free"):
        put(store, "h1", None)
    assert (store.domains, store.leases) == (11, 9)
    store.clear()
    assert (store.domains, store.leases, store.highest(), store.latest_expiry()) == (0, 0, (0, 0, 0), None)


def test_page_holds_whole_domains_and_says_whether_there_are_more(store: LeaseStore) -> None:
    for domain in "abc":
        put(store, domain, taken(lease(), lease(number=1)))
    put(store, "d", Free(memory=memory()))

    def page(after: str, leases_max: int) -> tuple[list[str], bool]:
        rows, more = store.page(after, leases_max)
        return [domain for domain, _ in rows], more

    assert page("", 1) == (["a"], True)
    assert page("", 2) == (["a"], True)
    assert page("", 3) == (["a", "b"], True)
    assert page("a", 4) == (["b", "c"], False)
    assert page("c", 4) == ([], False)


@pytest.mark.parametrize("opens", [True, False])
def test_file_that_cannot_be_made_is_an_error_of_the_machine_and_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, opens: bool
) -> None:
    if opens:
        monkeypatch.setattr(store_module, "_SCHEMA", "CREATE TABLE broken (")
    path = tmp_path / ("shard.db" if opens else "nowhere/shard.db")
    with pytest.raises(Environment, match=f"{path} cannot be made: .") as refused:
        LeaseStore(path)
    assert refused.value.code == "store-failed"
    assert refused.value.hint


# A cleaner of temporary files, or a tmpfs that fails: the run ends as in a crash then, and its close goes on.
@pytest.mark.parametrize("fault", ["removed", "fails"])
def test_nothing_is_left_where_the_file_has_gone_or_fails(store: LeaseStore, fault: str) -> None:
    put(store, "d", taken(lease()))
    path = Path(store._connection.filename)
    if fault == "removed":
        path.unlink()
    else:
        store._connection.execute("DROP TABLE stopped")
    assert not store.leave(b"said")
    assert LeaseStore.taken_over(path) is None
