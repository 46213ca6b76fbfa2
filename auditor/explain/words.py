"""A finding in words: what each piece of its evidence says, and the intervals that decide it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from appliance.formats.birth import open_birth, store_of
from appliance.formats.chains import open_ceiling
from appliance.formats.closed import open_lock, open_seal
from appliance.formats.framing import PIECE_BYTES_MAX, Kind, Piece, open_frame, piece_at
from appliance.formats.lease import Ending
from appliance.formats.stamped import open_signed
from appliance.formats.witness import (
    BatchHead,
    CeilingCopy,
    Ended,
    Entry,
    Resumed,
    Revoked,
    SessionEnded,
    SessionWitness,
    SignedWitness,
    Stopped,
    Witness,
    open_block,
)
from auditor.columns.events import event_words
from auditor.evidence.finding import Evidence, Finding
from auditor.evidence.tree import SEAL_FILE_BYTES_MAX, Tree
from auditor.report.formats import finding_lines, time_line
from timeagent.canonical import decode
from timeagent.console import printable
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.units import bound_text, rfc3339, span_text

from .context import Context

_LISTED_MAX = 12


def explain_lines(finding: Finding, tree: Tree) -> Iterator[str]:
    yield from finding_lines(finding)
    yield f"  what this code means: docs/findings.md#{finding.code}"
    if finding.times:
        yield ""
        yield "Times:"
        for named in sorted(finding.times, key=lambda each: (each.earliest_ns, each.latest_ns)):
            yield f"  {time_line(named)}"
    for place in finding.evidence:
        yield ""
        yield from evidence_lines(place, tree)


def evidence_fields(finding: Finding, tree: Tree) -> list[dict[str, Any]]:
    """Return what each piece of evidence says, as JSON shows it: the lines that are for people."""
    return [
        {"path": printable(place.path), "offset": place.offset, "says": [line.strip() for line in lines[1:]]}
        for place in finding.evidence
        for lines in [list(evidence_lines(place, tree))]
    ]


def context_lines(context: Context) -> Iterator[str]:
    """Yield what lies around a finding: leases before and after, restarts, clock events, what readers made of it."""
    if context.leases:
        yield ""
        yield "The leases around it, in the order of their grants (* it rests on these):"
    for lease in context.leases:
        witness, holder, end = lease.witness, lease.witness.holder, lease.end
        ended = f"{end.outcome} at {rfc3339(end.ended_ns)}" if end else "no end is known"
        yield printable(
            f"  {'*' if witness.correlation_id in context.concerned else ' '} {witness.correlation_id.hex()} on "
            f"{witness.domain!r}: {lease.mode}, {holder.node}:{holder.process}, fence {witness.fence}"
        )
        yield (
            f"      granted {rfc3339(lease.granted_ns)}, renewed {len(lease.renewed_ns)} times, "
            f"expiry {rfc3339(lease.expiry_ns)}, {ended}"
        )
    around = [(each.instant_ns, each.words) for each in (*context.restarts, *context.clock_changes)]
    around += [(each.instant_ns, event_words(each)) for each in (*context.moves, *context.closings)]
    if around:
        yield ""
        yield "Around it:"
        for instant, words in sorted(around):
            yield printable(f"  {rfc3339(instant)}  {words}")
    if context.frames:
        accepted, written = context.readers()
        yield ""
        yield f"Readers accept {accepted} of the {written} messages that it is about."


def evidence_lines(place: Evidence, tree: Tree) -> Iterator[str]:
    """Yield one piece of evidence in words: its place, then what its bytes say."""
    yield f"{printable(place.path)}, offset {place.offset}, {place.length} bytes:"
    data = tree.read_range(place.path, place.offset, min(place.length or PIECE_BYTES_MAX, SEAL_FILE_BYTES_MAX))
    if data is None:
        yield printable(f"  {instead_of(place.path, tree)}")
        return
    piece = piece_at(data, 0)
    if isinstance(piece, str):
        yield f"  {len(data)} bytes; there is no whole record of ours: {piece}"
        return
    for line in piece_says(piece, data, place.path, _LISTED_MAX):
        yield f"  {printable(line.text)}"


def instead_of(path: str, tree: Tree) -> str:
    """Return in words what there is of a path that has no bytes."""
    parent, _, name = path.rpartition("/")
    if dict(tree.names(parent)).get(name):
        return "is a directory"
    why = tree.unreadable.get(path)
    return "is not there" if why is None else f"cannot be read: {why}"


class Said(NamedTuple):
    """A line of what bytes say, and what it leads to."""

    text: str
    what: str = ""
    """A node, clock, domain, lease or file; empty: nothing."""
    name: str = ""
    """Which; of a lease its domain."""
    lease: str = ""


def piece_says(piece: Piece, data: bytes, path: str, most: int | None = None) -> Iterator[Said]:
    """Yield what a record says, unverified, of its entries at most so many. ``data``: what the piece was found in."""
    try:
        yield from _piece(piece, data[piece.offset : piece.end], path, most)
    except Damaged as problem:
        yield Said(problem.message)


def _piece(piece: Piece, data: bytes, path: str, most: int | None) -> Iterator[Said]:
    match piece.kind:
        case Kind.FRAME:
            yield from _frame(piece, path)
        case Kind.LEDGER:
            block = open_block(piece, path)
            yield from _head(block.batch_head(path))
            entries = list(block.decoded(path))
            for entry in entries[:most]:
                yield from _entry(entry)
            yield from _more(entries, most)
        case Kind.LOCK:
            lock, stamped = open_lock(data, path)
            yield Said(
                f"lock file of {lock.bag}, closed by {lock.closer} at {_time(stamped.time)}", "node", lock.closer
            )
            yield Said(f"judged by trust record {lock.trust_number} and policy {lock.policy_number}")
            for each in lock.entries[:most]:
                text = f"lists {each.name}, {each.size} bytes, digest {each.digest.hex()}"
                yield Said(text, "file", f"{lock.bag}/{each.name}")
            yield from _more(lock.entries, most)
        case Kind.SEAL:
            seal, stamped = open_seal(data, path)
            text = f"seal of {seal.rack}, by {seal.sealer} at {_time(stamped.time)}, with {len(seal.entries)} bags"
            yield Said(text, "node", seal.sealer)
        case Kind.BIRTH:
            birth, stamped = open_birth(data, path)
            yield Said(f"birth of log {birth.log} ({birth.kind}) by {birth.created_by} at {_time(stamped.time)}")
            if store_of(birth):
                yield Said(f"its bags are in {store_of(birth)}")
        case Kind.CEILING:
            record, _ = open_ceiling(data, path)
            text = f"ceiling record {record.number} ({record.kind}) of {record.node}, run {record.incarnation.hex()}"
            yield Said(text, "node", record.node)
            text = f"ceiling {rfc3339(record.ceiling_ns)}, floor {bound_text(record.floor_ns)}, at {_time(record.time)}"
            yield Said(text, "clock", record.node)
        case Kind.POLICY | Kind.TRUST | Kind.MAP:
            signed = open_signed(piece.kind, data, path)
            yield Said(f"{piece.kind.name.lower()} record, signed by key {signed.key_id.hex()}")
        case Kind.PACK:
            yield Said("a pack")


def _more(entries: Sequence[object], most: int | None) -> Iterator[Said]:
    if most is not None and len(entries) > most:
        yield Said(f"and {len(entries) - most} more")


def _frame(piece: Piece, path: str) -> Iterator[Said]:
    frame = open_frame(piece, path)
    head = frame.head
    text = f"frame {head.sequence} of {head.writer} ({head.incarnation.hex()}) in log {head.log}"
    yield Said(text, "node", head.writer)
    yield Said(f"signed at {_time(head.time)}", "clock", head.writer)
    first, last = int(frame.timestamps[0]), int(frame.timestamps[-1])
    yield Said(f"{len(frame.timestamps)} messages, {rfc3339(first)} to {rfc3339(last)}")
    for raw in head.witnesses:
        try:
            signed = decode(SignedWitness, raw, "a witness")
            yield from _entry(signed.statement())
            yield from _head(signed.batch_head())
        except Damaged as problem:
            yield Said(f"what should be a witness is none: {problem.message}")


def _head(head: BatchHead) -> Iterator[Said]:
    shard = f"batch {head.sequence} of shard {head.shard} (map {head.map_number}) on {head.node}"
    right = f"{head.half} by map {head.going_by}, under ceiling record {head.ceiling_number}"
    run = f"run {head.incarnation.hex()}"
    yield Said(f"{shard}, {run}, {right} until {rfc3339(head.ceiling_ns)}", "node", head.node)
    yield Said(f"    signed at {_time(head.time)}", "clock", head.node)


def _entry(entry: Entry) -> Iterator[Said]:
    match entry:
        case Witness():
            lease = "lease", entry.domain, entry.correlation_id.hex()
            yield Said(
                f"{entry.kind} of lease {lease[2]} on {entry.domain!r}: {entry.mode}, {entry.phase}, "
                f"fence {entry.fence}, for {entry.holder.node} (process {entry.holder.process})",
                *lease,
            )
            yield Said(
                f"    floor {bound_text(entry.floor_ns)}, settle_to {bound_text(entry.settle_to_ns)}, "
                f"expiry {rfc3339(entry.expiry_ns)}"
            )
            if entry.last_ended is not None:
                yield Said(f"    before it ended {_ending(entry.last_ended)}")
        case Ended():
            floor = f"floor {bound_text(entry.floor_ns)} since"
            yield Said(f"the end of {_ending(entry.ending)} on {entry.domain!r}; {floor}", "domain", entry.domain)
        case Revoked():
            yield Said(
                f"{entry.by.node} (process {entry.by.process}) revoked lease {entry.correlation_id.hex()} on "
                f"{entry.domain!r}: {entry.by.purpose!r}",
                "domain",
                entry.domain,
            )
        case SessionWitness():
            yield Said(
                f"{entry.kind} of session lease {entry.session_id.hex()} for {entry.holder.node} "
                f"(process {entry.holder.process}), expiry {rfc3339(entry.expiry_ns)}"
            )
            if entry.ended:
                yield Said(f"    not for the leases {', '.join(name.hex() for name in entry.ended)}")
        case SessionEnded():
            yield Said(
                f"the end of session lease {entry.session_id.hex()} ({entry.outcome} at {rfc3339(entry.ended_ns)}) "
                f"with {entry.leases} leases, {entry.messages} messages; expiry {rfc3339(entry.expiry_ns)}"
            )
        case CeilingCopy():
            yield Said("a copy of a ceiling record")
        case Resumed():
            yield Said(f"the run goes on after a restart: it had signed nothing since {rfc3339(entry.since_ns)}")
        case Stopped():
            yield Said(f"the run stopped orderly with floor {bound_text(entry.floor_ns)}")


def _ending(ending: Ending) -> str:
    text = f"lease {ending.correlation_id.hex()} ({ending.outcome} at {rfc3339(ending.ended_ns)}"
    if ending.watermark_ns is not None:
        text += f", watermark {bound_text(ending.watermark_ns)}, {ending.messages} messages"
    return text + ")"


def _time(raw: bytes) -> str:
    token = SignedTime.decode(raw)
    return f"{rfc3339(token.midpoint_ns)} ± {span_text(token.radius_ns)}"
