"""The options that every command about a cluster takes, and opening the cluster that they name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.cluster import Cluster


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add --root, --node-dir, --allow-root and --json."""
    parser.add_argument("--root", metavar="DIR", help="the cluster's root directory (default: LEASEHOLD_ROOT)")
    parser.add_argument("--node-dir", metavar="DIR", help="this node's settings and keys (default: the usual places)")
    parser.add_argument("--allow-root", action="store_true", help="work as the superuser, whom no file mode stops")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


def open_cluster(options: argparse.Namespace) -> Cluster:
    """Open the cluster that the options name. Raises what Cluster.open raises."""
    from appliance.cluster import Cluster

    return Cluster.open(options.root, node_dir=options.node_dir, allow_root=options.allow_root)
