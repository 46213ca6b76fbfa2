"""What an object store keeps of what is asked of it (docs/objectstores.md): experiments with many clients at once.

All of it happens in ``tmp/probe.TOKEN`` below the root, and is deleted again. A store that is asked one thing after
another shows only what it does at leisure: one that looks first and puts afterwards refuses every second put, and lets
many win that race. So everything that counts is raced. Blocks for as long as some hundred requests take.

``refuse_unfit`` asks before a cluster is founded somewhere, or a log put there, be it a store or a directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Final

from timeagent.errors import Environment

from ..bag.objects import Bucket
from ..bag.roots import Root
from .check import CheckVerdict, HealthCheck, failed, passed
from .directory import Probe, judge_exclusive, judge_linked, judge_listed
from .machine import MOUNTINFO, judge_kind, mount_of, parse_mountinfo

RACERS: Final = 16
ROUNDS: Final = 12
NAMES: Final = 24

_NO_ROOT: Final = "use another store, or a directory: bags of this one would contradict each other"


class StoreProbe:
    """The experiments. ``buckets``: clients of one place, each with connections of its own; at least two."""

    def __init__(self, buckets: Sequence[Bucket], token: str) -> None:
        """Touch nothing yet. ``token``: what no other probe is called."""
        self._buckets = buckets
        self._place = f"tmp/probe.{token}"

    def run(self) -> list[HealthCheck]:
        """Return a line for each experiment; after a failed one the rest says nothing more. Raises Environment."""
        found: list[HealthCheck] = []
        try:
            for experiment in (self.second_put, self.put_race, self.seen_at_once, self.closing_race):
                found.append(experiment())
                if found[-1].verdict is CheckVerdict.FAIL:
                    break
        finally:
            self._clean(self._place)
        return found

    def second_put(self) -> HealthCheck:
        """Say whether a put under a condition is refused at leisure: a store that lies takes every one."""
        name, key = "second put", f"{self._place}/twice"
        first, second = self._buckets[0], self._buckets[1]
        first.put(key, b"first")
        taken = second.put(key, b"second")
        there = second.get(key)
        if taken or there != b"first":
            what = "lies: a put under the condition that the name is free was taken, and the name was not"
            return failed(name, what, _NO_ROOT)
        return passed(name, "refused, and the first one's bytes stay")

    def put_race(self) -> HealthCheck:
        """Say whether one of many racing puts wins, and is what is read."""
        name, double, most, other = "racing puts", 0, 1, 0
        for number in range(ROUNDS):
            key = f"{self._place}/race.{number}"
            won = self._raced([self._putting(bucket, key, n) for n, bucket in enumerate(self._racers())])
            winners = [n for n, each in enumerate(won) if each]
            double += len(winners) > 1
            most = max(most, len(winners))
            there = {bucket.get(key) for bucket in self._buckets}
            other += len(there) != 1 or (len(winners) == 1 and there != {str(winners[0]).encode()})
        if double:
            what = f"races: of {RACERS} puts under one name up to {most} won, in {double} of {ROUNDS} rounds"
            return failed(name, what, _NO_ROOT)
        if other:
            return failed(name, f"in {other} of {ROUNDS} rounds the winner's bytes were not what was read", _NO_ROOT)
        return passed(name, f"one of {RACERS} won in each of {ROUNDS} rounds, and was read")

    def seen_at_once(self) -> HealthCheck:
        """Say whether what was put, or deleted, is seen at once by who looked in vain before, also in a listing."""
        name, late = "seen at once", 0
        for number in range(NAMES):
            maker, looker = self._buckets[number % 2], self._buckets[1 - number % 2]
            key = f"{self._place}/seen/{number}"
            looker.status(key)
            maker.put(key, b"x")
            late += str(number) not in looker.names(f"{self._place}/seen") or looker.status(key) is None
        for number in range(0, NAMES, 3):
            self._buckets[0].delete(f"{self._place}/seen/{number}")
            late += str(number) in self._buckets[1].names(f"{self._place}/seen")
        if late:
            return failed(name, f"{late} of {NAMES + NAMES // 3} changes were not seen at once", _NO_ROOT)
        return passed(name, f"all of {NAMES + NAMES // 3} changes were seen at once, also in listings")

    def closing_race(self) -> HealthCheck:
        """Say whether of a writer and a closer that race at least one sees the other: what every bag rests on."""
        name, blind = "writer and closer", 0
        for number in range(ROUNDS):
            place = f"{self._place}/bag.{number}"

            def write(place: str = place) -> bool:
                bucket = self._buckets[0]
                bucket.put(f"{place}/message", b"x")
                return bucket.status(f"{place}/prelock") is not None

            def close(place: str = place) -> bool:
                bucket = self._buckets[1]
                bucket.put(f"{place}/prelock", b"")
                return "message" in bucket.names(place)

            blind += not any(self._raced([write, close]))
        if blind:
            return failed(name, f"in {blind} of {ROUNDS} rounds neither saw what the other had put", _NO_ROOT)
        return passed(name, f"in each of {ROUNDS} rounds one saw what the other had put")

    def _racers(self) -> list[Bucket]:
        return [self._buckets[n % len(self._buckets)] for n in range(RACERS)]

    @staticmethod
    def _putting(bucket: Bucket, key: str, number: int) -> Callable[[], bool]:
        return lambda: bucket.put(key, str(number).encode())

    @staticmethod
    def _raced(runs: Sequence[Callable[[], bool]]) -> list[bool]:
        """Call all of them at once, each in a thread."""
        gate = Barrier(len(runs))

        def racing(run: Callable[[], bool]) -> bool:
            gate.wait()
            return run()

        with ThreadPoolExecutor(len(runs)) as threads:
            return list(threads.map(racing, runs))

    def _clean(self, directory: str) -> None:
        for name in self._buckets[0].names(directory):
            path = f"{directory}/{name}"
            self._clean(path)
            self._buckets[0].delete(path)


def probe_store(address: str, token: str) -> list[HealthCheck]:
    """Try out an object store. ``token``: what no other probe is called. Blocks for some hundred requests.

    Raises Environment, BadConfiguration.
    """
    from ..bag.objects import RemoteBucket  # noqa: PLC0415 - an extra; and a directory is judged without it

    return StoreProbe([RemoteBucket(address) for _ in range(4)], token).run()


def refuse_unfit(place: Root, token: str) -> None:
    """Raise Environment for a store, or a directory, that does not keep what is asked of it. Blocks; leaves nothing."""
    for check in _tried(place, token) if isinstance(place, Path) else probe_store(place, token):
        if check.verdict is CheckVerdict.FAIL:
            raise Environment("store-unfit", f"{place}: {check.words}", hint=check.way_out)


def _tried(directory: Path, token: str) -> Iterable[HealthCheck]:
    try:
        mount = mount_of(str(directory.resolve()), parse_mountinfo(MOUNTINFO.read_text("utf-8", "replace")))
        with Probe(directory, f"probe.{token}") as probe:
            return [
                *([] if mount is None else [judge_kind(mount)]),
                judge_linked(probe.linked()),
                judge_exclusive(refused=probe.exclusive()),
                judge_listed(listed=probe.listed()),
            ]
    except OSError as problem:
        hint = "make it, or mount it, on every node; tenure doctor says more"
        raise Environment("store-unfit", f"{directory}: {problem.strerror}", hint=hint) from None
