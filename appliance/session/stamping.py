"""Timestamps, and the frames that carry them: how a batch of payloads becomes a file for a bag.

The rules (docs/protocol/bag.md): above every floor, above what this writer wrote and read, surely below every expiry,
within R1 of its signed time, all in one bag. Where a floor lies ahead of the clock the writer pauses; it never stamps a
future. Nothing here waits: whoever calls it holds the session's lock, and a lease must be renewed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from appliance.formats.framing import LEASES_MAX, Attempt, CommittedFrame, FrameHead, check_payloads, encode_frame
from appliance.formats.paths import Bag, DataName, Grid
from appliance.formats.policy import Policy, PolicyNumbers
from appliance.formats.witness import SignedWitness
from timeagent.canonical import encode
from timeagent.clock import NodeTime
from timeagent.errors import BadRequest, BadTime, NotTrusted
from timeagent.keys import Purpose
from timeagent.signedtime import SignedTime, r1_range
from timeagent.trust import Keyring
from timeagent.units import MS, Instant, Span, TimeInterval, rfc3339, span_text

from ..bag.ports import NumberedRecords, RecordNumbers
from ..bag.writing import FrameFile
from ..formats.hints import ANY_FILE, HintedFile
from .endings import LossReason
from .held import Lease


def checked_batch(payloads: Sequence[bytes]) -> list[bytes]:
    """Return the batch, to be changed by nobody. Raises BadRequest before anything is written."""
    several = isinstance(payloads, Iterable) and not isinstance(payloads, bytes | str)
    batch = list(payloads) if several else []
    others = (f"[{at}] is {type(each).__name__}" for at, each in enumerate(batch) if not isinstance(each, bytes))
    wrong = next(others, None) if several else f"they are {type(payloads).__name__}"
    if wrong is not None:
        what = f"the payloads are not a list of bytes: {wrong}"
        raise BadRequest("bad-payloads", what, hint="publish(log, [b'...'], under=leases)")
    check_payloads(batch)
    return batch


def check_covering(leases: Sequence[Lease]) -> None:
    """Refuse leases under which nothing can be published: too many at once, or readers'."""
    if len(leases) > LEASES_MAX:
        raise BadRequest(
            "too-many-leases",
            f"a batch under {len(leases)} leases exceeds the limit of {LEASES_MAX}",
            hint="publish under fewer leases at once, or take one lease that covers them",
        )
    for lease in leases:
        if not lease.mode.may_write:
            raise BadRequest(
                "mode-may-not-write",
                f"the lease on {lease.domain!r} is in mode {lease.mode}: readers reject what is written under it",
                hint="acquire it in mode X, SIX or IX, or upgrade it",
            )


class Publication(msgspec.Struct, frozen=True, eq=False):
    """One attempt, ready to be written."""

    file: FrameFile
    digest: bytes
    first_ns: Instant
    last_ns: Instant
    time: bytes
    sequence: int
    messages: int
    attempt_id: bytes
    leases: tuple[Lease, ...]
    """What it is written under: none of them can be relinquished before its outcome is known."""
    proven: tuple[tuple[Lease, bytes], ...]
    """The leases, or halves of leases, whose witnesses it carries, by what they were granted as."""

    def place(self, file_name: str | None) -> HintedFile:
        """Return where its messages are: in one file, or in some of the bag."""
        bag = self.file.bag
        name = ANY_FILE if file_name is None else file_name
        return HintedFile(log=bag.log, bag_start_ns=bag.start_ns, file_name=name, last_ns=self.last_ns)


LOOK_AGAIN_NS: Span = 10 * MS
"""How soon it is looked whether a lease has its other half."""


@dataclass(frozen=True, slots=True)
class AheadOfClock:
    """The next timestamp lies ahead of the clock: ask again when this long has passed."""

    span_ns: Span


@dataclass(slots=True)
class WriterState:
    """One writer incarnation: what its next frame builds on."""

    cluster_id: bytes
    node: str
    incarnation: bytes
    sequence: int = 0
    last_ns: Instant = 0
    """The highest timestamp used, also by attempts that failed."""
    read_ns: Instant = 0
    """The highest timestamp read."""
    committed: CommittedFrame | None = None

    def confirm(self, publication: Publication) -> None:
        """Remember the newest frame that is known Committed; later frames name it."""
        if self.committed is None or publication.sequence > self.committed.sequence:
            self.committed = CommittedFrame(sequence=publication.sequence, digest=publication.digest)


class InForce(msgspec.Struct, frozen=True, eq=False):
    """The records that a publication goes by."""

    numbers: RecordNumbers
    keyring: Keyring


class _Proof(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A witness as frames carry it, and what it says by which a frame under it is judged."""

    raw: bytes
    expiry_ns: Instant
    key_id: bytes
    time: SignedTime


class _Evidence(msgspec.Struct, frozen=True, eq=False):
    """A signed time and witnesses that readers will accept: by whom they are judged, and as frames carry them."""

    records: InForce
    token: SignedTime
    proofs: list[_Proof]
    policy_number: int
    """The one to be named."""
    near: range
    """The timestamps that R1 allows."""
    time: bytes
    witnesses: tuple[bytes, ...]


class FrameStamper:
    """Makes publications for one writer."""

    def __init__(self, time: NodeTime, policy: PolicyNumbers, state: WriterState, records: NumberedRecords) -> None:
        """Take the writer's state, which this changes."""
        self._time = time
        self._policy = policy
        self._state = state
        self._records = records
        self._in_force: InForce | None = None
        self._evidence: _Evidence | None = None
        """That of the publication before: many are made with one signed time, under the same witnesses."""

    def in_force(self, numbers: RecordNumbers) -> InForce:
        """Return the records with these numbers. Raises Damaged. Touches the mount, once for each number."""
        known = self._in_force
        if known is None or known.numbers != numbers:
            self._records.policy(numbers.policy)  # read now, and kept: nobody holds a lock yet
            known = self._in_force = InForce(numbers, self._records.keyring(numbers.trust))
        return known

    def publication(
        self, grid: Grid, payloads: Sequence[bytes], leases: Sequence[Lease], attempt_id: bytes, records: InForce
    ) -> Publication | AheadOfClock:
        """Stamp and encode a batch, or say how long to wait. Raises LeaseLost, BadTime, BadRequest, NotTrusted.

        ``payloads`` and ``leases`` are within the limits of a frame. Never waits.
        """
        proven = [lease.halves() for lease in leases]
        if not all(proven):  # the other half of some is being taken
            for lease in leases:
                lease.check_held(self._time.now(), self._policy.holder_margin_ns)
            return AheadOfClock(LOOK_AGAIN_NS)
        halves = [half for each in proven for half in each]
        proofs = _proofs(halves)
        now, token = self._time.now_and_token()
        first = self._first_timestamp(grid, leases, len(payloads), now)
        if isinstance(first, AheadOfClock):
            return first
        last = first + len(payloads) - 1
        assert all(lease.floor_ns < first for lease in leases)
        evidence = self._judged(records, token, proofs)
        if first not in evidence.near or last not in evidence.near:
            raise BadTime(
                "r1-would-fail",
                f"the timestamp {rfc3339(first)} is too far from the signed time {rfc3339(token.midpoint_ns)}",
                hint="the clock stepped while the message was made: try again",
            )
        return self._encoded(grid.bag(first), range(first, last + 1), payloads, leases, halves, attempt_id, evidence)

    def _judged(self, records: InForce, token: SignedTime, proofs: list[_Proof]) -> _Evidence:
        """Return what a frame carries to be accepted by. Raises NotTrusted where no reader would."""
        known = self._evidence
        if known is None or known.records is not records or known.token is not token or known.proofs != proofs:
            _refuse_untrusted(records.keyring, token, proofs)
            policy = self._judging(records, proofs, token)
            near, witnesses = r1_range(token, policy.r1_tolerance_ns), tuple([proof.raw for proof in proofs])
            known = _Evidence(records, token, proofs, policy.number, near, token.encode(), witnesses)
            self._evidence = known
        return known

    def _judging(self, records: InForce, proofs: Sequence[_Proof], token: SignedTime) -> Policy:
        """Return the policy to be named: the newest under which readers take these witnesses. Raises NotTrusted.

        A lease that was granted before its longest term was lowered is good under the policy of before; so is what was
        signed before the largest radius was. May touch the mount, once for each policy.
        """
        # What acceptance.py asks of each: an expiry within the longest term of its signed time and that one's radius,
        # and clocks that are known well enough.
        longest = max((proof.expiry_ns - proof.time.midpoint_ns - proof.time.radius_ns for proof in proofs), default=0)
        widest = max([token.radius_ns, *(proof.time.radius_ns for proof in proofs)])
        for number in range(records.numbers.policy, 0, -1):
            policy = self._records.policy(number)
            if longest <= policy.lease_term_max_ns and widest <= policy.radius_ns_max:
                return policy
        raise NotTrusted(
            "beyond-policy",
            f"no reader would accept the messages: a lease is for {span_text(longest)}, and of the clocks that signed "
            f"for it one is known to {span_text(widest)}; no policy allows both",
            hint="acquire it again; a shard that grants so is not of this cluster's making",
        )

    def _first_timestamp(
        self, grid: Grid, leases: Sequence[Lease], count: int, now: TimeInterval
    ) -> Instant | AheadOfClock:
        """Return the first of ``count`` consecutive timestamps, all in one bag and below every expiry."""
        floors = [lease.floor_ns for lease in leases]
        above = max(*floors, self._state.last_ns, self._state.read_ns, grid.first_ns - 1) + 1
        for lease in leases:
            lease.check_held(now, self._policy.holder_margin_ns)
        check_near(above, now.latest, self._policy, "the next timestamp must be above")
        start = max(now.midpoint, above)
        bag = grid.bag(start)
        if start + count > bag.end_ns:
            start = bag.end_ns
        if start > now.latest:
            return AheadOfClock(start - now.latest)
        for lease in leases:
            if start + count > lease.expiry_ns:
                lease.lose("expired", lease.failing or LossReason.EXPIRED)
                lease.check_held(now, self._policy.holder_margin_ns)
        return start

    def _encoded(
        self,
        bag: Bag,
        timestamps: range,
        payloads: Sequence[bytes],
        leases: Sequence[Lease],
        halves: Sequence[Lease],
        attempt_id: bytes,
        evidence: _Evidence,
    ) -> Publication | AheadOfClock:
        state = self._state
        sequence, committed = state.sequence + 1, state.committed
        if timestamps[0] <= state.last_ns:  # this thread has published meanwhile, for a signal or from a destructor
            return AheadOfClock(0)
        state.sequence, state.last_ns = sequence, timestamps[-1]
        head = FrameHead(
            cluster_id=state.cluster_id,
            log=bag.log,
            writer=state.node,
            incarnation=state.incarnation,
            sequence=sequence,
            attempts=(Attempt(id=attempt_id, messages=len(payloads)),),
            committed=committed,
            time=evidence.time,
            witnesses=evidence.witnesses,
            trust_number=evidence.records.numbers.trust,
            policy_number=evidence.policy_number,
        )
        data, digest = encode_frame(head, timestamps, payloads)
        return Publication(
            file=FrameFile(bag, DataName(state.node, state.incarnation, sequence), data),
            digest=digest,
            first_ns=timestamps[0],
            last_ns=timestamps[-1],
            time=head.time,
            sequence=sequence,
            messages=len(payloads),
            attempt_id=attempt_id,
            leases=tuple(leases),
            proven=tuple([(half, half.correlation_id) for half in halves]),
        )


@lru_cache(4_096)  # a lease is written under many times for each witness of it
def _proof(signed: SignedWitness) -> _Proof:
    head = signed.batch_head()
    return _Proof(encode(signed), signed.statement().expiry_ns, head.key_id, head.signed_time())


def _proofs(leases: Sequence[Lease]) -> list[_Proof]:
    """Return what proves that these are held: of each lease, and of each session lease in which some are."""
    session_leases = dict.fromkeys(lease.session_lease for lease in leases)
    signed = [*(lease.signed for lease in leases), *(each.signed for each in session_leases if each is not None)]
    return [_proof(each) for each in signed]


def _refuse_untrusted(keyring: Keyring, token: SignedTime, proofs: Sequence[_Proof]) -> None:
    """Raise NotTrusted if a key is replaced or revoked by now: a listed frame with it would be read by nobody."""
    reason = keyring.refuses(token.key_id, Purpose.TIME, token.midpoint_ns)
    for proof in proofs:
        at = proof.time.midpoint_ns
        reason = (
            reason
            or keyring.refuses(proof.key_id, Purpose.WITNESS, at)
            or keyring.refuses(proof.time.key_id, Purpose.TIME, at)
        )
    if reason:
        raise NotTrusted(
            "key-not-trusted",
            f"no reader would accept the messages: {reason}",
            hint="tenure trust rotate makes the next keys; what is revoked stays so: tenure trust ls",
        )


def check_near(instant: Instant, latest: Instant, policy: PolicyNumbers, what: str) -> None:
    """Raise BadTime if an instant lies further ahead than any honest floor or settle_to can: a ceiling."""
    ahead = instant - latest
    if ahead > policy.ahead_ns_max:
        raise BadTime(
            "floor-too-far-ahead",
            f"{what} {rfc3339(instant)}, {span_text(ahead)} ahead of this clock",
            hint="one of the clocks of this cluster is wrong: tenure time now, on each node",
        )
