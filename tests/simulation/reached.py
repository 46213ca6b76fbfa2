"""What a run came to: counted from what its actors were told, what shards signed, and what lies on the file server.

A run in which nothing was promised breaks no promise: minima.py says how much has to happen in each scenario.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from appliance.formats.closed import PACK
from appliance.formats.lease import Mode
from appliance.formats.paths import LOCK, SEAL
from appliance.session.endings import LossReason
from tests.simulation.checkers.forms import CeilingCopy, Ended, SessionWitness, Witness
from tests.simulation.checkers.naming import author_of
from tests.simulation.checkers.record import Record
from tests.simulation.history import AT_THE_PACE

if TYPE_CHECKING:
    from tests.simulation.history import History, Hold
    from tests.simulation.server import Server
    from tests.simulation.world import World

RUN_OUT = frozenset({LossReason.EXPIRED, LossReason.HOLD_CAP, LossReason.NO_PROGRESS})
"""Why a lease is over that nobody has ended."""


def reached(world: World) -> Counter[str]:
    """Count what happened in a finished run, by words that this module knows."""
    record = Record(world)
    counts: Counter[str] = Counter()
    _faults(world, counts)
    _written(world.history, counts)
    _read(world.history, counts)
    _held(world.history, counts)
    _ran(world, counts)
    _signed(record, world.domains_max, counts)
    _on_disk(world.server, counts)
    _accepted(record, counts)
    counts["policies"] = len(record.policies) - 1
    counts["trust records"] = record.newest.trust - len(world.founded.keys)
    return counts


def _faults(world: World, counts: Counter[str]) -> None:
    counts.update(
        {
            "crashes": world.scheduler.crashes,
            "pauses": world.scheduler.pauses,
            "interruptions": world.scheduler.interruptions,
            "mount faults": world.mount_faults,
            "messages lost": world.network.lost,
            "lying clocks": int(world.lying),
            "statements of the time": len(world.history.said),
        }
    )


def _written(history: History, counts: Counter[str]) -> None:
    """Count each message or batch once, by the last word about it; ``in doubt`` is whatever ever was."""
    said = [each.outcomes for each in history.attempts] + [each.outcomes for each in history.wrote]
    for outcomes in said:
        words = [word for _, word in outcomes]
        if words:
            counts[words[-1]] += 1
            counts["in doubt"] += "unknown" in words
            counts["decided later"] += "unknown" in words and words[-1] != "unknown"
    counts["batches under several leases"] = sum(
        len(each.payloads) > 1 and len(each.leases) > 1 and (each.outcomes or [(0, "")])[-1][1] == "committed"
        for each in history.wrote
    )


def _read(history: History, counts: Counter[str]) -> None:
    """Count readings that returned something."""
    counts["settled readings"] = sum(bool(each.keys) for each in history.settled)
    counts["latest readings"] = sum(bool(each.keys) for each in history.latest if not each.leases)
    counts["readings under leases"] = sum(bool(each.keys) for each in history.latest if each.leases)
    counts["narrow readings"] = sum(bool(each.keys) for each in history.narrow)
    counts["values read"] = sum(each.what == "get" and each.ended_ns is not None for each in history.cached)
    counts["values written"] = sum(each.what == "set" and each.outcome == "committed" for each in history.cached)
    counts["values flushed"] = sum(each.what == "put" and each.outcome == "committed" for each in history.cached)
    counts["paths"] = len(history.paths)
    counts["committed"] += counts["values written"] + counts["values flushed"]
    paced: dict[tuple[str, str], set[int]] = {}
    for each in history.horizons:
        if each.who.endswith(AT_THE_PACE):
            paced.setdefault((each.who, each.log), set()).add(each.reached_ns)
    counts["advances at the pace"] = sum(len(reached) - 1 for reached in paced.values())
    counts["bags said"] = sum(each.names is not None for each in history.answers)


def _held(history: History, counts: Counter[str]) -> None:
    counts["grants"] = len(history.holds)
    by_domain: dict[str, list[Hold]] = {}
    for hold in history.holds:
        by_domain.setdefault(hold.domain, []).append(hold)
        counts["recalled"] += hold.lease.loss is not None and hold.lease.loss.reason is LossReason.RECALLED
        counts["run out"] += hold.lease.loss is not None and hold.lease.loss.reason in RUN_OUT
    for holds in by_domain.values():
        for earlier, later in pairwise(holds):
            counts["hand-overs"] += earlier.who != later.who
            counts["changed modes"] += earlier.lease is later.lease and earlier.mode is not later.mode
    counts["sets"] = sum(each.granted and len(each.domains) > 1 for each in history.waits)
    counts["waited in vain"] = sum(not each.granted for each in history.waits)
    leads = [(each.epoch, each.who) for each in sorted(history.led, key=lambda each: each.true_ns)]
    counts["epochs"] = len(set(leads))
    counts["other leaders"] = sum(before[1] != after[1] for before, after in pairwise(leads))
    counts["slots"] = sum(hold.domain.startswith("/semaphore:") for hold in history.holds)
    counts["lent"] = len(history.lent)
    own = {(hold.who, hold.domain, hold.fence) for hold in history.holds}
    counts["lent on"] = sum((each.lender, each.domain, each.fence) not in own for each in history.lent)
    counts["lent to several"] = sum(each.mode is Mode.S for each in history.lent)
    counts["orphaned"] = sum(each.orphaned for each in history.lent)
    counts["in the queue"] = len(history.queued)
    counts["kept to the end"] = len(history.kept_until)
    for turn in history.turns:
        if turn.over_ns is not None:
            counts["turns"] += 1
            counts["turns through a death"] += any(
                turn.began_ns < each.true_ns < turn.over_ns for each in history.deaths
            )
    for death in history.deaths:
        counts[death.what] += 1


def _ran(world: World, counts: Counter[str]) -> None:
    history = world.history
    counts["incarnations"] = len(history.starts)
    counts["suspended"] = len(history.suspended)
    counts["gone on with"] = len(history.resumed)
    counts["maps"] = world.map.number - world.founded.map.number
    for tenant in history.tenants:
        at_home = tenant.node == history.owners[tenant.shard]
        counts["at home" if at_home else "taken over"] += 1
        counts["left in good order"] += tenant.how == "left"


def _signed(record: Record, domains_max: int, counts: Counter[str]) -> None:
    runs: dict[bytes, set[str]] = {}
    sessions: set[bytes] = set()
    first_map = min((turn.head.map_number for turn in record.turns), default=0)
    for turn in record.turns:
        domains = runs.setdefault(turn.head.incarnation, set())
        for entry in turn.entries:
            match entry:
                case Witness():
                    domains.add(entry.domain)
                    counts["renewals"] += entry.kind == "renewal"
                    counts["under a later map"] += turn.head.map_number > first_map
                case SessionWitness():
                    sessions.add(entry.session_id)
                case Ended():
                    counts[entry.ending.outcome] += 1
                case CeilingCopy():
                    counts["orderly stops"] += record.ceilings[entry.record].kind == "orderly"
                    counts["terminal records"] += record.ceilings[entry.record].kind == "terminal"
    counts["runs that granted"] = sum(bool(domains) for domains in runs.values())
    counts["evicted"] = sum(max(0, len(domains) - domains_max) for domains in runs.values())
    counts["session leases"] = len(sessions)


def _on_disk(server: Server, counts: Counter[str]) -> None:
    there = [*server.files(), *server.graves]
    counts["closed bags"] = len({path for path in there if path.endswith(f"/{LOCK}")})
    counts["sealed racks"] = len({path for path in there if path.endswith(f"/{SEAL}")})
    counts["packed racks"] = len({path for path in there if path.endswith(f"/{PACK}")})
    counts["given-up packs"] = sum(path.endswith(f"/{PACK}") for path in server.graves)


def _accepted(record: Record, counts: Counter[str]) -> None:
    """Count what the record holds, and what of it is in files that another process wrote: the node's writer."""
    for log in record.logs.values():
        for entry in log.entries:
            counts["accepted"] += 1
            name = author_of(log.birth, entry.path.rpartition("/")[2])
            counts["by the node's writer"] += name is not None and name.incarnation != entry.key[2]
