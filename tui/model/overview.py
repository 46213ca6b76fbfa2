"""A cluster in words: is it healthy, titles and rows that screen and text share, text of ``--once``, its JSON. Pure.

What a state shows is laid before the one judgement (``doctor.health``); of a record it is what its audit says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final

from appliance.doctor import health as doctor
from appliance.doctor.health import CheckVerdict, HealthCheck, not_well, unknown
from appliance.formats.chains import CeilingKind
from appliance.formats.shardmap import shard_text
from timeagent.console import instant_fields, printable
from timeagent.units import TimeInterval, span_text

from . import words
from .clocks import Agreement, agreement, agreement_words
from .state import COPY, Cell, ClusterState, Freshness, LeaseRow, LogView, NodeClock, Reach, ShardView, Tone, ViewKind
from .tables import LEASE_COLUMNS, LOG_COLUMNS, NODE_COLUMNS, Column, Field, heading, laid_out, layout, text_of
from .words import BAG_CELLS, BAG_LEGEND, clock_text, clock_words, condition, counted_ends, is_idle, lease_row

LEVEL_CELLS: Final = {
    CheckVerdict.PASS: Cell("● HEALTHY", Tone.GOOD),
    CheckVerdict.UNSURE: Cell("◐ ATTENTION", Tone.WARN),
    CheckVerdict.FAIL: Cell("✗ NOT HEALTHY", Tone.BAD),
    CheckVerdict.UNKNOWN: Cell("◇ NOT KNOWN", Tone.DIM),
}
"""What one glance should tell, by the worst verdict."""


def level_cell(checks: Iterable[HealthCheck]) -> Cell:
    return LEVEL_CELLS[doctor.worst(checks)]


def health(state: ClusterState) -> list[HealthCheck]:
    """Return a line for each thing that is known of a cluster; of a record, one for its audit."""
    return [_audited(state)] if state.view is ViewKind.RECORD else list(_health_lines(state))


def _health_lines(state: ClusterState) -> Iterator[HealthCheck]:
    now, mount, clock = state.clock.now, state.mount, state.clock
    silent = mount.silent_ns or 0 if mount.reach is Reach.SILENT else None
    yield doctor.judge_mount(silent, mount.problem, waiting=mount.reach is Reach.WAITING)
    if not state.cluster_id:
        return
    if state.offline:
        way_out = (
            "--allow-root, as root; --node-dir: this machine's settings; without any: tenure join, or ask on a node"
        )
        yield unknown("shards", f"not asked: {state.offline}", way_out)
    elif state.radius_ns_max is not None:
        source = doctor.ASSUMED_WORDS if clock.assumed else f"{clock.source}, {clock.status}"
        radius = clock.now.radius if clock.bounded else None
        yield doctor.judge_clock(radius, clock.problem, source, state.radius_ns_max)
    yield from state.checks
    for shard in state.shards:
        yield from _shard_health(shard, now, alone=len(state.nodes) == 1)
    clocks = agreement(state.clocks)
    yield doctor.judge_clocks(clocks.good, agreement_words(clocks))
    for log in state.logs:
        yield doctor.judge_log(log.name, log.problem, 0 if state.offline else words.overdue_bags(log, now))
    if not state.offline:
        yield doctor.judge_ends(*counted_ends(state.leases, now))


def _shard_health(shard: ShardView, now: TimeInterval, *, alone: bool) -> Iterator[HealthCheck]:
    name, fresh = f"shard {shard_text(shard.shard)}", shard.freshness
    match fresh.reach:
        case Reach.ANSWERS:
            yield doctor.judge_shard(
                shard.shard,
                shard.node,
                runner=shard.runner,
                leases=shard.leases,
                blocks_lost=shard.blocks_lost or 0,
                until_ns=shard.resumes_ns if shard.waits(now) else None,
                half=shard.half,
            )
        case Reach.SILENT:
            stopped = shard.ceiling_kind is CeilingKind.ORDERLY
            why, way_out = fresh.problem, fresh.way_out
            runner = shard.runner or shard.node
            unused = alone and fresh.age_ns is None
            yield doctor.judge_silent_shard(
                shard.shard, shard.node, runner, fresh.silent_ns, why, way_out, stopped=stopped, alone=unused
            )
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
    "ok": CheckVerdict.PASS,
}


def _audited(state: ClusterState) -> HealthCheck:
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
    if state.offline != COPY:
        said.append(f"this is {state.offline}: what it leaves out makes findings too")
    if not said:
        return doctor.passed("audit", "no findings")
    judged = next(verdict for name, verdict in _OF_FINDINGS.items() if counts[name])  # the worst first
    return HealthCheck("audit", judged, " · ".join(said), "5, or tenure explain, shows what each rests on")


# -- words -------------------------------------------------------------------------------------------------------------


def badge_words(state: ClusterState) -> str:
    if state.view is ViewKind.RECORD:
        if state.mount.reach is not Reach.ANSWERS:
            return "READING" if state.mount.reach is Reach.WAITING else "NO COPY"
        seen = "COPY" if state.offline == COPY else "BUNDLE"
        return seen if state.last_ns is None or state.clock.now.midpoint >= state.last_ns else "REPLAY"
    if state.mount.reach is Reach.SILENT:
        return "NO ANSWER"
    return "OFFLINE" if state.offline else "LIVE"


def time_words(state: ClusterState) -> str:
    """Return the time for the title: the middle of the interval, and its radius."""
    if state.view is ViewKind.RECORD:
        return f"{clock_text(state.clock.now.midpoint, 3)} UTC" if state.cluster_id else ""
    clock = state.clock
    radius = f"±{span_text(clock.now.radius)}" + (" assumed" if clock.assumed else "")
    return f"{clock_text(clock.now.midpoint)} UTC {radius if clock.bounded else 'no bound'}"


def time_line(state: ClusterState) -> tuple[Cell, ...]:
    """Return what is known of the time; of a record, which instant is seen, and of which it tells."""
    if state.view is ViewKind.RECORD and state.first_ns is not None and state.last_ns is not None:
        first, last = (words.moment(each, state.clock.now.midpoint) for each in (state.first_ns, state.last_ns))
        return (Cell(f"as of {clock_text(state.clock.now.midpoint, 3)} UTC; the copy tells of {first} to {last}"),)
    return clock_words(state.clock)


def numbers_words(state: ClusterState) -> str:
    shards = state.shards
    parts = []
    if shards and not state.offline:
        answering = sum(shard.freshness.reach is Reach.ANSWERS for shard in shards)
        parts.append(f"{answering} of {len(shards)} shards answer")
    if shards:
        parts.append(f"leases {leases_count(state)}")
    waiting = [log for log in state.logs if log.horizon_ns is not None and not is_idle(log)]
    if waiting:
        lag = max(state.clock.now.midpoint - (log.horizon_ns or 0) for log in waiting)
        parts.append(f"horizon {words.short_span(max(0, lag))} ago")
    elif any(is_idle(log) for log in state.logs):
        parts.append("no message waits")
    return " · ".join(parts)


REASONS_SHOWN: Final = 5
"""``--once`` prints them all, and `status`, each with its way out."""


def health_lines(state: ClusterState) -> Iterator[tuple[Cell, ...]]:
    """Yield whether it is healthy: symbol, word, numbers; then the reasons, and what to do about the worst."""
    checks = health(state)
    head, wrong = level_cell(checks), not_well(checks)
    yield head, Cell(f"  {numbers_words(state)}")
    if wrong:
        first, *rest = [check.words for check in wrong[:REASONS_SHOWN]]
        if len(wrong) > REASONS_SHOWN:
            rest.append(f"and {len(wrong) - REASONS_SHOWN} more")
        yield (Cell(first, head.tone),)
        yield (Cell(f"→ {wrong[0].way_out}"),)  # before what may find no room
        if rest:
            yield (Cell(" · ".join(rest)),)


def leases_count(state: ClusterState) -> str:
    """Return how many leases there are; of shards without an answer that is not known, and it says so."""
    known = len(state.leases)
    if state.view is ViewKind.RECORD and state.cluster_id:
        return str(known)
    if state.offline:
        return f"{known} last known"
    silent = _silent(state)
    if not state.cluster_id or (not known and len(silent) == len(state.shards)):
        return "?"
    return f"at least {known}" if silent else str(known)


def leases_title(state: ClusterState, shown: int | None = None, filtered: str = "") -> str:
    """Return the title of the table of leases: how many, and of which shards that is not known."""
    title = f"Leases   {leases_count(state)}"
    silent = _silent(state)
    if state.offline and state.view is not ViewKind.RECORD:
        title += ", from the ledgers"
    elif silent and state.cluster_id and state.view is not ViewKind.RECORD:
        title += f"; shard{'s' if len(silent) > 1 else ''} {', '.join(silent)} silent"
    return f"{title}   {shown} shown, filter: {filtered}" if filtered and shown is not None else title


def _silent(state: ClusterState) -> list[str]:
    return [shard_text(shard.shard) for shard in state.shards if shard.freshness.reach is not Reach.ANSWERS]


def nothing_words(state: ClusterState, filtered: str = "") -> str:
    if not state.cluster_id:
        return not_known(state)
    if filtered and state.leases:
        return f"none of {len(state.leases)} leases matches the filter"
    if state.view is ViewKind.RECORD:
        return "no leases were out"
    if state.offline:
        return "the ledgers know of no lease that is still out"
    silent = _silent(state)
    if silent:
        others = "; the others have no leases out" if len(silent) < len(state.shards) else ""
        return f"not known: {len(silent)} of {len(state.shards)} shards have no answer{others}"
    return "no leases are out"


def not_known(state: ClusterState) -> str:
    if state.view is ViewKind.RECORD:
        return state.mount.problem or "not known: the copy is still being read"
    return "not known: the mount has not answered yet"


def log_row(log: LogView, now: TimeInterval) -> tuple[Field, ...]:
    return (Cell(log.name), tuple(BAG_CELLS[bag.state] for bag in log.bags), words.log_words(log, now))


def text_snapshot(state: ClusterState, width: int) -> str:
    """Return the overview as lines of at most ``width`` characters, as far as words can be cut."""
    return "\n".join(map(printable, _lines(state, width)))


def _lines(state: ClusterState, width: int) -> Iterator[str]:
    now = state.clock.now
    checks = health(state)
    cluster = state.cluster_id[:12] or "?"
    yield f"cluster {cluster}  {state.path}  {badge_words(state)}  {time_words(state)}"
    yield f"{level_cell(checks).text}  {numbers_words(state)}".rstrip()
    for check in not_well(checks):
        yield f"  {check.words}"
        yield f"    way out: {check.way_out}"
    yield ""
    yield from _table("Nodes", NODE_COLUMNS, [row for node in state.nodes for row in words.node_rows(node, now)], width)
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
    clock, checks, times = state.clock, health(state), state.times
    bound = clock.now if clock.bounded else None
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
            **_interval(bound),
            "radius_ns": None if bound is None else bound.radius,
            **_told(clock, "bounded source status assumed"),
            "problem": clock.problem or None,
        },
        "nodes": [
            {"node": node.name, **_told(node, "own answers"), "shards": [_shard(shard) for shard in node.shards]}
            for node in state.nodes
        ],
        "leases": [_lease(lease, clock.now) for lease in state.leases],
        "logs": [
            {
                "log": log.name,
                **instant_fields("horizon", log.horizon_ns),
                "problem": log.problem or None,
                "bags": [
                    {**instant_fields("start", bag.start_ns), "state": bag.state or "absent", "files": bag.files}
                    for bag in log.bags
                ],
            }
            for log in state.logs
        ],
        "clocks": [_clock(clock) for clock in state.clocks],
        "clocks_together": _together(agreement(state.clocks)),
        "time_sources": None
        if times is None
        else {
            **_freshness(times.freshness),
            "agent": times.agent,
            **_interval(times.together),
            "sources": [each.fields() for each in times.sources],
        },
    }


def _told(record: object, names: str) -> dict[str, Any]:
    """Return fields of a record under the names that they have there, in one word each."""
    values = {name: getattr(record, name) for name in names.split()}
    return {name: value.replace(" ", "-") if isinstance(value, StrEnum) else value for name, value in values.items()}


def _interval(known: TimeInterval | None) -> dict[str, Any]:
    earliest, latest = (known.earliest, known.latest) if known else (None, None)
    return {**instant_fields("earliest", earliest), **instant_fields("latest", latest)}


def _ahead(name: str, known: TimeInterval | None) -> dict[str, Any]:
    return {f"{name}_{end}_ns": known and getattr(known, end) for end in ("earliest", "latest")}


def _freshness(freshness: Freshness) -> dict[str, Any]:
    return {**_told(freshness, "reach age_ns silent_ns"), "problem": freshness.problem or None}


def _clock(clock: NodeClock) -> dict[str, Any]:
    """Instants are CLOCK_REALTIME of that node; ``ahead`` is true time minus this machine's CLOCK_BOOTTIME, by it."""
    return {
        **_told(clock, "node reach"),
        **instant_fields("midpoint", clock.midpoint_ns),
        **_told(clock, "radius_ns status assumed age_ns epochs silent_ns"),
        "widest_radius_ns": clock.widest_ns,
        **_ahead("ahead", clock.ahead),
        "round_trip_ns": clock.trip_ns,
        "problem": clock.problem or None,
        "remark": clock.remark or None,
    }


def _together(found: Agreement) -> dict[str, Any]:
    """What the clocks that can be compared have in common, and by how much others are outside, at least."""
    return {
        "agree": found.good if found.compared else None,
        **_told(found, "compared not_known"),
        **_ahead("common_ahead", found.common),
        "outside": [_told(each, "node by_ns") for each in found.outside],
        "words": agreement_words(found) or None,
    }


def _shard(shard: ShardView) -> dict[str, Any]:
    return {
        "shard": shard.shard,
        "run_by": shard.runner if shard.freshness.reach is Reach.ANSWERS else None,
        **_freshness(shard.freshness),
        **_told(shard, "incarnation leases domains blocks_lost ledger_bytes half"),
        **instant_fields("ceiling", shard.ceiling_ns),
        **instant_fields("resumes", shard.resumes_ns),
        **instant_fields("half_since", shard.half_ns),
    }


def _lease(lease: LeaseRow, now: TimeInterval) -> dict[str, Any]:
    return {
        **_told(lease, "domain mode phase"),
        "condition": condition(lease, now).replace(",", "").replace(" ", "-"),
        "words": words.lease_words(lease, now),
        **_told(lease, "node process purpose correlation_id shard previous"),
        "process_present": lease.holder_present,
        "fence": str(lease.fence),
        "known_from": lease.origin.replace(" ", "-"),
        **instant_fields("expiry", lease.expiry_ns),
        **instant_fields("resumes", lease.resumes_ns),
        **instant_fields("as_of", lease.as_of_ns),
    }
