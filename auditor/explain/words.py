"""A finding in words: what each piece of its evidence says, and the intervals that decide it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.formats.birth import LogBirth
from appliance.formats.ceiling import open_ceiling
from appliance.formats.frame import open_frame
from appliance.formats.framing import Kind, Piece, piece_at
from appliance.formats.ledger import open_block
from appliance.formats.lockfile import open_lock, open_seal
from appliance.formats.sessionlease import SessionEnded, SessionWitness
from appliance.formats.stamped import open_signed, open_stamped
from appliance.formats.witness import BatchHead, CeilingCopy, Ended, Resumed, Revoked, SignedWitness, Stopped, Witness
from auditor.evidence.tree import PIECE_BYTES_MAX, SEAL_FILE_BYTES_MAX
from auditor.report.formats import finding_lines, time_line
from auditor.timeline.events import event_words
from timeagent.canonical import decode
from timeagent.console import printable
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.units import bound_text, rfc3339, span_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.formats.lease import Ending
    from appliance.formats.witness import Entry
    from auditor.evidence.tree import Tree
    from auditor.rules.finding import Evidence, Finding

    from .context import Context

_LISTED_MAX = 12


def explain_lines(finding: Finding, tree: Tree) -> Iterator[str]:
    """Yield the finding, the intervals, and each piece of its evidence in words."""
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
    around: list[tuple[int, str]] = [
        (
            each.instant_ns,
            f"shard {each.shard} on {each.node} {each.how}",
        )
        for each in context.restarts
    ]
    around += [(each.instant_ns, f"clock of {each.node}: {each.what}") for each in context.clock_changes]
    around += [(each.instant_ns, event_words(each)) for each in (*context.moves, *context.closings)]
    if around:
        yield ""
        yield "Around it:"
        for instant, words in sorted(around):
            yield f"  {rfc3339(instant)}  {words}"
    if context.frames:
        accepted, written = context.readers()
        yield ""
        yield f"Readers accept {accepted} of the {written} messages that it is about."


def evidence_lines(place: Evidence, tree: Tree) -> Iterator[str]:
    """Yield one piece of evidence in words: its place, then what its bytes say."""
    yield f"{printable(place.path)}, offset {place.offset}, {place.length} bytes:"
    data = tree.read_range(place.path, place.offset, min(place.length or PIECE_BYTES_MAX, SEAL_FILE_BYTES_MAX))
    if data is None:
        yield "  is not there, or is a directory"
        return
    piece = piece_at(data, 0)
    if isinstance(piece, str):
        yield f"  {len(data)} bytes; there is no whole record of ours: {piece}"
        return
    try:
        for line in _piece(piece, data[piece.offset : piece.end], place.path):
            yield f"  {printable(line)}"
    except Damaged as problem:
        yield f"  {printable(problem.message)}"


def _piece(piece: Piece, data: bytes, path: str) -> Iterator[str]:
    match piece.kind:
        case Kind.FRAME:
            yield from _frame(piece, path)
        case Kind.LEDGER:
            block = open_block(piece, path)
            yield from _head(block.batch_head(path))
            for entry in list(block.decoded(path))[:_LISTED_MAX]:
                yield from _entry(entry)
        case Kind.LOCK:
            lock, stamped = open_lock(data, path)
            yield f"lock file of {lock.bag}, closed by {lock.closer} at {_time(stamped.time)}"
            yield f"judged by trust record {lock.trust_number} and policy {lock.policy_number}"
            for each in lock.entries[:_LISTED_MAX]:
                yield f"lists {each.name}, {each.size} bytes, SHA-256 {each.digest.hex()}"
        case Kind.SEAL:
            seal, stamped = open_seal(data, path)
            yield f"seal of {seal.rack}, by {seal.sealer} at {_time(stamped.time)}, with {len(seal.entries)} bags"
        case Kind.BIRTH:
            stamped = open_stamped(Kind.BIRTH, data, path)
            birth = decode(LogBirth, stamped.body, path)
            yield f"birth of log {birth.log} ({birth.kind}) by {birth.created_by} at {_time(stamped.time)}"
        case Kind.CEILING:
            record, _ = open_ceiling(data, path)
            yield f"ceiling record {record.number} ({record.kind}) of {record.node}, run {record.incarnation.hex()}"
            yield f"ceiling {rfc3339(record.ceiling_ns)}, floor {bound_text(record.floor_ns)}, at {_time(record.time)}"
        case Kind.POLICY | Kind.TRUST | Kind.MAP:
            signed = open_signed(piece.kind, data, path)
            yield f"{piece.kind.name.lower()} record, signed by key {signed.key_id.hex()}"
        case Kind.PACK:
            yield "a pack"


def _frame(piece: Piece, path: str) -> Iterator[str]:
    frame = open_frame(piece, path)
    head = frame.head
    yield f"frame {head.sequence} of {head.writer} ({head.incarnation.hex()}) in log {head.log}"
    yield f"signed at {_time(head.time)}"
    first, last = int(frame.timestamps[0]), int(frame.timestamps[-1])
    yield f"{len(frame.timestamps)} messages, {rfc3339(first)} to {rfc3339(last)}"
    for raw in head.witnesses:
        try:
            signed = decode(SignedWitness, raw, "a witness")
            yield from _entry(signed.statement())
            yield from _head(signed.batch_head())
        except Damaged as problem:
            yield f"what should be a witness is none: {problem.message}"


def _head(head: BatchHead) -> Iterator[str]:
    yield (
        f"batch {head.sequence} of shard {head.shard} (map {head.map_number}) on {head.node}, run "
        f"{head.incarnation.hex()}, {head.half} by map {head.going_by}, under ceiling record {head.ceiling_number} "
        f"until {rfc3339(head.ceiling_ns)}, signed at {_time(head.time)}"
    )


def _entry(entry: Entry) -> Iterator[str]:
    match entry:
        case Witness():
            yield (
                f"{entry.kind} of lease {entry.correlation_id.hex()} on {entry.domain!r}: {entry.mode}, {entry.phase}, "
                f"fence {entry.fence}, for {entry.holder.node} (process {entry.holder.process})"
            )
            yield (
                f"    floor {bound_text(entry.floor_ns)}, settle_to {bound_text(entry.settle_to_ns)}, "
                f"expiry {rfc3339(entry.expiry_ns)}"
            )
            if entry.last_ended is not None:
                yield f"    before it ended {_ending(entry.last_ended)}"
        case Ended():
            yield f"the end of {_ending(entry.ending)} on {entry.domain!r}; floor {bound_text(entry.floor_ns)} since"
        case Revoked():
            yield (
                f"{entry.by.node} (process {entry.by.process}) revoked lease {entry.correlation_id.hex()} on "
                f"{entry.domain!r}: {entry.by.purpose!r}"
            )
        case SessionWitness():
            yield (
                f"{entry.kind} of session lease {entry.session_id.hex()} for {entry.holder.node} "
                f"(process {entry.holder.process}), expiry {rfc3339(entry.expiry_ns)}"
            )
            if entry.ended:
                yield f"    not for the leases {', '.join(name.hex() for name in entry.ended)}"
        case SessionEnded():
            yield (
                f"the end of session lease {entry.session_id.hex()} ({entry.outcome} at {rfc3339(entry.ended_ns)}) "
                f"with {entry.leases} leases, {entry.messages} messages; expiry {rfc3339(entry.expiry_ns)}"
            )
        case CeilingCopy():
            yield "a copy of a ceiling record"
        case Resumed():
            yield f"the run goes on after a restart: it had signed nothing since {rfc3339(entry.since_ns)}"
        case Stopped():
            yield f"the run stopped orderly with floor {bound_text(entry.floor_ns)}"


def _ending(ending: Ending) -> str:
    text = f"lease {ending.correlation_id.hex()} ({ending.outcome} at {rfc3339(ending.ended_ns)}"
    if ending.watermark_ns is not None:
        text += f", watermark {bound_text(ending.watermark_ns)}, {ending.messages} messages"
    return text + ")"


def _time(raw: bytes) -> str:
    token = SignedTime.decode(raw)
    return f"{rfc3339(token.midpoint_ns)} ± {span_text(token.radius_ns)}"
