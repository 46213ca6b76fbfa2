"""The fast path of a turn, for plain requests: ``decisions.decide`` and the encoders without the values in between.

A plain request takes a domain that is free, or gives a plain lease back (``domain.ExclusiveLease``), and says nothing
else; it may ask for hints. What is not plain, and all that is to be denied or refused, is left to the others of the
turn, in its place among them. Replies, entries, states and numbers are those that ``decide`` would have made:
tests/property/test_lease_plain.py holds the two against each other, and tests/faults/test_plain_mutants.py breaks each
condition below.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

import msgspec

from timeagent import core
from timeagent.canonical import array_head, bytes_head

from ..formats.lease import Holder, LeaseOutcome, Mode, Phase
from ..formats.witness import WITNESS_HEAD, Batch, Entry
from .domain import DomainDefaults, ExclusiveLease, Free, FreedDomain, Kept, Memory, defaults_of, past_of
from .recall import Recalls, Waiter
from .store import LeaseStore
from .turn import Draft, Later, PlainLater, Turn
from .whole_shard import Eviction, GoingBy
from .wire import Acquire, DropSession, Encoded, Relinquish, Reply, Task

type Other = Callable[[Task, Waiter | None], Draft | None]
"""Answers what is not plain."""

type Drafts = list[Draft | PlainLater | Encoded | None]
"""What is to be said in answer to each request of a turn; None: it is held back."""

_encode: Final = msgspec.msgpack.Encoder().encode
_ID: Final = b"\xc4\x10"
_INT: Final = b"\xcf"
_NIL: Final = b"\xc0"
_INTS_MIN: Final = 2**32
"""From here on an integer is encoded in nine bytes, as all instants of this century are."""
_INTS_MAX: Final = 2**63 - 1

_GRANT: Final = array_head(17) + _encode("witness") + _encode("grant")
_MODE: Final = _encode(Mode.X) + _encode(Phase.HELD)
_END: Final = _NIL + _NIL + b"\x00" + _NIL  # watermark, its time, messages, chain head
_NOTHING_ELSE: Final = b"\x00" + _NIL  # of others that ended
_ENDED: Final = array_head(5) + _encode("ended")
_ENDING: Final = array_head(7) + _ID
_OUTCOME: Final = _encode(LeaseOutcome.RELINQUISHED)
_OVER: Final = array_head(5) + _encode("over") + _ID
_GRANTED: Final = array_head(4) + _encode("granted") + _ID


_KINDS: Final = (Acquire, Relinquish, DropSession, FreedDomain, ExclusiveLease, Mode.X, Phase.HELD)

_NO_PAST: Final = _NIL + _NIL + _NIL
"""No grant before, none that ended, and the floor is the shard's."""

_WORDS: Final = (_GRANT, _MODE, _NO_PAST, _NOTHING_ELSE, _ENDED, _ENDING, _OUTCOME, _END, _OVER, _NIL)


type _Places = tuple[
    list[Entry | bytes],
    dict[bytes, int],
    dict[str, Kept | None],
    dict[str, Kept | None],
    Mapping[Holder, bytes],
    dict[int, Waiter],
    Container[str],
    Container[bytes],
    DomainDefaults,
]
"""Entries and answers of the turn; states, and what they were before it; holders, waiters and queues; what is asked
for; and what a domain has of which nothing is known."""

type _Numbers = tuple[int, int, int, int, int, int, int, int]
"""The midpoint of now and its latest; the longest term, the highest expiry, the ceiling; above what a fence lies; the
first and the last map that a request may name."""


class FastPath:
    """Answers the plain requests of one shard's turns."""

    def __init__(
        self,
        store: LeaseStore,
        randomness: random.Random,
        holders: Mapping[Holder, bytes],
        refused_new: Callable[[Acquire], object | None],
        recalls: Recalls,
        eviction: Eviction,
        going: GoingBy,
    ) -> None:
        """Take the ports. ``holders``: those that were found good, encoded.

        ``refused_new``: why a domain that is not remembered may not be granted here; None: it may.
        """
        self._store = store
        self._randomness = randomness
        self._holders = holders
        self._refused_new = refused_new
        self._recalls = recalls
        self._eviction = eviction
        self._going = going
        self._unknown = defaults_of(eviction.memory())

    def answered(
        self,
        turn: Turn,
        requests: Sequence[Task],
        other: Other,
        *,
        waiters: Mapping[int, Waiter],
        queues: Container[str] | None,
    ) -> Drafts:
        """Answer all requests; relinquishing goes first.

        ``queues``: domains for which somebody waits, as they are when they are looked at; None: nothing is plain.
        """
        bounds, store = turn.bounds, self._store
        if self._unknown.memory is not (memory := self._eviction.memory()):
            self._unknown = defaults_of(memory)
        now, ceiling = bounds.now.midpoint, bounds.ceiling_ns
        asked, plain = self._recalls.asked, queues is not None and now >= _INTS_MIN and ceiling <= _INTS_MAX
        entries, answers, states, changed = turn.entries, turn.answers, store.states, store.changed
        waits, waited_for, unknown = dict(waiters), () if queues is None else queues, self._unknown
        places = (entries, answers, states, changed, self._holders, waits, waited_for, asked, unknown)
        highest, fence_min = min(ceiling, bounds.signed_ns_max), max(bounds.shard_floor_ns, now)
        maps = self._going.since, self._going.number
        numbers = (now, bounds.now.latest, bounds.term_ns_max, highest, ceiling, fence_min, *maps)
        if plain and core.native is not None:
            over, chance = self._recalls.ended, self._randomness.randbytes
            ports = (other, self._refused_new, _past, _hints, chance, self._count, over)
            return core.native.answered(_KINDS, _WORDS, ports, places, numbers, requests)
        steps = {Relinquish: self._take_back, Acquire: self._grant} if plain else {}
        drafts: Drafts = [None] * len(requests)
        for goes_first in (True, False):
            for position, request in enumerate(requests):
                kind = type(request)
                if (kind is Relinquish or kind is DropSession) is goes_first:
                    step: Any = steps.get(kind)
                    draft = None if step is None else step(request, places, numbers)
                    drafts[position] = other(request, waits.get(position)) if draft is None else draft
        return drafts

    def _count(self, leases: int, domains: int) -> None:
        """Count what the core has granted and taken back."""
        self._store.leases += leases
        self._store.domains += domains

    def _take_back(self, request: Relinquish, places: _Places, numbers: _Numbers) -> bytes | None:
        """Take a plain lease back; None: it is not plain, and nothing was done."""
        entries, _, states, changed, _, _, _, recalled, _ = places
        domain, name, ended_ns = request.domain, request.correlation_id, numbers[0]
        had = states[domain]
        if (
            type(had) is not ExclusiveLease
            or had.correlation_id != name
            or request.watermark_time is not None
            or request.watermark_ns not in (None, had.defaults.memory.floor_ns)
            or request.messages
            or request.chain_head is not None
            or request.abandoned
        ):
            return None
        ending = _ending(name, ended_ns)
        entries.append(b"".join((_ENDED, _encode(domain), ending, had.defaults.numbers)))
        changed.setdefault(domain, had)
        states[domain] = FreedDomain(had.defaults, name, ended_ns, had.request_id)
        self._store.leases -= 1
        if name in recalled:
            self._recalls.ended(name)
        return b"".join((_OVER, request.request_id, _OUTCOME, ending, _NIL))

    def _grant(self, request: Acquire, places: _Places, numbers: _Numbers) -> PlainLater | None:
        """Grant what is plain; None: it is not, and nothing was done."""
        entries, answers, states, changed, holders, _, queues, _, unknown = places
        now, latest, term_max, highest, ceiling, fence_min, since, newest = numbers
        domain = request.domain
        if (
            (who := holders.get(request.holder)) is None
            or request.mode is not Mode.X
            or request.phase is not Phase.HELD
            or request.session_id is not None
            or not since <= request.map_number <= newest
            or request.above is not None
            or domain in queues
        ):
            return None
        kept = states[domain]
        if kept is None and self._refused_new(request) is not None:
            return None
        before, defaults, fence, past = _past(kept, request, unknown)
        fence = max(fence, fence_min) + 1
        expiry = min(now + min(request.term_ns, term_max), request.expiry_ns_max, highest)
        if before is None or expiry <= latest or fence > ceiling:
            return None
        stamp = fence.to_bytes(8, "big")
        name = stamp + self._randomness.randbytes(8)
        entry = answers[name] = len(entries)
        until = expiry.to_bytes(8, "big")
        about = (_GRANT, _encode(domain), _MODE, who, _ID, name, _INT, stamp, _INT, until, defaults.numbers, _NIL)
        entries.append(b"".join((*about, past, _NOTHING_ELSE)))
        lease = ExclusiveLease(defaults, before, request.holder, name, now, expiry, request.age, request.request_id)
        changed.setdefault(domain, kept)
        states[domain] = lease
        self._store.leases += 1
        self._store.domains += kept is None
        return request.request_id, entry, _hints(defaults) if request.hints_wanted else _NIL


def _ending(name: bytes, ended_ns: int) -> bytes:
    """Encode the end of a plain lease."""
    return b"".join((_ENDING, name, _OUTCOME, _INT, ended_ns.to_bytes(8, "big"), _END))


def _past(
    kept: Kept | None, request: Acquire, unknown: DomainDefaults
) -> tuple[FreedDomain | Memory | None, DomainDefaults, int, bytes]:
    """Return what a free domain is left with, its defaults and fence, and what a witness says of the grant before.

    None where it is not free, was not left plainly, or this request has had it.
    """
    if kept is None:
        return unknown.memory, unknown, 0, _NO_PAST
    if type(kept) is FreedDomain and kept.request_id != request.request_id:
        name = kept.correlation_id
        past = b"".join((_ID, name, _ending(name, kept.ended_ns), kept.defaults.setter))
        return kept, kept.defaults, int.from_bytes(name[:8], "big"), past
    if type(kept) is not Free or kept.memory.before_last or kept.memory.ended_request == request.request_id:
        return None, unknown, 0, b""
    memory, said = kept.memory, past_of(kept.memory)
    past = _encode(memory.previous_id) + _encode(said.last_ended) + _encode(said.floor_set_by)
    return memory, defaults_of(memory), memory.fence, past


def _hints(defaults: DomainDefaults) -> bytes:
    return _encode(defaults.memory.hints)


def replies(drafts: Drafts, batch: Batch | None) -> Sequence[Reply | Encoded | None]:
    """Return the replies of drafts, now that the turn is signed. ``batch``: None where nobody gets a witness."""
    witness = None if batch is None else batch.encoded_witnesses()

    def finish(draft: Draft) -> Reply:
        if not isinstance(draft, Later):
            return draft
        assert witness is not None, "a turn without entries has no witness"
        return msgspec.structs.replace(draft.reply, signed=witness(draft.entry))

    if core.native is not None and batch is not None:
        return core.native.replies(drafts, _GRANTED, WITNESS_HEAD, batch.entries, batch.levels, batch.rest, finish)
    found: list[Reply | Encoded | None] = []
    for draft in drafts:
        if type(draft) is tuple:
            request_id, entry, hints = draft
            assert witness is not None, "a turn without entries has no witness"
            signed = witness(entry)
            found.append(b"".join((_GRANTED, request_id, bytes_head(len(signed)), signed, hints)))
        elif draft is None or isinstance(draft, bytes):
            found.append(draft)
        else:
            found.append(finish(draft))  # type: ignore[arg-type]  # tuples were seen above
    return found
