"""What scenarios are made of: how long a schedule is, on which logs, and who takes part.

Most schedules are brief: what breaks a promise is a few steps of two or three actors, and many short runs meet more of
such steps than few long ones. One in twelve is long, for what needs many hand-overs, racks or incarnations.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.actors.closer import Closing
from tests.simulation.actors.reader import Reading
from tests.simulation.cluster import LOGS
from tests.simulation.world import World

DOMAINS = ("acct/0", "acct/1", "acct/2")
LONG_ONE_IN = 12


def is_brief(chance: random.Random) -> bool:
    """Draw whether this schedule is a brief one."""
    return chance.random() * LONG_ONE_IN >= 1


def interruptions(seed: int, *, daemons: bool = False) -> int:
    """Draw in how many lines of what threads share one is interrupted; mostly none is (0), for that takes its time.

    Without any other choice of the scenario: who is not interrupted runs as if nobody were.
    """
    return random.Random(f"{seed}/interruptions").choice((0, 0, 0, 0, 30, 100) if daemons else (0, 0, 0, 0, 100, 400))


def some_logs(chance: random.Random) -> tuple[str, ...]:
    """Draw one log, of either kind, or both."""
    return chance.choice((LOGS[:1], LOGS[:1], LOGS[1:], LOGS[1:], LOGS))


def on_log(world: World, kind: str, log: str, turns: int) -> Callable[..., Callable[[], object]]:
    if kind == "reader":
        return lambda process: Reading(world, process, log, turns).run
    return lambda process: getattr(Closing(world, process, log, turns), kind)
