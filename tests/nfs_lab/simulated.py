"""The two clients of a rule, in the simulator: what it can show is what the kernel is allowed to."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.nfs_lab.inside.verbs import plain
from tests.nfs_lab.two import OWNER
from tests.simulation.cluster import T0
from tests.simulation.mount import SimulatedMount
from tests.simulation.scheduler import Machine, Mishaps, Process, Scheduler
from tests.simulation.server import Server
from timeagent.errors import Environment
from timeagent.units import HOUR, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nfs_lab.rules import Rule
    from tests.simulation.server import File

SEEDS = 100
AWAY_S = 20
SETTLED_S = 60
"""By then what a dead process had sent has arrived, or never will."""


class Simulated:
    """A Two. Its rule is played in an actor of its own."""

    def __init__(self, seed: int) -> None:
        self._scheduler = Scheduler(seed, start_ns=T0, end_ns=T0 + 10 * HOUR, steps_max=20_000)
        self._server = Server(self._scheduler)
        self._server.mkdir("d")
        self._mounts = {name: SimulatedMount(self._server, name) for name in ("a", "b")}
        self._processes = 0
        self._cut_until = 0
        self._held: File | None = None

    def play(self, rule: Rule) -> list[str]:
        """Play it once; return what was seen."""
        seen: list[str] = []
        self._spawn(lambda: seen.extend(rule.play(self)))
        self._scheduler.run()
        assert not self._scheduler.bugs, self._scheduler.bugs
        return seen

    def _spawn(self, body: Callable[[], object]) -> Process:
        self._processes += 1
        process = Process(Machine(f"m{self._processes}"), f"p{self._processes}")
        self._scheduler.spawn(process.name, process, body)
        return process

    def call(self, who: str, verb: str, path: str, *rest: object, uid: int = OWNER) -> object:
        mount = self._mounts[who]
        words = list(rest)
        if verb in {"publish", "append"}:
            words[0] = cast("str", words[0]).encode()
        if verb == "publish":
            words.append("tmp")
        mount.uid = uid
        try:
            return plain(getattr(mount, verb)(path, *words))
        except Environment as problem:
            return problem.code
        finally:
            mount.uid = OWNER

    def together(self, *bodies: Callable[[], None]) -> None:
        ended: list[None] = []

        def whole(body: Callable[[], None]) -> None:
            body()
            ended.append(None)

        for body in bodies:
            self._spawn(lambda body=body: whole(body))  # type: ignore[misc]
        while len(ended) < len(bodies):
            self.sleep(0.1)

    def now(self) -> float:
        return self._scheduler.now / SECOND

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(int(seconds * SECOND))

    def cut(self, who: str, seconds: float) -> None:
        self._cut_until = self._mounts[who].cut_until = self._scheduler.now + int(seconds * SECOND)

    def healed(self) -> bool:
        return self._scheduler.now >= self._cut_until

    def restart_server(self) -> None:
        self._server.away_until = self._scheduler.now + AWAY_S * SECOND

    def back(self) -> bool:
        return self._scheduler.now >= self._server.away_until

    def delegate(self) -> None:
        self._server.delegates = self._scheduler.stream("delegates").random() < 0.5  # v3 does not, nor need v4

    def chmod(self, path: str, *, writable: bool) -> None:
        self._server.chmod(path, writable=writable)

    def hold(self, path: str, uid: int) -> None:
        mount = self._mounts["a"]
        mount.uid = uid
        file = self._server.find(path)
        assert file is not None
        self._held = mount._opened(path, len(file.data))
        mount.uid = OWNER

    def write_held(self, path: str, text: str, uid: int) -> str:
        mount = self._mounts["a"]
        mount.uid = uid
        assert self._held is not None
        try:
            mount._written(path, self._held, text.encode(), len(self._held.data))
        except Environment as problem:
            return problem.code
        finally:
            mount.uid = OWNER
        return "lands"

    def killed(self, verb: str, path: str, *rest: object, cut: float = 0) -> None:
        if cut:
            self.cut("a", cut)
        self._scheduler.mishaps = Mishaps(crash=2)
        process = self._spawn(lambda: self.call("a", verb, path, *rest))
        self._scheduler.mishaps = Mishaps()
        self.sleep(cut)
        self._scheduler.crash(process)
        self.sleep(SETTLED_S)

    def lose_reply(self, path: str, text: str) -> tuple[object, bool]:
        mount = self._mounts["a"]
        mount._repeat_in = 1
        said = self.call("a", "publish", path, text)
        return said, mount.repeats > 0

    def clock_difference(self) -> float:
        self._server.clock_offset_ns = -HOUR
        return (self._mounts["a"].server_clock("tmp") - self._scheduler.now) / SECOND


def allowed(rule: Rule, seeds: int = SEEDS) -> frozenset[str]:
    """Return everything that the simulator shows of a rule, over so many seeds."""
    return frozenset(seen for seed in range(seeds) for seen in Simulated(seed).play(rule))
