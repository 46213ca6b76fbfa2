"""How domains spread over shards, and how many move when there are more of them: the production map over every name.

python -m tests.simulation.scale.spread [--domains 1000000] [--shards 300] [--more 310]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from array import array
from collections import Counter
from statistics import NormalDist

from appliance.admin.moving import resharded
from appliance.formats.shardmap import ShardMap
from tests.simulation.cluster import CLUSTER, names

OUTSIDE_MAX = 1e-6
"""A spread that is so improbable for even hashing is refused."""


def spread(domains: int, shards: int, more: int) -> dict[str, float]:
    """Return the fewest and the most domains of a shard, what even hashing bounds them by, and what share moves."""
    nodes = names(shards)
    before = ShardMap(number=1, cluster_id=CLUSTER, owners=nodes)
    after = resharded(before, more, names(more))
    places_before, places_after = array("H"), array("H")
    for number in range(domains):
        domain = f"client-{number % 10_000}/{number}"
        places_before.append(before.shard_of(domain))
        places_after.append(after.of(domain) % 1024)
    held, mean = Counter(places_before), domains / shards
    far = NormalDist().inv_cdf(1 - OUTSIDE_MAX / 2 / shards) * math.sqrt(mean * (1 - 1 / shards))
    return {
        "domains": domains,
        "shards": shards,
        "mean": round(mean, 1),
        "fewest": min(held[place] for place in range(shards)),
        "most": max(held.values()),
        "bound_low": round(mean - far, 1),
        "bound_high": round(mean + far, 1),
        "more": more,
        "moved": sum(one != other for one, other in zip(places_before, places_after, strict=True)) / domains,
        "moved_predicted": (more - shards) / more,
    }


def complaints(found: dict[str, float]) -> list[str]:
    """Return what is not as even hashing would have it."""
    said = []
    if not found["bound_low"] <= found["fewest"] <= found["most"] <= found["bound_high"]:
        said.append(f"shards hold {found['fewest']} to {found['most']} domains, outside of what chance explains")
    allowed = 5 * math.sqrt(found["moved_predicted"] / found["domains"])
    if abs(found["moved"] - found["moved_predicted"]) > allowed:
        said.append(f"{found['moved']:.4f} of all domains get another place, not {found['moved_predicted']:.4f}")
    return said


def main() -> int:
    """Show and judge. Exit 1: the spread is not that of even hashing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=300)
    parser.add_argument("--more", type=int, default=310)
    options = parser.parse_args()
    found = spread(options.domains, options.shards, options.more)
    print(json.dumps(found))
    said = complaints(found)
    for each in said:
        print(each, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
