"""Several nodes on one server, interleaved by a seed; and what must hold of everything that they were told."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from appliance.bag.closing import Contents
from appliance.bag.writing import Committed, Unknown
from appliance.formats.birth import BagKind
from tests.support.bags import T0, TIME_KEY, Node
from tests.support.clocks import HandTime
from tests.support.schedule import Schedule, ScheduledStorage
from tests.support.storage import MemoryStorage, Mount
from timeagent.errors import Environment, TenureError
from timeagent.units import MINUTE, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.ports import Published, Storage
    from appliance.bag.writing import FrameFile, Outcome

NETWORK_STEPS = 12


class LossyStorage(ScheduledStorage):
    """Publications of data files may be reported failed: done already, done later by the network, or never.

    Appends, beside that, may be torn: a part of the bytes is there, or is all that ever comes.
    """

    def __init__(self, inner: Storage, schedule: Schedule, probability: float) -> None:
        super().__init__(inner, schedule)
        self._probability = probability
        self.delayed: list[Callable[[], object]] = []

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        if not path.endswith(".msg") or not self._schedule.chance(self._probability):
            return super().publish(path, data, tmp)
        self._schedule.pause(f"publish {path}, reply lost")
        if self._schedule.chance(0.5):
            self.delayed.append(partial(self.inner.publish, path, data, tmp))
        elif self._schedule.chance(0.7):
            self.inner.publish(path, data, tmp)
        raise Environment("planted", f"the reply to publish {path} was lost")

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        if not self._schedule.chance(self._probability):
            return super().append(path, data, expected_size)
        self._schedule.pause(f"append {path}, reply lost")
        part = data if self._schedule.chance(0.6) else data[: len(data) // 2]
        if self._schedule.chance(0.4):
            self.delayed.append(partial(self._append_late, path, part, expected_size))
        elif self._schedule.chance(0.7):
            self.inner.append(path, part, expected_size)
        raise Environment("planted", f"the reply to append {path} was lost")

    def _append_late(self, path: str, data: bytes, expected_size: int) -> None:
        """The server writes where it was told to, whatever is there by then."""
        with suppress(Environment):
            self.inner.append(path, data, expected_size)


@dataclass
class History:
    """What the outside was told, and the record as it is for ever."""

    outcomes: list[tuple[bytes, Outcome]] = field(default_factory=list)
    settled: list[tuple[int, list[tuple[int, bytes]]]] = field(default_factory=list)
    latest: list[bytes] = field(default_factory=list)
    contents: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    record: list[tuple[int, bytes]] = field(default_factory=list)
    bags: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def violations(self) -> list[str]:
        """Return each promise that was broken."""
        payloads = {payload for _, payload in self.record}
        found = [
            f"{payload!r} was {outcome} and is {'in' if payload in payloads else 'not in'} the record"
            for payload, outcome in self.outcomes
            if not isinstance(outcome, Unknown) and isinstance(outcome, Committed) != (payload in payloads)
        ]
        for reached, messages in self.settled:
            now = [each for each in self.record if each[0] < reached]
            if messages != now:
                found.append(f"settled to {reached - T0}: {messages} was read, the record has {now}")
        found += [f"latest gave {payload!r}, not in the record" for payload in self.latest if payload not in payloads]
        for bag, names in self.contents:
            if names != self.bags.get(bag, ()):
                found.append(f"{bag} was said to hold {names}, the record has {self.bags.get(bag, ())}")
        return found


class World:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        revalidates: bool = True,
        crashes: bool = False,
        losses: bool = False,
        kind: BagKind = BagKind.MAILDIR,
    ) -> None:
        self.schedule = Schedule(seed, crash_probability=0.02 if crashes else 0.0)
        self.server = MemoryStorage()
        self.revalidates = revalidates
        self.losses = losses
        self.grid = Node(self.server, kind=kind).grid
        self.history = History()
        self._storages: list[LossyStorage] = []

    def node(self, name: str, at: int) -> Node:
        mount = Mount(self.server, revalidates=self.revalidates)
        storage = LossyStorage(mount, self.schedule, 0.3 if self.losses else 0.0)
        self._storages.append(storage)
        return Node(storage, name, HandTime(TIME_KEY, at), grid=self.grid)

    def run(self) -> History:
        """Let three writers, two closers, a settler that goes bag by bag, mostly a sealer, and a reader run.

        All clocks but the writers' are fast, so that everything happens at once.
        """
        start, due, past = T0 + 500 * MS, T0 + 9 * SECOND, T0 + MINUTE
        self._spawn("writer a", partial(self._write, self.node("a", start), (0, 0, 3)))
        self._spawn("writer b", partial(self._write, self.node("b", start), (0, 1, 4)))
        self._spawn("writer h", partial(self._write, self.node("h", start), (2,)))
        self._spawn("closer", partial(self._close, self.node("c", due), (0, 3)))
        self._spawn("other closer", partial(self._close, self.node("d", due), (0, 1)))
        self._spawn("settler", partial(self._settle, self.node("e", due)))
        if self.schedule.chance(0.5):
            self._spawn("sealer", partial(self._seal, self.node("f", past)))
        self._spawn("reader", partial(self._read, self.node("g", due)))
        if self.losses:
            self._spawn("network", self._deliver)
        self.schedule.run()
        self._conclude()
        return self.history

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        def tolerant() -> None:
            self._dawdle()
            with suppress(TenureError):  # an answer that is refused now breaks no promise
                body()

        self.schedule.spawn(name, tolerant)

    def _dawdle(self) -> None:
        """Let the others get ahead, often a little and sometimes far: a process may be paused anywhere."""
        while self.schedule.chance(0.9):
            self.schedule.pause("dawdle")

    def _write(self, node: Node, seconds: tuple[int, ...]) -> None:
        for sequence, second in enumerate(seconds, 1):
            self._dawdle()
            node.time.midpoint_ns = T0 + second * SECOND + 500 * MS + sequence
            payload = f"{node.context.node}{sequence}".encode()
            file = node.file(payload, sequence=sequence, incarnation=node.context.node.encode() * 8)
            self.history.outcomes.append((payload, self._attempt(node, file)))

    def _attempt(self, node: Node, file: FrameFile) -> Outcome:
        for _ in range(3):
            outcome = node.writer.write(file)
            if not isinstance(outcome, Unknown):
                break
        return outcome

    def _close(self, node: Node, seconds: tuple[int, ...]) -> None:
        for second in seconds:
            bag = self.grid.bag(T0 + second * SECOND)
            contents = node.authority.close(bag)
            if isinstance(contents, Contents):
                self.history.contents.append((bag.path, _names(contents)))

    def _settle(self, node: Node) -> None:
        node.horizon.settle(T0 + 4 * SECOND)
        self._note_settled(node)

    def _note_settled(self, node: Node) -> None:
        reached = node.horizon.reached
        messages = [(m.timestamp_ns, m.payload) for m in node.reader.settled(0, reached - 1)]
        self.history.settled.append((reached, messages))

    def _seal(self, node: Node) -> None:
        node.sealer.seal(self.grid.rack(T0))
        node.horizon.refresh()
        self._note_settled(node)

    def _read(self, node: Node) -> None:
        for _ in range(4):
            for message in node.reader.latest():
                self.history.latest.append(message.payload)

    def _deliver(self) -> None:
        for _ in range(NETWORK_STEPS):
            self.schedule.pause("network")
            for storage in self._storages:
                while storage.delayed:
                    storage.delayed.pop()()

    def _conclude(self) -> None:
        """Undisturbed and with a plain view of the server: seal, and read what the record is."""
        for storage in self._storages:
            for late in storage.delayed:
                late()
        self.server.server_clock_ns = lambda: T0 + MINUTE
        node = Node(self.server, "judge", HandTime(TIME_KEY, T0 + MINUTE), grid=self.grid)
        node.sealer.seal(self.grid.rack(T0))
        self.history.record = [(m.timestamp_ns, m.payload) for m in node.reader.settled()]
        for bag in self.grid.bags(self.grid.rack(T0)):
            contents = node.authority.by_seal(bag)
            if contents.lock is not None:
                self.history.bags[bag.path] = _names(contents)


def _names(contents: Contents) -> tuple[str, ...]:
    return () if contents.lock is None else tuple(entry.name for entry in contents.lock.entries)
