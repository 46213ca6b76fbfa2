"""``leasehold shards``: which shards there are, whose they are, where they answer, and whether they do."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.opening import add_cluster_options, open_cluster
from appliance.lease.showing import shard_fields
from timeagent.console import Command, counted, instant_fields, print_json, say
from timeagent.errors import ShardUnavailable
from timeagent.units import span_text

if TYPE_CHECKING:
    from appliance.lease.wire import ShardNumbers
    from timeagent.units import Instant


def _add_shards(parser: argparse.ArgumentParser) -> None:
    add_cluster_options(parser)


def run_shards(options: argparse.Namespace) -> int:
    """Ask every shard how it stands; none is started for that. 69 if none answers."""
    with open_cluster(options) as cluster:
        now = cluster.time.now().midpoint
        shown: list[dict[str, Any]] = []
        for shard, owner in enumerate(cluster.map.owners):
            fields: dict[str, Any] = {"shard": shard, "node": owner, "where": cluster.routes.where(shard)}
            line = f"shard {shard}  {owner}  {fields['where']}  "
            try:
                numbers = cluster.routes.numbers(shard)
            except ShardUnavailable as problem:
                fields |= {"answers": False, "code": problem.code, "reason": problem.message}
                line += f"no answer: {problem.message} [{problem.code}]"
            else:
                fields |= {"answers": True} | shard_fields(numbers)
                line += _stand(numbers, now)
            shown.append(fields)
            if not options.json:
                say(line)
        if options.json:
            print_json(
                "leasehold.shards",
                {
                    "map": cluster.map.number,
                    **instant_fields("now", now),
                    "seen_from": cluster.settings.node,
                    "shards": shown,
                },
            )
    return 0 if any(fields["answers"] for fields in shown) else ShardUnavailable.exit_status


def _stand(numbers: ShardNumbers, now: Instant) -> str:
    left = numbers.ceiling_ns - now
    right = f"may grant for {span_text(left)}" if left > 0 else "idle"
    return f"{counted(numbers.leases, 'lease')}, {right}, incarnation {numbers.incarnation.hex()}"


COMMANDS: Final = {"shards": Command("Which shards there are, and which answer.", _add_shards, run_shards)}
