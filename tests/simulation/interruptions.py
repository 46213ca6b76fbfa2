"""Threads that share objects: one may be interrupted before any line of the code that they share, while others go on.

Elsewhere actors take turns at calls of ports only. Here ``sys.monitoring`` tells of each line of ``SHARED``, and at
some of them the actor takes a step. While one stands before a line no other is told of lines: those are interrupted at
ports and locks. The locks of that code become ones that actors can wait for.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib import import_module
from itertools import chain
from threading import get_ident
from typing import TYPE_CHECKING, Final

from greenlet import GreenletExit

from tests.simulation.lock import SimulatedLock
from timeagent.units import MS, US

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from tests.simulation.scheduler import Scheduler
    from timeagent.units import Span

SHARED: Final = (
    "appliance.bag.closedbags",
    "appliance.bag.closing",
    "appliance.bag.horizon",
    "appliance.bag.logs",
    "appliance.bag.reader",
    "appliance.bag.writing",
    "appliance.lease.ceiling",
    "appliance.lease.client",
    "appliance.lease.shard",
    "appliance.lease.witness_ledger",
    "appliance.node.records",
    "appliance.recipes.cached_value",
    "appliance.recipes.exclusion",
    "appliance.session.asking",
    "appliance.session.held",
    "appliance.session.leasing",
    "appliance.session.open_logs",
    "appliance.session.recalls",
    "appliance.session.renewal",
    "appliance.session.session",
    "appliance.session.session_leases",
    "appliance.session.stamping",
)
DAEMONS: Final = (
    "appliance.daemon.failover",
    "appliance.lease.recall",
    "appliance.lease.request_handler",
    "appliance.lease.turn_log",
    "appliance.lease.waiting",
    "appliance.lease.whole_shard",
    "appliance.node.hosted_shard",
    "appliance.node.shards",
)
"""What threads of a daemon share besides."""
LOCKS: Final = (
    ("appliance.bag.writing", "Lock"),
    ("appliance.recipes.cached_value", "RLock"),
    ("appliance.session.held", "RLock"),
)
"""What such a module makes its locks of, where it may be interrupted while it has one."""

TOOL: Final = 4
SPANS: Final[tuple[Span, ...]] = (0, 0, 0, MS, 5 * MS, 20 * MS, 80 * MS, 300 * MS)
MOMENTS: Final[tuple[Span, ...]] = (0, 0, 0, 0, 0, 100 * US, MS)
"""Where daemons are interrupted too: one that stands still for longer is slow, and leases may run out by right."""


@cache
def _codes_in(code: CodeType) -> tuple[CodeType, ...]:
    inner = (_codes_in(constant) for constant in code.co_consts if inspect.iscode(constant))
    return (code, *chain.from_iterable(inner))


def _code_of(modules: tuple[str, ...]) -> tuple[CodeType, ...]:
    """Return the code of every function of these modules, and of the functions and comprehensions in them."""
    found: dict[CodeType, None] = {}
    for name in modules:
        module = import_module(name)
        for each in vars(module).values():
            members = vars(each).values() if inspect.isclass(each) and each.__module__ == name else (each,)
            for member in members:
                whole = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if hasattr(whole, "cache_info"):
                    continue  # what a process remembers from one run to the next moves no other interruption
                function = inspect.unwrap(whole) if callable(whole) else None
                if inspect.isfunction(function) and function.__module__ == name:
                    found.update(dict.fromkeys(_codes_in(function.__code__)))
    return tuple(found)


@contextmanager
def interrupted(scheduler: Scheduler, once_in: int, *, daemons: bool = False) -> Iterator[None]:
    """Interrupt actors of ``scheduler.interrupted``, once in about so many lines, until the block ends.

    ``daemons``: in what those share, too, and all of them for moments only.
    """
    spans = MOMENTS if daemons else SPANS
    stream = scheduler.stream("interruptions")
    left = 1 + int(stream.expovariate(1 / once_in))
    thread = get_ident()

    def line(code: CodeType, number: int) -> None:
        nonlocal left
        actor = scheduler.current
        if actor is None or actor.process not in scheduler.interrupted:
            return
        if get_ident() != thread:
            return  # a real thread of this process, that has nothing to do with the run
        left -= 1
        if left:
            return
        left = 1 + int(stream.expovariate(1 / once_in))
        scheduler.interruptions += 1
        where = f"{code.co_qualname}:{number}" if scheduler.trace is not None else ""
        with suppress(GreenletExit):  # who dies here goes no further than to its next port: of the rest nobody hears
            scheduler.step("is interrupted before", where, int(stream.choice(spans) * stream.random()))

    monitoring, codes = sys.monitoring, _code_of(SHARED + DAEMONS if daemons else SHARED)
    modules = [(import_module(module), name) for module, name in LOCKS]
    locks = [getattr(module, name) for module, name in modules]
    monitoring.use_tool_id(TOOL, "interruptions")
    try:
        monitoring.register_callback(TOOL, monitoring.events.LINE, line)
        for code in codes:
            monitoring.set_local_events(TOOL, code, monitoring.events.LINE)
        for module, name in modules:
            setattr(module, name, partial(SimulatedLock, scheduler))
        yield
    finally:
        for (module, name), lock in zip(modules, locks, strict=True):
            setattr(module, name, lock)
        for code in codes:
            monitoring.set_local_events(TOOL, code, 0)
        monitoring.register_callback(TOOL, monitoring.events.LINE, None)
        monitoring.free_tool_id(TOOL)
