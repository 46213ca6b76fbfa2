"""Events, states and findings as bytes in a database, and back. What is decoded was written by others: it is checked.

msgpack by the types of events.py and state.py. Names of files that are no UTF-8 are kept as they are shown.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from auditor.finding import Evidence, Finding, NamedInterval, Severity, Verdict
from timeagent.console import printable

from .events import KINDS, RANKS, FrameWritten
from .state import BagState, ClockState, DomainState, LogState, SessionState, ShardState

if TYPE_CHECKING:
    from auditor.chains import ShardName
    from timeagent.units import Instant

    from .events import Event

_encoder: Final = msgspec.msgpack.Encoder()
_events: Final = tuple(msgspec.msgpack.Decoder(kind) for kind in KINDS)


def event_bytes(event: Event) -> bytes:
    """Return an event as it is kept."""
    try:
        return _encoder.encode(event)
    except UnicodeEncodeError:
        return _encoder.encode(_shown(event))


def event_of(rank: int, data: bytes) -> Event:
    """Return an event. Raises msgspec.DecodeError for what is none, IndexError for a rank that no kind has."""
    return cast("Event", _events[rank].decode(data))


def rank_of(event: Event) -> int:
    """Return the number of an event's kind: its rank within one instant."""
    return RANKS[type(event)]


def _shown(event: Event) -> Event:
    where = Evidence(printable(event.where.path), event.where.offset, event.where.length)
    if isinstance(event, FrameWritten):
        return msgspec.structs.replace(event, where=where, file=printable(event.file))
    return msgspec.structs.replace(event, where=where)


class Coding[K, V]:
    """How one kind of a state's values is kept: its keys, in their order, and its values."""

    def __init__(self, kind: int, value: type[V]) -> None:
        """Name a kind by a number."""
        self.kind = kind
        self._values = msgspec.msgpack.Decoder(value)

    def key(self, name: K) -> bytes:
        """Return a key as bytes that sort as keys do."""
        raise NotImplementedError

    def name(self, key: bytes) -> K:
        """Return the key."""
        raise NotImplementedError

    def encode(self, value: V) -> bytes:
        """Return a value as bytes."""
        return _encoder.encode(value)

    def decode(self, data: bytes) -> V:
        """Return the value. Raises msgspec.DecodeError."""
        return self._values.decode(data)


class _Named[V](Coding[str, V]):
    def key(self, name: str) -> bytes:
        return name.encode()

    def name(self, key: bytes) -> str:
        return key.decode()


class _Identified[V](Coding[bytes, V]):
    def key(self, name: bytes) -> bytes:
        return name

    def name(self, key: bytes) -> bytes:
        return key


class _Shards(Coding["ShardName", ShardState]):
    def key(self, name: ShardName) -> bytes:
        return name[0].to_bytes(8) + name[1].to_bytes(8)

    def name(self, key: bytes) -> ShardName:
        return int.from_bytes(key[:8]), int.from_bytes(key[8:])


class _Bags(Coding[tuple[str, "Instant"], BagState]):
    def key(self, name: tuple[str, Instant]) -> bytes:
        return log_prefix(name[0]) + name[1].to_bytes(8)

    def name(self, key: bytes) -> tuple[str, Instant]:
        return key[:-9].decode(), int.from_bytes(key[-8:])


def log_prefix(log: str) -> bytes:
    """Return what the keys of a log's bags begin with."""
    return log.encode() + b"\0"


DOMAINS: Final = _Named(0, DomainState)
SESSIONS: Final = _Identified(1, SessionState)
SHARDS: Final = _Shards(2, ShardState)
LOGS: Final = _Named(3, LogState)
BAGS: Final = _Bags(4, BagState)
CLOCKS: Final = _Named(5, ClockState)


def finding_bytes(finding: Finding) -> bytes:
    """Return a finding as JSON: what it names may be no UTF-8, and its id is a digest of just that."""
    fields = {
        "code": finding.code,
        "verdict": finding.verdict.value,
        "severity": finding.severity.value,
        "title": finding.title,
        "subject": finding.subject,
        "explanation": finding.explanation,
        "evidence": [[each.path, each.offset, each.length] for each in finding.evidence],
        "times": [astuple(each) for each in finding.times],
        "clocks": finding.clocks,
    }
    return json.dumps(fields, ensure_ascii=True).encode("ascii")


def finding_of(data: bytes) -> Finding:
    """Return the finding. Raises ValueError, KeyError or TypeError for what is none."""
    fields: dict[str, Any] = json.loads(data)
    return Finding(
        fields["code"],
        Verdict(fields["verdict"]),
        Severity(fields["severity"]),
        fields["title"],
        fields["subject"],
        fields["explanation"],
        tuple(Evidence(*each) for each in fields["evidence"]),
        tuple(NamedInterval(*each) for each in fields["times"]),
        tuple(fields["clocks"]),
    )
