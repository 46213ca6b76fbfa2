from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.formats.lease import Mode
from appliance.lease.state import Free, Held, Lease, Memory, State, Tentative
from appliance.lease.store import LeaseStore
from appliance.lease.wire import Age
from tests.support.shards import HOLDER

AGE = Age(first_try_ns=1, request_id=bytes(16))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LeaseStore]:
    each = LeaseStore(tmp_path / "shard.db")
    yield each
    each.close()


def memory(number: int = 1) -> Memory:
    return Memory(fence=number, floor_ns=number, settle_to_ns=number)


def lease(expiry: int = 10) -> Lease:
    return Lease(
        mode=Mode.X,
        holder=HOLDER,
        correlation_id=bytes(16),
        fence=1,
        granted_ns=1,
        expiry_ns=expiry,
        floor_ns=0,
        settle_to_ns=0,
        age=AGE,
        granted_by=bytes(16),
        answered=bytes(16),
    )


def test_state_comes_back_as_it_was_written(store: LeaseStore) -> None:
    states: list[State] = [
        Free(memory=memory()),
        Tentative(memory=memory(), lease=lease()),
        Held(memory=memory(), lease=lease()),
    ]
    with store.transaction():
        for state in states:
            store.insert(type(state).__name__, state, b"answer")
    for state in states:
        assert store.read(type(state).__name__) == (state, 1)
    assert store.read("other") is None
    assert (store.domains, store.leases) == (3, 2)
    assert store.answer("Held") == b"answer"
    assert store.answer("other") is None


def test_swap_needs_the_revision_that_was_read(store: LeaseStore) -> None:
    free, held = Free(memory=memory()), Held(memory=memory(), lease=lease())
    store.insert("a", free, None)
    store.swap("a", 1, free, held, b"x")
    assert (store.read("a"), store.leases) == ((held, 2), 1)
    with pytest.raises(AssertionError, match="changed under its only writer"):
        store.swap("a", 1, held, free, None)


def test_turn_that_fails_leaves_nothing(store: LeaseStore) -> None:
    def half_a_turn() -> None:
        with store.transaction():
            store.insert("a", Held(memory=memory(), lease=lease()), None)
            raise KeyError

    with pytest.raises(KeyError):
        half_a_turn()
    assert (store.read("a"), store.domains, store.leases) == (None, 0, 0)
    with store.transaction():
        store.insert("a", Free(memory=memory()), None)
    assert store.domains == 1


def test_every_start_is_empty_whatever_was_left(tmp_path: Path) -> None:
    path = tmp_path / "shard.db"
    first = LeaseStore(path)
    first.insert("a", Free(memory=memory()), None)
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
        store.insert(f"f{number}", Free(memory=memory(number)), None)
        store.insert(f"h{number}", Held(memory=memory(number), lease=lease(10 * number)), None)
    store.insert("t", Tentative(memory=memory(99), lease=lease(25)), None)
    assert store.past(25, 9) == ["h1", "h2"]
    assert store.past(26, 9) == ["h1", "h2", "t"]
    assert store.past(99, 1) == ["h1"]
    assert store.tentative(9) == ["t"]
    assert [domain for domain, _ in store.idle(3, 9)] == ["f1", "f2"]
    assert store.latest_expiry() == 50
    assert store.highest() == (99, 99, 99)
    assert [domain for domain, _ in store.page("h2", 3)] == ["h3", "h4", "h5"]
    store.forget("f1")
    with pytest.raises(AssertionError, match="not free"):
        store.forget("h1")
    assert (store.domains, store.leases) == (10, 6)
    store.clear()
    assert (store.domains, store.leases, store.highest(), store.latest_expiry()) == (0, 0, (0, 0, 0), None)
