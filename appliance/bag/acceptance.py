"""Which messages of a frame are in the record: what readers reject, by a trust record and a policy.

The trust record is the one that the bag's lock file names, the policy the one that the frame names.

Pure: no I/O. The same bytes under the same records get the same verdict on every node, for ever. Verdicts of signatures
are kept, by their bytes: a token and a witness are shared by many frames.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Final

import msgspec

from appliance.formats.framing import Frame
from appliance.formats.lease import Holder, Phase
from appliance.formats.merkle import KnownPaths
from appliance.formats.paths import Bag, DataName
from appliance.formats.policy import Policy
from appliance.formats.witness import Half, SessionWitness, SignedWitness, Witness, head_refused
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime, r1_range
from timeagent.trust import Keyring
from timeagent.units import Instant

_SIGNATURES_KEPT: Final = 4_096


class Refusal(StrEnum):
    """Why a message is not in the record. Stable codes; counted by readers."""

    DAMAGED = "damaged"
    """Bytes that are no frame: counted once a piece, whatever it may have held."""
    MISPLACED = "misplaced"
    """The frame names another cluster, log or writer than the file it is in.

    A file may hold frames of any run of its writer: a node's writer batches those of all processes of its machine."""
    TIME_REFUSED = "time-refused"
    """The signed time: a bad or untrusted signature, or another node's than the writer's."""
    OUTSIDE_BAG = "outside-bag"
    R1 = "r1"
    RADIUS = "radius"
    """The signed time of the frame, or of a witness, knows the clock less well than the policy allows."""
    NO_LEASE = "no-lease"
    """The frame carries no witness of a lease."""
    WITNESS_REFUSED = "witness-refused"
    """A witness: damaged, or a bad or untrusted signature."""
    TENTATIVE = "tentative"
    MODE = "mode"
    """A witness of a mode that may not write."""
    TERM = "term"
    """A witness whose expiry is beyond its signed time + the maximum term + its radius."""
    HOLDER = "holder"
    """A witness of another node or incarnation than the frame's."""
    SESSION = "session"
    """A witness that counts only together with its session lease's: that is not there, or of another run or holder, or
    names this lease as one that was ended alone."""
    HALF = "half"
    """A witness of half a lease, without one of the other half: of the same domain and holder, by the same map."""
    EXPIRED = "expired"
    """At or after the expiry of a witness."""
    FLOOR = "floor"
    """At or below the floor of a witness."""


class AllowedSpan(msgspec.Struct, frozen=True, gc=False):
    """What a frame's witnesses allow together: timestamps above every floor and below every expiry."""

    domains: tuple[str, ...]
    """At least one."""
    floor_ns: Instant
    expiry_ns: Instant


type _Standing = tuple[int, int, bytes, bytes]
"""Which session lease: map, shard, incarnation of the shard, id."""

type _Part = tuple[int, Half]
"""How much of a lease a witness is, and by which map."""


class _Read(msgspec.Struct, frozen=True, gc=False):
    """A witness that is good by itself: of a lease, or of a session lease."""

    witness: Witness | SessionWitness
    session: _Standing | None
    """The session lease that it is of, or that its lease is under: then that one's expiry counts."""
    part: _Part


class FrameVerdict(msgspec.Struct, frozen=True):
    """Which messages of a frame are accepted: those from ``first`` up to and without ``end``.

    Always one stretch: each rule allows one interval of timestamps, and those of a frame increase.
    """

    first: int
    end: int
    domains: tuple[str, ...]
    refused: Mapping[str, int]
    """How many messages were refused, by Refusal."""


_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class Judge:
    def __init__(self, cluster_id: bytes, keyring: Keyring, policy: Policy) -> None:
        """Take the records. Keep verdicts of at most some thousand signatures of each kind."""
        self._cluster_id = cluster_id
        self._keyring = keyring
        self._policy = policy
        self._time = lru_cache(_SIGNATURES_KEPT)(self._read_time)
        self._witness = lru_cache(_SIGNATURES_KEPT)(self._read_witness)
        self._head = lru_cache(_SIGNATURES_KEPT)(self._head_refused)

    def verdict(self, frame: Frame, name: DataName, bag: Bag) -> FrameVerdict:
        """Say which messages of the frame, found in this file of this bag, are in the record."""
        head = frame.head
        token: SignedTime | Refusal = Refusal.MISPLACED
        if (head.cluster_id, head.log, head.writer) == (self._cluster_id, bag.log, name.writer):
            token = self._time(head.time, head.writer)
        standing = token if isinstance(token, Refusal) else self._standing(frame)
        if isinstance(token, Refusal) or isinstance(standing, Refusal):
            return FrameVerdict(0, 0, (), {str(standing): len(frame.timestamps)})
        near = r1_range(token, self._policy.r1_tolerance_ns)

        def refusal(timestamp: Instant) -> Refusal | None:
            if not bag.start_ns <= timestamp < bag.end_ns:
                return Refusal.OUTSIDE_BAG
            if timestamp not in near:
                return Refusal.R1
            if timestamp >= standing.expiry_ns:
                return Refusal.EXPIRED
            return Refusal.FLOOR if timestamp <= standing.floor_ns else None

        # With the first and the last, all are accepted.
        if refusal(int(frame.timestamps[0])) is None and refusal(int(frame.timestamps[-1])) is None:
            return FrameVerdict(0, len(frame.timestamps), standing.domains, _NOTHING)
        refusals = [refusal(timestamp) for timestamp in frame.timestamps.tolist()]
        accepted = [index for index, each in enumerate(refusals) if each is None]
        first, end = (accepted[0], accepted[-1] + 1) if accepted else (0, 0)
        assert len(accepted) == end - first, "a rule that allows more than one interval"
        return FrameVerdict(first, end, standing.domains, Counter(str(each) for each in refusals if each is not None))

    def _standing(self, frame: Frame) -> AllowedSpan | Refusal:
        leases: list[tuple[Witness, _Read]] = []
        sessions: dict[_Standing | None, tuple[SessionWitness, _Part]] = {}
        for raw in frame.head.witnesses:
            read = self._witness(raw, frame.head.writer, frame.head.incarnation)
            if isinstance(read, Refusal):
                return read
            if isinstance(read.witness, Witness):
                leases.append((read.witness, read))
            elif read.session in sessions:
                return Refusal.SESSION
            else:
                sessions[read.session] = read.witness, read.part
        if not leases:
            return Refusal.NO_LEASE
        expiries: list[Instant] = []
        parts: set[tuple[str, Holder, int, Half]] = set()
        for lease, read in leases:
            expiry, part = lease.expiry_ns, read.part
            if read.session is not None:
                session, its_part = sessions.get(read.session, (None, part))
                if session is None or session.holder != lease.holder or lease.correlation_id in session.ended:
                    return Refusal.SESSION
                # Under a session lease the later word counts: what is not renewed alone says what was, as its expiry.
                expiry, part = session.expiry_ns, max(its_part, part, key=itemgetter(0))
            expiries.append(expiry)
            parts.add((lease.domain, lease.holder, *part))
        if any(half.other and (*whose, half.other) not in parts for *whose, half in parts):
            return Refusal.HALF
        domains = tuple(dict.fromkeys(lease.domain for lease, _ in leases))
        return AllowedSpan(domains, max(lease.floor_ns for lease, _ in leases), min(expiries))

    def _read_time(self, raw: bytes, writer: str) -> SignedTime | Refusal:
        try:
            token = SignedTime.decode(raw)
        except Damaged:
            return Refusal.TIME_REFUSED
        if self._keyring.refuses_time(token) or self._keyring.node_of(token.key_id) != writer:
            return Refusal.TIME_REFUSED
        return Refusal.RADIUS if token.radius_ns > self._policy.radius_ns_max else token

    def _read_witness(self, raw: bytes, writer: str, incarnation: bytes) -> _Read | Refusal:
        try:
            signed = decode(SignedWitness, raw)
            witness, head = signed.statement(), signed.batch_head()
            time = head.signed_time()
            refused = self._head(signed.head, signed.signature) or not KnownPaths(head.count, head.root).holds(
                signed.entry, signed.index, signed.path
            )
        except Damaged:
            return Refusal.WITNESS_REFUSED
        if refused:
            return Refusal.WITNESS_REFUSED
        if isinstance(witness, Witness) and witness.phase is not Phase.HELD:
            return Refusal.TENTATIVE
        if isinstance(witness, Witness) and not witness.mode.may_write:
            return Refusal.MODE
        if time.radius_ns > self._policy.radius_ns_max:
            return Refusal.RADIUS
        if witness.expiry_ns > time.midpoint_ns + self._policy.lease_term_max_ns + time.radius_ns:
            return Refusal.TERM
        if (witness.holder.node, witness.holder.incarnation) != (writer, incarnation):
            return Refusal.HOLDER
        name = witness.session_id
        session = None if name is None else (head.map_number, head.shard, head.incarnation, name)
        return _Read(witness, session, (head.going_by, head.half))

    def _head_refused(self, head: bytes, signature: bytes) -> str | None:
        return head_refused(head, signature, self._keyring, self._cluster_id)
