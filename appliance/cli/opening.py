"""The options that every command about a cluster takes, and opening the cluster that they name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.cluster import Cluster
    from timeagent.keys import Signer


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


def root_key(cluster: Cluster, options: argparse.Namespace) -> Signer:
    """Read the root key that the options name. Raises NotTrusted for that of another cluster."""
    from timeagent.errors import NotTrusted
    from timeagent.keys import load_private_key

    key = load_private_key(Path(options.root_key))
    if key.public != cluster.settings.root_key:
        raise NotTrusted(
            "other-cluster",
            f"{options.root_key} is not the root key of the cluster at {cluster.root}",
            hint="take root.key from the machine that ran leasehold init",
        )
    return key
