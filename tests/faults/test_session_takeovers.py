"""Sessions that are stopped, paused and killed anywhere, over one record: whoever writes has seen all that is below.

Each actor takes leases, counts the messages, and writes that number. If everybody had what came before, the settled
record is 0, 1, 2, ...; a holder that came too early, or a late write that counted, makes a number stand twice.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import tests.support.schedule
from appliance.bag.writing import Committed, Unknown
from appliance.session.session import Session
from tests.support.cluster import HandSite
from tests.support.schedule import Schedule, ScheduledStorage
from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from timeagent.units import Span

LOG = "log"
ACTORS = 4
SEEDS = 24


class StallingStorage(ScheduledStorage):
    """Now and then a write is stopped for long before it is done."""

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if verb == "publish" and path.endswith(".msg") and self._schedule.chance(0.3):
            for _ in range(500):
                self._schedule.pause("stalled write")
        return super().around(verb, path, call)


class Play:
    """One seed: who does what, and what came of it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.site = HandSite(path, shards=2)
        self.schedule = Schedule(seed)
        self.seed = seed
        self.chance = random.Random(f"{seed}/world")
        self.acknowledged: set[bytes] = set()
        self.happened: Counter[str] = Counter()
        self.site.time.sleep = self.sleep  # type: ignore[method-assign]

    def sleep(self, span: Span) -> None:
        """Wait in slices, and let the others run."""
        time = self.site.time
        until = time.boot_ns() + span
        while (left := until - time.boot_ns()) > 0:
            self.schedule.pause("sleep")
            time.advance(min(max(left, 0), 200 * MS))

    def world(self) -> None:
        """Time goes by, and now and then a shard dies and begins again, empty."""
        for _ in range(60):
            self.schedule.pause("tick")
            self.site.time.advance(self.chance.choice((0, MS, 10 * MS, 100 * MS, SECOND)))
            if self.chance.random() < 0.01:
                self.site.start(self.chance.randrange(2))
                self.happened["shard died"] += 1

    def actor(self, name: str) -> None:
        chance = random.Random(f"{self.seed}/{name}")
        session = self.site.session(name, storage=StallingStorage(self.site.storage, self.schedule))
        for turn in range(chance.randint(1, 4)):
            self.schedule.pause("begin")
            try:
                leases = session.acquire(*chance.choice((("a",), ("a", "b"), ("a", "c"))), timeout_s=5)
                if chance.random() < 0.1:
                    self.site.time.advance(chance.randint(0, 14) * SECOND)
                for _ in range(chance.randint(0, 2)):
                    number = len(session.read(LOG, under=leases))
                    text = b"%d %s %d" % (number, name.encode(), turn)
                    outcome = session.publish(LOG, [text], under=leases)
                    if isinstance(outcome, Unknown):
                        outcome = session.resolve(LOG, leases)
                    if isinstance(outcome, Committed):
                        self.acknowledged.add(text)
                    self.happened[type(outcome).__name__] += 1
            except TenureError as problem:
                self.happened[problem.code] += 1
                continue
            if chance.random() < 0.12:
                self.happened["died"] += 1
                return
            session.relinquish(leases)

    def breach(self) -> str | None:
        """Play it; return what is wrong with the record, or None."""
        for number in range(ACTORS):
            name = f"p{number}"
            self.schedule.spawn(name, lambda name=name: self.actor(name))  # type: ignore[misc]
        self.schedule.spawn("world", self.world)
        self.schedule.run()
        written = self.happened["Committed"] + self.happened["NotCommitted"] + self.happened["Unknown"]
        record = [message.payload for message in self.site.settled(LOG)] if written else []
        self.site.close()
        if [int(each.split()[0]) for each in record] != list(range(len(record))):
            return f"somebody wrote without having seen all: {record}"
        lost = self.acknowledged.difference(record)
        return f"committed and lost: {lost}" if lost else None


@pytest.fixture(autouse=True)
def long_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.support.schedule, "STEPS_MAX", 1_000_000)


def test_whoever_writes_under_a_lease_has_seen_all_that_is_below(tmp_path: Path) -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        place = tmp_path / str(seed)
        place.mkdir()
        play = Play(place, seed)
        assert play.breach() is None, seed
        happened += play.happened
    # It was not quiet: leases ran out, holders died, shards died.
    assert min(happened[what] for what in ("Committed", "lease-expired", "busy", "died", "shard died")) >= 3, happened


def test_session_that_does_not_settle_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_settle_for", lambda *_: None)
    for seed in range(SEEDS):
        place = tmp_path / str(seed)
        place.mkdir()
        if Play(place, seed).breach() is not None:
            return
    pytest.fail("no seed noticed that nothing was settled")
