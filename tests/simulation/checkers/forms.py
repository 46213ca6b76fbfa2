"""The records of docs/protocol/formats.md, each as the list of its fields; written from that page alone.

Nothing of the code that is judged is imported: a decoder and an encoder that are wrong in the same way agree with each
other, and not with this. ``read`` refuses what that page refuses: wrong types, lengths and words, and any encoding
but the one.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

type Field = Callable[[object], object]

U63_MAX: Final = 2**63 - 1
encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class Broken(Exception):
    """Bytes that are not what they should be."""


def need(so: bool, what: str) -> None:  # noqa: FBT001 - a statement
    """Raise Broken unless it is so."""
    if not so:
        raise Broken(what)


# -- fields ------------------------------------------------------------------------------------------------------------


def u63(value: object) -> object:
    if type(value) is not int or not 0 <= value <= U63_MAX:
        raise Broken(f"{value!r} is no number")
    return value


def text(value: object) -> object:
    if type(value) is not str:
        raise Broken(f"{value!r} is no text")
    return value


def raw(value: object) -> object:
    if type(value) is not bytes:
        raise Broken(f"{value!r} is no bytes")
    return value


@cache
def exactly(count: int) -> Field:
    def checked(value: object) -> object:
        if type(value) is not bytes or len(value) != count:
            raise Broken(f"{value!r} has not {count} bytes")
        return value

    return checked


def word(*words: str) -> Field:
    known = frozenset(words)

    def checked(value: object) -> object:
        if type(value) is not str or value not in known:
            raise Broken(f"{value!r} is none of {words}")
        return value

    return checked


def maybe(field: Field) -> Field:
    return lambda value: None if value is None else field(value)


def many(field: Field) -> Field:
    def checked(value: object) -> object:
        if type(value) is not list:
            raise Broken(f"{value!r} is no array")
        return tuple([field(each) for each in value])

    return checked


def record(form: type) -> Field:
    return lambda value: _formed(form, value)


B8, B16, B32, B64, TOKEN = exactly(8), exactly(16), exactly(32), exactly(64), exactly(128)


# -- records -----------------------------------------------------------------------------------------------------------


class Form(msgspec.Struct, frozen=True, gc=False):
    """A record of that page. Only a place for its fields: how they are read is said below."""


class Stamped(Form, frozen=True):
    body: bytes
    time: bytes


class Signed(Form, frozen=True):
    body: bytes
    key_id: bytes
    signature: bytes


class Policy(Form, frozen=True):
    number: int
    cluster_id: bytes
    span_ns: int
    grace_ns: int
    rack_ns: int
    seal_delay_ns: int
    radius_ns_max: int
    assumed_radius_ns: int
    r1_tolerance_ns: int
    lease_term_max_ns: int
    renew_period_ns: int
    holder_margin_ns: int
    attempt_timeout_ns: int
    batch_ns_max: int
    ceiling_ahead_ns: int
    ceiling_period_ns: int


class KeyEntry(Form, frozen=True):
    node: str
    purpose: str
    public: bytes
    valid_from_ns: int
    valid_until_ns: int
    revoked_from_ns: int | None
    address: str | None


class TrustRecord(Form, frozen=True):
    number: int
    cluster_id: bytes
    keys: tuple[KeyEntry, ...]


class CeilingRecord(Form, frozen=True):
    cluster_id: bytes
    map_number: int
    shard: int
    number: int
    node: str
    incarnation: bytes
    kind: str
    ceiling_ns: int
    floor_ns: int
    settle_to_ns: int
    time: bytes


class LogBirth(Form, frozen=True):
    cluster_id: bytes
    log: str
    kind: str
    created_ns: int
    span_ns: int
    grace_ns: int
    rack_ns: int
    created_by: str


class PlacedBirth(LogBirth, frozen=True):
    store: str


class LockEntry(Form, frozen=True):
    name: str
    size: int
    digest: bytes


class LockFile(Form, frozen=True):
    cluster_id: bytes
    log: str
    bag: str
    closer: str
    trust_number: int
    policy_number: int
    entries: tuple[LockEntry, ...]


class SealEntry(Form, frozen=True):
    bag: str
    lock: bytes


class RackSeal(Form, frozen=True):
    cluster_id: bytes
    log: str
    rack: str
    sealer: str
    entries: tuple[SealEntry, ...]


class Attempt(Form, frozen=True):
    id: bytes
    messages: int


class CommittedFrame(Form, frozen=True):
    sequence: int
    digest: bytes


class FrameHead(Form, frozen=True):
    cluster_id: bytes
    log: str
    writer: str
    incarnation: bytes
    sequence: int
    attempts: tuple[Attempt, ...]
    committed: CommittedFrame | None
    time: bytes
    witnesses: tuple[bytes, ...]
    trust_number: int
    policy_number: int


class LedgerBlock(Form, frozen=True):
    head: bytes
    signature: bytes
    entries: tuple[bytes, ...]


class BatchHead(Form, frozen=True):
    cluster_id: bytes
    node: str
    map_number: int
    shard: int
    incarnation: bytes
    going_by: int
    half: str
    ceiling_number: int
    ceiling_ns: int
    sequence: int
    previous: bytes
    count: int
    root: bytes
    time: bytes
    key_id: bytes


class SignedWitness(Form, frozen=True):
    entry: bytes
    index: int
    path: tuple[bytes, ...]
    head: bytes
    signature: bytes


class Holder(Form, frozen=True):
    node: str
    process: int
    boot: bytes
    incarnation: bytes
    purpose: str


class Ending(Form, frozen=True):
    correlation_id: bytes
    outcome: str
    ended_ns: int
    watermark_ns: int | None
    watermark_time: bytes | None
    messages: int
    chain_head: bytes | None


class Witness(Form, frozen=True):
    kind: str
    domain: str
    mode: str
    phase: str
    holder: Holder
    correlation_id: bytes
    fence: int
    expiry_ns: int
    floor_ns: int
    settle_to_ns: int
    session_id: bytes | None
    previous_id: bytes | None
    last_ended: Ending | None
    floor_set_by: Ending | None
    others: int
    others_digest: bytes | None


class Ended(Form, frozen=True):
    domain: str
    ending: Ending
    floor_ns: int
    settle_to_ns: int


class SessionWitness(Form, frozen=True):
    kind: str
    session_id: bytes
    holder: Holder
    expiry_ns: int
    ended: tuple[bytes, ...]


class SessionEnded(Form, frozen=True):
    session_id: bytes
    outcome: str
    ended_ns: int
    expiry_ns: int
    leases: int
    watermark_ns: int | None
    watermark_time: bytes | None
    messages: int
    chain_head: bytes | None


class Revoked(Form, frozen=True):
    domain: str
    correlation_id: bytes
    by: Holder


class CeilingCopy(Form, frozen=True):
    record: bytes


class Resumed(Form, frozen=True):
    since_ns: int


class Stopped(Form, frozen=True):
    floor_ns: int
    settle_to_ns: int


class PackHead(Form, frozen=True):
    cluster_id: bytes
    log: str
    rack: str
    seal_digest: bytes


type Entry = Witness | Ended | SessionWitness | SessionEnded | Revoked | CeilingCopy | Resumed | Stopped

_OUTCOMES: Final = word("relinquished", "expired", "revoked", "withdrawn", "dropped", "abandoned", "unknown")
_FORMS: Final[dict[type, tuple[Field, ...]]] = {
    Stamped: (raw, TOKEN),
    Signed: (raw, B16, B64),
    Policy: (u63, B16, *[u63] * 14),
    KeyEntry: (text, word("time", "witness", "roughtime", "tls"), B32, u63, u63, maybe(u63), maybe(text)),
    TrustRecord: (u63, B16, many(record(KeyEntry))),
    CeilingRecord: (
        B16, u63, u63, u63, text, B8, word("running", "orderly", "terminal"), u63, u63, u63, TOKEN,
    ),
    LogBirth: (B16, text, word("maildir", "log"), u63, u63, u63, u63, text),
    PlacedBirth: (B16, text, word("maildir", "log"), u63, u63, u63, u63, text, text),
    LockEntry: (text, u63, B32),
    LockFile: (B16, text, text, text, u63, u63, many(record(LockEntry))),
    SealEntry: (text, raw),
    RackSeal: (B16, text, text, text, many(record(SealEntry))),
    Attempt: (B16, u63),
    CommittedFrame: (u63, B32),
    FrameHead: (
        B16, text, text, B8, u63, many(record(Attempt)), maybe(record(CommittedFrame)), TOKEN, many(raw), u63, u63,
    ),
    LedgerBlock: (raw, B64, many(raw)),
    BatchHead: (
        B16, text, u63, u63, B8, u63, word("whole", "leaving", "coming"), u63, u63, u63, B32, u63, B32, TOKEN, B16,
    ),
    SignedWitness: (raw, u63, many(B32), raw, B64),
    Holder: (text, u63, B16, B8, text),
    Ending: (B16, _OUTCOMES, u63, maybe(u63), maybe(TOKEN), u63, maybe(B32)),
    Witness: (
        word("grant", "renewal", "upgrade"), text, word("X", "S", "IX", "IS", "SIX"), word("tentative", "held"),
        record(Holder), B16, u63, u63, u63, u63, maybe(B16), maybe(B16), maybe(record(Ending)), maybe(record(Ending)),
        u63, maybe(B32),
    ),
    Ended: (text, record(Ending), u63, u63),
    SessionWitness: (word("grant", "renewal"), B16, record(Holder), u63, many(B16)),
    SessionEnded: (B16, word("dropped", "expired"), u63, u63, u63, maybe(u63), maybe(TOKEN), u63, maybe(B32)),
    Revoked: (text, B16, record(Holder)),
    CeilingCopy: (raw,),
    Resumed: (u63,),
    Stopped: (u63, u63),
    PackHead: (B16, text, text, B32),
}  # fmt: skip
_TAGGED: Final[dict[str, type]] = {
    "witness": Witness,
    "ended": Ended,
    "session": SessionWitness,
    "session-ended": SessionEnded,
    "revoked": Revoked,
    "ceiling": CeilingCopy,
    "resumed": Resumed,
    "stopped": Stopped,
}


def _formed(form: type, value: object) -> object:
    fields = _FORMS[form]
    if type(value) is not list or len(value) != len(fields):
        raise Broken(f"a {form.__name__} has {len(fields)} fields")
    return form(*[field(each) for field, each in zip(fields, value, strict=True)])


def _list_of(data: bytes) -> list[object]:
    try:
        value: object = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Broken(f"no msgpack: {problem}") from None
    if type(value) is not list or encode(value) != data:
        raise Broken("not the one encoding of a record")
    return value


def read[R](form: type[R], data: bytes) -> R:
    """Read a record. Raises Broken."""
    return _formed(form, _list_of(data))  # type: ignore[return-value]


def read_entry(data: bytes) -> Entry:
    """Read an entry of a batch, by its tag. Raises Broken."""
    tag, *fields = _list_of(data) or [None]
    if type(tag) is not str or tag not in _TAGGED:
        raise Broken(f"{tag!r} is no kind of entry")
    return _formed(_TAGGED[tag], fields)  # type: ignore[return-value]
