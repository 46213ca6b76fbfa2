"""What a state shows, laid before the one judgement (``doctor.health``); of a record, what its audit says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.doctor.check import CheckVerdict, HealthCheck, passed, unknown, worst
from appliance.doctor.health import (
    ASSUMED_WORDS,
    judge_clock,
    judge_clocks,
    judge_ends,
    judge_log,
    judge_mount,
    judge_shard,
    judge_silent_shard,
)
from appliance.formats.ceiling import CeilingKind

from .clocks import agreement, agreement_words
from .state import Reach, ViewKind
from .subjects import Cell, Tone
from .words import counted_ends, overdue_bags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from timeagent.interval import TimeInterval

    from .state import ClusterState, ShardView


LEVEL_CELLS: Final = {
    CheckVerdict.PASS: Cell("● HEALTHY", Tone.GOOD),
    CheckVerdict.UNSURE: Cell("◐ ATTENTION", Tone.WARN),
    CheckVerdict.FAIL: Cell("✗ NOT HEALTHY", Tone.BAD),
    CheckVerdict.UNKNOWN: Cell("◇ NOT KNOWN", Tone.DIM),
}
"""What one glance should tell, by the worst verdict."""


def level_cell(checks: Iterable[HealthCheck]) -> Cell:
    """Return what one glance should tell."""
    return LEVEL_CELLS[worst(checks)]


def health(state: ClusterState) -> list[HealthCheck]:
    """Return a line for each thing that is known of a cluster; of a record, one for its audit."""
    return [_audited(state)] if state.view is ViewKind.RECORD else list(_lines(state))


def _lines(state: ClusterState) -> Iterator[HealthCheck]:
    now, mount, clock = state.clock.now, state.mount, state.clock
    silent = mount.silent_ns or 0 if mount.reach is Reach.SILENT else None
    yield judge_mount(silent, mount.problem, waiting=mount.reach is Reach.WAITING)
    if not state.cluster_id:
        return
    if state.offline:
        way_out = "--node-dir names this machine's settings; without any: tenure join, or ask on a node"
        yield unknown("shards", f"not asked: {state.offline}", way_out)
    elif state.radius_ns_max is not None:
        source = ASSUMED_WORDS if clock.assumed else f"{clock.source}, {clock.status}"
        radius = clock.now.radius if clock.bounded else None
        yield judge_clock(radius, clock.problem, source, state.radius_ns_max)
    yield from state.checks
    for shard in state.shards:
        yield from _shard(shard, now)
    clocks = agreement(state.clocks)
    yield judge_clocks(clocks.good, agreement_words(clocks))
    for log in state.logs:
        yield judge_log(log.name, log.problem, 0 if state.offline else overdue_bags(log, now))
    if not state.offline:
        yield judge_ends(*counted_ends(state.leases, now))


def _shard(shard: ShardView, now: TimeInterval) -> Iterator[HealthCheck]:
    name, fresh = f"shard {shard.shard}", shard.freshness
    match fresh.reach:
        case Reach.ANSWERS:
            waits = shard.resumes_ns is not None and not now.surely_past(shard.resumes_ns)
            yield judge_shard(
                shard.shard,
                shard.node,
                runner=shard.runner,
                leases=shard.leases,
                blocks_lost=shard.blocks_lost or 0,
                until_ns=shard.resumes_ns if waits else None,
            )
        case Reach.SILENT:
            stopped = shard.ceiling_kind is CeilingKind.ORDERLY
            why, way_out = fresh.problem, fresh.way_out
            yield judge_silent_shard(shard.shard, shard.node, fresh.silent_ns, why, way_out, stopped=stopped)
        case Reach.WAITING:
            yield unknown(name, f"no answer yet from {shard.node}", "wait a moment")
        case Reach.NOT_ASKED if fresh.problem:
            yield unknown(name, f"not asked: {fresh.problem}", fresh.way_out)
        case Reach.NOT_ASKED:
            pass  # said once, for all of them


_OF_FINDINGS: Final = {
    "violation": CheckVerdict.FAIL,
    "indeterminate": CheckVerdict.UNKNOWN,
    "unverifiable": CheckVerdict.UNKNOWN,
    "provisional": CheckVerdict.UNSURE,
    "ok": CheckVerdict.PASS,
}


def _audited(state: ClusterState) -> HealthCheck:
    """Count the findings of a record by what they say."""
    if state.mount.reach is Reach.SILENT:
        return HealthCheck(
            "copy", CheckVerdict.FAIL, f"it cannot be read: {state.mount.problem}", "name a root or a copy of one"
        )
    if state.findings is None:
        return unknown("audit", state.mount.problem, "wait until the copy is read")
    counts = {verdict: sum(each.verdict == verdict for each in state.findings) for verdict in _OF_FINDINGS}
    said = [
        f"{count} {name}{'s' if name == 'violation' and count > 1 else ''}" for name, count in counts.items() if count
    ]
    if not said:
        return passed("audit", "no findings")
    judged = next(verdict for name, verdict in _OF_FINDINGS.items() if counts[name])  # the worst first
    return HealthCheck("audit", judged, " · ".join(said), "5 shows what each rests on")
