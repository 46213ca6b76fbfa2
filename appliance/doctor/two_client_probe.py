"""What two clients see of each other on one mount: one client's verbs, and experiments over two of them.

All of it happens in ``tmp/probe.TOKEN`` below the root, which no reader looks into. A verb may block while the server
is away; what the operating system refuses is raised as OSError, as it came.

The protocol rests on this (docs/nfs.md): a name is taken once, by link(2) and by O_EXCL; whoever opens the directory
sees every name that was there; whoever opens a file sees all that was closed. Two processes of one machine on one mount
share its memory and prove little; two machines, or two mounts with ``nosharecache``, prove what they are asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from timeagent.clock import MachineClock
from timeagent.units import Span

from .check import HealthCheck, failed, passed, unsure
from .directory import TrialDirectory, checked


class LocalHands(TrialDirectory):
    """Hands of this machine, on one mount."""

    def __init__(self, root: Path, token: str) -> None:
        """Take the root, and what both clients call the place. Touches nothing yet."""
        super().__init__(root, f"probe.{checked(token)}")


ROUNDS: Final = 60
ABSENCES: Final = 8
JITTER_NS: Final = 4_000_000
"""Without jitter the nearer client wins every race, and nothing is learned about the other."""


class Hands(Protocol):
    """One client's verbs: those of a ``TrialDirectory``, or the same over a pipe."""

    def make(self, name: str, data: str) -> bool: ...
    def append(self, name: str, data: str) -> bool: ...
    def link(self, name: str, source: str) -> bool: ...
    def sees(self, name: str) -> bool: ...
    def sees_afresh(self, name: str) -> bool: ...
    def read(self, name: str) -> str: ...


class TwoHands:
    """The experiments. ``here`` and ``there`` are different clients of one directory."""

    def __init__(self, here: Hands, there: Hands, chance: random.Random, clock: MachineClock) -> None:
        self._here = here
        self._there = there
        self._chance = chance
        self._clock = clock

    def same_place(self) -> HealthCheck:
        """Say whether both look at one directory: without that nothing else means anything."""
        name = "one directory"
        self._here.make("from.here", "here")
        self._there.make("from.there", "there")
        if not (self._there.sees_afresh("from.here") and self._here.sees_afresh("from.there")):
            return failed(
                name, "what one client makes the other does not find", "is the same export mounted at both paths?"
            )
        if (self._there.read("from.here"), self._here.read("from.there")) != ("here", "there"):
            return failed(name, "what one client writes the other reads otherwise", "see dmesg on both machines")
        return passed(name, "each finds and reads what the other made")

    def names_seen(self) -> HealthCheck:
        """Say whether opening the directory shows every name that was there before."""
        name, missed = "names after opening", 0
        for number in range(ROUNDS):
            maker, looker = self._turns(number)
            maker.make(f"seen.{number}", "x")
            missed += not looker.sees_afresh(f"seen.{number}")
        if missed:
            return failed(
                name,
                f"{missed} of {ROUNDS} new names were not seen after the directory was opened",
                "this mount cannot carry a root: see its options (nocto, lookupcache) with tenure doctor",
            )
        return passed(name, f"all of {ROUNDS} new names were seen after the directory was opened")

    def absences(self) -> HealthCheck:
        """Say for how many names an absence is remembered, and whether opening the directory cures it."""
        name, remembered, kept = "absent names", 0, 0
        for number in range(ABSENCES):
            maker, looker = self._turns(number)
            looker.sees(f"absent.{number}")
            maker.make(f"absent.{number}", "x")
            remembered += not looker.sees(f"absent.{number}")
            kept += not looker.sees_afresh(f"absent.{number}")
        if kept:
            return failed(
                name,
                f"{kept} of {ABSENCES} names stayed absent though the directory was opened",
                "this mount cannot carry a root: see its options with tenure doctor",
            )
        return passed(name, f"{remembered} of {ABSENCES} were remembered as absent; opening the directory cured it")

    def bytes_seen(self) -> HealthCheck:
        """Say whether opening a file shows all that was closed."""
        name, short = "bytes after closing", 0
        for number in range(ROUNDS // 2):
            writer, reader = self._turns(number)
            writer.make(f"bytes.{number}", "a" * 100)
            reader.read(f"bytes.{number}")
            writer.append(f"bytes.{number}", "b" * 100)
            short += reader.read(f"bytes.{number}") != "a" * 100 + "b" * 100
        if short:
            return failed(
                name,
                f"{short} of {ROUNDS // 2} files were read as they had been before they were closed",
                "mount without nocto; NFSv4 without delegations, or vers=3",
            )
        return passed(name, f"all of {ROUNDS // 2} files were read as they were closed last")

    def link_race(self) -> HealthCheck:
        """Say whether link(2) has one winner, and who both say it was."""
        for number in range(ROUNDS):
            self._here.make(f"link.{number}.here", "here")
            self._there.make(f"link.{number}.there", "there")
        return self._race(
            "link race", lambda hands, who, number: hands.link(f"link.{number}", f"link.{number}.{who}"), "link"
        )

    def exclusive_race(self) -> HealthCheck:
        """Say whether O_EXCL has one winner."""
        return self._race(
            "exclusive race", lambda hands, who, number: hands.make(f"exclusive.{number}", who), "exclusive"
        )

    def _race(self, name: str, attempt: Callable[[Hands, str, int], bool], prefix: str) -> HealthCheck:
        wins = {"here": 0, "there": 0}
        with ThreadPoolExecutor(2) as both:
            for number in range(ROUNDS):
                tries = [
                    both.submit(self._late, self._chance.randrange(JITTER_NS), attempt, hands, who, number)
                    for who, hands in (("here", self._here), ("there", self._there))
                ]
                won = [who for who, each in zip(wins, tries, strict=True) if each.result()]
                if len(won) != 1:
                    return failed(
                        name,
                        f"in round {number} {'both clients' if won else 'neither client'} won the same name",
                        "this mount cannot carry a root",
                    )
                # Opened anew: what the winner says is what is there, for both.
                held = {
                    hands.sees_afresh(f"{prefix}.{number}") and hands.read(f"{prefix}.{number}") for hands in self._both
                }
                if held != {won[0]}:
                    return failed(
                        name,
                        f"in round {number} {won[0]} won, and the name holds {sorted(map(str, held))}",
                        "see dmesg",
                    )
                wins[won[0]] += 1
        said = f"one winner in each of {ROUNDS} rounds: here {wins['here']}, there {wins['there']}"
        if not all(wins.values()):
            return unsure(name, f"{said}: they never met", "repeat it where both are about as near to the server")
        return passed(name, said)

    def _late(
        self, span: Span, attempt: Callable[[Hands, str, int], bool], hands: Hands, who: str, number: int
    ) -> bool:
        self._clock.sleep(span)
        return attempt(hands, who, number)

    @property
    def _both(self) -> tuple[Hands, Hands]:
        return self._here, self._there

    def _turns(self, number: int) -> tuple[Hands, Hands]:
        return self._both if number % 2 == 0 else (self._there, self._here)
