"""Is it healthy? One level and its reasons, from a state. Pure.

It adds up what shards, survey and clock say; whether a promise was kept is the auditor's question, not this one's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from appliance.formats.ceiling import CeilingKind
from timeagent.console import counted
from timeagent.units import MS, span_text

from .agreeing import agreement, agreement_words
from .state import Reach, View
from .words import Cell, Tone, clock_text, counted_ends, overdue_bags, short_span

if TYPE_CHECKING:
    from timeagent.interval import TimeInterval

    from .state import ClusterState, Freshness, ShardView


class Level(StrEnum):
    """What one glance should tell."""

    HEALTHY = "HEALTHY"
    ATTENTION = "ATTENTION"
    BROKEN = "NOT HEALTHY"
    UNKNOWN = "NOT KNOWN"


LEVEL_CELLS: Final = {
    Level.HEALTHY: Cell("● HEALTHY", Tone.GOOD),
    Level.ATTENTION: Cell("◐ ATTENTION", Tone.WARN),
    Level.BROKEN: Cell("✗ NOT HEALTHY", Tone.BAD),
    Level.UNKNOWN: Cell("◇ NOT KNOWN", Tone.DIM),
}


@dataclass(frozen=True, slots=True)
class Health:
    """Whether it is healthy, why, and some numbers."""

    level: Level
    reasons: tuple[str, ...]


def health(state: ClusterState) -> Health:
    """Say whether a cluster is healthy as far as is known, the worst reason first; of a record, what its audit says."""
    return _judged(state) if state.view is View.RECORD else _added_up(state)


def _added_up(state: ClusterState) -> Health:
    bad: list[str] = []
    warn: list[str] = []
    unknown: list[str] = []
    now = state.clock.now
    if state.mount.reach is Reach.SILENT:
        since, why = _for(state.mount), state.mount.problem
        bad.append(f"cannot read the mount{since}: {why}" if why else f"no answer from the mount{since}")
    if state.mount.reach is Reach.WAITING:
        unknown.append("waiting for the mount")
    _judge_time(state, bad, warn)
    for shard in state.shards:
        _judge_shard(shard, now, bad, warn, unknown)
    for log in state.logs:
        if log.problem:
            bad.append(f"log {log.name}: {log.problem}")
        elif not state.offline and (overdue := overdue_bags(log, now)):
            warn.append(f"log {log.name}: {counted(overdue, 'bag')} overdue for closing")
    if not state.offline:
        recovering, dying = counted_ends(state.leases, now)
        if recovering:
            warn.append(f"{_leases(recovering)} expired, recovering")
        if dying:
            warn.append(f"{_leases(dying)} will expire, not renewed")
    if state.offline:
        unknown.append(f"shards are not asked: {state.offline}")
    reasons = (*bad, *warn, *unknown)
    if bad:
        return Health(Level.BROKEN, reasons)
    if unknown:
        return Health(Level.UNKNOWN, (*unknown, *warn))
    return Health(Level.ATTENTION if warn else Level.HEALTHY, reasons)


def _judge_time(state: ClusterState, bad: list[str], warn: list[str]) -> None:
    if not state.clock.bounded and state.cluster_id and not state.offline:
        bad.append(f"this machine's time has no bound: {state.clock.problem}")
    elif state.spans and state.clock.now.radius > state.spans.radius_ns_max:
        warn.append(f"the clock is known to {span_text(state.clock.now.radius)}; the policy allows less")
    clocks = agreement(state.clocks)
    if not clocks.good:
        bad.append(f"clocks: {agreement_words(clocks)}")


def _judged(state: ClusterState) -> Health:
    """Count the findings of a record by what they say."""
    if state.mount.reach is Reach.SILENT:
        return Health(Level.BROKEN, (f"the copy cannot be read: {state.mount.problem}",))
    if state.findings is None:
        return Health(Level.UNKNOWN, (state.mount.problem,))
    counts = {verdict: sum(each.verdict == verdict for each in state.findings) for verdict in _VERDICTS}
    reasons = tuple(
        f"{count} {name}{'s' if name == 'violation' and count > 1 else ''}" for name, count in counts.items() if count
    )
    level = Level.HEALTHY
    if counts["violation"]:
        level = Level.BROKEN
    elif counts["indeterminate"] or counts["unverifiable"]:
        level = Level.UNKNOWN
    elif counts["provisional"]:
        level = Level.ATTENTION
    return Health(level, reasons)


_VERDICTS: Final = ("violation", "indeterminate", "unverifiable", "provisional", "ok")


def _for(freshness: Freshness) -> str:
    """Say how long there has been no answer, where it has been for a while."""
    span = freshness.silent_ns or 0
    return f" for {short_span(span)}" if span >= 100 * MS else ""


def _leases(count: int) -> str:
    return f"{count} lease{'' if count == 1 else 's'}"


def _judge_shard(shard: ShardView, now: TimeInterval, bad: list[str], warn: list[str], unknown: list[str]) -> None:
    words = f"shard {shard.shard} ({shard.node})"
    match shard.freshness.reach:
        case Reach.SILENT if shard.ceiling_kind is CeilingKind.ORDERLY:
            warn.append(f"{words} is stopped")
        case Reach.SILENT:
            bad.append(f"{words}: no answer{_for(shard.freshness)}")
        case Reach.WAITING:
            unknown.append(f"waiting for {words}")
        case Reach.ANSWERS:
            if shard.resumes_ns is not None and not now.surely_past(shard.resumes_ns):
                warn.append(f"{words} restarted, recovering until {clock_text(shard.resumes_ns)}")
            if shard.blocks_lost:
                warn.append(f"{words} lost {counted(shard.blocks_lost, 'ledger block')}")
        case Reach.NOT_ASKED if shard.freshness.problem:
            unknown.append(f"{words} is not asked: {shard.freshness.problem}")
        case Reach.NOT_ASKED:
            pass  # said once, for all of them
