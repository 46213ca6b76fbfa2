"""Wrong versions of who runs a shard, in the scenario of heirs. Each names the checker that kills it.

Some are not here, because nothing comes of them. Who inherits without looking at the ceiling itself is held back by the
host, which looks again. Who begins under a map while chains before it have not ended is held back by the chain, which
asks what it begins with. A node that may give its own shard away asks itself, and says that it runs it.
"""

from __future__ import annotations

from appliance.daemon import failover
from appliance.node import shards
from tests.simulation.mutant import Mutant, one

TENANCY: tuple[Mutant, ...] = (
    Mutant(
        "a shard begins while the node that has it may grant",
        one(shards, "ShardHost._courtesy", "newest.kind is not CeilingKind.RUNNING or ", "True or "),
        "patient",
        "heirs",
    ),
    Mutant(
        "an application runs the shard of its dead daemon",
        one(shards, "ShardHost.missing_daemon", "not others", "True"),
        "blocked",
        "heirs",
    ),
    Mutant(
        "a shard is taken over from a node that answers",
        one(
            failover,
            "ShardFailover._inherits",
            "self._routes.probe(shard, node) in _DEAD",
            "self._routes.probe(shard, node)",
        ),
        "heirs",
        "heirs",
    ),
    Mutant(
        "a shard is taken over when its owner alone does not answer",
        one(failover, "ShardFailover._inherits", "order[:order.index(self._node)]", "order[:1]"),
        "heirs",
        "heirs",
    ),
    Mutant(
        "a shard is taken over that nobody asked for",
        one(failover, "ShardFailover._inherits", "asked is None or self._time.boot_ns() - asked > ASKED_NS", "False"),
        "heirs",
        "heirs",
    ),
    Mutant(
        "a shard never goes home",
        one(failover, "ShardFailover._look_at", "owner == self._node or ", "True or "),
        "homes",
        "heirs",
    ),
    Mutant(
        "a shard is given to an owner that does not answer",
        one(failover, "ShardFailover._look_at", "self._routes.probe(shard, owner) == 'not-here'", "True"),
        "handover",
        "heirs",
    ),
    Mutant(
        "a shard goes home as in a crash",
        one(failover, "ShardFailover._leave", "self._host.leave(shard)", "self._host.drop(shard)"),
        "handover",
        "heirs",
    ),
    Mutant(
        "that somebody asked counts for ever",
        one(failover, "ShardFailover._inherits", "self._time.boot_ns() - asked > ASKED_NS", "False"),
        "heirs",
        "heirs",
    ),
    Mutant(
        "a run that another has overtaken is kept",
        one(failover, "ShardFailover._look_at", "self._host.superseded(shard)", "False"),
        "homes",
        "heirs",
    ),
    Mutant(
        "who looks at all shards looks at what others change meanwhile",
        one(shards, "ShardHost.everything", "dict(self._hosted)", "self._hosted"),
        "bug",
        "heirs",
    ),
)
