"""Rules about the leases of one domain: what each witness may say, and that no number falls from one to the next."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np

from appliance.formats.chains import CeilingRecord
from appliance.formats.lease import Ending, LeaseOutcome
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap, shard_text
from appliance.formats.witness import BatchHead, Witness, WitnessKind
from timeagent.units import bound_text, rfc3339, span_text

from ..columns.index import Use
from ..evidence.finding import (
    Bounds,
    Check,
    Evidence,
    Finding,
    Times,
    asked,
    both,
    found,
    latest_expiry_ns,
    not_fallen,
)
from .chains import granted_under
from .endings import check_ending, check_reach, expiry_fell
from .grants import check_grants, check_moved
from .history import (
    GIVEN_BACK,
    Closings,
    ClusterFacts,
    DomainHistory,
    EndedFact,
    LeaseHistory,
    Position,
    Told,
    shard_of,
)


def check_domain(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    for lease in history.leases:
        first, name = lease.first, lease.name
        if lease.granted is None and cluster.runs[lease.run].whole(1, first.head.sequence):
            reason = f"the first word on {name} is a {first.witness.kind}, and the ledger before it is whole"
            yield found("ungranted-lease", name, reason, [first.where])
        for told in lease.told:
            yield from _witness(lease, told, cluster)
        for told in lease.claims:
            yield from _fence(lease, told, cluster)
        yield from check_ending(lease, cluster)
    for part in history.by_map():
        yield from check_grants(part, cluster)
        yield from _growth(part)
    yield from check_moved(history, cluster)
    yield from _settling(history, cluster.closings)
    yield from _agreement(history, cluster)
    yield from _revocations(history)
    yield from _stops(history, cluster)


# What one witness may say.


def _witness(lease: LeaseHistory, told: Told, cluster: ClusterFacts) -> Iterator[Finding]:
    witness, head = told.witness, told.head
    subject = f"{lease.name}, {witness.kind} in batch {head.sequence}"
    yield from check_reach(subject, told, cluster.policies, witness.fence)
    lowest = (0, 0) if witness.kind is WitnessKind.RENEWAL else cluster.lowest(head)
    check = not_fallen((witness.floor_ns, witness.settle_to_ns), lowest)
    if not check.holds:
        reason = f"{subject} states {check.value}, below its shard's own, {both(lowest)}"
        yield check.finding(subject, reason, [told.where], title="a floor or settle_to is below its shard's own")
    named = int.from_bytes(witness.correlation_id[:8], "big")
    if named != witness.fence if witness.kind is WitnessKind.GRANT else named > witness.fence:
        reason = f"{subject} has the fence {witness.fence}; its correlation id begins with {named}"
        yield found("misnamed-lease", subject, reason, [told.where])
    for check in _owner(witness.domain, head, cluster.maps.get(head.going_by)):
        if not check.holds:
            reason = f"{subject} comes from {check.value}; by map {head.going_by} the domain belongs to {check.limit}"
            yield check.finding(subject, reason, [told.where])


def _fence(lease: LeaseHistory, claim: Told, cluster: ClusterFacts) -> Iterator[Finding]:
    """fence-not-growing: a fence lies above the floor that its shard had when it chose it.

    A tentative lease that becomes held keeps its fence, though its shard may have raised its floor since the grant.
    """
    witness, head = claim.witness, claim.head
    lowest, _ = cluster.lowest(head)
    if lowest and witness.fence <= lowest:
        subject = f"{lease.name}, {witness.kind} in batch {head.sequence}"
        reason = f"{subject} has the fence {witness.fence}, not above its shard's own floor {lowest}"
        title = "a fence is not above its shard's own floor"
        yield found("fence-not-growing", subject, reason, [claim.where], title=title)


def _owner(domain: str, head: BatchHead, shards: ShardMap | None) -> Iterator[Check]:
    """wrong-shard: who grants owns the domain, by the map that it goes by."""
    if shards is not None:
        own, owners = shard_of(head), shards.shards_of(domain)
        wanted = f"shard {' or '.join(map(shard_text, owners))}"
        yield Check("wrong-shard", "shard that owns the domain", f"shard {shard_text(own)}", wanted, own in owners)


def statement_checks(
    witness: Witness, head: BatchHead, widest: Policy | None, ceiling: CeilingRecord | None, shards: ShardMap | None
) -> Iterator[Check]:
    """Yield the checks of what a shard said of a lease, alone. ``ceiling``, ``shards``: those it names, if there."""
    if widest is not None:
        token = head.signed_time()
        yield asked("radius-above-policy", token.radius_ns, widest.radius_ns_max, span_text)
        yield asked("term-above-policy", witness.expiry_ns, latest_expiry_ns(token, widest))
    yield asked("grant-above-ceiling", max(witness.expiry_ns, witness.fence), head.ceiling_ns)
    if ceiling is not None:
        yield granted_under(head, ceiling)
    yield from _owner(witness.domain, head, shards)


# What a statement owes to those before it.


def _stops(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
    """floor-fell: the last record of a run states less than a lease of the run asks of whoever comes next."""
    for lease in history.leases:
        chain = cluster.ceilings.get(cluster.runs[lease.run].shard)
        end = chain.ends.get(lease.run) if chain else None
        if end is None or lease.first.head.ceiling_number > end.record.number:  # that was granted without right
            continue
        asked = _asked(lease, cluster)
        check = not_fallen((end.record.floor_ns, end.record.settle_to_ns), asked)
        if not check.holds:
            ends = f"{end.where.path} ends run {lease.run.hex()} with {check.value}"
            reason = f"{ends}; {lease.name} of that run asks for {both(asked)}"
            yield check.finding(lease.name, reason, [lease.last_expiry.where, end.where])


def _asked(lease: LeaseHistory, cluster: ClusterFacts) -> Bounds:
    """Return floor and settle_to that a lease asks of a later run, as far as it is known how it ended.

    Half a lease may be out when its shard stops: it asks for what it was before the shard left.
    """
    stated = [told.witness for told in lease.told]
    floor = max(max(each.floor_ns, each.fence) for each in stated)
    settle_to = max(each.settle_to_ns for each in stated)
    ended = lease.ended
    outcome = ended.ending.outcome if ended else None
    if not lease.held or outcome is LeaseOutcome.WITHDRAWN:
        return floor, settle_to
    if ended is not None and outcome in GIVEN_BACK:
        return max(floor, ended.ending.watermark_ns or 0), settle_to
    run = cluster.runs[lease.run]
    if ended is None and not (lease.run in cluster.finished and run.whole(lease.first.head.sequence, run.highest)):
        return floor, settle_to
    expiry = lease.expiry_ns
    if ended is None and lease.words[-1] not in lease.staying:
        expiry = max((each.witness.expiry_ns for each in lease.staying), default=0)
    return max(floor, expiry), max(settle_to, expiry)


def _growth(history: DomainHistory) -> Iterator[Finding]:
    """floor-fell: each grant, change of mode and end against those before it, and each end against its lease."""
    stating: list[tuple[Position, str, Bounds, Evidence, bool]] = [
        (told.position, lease.name, (told.witness.floor_ns, told.witness.settle_to_ns), told.where, False)
        for lease, told in history.claims()
    ]
    for lease in history.leases:
        for fact in lease.endings:
            if fact.entry is not None:
                bounds = fact.entry.floor_ns, fact.entry.settle_to_ns
                stating.append((fact.position, f"the end of {lease.name}", bounds, fact.where, True))
                yield from _end(lease, fact, bounds)
    claimed, ended = ("", (0, 0), Evidence("")), ("", (0, 0), Evidence(""))
    for _, name, bounds, where, is_end in sorted(stating, key=lambda each: each[0]):
        # What a grant owes to the end of an earlier lease is asked, with its verdict, where grants follow each other.
        high = max(claimed, ended, key=lambda one: one[1]) if is_end else claimed
        check = not_fallen(bounds, high[1])
        if not check.holds:
            reason = f"{name} states {check.value}; {high[0]} before it stated {both(high[1])}"
            yield check.finding(name, reason, [high[2], where])
        elif is_end:
            ended = name, bounds, where
        else:
            claimed = name, bounds, where


def _end(lease: LeaseHistory, fact: EndedFact, states: Bounds) -> Iterator[Finding]:
    """floor-fell: the numbers with which a lease ended are at least what it leaves: its watermark, or its expiry."""
    outcome = fact.ending.outcome
    if outcome is LeaseOutcome.WITHDRAWN or not lease.held:
        return
    given_back = outcome in GIVEN_BACK
    floor = (fact.ending.watermark_ns or 0) if given_back else lease.expiry_at(fact.position)
    check = not_fallen(states, (floor, 0 if given_back else floor))
    if not check.holds:
        what = "its watermark" if given_back else "its expiry, for floor and settle_to"
        reason = f"{lease.name} ended as {outcome} with {check.value}; it leaves {bound_text(floor)}, {what}"
        yield check.finding(f"{lease.name}, end", reason, [lease.last_expiry.where, fact.where])


def _revocations(history: DomainHistory) -> Iterator[Finding]:
    """revocation-incomplete: a lease that was revoked by nobody, or who revoked one that did not end then."""
    for position, (ended, where) in history.ends.items():
        name, behind = ended.ending.correlation_id, history.revocations.get((*position[:4], position[4] + 1))
        if ended.ending.outcome is LeaseOutcome.REVOKED and (behind is None or behind[0].correlation_id != name):
            lease = f"lease {name.hex()} on {history.domain!r}"
            reason = f"{lease} was revoked, and the entry behind that in its batch does not say by whom"
            yield found("revocation-incomplete", lease, reason, [where])
    for position, (revoked, where) in history.revocations.items():
        name, before = revoked.correlation_id, history.ends.get((*position[:4], position[4] - 1))
        if before is None or before[0].ending.correlation_id != name:
            lease = f"lease {name.hex()} on {history.domain!r}"
            revokes = f"{revoked.by.node} revoked {lease}"
            reason = f"{revokes}, and the entry before that in its batch does not say that it ended"
            yield found("revocation-incomplete", lease, reason, [where])


# Whether all that is said of a lease agrees.


def _settling(history: DomainHistory, closings: Closings) -> Iterator[Finding]:
    """unsettled-write: a message was stamped surely before a bag was closed that its lease asks to be closed first.

    A lock file is signed before it counts, so that a holder that settles signs its message later. A bag without one is
    none of this rule's business: a copy may have passed by before it was closed.
    """
    for lease in history.leases:
        firsts: dict[str, Use] = {}
        for use in sorted(lease.uses, key=lambda each: (each.first_ns, each.where)):
            if use.accepted:
                firsts.setdefault(use.log, use)
        for log, use in firsts.items():
            closed_ns = int(closings.of(log, np.array([use.settle_to_ns]))[0])
            if closed_ns > use.signed_ns:
                reason = (
                    f"{lease.name} asks for log {log} to be settled to {rfc3339(use.settle_to_ns)}; its first message "
                    f"there was stamped by {rfc3339(use.signed_ns)}, and a bag before that was closed at "
                    f"{rfc3339(closed_ns)} or later"
                )
                times: Times = {
                    "the message": (use.first_ns, use.signed_ns, lease.holder.node),
                    "settle_to": use.settle_to_ns,
                    "the closing, at the earliest": closed_ns,
                }
                yield found("unsettled-write", lease.name, reason, [lease.first.where, use.where], times)


_TOLD: Final = ("outcome", "ended_ns", "watermark_ns", "messages", "chain_head")
"""What later witnesses repeat of a lease's end, beside the signed time of its watermark: that one is evidence only."""


def _agreement(history: DomainHistory, cluster: ClusterFacts) -> Iterator[Finding]:
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


def _ends(lease: LeaseHistory) -> Iterator[Finding]:
    """lease-changed: two words of its shard on how it ended."""

    def said(ending: Ending, name: str) -> str:
        value = getattr(ending, name)
        return value.hex()[:16] if isinstance(value, bytes) else str(value)

    stated = sorted((fact for fact in lease.endings if fact.stated), key=lambda fact: fact.position)
    for fact in stated[1:]:
        first, other = stated[0].ending, fact.ending
        names = [name for name in _TOLD if getattr(first, name) != getattr(other, name)]
        if names:
            what = ", ".join(f"{name} {said(other, name)}, not {said(first, name)}" for name in names)
            reason = f"the end of {lease.name} is told again, otherwise than at first: {what}"
            yield found("lease-changed", f"{lease.name}, end", reason, [stated[0].where, fact.where])
            return


def _last_frame(lease: LeaseHistory) -> Iterator[Finding]:
    """last-frame-mismatch: only where every frame that the holder knew Committed is there, and no other.

    Where one is missing, or void, or its bag is open still, which one was the last is not known.
    """
    fact = lease.ended
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
