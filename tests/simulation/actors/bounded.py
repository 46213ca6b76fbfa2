"""Holders that may not keep a lease for long, or only while they get on; and some that act outside the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.actors.session import Application
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from appliance.session.held import Lease
    from tests.simulation.actors.session import SessionKit
    from timeagent.units import Span


class Bounded(Application):
    """Falls asleep over its leases, which it may keep for so long in all, or only while it gets on."""

    gives_back = 0.5
    _hold_ns: Span | None = None
    _within_ns: Span | None = None

    def options(self, kit: SessionKit) -> dict[str, Any]:
        self._hold_ns, self._within_ns = kit.chance.choice(((5 * SECOND, None), (None, 2 * SECOND)))
        hold, within = (None if each is None else each / SECOND for each in (self._hold_ns, self._within_ns))
        return super().options(kit) | {"hold_s_max": hold, "progress_within_s": within}

    def taken(self, kit: SessionKit, leases: Sequence[Lease]) -> None:
        """Get on for a little, sleep, and note how long each lease was kept."""
        scheduler = self._world.scheduler
        if kit.chance.random() < 0.5:
            return
        if self._within_ns is not None:
            for _ in range(kit.chance.randint(0, 3)):
                kit.time.sleep(SECOND)
                for lease in leases:
                    lease.progress()
        limit = scheduler.now + (self._hold_ns or 0)
        if self._within_ns is not None:
            limit += self._within_ns + self._world.policy.lease_term_max_ns
        kit.time.sleep(10 * SECOND)
        self._world.history.kept_until += [(kit.process.name, each.domain, each.expiry_ns, limit) for each in leases]


class Outside(Application):
    """Does what no reader can check: only ever alone, also after its shard has forgotten who was there before."""

    gives_back = 0.6

    def options(self, kit: SessionKit) -> dict[str, Any]:
        del kit
        return {}  # what acquire does unless it is told otherwise
