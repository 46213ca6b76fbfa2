"""A session that answers recalls, and keeps leases between uses: now in one way, now in another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.session.endings import LossReason, Recall
from tests.simulation.actors.session import Application

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.session.held import Lease, Loss
    from tests.simulation.actors.session import SessionKit


class Obliging(Application):
    """Gives back what is asked for, as chosen for each lease; mostly keeps what nobody asks for."""

    def options(self, kit: SessionKit) -> dict[str, Any]:
        answer = kit.chance.choice((Recall.FINISH, Recall.FLUSH, Recall.RELINQUISH))
        return super().options(kit) | {"recall": answer, "sticky_s": kit.chance.choice((None, 1, 60))}

    def taken(self, kit: SessionKit, leases: Sequence[Lease]) -> None:
        """Flush when told to, and note in true time when a lease that is asked for is over."""
        for lease in leases:
            lease.on_lost(lambda loss: self._lost(kit, loss))
            if lease.recall is Recall.FLUSH:
                lease.on_recall(lambda each: self._flush(kit, each))

    def _flush(self, kit: SessionKit, lease: Lease) -> None:
        log = kit.chance.choice(self._logs)
        kit.publish(log, [f"{kit.process.name}.{self._world.number()}.flushed".encode()], [lease])

    def _lost(self, kit: SessionKit, loss: Loss) -> None:
        if loss.reason is LossReason.RECALLED:
            kit.over([loss.lease])


class Dozing(Obliging):
    """Renews only now and then: what it keeps runs out on the shelf, or in its hand."""

    renews = False

    def _use(self, kit: SessionKit, leases: Sequence[Lease], number: int) -> None:
        super()._use(kit, leases, number)
        if kit.chance.random() < 0.3:
            kit.time.sleep(kit.policy.lease_term_max_ns)
            super()._use(kit, leases, number)
