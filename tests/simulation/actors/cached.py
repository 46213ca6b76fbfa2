"""Processes that keep values in memory under leases, read and write them; what each call was told is noted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.writing import Committed, NotCommitted
from appliance.recipes.cached_value import CachedValue
from tests.simulation.actors.session import SessionKit
from tests.simulation.actors.writer import said
from tests.simulation.history import CachedUse
from tests.simulation.lock import SimulatedLock
from timeagent.errors import TenureError
from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.scheduler import Process
    from tests.simulation.world import World
    from timeagent.units import Span

WAIT_S = 8
RENEWING = 0.7
"""How many of them renew what they keep; others find out that it has run out when they use it."""


class Caching:
    """Reads a value often, and writes it now and then, in all the ways that there are."""

    def __init__(self, world: World, process: Process, domain: str, log: str, rounds: int) -> None:
        self._world = world
        self._process = process
        self._domain = domain
        self._log = log
        self._rounds = rounds

    def run(self) -> None:
        renews = self._world.scheduler.stream(f"{self._process.name} renews").random() < RENEWING
        kit = self._kit = SessionKit(self._world, self._process, renews=renews)
        self._longest_ns = 400 * MS if renews else 2 * self._world.policy.lease_term_max_ns
        self._put: list[CachedUse] = []
        value = CachedValue(
            kit.session, self._log, self._domain, flush_s=kit.chance.choice((0.1, 1)), timeout_s=WAIT_S,
            hold_s_max=kit.chance.choice((None, None, 2)),
        )  # fmt: skip
        value._later = self._later
        value._lock = SimulatedLock(self._world.scheduler)  # type: ignore[assignment]
        for number in range(self._rounds):
            kit.pause(self._world.pace_ns)
            self._use(value, number)
        self._noted("close", None, value.close)
        kit.end()

    def _later(self, span: Span, do: Callable[[], None]) -> None:
        def body() -> None:
            self._kit.time.sleep(span)
            do()

        self._world.scheduler.spawn(f"{self._process.name} flush", self._process, body)

    def _use(self, value: CachedValue, number: int) -> None:
        new = f"{self._process.name}.{self._world.number()}.{number}".encode()
        match self._kit.chance.choice(("get", "get", "get", "get", "set", "update", "put", "put", "flush")):
            case "get":
                self._noted("get", None, value.get)
            case "set":
                self._noted("set", new, lambda: value.set(new))
            case "update":
                self._update(value, new)
            case "put":
                self._noted("put", new, lambda: value.put(new))
            case "flush":
                self._noted("flush", None, value.flush)
        if self._kit.chance.random() < 0.3:
            self._kit.time.sleep(int(self._kit.chance.random() * self._longest_ns))

    def _update(self, value: CachedValue, new: bytes) -> None:
        """Note what the decision rested on as read within the same call."""
        rested: list[bytes | None] = []

        def change(old: bytes | None) -> bytes:
            rested.append(old)
            return new

        use = self._noted("set", new, lambda: value.update(change))
        if use.outcome == "committed":
            read = CachedUse(use.who, use.process, use.domain, "get", use.began_ns, rested[-1])
            read.ended_ns = use.ended_ns
            self._world.history.cached.append(read)

    def _noted(self, what: str, value: bytes | None, do: Callable[[], object]) -> CachedUse:
        scheduler = self._world.scheduler
        use = CachedUse(self._process.name, self._process, self._domain, what, scheduler.now, value)
        self._world.history.cached.append(use)
        try:
            found = do()
        except TenureError as problem:
            scheduler.refused(f"fails to {what}:", problem)
            # Whatever failed: what is in memory alone may be lost, and this process knows it.
            use.outcome = "failed"
            for each in self._put:
                each.outcome = "lost"
            self._put.clear()
            return use
        use.ended_ns = scheduler.now
        if what == "get":
            use.value = found if isinstance(found, bytes) else None
        elif what == "put":
            self._put.append(use)
        else:
            use.outcome = said(found)  # type: ignore[arg-type]
            if not isinstance(found, NotCommitted):
                for each in self._put:
                    each.outcome = "committed" if isinstance(found, Committed) else "lost"
                self._put.clear()
        scheduler.note("is told", f"{what} {use.value!r} {use.outcome}")
        return use
