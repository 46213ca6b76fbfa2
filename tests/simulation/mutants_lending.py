"""Wrong versions of a daemon that lends its leases, and of how a process reckons with what it has borrowed."""

from __future__ import annotations

from appliance.daemon import lease_desk
from appliance.recipes import quick_run
from tests.simulation.mutant import Mutant, one

_KEPT = "LeaseDesk._kept"
_GOOD = "LeaseDesk._good"
_ACQUIRED = "LeaseDesk._acquired"

LENDING: tuple[Mutant, ...] = (
    Mutant(
        "a sub-lease is over with its process's connection",
        one(lease_desk, _KEPT, "(left := (told - self._time.boot_ns()))", "(left := 0)"),
        "lent",
        "lending",
    ),
    Mutant(
        "a lease is given back when its process was told last that it is good, not when that is over",
        one(lease_desk, _KEPT, "told = max(told, self._time.boot_ns() + good)", "told = self._time.boot_ns()"),
        "outlives",
        "lending",
    ),
    Mutant(
        "who is next in the queue does not wait for who has the domain",
        one(lease_desk, "LeaseDesk._has_turn", "(place.mode is Mode.S and", "(True and"),
        "lent",
        "lending",
    ),
    Mutant(
        "who waits no longer passes on what another has",
        one(lease_desk, "LeaseDesk._queued", "not place.holding and (mine or not (place.busy or place.queue))", "True"),
        "lent",
        "lending",
    ),
    Mutant(
        "the first of those who share a lease gives it back",
        one(lease_desk, "LeaseDesk._queued", "not place.holding and (mine", "(mine"),
        "outlives",
        "lending",
    ),
    Mutant(
        "who shares a domain does so also with those who have it alone",
        one(lease_desk, _ACQUIRED, "mode=place.mode", "mode=Mode.S"),
        "lent",
        "lending",
    ),
    Mutant(
        "a sub-lease is good for a term, however old its lease is",
        one(lease_desk, _GOOD, "lease.outlook().good_ns", "lease.term_ns"),
        "outlives",
        "lending",
    ),
    Mutant(
        "a sub-lease is good until its lease's expiry, without the margin",
        one(
            lease_desk,
            _GOOD,
            "lease.outlook().good_ns",
            "max(0, lease.expiry_ns - self._time.now().earliest)",
        ),
        "outlives",
        "lending",
    ),
    Mutant(
        "a process reckons from when it is told how long its sub-lease is good",
        one(quick_run, "SubLease._take", "self._asked + int(words[1])", "self.boot_ns() + int(words[1])"),
        "outlives",
        "lending",
    ),
    Mutant(
        "all processes have the lease's own fence",
        one(lease_desk, "LeaseDesk._counted", "lease.fence + place.handed", "lease.fence"),
        "lent",
        "lending",
    ),
    Mutant(
        "a fence is handed out that the shard may grant again",
        one(lease_desk, "LeaseDesk._past", "fence + self._policy.radius_ns_max - self._time.now().earliest", "0"),
        "lent",
        "lending",
    ),
    Mutant(
        "a daemon lends before earlier holders can believe in the domain no more",
        one(lease_desk, _ACQUIRED, "recall='finish'", "recall='finish', record_only=True"),
        "lent",
        "lending",
    ),
    Mutant(
        "a daemon lends from a lease that another asks for and gets at once",
        one(lease_desk, _ACQUIRED, "recall='finish'", "recall='relinquish'"),
        "lent",
        "lending",
    ),
)
