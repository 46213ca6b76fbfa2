"""A state as text and as JSON. The same tree and instant give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any, Final

from appliance.formats.framing import Piece, open_frame, piece_at
from auditor.evidence.finding import Evidence
from auditor.evidence.tree import Tree
from timeagent.console import bound_fields, counted, instant_fields, printable
from timeagent.errors import Damaged
from timeagent.units import SECOND, Instant, rfc3339, span_text

from ..columns.events import FrameWritten, clock
from .state import BagState, LeaseState, ShardState, StateAt
from .timeline_reader import Timeline

SCHEMA: Final = "tenure.replay"
BAGS_SHOWN: Final = 12
LEASES_SHOWN: Final = 200


def text_lines(state: StateAt, delivered: dict[str, list[Delivered]], *, domain: str | None = None) -> Iterator[str]:
    """Yield the state in words: shards, leases, logs and their bags, clocks, findings, newest deliveries."""
    return map(printable, _lines(state, delivered, domain))


def _lines(state: StateAt, delivered: dict[str, list[Delivered]], domain: str | None) -> Iterator[str]:
    if state.end_ns:
        end = clock(state.end_ns)
        yield f"state at {rfc3339(state.instant_ns)}, after {state.position:,} events; the copy ends at {end}"
    else:
        yield "nothing in this copy says when it was: no record with a time of its own is there"
    yield ""
    yield from _table(
        "Shards", ("shard", "node", "run", "ceiling", "number", "kind", "floor", "map", "half"), _shards(state)
    )
    yield ""
    leases = _lease_rows(state, domain)
    head = ("domain", "phase", "mode", "holder", "expiry", "left", "fence", "floor", "msgs", "previous")
    yield from _table("Leases", head, leases[:LEASES_SHOWN])
    if len(leases) > LEASES_SHOWN:
        yield f"  … {len(leases) - LEASES_SHOWN:,} more: --domain NAME, or --json"
    for name, log in sorted(state.logs.items()):
        yield ""
        yield (
            f"Log {name}: settled up to {clock(log.horizon_ns)}, {counted(log.delivered, 'message')} delivered, "
            f"{log.rejected:,} rejected, {log.pending:,} pending"
            + (f", {counted(log.unread_bags, 'bag')} that cannot be read" if log.unread_bags else "")
        )
        bags = state.bags.bags_of(name, newest=BAGS_SHOWN)
        yield from _table(
            "",
            ("bag", "phase", "due", "written", "listed", "void", "msgs", "closed", "sealed"),
            [_bag(state, bag) for bag in bags],
        )
        for each in delivered.get(name, ()):
            domains = ", ".join(each.domains) or "no lease"
            message = f"{each.writer} {each.sequence}[{each.index}]  {each.length} bytes"
            yield f"    {clock(each.timestamp_ns)}  {message}  under {domains}"
    yield ""
    yield from _table("Clocks", ("node", "status", "said", "±", "epochs", "widest", "as of"), _clocks(state))
    if state.findings:
        yield ""
        yield "Findings by then"
        for finding in state.findings:
            yield f"  {finding.id}  {finding.verdict:<13}  {finding.code}: {finding.subject}"


def _shards(state: StateAt) -> list[tuple[str, ...]]:
    return [
        (
            f"{name[0]}/{name[1]}",
            each.record.node,
            each.record.incarnation.hex(),
            clock(each.record.ceiling_ns),
            str(each.record.number),
            each.record.kind.value + _restarts(each),
            clock(each.record.floor_ns),
            str(each.going_by or name[0]),
            each.half.value + (f" since {clock(each.half_ns)}" if each.half_ns is not None else ""),
        )
        for name, each in sorted(state.shards.items())
    ]


def _restarts(shard: ShardState) -> str:
    if shard.paused_ns is None:
        return ""
    since, until = shard.paused_ns
    return f", {counted(shard.restarts, 'restart')}, the last at {clock(until)} after {span_text(until - since)}"


def _lease_rows(state: StateAt, domain: str | None) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name in state.domains.standing() if domain is None else [domain]:
        known = state.domains.get(name)
        if known is None:
            continue
        previous = "-" if known.previous is None else state.phase(known.previous).value
        rows += [_lease_row(state, lease, previous) for lease in known.leases]
        if not known.leases and domain is not None:
            rows.append((name, "free", "-", "-", "-", "-", "-", clock(known.floor_ns), "-", previous))
    return rows


def _lease_row(state: StateAt, lease: LeaseState, previous: str) -> tuple[str, ...]:
    witness, left = lease.witness, state.expiry(lease) - state.instant_ns
    return (
        witness.domain,
        state.phase(lease).value,
        witness.mode.value,
        f"{witness.holder.node}:{witness.holder.process}",
        clock(state.expiry(lease)),
        f"{left / SECOND:.1f} s" if left >= 0 else "-",
        f"…{witness.fence % 10**12 // 10**6:06d}",
        clock(witness.floor_ns),
        str(lease.messages),
        previous,
    )


def _bag(state: StateAt, bag: BagState) -> tuple[str, ...]:
    closed = bag.closed
    missing = f" ({closed.missing} missing)" if closed and closed.missing else ""
    return (
        clock(bag.start_ns),
        state.bag_phase(bag).value,
        clock(bag.due_ns),
        str(bag.written),
        "-" if closed is None else f"{closed.files}{missing}",
        str(closed.void_files if closed else 0),
        str(closed.accepted if closed else bag.messages),
        "-" if closed is None else f"{clock(closed.instant_ns)} {closed.closer}",
        "-" if bag.sealed_ns is None else f"{clock(bag.sealed_ns)} {bag.sealer}",
    )


def _clocks(state: StateAt) -> list[tuple[str, ...]]:
    return [
        (
            name,
            each.reading.state,
            clock(each.reading.midpoint_ns),
            span_text(each.reading.radius_ns) + (" assumed" if each.reading.assumed else ""),
            str(len(each.epochs)),
            span_text(each.widest_ns),
            clock(each.as_of_ns),
        )
        for name, each in sorted(state.clocks.items())
    ]


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if title:
        yield title
    if not rows:
        yield "  none"
        return
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# -- JSON --------------------------------------------------------------------------------------------------------------


def json_fields(state: StateAt, delivered: dict[str, list[Delivered]], *, domain: str | None = None) -> dict[str, Any]:
    """Return the state as JSON shows it. What is not known is null, never zero."""
    chosen = sorted(state.domains) if domain is None else [domain] if domain in state.domains else []
    return {
        **bound_fields("instant", state.instant_ns),
        **bound_fields("end", state.end_ns),
        "events": state.position,
        "shards": [_shard_fields(state, name) for name in sorted(state.shards)],
        "domains": [_domain_fields(state, name) for name in chosen],
        "logs": [_log_fields(state, name, delivered.get(name, [])) for name in sorted(state.logs)],
        "clocks": [_clock_fields(state, name) for name in sorted(state.clocks)],
        "findings": [
            {"id": each.id, "code": each.code, "verdict": each.verdict.value, "subject": printable(each.subject)}
            for each in state.findings
        ],
    }


def _shard_fields(state: StateAt, name: tuple[int, int]) -> dict[str, Any]:
    each, record = state.shards[name], state.shards[name].record
    return {
        "map": name[0],
        "shard": name[1],
        "node": printable(record.node),
        "incarnation": record.incarnation.hex(),
        "ceiling_number": record.number,
        **instant_fields("ceiling", record.ceiling_ns),
        "kind": record.kind.value,
        **bound_fields("floor", record.floor_ns),
        **bound_fields("settle_to", record.settle_to_ns),
        **instant_fields("started", each.started_ns),
        "runs": each.runs,
        "going_by": each.going_by or name[0],
        "restarts": each.restarts,
        **instant_fields("resumed", None if each.paused_ns is None else each.paused_ns[1]),
        "half": each.half.value,
        **instant_fields("half_since", each.half_ns),
    }


def _domain_fields(state: StateAt, name: str) -> dict[str, Any]:
    known = state.domains[name]
    return {
        "domain": printable(name),
        "map": known.shard[0],
        "shard": known.shard[1],
        **bound_fields("floor", known.floor_ns),
        **bound_fields("settle_to", known.settle_to_ns),
        "fence": str(known.fence),
        "grants": known.grants,
        "leases": [lease_fields(state, lease) for lease in known.leases],
        "previous": None if known.previous is None else lease_fields(state, known.previous),
    }


def lease_fields(state: StateAt, lease: LeaseState) -> dict[str, Any]:
    witness, holder, ending = lease.witness, lease.witness.holder, lease.ending
    watermark = None if ending is None else ending.watermark_ns
    return {
        "correlation_id": witness.correlation_id.hex(),
        "phase": state.phase(lease).value,
        "mode": witness.mode.value,
        "node": printable(holder.node),
        "process": holder.process,
        "incarnation": holder.incarnation.hex(),
        "purpose": printable(holder.purpose),
        "session": None if witness.session_id is None else witness.session_id.hex(),
        "fence": str(witness.fence),
        **instant_fields("expiry", state.expiry(lease)),
        **bound_fields("floor", witness.floor_ns),
        **bound_fields("settle_to", witness.settle_to_ns),
        **instant_fields("granted", lease.granted_ns),
        "renewals": lease.renewals,
        **instant_fields("ended", ending.ended_ns if ending else None),
        **bound_fields("watermark", watermark),
        "messages_claimed": ending.messages if ending and watermark is not None else None,
        "frames": lease.frames,
        "messages": lease.messages,
        **instant_fields("newest", lease.newest_ns),
    }


def _log_fields(state: StateAt, name: str, delivered: list[Delivered]) -> dict[str, Any]:
    log = state.logs[name]
    return {
        "log": name,
        "kind": log.born.kind,
        **bound_fields("horizon", log.horizon_ns),
        "delivered": log.delivered,
        "rejected": log.rejected,
        "pending": log.pending,
        "unread_bags": log.unread_bags,
        "bags": [_bag_fields(state, bag) for bag in state.bags.bags_of(name)],
        "newest": [
            {
                **instant_fields("timestamp", each.timestamp_ns),
                "writer": each.writer,
                "incarnation": each.incarnation.hex(),
                "sequence": each.sequence,
                "index": each.index,
                "length": each.length,
                "domains": [printable(domain) for domain in each.domains],
                "path": printable(each.where.path),
                "offset": each.where.offset,
            }
            for each in delivered
        ],
    }


def _bag_fields(state: StateAt, bag: BagState) -> dict[str, Any]:
    closed = bag.closed
    return {
        **instant_fields("start", bag.start_ns),
        **instant_fields("due", bag.due_ns),
        "phase": state.bag_phase(bag).value,
        "written": bag.written,
        "messages": bag.messages,
        "listed": closed.files if closed else None,
        "missing": closed.missing if closed else 0,
        "void_files": closed.void_files if closed else 0,
        "accepted": closed.accepted if closed else None,
        "rejected": closed.rejected if closed else None,
        **instant_fields("closed", closed.instant_ns if closed else None),
        "closer": printable(closed.closer) if closed else None,
        **instant_fields("sealed", bag.sealed_ns),
        "sealer": None if bag.sealer is None else printable(bag.sealer),
    }


def _clock_fields(state: StateAt, name: str) -> dict[str, Any]:
    each = state.clocks[name]
    return {
        "node": printable(name),
        "status": each.reading.state,
        **instant_fields("earliest", each.reading.earliest_ns),
        **instant_fields("latest", each.reading.latest_ns),
        "radius_ns": each.reading.radius_ns,
        "assumed": each.reading.assumed,
        "clock_epochs": len(each.epochs),
        "widest_radius_ns": each.widest_ns,
        **instant_fields("as_of", each.as_of_ns),
    }


@dataclass(frozen=True, slots=True, order=True)
class Delivered:
    """One message. Ordered as readers order: timestamp, writer, the writer's sequence."""

    timestamp_ns: Instant
    writer: str
    incarnation: bytes
    sequence: int
    index: int
    """Which message of its frame."""
    length: int
    where: Evidence
    """Of its frame."""
    domains: tuple[str, ...]


def newest_delivered(
    timeline: Timeline, state: StateAt, tree: Tree, log: str, *, newest: int, domain: str | None = None
) -> list[Delivered]:
    """Return the last messages that a reader of a log had been given, in order. Reads their frames from the tree.

    ``domain``: only those that were written under a lease of it.
    """
    known = state.logs.get(log)
    if known is None or newest <= 0:
        return []
    found: list[Delivered] = []
    for event in timeline.delivered_backwards(log, known.horizon_ns):
        if len(found) == newest and event.newest_accepted_ns < found[0].timestamp_ns:
            break
        if domain is None or any(name == domain for name, _ in event.leases):
            for each in _messages(event, tree):
                (heappush if len(found) < newest else heappushpop)(found, each)
    return sorted(found)


def _messages(event: FrameWritten, tree: Tree) -> Iterator[Delivered]:
    data = tree.read_range(event.where.path, event.where.offset, event.where.length)
    piece = piece_at(data or b"", 0)
    if not isinstance(piece, Piece):
        return
    try:
        frame = open_frame(piece, event.where.path)
    except Damaged:
        return
    domains = tuple(name for name, _ in event.leases)
    first, end = event.accepted
    stamps, lengths = frame.timestamps[first:end].tolist(), frame.lengths[first:end].tolist()
    for index, (stamp, length) in enumerate(zip(stamps, lengths, strict=True), first):
        yield Delivered(stamp, event.writer, event.incarnation, event.sequence, index, length, event.where, domains)
