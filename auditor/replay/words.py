"""An event in words, on one line, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from timeagent.console import instant_fields, printable
from timeagent.units import rfc3339, span_text

from .events import (
    BagClosed,
    CeilingLinked,
    FrameWritten,
    LeaseEnded,
    LeaseTold,
    LogBorn,
    RackSealed,
    SessionOver,
    SessionTold,
)

if TYPE_CHECKING:
    from timeagent.units import Instant

    from .events import Event


NEEDS_TREE: Final = "needs-tree"
NAME_THE_COPY: Final = "name the copy too: --offline COPY --db FILE"
"""What helps where there is only the index of a tree, and bytes are asked for."""


def event_words(event: Event) -> str:
    """Return what happened, without when."""
    return printable(_words(event))


def event_fields(event: Event) -> dict[str, Any]:
    """Return an event as JSON shows it."""
    clock = event.clock
    return {
        **instant_fields("instant", event.instant_ns),
        "event": kind_of(event),
        "node": clock.node if clock else None,
        "radius_ns": clock.radius_ns if clock else None,
        "what": event_words(event),
        "path": printable(event.where.path),
        "offset": event.where.offset,
        "length": event.where.length,
    }


def kind_of(event: Event) -> str:
    """Return a stable word for the kind of an event."""
    match event:
        case LeaseTold():
            return event.witness.kind.value
        case LeaseEnded():
            return f"lease-{event.ending.outcome}"
        case SessionTold():
            return f"session-{event.witness.kind}"
        case SessionOver():
            return f"session-{event.ending.outcome}"
        case CeilingLinked():
            return f"ceiling-{event.record.kind}"
        case FrameWritten():
            return "frame"
        case BagClosed():
            return "bag-closed"
        case RackSealed():
            return "rack-sealed"
        case LogBorn():
            return "log-born"


def _clock(instant: Instant) -> str:
    return rfc3339(instant)[11:23] if instant else "none"


def _words(event: Event) -> str:
    match event:
        case LeaseTold():
            witness = event.witness
            return (
                f"shard {event.shard[1]} {witness.kind} of {witness.domain!r} to {witness.holder.node}:"
                f"{witness.holder.process}: {witness.mode} {witness.phase}, expiry {_clock(witness.expiry_ns)}, "
                f"floor {_clock(witness.floor_ns)}, fence {witness.fence}"
            )
        case LeaseEnded():
            ending = event.ending
            watermark = "" if ending.watermark_ns is None else f", watermark {_clock(ending.watermark_ns)}"
            return f"lease on {event.domain!r} {ending.outcome}{watermark}, {ending.messages} messages"
        case SessionTold():
            witness_of = event.witness
            return f"session {witness_of.session_id.hex()} {witness_of.kind} until {_clock(witness_of.expiry_ns)}"
        case SessionOver():
            return (
                f"session {event.ending.session_id.hex()} {event.ending.outcome}, {event.ending.leases} leases with it"
            )
        case CeilingLinked():
            record = event.record
            return (
                f"shard {record.shard} ceiling {record.number} ({record.kind}) by {record.node}, run "
                f"{record.incarnation.hex()}, until {_clock(record.ceiling_ns)}"
            )
        case FrameWritten():
            under = ", ".join(repr(name) for name, _ in event.leases) or "no lease"
            void = f"; {event.void_because}" if event.void_because else ""
            wrote = f"{event.writer} wrote frame {event.sequence} to {event.log}: {event.messages} messages"
            return f"{wrote} under {under}{void}"
        case BagClosed():
            return (
                f"{event.closer} closed bag {_clock(event.bag_ns)} of {event.log} with {event.files} files, "
                f"{event.accepted} messages accepted, {event.rejected} rejected, {event.void_files} files void"
            )
        case RackSealed():
            return f"{event.sealer} sealed rack {_clock(event.start_ns)} of {event.log} with {event.bags} bags"
        case LogBorn():
            return f"log {event.log} ({event.kind}) was made: bags of {span_text(event.span_ns)}"
