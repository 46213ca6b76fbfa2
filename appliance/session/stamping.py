"""Timestamps, and the frames that carry them: how a batch of payloads becomes a file for a bag.

The rules (docs/protocol/bag.md): above every floor, above what this writer wrote and read, surely below every expiry,
within R1 of its signed time, all in one bag. Where a floor lies ahead of the clock the writer pauses; it never stamps a
far future.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.bag.maildir import FrameFile
from appliance.formats.frame import Attempt, CommittedFrame, FrameHead, check_payloads, encode_frame
from appliance.formats.paths import DataName
from timeagent.canonical import encode
from timeagent.errors import BadTime
from timeagent.rules import r1_holds
from timeagent.units import MS, SECOND, rfc3339, span_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.bag.records import RecordNumbers
    from appliance.formats.paths import Grid
    from appliance.formats.policy import Policy
    from timeagent.clock import NodeTime
    from timeagent.units import Instant

    from .held import Lease


@dataclass(frozen=True, slots=True)
class Publication:
    """One attempt, ready to be written."""

    file: FrameFile
    digest: bytes
    first_ns: Instant
    last_ns: Instant
    time: bytes
    sequence: int
    messages: int


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


class Stamper:
    """Makes publications for one writer."""

    def __init__(self, time: NodeTime, policy: Policy, state: WriterState) -> None:
        """Take the writer's state, which this changes."""
        self._time = time
        self._policy = policy
        self._state = state

    def first_timestamp(self, grid: Grid, leases: Sequence[Lease], count: int) -> Instant:
        """Return the first of ``count`` consecutive timestamps, all in one bag.

        Waits while they lie ahead of the clock. Raises LeaseLost when a lease runs out meanwhile, BadTime when a floor
        is too far ahead to wait for.
        """
        floors = [lease.floor_ns for lease in leases]
        above = max(*floors, self._state.last_ns, self._state.read_ns, grid.first_ns - 1) + 1
        ahead = above - self._time.now().latest
        longest = self._policy.lease_term_max_ns + self._policy.ceiling_ahead_ns + 2 * self._policy.radius_ns_max
        if ahead > longest:
            raise BadTime(
                "floor-too-far-ahead",
                f"the next timestamp must be above {rfc3339(above - 1)}, {span_text(ahead)} ahead of this clock",
                hint="one of the clocks of this cluster is wrong: leasehold time now, on each node",
            )
        while True:
            now = self._time.now()
            for lease in leases:
                lease.check_held(now, self._policy.holder_margin_ns)
            start = max(now.midpoint, above)
            bag = grid.bag(start)
            if start + count > bag.end_ns:
                start = bag.end_ns
            if start <= now.latest + MS:
                return start
            self._time.sleep(min(start - now.latest, SECOND // 10))

    def publication(
        self,
        grid: Grid,
        payloads: Sequence[bytes],
        leases: Sequence[Lease],
        attempt_id: bytes,
        numbers: RecordNumbers,
    ) -> Publication:
        """Stamp and encode a batch. Raises BadRequest for what is over a limit, LeaseLost, BadTime."""
        check_payloads(payloads)
        first = self.first_timestamp(grid, leases, len(payloads))
        last = first + len(payloads) - 1
        token = self._time.token()
        now = self._time.now()
        for lease in leases:
            lease.check_held(now, self._policy.holder_margin_ns)
            assert lease.floor_ns < first
            assert last < lease.expiry_ns
        for timestamp in (first, last):
            if not r1_holds(timestamp, token, self._policy.r1_tolerance_ns):
                raise BadTime(
                    "r1-would-fail",
                    f"the timestamp {rfc3339(timestamp)} is too far from the signed time {rfc3339(token.midpoint_ns)}",
                    hint="the clock stepped while the message was made: try again",
                )
        state = self._state
        state.sequence += 1
        state.last_ns = last
        head = FrameHead(
            cluster_id=state.cluster_id,
            log=grid.birth.log,
            writer=state.node,
            incarnation=state.incarnation,
            sequence=state.sequence,
            attempts=(Attempt(id=attempt_id, messages=len(payloads)),),
            committed=state.committed,
            time=token.encode(),
            witnesses=tuple(encode(lease.signed) for lease in leases),
            trust_number=numbers.trust,
            policy_number=numbers.policy,
        )
        data, digest = encode_frame(head, range(first, last + 1), payloads)
        name = DataName(state.node, state.incarnation, state.sequence)
        file = FrameFile(grid.bag(first), name, data)
        return Publication(file, digest, first, last, head.time, state.sequence, len(payloads))
