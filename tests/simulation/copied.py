"""A copy of the tree, made name by name while everybody works on: whatever it lacks or mixes, it accuses nobody.

    python -m tests.simulation.copied --copies 10000          a line; exit 0: no copy accuses anybody

A copier is one more actor. Each directory that it lists and each file that it reads is a step, and between two steps
all others may do anything: files grow, bags are closed, sealed, packed and removed, chains are pruned. In which order
it goes is up to the seed: name by name as rsync and tar do, as a file system's hash has it (cp), or in no order at all;
once, or again and again, as rsync brings a copy up to date, with deletion or without. And a client may be shown a
directory as it was a while ago, for no longer than racks wait to be sealed. Each copy is judged, and once more with
parts of it missing: what is not there proves nothing either way.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import auditor.rules.chains
import auditor.rules.history
from appliance.lease import ceiling
from auditor.evidence.finding import Verdict
from tests.simulation import scenarios
from tests.simulation.audited import audit_at, is_true, place_in_memory
from tests.simulation.incomplete import left_of
from tests.simulation.measurement import Count, Measurement, over_seeds, spans_of_seeds
from tests.simulation.run import scenario_of
from tests.simulation.scheduler import Machine, Process
from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from auditor.evidence.finding import Finding
    from auditor.rules.result import Audit
    from tests.simulation.world import World

STEPS_MORE = 2_000
"""So many steps a copier may take beside those of all others."""
RECORDS_KEPT = 4
"""How many ceiling records shards keep in every other round of the mix."""
MISSING = "missing"
"""Under which it is counted how the files were chosen that are missing."""
ORDERS = ("names", "hashes", "any", "any", "any")


@dataclass(slots=True)
class Task:
    """A directory that is to be listed, or a file that is to be read, from an offset on."""

    path: str
    is_directory: bool
    size: int = 0
    """As it was when its directory was listed."""


class Copier:
    """Copies what the file server holds."""

    def __init__(self, world: World) -> None:
        """Take the world whose server is copied."""
        self._world = world
        self.chance = chance = random.Random(f"{world.seed}/copier")
        self._order = chance.choice(ORDERS)
        self._limits = chance.random() < 0.3
        """Whether no more is read of a file than it held when it was listed, as tar does."""
        self._idle = chance.choice((0, 0, 1, 5, 20, 80)) * MS
        self._caches = chance.random() < 0.3
        """Whether directories are shown as they were a while ago, others as they are."""
        self._cached: dict[str, tuple[int, list[Task]]] = {}
        """What is in a directory, and when that was seen."""
        self._passes = chance.choice((1, 1, 2, 3))
        """How often it goes over the tree: rsync is run again to bring a copy up to date."""
        self._deletes = chance.random() < 0.5
        """Whether a later pass takes out of the copy what is in the tree no more."""
        self._waiting = [Task("", is_directory=True)]
        self.directories: set[str] = set()
        self.files: dict[str, bytes] = {}
        self.after = 0
        """How many tasks were left when all others had ended."""

    def run(self) -> None:
        """Copy, step by step."""
        scheduler = self._world.scheduler
        while self._waiting:
            if self._idle and self.chance.random() < 0.2:
                scheduler.sleep(int(self.chance.random() * self._idle * 5))
            scheduler.step("copies")
            if self._caches:
                self._look()
            self._take(self._next())
            if not self._waiting and self._passes > 1:
                self._passes -= 1
                self._waiting.append(Task("", is_directory=True))

    def finish(self) -> None:
        """Copy what is left of this pass, when all others have ended."""
        self.after = len(self._waiting)
        while self._waiting:
            self._take(self._next())

    def lose(self) -> str:
        """Let parts of the copy be missing; return which."""
        what, self.directories, self.files = left_of(self.directories, self.files, self.chance)
        return what

    def write(self, root: Path) -> None:
        """Write the copy."""
        for directory in self.directories:
            os.makedirs(f"{root}/{directory}", exist_ok=True)  # noqa: PTH103 - as tests/simulation/audited.py
        for path, data in self.files.items():
            (root / path).write_bytes(data)

    def _next(self) -> Task:
        if self._order == "any":
            return self._waiting.pop(self.chance.randrange(len(self._waiting)))
        return self._waiting.pop()

    def _take(self, task: Task) -> None:
        server = self._world.server
        if not task.is_directory:
            file = server.find(task.path)
            if file is not None:  # else it was removed since its directory was listed
                self.files[task.path] = file.data[: task.size] if self._limits else file.data
            return
        found = self._listed(task.path)
        if found is None:
            return
        self.directories.add(task.path)
        if self._deletes:
            self._forget(task.path, {each.path for each in found})
        found.sort(key=lambda each: each.path, reverse=True)
        if self._order == "hashes":
            self.chance.shuffle(found)
        self._waiting += found

    def _forget(self, directory: str, there: set[str]) -> None:
        """Take out of the copy what was in a directory and is not any more."""
        below = f"{directory}/" if directory else ""
        deep = len(below)

        def gone(path: str) -> bool:
            return path.startswith(below) and path != directory and below + path[deep:].partition("/")[0] not in there

        self.directories = {path for path in self.directories if not gone(path)}
        self.files = {path: data for path, data in self.files.items() if not gone(path)}

    def _look(self) -> None:
        """See some directory, and keep what is in it."""
        path = self.chance.choice(list(self._world.server.directories))
        self._cached[path] = (self._world.scheduler.now, self._inside(path) or [])

    def _listed(self, path: str) -> list[Task] | None:
        """Return what the copier is shown of a directory."""
        when, found = self._cached.get(path, (0, []))
        if self._world.scheduler.now - when <= self._world.policy.seal_delay_ns:
            return list(found)
        return self._inside(path)

    def _inside(self, path: str) -> list[Task] | None:
        names = self._world.server.directories.get(path)
        if names is None:
            return None
        below = f"{path}/" if path else ""
        return [Task(below + name, file is None, len(file.data) if file else 0) for name, file in names.items()]


def copied(scenario: str, seed: int) -> tuple[World, Copier]:
    """Run a schedule with a copier beside it; return the world and the copier."""
    world = scenarios.SCENARIOS[scenario](seed)
    copier = Copier(world)
    world.scheduler.steps_max += STEPS_MORE
    process = Process(Machine("copier"), "copier")
    begin = int(copier.chance.random() * world.conditions.lasts_ns)
    world.scheduler.spawn(process.name, process, copier.run, after=begin)
    world.run()
    copier.finish()
    return world, copier


@contextmanager
def pruning_early(records: int) -> Iterator[None]:
    """Let shards keep so few ceiling records, and let the judge know: in a short run none are pruned otherwise."""
    modules = (ceiling, auditor.rules.history, auditor.rules.chains)
    with ExitStack() as patches:
        for module in modules:
            patches.enter_context(patch.object(module, "RECORDS_KEPT", records))
        yield


def audit_of(world: World, copier: Copier) -> Audit:
    """Return the audit of a copy."""
    with place_in_memory() as root:
        copier.write(root)
        return audit_at(world, root)


def accusations(world: World, result: Audit) -> Iterator[Finding]:
    """Yield what says that somebody broke a rule. Nobody did, but clocks that lied, and who kept an ended key."""
    for finding in result.findings:
        if finding.verdict is Verdict.VIOLATION and not is_true(world, finding):
            yield finding


def judge(seed: int, count: Count) -> None:
    """Audit the copy of one seed of the mix."""
    scenario = scenario_of(seed)
    with pruning_early(RECORDS_KEPT if seed // len(scenarios.MIX) % 2 else ceiling.RECORDS_KEPT):
        world, copier = copied(scenario, seed)
        if world.rotting:
            return
        result = audit_of(world, copier)
        files = len(copier.files)
        missing = copier.lose()
        partial = audit_of(world, copier)
    summary = result.summary
    count.cases[scenario] += 1
    count.things.update(
        files=files,
        bags=summary.bags,
        open=summary.provisional,
        after=bool(copier.after),
        missing=files - len(copier.files),
    )
    count.told.update((finding.verdict.value, finding.code) for finding in result.findings)
    count.told[MISSING, missing] += 1
    for what, judged in (("", result), (f", {missing} missing", partial)):
        for finding in accusations(world, judged):
            count.wrong.append(f"{scenario} {seed}{what}: {finding.code}: {finding.explanation}")
    world.forget()


def lines(total: Count) -> Iterator[str]:
    """Yield what it came to."""
    things = total.things
    yield (
        f"{total.cases.total():,} copies made while everybody worked on ({things['after']:,} of them ended later), "
        f"{things['files']:,} files, {things['bags']:,} bags, {things['open']:,} of them open in the copy: "
        f"{len(total.wrong)} accuse somebody."
    )
    yield f"Judged once more with {things['missing']:,} of the files missing."
    told: dict[str, list[str]] = {}
    for (verdict, code), number in sorted(total.told.items()):
        told.setdefault(verdict, []).append(f"{code} {number:,}")
    for verdict, codes in told.items():
        yield f"{verdict}: {', '.join(codes)}"


MEASUREMENT = Measurement(__doc__ or "", "copies", spans_of_seeds, partial(over_seeds, judge), lines)

if __name__ == "__main__":
    sys.exit(MEASUREMENT.main())
