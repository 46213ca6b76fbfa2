"""One client of the file server: its requests, what becomes of them on their way, and what it remembers.

The rules are listed in mount.py, which makes the port of it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from greenlet import GreenletExit

from tests.simulation.server import REVOKED_AFTER_NS
from timeagent.errors import Environment, TenureError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scheduler import Machine
    from tests.simulation.server import File, Server
    from timeagent.units import Instant, Span

ABSENCE_NS_MAX: Span = 60 * SECOND
"""How long a client believes what it knows of a directory: acdirmax. For one that changed lately it is 30 s."""
NEVER = 2**62
LOOKS_PER_FAILURE = 4
OWNER = 1000
"""The uid to which all files belong."""


_LEVELS_MAX = 8192
_levels_of: dict[str, frozenset[str]] = {}
"""What is known of paths: looked up before ``_levels`` is called, which is asked at every third step."""


def _levels(path: str) -> frozenset[str]:
    """Return a path, and each directory above it but the root."""
    found = set()
    level = path
    while level:
        found.add(level)
        level = level.rpartition("/")[0]
    if len(_levels_of) >= _LEVELS_MAX:
        _levels_of.clear()
    levels = _levels_of[path] = frozenset(found)
    return levels


@dataclass(frozen=True, slots=True)
class MountMishaps:
    """How often a mount misbehaves: once in about so many verbs that change something; 0: never."""

    failure: int = 0
    """What only looks fails too, a quarter as often: it is asked more often."""
    lost_reply: int = 0
    slow: int = 0
    late: float = 0.2
    """Which share of what fails is done later."""
    later_ns: Span = 20 * SECOND
    """How much later, at most."""
    busy: int = 0
    """An object store: one in so many puts is refused, though nobody's object is there."""
    rot: int = 0
    """One in so many streams has a byte altered on its way."""


class Client:
    """One client of the server, used by the processes of one machine."""

    def __init__(self, server: Server, name: str, mishaps: MountMishaps = MountMishaps()) -> None:
        self.server = server
        self.scheduler = server.scheduler
        self.mishaps = mishaps
        self.cut_until: Instant = 0
        """Cut off from the server until then: requests wait."""
        self.machine: Machine | None = None
        self.uid = OWNER
        self.failures = 0
        self.repeats = 0
        self._delegated: dict[str, tuple[File, bytes]] = {}
        """What reads are answered with, without asking the server."""
        self._absent: dict[str, Instant] = {}
        """Paths that are remembered as absent, and until when."""
        self._absent_names = self._absent.keys()
        """Their names, as they are whenever it is looked at."""
        self._absent_in: dict[str, list[str]] = {}
        """Which of them may be in a directory."""
        self._remembered = 0
        """How many absences were ever remembered. A name that was not hidden is not, until there is one more."""
        self._numbers = 0
        stream = self.scheduler.stream(f"mount {name}")
        self._random = stream.random
        self._stream = stream
        self._fail_in = self._draw(mishaps.failure)
        self._repeat_in = self._draw(mishaps.lost_reply)
        self._slow_in = self._draw(mishaps.slow)
        self._looks = self.scheduler.stream(f"looks of {name}") if mishaps.failure else None
        """The choices of what fails and only looks."""
        self._unread_in = self._until_unread()

    def heal(self) -> None:
        """Misbehave no more."""
        self.mishaps = MountMishaps()
        self._fail_in = self._repeat_in = self._slow_in = self._unread_in = NEVER

    def _draw(self, once_in: int) -> int:
        return 1 + int(self._stream.expovariate(1 / once_in)) if once_in else NEVER

    def _until_unread(self) -> int:
        if self._looks is None:
            return NEVER
        return 1 + int(self._looks.expovariate(1 / (LOOKS_PER_FAILURE * self.mishaps.failure)))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _extra(self) -> Span:
        """Return how much longer than others the next request takes until it reaches the server."""
        extra = 0
        now = self.scheduler.now
        if self.cut_until > now or self.server.away_until > now:
            extra = max(self.cut_until, self.server.away_until) - now
        self._slow_in = slow_in = self._slow_in - 1
        if slow_in <= 0:
            self._slow_in = self._draw(self.mishaps.slow)
            extra += int(self._random() ** 4 * 8 * SECOND)
        return extra

    def _look(self, verb: str, path: str) -> None:
        """Let a request that only looks reach the server, and its answer come back, or a failure."""
        self.scheduler.step(verb, path, self._extra())
        self._unread_in = unread_in = self._unread_in - 1
        if unread_in <= 0:
            self._unread_in = self._until_unread()
            self.failures += 1
            self.scheduler.note("  fails:", path)
            raise Environment("mount-failed", f"{verb} {path}: input/output error", hint="ask again")

    def _change[T](
        self, verb: str, path: str, effect: Callable[[], T], partly: Callable[[], object] = lambda: None
    ) -> T:
        """Let a request that changes something reach the server. It may fail, or die with its process, half-way."""
        try:
            self.scheduler.step(verb, path, self._extra())
        except GreenletExit:
            # The process is gone; its request may be on the way.
            if not self.scheduler.stopping and self._random() < 0.3:
                self._later(verb, path, effect)
            raise
        self._fail_in = fail_in = self._fail_in - 1
        if fail_in > 0:
            return effect()
        self._fail_in = self._draw(self.mishaps.failure)
        self.failures += 1
        late = self.mishaps.late
        chance = self._random()
        if chance < late:
            self.scheduler.note("  fails, and will be done:", path)
            self._later(verb, path, effect)
        elif chance < late + (1 - late) / 2:
            self.scheduler.note("  fails, and is done:", path)
            effect()
        elif chance < late + (1 - late) * 3 / 4:
            self.scheduler.note("  is refused, there is no space:", path)
            raise Environment("mount-full", f"{verb} {path}: no space left on device", hint="free space")
        else:
            self.scheduler.note("  fails, and is not done, or in part:", path)
            partly()
        raise Environment("mount-failed", f"{verb} {path}: input/output error", hint="ask again")

    def _later(self, verb: str, path: str, effect: Callable[[], object]) -> None:
        delay = int(self._random() ** 6 * self.mishaps.later_ns)

        def arrive() -> None:
            self.scheduler.note("  reaches the server late:", f"{verb} {path}")
            with suppress(TenureError):
                effect()

        self.scheduler.call_at(self.scheduler.now + delay, arrive)

    def _ask_permission(self, verb: str, path: str) -> None:
        """Refuse to change a directory that may not be written to, at the moment in which the server is asked."""
        read_only = self.server.read_only
        if read_only and self.uid and path.rpartition("/")[0] in read_only:
            raise Environment("mount-refused", f"{verb} {path}: permission denied", hint="look at owner and mode")

    def _recall(self, path: str) -> None:
        """Wait until nobody answers reads of the file by itself, or is cut off and its lease has run out."""
        if not self.server.delegations:
            return
        file = self.server.find(path)
        if file is None or file not in self.server.delegations:
            return
        for holder in self.server.delegations.pop(file):
            silent_until = max(holder.cut_until, holder.machine.paused_until if holder.machine is not None else 0)
            now = self.scheduler.now
            if holder is not self and silent_until > now:
                patience = self.server.lease_ns + REVOKED_AFTER_NS
                self.scheduler.step("wait for a delegation", path, min(silent_until - now, patience))
            if holder is self or silent_until <= self.scheduler.now:
                holder.forget_delegation(file)  # else it answers by itself until it hears from the server

    def forget_delegation(self, file: File) -> None:
        self._delegated = {name: held for name, held in self._delegated.items() if held[0] is not file}

    def _answers_by_itself(self, path: str) -> bytes | None:
        if path not in self._delegated:
            return None
        file, data = self._delegated[path]
        if self.cut_until > self.scheduler.now:
            # What it knows of the directory may be too old to find the file without asking: then it waits.
            return data if self._random() < 0.7 else None
        if self in self.server.delegations.get(file, ()):
            return data
        del self._delegated[path]
        return None

    # -- what this client remembers ------------------------------------------------------------------------------------

    def _hidden(self, path: str) -> bool:
        """Whether a remembered absence answers for this path, of itself or of a directory above it."""
        absent = self._absent
        if not absent:
            return False
        levels = _levels_of.get(path) or _levels(path)
        if self._absent_names.isdisjoint(levels):
            return False
        now = self.scheduler.now
        hidden = False
        for level in absent.keys() & levels:
            if absent[level] > now:
                hidden = True
            else:
                del absent[level]
        return hidden

    def _remember_absent(self, path: str) -> None:
        """Remember the highest name on this path that is not there, and so long all others that are not.

        The answer says that the directory is as it was: what the client knows of it is good from now on.
        """
        directories = self.server.directories
        while True:
            parent = path.rpartition("/")[0]
            if parent in directories:
                break
            path = parent
        absent = self._absent
        until = absent[path] = self.scheduler.now + int(self._random() * ABSENCE_NS_MAX)
        self._remembered += 1
        within = self._absent_in.get(parent)
        if within is None:
            self._absent_in[parent] = [path]
            return
        names = directories[parent]
        for other in within:
            if absent.get(other, until) < until and other.rpartition("/")[2] not in names:
                absent[other] = until
        within.append(path)

    def _opened_afresh(self, directory: str) -> None:
        """Know the directory as it is now: nothing in it is remembered as absent."""
        within = self._absent_in.pop(directory, None)
        if within is not None:
            for path in within:
                self._absent.pop(path, None)

    def _found(self, path: str) -> None:
        """Forget the absence of a name that was found meanwhile, and of the directories above it."""
        absent = self._absent
        levels = _levels_of.get(path) or _levels(path)
        if not self._absent_names.isdisjoint(levels):
            for level in levels:
                absent.pop(level, None)
