"""What commands about a cluster share: their options, opening the cluster that these name, reading its records."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

from timeagent import VERSION
from timeagent.console import Argument, Command, argument, command, note

if TYPE_CHECKING:
    from appliance.bag.roots import Root
    from appliance.cluster import Cluster
    from appliance.node.records import Registers
    from appliance.node.releases import Releases
    from timeagent.keys import Signer

    from ..bag.ports import Storage

_CLUSTER_OPTIONS: Final = {
    "--root DIR": "the cluster's root: a directory, or s3://BUCKET/PREFIX (default: TENURE_ROOT)",
    "--node-dir DIR": "this node's settings and keys (default: the usual places)",
    "--allow-root": "work as the superuser, whom no file mode stops",
    "--json": "machine-readable output",
}
JSON: Final = argument("--json", _CLUSTER_OPTIONS["--json"])
ROOT_KEY: Final = argument("--root-key FILE", "the cluster's root key", required=True)

EXIT_NO: Final = 1
"""No error, and not what was asked for (docs/exit-codes.md)."""


def add_cluster_options(parser: argparse.ArgumentParser, *, repeated: bool = False) -> None:
    """Add --root, --node-dir, --allow-root and --json.

    ``repeated``: of a verb whose word takes them too. What the verb is not told is then what the word was told:
    argparse would put the verb's defaults in its place.
    """
    default = {"default": argparse.SUPPRESS} if repeated else {}
    for names, text in _CLUSTER_OPTIONS.items():
        argument(names, text, **default)(parser)


def named_root(options: argparse.Namespace) -> Root:
    """Return the root that ROOT names. Raises BadRequest where --root names another one."""
    from appliance.bag.roots import parse_root
    from timeagent.errors import BadRequest

    root = parse_root(options.root_path)
    if options.root is not None and parse_root(options.root) != root:
        raise BadRequest("two-roots", f"both {root} and --root {options.root} are named", hint="leave out --root")
    return root


def open_cluster(options: argparse.Namespace) -> Cluster:
    """Open the cluster that the options name; say so where node.toml names another directory: this may be a copy."""
    from appliance.cluster import Cluster

    cluster = Cluster.open(options.root, node_dir=options.node_dir, allow_root=options.allow_root)
    if not cluster.settings.is_root(cluster.root):
        named = cluster.settings.root
        note(f"tenure: node.toml names {named}, and {cluster.root} is another root: what is written here is not there")
    return cluster


def cluster_command(
    summary: str, work: Callable[[Cluster, argparse.Namespace], int], *arguments: Argument, repeated: bool = False
) -> Command:

    def run(options: argparse.Namespace) -> int:
        with open_cluster(options) as cluster:
            return work(cluster, options)

    return command(summary, run, *arguments, lambda parser: add_cluster_options(parser, repeated=repeated))


def registers_at(storage: Storage, root: Root) -> Registers:
    """Return the records of the cluster at a root, by the key in its marker. Raises what read_marker raises."""
    from appliance.node.records import Registers
    from timeagent.keys import Verifier

    from ..admin.membership import read_marker

    marker = read_marker(storage, root)
    return Registers(storage, marker.cluster_id, Verifier(marker.root_key))


def releases_of(cluster: Cluster, own: str = VERSION) -> Releases:
    """Return what asks every node that has an address which release it runs: ``look`` blocks for some seconds."""
    from appliance.node.releases import Releases

    trust = cluster.watch_trust()
    return Releases(cluster.settings.node, cluster.keys.tls, cluster.registers.cluster_id, trust, cluster.time, own)


def note_skew(known: Mapping[str, str | None]) -> bool:
    """Return whether nodes run different releases, and say so."""
    from appliance.node.releases import in_words, skewed

    if skewed(known):
        note(f"tenure: nodes run different releases: {in_words(known)}")
    return skewed(known)


def stop_on_signals(interrupted: Event | None = None) -> Event:
    """Return what is set by SIGTERM and SIGINT from now on. ``interrupted`` is set by SIGINT too."""
    stop = Event()

    def told(number: int, _: object) -> None:
        if number == signal.SIGINT and interrupted is not None:
            interrupted.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told)
    return stop


def root_key(cluster: Cluster, options: argparse.Namespace) -> Signer:
    """Read the root key that the options name. Raises NotTrusted for that of another cluster."""
    from ..admin.membership import load_root_key

    return load_root_key(Path(options.root_key), cluster.settings.root_key, cluster.root)
