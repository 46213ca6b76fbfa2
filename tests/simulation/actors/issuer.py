"""Leases for those who write without asking a shard: nobody writes without one, and bags need no shard to be tried.

A writer has a run of a shard to itself, with its node's witness key and its own signed times, so that a clock that lies
by hours goes on writing. Each publication has a domain that nobody else names: there is no floor to mind, and nothing
to settle. What it signs is in its ledger at once. No step is taken, nothing is drawn: a schedule is the same with it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.paths import ledger_path
from appliance.formats.witness import NO_HEAD, Half, Witness, WitnessKind, block_bytes, head_digest, sign_batch
from appliance.session.held import Lease
from timeagent.keys import Purpose

if TYPE_CHECKING:
    from tests.simulation.actors.processes import Kit

NO_CEILING: Final = 0
"""The number of the ceiling record that its heads name: there is none, because no other run can get in its way."""


class Issuer:
    """The run of one writer."""

    def __init__(self, kit: Kit, incarnation: bytes) -> None:
        """Begin a run for one incarnation of a writer."""
        self._kit = kit
        self._run = hashlib.sha256(incarnation).digest()[:8]
        self._tree = f"/{self._run.hex()}"
        self._map = kit.world.founded.map
        self._shard = self._map.shard_of(self._tree)
        self._holder = Holder(node=kit.context.node, process=1, boot=bytes(16), incarnation=incarnation)
        self._sequence = 0
        self._previous = NO_HEAD

    def lease(self) -> Lease:
        """Grant a lease on a fresh domain for the longest term. Raises BadTime."""
        world = self._kit.world
        time = self._kit.time.page()
        self._sequence += 1
        witness = Witness(
            kind=WitnessKind.GRANT,
            domain=f"{self._tree}/{self._sequence}",
            mode=Mode.X,
            phase=Phase.HELD,
            holder=self._holder,
            correlation_id=self._sequence.to_bytes(8) + self._run,
            fence=self._sequence,
            expiry_ns=time.midpoint_ns + world.policy.lease_term_max_ns,
            floor_ns=0,
            settle_to_ns=0,
            session_id=None,
            previous_id=None,
            last_ended=None,
            floor_set_by=None,
            others=0,
            others_digest=None,
        )
        batch = sign_batch(
            (witness,),
            world.keys[self._kit.context.node][Purpose.WITNESS],
            cluster_id=world.founded.policy.cluster_id,
            node=self._kit.context.node,
            map_number=self._map.number,
            shard=self._shard,
            incarnation=self._run,
            going_by=self._map.number,
            half=Half.WHOLE,
            ceiling_number=NO_CEILING,
            ceiling_ns=witness.expiry_ns,
            sequence=self._sequence,
            previous=self._previous,
            time=time,
        )
        self._previous = head_digest(batch.head)
        self._keep(block_bytes(batch))
        return Lease(
            domain=witness.domain,
            shard=self._shard,
            own_mode=witness.mode,
            correlation_id=witness.correlation_id,
            fence=witness.fence,
            stated_fence=witness.fence,
            own_expiry_ns=witness.expiry_ns,
            floor_ns=witness.floor_ns,
            settle_to_ns=witness.settle_to_ns,
            signed=batch.signed_witness(0),
            term_ns=world.policy.lease_term_max_ns,
        )

    def _keep(self, block: bytes) -> None:
        server = self._kit.world.server
        path = ledger_path(self._map.number, self._shard, self._run)
        file = server.find(path)
        if file is None:
            file = server.new(b"")
            server.mkdir(path.rpartition("/")[0])
            server.link(path, file)
        server.append(file, block)
