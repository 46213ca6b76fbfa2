from __future__ import annotations

from threading import Barrier, Event, Thread

import pytest

from appliance.bag.writing import Committed, NotCommitted, Outcome, Unknown
from appliance.formats.paths import Bag, Grid
from appliance.node.writer_server import Batcher
from tests.support.bags import T0, Node
from tests.support.storage import MemoryStorage
from timeagent.errors import Environment
from timeagent.units import SECOND


@pytest.fixture
def grid() -> Grid:
    return Node(MemoryStorage()).grid


class Files:
    """What was written, file by file; every file has the outcome that was set."""

    def __init__(self) -> None:
        self.written: list[tuple[Bag, bytes]] = []
        self.outcome: Outcome = Committed()

    def write(self, bag: Bag, data: bytes) -> Outcome:
        self.written.append((bag, data))
        return self.outcome


def test_what_waits_for_one_bag_is_one_file(grid: Grid) -> None:
    files, told = Files(), list[Outcome]()
    batcher = Batcher(files.write)
    bag, other = grid.bag(T0), grid.bag(T0 + SECOND)

    for frames in (b"a", b"b"):
        assert batcher.submit(bag, frames, told.append) is None
    assert batcher.submit(other, b"c", told.append) is None
    assert told == []

    assert batcher.turn()
    assert told == [Committed(), Committed()]
    assert batcher.turn()
    assert not batcher.turn()
    assert files.written == [(bag, b"ab"), (other, b"c")]
    assert (batcher.files, batcher.submissions) == (2, 3)


def test_everybody_gets_the_outcome_of_its_own_file(grid: Grid) -> None:
    files, told = Files(), list[tuple[str, Outcome]]()
    batcher = Batcher(files.write, file_bytes_max=2)
    for name, outcome in (("one", NotCommitted("late")), ("two", Unknown("who knows")), ("three", Committed())):
        files.outcome = outcome
        batcher.submit(grid.bag(T0), b"xx", lambda said, name=name: told.append((name, said)))  # type: ignore[misc]
        assert batcher.turn()

    assert told == [("one", NotCommitted("late")), ("two", Unknown("who knows")), ("three", Committed())]


def test_a_file_has_a_size_and_a_submission_is_never_split(grid: Grid) -> None:
    files = Files()
    batcher = Batcher(files.write, file_bytes_max=4)
    for frames in (b"aaa", b"b", b"c", b"dddddd"):
        batcher.submit(grid.bag(T0), frames, lambda _: None)
    while batcher.turn():
        pass
    assert [data for _, data in files.written] == [b"aaab", b"c", b"dddddd"]


# As many as there are threads would keep all others waiting, and these take it for silence.
def test_bag_that_has_more_than_a_file_waits_behind_those_that_have_waited_longer(grid: Grid) -> None:
    files = Files()
    batcher = Batcher(files.write, file_bytes_max=4)
    bag, other = grid.bag(T0), grid.bag(T0 + SECOND)
    for frames in (b"aaaa", b"bbbb"):
        batcher.submit(bag, frames, lambda _: None)
    batcher.submit(other, b"c", lambda _: None)
    while batcher.turn():
        pass
    assert files.written == [(bag, b"aaaa"), (other, b"c"), (bag, b"bbbb")]


def test_what_does_not_fit_is_refused_and_never_written(grid: Grid) -> None:
    files, told = Files(), list[Outcome]()
    batcher = Batcher(files.write, queue_bytes_max=3)
    assert batcher.submit(grid.bag(T0), b"aa", told.append) is None
    refused = batcher.submit(grid.bag(T0), b"bb", told.append)
    assert refused is not None
    assert "2 bytes" in refused
    assert batcher.turn()
    assert batcher.submit(grid.bag(T0), b"bb", told.append) is None, "there is room again"
    batcher.close()
    assert batcher.submit(grid.bag(T0), b"c", told.append) == "the node's writer is stopping"
    batcher.run()
    assert files.written == [(grid.bag(T0), b"aa"), (grid.bag(T0), b"bb")]
    assert told == [Committed(), Committed()]


def test_a_writer_that_fails_leaves_everybody_in_doubt(grid: Grid) -> None:
    told = list[Outcome]()

    def write(bag: Bag, data: bytes) -> Outcome:
        raise Environment("planted", "the mount is gone")

    batcher = Batcher(write)
    batcher.submit(grid.bag(T0), b"a", told.append)
    assert batcher.turn()
    assert isinstance(told[0], Unknown)
    assert "the mount is gone" in told[0].reason


def test_a_bug_is_no_outcome_but_doubt_and_comes_out(grid: Grid) -> None:
    told = list[Outcome]()

    def write(bag: Bag, data: bytes) -> Outcome:
        raise ZeroDivisionError

    batcher = Batcher(write)
    batcher.submit(grid.bag(T0), b"a", told.append)
    with pytest.raises(ZeroDivisionError):
        batcher.turn()
    assert isinstance(told[0], Unknown)
    assert batcher.submit(grid.bag(T0), b"b", told.append) is None, "the bag is not blocked by what failed"


def test_while_a_file_is_written_the_rest_of_its_bag_waits_and_other_bags_do_not(grid: Grid) -> None:
    bag, other = grid.bag(T0), grid.bag(T0 + SECOND)
    inside, go = Event(), Event()
    order: list[bytes] = []

    def write(bag_: Bag, data: bytes) -> Outcome:
        if data == b"first":
            inside.set()
            assert go.wait(30)
        order.append(data)
        return Committed()

    batcher = Batcher(write)
    threads = [Thread(target=batcher.run, daemon=True) for _ in range(2)]
    batcher.submit(bag, b"first", lambda _: None)
    for thread in threads:
        thread.start()
    assert inside.wait(30)
    others = Event()
    batcher.submit(bag, b"second", lambda _: None)
    batcher.submit(bag, b" third", lambda _: None)
    batcher.submit(other, b"other", lambda _: others.set())
    assert others.wait(30)
    go.set()
    batcher.close()
    for thread in threads:
        thread.join(30)
    assert order == [b"other", b"first", b"second third"]


def test_many_threads_lose_nothing_and_are_told_once(grid: Grid) -> None:
    files = Files()
    batcher = Batcher(files.write, file_bytes_max=64)
    told: list[int] = []
    start = Barrier(5)

    def hand_in(number: int) -> None:
        start.wait(30)
        for n in range(200):
            batcher.submit(grid.bag(T0 + n % 3 * SECOND), b"%8d" % (number * 1000 + n), lambda _, n=n: told.append(n))  # type: ignore[misc]

    threads = [Thread(target=hand_in, args=(n,), daemon=True) for n in range(4)]
    writers = [Thread(target=batcher.run, daemon=True) for _ in range(3)]
    for thread in (*threads, *writers):
        thread.start()
    start.wait(30)
    for thread in threads:
        thread.join(30)
    batcher.close()
    for thread in writers:
        thread.join(30)
    whole = b"".join(data for _, data in files.written)
    written = sorted(int(whole[n : n + 8]) for n in range(0, len(whole), 8))
    assert written == sorted(number * 1000 + n for number in range(4) for n in range(200))
    assert len(told) == 800
