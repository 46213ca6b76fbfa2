"""Wrong versions of steps of a planned move, in the scenario of moves. Each names the checker that kills it.

One belongs to the exhaustive casts alone: a terminal record that is believed at first sight does no harm before a chain
is pruned, which is 64 records long then.
"""

from __future__ import annotations

from appliance.admin import moving
from appliance.daemon import failover
from appliance.lease import ceiling, shard, whole_shard
from appliance.node import hosted_shard, shards
from appliance.session import held, session_leases
from tests.simulation.mutant import Mutant, one

MOVES: tuple[Mutant, ...] = (
    Mutant(
        "chains that come count when the first of those that leave has ended",
        one(
            ceiling,
            "Succession.beginning",
            "if doubt is not None:",
            "if doubt is not None and all((isinstance(each, InDoubt) for each in ended)):",
        ),
        "witnesses",
        "moves",
    ),
    Mutant(
        "a shard that came counts before those that leave have ended",
        one(shards, "ShardHost._follows", "chain == 1 or", "True or"),
        "witnesses",
        "moves",
    ),
    Mutant(
        "a shard that came raises nothing",
        one(shard, "Shard.go_by", "going.half is Half.COMING and half is not Half.COMING", "False"),
        "witnesses",
        "moves",
    ),
    Mutant(
        "a shard that came raises no domain that it remembers",
        one(shard, "Shard._risen", "(state := self._store.read(domain)) is not None", "False"),
        "witnesses",
        "moves",
    ),
    Mutant(
        "a shard that leaves ends below what counts alone",
        one(shard, "Shard._link_end", "alone = self._going.alone_until_ns", "alone = 0"),
        "endings",
        "moves",
    ),
    Mutant(
        "a move ends while leases may be held from one shard alone",
        one(moving, "Finish.waits_for", "now.surely_past(numbers.alone_until_ns)", "True"),
        "unmoved",
        "moves",
    ),
    Mutant(
        "a shard that leaves says that nothing is held from it alone",
        one(shard, "Shard.go_by", "self._store.latest_expiry() or 0", "0"),
        "overlap",
        "moves",
    ),
    Mutant(
        "a shard that leaves serves who goes by the map before",
        one(whole_shard, "GoingBy.take", "shard_map.since(self._shard)", "1"),
        "unmoved",
        "moves",
    ),
    Mutant(
        "a frame under a lease of two halves carries one",
        one(held, "Lease.halves", "return (self, self.second)", "return (self,)"),
        "published",
        "moves",
    ),
    Mutant(
        "a lease has a stronger mode as soon as one of its halves has it",
        one(held, "Lease.mode", "second is None", "True"),
        "published",
        "moves",
    ),
    Mutant(
        "the half from the shard that comes says less than the other",
        one(session_leases, "above_of", "lease.shard < shard", "False"),
        "halves",
        "moves",
    ),
    Mutant(
        "a shard that leaves forgets over a restart until when leases may be held from it alone",
        one(shard, "Shard.resume", "self._going.alone_until_ns = said.alone_until_ns", "pass"),
        "resumed",
        "moves",
    ),
    Mutant(
        "a shard that goes on goes by the map of its chain",
        one(shards, "ShardHost._resumed", "self._registers.map(said.going_by)", "self._registers.map(said.map_number)"),
        "resumed",
        "moves",
    ),
    Mutant(
        "what was left goes on only where the newest map has its shard begin",
        one(failover, "ShardFailover.turn", "self._host.resumable()", "()"),
        "unmoved",
        "moves",
    ),
    Mutant(
        "a map comes into force amid a turn of the shard",
        one(hosted_shard, "HostedShard.go_by", "with self._guard:", "with contextlib.nullcontext():"),
        "endings",
        "moves",
        first=2_700,
    ),
)
