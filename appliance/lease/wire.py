"""The wire format between holders and a shard: requests, replies, frames (docs/protocol/lease.md).

A call is one frame with a list of requests of one shard; its answer is one frame with as many replies, in the same
order. A frame is a u32 length (big-endian) and that many bytes of msgpack. Every record is an array that begins with
its tag. A request that changes something carries an id: the same id has the same answer.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from timeagent.canonical import U64, Bytes8, Bytes16, Bytes32, Record, Token, array_head
from timeagent.console import bound_fields, instant_fields
from timeagent.errors import BadRequest, Damaged

from ..formats.hints import Hints
from ..formats.lease import Domain, Ending, Holder, LeaseOutcome, Mode, Phase
from ..formats.witness import Half, Revoked


class BeginSession(Record, frozen=True, tag="begin-session"):
    """Get a session lease: leases that name it in their acquire are kept by its renewals."""

    request_id: Bytes16
    map_number: U64
    """The map that the asker goes by: so it is in all requests that grant or keep something."""
    holder: Holder
    term_ns: U64
    expiry_ns_max: U64


class RenewSession(Record, frozen=True, tag="renew-session"):
    """Move the expiry of a session lease, and so that of every lease under it."""

    request_id: Bytes16
    map_number: U64
    session_id: Bytes16
    term_ns: U64
    expiry_ns_max: U64


class DropSession(Record, frozen=True, tag="drop-session"):
    """Give a session lease back with every lease under it: they were over for the holder before this was sent.

    The holder's word is about all of them together. Only when every attempt under any of them has a known outcome.
    """

    request_id: Bytes16
    session_id: Bytes16
    watermark_ns: U64 | None = None
    """The highest timestamp written under any of them; None where nothing was written."""
    watermark_time: Token | None = None
    messages: U64 = 0
    chain_head: Bytes32 | None = None


class SessionGranted(Record, frozen=True, tag="session-granted"):
    """A session lease is granted or renewed, with its proof."""

    request_id: Bytes16
    signed: bytes
    """An encoded SignedWitness."""
    leases: U64
    """How many leases are out under it, as the shard counts: where the holder knows of fewer, an answer was lost."""
    revoked: tuple[Revoked, ...] = ()
    """Unsigned: of the leases that the witness names as ended, who revoked them and why, where the shard remembers."""


PROTOCOL_VERSION: Final = 1
REQUEST_FRAME_BYTES_MAX: Final = 1024 * 1024
REPLY_FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
REQUESTS_MAX: Final = 1024
"""How many requests one call may hold."""
PAGE_LEASES_MAX: Final = 256
LISTS_MAX: Final = 16
"""How many requests of one call may be answered by a list (Inspect, Attend): a call's answers go into one frame."""

NO_REQUEST: Final = bytes(16)
"""The request id in an answer to a request that has none."""

_LENGTH: Final = struct.Struct(">I")
LENGTH_BYTES: Final = _LENGTH.size


class Age(Record, frozen=True, order=True):
    """Which of two sets of leases was asked for first: a total order that survives retries."""

    first_try_ns: U64
    request_id: Bytes16
    """The id of the first try's request."""


class Hello(Record, frozen=True, tag="hello"):
    """Say who asks; ask who is there, and whether we speak the same version.

    Hello, Welcome and Refused stay as they are in every version, so that another version can be refused in words.
    """

    version: U64
    cluster_id: Bytes16
    node: str = ""
    """The node that asks. Over TCP it must be the one whose key the connection shows."""
    shard: U64 | None = None
    """The shard that is meant; None: whichever is at this socket. Over TCP one must be named."""


class Above(Record, frozen=True):
    """What the half of a lease from the shard that leaves says: the one that comes gives no less of any."""

    fence: U64
    floor_ns: U64
    settle_to_ns: U64


class Acquire(Record, frozen=True, tag="acquire"):
    """Take one domain. May be asked again with the same id as long as it is denied: it keeps its place in the queue."""

    request_id: Bytes16
    map_number: U64
    domain: Domain
    mode: Mode
    phase: Phase
    holder: Holder
    age: Age
    term_ns: U64
    """At most this long from the grant; the shard may grant less."""
    expiry_ns_max: U64
    """Never longer than until then, however late the request arrives."""
    wait_ns: U64 = 0
    """Hold the answer back for so long, unless the domain can be had before."""
    keep_ns: U64 = 0
    """Keep the place in the queue for so long after a denial, for the same request to be asked again."""
    hints_wanted: bool = False
    """Say with the grant where messages of the domain are: in modes S, SIX and X."""
    session_id: Bytes16 | None = None
    """The session lease of this holder under which it is to be taken: then that one's expiry is the lease's."""
    above: Above | None = None
    """Asked of a shard that comes; others take no notice."""


class Upgrade(Record, frozen=True, tag="upgrade"):
    """Make a tentative lease held, or a held one stronger. Floor and settle_to are stated anew."""

    request_id: Bytes16
    map_number: U64
    domain: Domain
    correlation_id: Bytes16
    term_ns: U64
    expiry_ns_max: U64
    mode: Mode | None = None
    """A mode that includes the lease's own; None: the same. Waits only where nobody else does."""
    wait_ns: U64 = 0
    keep_ns: U64 = 0
    hints_wanted: bool = False
    above: Above | None = None


class Renew(Record, frozen=True, tag="renew"):
    """Move a lease's expiry."""

    request_id: Bytes16
    map_number: U64
    domain: Domain
    correlation_id: Bytes16
    term_ns: U64
    expiry_ns_max: U64
    hints: Hints | None = None
    """About all that was written under the lease so far; None: what was said before, nothing new."""


class Relinquish(Record, frozen=True, tag="relinquish"):
    """Give a lease back: it was over for the holder before this was sent."""

    request_id: Bytes16
    domain: Domain
    correlation_id: Bytes16
    watermark_ns: U64 | None = None
    """The highest timestamp written under the lease; None, or the floor that was given, where nothing was written."""
    watermark_time: Token | None = None
    """The signed time of the message that set the watermark."""
    messages: U64 = 0
    """How many messages are known Committed."""
    chain_head: Bytes32 | None = None
    """The digest of the last frame under the lease."""
    hints: Hints | None = None
    """With what renewals said, about all that was written under the lease; None: nothing can be said about it."""
    abandoned: bool = False
    """The holder cannot say what it wrote: the lease ends as if it were broken now, and nothing else here counts."""


class Revoke(Record, frozen=True, tag="revoke"):
    """End somebody else's lease, by an operator's word. It names the grant that the operator saw, and says why."""

    request_id: Bytes16
    domain: Domain
    correlation_id: Bytes16
    by: Holder
    """Who says so; the purpose is the reason."""


class Attend(Record, frozen=True, tag="attend"):
    """Hold the answer back until somebody asks for a lease of this holder. One call of a holder is held back at a time.

    ``run`` and ``heard`` are those of the last answer: what was told before is not told again, what was lost is.
    """

    request_id: Bytes16
    holder: Holder
    run: Bytes8
    """The shard's incarnation that ``heard`` counts in; zeros at first."""
    heard: U64
    wait_ns: U64 = 0


class Inspect(Record, frozen=True, tag="inspect"):
    """Show leases, in the order of their domains, from behind one domain ("" for the first page)."""

    after_domain: str
    leases_max: U64
    domain: Domain | None = None
    session_id: Bytes16 | None = None
    """Only those under this session lease."""


class AskClock(Record, frozen=True, tag="ask-clock"):
    """Say what time it is there: for people who compare the clocks of nodes.

    A record of its own, and always alone in its call: a shard of a release that does not know it refuses that call in
    words, and goes on to answer all others as ever.
    """


_LISTS: Final = frozenset({Inspect, Attend})

type Request = (
    Acquire
    | Upgrade
    | Renew
    | Relinquish
    | BeginSession
    | RenewSession
    | DropSession
    | Revoke
    | Attend
    | Inspect
    | AskClock
    | Hello
)


class Withdraw(Record, frozen=True):
    """End what a holder has tentatively: it has died. Said by a server to its shard, and by nobody over the wire."""

    holder: Holder
    domains: tuple[Domain, ...]
    request_id: Bytes16 = bytes(16)


type Task = Request | Withdraw
"""What a shard does in a turn."""


class Reason(StrEnum):
    """Why a lease is denied: another has the domain."""

    HELD = "held"
    TENTATIVE = "tentative"
    """A tentative lease of an older request: a younger one does not break it."""
    QUEUED = "queued"
    """Others came before. The holder named is the first of them."""


class Welcome(Record, frozen=True, tag="welcome"):
    """The answer to Hello."""

    version: U64
    node: str
    map_number: U64
    shard: U64
    incarnation: Bytes8


class Granted(Record, frozen=True, tag="granted"):
    """A grant, an upgrade or a renewal, with its proof."""

    request_id: Bytes16
    signed: bytes
    """An encoded SignedWitness."""
    hints: Hints | None = None
    """Unsigned: where the messages are that others wrote about the domain before, where that was asked for."""


class Denied(Record, frozen=True, tag="denied"):
    """Another has it: who, since when, until when. Of several leases in the way, the one that will be for longest.

    ``earliest_ns``: when it can be granted at the earliest, unless it is given back before.
    """

    request_id: Bytes16
    domain: Domain
    reason: Reason
    holder: Holder
    since_ns: U64
    until_ns: U64
    earliest_ns: U64
    place: U64 = 0
    """The place in the queue: 1 is next. Whoever does not wait is told which one it would be."""
    recalled_ns: U64 = 0
    """When that holder was first told that its lease is asked for; 0: it does not listen."""


class Over(Record, frozen=True, tag="over"):
    """The lease has ended. ``unknown`` without an ending: the shard knows nothing of that correlation id (any more)."""

    request_id: Bytes16
    outcome: LeaseOutcome
    ending: Ending | None
    revoked: Revoked | None = None
    """Unsigned: who revoked it and why, where an operator did and the shard remembers."""


class Refused(Record, frozen=True, tag="refused"):
    """The request breaks a rule: value, rule, way out. Asking the same again is refused again."""

    request_id: Bytes16
    code: str
    message: str
    hint: str


class Unavailable(Record, frozen=True, tag="unavailable"):
    """Not now: nothing happened, asking again later may help."""

    request_id: Bytes16
    code: str
    message: str


class WantedLease(Record, frozen=True):
    """A lease that somebody asks for."""

    domain: Domain
    correlation_id: Bytes16
    mode: Mode
    """The mode that was asked for first."""
    by: Holder
    since_ns: U64
    oldest: Age | None = None
    """Of the requests of others that wait for the domain now, where the holder did not wait for this answer itself."""


class Recalled(Record, frozen=True, tag="recalled"):
    """The answer to Attend: which leases are asked for. Advice: what comes of it is the holder's policy."""

    request_id: Bytes16
    run: Bytes8
    heard: U64
    wanted: tuple[WantedLease, ...]
    stopping: bool = False
    """The shard stops in good order: it asks for all leases back."""


class LeaseView(Record, frozen=True):
    """One lease as its shard knows it, unsigned: for people."""

    domain: Domain
    mode: Mode
    phase: Phase
    holder: Holder
    correlation_id: Bytes16
    fence: U64
    granted_ns: U64
    expiry_ns: U64
    floor_ns: U64
    settle_to_ns: U64
    waiting: U64
    """How many requests wait for the domain."""
    session_id: Bytes16 | None = None
    """The session lease that it is under: then the expiry is that one's."""


class ShardNumbers(Record, frozen=True):
    """How a shard stands, unsigned: for people."""

    node: str
    map_number: U64
    """The map under which its chain began; ``shard``: its place."""
    shard: U64
    incarnation: Bytes8
    going_by: U64
    """The newest map that it goes by."""
    half: Half
    """How much of a lease it grants by that one."""
    alone_until_ns: U64
    """While it leaves: until when leases of before may be believed in alone; 0: none may."""
    floor_ns: U64
    settle_to_ns: U64
    ceiling_number: U64
    ceiling_ns: U64
    domains: U64
    """How many domains it remembers."""
    leases: U64
    """How many leases are out."""
    waiting: U64
    """How many requests wait, on all domains."""
    batches: U64
    blocks_lost: U64
    """Ledger blocks that their sink refused: gaps for the auditor."""
    since_ns: U64
    """When this incarnation began."""
    release: str
    """What the node runs: nodes of one cluster should run the same."""
    sessions: U64 = 0
    """How many session leases are out."""


class LeasePage(Record, frozen=True, tag="page"):
    """The answer to Inspect. ``more``: ask again from behind the last domain."""

    numbers: ShardNumbers
    leases: tuple[LeaseView, ...]
    more: bool
    after_domain: str = ""
    """From behind which domain the next page begins."""


class ClockTold(Record, frozen=True, tag="clock"):
    """The answer to AskClock: the node's interval of now, unsigned, at an instant between question and answer.

    Without a bound neither end is told, and ``problem`` says why.
    """

    node: str
    earliest_ns: U64 | None = None
    latest_ns: U64 | None = None
    problem: str = ""
    token: Token | None = None
    """The node's current signed time: how its clock stands, and in which clock epoch. None: it signs nothing now."""


type Reply = (
    Granted | SessionGranted | Denied | Over | Recalled | Refused | Unavailable | Welcome | LeasePage | ClockTold
)

type Encoded = bytes
"""A reply as it stands in the frame of an answer."""

NEWER_MAP: Final = "newer-map"
"""Of Unavailable: the asker goes by a map that has been overtaken: it looks for the newest one, and asks again."""

MAP_NOT_YET: Final = "map-not-yet"
"""Likewise: the asker goes by a map that the shard does not go by yet: it asks again."""

_encoder: Final = msgspec.msgpack.Encoder()
_requests: Final = msgspec.msgpack.Decoder(list[Request])
_reply: Final = msgspec.msgpack.Decoder(Reply)
_replies: Final = msgspec.msgpack.Decoder(list[Reply])


def encode_call(requests: list[Request]) -> bytes:
    """Return the frame of a call. Raises BadRequest above its limits."""
    body = _encoder.encode(requests)
    if len(requests) > REQUESTS_MAX or len(body) > REQUEST_FRAME_BYTES_MAX:
        raise BadRequest(
            "call-too-large",
            f"{len(requests)} requests of {len(body)} bytes exceed {REQUESTS_MAX} requests or "
            f"{REQUEST_FRAME_BYTES_MAX} bytes",
            hint="ask in several calls",
        )
    return _LENGTH.pack(len(body)) + body


def encode_answer(replies: Sequence[Reply | Encoded]) -> bytes:
    """Return the frame of an answer; where it were too long, that of a refusal: what was asked for is done."""
    parts = [each if type(each) is bytes else _encoder.encode(each) for each in replies]
    head = array_head(len(parts))
    size = len(head) + sum(map(len, parts))
    if size > REPLY_FRAME_BYTES_MAX:
        why = f"an answer of {size} bytes exceeds the limit of {REPLY_FRAME_BYTES_MAX}"
        return refusal("answer-too-large", why, "ask in several calls")
    return b"".join((_LENGTH.pack(size), head, *parts))


def decode_reply(data: Encoded) -> Reply:
    """Read a reply that this shard has encoded."""
    reply: Reply = _reply.decode(data)
    return reply


def decode_call(body: bytes | bytearray) -> list[Request]:
    """Read a call's bytes. Raises Damaged."""
    try:
        requests: list[Request] = _requests.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Damaged("call-damaged", f"a call is no list of requests: {problem}") from None
    if len(requests) > REQUESTS_MAX:
        raise Damaged("call-damaged", f"a call holds {len(requests)} requests, more than {REQUESTS_MAX}")
    if len(requests) > LISTS_MAX and (lists := sum(type(each) in _LISTS for each in requests)) > LISTS_MAX:
        raise Damaged("call-damaged", f"a call asks for {lists} lists, more than {LISTS_MAX}")
    return requests


def decode_answer(body: bytes | memoryview, requests: int) -> list[Reply]:
    """Read an answer's bytes: one reply for each request. Raises Damaged."""
    try:
        replies: list[Reply] = _replies.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise Damaged("answer-damaged", f"an answer is no list of replies: {problem}") from None
    if len(replies) != requests:
        raise Damaged("answer-damaged", f"{len(replies)} replies to {requests} requests")
    return replies


def body_length(head: bytes | bytearray | memoryview, limit: int, offset: int = 0) -> int:
    """Return how many bytes follow a frame's first four. Raises Damaged above the limit."""
    (length,) = _LENGTH.unpack_from(head, offset)
    if length > limit:
        raise Damaged("frame-too-large", f"a frame of {length} bytes exceeds the limit of {limit}")
    return int(length)


def refusal(code: str, message: str, hint: str = "") -> bytes:
    """Return the answer that ends a connection: one Refused, about no request."""
    return encode_answer([Refused(request_id=NO_REQUEST, code=code, message=message, hint=hint)])


def foreign(hello: Hello, cluster_id: bytes, here: str) -> Refused | None:
    """Refuse, in words, a Hello of another version or to another cluster than ``here``."""
    if hello.version != PROTOCOL_VERSION:
        why = f"{here} speaks version {PROTOCOL_VERSION}; version {hello.version} was offered"
        return Refused(request_id=NO_REQUEST, code="protocol-version", message=why, hint="use the same release")
    if hello.cluster_id != cluster_id:
        why = f"{here} is of cluster {cluster_id.hex()}, not of {hello.cluster_id.hex()}"
        return Refused(request_id=NO_REQUEST, code="other-cluster", message=why, hint="check the root")
    return None


def lease_fields(view: LeaseView) -> dict[str, Any]:
    """Return a lease as JSON shows it."""
    return {
        "domain": view.domain,
        "mode": view.mode,
        "phase": view.phase,
        "node": view.holder.node,
        "process": view.holder.process,
        "purpose": view.holder.purpose,
        "correlation_id": view.correlation_id.hex(),
        "fence": str(view.fence),  # above 2^53: many readers of JSON would round a number
        **instant_fields("granted", view.granted_ns),
        **instant_fields("expiry", view.expiry_ns),
        **bound_fields("floor", view.floor_ns),
        **bound_fields("settle_to", view.settle_to_ns),
        "waiting": view.waiting,
        "session_id": None if view.session_id is None else view.session_id.hex(),
    }


def shard_fields(numbers: ShardNumbers) -> dict[str, Any]:
    """Return how a shard stands as JSON shows it."""
    return {
        "node": numbers.node,
        "release": numbers.release,
        "incarnation": numbers.incarnation.hex(),
        "going_by": numbers.going_by,
        "half": numbers.half,
        **bound_fields("alone_until", numbers.alone_until_ns),
        **instant_fields("since", numbers.since_ns),
        "leases": numbers.leases,
        "domains": numbers.domains,
        "sessions": numbers.sessions,
        "ceiling_number": numbers.ceiling_number,
        **instant_fields("ceiling", numbers.ceiling_ns),
        **bound_fields("floor", numbers.floor_ns),
        **bound_fields("settle_to", numbers.settle_to_ns),
        "batches": numbers.batches,
        "ledger_blocks_lost": numbers.blocks_lost,
    }
