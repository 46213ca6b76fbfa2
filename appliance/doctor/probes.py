"""What several clients see of each other, on a mount or in an object store: experiments, each with its line.

All of it happens in ``tmp/probe.TOKEN`` below the root, which no reader looks into, and is deleted again. A verb may
block while the server is away; what the operating system refuses is raised as OSError, as it came.

The protocol rests on this (docs/nfs.md): a name is taken once, by link(2) and by O_EXCL; whoever opens the directory
sees every name that was there; whoever opens a file sees all that was closed. Two processes of one machine on one mount
share its memory and prove little; two machines, or two mounts with ``nosharecache``, prove what they are asked.

An object store (docs/objectstores.md) that is asked one thing after another shows only what it does at leisure: one
that looks first and puts afterwards refuses every second put, and lets many win that race. So everything that counts is
raced. Blocks for as long as some hundred requests take.

``refuse_unfit`` asks before a cluster is founded somewhere, or a log put there, be it a store or a directory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Final, Protocol

from timeagent.clock import MachineClock
from timeagent.errors import Environment
from timeagent.units import Span

from ..bag.objects import Bucket
from ..bag.roots import Root
from .file_system import TrialDirectory, judge_kind, mount_of
from .health import CheckVerdict, HealthCheck, failed, judged, passed, unsure

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
        name, double, most, other = "racing puts", 0, 1, 0
        for number in range(ROUNDS):
            key = f"{self._place}/race.{number}"
            racers = [self._buckets[n % len(self._buckets)] for n in range(RACERS)]
            won = self._raced([partial(bucket.put, key, str(n).encode()) for n, bucket in enumerate(racers)])
            winners = [n for n, each in enumerate(won) if each]
            double += len(winners) > 1
            most = max(most, len(winners))
            there = {bucket.get(key) for bucket in self._buckets}
            other += len(there) != 1 or (len(winners) == 1 and there != {str(winners[0]).encode()})
        if double:
            what = f"races: of {RACERS} puts under one name up to {most} won, in {double} of {ROUNDS} rounds"
            return failed(name, what, _NO_ROOT)
        good = f"one of {RACERS} won in each of {ROUNDS} rounds, and was read"
        bad = f"in {other} of {ROUNDS} rounds the winner's bytes were not what was read"
        return judged(name, good, bad, _NO_ROOT, holds=not other)

    def seen_at_once(self) -> HealthCheck:
        late, all_of_them = 0, NAMES + NAMES // 3
        for number in range(NAMES):
            maker, looker = self._buckets[number % 2], self._buckets[1 - number % 2]
            key = f"{self._place}/seen/{number}"
            looker.status(key)
            maker.put(key, b"x")
            late += str(number) not in looker.names(f"{self._place}/seen") or looker.status(key) is None
        for number in range(0, NAMES, 3):
            self._buckets[0].delete(f"{self._place}/seen/{number}")
            late += str(number) in self._buckets[1].names(f"{self._place}/seen")
        good = f"all of {all_of_them} changes were seen at once, also in listings"
        bad = f"{late} of {all_of_them} changes were not seen at once"
        return judged("seen at once", good, bad, _NO_ROOT, holds=not late)

    def closing_race(self) -> HealthCheck:
        """Say whether of a writer and a closer that race at least one sees the other: what every bag rests on."""
        blind = 0
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
        good = f"in each of {ROUNDS} rounds one saw what the other had put"
        bad = f"in {blind} of {ROUNDS} rounds neither saw what the other had put"
        return judged("writer and closer", good, bad, _NO_ROOT, holds=not blind)

    @staticmethod
    def _raced(runs: Sequence[Callable[[], bool]]) -> list[bool]:
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
        mount = mount_of(directory.resolve())
        with TrialDirectory(directory, f"probe.{token}") as probe:
            kind = [] if mount is None else [judge_kind(mount)]
            return [*kind, probe.linked(), probe.exclusive(), probe.listed()]
    except OSError as problem:
        hint = "make it, or mount it, on every node; tenure doctor says more"
        raise Environment("store-unfit", f"{directory}: {problem.strerror}", hint=hint) from None


MOUNT_ROUNDS: Final = 60
ABSENCES: Final = 8
JITTER_NS: Final = 4_000_000
"""Without jitter the nearer client wins every race, and nothing is learned about the other."""


class Hands(Protocol):
    """One client's verbs: those of a ``TrialDirectory``, or the same over a pipe."""

    def ask(self, verb: str, *words: str) -> bool | str: ...


@dataclass(frozen=True)
class TwoHands:
    """The experiments. ``here`` and ``there`` are different clients of one directory."""

    here: Hands
    there: Hands
    chance: random.Random
    clock: MachineClock

    def same_place(self) -> HealthCheck:
        """Say whether both look at one directory: without that nothing else means anything."""
        name = "one directory"
        self.here.ask("make", "from.here", "here")
        self.there.ask("make", "from.there", "there")
        if not (self.there.ask("sees_afresh", "from.here") and self.here.ask("sees_afresh", "from.there")):
            return failed(
                name, "what one client makes the other does not find", "is the same export mounted at both paths?"
            )
        if (self.there.ask("read", "from.here"), self.here.ask("read", "from.there")) != ("here", "there"):
            return failed(name, "what one client writes the other reads otherwise", "see dmesg on both machines")
        return passed(name, "each finds and reads what the other made")

    def names_seen(self) -> HealthCheck:
        missed, way_out = 0, "this mount cannot carry a root: see its options (nocto, lookupcache) with tenure doctor"
        for number in range(MOUNT_ROUNDS):
            maker, looker = self._turns(number)
            maker.ask("make", f"seen.{number}", "x")
            missed += not looker.ask("sees_afresh", f"seen.{number}")
        good = f"all of {MOUNT_ROUNDS} new names were seen after the directory was opened"
        bad = f"{missed} of {MOUNT_ROUNDS} new names were not seen after the directory was opened"
        return judged("names after opening", good, bad, way_out, holds=not missed)

    def absences(self) -> HealthCheck:
        """Say for how many names an absence is remembered, and whether opening the directory cures it."""
        remembered, kept = 0, 0
        for number in range(ABSENCES):
            maker, looker = self._turns(number)
            looker.ask("sees", f"absent.{number}")
            maker.ask("make", f"absent.{number}", "x")
            remembered += not looker.ask("sees", f"absent.{number}")
            kept += not looker.ask("sees_afresh", f"absent.{number}")
        good = f"{remembered} of {ABSENCES} were remembered as absent; opening the directory cured it"
        bad = f"{kept} of {ABSENCES} names stayed absent though the directory was opened"
        way_out = "this mount cannot carry a root: see its options with tenure doctor"
        return judged("absent names", good, bad, way_out, holds=not kept)

    def bytes_seen(self) -> HealthCheck:
        short, files = 0, MOUNT_ROUNDS // 2
        for number in range(files):
            writer, reader = self._turns(number)
            writer.ask("make", f"bytes.{number}", "a" * 100)
            reader.ask("read", f"bytes.{number}")
            writer.ask("append", f"bytes.{number}", "b" * 100)
            short += reader.ask("read", f"bytes.{number}") != "a" * 100 + "b" * 100
        good = f"all of {files} files were read as they were closed last"
        bad = f"{short} of {files} files were read as they had been before they were closed"
        way_out = "mount without nocto; NFSv4 without delegations, or vers=3"
        return judged("bytes after closing", good, bad, way_out, holds=not short)

    def link_race(self) -> HealthCheck:
        for number in range(MOUNT_ROUNDS):
            self.here.ask("make", f"link.{number}.here", "here")
            self.there.ask("make", f"link.{number}.there", "there")
        return self._race(
            "link", lambda hands, who, number: hands.ask("link", f"link.{number}", f"link.{number}.{who}")
        )

    def exclusive_race(self) -> HealthCheck:
        return self._race("exclusive", lambda hands, who, number: hands.ask("make", f"exclusive.{number}", who))

    def _race(self, prefix: str, attempt: Callable[[Hands, str, int], bool | str]) -> HealthCheck:
        name, wins = f"{prefix} race", {"here": 0, "there": 0}

        def late(span: Span, hands: Hands, who: str, number: int) -> bool:
            self.clock.sleep(span)
            return bool(attempt(hands, who, number))

        with ThreadPoolExecutor(2) as both:
            for number in range(MOUNT_ROUNDS):
                tries = [
                    both.submit(late, self.chance.randrange(JITTER_NS), hands, who, number)
                    for who, hands in zip(wins, self._both, strict=True)
                ]
                won = [who for who, each in zip(wins, tries, strict=True) if each.result()]
                if len(won) != 1:
                    wrong = f"in round {number} {'both clients' if won else 'neither client'} won the same name"
                    return failed(name, wrong, "this mount cannot carry a root")
                # Opened anew: what the winner says is what is there, for both.
                held = {
                    hands.ask("sees_afresh", f"{prefix}.{number}") and hands.ask("read", f"{prefix}.{number}")
                    for hands in self._both
                }
                if held != {won[0]}:
                    wrong = f"in round {number} {won[0]} won, and the name holds {sorted(map(str, held))}"
                    return failed(name, wrong, "see dmesg")
                wins[won[0]] += 1
        said = f"one winner in each of {MOUNT_ROUNDS} rounds: here {wins['here']}, there {wins['there']}"
        if not all(wins.values()):
            return unsure(name, f"{said}: they never met", "repeat it where both are about as near to the server")
        return passed(name, said)

    @property
    def _both(self) -> tuple[Hands, Hands]:
        return self.here, self.there

    def _turns(self, number: int) -> tuple[Hands, Hands]:
        return self._both if number % 2 == 0 else (self.there, self.here)
