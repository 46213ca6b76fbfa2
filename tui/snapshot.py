"""The overview as text and as JSON, for ``top --once``: what the screen shows, without the screen's library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.doctor.check import not_well
from timeagent.console import instant_fields

from .clock_agreement import agreement, agreement_words
from .columns import LEASE_COLUMNS, LOG_COLUMNS, NODE_COLUMNS, heading, laid_out, layout, text_of
from .health import health, level_cell
from .overview import leases_title, log_row, nothing_words, numbers_words, time_line, title_words
from .words import BAG_LEGEND, condition, lease_row, lease_words, node_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from timeagent.interval import TimeInterval

    from .clock_agreement import Agreement
    from .columns import Column, Field
    from .state import ClusterState, Freshness, LeaseRow, NodeClock, ShardView, TimeSources


def text_snapshot(state: ClusterState, width: int) -> str:
    """Return the overview as lines of at most ``width`` characters, as far as words can be cut."""
    return "\n".join(_lines(state, width))


def _lines(state: ClusterState, width: int) -> Iterator[str]:
    now = state.clock.now
    checks = health(state)
    yield title_words(state)
    yield f"{level_cell(checks).text}  {numbers_words(state)}".rstrip()
    for check in not_well(checks):
        yield f"  {check.words}"
        yield f"    way out: {check.way_out}"
    yield ""
    yield from _table("Nodes", NODE_COLUMNS, [row for node in state.nodes for row in node_rows(node, now)], width)
    yield ""
    rows = [lease_row(lease, now) for lease in state.leases]
    yield from _table(leases_title(state), LEASE_COLUMNS, rows, width, nothing_words(state))
    yield ""
    logs = [log_row(log, now) for log in state.logs]
    yield from _table(f"Bags   {BAG_LEGEND}", LOG_COLUMNS, logs, width, "no logs are known")
    yield ""
    yield "Time"
    yield f"  {text_of(time_line(state))}"


def _table(
    title: str, columns: Sequence[Column], rows: Sequence[Sequence[Field]], width: int, nothing: str = "not known"
) -> Iterator[str]:
    yield title
    if not rows:
        yield f"  {nothing}"
        return
    as_laid = layout(columns, width - 2, rows)
    for row in (heading(columns), *rows):
        yield f"  {text_of(laid_out(columns, as_laid, row))}"


# -- JSON --------------------------------------------------------------------------------------------------------------


def json_fields(state: ClusterState) -> dict[str, Any]:
    """Return the state as JSON shows it. What is not known is null, never zero."""
    clock, checks = state.clock, health(state)
    return {
        "root": state.path,
        "cluster": state.cluster_id or None,
        "view": state.view,
        "offline_because": state.offline or None,
        "health": {
            "level": level_cell(checks).text[2:].lower(),
            "reasons": [check.words for check in not_well(checks)],
            "checks": [check.fields() for check in checks],
        },
        "mount": _freshness(state.mount),
        "time": {
            **instant_fields("earliest", clock.now.earliest if clock.bounded else None),
            **instant_fields("latest", clock.now.latest if clock.bounded else None),
            "radius_ns": clock.now.radius if clock.bounded else None,
            "bounded": clock.bounded,
            "source": clock.source,
            "status": clock.status,
            "assumed": clock.assumed,
            "problem": clock.problem or None,
        },
        "nodes": [
            {
                "node": node.name,
                "own": node.own,
                "answers": node.answers,
                "shards": [_shard(shard) for shard in node.shards],
            }
            for node in state.nodes
        ],
        "leases": [_lease(lease, clock.now) for lease in state.leases],
        "logs": [
            {
                "log": log.name,
                **instant_fields("horizon", log.horizon_ns),
                "problem": log.problem or None,
                "bags": [
                    {
                        **instant_fields("start", bag.start_ns),
                        "state": "absent" if bag.state is None else bag.state,
                        "files": bag.files,
                    }
                    for bag in log.bags
                ],
            }
            for log in state.logs
        ],
        "clocks": [_clock(clock) for clock in state.clocks],
        "clocks_together": _together(agreement(state.clocks)),
        "time_sources": _times(state.times),
    }


def _clock(clock: NodeClock) -> dict[str, Any]:
    """Instants are CLOCK_REALTIME of that node; ``ahead`` is true time minus this machine's CLOCK_BOOTTIME, by it."""
    ahead = clock.ahead
    return {
        "node": clock.node,
        "reach": clock.reach.replace(" ", "-"),
        **instant_fields("midpoint", clock.midpoint_ns),
        "radius_ns": clock.radius_ns,
        "status": clock.status,
        "assumed": clock.assumed,
        "age_ns": clock.age_ns,
        "epochs": clock.epochs,
        "widest_radius_ns": clock.widest_ns,
        "ahead_earliest_ns": None if ahead is None else ahead.earliest,
        "ahead_latest_ns": None if ahead is None else ahead.latest,
        "round_trip_ns": clock.trip_ns,
        "silent_ns": clock.silent_ns,
        "problem": clock.problem or None,
        "remark": clock.remark or None,
    }


def _together(found: Agreement) -> dict[str, Any]:
    """What the clocks that can be compared have in common, and by how much others are outside, at least."""
    common = found.common
    return {
        "agree": found.good if found.compared else None,
        "compared": list(found.compared),
        "not_known": found.not_known,
        "common_ahead_earliest_ns": None if common is None else common.earliest,
        "common_ahead_latest_ns": None if common is None else common.latest,
        "outside": [{"node": each.node, "by_ns": each.by_ns} for each in found.outside],
        "words": agreement_words(found) or None,
    }


def _times(times: TimeSources | None) -> dict[str, Any] | None:
    if times is None:
        return None
    together = times.together
    return {
        **_freshness(times.freshness),
        "agent": times.agent,
        **instant_fields("earliest", None if together is None else together.earliest),
        **instant_fields("latest", None if together is None else together.latest),
        "sources": [each.fields() for each in times.sources],
    }


def _freshness(freshness: Freshness) -> dict[str, Any]:
    return {
        "reach": freshness.reach.replace(" ", "-"),
        "age_ns": freshness.age_ns,
        "silent_ns": freshness.silent_ns,
        "problem": freshness.problem or None,
    }


def _shard(shard: ShardView) -> dict[str, Any]:
    return {
        "shard": shard.shard,
        "run_by": shard.runner,
        **_freshness(shard.freshness),
        "incarnation": shard.incarnation,
        "leases": shard.leases,
        "domains": shard.domains,
        **instant_fields("ceiling", shard.ceiling_ns),
        "blocks_lost": shard.blocks_lost,
        "ledger_bytes": shard.ledger_bytes,
        **instant_fields("resumes", shard.resumes_ns),
    }


def _lease(lease: LeaseRow, now: TimeInterval) -> dict[str, Any]:
    return {
        "domain": lease.domain,
        "mode": lease.mode,
        "phase": lease.phase,
        "condition": condition(lease, now).replace(",", "").replace(" ", "-"),
        "words": lease_words(lease, now),
        "node": lease.node,
        "process": lease.process,
        "process_present": lease.holder_present,
        "purpose": lease.purpose,
        "correlation_id": lease.correlation_id,
        "fence": lease.fence,
        **instant_fields("expiry", lease.expiry_ns),
        **instant_fields("resumes", lease.resumes_ns),
        "shard": lease.shard,
        "known_from": lease.origin.replace(" ", "-"),
        **instant_fields("as_of", lease.as_of_ns),
        "previous": lease.previous,
    }
