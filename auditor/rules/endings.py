"""Rules about session leases; and how leases and they end, and what their holders say then of what they wrote.

Of a session lease: what each witness may say, and that all of them know which leases were ended alone.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from appliance.formats.lease import Ending, LeaseOutcome
from appliance.formats.witness import SessionEnded, SessionKind, WitnessKind
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime, r1_range, r2_holds
from timeagent.units import Instant, bound_text, rfc3339

from ..columns.index import Coverage
from ..evidence.finding import Check, Evidence, Finding, Times, Verdict, asked, found
from .history import (
    GIVEN_BACK,
    ClusterFacts,
    DomainHistory,
    EndedFact,
    LeaseHistory,
    Position,
    SessionHistory,
    SessionName,
    SessionOver,
    Told,
    ToldOfSession,
)
from .records import Policies


def ending_checks(
    ending: Ending, expiry_ns: Instant, floor_ns: Instant, late: int, top_ns: Instant | None, there: int
) -> Iterator[Check]:
    """Yield the checks of how a lease ended: what its holder said against what is there.

    ``expiry_ns``: the latest that was told before it was broken, else the latest; ``floor_ns``: its last one; ``late``:
    how many witnesses of it came after its end; ``top_ns``: the highest timestamp that readers accept under it;
    ``there``: how many messages are there.
    """
    value = f"{late} witnesses" if late else "nothing"
    yield Check("renewed-after-end", "nothing told after its end", value, "nothing", not late)
    if ending.outcome is LeaseOutcome.EXPIRED:  # by the shard's own word: no staleness to allow for
        yield asked("broken-early", ending.ended_ns, expiry_ns)
    if ending.outcome in GIVEN_BACK:
        watermark = floor_ns if ending.watermark_ns is None else ending.watermark_ns
        if top_ns is not None:
            yield asked("watermark-below-message", watermark, top_ns)
        if ending.watermark_time is not None:
            yield asked("watermark-beyond-expiry", watermark, expiry_ns)
    if ending.outcome is LeaseOutcome.RELINQUISHED:
        yield _all_there(ending.messages, there)


def _all_there(messages: int, there: int, doubtful: int = 0) -> Check:
    """count-mismatch. ``doubtful``: messages that may be the holder's; only the audit knows what this copy lacks."""
    holds = True if there <= messages <= there + doubtful else None
    return Check("count-mismatch", "messages that it told of", messages, f"{there} are there", holds)


def is_broken_early(lease: LeaseHistory, fact: EndedFact) -> bool:
    """Whether a shard ended a lease as expired before its expiry."""
    ending = fact.ending
    over = asked("broken-early", ending.ended_ns, lease.expiry_at(fact.position))
    return ending.outcome is LeaseOutcome.EXPIRED and not over.holds


def check_ending(lease: LeaseHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    fact, name = lease.ended, lease.name
    if fact is None:
        return
    ending, where = fact.ending, [fact.where]
    if fact.entry is not None:
        yield from not_yet(name, ending.ended_ns, fact.token, fact.where)
    late = [told for told in lease.told if told.position > fact.position]
    expiry = lease.expiry_at(fact.position) if ending.outcome is LeaseOutcome.EXPIRED else lease.expiry_ns
    there = sum(use.messages for use in lease.uses)
    word = Word(name, "lease", "relinquished", lease.floor_ns, ending, fact.token, fact.where)
    watermark = word.watermark_ns
    top = max((use for use in lease.uses if use.accepted), key=lambda use: use.last_ns, default=None)
    top_ns = None if top is None else top.last_ns
    for check in ending_checks(ending, expiry, lease.floor_ns, len(late), top_ns, there):
        if check.holds:
            continue
        match check.code:
            case "renewed-after-end":
                after = late[0]
                kind = after.witness.kind
                reason = (
                    f"{name} ended as {ending.outcome} at {rfc3339(ending.ended_ns)}; "
                    f"batch {after.head.sequence} holds a {kind} of it that came after"
                )
                times: Times = {"the end": ending.ended_ns, f"the {kind}": after.token}
                title = f"the {kind} of a lease came after its end"
                yield check.finding(name, reason, [*where, after.where], times, title=title)
            case "broken-early":
                reason = f"{name} was broken at {rfc3339(ending.ended_ns)}, before it expired at {rfc3339(expiry)}"
                times = {"the end": ending.ended_ns, "the expiry": expiry}
                yield check.finding(name, reason, [lease.last_expiry.where, *where], times)
            case "watermark-below-message" if top is not None:
                reason = f"{name} has a message at {rfc3339(top.last_ns)}, above its watermark {bound_text(watermark)}"
                times = {"the watermark": watermark, "the expiry": expiry}
                yield check.finding(name, reason, [*where, top.where], times)
            case "watermark-beyond-expiry":
                last = fact.position[3] if fact.entry is not None else fact.position[3] - 1
                known = cluster.runs[lease.run].whole(lease.first.head.sequence, last)
                times = {"the watermark": watermark, "the expiry": expiry}
                yield _beyond_expiry(check, word, times, None if known else Verdict.INDETERMINATE)
    if ending.outcome is not LeaseOutcome.RELINQUISHED:  # of a dropped session lease the word is about all its leases
        return
    if ending.watermark_time is None and ending.watermark_ns not in (None, *(t.witness.floor_ns for t in lease.told)):
        yield unpaired(word, "a watermark that is none of its floors, and no signed time of it")
    grants = [told for told in lease.told if told.witness.kind is WitnessKind.GRANT]
    yield from check_watermark(word, grants, cluster.policies)
    lowest = lease.first.witness.floor_ns
    yield from check_count(word, there, lease.doubtful, lowest, (use.where for use in lease.uses), cluster.coverage)


# What the holders of leases and of session leases say alike.


class Word(NamedTuple):
    """What a holder said when it gave back a lease, or a session lease, and the shard's statement of it."""

    name: str
    kind: str
    """What it gave back: a lease, or a session lease."""
    ended: str
    """What it did: relinquished, or dropped."""
    floor_ns: Instant
    """What it gives back with where nothing was written."""
    entry: Ending | SessionEnded
    token: SignedTime
    where: Evidence

    @property
    def watermark_ns(self) -> Instant:
        """The highest timestamp that it may have written."""
        return self.floor_ns if self.entry.watermark_ns is None else self.entry.watermark_ns


def unpaired(word: Word, what: str) -> Finding:
    """r1-breach: return the finding about a watermark and its signed time where one of the two is missing."""
    title = "a watermark and its signed time go together"
    reason = f"{word.name} was {word.ended} with {what}"
    return found("r1-breach", f"{word.name}, watermark", reason, [word.where], title=title)


def _beyond_expiry(check: Check, word: Word, times: Times, verdict: Verdict | None = None) -> Finding:
    """watermark-beyond-expiry: what was written lies before the expiry."""
    reason = f"{word.name} was {word.ended} with a watermark at or beyond {rfc3339(check.bound)}"
    return check.finding(word.name, reason, [word.where], times, verdict=verdict)


def check_watermark(word: Word, grants: Sequence[Told | ToldOfSession], policies: Policies) -> Iterator[Finding]:
    """r1-breach and r2-breach of a watermark: it keeps the signed time of its message, and its end came after."""
    raw, watermark, subject = word.entry.watermark_time, word.watermark_ns, f"{word.name}, watermark"
    if raw is None:
        return
    try:
        token = SignedTime.decode(raw, f"the watermark of {word.name}")
    except Damaged as problem:
        title = "the signed time of a watermark is none"
        yield found("forged-time", subject, problem.message, [word.where], title=title)
        return
    yield from policies.check_clock(subject, token, word.where)
    if policies.widest is not None and watermark not in r1_range(token, policies.widest.r1_tolerance_ns):
        reason = f"the watermark {rfc3339(watermark)} of {word.name} is too far from its signed time"
        times: Times = {"the watermark": watermark, "its signed time": token}
        title = "a watermark is too far from its signed time"
        too_far = found("r1-breach", subject, reason, [word.where], times, title=title)
        yield policies.judged(too_far, token.interval.latest)
    for told in grants:
        if not r2_holds(told.token, token):
            reason = f"the watermark of {word.name} was signed surely before the {word.kind} was granted"
            title = f"a watermark was signed before its {word.kind} was granted"
            times = {"the grant": told.token, "the watermark": token}
            yield found("r2-breach", subject, reason, [told.where, word.where], times, title=title)
    if not r2_holds(token, word.token):
        reason = f"the shard said that {word.name} ended surely before the time in its watermark was signed"
        title = f"a {word.kind} ended before its watermark was signed"
        times = {"the watermark": token, "the shard": word.token}
        yield found("r2-breach", subject, reason, [word.where], times, title=title)


def check_count(
    word: Word, there: int, doubtful: int, lowest_ns: Instant, uses: Iterable[Evidence], coverage: Coverage
) -> Iterator[Finding]:
    """count-mismatch: what a holder said that it wrote is there, unless this copy lacks it.

    ``uses``: where that stands; ``lowest_ns``: no timestamp of it lies below. More is there is a breach, unless a bag
    is open: what came to that after a closer had listed it stands there too, in a copy that was made just then.
    """
    claimed, span = word.entry.messages, (lowest_ns, word.watermark_ns)
    check = _all_there(claimed, there, doubtful)
    still_open, _ = coverage.index.bags_within(*span)
    more = None if still_open else Verdict.VIOLATION
    missing = coverage.missing_within(*span) if there < claimed else more
    if check.holds or missing is None:
        return
    hold = "the bags hold" if missing is Verdict.VIOLATION else "the others are not in this copy, which has"
    reason = f"{word.name} was {word.ended} after {claimed} messages; {hold} {there}"
    yield check.finding(word.name, reason, [word.where, *sorted(set(uses))][:9], verdict=missing)


def check_reach(
    subject: str, told: Told | ToldOfSession, policies: Policies, fence: int | None = None
) -> Iterator[Finding]:
    """term-above-policy and grant-above-ceiling of one witness. ``fence``: where it has one."""
    expiry, ceiling = told.witness.expiry_ns, told.head.ceiling_ns
    yield from policies.check_term(subject, expiry, told.token, told.where)
    check = asked("grant-above-ceiling", max(expiry, fence or 0), ceiling)
    if not check.holds:
        stated = f"expiry {rfc3339(expiry)}" + ("" if fence is None else f" and fence {fence}")
        reason = f"{subject} has {stated}, above the ceiling {rfc3339(ceiling)}"
        yield check.finding(subject, reason, [told.where], {"the witness": told.token, "the expiry": expiry})


def expiry_fell(name: str, told: Sequence[Told | ToldOfSession]) -> Iterator[Finding]:
    """expiry-fell: a holder may go by either of two witnesses, and the shard by the later one only."""
    for before, after in itertools.pairwise(told):
        expiry, was = after.witness.expiry_ns, before.witness.expiry_ns
        if expiry < was:
            reason = (
                f"a {after.witness.kind} of {name} states the expiry {rfc3339(expiry)}; before it was {rfc3339(was)}"
            )
            times = {"the expiry before": was, "the expiry": expiry}
            yield found("expiry-fell", name, reason, [before.where, after.where], times)
            return


def not_yet(name: str, ended_ns: int, token: SignedTime, where: Evidence) -> Iterator[Finding]:
    """r2-breach: a shard says that something ended at an instant that its signed time surely does not reach."""
    if ended_ns > token.interval.latest + token.staleness_ns:
        reason = f"the batch that says that {name} ended at {rfc3339(ended_ns)} was signed surely before that"
        times: Times = {"the end": ended_ns, "the batch": token}
        title = "a lease ended after the batch that says so was signed"
        yield found("r2-breach", f"{name}, end", reason, [where], times, title=title)


# Session leases.

_ALONE: Final = frozenset({LeaseOutcome.REVOKED, LeaseOutcome.ABANDONED})


class SessionNote(msgspec.Struct, frozen=True):
    """What the history of a domain shows of a session lease: gathered by whoever judges the domain."""

    session: SessionName
    what: Literal["alone", "late", "together"]
    """The shard ended a lease under it alone; granted, upgraded or renewed one after it was over; ended both."""
    correlation_id: bytes
    lease: str
    """How a finding names it."""
    position: Position
    where: Evidence
    floor_ns: int
    messages: int
    doubtful: int
    uses: tuple[Evidence, ...]
    accepted: bool
    """Whether readers accept all that was written under it, and the digest of each frame is known."""
    last: tuple[int, bytes] | None
    """The last timestamp of its last frame, and the frame's digest."""


def notes_of(history: DomainHistory) -> Iterator[SessionNote]:
    """Yield what the leases of a domain show of the session leases that they are under."""
    for lease in history.leases:
        if lease.session is None:
            continue
        session, over, ended, uses = (lease.run, lease.session.session_id), lease.session.over, lease.ended, lease.uses
        last = max(uses, key=lambda use: use.sequence, default=None)
        wrote = (
            lease.first.witness.floor_ns,
            sum(use.messages for use in uses),
            lease.doubtful,
            tuple(use.where for use in uses),
            all(use.accepted == use.messages and use.digest is not None for use in uses),
            None if last is None or last.digest is None else (last.last_ns, last.digest),
        )
        name = lease.correlation_id
        if ended is not None and ended.ending.outcome in _ALONE and lease.held:
            yield SessionNote(session, "alone", name, lease.name, ended.position, ended.where, *wrote)
        late = next((told for told in lease.told if over is not None and told.position > over.position), None)
        if late is not None:
            text = f"the {late.witness.kind} of {lease.name}"
            yield SessionNote(session, "late", name, text, late.position, late.where, *wrote)
        if over is not None and ended is not None and ended.position == over.position:
            yield SessionNote(session, "together", name, lease.name, ended.position, ended.where, *wrote)


def check_sessions(
    sessions: Mapping[SessionName, SessionHistory], notes: Iterable[SessionNote], cluster: ClusterFacts
) -> Iterator[Finding]:
    """Apply every rule about session leases. ``notes``: of all domains."""
    of: defaultdict[SessionName, list[SessionNote]] = defaultdict(list)
    for note in notes:
        of[note.session].append(note)
    for name, session in sessions.items():
        under = sorted(of[name], key=lambda note: (note.position, note.correlation_id))
        alone, late, together = (
            [note for note in under if note.what == what] for what in ("alone", "late", "together")
        )
        for told in session.told:
            subject = f"{session.name}, {told.witness.kind} in batch {told.head.sequence}"
            yield from check_reach(subject, told, cluster.policies)
        yield from expiry_fell(session.name, session.told)
        if session.over is not None:
            yield from not_yet(session.name, session.over.witness.ended_ns, session.over.token, session.over.where)
        yield from _short_end(session)
        yield from _forgotten(session, alone)
        yield from _late(session, late)
        yield from _dropped(session, together, sum(note.messages + note.doubtful for note in alone), cluster)


def _short_end(session: SessionHistory) -> Iterator[Finding]:
    """expiry-fell: what a session lease leaves to each of its domains is its expiry as last renewed."""
    over = session.over
    before = [told for told in session.told if over is not None and told.position < over.position]
    last = max(before, key=lambda told: told.witness.expiry_ns, default=None)
    if over is not None and last is not None and over.witness.expiry_ns < last.witness.expiry_ns:
        expiry, was = over.witness.expiry_ns, last.witness.expiry_ns
        reason = f"the end of {session.name} states the expiry {rfc3339(expiry)}; before it was {rfc3339(was)}"
        times = {"the expiry before": was, "the expiry": expiry}
        yield found("expiry-fell", f"{session.name}, end", reason, [last.where, over.where], times)


def _dropped(
    session: SessionHistory, under: Sequence[SessionNote], unknown: int, cluster: ClusterFacts
) -> Iterator[Finding]:
    """What the holder said of all leases of a dropped one together: its watermark, its count and its last frame.

    ``unknown``: messages under those that were ended alone: the holder may not have heard of that, and counted them.
    """
    over = session.over
    if over is None or over.witness.outcome is not LeaseOutcome.DROPPED:
        return
    entry = over.witness
    grants = [told for told in session.told if told.witness.kind is SessionKind.GRANT]
    lowest = min((note.floor_ns for note in under), default=0)
    word = Word(session.name, "session lease", "dropped", entry.expiry_ns, entry, over.token, over.where)
    if (entry.watermark_time is None) != (entry.watermark_ns is None):
        yield unpaired(word, "one of the two: a watermark, and the signed time of its message")
    elif entry.watermark_ns is not None:
        before = asked("watermark-beyond-expiry", word.watermark_ns, entry.expiry_ns)
        if not before.holds:
            yield _beyond_expiry(before, word, {})
        yield from check_watermark(word, grants[:1], cluster.policies)
    first = grants[0].head.sequence if grants else 1
    if not cluster.runs[over.position[2]].whole(first, over.position[3]):
        return  # nobody can tell which leases were out
    there, doubtful = sum(note.messages for note in under), sum(note.doubtful for note in under) + unknown
    if not doubtful and there == entry.messages:
        yield from _last_frame(session, over, under)
    uses = (where for note in under for where in note.uses)
    yield from check_count(word, there, doubtful, lowest, uses, cluster.coverage)


def _last_frame(session: SessionHistory, over: SessionOver, under: Sequence[SessionNote]) -> Iterator[Finding]:
    """last-frame-mismatch: of the lease with the highest watermark, a holder names the last frame it knew Committed.

    Where no frame reaches the watermark, an attempt that came to nothing did: then it may have been under any of them.
    """
    wrote = [note for note in under if note.messages]
    lasts = {note.last for note in wrote if note.last is not None}
    if not wrote or not all(note.accepted for note in wrote):
        return
    named, watermark = over.witness.chain_head, over.witness.watermark_ns
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
        known = set(told.witness.ended)
        for name, (what, where) in named.items():
            if name not in known:
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
        reason = f"{session.name} was over ({over.witness.outcome}), and {what} came after"
        yield found("session-outlived", session.name, reason, [over.where, where])
