"""Rules about one lease: what is said of it twice is the same each time, and its holder settled before it wrote.

Readers judge a frame by the witness that it carries. A renewal with a lower floor, another fence or another holder
would let through what the grant excludes, and every frame under it would look well by itself. How a lease ended stands
in the ledger, and in every later witness that names it; whoever has only one of them goes by that.
Before a holder first writes to a log it closes what an earlier holder may still write to.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from appliance.formats.lease import LeaseOutcome
from appliance.formats.witness import WitnessKind
from timeagent.units import bound_text, rfc3339

from .finding import NamedInterval
from .records import Policies
from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from appliance.formats.lease import Ending
    from appliance.formats.shardmap import ShardMap
    from auditor.chains import RecordedChain, ShardName, ShardRun
    from auditor.index import Coverage, Use
    from timeagent.signedtime import SignedTime

    from .finding import Evidence, Finding
    from .history import DomainHistory, LeaseHistory, SessionWitnessFact, Told


class Closings:
    """When the bags of each log were closed: of each instant, the latest closing of any bag that begins before it."""

    def __init__(self, closings: Iterable[tuple[str, int, int]] = ()) -> None:
        """Take (log, start of a bag, before which it was surely not closed), in order."""
        self._starts: dict[str, list[int]] = {}
        self._latest: dict[str, list[int]] = {}
        for log, start, closed in closings:
            latest = self._latest.setdefault(log, [])
            latest.append(max(closed, latest[-1]) if latest else closed)
            self._starts.setdefault(log, []).append(start)

    def of_many(self, log: str, before_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same for many instants."""
        starts, latest = self._starts.get(log, []), self._latest.get(log, [])
        count = np.searchsorted(np.array(starts, np.int64), before_ns)
        return np.array([0, *latest], np.int64)[count]

    def of(self, log: str, before_ns: int) -> int:
        """Return the instant before which some bag of the log that begins before ``before_ns`` was surely open."""
        count = bisect_left(self._starts.get(log, ()), before_ns)
        return self._latest[log][count - 1] if count else 0


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the rules over leases know beside one domain's history."""

    runs: Mapping[bytes, ShardRun]
    ceilings: Mapping[ShardName, RecordedChain]
    finished: frozenset[bytes]
    """Runs whose ledger says that they stopped: nothing is missing at its end."""
    maps: Mapping[int, ShardMap]
    coverage: Coverage
    closings: Closings = field(default_factory=Closings)
    """When bags were closed; none: not asked."""
    policies: Policies = field(default_factory=Policies)


def check_settling(history: DomainHistory, closings: Closings) -> Iterator[Finding]:
    """unsettled-write: a message was stamped surely before a bag was closed that its lease asks to be closed first.

    A lock file is signed before it counts, so that a holder that settles signs its message later. A bag without one is
    none of this rule's business: a copy may have passed by before it was closed.
    """
    for lease in history.leases:
        told: set[str] = set()
        for use in sorted(lease.uses, key=lambda each: (each.first_ns, each.where)):
            if use.accepted and use.log not in told:
                told.add(use.log)
                yield from _first_use(lease, use, closings.of(use.log, use.settle_to_ns))


def _first_use(lease: LeaseHistory, use: Use, closed_ns: int) -> Iterator[Finding]:
    if closed_ns <= use.signed_ns:
        return
    reason = (
        f"{lease.name} asks for log {use.log} to be settled to {rfc3339(use.settle_to_ns)}; its first message there "
        f"was stamped by {rfc3339(use.signed_ns)}, and a bag before that was closed at {rfc3339(closed_ns)} or later"
    )
    times = [
        NamedInterval("the message", use.first_ns, use.signed_ns, node=lease.first.witness.holder.node),
        NamedInterval.at("settle_to", use.settle_to_ns),
        NamedInterval.at("the closing, at the earliest", closed_ns),
    ]
    yield found("unsettled-write", lease.name, reason, [lease.first.where, use.where], times)


_TOLD: Final = ("outcome", "ended_ns", "watermark_ns", "messages", "chain_head")
"""What later witnesses repeat of a lease's end, beside the signed time of its watermark: that one is evidence only."""


def check_agreement(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """lease-changed, expiry-fell, last-frame-mismatch: the first word on a lease that contradicts what was before."""
    for lease in history.leases:
        for before, after in itertools.pairwise(lease.told):
            changed = _changed(lease, before, after, cluster)
            if changed:
                reason = f"a {after.witness.kind} of {lease.name} names {changed}"
                yield found("lease-changed", lease.name, reason, [before.where, after.where])
                break
        yield from expiry_fell(lease.name, [] if lease.session is not None else lease.told)
        yield from _ends(lease)
        yield from _last_frame(lease)


def expiry_fell(name: str, told: Sequence[Told | SessionWitnessFact]) -> Iterator[Finding]:
    """expiry-fell: a holder may go by either of two witnesses, and the shard by the later one only."""
    for before, after in itertools.pairwise(told):
        expiry, was = after.witness.expiry_ns, before.witness.expiry_ns
        if expiry < was:
            reason = (
                f"a {after.witness.kind} of {name} states the expiry {rfc3339(expiry)}; before it was {rfc3339(was)}"
            )
            times = [NamedInterval.at("the expiry before", was), NamedInterval.at("the expiry", expiry)]
            yield found("expiry-fell", name, reason, [before.where, after.where], times)
            return


def not_yet(name: str, ended_ns: int, token: SignedTime, where: Evidence) -> Iterator[Finding]:
    """r2-breach: a shard says that something ended at an instant that its signed time surely does not reach."""
    if ended_ns > token.interval.latest + token.staleness_ns:
        reason = f"the batch that says that {name} ended at {rfc3339(ended_ns)} was signed surely before that"
        times = [NamedInterval.at("the end", ended_ns), NamedInterval.of("the batch", token)]
        title = "a lease ended after the batch that says so was signed"
        yield found("r2-breach", f"{name}, end", reason, [where], times, title=title)


def _ends(lease: LeaseHistory) -> Iterator[Finding]:
    """lease-changed: two words of its shard on how it ended."""
    stated = sorted((fact for fact in lease.endings if fact.stated), key=lambda fact: fact.position)
    for fact in stated[1:]:
        first, other = stated[0].ending, fact.ending
        names = [name for name in _TOLD if getattr(first, name) != getattr(other, name)]
        if names:
            what = ", ".join(f"{name} {_said(other, name)}, not {_said(first, name)}" for name in names)
            reason = f"the end of {lease.name} is told again, otherwise than at first: {what}"
            yield found("lease-changed", f"{lease.name}, end", reason, [stated[0].where, fact.where])
            return


def _said(ending: Ending, name: str) -> str:
    value = getattr(ending, name)
    return value.hex()[:16] if isinstance(value, bytes) else str(value)


def _last_frame(lease: LeaseHistory) -> Iterator[Finding]:
    """last-frame-mismatch: only where every frame that the holder knew Committed is there, and no other.

    Where one is missing, or void, or its bag is open still, which one was the last is not known.
    """
    fact = lease.relinquished
    if fact is None or fact.ending.outcome is not LeaseOutcome.RELINQUISHED or fact.ending.chain_head is None:
        return
    uses = lease.uses
    whole = not lease.doubtful and all(use.accepted == use.messages and use.digest is not None for use in uses)
    if not uses or not whole or sum(use.messages for use in uses) != fact.ending.messages:
        return
    highest = max(use.sequence for use in uses)
    lasts = [use for use in uses if use.sequence == highest]
    if all(use.digest != fact.ending.chain_head for use in lasts):
        reason = (
            f"{lease.name} was relinquished with {fact.ending.chain_head.hex()} as its last frame; "
            f"the last one under it, number {highest} of its writer, is {(lasts[0].digest or b'').hex()}"
        )
        yield found("last-frame-mismatch", lease.name, reason, [fact.where, *(use.where for use in lasts)])


def _changed(lease: LeaseHistory, before: Told, after: Told, cluster: ClusterFacts) -> str | None:
    """Return what a witness says otherwise than the one before it, or None.

    Holder and session lease are for ever. Fence, floor, settle_to, mode and phase are those of the grant or the last
    upgrade: a renewal repeats them, and only where the ledger is whole is it known that no upgrade came in between.
    """
    old, new = before.witness, after.witness
    if new.holder != old.holder:
        return (
            f"another holder, {new.holder.node} ({new.holder.incarnation.hex()}); it was granted to "
            f"{old.holder.node} ({old.holder.incarnation.hex()})"
        )
    if new.session_id != old.session_id:
        names = [each.hex() if each else "none" for each in (new.session_id, old.session_id)]
        return f"session lease {names[0]}; it was granted under {names[1]}"
    if new.floor_ns < old.floor_ns or new.settle_to_ns < old.settle_to_ns or new.fence < old.fence:
        return "a lower floor, settle_to or fence than before: none of them falls, not even with a change of mode"
    run = cluster.runs[lease.run]
    known = before.head.sequence == after.head.sequence or run.whole(before.head.sequence, after.head.sequence)
    if new.kind is not WitnessKind.RENEWAL or not known or before.head.incarnation != after.head.incarnation:
        return None
    for what, told, was in (
        ("the floor", bound_text(new.floor_ns), bound_text(old.floor_ns)),
        ("settle_to", bound_text(new.settle_to_ns), bound_text(old.settle_to_ns)),
        ("the fence", str(new.fence), str(old.fence)),
        ("mode", new.mode.value, old.mode.value),
        ("phase", new.phase.value, old.phase.value),
    ):
        if told != was:
            return f"{what} {told}; until then it was {was}, and a renewal repeats it"
    return None
