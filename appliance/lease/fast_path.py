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
from typing import Final

import msgspec

from timeagent import core
from timeagent.canonical import array_head, bytes_head

from ..formats.lease import Holder, LeaseOutcome, Mode, Phase
from ..formats.witness import WITNESS_HEAD, Batch
from .domain import DomainDefaults, ExclusiveLease, Free, FreedDomain, Kept, Memory, defaults_of, past_of
from .recall import Waiter
from .store import LeaseStore
from .turn import Draft, PlainLater, Turn, finished
from .whole_shard import GoingBy
from .wire import Acquire, DropSession, Encoded, Relinquish, Reply, Task

type Other = Callable[[Task, Waiter | None], Draft | None]
"""Answers what is not plain."""

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


class _Every:
    """All domains: while they count as waited for, nothing is plain."""

    def __contains__(self, domain: object) -> bool:
        return True


EVERY_DOMAIN: Final[Container[str]] = _Every()


type Drafts = list[Draft | PlainLater | Encoded | None]
"""What is to be said in answer to each request of a turn; None: it is held back."""


class FastPath:
    """Answers the plain requests of one shard's turns."""

    def __init__(
        self,
        store: LeaseStore,
        randomness: random.Random,
        holders: Mapping[Holder, bytes],
        refused_new: Callable[[Acquire], object | None],
        recall_over: Callable[[bytes], None],
        going: GoingBy,
    ) -> None:
        """Take the ports. ``holders``: those that were found good, encoded.

        ``refused_new``: why a domain that is not remembered may not be granted here; None: it may. ``recall_over``:
        told of a lease that was asked for, and was given back.
        """
        self._store = store
        self._randomness = randomness
        self._holders = holders
        self._refused_new = refused_new
        self._recall_over = recall_over
        self._going = going
        self._unknown: DomainDefaults | None = None

    def answered(
        self,
        turn: Turn,
        requests: Sequence[Task],
        other: Other,
        unknown: Memory,
        *,
        waiters: Mapping[int, Waiter],
        queues: Container[str],
        recalled: Container[bytes],
    ) -> Drafts:
        """Answer all requests; relinquishing goes first. ``unknown``: what a domain has that is not remembered.

        ``queues``: domains for which somebody waits, as they are when they are looked at; ``recalled``: leases that are
        asked for.
        """
        if self._unknown is None or self._unknown.memory != unknown:
            self._unknown = defaults_of(unknown)
        if core.native is not None:
            return self._answered_in_bulk(core.native, turn, requests, other, waiters, queues, recalled)
        drafts: Drafts = [None] * len(requests)
        others = [n for n, request in enumerate(requests) if type(request) is not Relinquish]
        if len(others) < len(requests) or any(type(requests[n]) is DropSession for n in others):
            others = self._take_back(turn, requests, drafts, other, waiters, recalled)
        if others:
            self._grant(turn, requests, others, drafts, other, waiters, queues)
        return drafts

    def _answered_in_bulk(
        self,
        native: core.NativeCore,
        turn: Turn,
        requests: Sequence[Task],
        other: Other,
        waiters: Mapping[int, Waiter],
        queues: Container[str],
        recalled: Container[bytes],
    ) -> Drafts:
        """Have the core do what ``_take_back`` and ``_grant`` do."""
        bounds, store, unknown = turn.bounds, self._store, self._unknown
        now, highest = bounds.now.midpoint, min(bounds.ceiling_ns, bounds.signed_ns_max)
        fence_min = max(bounds.shard_floor_ns, now)
        chance = self._randomness.randbytes
        ports = (other, self._refused_new, _past, _hints, chance, self._count, self._recall_over)
        return native.answered(
            _KINDS,
            _WORDS,
            ports,
            (
                turn.entries,
                turn.answers,
                store.states,
                store.changed,
                self._holders,
                dict(waiters),
                queues,
                recalled,
                unknown,
            ),
            (
                now,
                bounds.now.latest,
                bounds.term_ns_max,
                highest,
                bounds.ceiling_ns,
                fence_min,
                self._going.since,
                self._going.number,
            ),
            requests,
        )

    def _count(self, leases: int, domains: int) -> None:
        """Count what the core has granted and taken back."""
        self._store.leases += leases
        self._store.domains += domains

    def _take_back(
        self,
        turn: Turn,
        requests: Sequence[Task],
        drafts: Drafts,
        other: Other,
        waiters: Mapping[int, Waiter],
        recalled: Container[bytes],
    ) -> list[int]:
        """Answer those who give back; return the positions of the others."""
        rest: list[int] = []
        entries, store = turn.entries, self._store
        states, changed = store.states, store.changed
        ended_ns = turn.bounds.now.midpoint
        in_range = _INTS_MIN <= ended_ns <= _INTS_MAX
        end = _OUTCOME + _INT + ended_ns.to_bytes(8, "big") + _END
        for position, request in enumerate(requests):
            if type(request) is not Relinquish:
                if type(request) is DropSession:
                    drafts[position] = other(request, waiters.get(position))
                else:
                    rest.append(position)
                continue
            domain, name = request.domain, request.correlation_id
            had = states[domain]
            if (
                type(had) is not ExclusiveLease
                or had.correlation_id != name
                or request.watermark_time is not None
                or request.watermark_ns not in (None, had.defaults.memory.floor_ns)
                or request.messages
                or request.chain_head is not None
                or request.abandoned
                or not in_range
            ):
                drafts[position] = other(request, waiters.get(position))
                continue
            ending = _ENDING + name + end
            entries.append(b"".join((_ENDED, _encode(domain), ending, had.defaults.numbers)))
            drafts[position] = b"".join((_OVER, request.request_id, _OUTCOME, ending, _NIL))
            changed.setdefault(domain, had)
            states[domain] = FreedDomain(had.defaults, name, ended_ns, had.request_id)
            store.leases -= 1
            if name in recalled:
                self._recall_over(name)
        return rest

    def _grant(
        self,
        turn: Turn,
        requests: Sequence[Task],
        positions: Sequence[int],
        drafts: Drafts,
        other: Other,
        waiters: Mapping[int, Waiter],
        queues: Container[str],
    ) -> None:
        """Answer the requests at these positions."""
        bounds, entries, answers, store = turn.bounds, turn.entries, turn.answers, self._store
        states, changed = store.states, store.changed
        chance, holders, unknown = self._randomness.randbytes, self._holders, self._unknown
        assert unknown is not None
        now, latest, term_max = bounds.now.midpoint, bounds.now.latest, bounds.term_ns_max
        highest, ceiling = min(bounds.ceiling_ns, bounds.signed_ns_max), bounds.ceiling_ns
        fence_min = max(bounds.shard_floor_ns, now)
        in_range = now >= _INTS_MIN and ceiling <= _INTS_MAX
        since, newest = self._going.since, self._going.number
        for position in positions:
            request = requests[position]
            if (
                type(request) is not Acquire
                or (who := holders.get(request.holder)) is None
                or request.mode is not Mode.X
                or request.phase is not Phase.HELD
                or request.session_id is not None
                or not since <= request.map_number <= newest
                or request.above is not None
                or (domain := request.domain) in queues
                or not in_range
            ):
                drafts[position] = other(request, waiters.get(position))
                continue
            kept = states[domain]
            before: FreedDomain | Memory | None
            if kept is None:
                before = unknown.memory if self._refused_new(request) is None else None
                defaults, fence, past = unknown, fence_min + 1, _NO_PAST
            else:
                before, defaults, fence, past = _past(kept, request, unknown)
                fence = max(fence, fence_min) + 1
            expiry = min(now + min(request.term_ns, term_max), request.expiry_ns_max, highest)
            if before is None or expiry <= latest or fence > ceiling:
                drafts[position] = other(request, waiters.get(position))
                continue
            stamp = fence.to_bytes(8, "big")
            name = stamp + chance(8)
            hints = _encode(defaults.memory.hints) if request.hints_wanted else _NIL
            drafts[position] = (request.request_id, len(entries), hints)
            answers[name] = len(entries)
            until = expiry.to_bytes(8, "big")
            about = (_GRANT, _encode(domain), _MODE, who, _ID, name, _INT, stamp, _INT, until, defaults.numbers, _NIL)
            entries.append(b"".join((*about, past, _NOTHING_ELSE)))
            lease = ExclusiveLease(defaults, before, request.holder, name, now, expiry, request.age, request.request_id)
            changed.setdefault(domain, kept)
            states[domain] = lease
            store.leases += 1
            if kept is None:
                store.domains += 1


def _past(
    kept: Kept, request: Acquire, unknown: DomainDefaults
) -> tuple[FreedDomain | Memory | None, DomainDefaults, int, bytes]:
    """Return what a free domain is left with, its defaults and fence, and what a witness says of the grant before.

    None where it is not free, was not left plainly, or this request has had it.
    """
    if type(kept) is FreedDomain:
        if kept.request_id == request.request_id:
            return None, unknown, 0, b""
        name = kept.correlation_id
        ended = kept.ended_ns.to_bytes(8, "big")
        past = b"".join((_ID, name, _ENDING, name, _OUTCOME, _INT, ended, _END, kept.defaults.setter))
        return kept, kept.defaults, int.from_bytes(name[:8], "big"), past
    if type(kept) is not Free:
        return None, unknown, 0, b""
    memory = kept.memory
    if memory.before_last or memory.ended_request == request.request_id:
        return None, unknown, 0, b""
    said = past_of(memory)
    past = _encode(memory.previous_id) + _encode(said.last_ended) + _encode(said.floor_set_by)
    return memory, defaults_of(memory), memory.fence, past


def _hints(defaults: DomainDefaults) -> bytes:
    return _encode(defaults.memory.hints)


def no_witness(entry: int) -> bytes:
    """Stand for the witnesses of a turn without entries."""
    raise AssertionError(f"a turn without entries has no witness {entry}")


def replies(drafts: Drafts, batch: Batch | None, witness: Callable[[int], bytes]) -> Sequence[Reply | Encoded | None]:
    """Return the replies of drafts, now that the turn is signed. ``witness``: an encoded one of it, by its entry."""

    def finish(draft: Draft) -> Reply:
        return finished(draft, witness)

    if core.native is not None and batch is not None:
        return core.native.replies(drafts, _GRANTED, WITNESS_HEAD, batch.entries, batch.levels, batch.rest, finish)
    found: list[Reply | Encoded | None] = []
    for draft in drafts:
        if type(draft) is tuple:
            request_id, entry, hints = draft
            signed = witness(entry)
            found.append(b"".join((_GRANTED, request_id, bytes_head(len(signed)), signed, hints)))
        elif draft is None or isinstance(draft, bytes):
            found.append(draft)
        else:
            found.append(finish(draft))  # type: ignore[arg-type]  # tuples were seen above
    return found
