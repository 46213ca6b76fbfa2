"""Which messages of a frame are in the record: what readers reject, by the records that the bag's lock file names.

Pure: no I/O. The same bytes under the same records get the same verdict on every node, for ever. Verdicts of signatures
are kept, by their bytes: a token and a witness are shared by many frames.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from appliance.formats.lease import Phase
from appliance.formats.merkle import root_of_path
from appliance.formats.witness import SignedWitness, head_refused
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.rules import r1_holds
from timeagent.signedtime import SignedTime
from timeagent.units import INSTANT_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from appliance.formats.frame import Frame
    from appliance.formats.paths import Bag, DataName
    from appliance.formats.policy import Policy
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
    """The signed time: a bad or untrusted signature."""
    OUTSIDE_BAG = "outside-bag"
    R1 = "r1"
    WITNESS_REFUSED = "witness-refused"
    """A witness: damaged, or a bad or untrusted signature."""
    TENTATIVE = "tentative"
    MODE = "mode"
    """A witness of a mode that may not write."""
    TERM = "term"
    """A witness whose expiry is beyond its signed time + the maximum term + its radius."""
    HOLDER = "holder"
    """A witness of another incarnation than the frame's."""
    SESSION = "session"
    """A witness that counts only together with its session's, and that is not there."""
    EXPIRED = "expired"
    """At or after the expiry of a witness."""
    FLOOR = "floor"
    """At or below the floor of a witness."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a frame's witnesses allow together: timestamps above every floor and below every expiry."""

    domains: tuple[str, ...] = ()
    floor_ns: Instant = -1
    expiry_ns: Instant = INSTANT_MAX


@dataclass(frozen=True, slots=True)
class Verdict:
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
    """Judges frames by one trust record and one policy."""

    def __init__(self, cluster_id: bytes, keyring: Keyring, policy: Policy) -> None:
        """Take the records. Keep verdicts of at most some thousand signatures of each kind."""
        self._cluster_id = cluster_id
        self._keyring = keyring
        self._policy = policy
        self._time = lru_cache(_SIGNATURES_KEPT)(self._read_time)
        self._witness = lru_cache(_SIGNATURES_KEPT)(self._read_witness)
        self._head = lru_cache(_SIGNATURES_KEPT)(self._head_refused)

    def verdict(self, frame: Frame, name: DataName, bag: Bag) -> Verdict:
        """Say which messages of the frame, found in this file of this bag, are in the record."""
        allowed = self._allowed(frame, name, bag)
        if isinstance(allowed, Refusal):
            return Verdict(0, 0, (), {str(allowed): len(frame.timestamps)})
        token, standing = allowed

        def refusal(timestamp: Instant) -> Refusal | None:
            if not bag.start_ns <= timestamp < bag.end_ns:
                return Refusal.OUTSIDE_BAG
            if not r1_holds(timestamp, token, self._policy.r1_tolerance_ns):
                return Refusal.R1
            if timestamp >= standing.expiry_ns:
                return Refusal.EXPIRED
            return Refusal.FLOOR if timestamp <= standing.floor_ns else None

        # With the first and the last, all are accepted.
        if refusal(int(frame.timestamps[0])) is None and refusal(int(frame.timestamps[-1])) is None:
            return Verdict(0, len(frame.timestamps), standing.domains, _NOTHING)
        refusals = [refusal(timestamp) for timestamp in frame.timestamps.tolist()]
        accepted = [index for index, each in enumerate(refusals) if each is None]
        first, end = (accepted[0], accepted[-1] + 1) if accepted else (0, 0)
        assert len(accepted) == end - first, "a rule that allows more than one interval"
        return Verdict(first, end, standing.domains, Counter(str(each) for each in refusals if each is not None))

    def _allowed(self, frame: Frame, name: DataName, bag: Bag) -> tuple[SignedTime, Standing] | Refusal:
        """Return by what each message's timestamp is judged, or why no message can be accepted."""
        head = frame.head
        if (head.cluster_id, head.log, head.writer) != (self._cluster_id, bag.log, name.writer):
            return Refusal.MISPLACED
        token = self._time(head.time)
        if isinstance(token, Refusal):
            return token
        standing = self._standing(frame)
        return standing if isinstance(standing, Refusal) else (token, standing)

    def _standing(self, frame: Frame) -> Standing | Refusal:
        domains: list[str] = []
        floor, expiry = -1, INSTANT_MAX
        for raw in frame.head.witnesses:
            read = self._witness(raw, frame.head.incarnation)
            if isinstance(read, Refusal):
                return read
            domains.extend(read.domains)
            floor, expiry = max(floor, read.floor_ns), min(expiry, read.expiry_ns)
        return Standing(tuple(domains), floor, expiry)

    def _read_time(self, raw: bytes) -> SignedTime | Refusal:
        try:
            token = SignedTime.decode(raw)
        except Damaged:
            return Refusal.TIME_REFUSED
        return Refusal.TIME_REFUSED if self._keyring.refuses_time(token) else token

    def _read_witness(self, raw: bytes, incarnation: bytes) -> Standing | Refusal:
        try:
            signed = decode(SignedWitness, raw)
            witness, head = signed.witness(), signed.batch_head()
            time = head.signed_time()
            refused = (
                self._head(signed.head, signed.signature)
                or root_of_path(signed.entry, signed.index, head.count, signed.path) != head.root
            )
        except Damaged:
            return Refusal.WITNESS_REFUSED
        if refused:
            return Refusal.WITNESS_REFUSED
        if witness.phase is not Phase.HELD:
            return Refusal.TENTATIVE
        if not witness.mode.may_write:
            return Refusal.MODE
        if witness.session_id is not None:
            return Refusal.SESSION
        if witness.expiry_ns > time.midpoint_ns + self._policy.lease_term_max_ns + time.radius_ns:
            return Refusal.TERM
        if witness.holder.incarnation != incarnation:
            return Refusal.HOLDER
        return Standing((witness.domain,), witness.floor_ns, witness.expiry_ns)

    def _head_refused(self, head: bytes, signature: bytes) -> str | None:
        return head_refused(head, signature, self._keyring, self._cluster_id)
