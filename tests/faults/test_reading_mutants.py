"""What readers promise about cursors, order and levels: each way of getting it wrong is caught on some random log."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from appliance.bag import closedbags, reader
from appliance.bag import message as columns
from appliance.bag.message import START, before, cursor_text, parse_cursor
from appliance.bag.reader import Follower, Level
from tests.simulation.planting import Planter
from tests.support.bags import LOG, T0, Node
from tests.support.readings import delete_bags, fill, fresh_node, pack_rack, seal_all
from tests.support.shares import shares
from tests.support.storage import MemoryStorage, WrappedStorage
from timeagent.errors import TenureError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from types import ModuleType

    from appliance.bag.message import Message

SEEDS = 60


class Log:
    """A random log, settled halfway, with many equal timestamps; and what is in it."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.node = fresh_node()
        flushes = [
            (
                chance.randrange(4),
                chance.choice(["n1", "n2"]),
                chance.choice([b"a" * 8, b"b" * 8]),
                sorted(chance.sample(range(6), 3)),
            )
            for _ in range(8)
        ]
        self.rows = fill(self.node, flushes)
        self.node.time.midpoint_ns = T0 + 12 * SECOND  # before the rack may be sealed as a whole
        self.horizon = self.node.horizon.settle(T0 + 2 * SECOND)
        self.chance = chance

    def settled(self) -> list[bytes]:
        return [row[-1] for row in self.rows if row[0] < self.horizon]


def wrong_in(seed: int) -> str | None:
    """Return which promise is broken on one log."""
    log = Log(seed)
    node = log.node
    for check in (order, resumption, position, staleness, following, packing):
        try:
            if not check(log, node):
                return check.__name__
        except TenureError as problem:
            return f"{check.__name__}: {problem}"
    return None


def payloads(messages: list[Message]) -> list[bytes]:
    return [message.payload for message in messages]


def order(log: Log, node: Node) -> bool:
    return node.again().settled() == log.settled() and node.again().latest() == [row[-1] for row in log.rows]


def resumption(log: Log, node: Node) -> bool:
    whole = list(node.again().reader.settled())
    for number, message in enumerate(whole):
        after = parse_cursor(cursor_text(LOG, message.position), LOG)
        rest = [m for each in node.again().reader.batches(after) for m in each]
        if rest != whole[number + 1 :]:
            return False
    return True


def position(log: Log, node: Node) -> bool:
    reading = node.again().reader.batches(level=Level.LATEST)
    list(reading)
    return reading.position <= before(log.horizon)


def staleness(log: Log, node: Node) -> bool:
    stale = node.again()
    stale.horizon.refresh()
    node.horizon.settle(log.horizon + SECOND)
    said = payloads([m for each in stale.reader.batches(level=Level.STALE_OK) for m in each])
    fresh = payloads([m for each in stale.reader.batches(level=Level.STALE_OK, as_of_ns=log.horizon + 1) for m in each])
    node.horizon.settle(log.horizon + 2 * SECOND)
    log.horizon = node.horizon.reached
    return said == log.settled()[: len(said)] and fresh == [
        row[-1] for row in log.rows if row[0] < log.horizon - SECOND
    ]


class _Stop(Exception):
    pass


def following(log: Log, node: Node) -> bool:
    left = [log.horizon + SECOND, log.horizon + 2 * SECOND]

    def wait(span: int, horizon_ns: int) -> None:
        assert span > 0
        assert horizon_ns > 0
        if not left:
            raise _Stop
        node.horizon.settle(left.pop(0))

    found: list[Message] = []
    follower = Follower(node.again().reader, wait, START)
    try:
        for each in follower.batches():
            found += each
    except _Stop:
        pass
    return payloads(found) == node.again().settled()


def packing(log: Log, node: Node) -> bool:
    """The rack is packed while it is read, from its list on."""
    seal_all(node)
    rack = node.grid.rack(T0)
    expected = [row[-1] for row in log.rows]
    stall = log.chance.randrange(4)

    class Packing(WrappedStorage):
        left = stall

        def read(self, path: str) -> bytes | None:
            if path.startswith(rack.path) and path.endswith((".msg", "/lock")):
                if self.left == 0:
                    pack_rack(node, rack)
                self.left -= 1
            return self.inner.read(path)

        def list_afresh(self, directory: str) -> list[str] | None:
            if directory == rack.path and self.left == 0:
                self.left -= 1
                pack_rack(node, rack)
            return self.inner.list_afresh(directory)

    return node.again(Packing(node.context.storage)).settled() == expected == node.again().settled()


@pytest.mark.parametrize("share", shares(4))
def test_right_readers_keep_every_promise(share: int) -> None:
    assert [(seed, found) for seed in range(share, SEEDS, 4) if (found := wrong_in(seed)) is not None] == []


MUTANTS: list[tuple[str, ModuleType, str, str, str]] = [
    (
        "a cursor is an instant",
        columns,
        "BatchPart.above",
        "equal_are_below = rank < position.rank",
        "equal_are_below = True",
    ),
    (
        "a cursor lets equals through",
        columns,
        "BatchPart.above",
        "equal_are_below = rank < position.rank",
        "equal_are_below = False",
    ),
    ("a cursor repeats its message", columns, "BatchPart.above", "first += first <= position.place", "first += 0"),
    ("an equal timestamp is no interleaving", columns, "_runs", "last == first and one > other", "False"),
    ("frames follow each other", columns, "_runs", "return None", "return parts"),
    (
        "the position moves with what is open",
        reader,
        "Reading.__next__",
        "if batch.settled:",
        "if True:",
    ),
    (
        "a stale answer is never refreshed",
        reader,
        "Reader.batches",
        "level is Level.STALE_OK and known >= as_of_ns",
        "level is Level.STALE_OK",
    ),
    (
        "the latest is given as settled",
        reader,
        "Reader.batches",
        "settled = self._closed_part(after, until, end, gone)",
        "settled = self._closed_part(after, until, end + 1000000000, gone)",
    ),
    (
        "a follower begins each look anew",
        reader,
        "Follower._pass",
        "self._reader.batches(self.position,",
        "self._reader.batches(START,",
    ),
    (
        "what vanished is damage",
        closedbags,
        "ListedFiles._pack",
        "pack = open_packed(self._storage, rack)",
        "pack = None",
    ),
    (
        "a sealed rack's directories say what exists",
        closedbags,
        "ClosedBags.there",
        "seal = self._authority.sealer.sealed(rack)",
        "seal = None",
    ),
]


@pytest.mark.verify
@pytest.mark.parametrize(
    ("module", "function", "old", "new"), [mutant[1:] for mutant in MUTANTS], ids=[mutant[0] for mutant in MUTANTS]
)
def test_wrong_reader_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str, old: str, new: str
) -> None:
    Planter(monkeypatch).plant(module, function, old, new)
    assert any(wrong_in(seed) for seed in range(SEEDS))


# Two frames of one sequence are a writer's breach; readers agree on their order all the same, and cursors tell them
# apart.
def test_twins_have_one_order_and_a_cursor_each() -> None:
    node = fresh_node()
    files = [node.file(b"%d" % n, b"-%d" % n, sequence=1) for n in range(3)]
    node.writer.write(files[0])
    server = node.context.storage
    assert isinstance(server, MemoryStorage)
    path = f"{files[0].bag.path}/{files[0].name.text()}"
    orders = set()
    for turned in (files, files[::-1]):
        server.files[path] = b"".join(file.data for file in turned)
        orders.add(tuple(node.again().latest()))
    assert len(orders) == 1
    node.time.advance(4 * SECOND)
    node.horizon.settle(T0 + SECOND)
    whole = list(node.again().reader.settled())
    assert tuple(payloads(whole)) in orders
    assert len({message.position for message in whole}) == 6
    for number, message in enumerate(whole):
        rest = [m for each in node.again().reader.batches(message.position) for m in each]
        assert rest == whole[number + 1 :]


def test_view_that_would_begin_with_what_is_gone_is_refused() -> None:
    from tests.unit.test_views import opened

    node = fresh_node()
    fill(node, [(second, "n1", b"a" * 8, [0]) for second in (1, 12)])
    seal_all(node)
    first = opened(node).advance()
    assert first.messages == 2
    delete_bags(node, node.grid.rack(T0))
    assert opened(node).advance() == first
    opened_anew = opened(node)
    opened_anew.prune(1)
    server = node.context.storage
    assert isinstance(server, MemoryStorage)
    del server.files[f"{opened_anew.path}/{first.horizon_ns:019d}"]
    with pytest.raises(TenureError) as caught:
        opened(node).advance()
    assert caught.value.code == "gone"
