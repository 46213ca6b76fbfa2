"""Processes that lock paths of one tree, work a while, and note from when until when they surely had them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.recipes.path_lock import PathLock
from tests.simulation.actors.session import SessionKit
from tests.simulation.cluster import LOGS
from tests.simulation.history import PathsHeld
from timeagent.errors import TenureError
from timeagent.units import MS

if TYPE_CHECKING:
    from appliance.recipes.path_lock import HeldPaths
    from appliance.session.session import Session
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

PATHS = ("/", "/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f")
WAIT_S = 6
WRITING = 0.3
"""How often a task publishes while it works."""


class Sessions:
    """What a cluster is to a path lock: each block has a session of its own, of the same process."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self.kit: SessionKit | None = None

    def session(self, purpose: str = "") -> Session:
        del purpose
        self.kit = SessionKit(self._world, self._process)
        return self.kit.session


class PathTask:
    """Reads some paths and writes others, again and again."""

    def __init__(self, world: World, process: Process, rounds: int) -> None:
        self._world = world
        self._process = process
        self._rounds = rounds

    def run(self) -> None:
        chance = self._world.scheduler.stream(f"{self._process.name} paths")
        sessions = Sessions(self._world, self._process)
        lock = PathLock(sessions)
        for _ in range(self._rounds):
            read = chance.sample(PATHS, chance.choice((0, 1, 1, 2)))
            write = chance.sample(PATHS, chance.choice((0, 1, 1, 2)) if read else 1)
            try:
                with lock(read, write, timeout_s=WAIT_S) as held:
                    now = self._world.scheduler.now
                    note = PathsHeld(self._process.name, tuple(read), tuple(write), now, now)
                    for _ in range(chance.choice((1, 2, 3))):
                        self._checked(held, note)
                        assert sessions.kit is not None
                        if held.writing and chance.random() < WRITING:
                            said = f"{self._process.name}.{self._world.number()}".encode()
                            sessions.kit.publish(LOGS[0], [said], held.writing)
                        sessions.kit.time.sleep(int(chance.random() * 80 * MS))
                    self._checked(held, note)
            except TenureError as problem:
                self._world.scheduler.refused("has no paths:", problem)
            if sessions.kit is not None:
                sessions.kit.end()

    def _checked(self, held: HeldPaths[Session], note: PathsHeld) -> None:
        """Check; it was held before that, too, and may be over by now: the process may have stood still since."""
        before = self._world.scheduler.now
        held.check()
        note.until_ns = before
        if note not in self._world.history.paths:
            self._world.history.paths.append(note)
