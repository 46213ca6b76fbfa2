"""``leasehold node run``: this node's shards and metronome, until SIGTERM."""

from __future__ import annotations

import argparse
import signal
from threading import Event
from typing import Final

from appliance.cli.opening import add_cluster_options, open_cluster
from timeagent.console import Command, note, print_json


def _add_node(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    run = verbs.add_parser("run", help="run until SIGTERM or SIGINT, then stop orderly")
    add_cluster_options(run)


def run_node(options: argparse.Namespace) -> int:
    """Run the daemon in the foreground."""
    from appliance.node import Node

    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    with open_cluster(options) as cluster:
        node = Node(cluster)
        shards = node.start()
        if options.json:
            print_json("leasehold.node", {"node": cluster.settings.node, "shards": shards})
        note(f"leasehold: node {cluster.settings.node} runs shards {shards or 'none'}")
        node.run(stop)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends the waiting
        note("leasehold: stopping: waiting until every lease is relinquished or over")
    return 0


COMMANDS: Final = {"node": Command("Run this node's shards and metronome.", _add_node, run_node)}
