"""``leasehold trust``: which nodes the cluster knows, where they answer, and taking that back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options, open_cluster
from timeagent.console import Command, instant_fields, print_json, say
from timeagent.units import rfc3339

if TYPE_CHECKING:
    from appliance.cluster import Cluster
    from timeagent.keys import Signer


def _add_trust(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    ls = verbs.add_parser("ls", help="every key of the newest trust record")
    revoke = verbs.add_parser("revoke", help="believe nothing that a node signs from now on, and let it in no more")
    move = verbs.add_parser("move", help="say where a node answers other nodes")
    for verb in (revoke, move):
        verb.add_argument("node", metavar="NODE")
        verb.add_argument("--root-key", metavar="FILE", required=True, help="root.key of the machine that ran init")
    move.add_argument("address", metavar="HOST[:PORT]", help="or `none`: it answers nobody")
    for verb in (ls, revoke, move):
        add_cluster_options(verb)


def run_trust(options: argparse.Namespace) -> int:
    """Run one verb."""
    verbs = {"ls": _list, "revoke": _revoke, "move": _move}
    with open_cluster(options) as cluster:
        return verbs[options.verb](cluster, options)


def _list(cluster: Cluster, options: argparse.Namespace) -> int:
    record = cluster.registers.trust(cluster.registers.newest().trust)
    if options.json:
        keys = [
            {
                "node": entry.node,
                "purpose": entry.purpose,
                "public": entry.public.hex(),
                **instant_fields("valid_from", entry.valid_from_ns),
                **instant_fields("valid_until", entry.valid_until_ns),
                **({} if entry.revoked_from_ns is None else instant_fields("revoked_from", entry.revoked_from_ns)),
                "address": entry.address,
            }
            for entry in record.keys
        ]
        print_json("leasehold.trust", {"number": record.number, "keys": keys})
        return 0
    for entry in record.keys:
        until = f"until {rfc3339(entry.valid_until_ns)}"
        if entry.revoked_from_ns is not None:
            until = f"revoked from {rfc3339(entry.revoked_from_ns)}"
        where = f"  at {entry.address}" if entry.address else ""
        say(f"{entry.node}  {entry.purpose}  {entry.public.hex()[:16]}  {until}{where}")
    return 0


def _revoke(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.founding import revoke_node

    number = revoke_node(cluster.registers, _root_key(cluster, options), options.node, cluster.time.now().midpoint)
    return _said(options, number, f"Trust record {number}: no key of {options.node} counts from now on.")


def _move(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.formats.address import parse_address
    from appliance.founding import move_node

    address = None if options.address == "none" else parse_address(options.address)
    number = move_node(cluster.registers, _root_key(cluster, options), options.node, address)
    where = f"answers at {address}" if address else "answers no other node"
    return _said(options, number, f"Trust record {number}: {options.node} {where}.")


def _said(options: argparse.Namespace, number: int, text: str) -> int:
    if options.json:
        print_json("leasehold.trust-changed", {"number": number, "node": options.node})
    else:
        say(text)
    return 0


def _root_key(cluster: Cluster, options: argparse.Namespace) -> Signer:
    """Read the root key. Raises NotTrusted for that of another cluster."""
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


COMMANDS: Final = {"trust": Command("Which nodes are known; revoking and moving one.", _add_trust, run_trust)}
