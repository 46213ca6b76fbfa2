"""Wrong versions of what keeps those who want leases from waiting for each other, and behind the dead."""

from __future__ import annotations

from appliance.lease import decisions, waiting
from appliance.recipes import path_lock
from appliance.session import held, leasing
from tests.simulation.mutant import Mutant, one

SETS: tuple[Mutant, ...] = (
    Mutant(
        "a tentative lease is wounded by nobody",
        one(decisions, "_breakable", "wounds = lease.phase is Phase.TENTATIVE and age < lease.age", "wounds = False"),
        "served",
        "sets",
    ),
    Mutant(
        "a tentative lease is wounded by younger requests too",
        one(
            decisions,
            "_breakable",
            "lease.phase is Phase.TENTATIVE and age < lease.age",
            "lease.phase is Phase.TENTATIVE",
        ),
        "served",
        "sets",
    ),
    Mutant(
        "the oldest set waits behind a younger request, where it could share the domain",
        one(
            decisions,
            "_decide_grant",
            "_behind(domain, request, command.ahead, leases, bounds)",
            "_behind(domain, request, command.ahead, in_the_way, bounds)",
        ),
        "served",
        "sets",
    ),
    Mutant(
        "a set that was wounded keeps what it has",
        one(
            leasing,
            "Leasing._take_all",
            "if not complete:",
            "if False:",
        ),
        "served",
        "sets",
    ),
    Mutant(
        "nobody is woken when a domain is free",
        one(waiting, "WaitingRoom.call_in", "if each in self.domains", "if not each"),
        "served",
        "sets",
    ),
    Mutant(
        "who comes last is served first",
        one(
            waiting,
            "WaitingRoom._enter",
            "self.domains.setdefault(domain, {})[place.request.request_id] = place",
            "self.domains[domain] = {place.request.request_id: place, **self.domains.get(domain, {})}",
        ),
        "served",
        "queues",
    ),
    Mutant(
        "who died while it waited gets the domain",
        (
            (waiting, "WaitingRoom._call_in_firsts", "if place.waiter.gone:", "if place.waiter is None:"),
            (waiting, "WaitingRoom.abandon", "waiter in self._of", "False"),
            (waiting, "WaitingRoom._send_away", "not place.waiter.gone", "True"),
        ),
        "served",
        "queues",
    ),
    Mutant(
        "a folder that is read is not locked where something in it is written",
        one(path_lock, "_both", "Mode.SIX", "Mode.IX"),
        "paths",
        "paths",
    ),
    Mutant(
        "what lies above a path is not locked",
        one(path_lock, "path_modes", "for parent in path.parents:", "for parent in ():"),
        "paths",
        "paths",
    ),
    Mutant(
        "whoever reads a folder need not lock what is written in it",
        one(path_lock, "_is_covered", "modes[path] in (Mode.S, Mode.IS) and", "True and"),
        "paths",
        "paths",
    ),
    Mutant(
        "paths of a task that is over are locked no more, though it works on",
        one(held, "Lease.end_if_over", "not now.surely_before(self.usable_until_ns(margin_ns))", "False"),
        "paths",
        "paths",
    ),
)
