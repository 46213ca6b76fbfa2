"""Ends a lease from the screen, as ``tenure lease revoke`` does: its name typed again, a reason for the ledger.

The one thing here that changes anything; it is given to the screen by ``--write`` alone. The mount stays as it is: the
lease's shard ends it, and tells its ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.formats.lease import LeaseOutcome
from appliance.single_leases import ByHand
from timeagent.errors import BadConfiguration, BadRequest
from timeagent.units import rfc3339

if TYPE_CHECKING:
    import random

    from appliance.cluster import Cluster

    from .live import LiveSource


class Revoker:
    """Revokes through the cluster that a live source has opened. Any thread; one at a time."""

    def __init__(self, source: LiveSource, randomness: random.Random) -> None:
        """Ask nobody yet. ``randomness``: for the ids of requests."""
        self._source = source
        self._random = randomness

    def check(self) -> None:
        """Raise BadConfiguration where the mount has answered and shards cannot be asked from here."""
        answer = self._source.mount.answer
        if answer is not None and answer.offline:
            raise BadConfiguration(
                "cannot-write",
                f"nothing can be revoked from here: {answer.offline}",
                hint="join this machine, or name its settings with --node-dir",
            )

    def revoke(self, domain: str, correlation_id: str, typed: str, reason: str) -> str:
        """End one lease; return what came of it, in words. Blocks for the shard, at most three attempts.

        Raises BadRequest (the name does not match; no reason), BadConfiguration, ShardUnavailable.
        """
        if typed != domain:
            raise BadRequest("not-confirmed", f"{typed!r} is not {domain!r}: nothing was revoked", hint="type the name")
        hand = ByHand(self._cluster(), self._random)
        views = [view for view in hand.leases(domain) if view.correlation_id.hex() == correlation_id]
        if not views:
            return f"{domain}: there is no such lease (any more)"
        outcome, _ = hand.revoke(views[0], reason)
        if outcome is not LeaseOutcome.REVOKED:
            return f"{domain}: {outcome}"
        return f"{domain}: revoked. What its holder writes up to {rfc3339(views[0].expiry_ns)} still counts"

    def _cluster(self) -> Cluster:
        self.check()
        cluster = self._source.cluster
        if cluster is None:
            raise BadConfiguration("cannot-write", "the mount has not answered yet", hint="wait for it, then try again")
        return cluster
