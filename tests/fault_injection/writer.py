"""One writer process, scripted: it writes frames where it is told to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.formats.framing import Attempt, CommittedFrame, FrameHead, encode_frame
from appliance.formats.lease import Holder
from appliance.formats.paths import DataName, Grid
from timeagent.canonical import encode

from .tree import Change, ClusterTree, changed, seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.formats.paths import Bag

    from .shard import Lease


@dataclass
class Writer:
    """One writer process."""

    tree: ClusterTree
    node: str = "n2"
    incarnation: bytes = b""
    sequence: int = 0
    committed: CommittedFrame | None = None
    paths: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.incarnation = self.incarnation or self.tree.chance(8)

    @property
    def holder(self) -> Holder:
        return Holder(
            node=self.node,
            process=4711,
            boot=seed(self.node, "boot")[:16],
            incarnation=self.incarnation,
            purpose="test",
        )

    def publish(
        self,
        grid: Grid,
        *leases: Lease,
        payloads: Sequence[bytes] = (b"one", b"two"),
        at: int | None = None,
        bag: Bag | None = None,
        commits: bool = True,
        change: Change | None = None,
    ) -> str:
        """Write a frame into its bag; return its path. ``at``: the first timestamp; ``bag``: not its own."""
        time = self.tree.nodes[self.node].time
        floor = max((lease.witness.floor_ns for lease in leases), default=0)
        first = max(time.midpoint_ns, floor + 1) if at is None else at
        timestamps = range(first, first + len(payloads))
        self.sequence += 1
        sessions = {lease.session.witness.session_id: lease.session for lease in leases if lease.session is not None}
        head = changed(
            FrameHead(
                cluster_id=self.tree.cluster_id,
                log=grid.birth.log,
                writer=self.node,
                incarnation=self.incarnation,
                sequence=self.sequence,
                attempts=(Attempt(id=self.tree.chance(16), messages=len(payloads)),),
                committed=self.committed,
                time=time.token().encode(),
                witnesses=tuple(encode(lease.signed) for lease in leases)
                + tuple(encode(each.signed) for each in sessions.values()),
                trust_number=1,
                policy_number=1,
            ),
            change,
        )
        data, digest = encode_frame(head, timestamps, payloads)
        place = bag or grid.bag(first)
        path = self.tree.put(f"{place.path}/{DataName(self.node, self.incarnation, self.sequence).text()}", data)
        self.paths.append(path)
        for lease in leases:
            if lease.written_ns is None or timestamps[-1] > lease.written_ns:
                lease.written_ns, lease.written_time = timestamps[-1], head.time
            if commits:
                lease.messages += len(payloads)
                lease.chain_head = digest
        if commits:
            self.committed = CommittedFrame(sequence=head.sequence, digest=digest)
        return path
