"""Aggregators of one view on several nodes, interleaved by a seed and killed anywhere; what they may leave behind."""

from __future__ import annotations

import hashlib
import random
from functools import partial
from typing import TYPE_CHECKING, Final

from appliance.bag.logs import create_log
from appliance.formats.framing import Kind, unpack
from appliance.formats.paths import Grid
from appliance.formats.view import VIEWS, Checkpoint, parse_horizon
from appliance.session.open_logs import LogBook
from appliance.views import Fold, View
from tests.support.bags import LOG, T0, TIME_KEY, Node
from tests.support.clocks import HandTime
from tests.support.readings import fill
from tests.support.schedule import Schedule, ScheduledStorage
from tests.support.storage import MemoryStorage, Mount
from timeagent.canonical import decode
from timeagent.errors import Damaged, Environment
from timeagent.units import MINUTE, SECOND

if TYPE_CHECKING:
    from appliance.bag.message import MessageBatch
    from appliance.bag.ports import Published, Storage
    from tests.support.readings import Row
    from timeagent.units import Instant

OTHER: Final = "other"
LOGS: Final = (LOG, OTHER)
TURNS: Final = 20
DUE: Final = T0 + 12 * SECOND
"""Every bag with a message is due, and its rack is not."""


def chained(state: bytes, payload: bytes) -> bytes:
    """Take in one payload: the state depends on every payload so far, and on their order."""
    return hashlib.sha256(state + payload).hexdigest().encode()


def step(state: bytes, batch: MessageBatch) -> bytes:
    for payload in batch.payloads():
        state = chained(state, payload)
    return state


FOLD: Final = Fold(
    view="chain", version=1, logs=LOGS, initial=b"begin", decode=bytes, step=step, encode=lambda state: state
)


class Server(MemoryStorage):
    """Notes, at each checkpoint that appears, how far the logs really were settled then."""

    def __init__(self) -> None:
        super().__init__()
        self.above: list[str] = []

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        self._judge(path)
        return super().publish(path, data, tmp)

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        self._judge(path)
        return super().append(path, data, expected_size)

    def _judge(self, path: str) -> None:
        if path.startswith(f"{VIEWS}/"):
            horizon = parse_horizon(path.rpartition("/")[2])
            settled = min(node.horizon.refresh() for node in nodes(self, T0))
            if horizon is None or horizon > settled:
                self.above.append(f"{path} while the logs were settled up to {settled}")


def nodes(storage: Storage, at: Instant, name: str = "n1") -> list[Node]:
    """Return a node for each log, with one clock."""
    time = HandTime(TIME_KEY, at)
    first = Node(storage, name, time)
    return [first, Node(storage, name, time, grid=Grid(create_log(first.context, OTHER)))]


def view(storage: Storage, name: str = "n1", at: Instant = T0 + MINUTE) -> View[bytes]:
    context = Node(storage, name, HandTime(TIME_KEY, at)).context
    return View(context, LogBook(context), FOLD)


class ViewWorld:
    """One run: two logs that are settled step by step, by somebody else, while three aggregators advance."""

    def __init__(self, seed: int) -> None:
        self.server = Server()
        self.schedule = Schedule(seed, crash_probability=0.01 if seed % 2 else 0.0)
        self._chance = random.Random(f"{seed}/messages")
        self.rows: list[tuple[Row, str]] = []
        self.problems: list[str] = []
        for node in nodes(self.server, T0):
            flushes = [
                (
                    self._chance.randrange(6),
                    self._chance.choice(["n1", "n2"]),
                    node.grid.birth.log[0].encode() * 8,
                    sorted(self._chance.sample(range(6), 2)),
                )
                for _ in range(5)
            ]
            self.rows += [(row, node.grid.birth.log) for row in fill(node, flushes)]
        self.rows.sort(key=lambda each: (each[0][:5], each[1]))

    def run(self) -> list[str]:
        """Return what was wrong."""
        for number in range(3):
            self.schedule.spawn(f"aggregator {number}", partial(self._aggregate, f"a{number}"))
        self.schedule.spawn("settler", self._settle)
        self.schedule.run()
        self._aggregate_undisturbed()
        return self.problems + self.server.above + self._differing()

    def _storage(self) -> Storage:
        return ScheduledStorage(Mount(self.server), self.schedule)

    def _aggregate(self, name: str) -> None:
        storage = self._storage()
        try:
            for _ in range(TURNS):
                view(storage, name).advance()
        except (Damaged, Environment) as problem:
            self.problems.append(f"{name}: {problem}")

    def _settle(self) -> None:
        """Settle the logs alternately, one of them always further than the other."""
        both = nodes(self._storage(), DUE)
        for second in range(1, 8):
            both[second % 2].horizon.settle(T0 + second * SECOND)

    def _aggregate_undisturbed(self) -> None:
        for node in nodes(self.server, DUE):
            node.horizon.settle(T0 + 8 * SECOND)
        try:
            newest = view(self.server).advance()
            if newest.messages != len(self.rows):
                self.problems.append(f"the last checkpoint holds {newest.messages} of {len(self.rows)} messages")
        except Damaged as problem:
            self.problems.append(f"at the end: {problem}")

    def _differing(self) -> list[str]:
        """Compare each checkpoint with one fold over everything below its horizon."""
        found = []
        for path, data in self.server.files.items():
            if not path.startswith(f"{VIEWS}/") or "/tmp/" in path:
                continue
            horizon = parse_horizon(path.rpartition("/")[2])
            assert horizon is not None
            payloads = [row[-1] for row, _ in self.rows if row[0] < horizon]
            try:
                checkpoint = decode(Checkpoint, unpack(data, Kind.VIEW, path))
            except Damaged as problem:
                found.append(str(problem))
                continue
            state = FOLD.initial
            for payload in payloads:
                state = chained(state, payload)
            if (checkpoint.state, checkpoint.messages) != (state, len(payloads)):
                found.append(f"{path} is not what the messages below it give")
        return found
