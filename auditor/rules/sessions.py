"""Rules about session leases: what each witness may say, and that all of them know which leases were ended alone."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from appliance.formats.lease import LeaseOutcome
from appliance.formats.sessionlease import SessionKind
from auditor.index import Use
from timeagent.units import rfc3339

from .cluster import ClusterFacts
from .endings import Word, check_count, check_expiry, check_reach, check_watermark, expiry_fell, not_yet, unpaired
from .finding import Evidence, Finding, NamedInterval, found
from .history import DomainHistory, Position, SessionEndFact, SessionHistory, SessionName

_ALONE = frozenset({LeaseOutcome.REVOKED, LeaseOutcome.ABANDONED})


class What(StrEnum):
    """What a note says of a lease under a session lease."""

    ALONE = "alone"
    """It was held, and the shard ended it alone."""
    LATE = "late"
    """It was granted, upgraded or renewed after the session lease was over."""
    WITH = "with"
    """It ended with the session lease."""


class SessionNote(msgspec.Struct, frozen=True):
    """What the history of a domain shows of a session lease: gathered by whoever judges the domain."""

    session: SessionName
    what: What
    correlation_id: bytes
    lease: str
    """How a finding names it."""
    position: Position
    where: Evidence
    floor_ns: int = 0
    messages: int = 0
    doubtful: int = 0
    uses: tuple[Evidence, ...] = ()
    accepted: bool = True
    """Whether readers accept all that was written under it, and the digest of each frame is known."""
    last: tuple[int, bytes] | None = None
    """The last timestamp of its last frame, and the frame's digest."""


def notes_of(history: DomainHistory) -> Iterator[SessionNote]:
    """Yield what the leases of a domain show of the session leases that they are under."""
    for lease in history.leases:
        if lease.session is None:
            continue
        name = (lease.run, lease.session.session_id)
        over, ended = lease.session.over, lease.ended
        if ended is not None and ended.ending.outcome in _ALONE and lease.held:
            wrote = sum(use.messages for use in lease.uses) + lease.doubtful
            alone = (lease.correlation_id, lease.name, ended.position, ended.where, 0, wrote)
            yield SessionNote(name, What.ALONE, *alone)
        for told in lease.told:
            if over is not None and told.position > over.position:
                text = f"the {told.witness.kind} of {lease.name}"
                yield SessionNote(name, What.LATE, lease.correlation_id, text, told.position, told.where)
        if over is not None and ended is not None and ended.position == over.position:
            yield SessionNote(
                name,
                What.WITH,
                lease.correlation_id,
                lease.name,
                ended.position,
                ended.where,
                lease.first.witness.floor_ns,
                sum(use.messages for use in lease.uses),
                lease.doubtful,
                tuple(use.where for use in lease.uses),
                all(use.accepted == use.messages and use.digest is not None for use in lease.uses),
                _last_of(lease.uses),
            )


def _last_of(uses: Sequence[Use]) -> tuple[int, bytes] | None:
    last = max(uses, key=lambda use: use.sequence, default=None)
    return None if last is None or last.digest is None else (last.last_ns, last.digest)


def check_sessions(
    sessions: Mapping[SessionName, SessionHistory], notes: Iterable[SessionNote], cluster: ClusterFacts
) -> Iterator[Finding]:
    """Apply every rule about session leases. ``notes``: of all domains."""
    of: defaultdict[SessionName, list[SessionNote]] = defaultdict(list)
    for note in notes:
        of[note.session].append(note)
    for name, session in sessions.items():
        under = sorted(of[name], key=lambda note: (note.position, note.correlation_id))
        for told in session.told:
            subject = f"{session.name}, {told.witness.kind} in batch {told.head.sequence}"
            yield from check_reach(subject, told, cluster.policies)
        yield from expiry_fell(session.name, session.told)
        if session.over is not None:
            yield from not_yet(session.name, session.over.entry.ended_ns, session.over.token, session.over.where)
        yield from _short_end(session)
        yield from _forgotten(session, [note for note in under if note.what is What.ALONE])
        yield from _late(session, [note for note in under if note.what is What.LATE])
        unknown = sum(note.messages for note in under if note.what is What.ALONE)
        yield from _dropped(session, [note for note in under if note.what is What.WITH], unknown, cluster)


def _short_end(session: SessionHistory) -> Iterator[Finding]:
    """expiry-fell: what a session lease leaves to each of its domains is its expiry as last renewed."""
    over = session.over
    before = [told for told in session.told if over is not None and told.position < over.position]
    last = max(before, key=lambda told: told.witness.expiry_ns, default=None)
    if over is not None and last is not None and over.entry.expiry_ns < last.witness.expiry_ns:
        expiry, was = over.entry.expiry_ns, last.witness.expiry_ns
        reason = f"the end of {session.name} states the expiry {rfc3339(expiry)}; before it was {rfc3339(was)}"
        times = [NamedInterval.at("the expiry before", was), NamedInterval.at("the expiry", expiry)]
        yield found("expiry-fell", f"{session.name}, end", reason, [last.where, over.where], times)


def _dropped(
    session: SessionHistory, under: Sequence[SessionNote], unknown: int, cluster: ClusterFacts
) -> Iterator[Finding]:
    """What the holder said of all leases of a dropped one together: its watermark, its count and its last frame.

    ``unknown``: messages under those that were ended alone: the holder may not have heard of that, and counted them.
    """
    over = session.over
    if over is None or over.entry.outcome is not LeaseOutcome.DROPPED:
        return
    entry = over.entry
    lowest = min((note.floor_ns for note in under), default=0)
    word = Word(session.name, "session lease", "dropped", entry.expiry_ns, entry, over.token, over.where)
    if (entry.watermark_time is None) != (entry.watermark_ns is None):
        yield unpaired(word, "one of the two: a watermark, and the signed time of its message")
    elif entry.watermark_ns is not None:
        yield from check_expiry(word, entry.expiry_ns)
        grants = [told for told in session.told if told.witness.kind is SessionKind.GRANT]
        yield from check_watermark(word, grants[:1], cluster.policies)
    first = session.told[0].head.sequence if session.told else 1
    if not cluster.runs[over.position[2]].whole(first, over.position[3]):
        return  # nobody can tell which leases were out
    there, doubtful = sum(note.messages for note in under), sum(note.doubtful for note in under) + unknown
    if not doubtful and there == entry.messages:
        yield from _last_frame(session, over, under)
    uses = (where for note in under for where in note.uses)
    yield from check_count(word, there, doubtful, lowest, uses, cluster.coverage)


def _last_frame(session: SessionHistory, over: SessionEndFact, under: Sequence[SessionNote]) -> Iterator[Finding]:
    """last-frame-mismatch: of the lease with the highest watermark, a holder names the last frame it knew Committed.

    Where no frame reaches the watermark, an attempt that came to nothing did: then it may have been under any of them.
    """
    wrote = [note for note in under if note.messages]
    lasts = {note.last for note in wrote if note.last is not None}
    if not wrote or not all(note.accepted for note in wrote):
        return
    named, watermark = over.entry.chain_head, over.entry.watermark_ns
    reached = {digest for last_ns, digest in lasts if last_ns == watermark}
    allowed: set[bytes | None] = {*reached} or {None, *(digest for _, digest in lasts)}
    if named not in allowed:
        word = "none" if named is None else named.hex()
        reason = (
            f"{session.name} was dropped with {word} as its last frame; the last one under its leases is "
            f"{max(lasts)[1].hex()}"
        )
        where = [over.where, *sorted({where for note in wrote for where in note.uses})][:9]
        yield found("last-frame-mismatch", session.name, reason, where)


def _forgotten(session: SessionHistory, alone: Sequence[SessionNote]) -> Iterator[Finding]:
    """ended-lease-forgotten: a witness that does not name what was ended alone before it."""
    named: dict[bytes, tuple[str, Evidence]] = {}
    coming = deque(alone)
    for told in session.told:
        while coming and coming[0].position < told.position:
            note = coming.popleft()
            named.setdefault(note.correlation_id, (note.lease, note.where))
        for name, (what, where) in named.items():
            if name not in told.witness.ended:
                reason = f"a {told.witness.kind} of {session.name} does not name {what}, which was ended alone before"
                yield found("ended-lease-forgotten", f"{session.name}, {what}", reason, [where, told.where])
                return
        for name in told.witness.ended:
            named.setdefault(name, (f"lease {name.hex()}", told.where))


def _late(session: SessionHistory, under: Sequence[SessionNote]) -> Iterator[Finding]:
    """session-outlived: what the shard said of a session lease, or of a lease under it, after that was over."""
    if session.over is None:
        return
    over = session.over
    late: list[tuple[str, Evidence]] = [
        (f"its {told.witness.kind} in batch {told.head.sequence}", told.where)
        for told in session.told
        if told.position > over.position
    ]
    late += [(note.lease, note.where) for note in under]
    if late:
        what, where = late[0]
        reason = f"{session.name} was over ({over.entry.outcome}), and {what} came after"
        yield found("session-outlived", session.name, reason, [over.where, where])
