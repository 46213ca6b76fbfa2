"""``tenure node run``: this node's shards and metronome, until SIGTERM."""

from __future__ import annotations

import argparse
import signal
from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options, open_cluster
from appliance.cli.upgrade import add_upgrade, run_upgrade
from timeagent.console import Command, note, print_json

if TYPE_CHECKING:
    from appliance.cluster import Cluster


def _add_node(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    run = verbs.add_parser("run", help="run until SIGTERM or SIGINT, then stop orderly")
    run.add_argument(
        "--listen", metavar="HOST[:PORT]", help="answer other nodes there (default: `listen` in node.toml)"
    )
    run.add_argument("--http", metavar="HOST:PORT", help="answer HTTP there (default: `http` in node.toml)")
    upgrade = verbs.add_parser("upgrade", help="have another release run: drain, stop, check, start")
    add_upgrade(upgrade)
    for verb in (run, upgrade):
        add_cluster_options(verb)


def time_words(cluster: Cluster) -> str:
    """Return where a cluster's times come from, for people."""
    if cluster.time_by_agent:
        return "from the node's agent (tenure time run)"
    return "made in this process: no agent runs (tenure time run)"


def run_verb(options: argparse.Namespace) -> int:
    """Run one verb."""
    return run_upgrade(options) if options.verb == "upgrade" else run_node(options)


def run_node(options: argparse.Namespace) -> int:
    """Run the daemon in the foreground."""
    from importlib.metadata import version

    from appliance.formats.address import parse_address
    from appliance.node import Node

    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    cluster = open_cluster(options)
    if options.listen:
        cluster.settings = replace(cluster.settings, listen=parse_address(options.listen))
    if options.http:
        cluster.settings = replace(cluster.settings, http=parse_address(options.http))
    node = Node(cluster, version=version("tenure"))
    try:
        with cluster:
            shards = node.start()
            if options.json:
                places = {"address": node.address, "http": node.web_address}
                print_json(
                    "tenure.node",
                    {
                        "node": cluster.settings.node,
                        "shards": shards,
                        "awaited": [{"shard": shard, "reason": why} for shard, why in node.awaited.items()],
                        "time": "agent" if cluster.time_by_agent else "embedded",
                    }
                    | {name: None if place is None else str(place) for name, place in places.items()},
                )
            reached = f", reached at {node.address}" if node.address else ""
            note(f"tenure: node {cluster.settings.node} runs shards {shards or 'none'}{reached}")
            for shard, why in node.awaited.items():
                note(f"tenure: shard {shard} is waited for: {why}")
            note(f"tenure: time {time_words(cluster)}")
            try:
                node.run(stop, lambda shard: note(f"tenure: shard {shard} runs here now"))
            finally:
                node.stop()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends the waiting
            node.stopping()
            note("tenure: stopping: waiting until every lease is relinquished or over")
    finally:
        node.close()
    return 0


COMMANDS: Final = {
    "node": Command("Run this node's shards and metronome; have another release run.", _add_node, run_verb)
}
