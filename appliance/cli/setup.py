"""``tenure init`` and ``tenure join``: set up a cluster, and let machines in."""

from __future__ import annotations

import argparse
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options, named_root
from appliance.formats.paths import MARKER
from timeagent.console import Command, note, print_json, say
from timeagent.units import SECOND, parse_span, span_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.admin.founding import Listen
    from appliance.bag.storage import Storage

    from ..node.settings import Settings

_LOOK_NS: Final = SECOND
"""How often who waits to be let in looks at the trust record."""


def _add_node_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root_path", metavar="ROOT", help="the shared directory")
    parser.add_argument("--node", metavar="NAME", help="this machine's name in the cluster (default: its host name)")
    parser.add_argument("--listen", metavar="HOST[:PORT]", help="where `node run` answers other nodes, by TCP")
    parser.add_argument(
        "--address", metavar="HOST[:PORT]", help="where they reach it, if that is not what --listen says"
    )
    parser.add_argument("--no-systemd", action="store_true", help="leave this machine's units alone")
    add_cluster_options(parser)


def _add_init(parser: argparse.ArgumentParser) -> None:
    _add_node_options(parser)
    parser.add_argument(
        "--root-key",
        metavar="FILE",
        help="keep the cluster's root key there, or use the one that lies there (default: root.key with the settings)",
    )
    parser.add_argument(
        "--assume-radius",
        metavar="SPAN",
        default="0",
        help="take the machines' clocks to be this good where no time source has a bound: 5ms on a laptop",
    )
    for name, what in (("span", "a bag's span"), ("grace", "a bag's grace"), ("rack", "a rack's length")):
        parser.add_argument(f"--{name}", metavar="SPAN", help=f"{what}, for logs that are made from now on")


def _add_join(parser: argparse.ArgumentParser) -> None:
    _add_node_options(parser)
    parser.add_argument(
        "--root-key",
        metavar="FILE",
        help="root.key of the machine that ran init; without it: ask, and wait for approval",
    )
    parser.add_argument(
        "--wait", metavar="SPAN", default="10m", help="how long to wait for it (default: 10m); then call it again"
    )


def _node_name(options: argparse.Namespace) -> str:
    return options.node or socket.gethostname().split(".")[0].lower()


def _listen(options: argparse.Namespace) -> Listen | None:
    """Return where the node listens and is reached. Raises BadRequest for an address that nobody could reach."""
    from appliance.admin.founding import Listen
    from appliance.formats.address import parse_address
    from timeagent.errors import BadRequest

    if options.listen is None:
        if options.address is not None:
            raise BadRequest("no-listen", "--address without --listen: nobody would answer there", hint="add --listen")
        return None
    at = parse_address(options.listen)
    reached_at = parse_address(options.address) if options.address else at
    if reached_at.host in ("0.0.0.0", "::"):  # noqa: S104 - refused, not bound
        raise BadRequest(
            "no-address",
            f"other nodes cannot reach {reached_at}: it means every address of this machine",
            hint="say where they reach it: --address HOST",
        )
    return Listen(at, reached_at)


def run_init(options: argparse.Namespace) -> int:
    """Make a cluster of an empty directory; where it is made already, say what is there."""
    return _serving(options, lambda: _init(options))


def run_join(options: argparse.Namespace) -> int:
    """Let this machine into a cluster; where it is in already, say so."""
    return _serving(options, lambda: _join(options))


def _serving(options: argparse.Namespace, work: Callable[[], int]) -> int:
    """Do what is done on the mount, as whom that should be; then see to this machine's units."""
    from appliance.cli import service

    status = work() if options.allow_root else service.as_own_user(work)
    if status == 0 and options.node_dir is None:  # the units know the usual places only
        service.offered(Path(options.root_path).absolute(), wanted=not options.no_systemd)
    return status


def _there_already(options: argparse.Namespace, storage: Storage, root: Path) -> Settings | None:
    """Return this machine's settings if it is a node of the cluster at this root already, by the name asked for.

    Raises Environment where it is one by another name.
    """
    from appliance.admin.founding import read_marker
    from timeagent.errors import Environment
    from timeagent.keys import Verifier

    from ..node.own_keys import check_own_keys
    from ..node.records import Registers
    from ..node.settings import FILE, is_there, load_settings, node_directories

    if not storage.look(".", [MARKER]):
        return None
    marker = read_marker(storage, root)
    places = [Path(options.node_dir).absolute()] if options.node_dir else node_directories(marker.cluster_id)
    place = next((each for each in places if is_there(each / FILE)), None)
    if place is None:
        return None
    settings = load_settings(place)
    if settings.root_key != marker.root_key:
        return None
    if options.node is not None and options.node != settings.node:
        raise Environment(
            "key-exists",
            f"this machine is node {settings.node} of the cluster at {root} already ({place})",
            hint=f"say --node {settings.node}, or name another --node-dir",
        )
    check_own_keys(Registers(storage, marker.cluster_id, Verifier(marker.root_key)), settings)
    return settings


def _init(options: argparse.Namespace) -> int:
    from appliance.admin.founding import set_up
    from appliance.cluster import refuse_root_user, time_sources
    from appliance.formats.policy import Policy, check_policy
    from timeagent.clock import SystemClock
    from timeagent.keys import Signer, fingerprint
    from timeagent.sampled import EmbeddedTime

    from ..bag.posix import PosixStorage
    from ..node.settings import ROOT_KEY

    refuse_root_user(os.geteuid(), allow_root=options.allow_root)
    root = named_root(options)
    storage = PosixStorage(root)
    there = _there_already(options, storage, root)
    if there is not None:
        return _founded_already(options, storage, there)
    cluster_id = os.urandom(16)
    chosen = {f"{name}_ns": parse_span(text) for name in ("span", "grace", "rack") if (text := getattr(options, name))}
    policy = check_policy(
        Policy(number=1, cluster_id=cluster_id, assumed_radius_ns=parse_span(options.assume_radius), **chosen)
    )
    machine = SystemClock()
    # Asked before anything is written: a cluster whose founder has no time could not be used.
    now = EmbeddedTime(
        machine, time_sources(machine, policy), Signer.generate(), radius_ns_max=policy.radius_ns_max
    ).now()
    directory = Path(options.node_dir).absolute() if options.node_dir else None
    listen = _listen(options)
    root_key_file = Path(options.root_key).absolute() if options.root_key else None
    settings = set_up(storage, root, _node_name(options), policy, now.midpoint, directory, listen, root_key_file)
    if options.json:
        print_json(
            "tenure.init",
            {
                "root": str(root),
                "cluster": cluster_id.hex(),
                "node": settings.node,
                "node_dir": str(settings.directory),
                "root_key": fingerprint(settings.root_key),
                "root_key_file": str(root_key_file or settings.directory / ROOT_KEY),
                "takeover_ns": policy.takeover_ns(),
                "already": False,
            },
        )
        return 0
    say(f"{root} is now the root of cluster {cluster_id.hex()[:12]}; this machine is its node {settings.node}.")
    say(f"Settings and keys: {settings.directory}. Root key: {fingerprint(settings.root_key)}.")
    if root_key_file:
        say(f"The root key is kept in {root_key_file}; what changes the cluster's records asks for it.")
    say(f"After a holder dies, its domains are free again within {span_text(policy.takeover_ns())}.")
    if policy.assumed_radius_ns:
        note(
            f"tenure: where no time source has a bound, clocks are assumed to be good to "
            f"{span_text(policy.assumed_radius_ns)}; times made so are labelled"
        )
    return 0


def _founded_already(options: argparse.Namespace, storage: Storage, settings: Settings) -> int:
    """Say what is there, as init said it when it was made."""
    from appliance.admin.founding import read_marker
    from timeagent.keys import Verifier, fingerprint

    from ..node.records import Registers
    from ..node.settings import ROOT_KEY

    marker = read_marker(storage, settings.root)
    policy = Registers(storage, marker.cluster_id, Verifier(marker.root_key)).newest_policy()
    key_file = Path(options.root_key).absolute() if options.root_key else settings.directory / ROOT_KEY
    if options.json:
        print_json(
            "tenure.init",
            {
                "root": str(settings.root),
                "cluster": marker.cluster_id.hex(),
                "node": settings.node,
                "node_dir": str(settings.directory),
                "root_key": fingerprint(settings.root_key),
                "root_key_file": str(key_file),
                "takeover_ns": policy.takeover_ns(),
                "already": True,
            },
        )
        return 0
    say(f"{settings.root} is the root of cluster {marker.cluster_id.hex()[:12]} already; this machine is its node")
    say(f"{settings.node}. Nothing was changed: a cluster keeps its policy.")
    say(f"Settings and keys: {settings.directory}. Root key: {fingerprint(settings.root_key)}.")
    return 0


def _join(options: argparse.Namespace) -> int:
    from appliance.admin.founding import join_cluster
    from appliance.cluster import refuse_root_user
    from timeagent.clock import SystemClock

    from ..bag.posix import PosixStorage

    refuse_root_user(os.geteuid(), allow_root=options.allow_root)
    root = named_root(options)
    directory = Path(options.node_dir).absolute() if options.node_dir else None
    storage = PosixStorage(root)
    there = _there_already(options, storage, root)
    if there is not None:
        return _joined(options, there, already=True)
    if options.root_key is None:
        return _ask_and_wait(options, storage, root, directory)
    settings = join_cluster(
        storage,
        root,
        _node_name(options),
        Path(options.root_key),
        SystemClock().realtime_ns(),
        directory,
        _listen(options),
    )
    return _joined(options, settings)


def _joined(options: argparse.Namespace, settings: Settings, *, already: bool = False) -> int:
    if options.json:
        fields = {"root": str(settings.root), "node": settings.node, "node_dir": str(settings.directory)}
        print_json("tenure.join", fields | {"already": already})
    else:
        say(f"This machine is node {settings.node} of the cluster at {settings.root}{' already' * already}.")
        say(f"Settings and keys: {settings.directory}.")
    return 0


def _ask_and_wait(options: argparse.Namespace, storage: Storage, root: Path, directory: Path | None) -> int:
    """Ask to be let in, and wait until somebody with the root key does. May be repeated, also after it is done."""
    from appliance.admin.founding import read_marker
    from appliance.admin.joining import ask, finish, prepared
    from timeagent.clock import SystemClock
    from timeagent.errors import TryAgain
    from timeagent.keys import Verifier, fingerprint

    from ..node.records import Registers
    from ..node.settings import Settings, new_directory

    marker, node, listen = read_marker(storage, root), _node_name(options), _listen(options)
    wait = parse_span(options.wait)
    place = directory or new_directory(marker.cluster_id)
    request = prepared(place, node, listen.reached_at if listen else None)
    settings = Settings(place, node, root, marker.root_key, None, {}, listen.at if listen else None)
    registers = Registers(storage, marker.cluster_id, Verifier(marker.root_key))
    if finish(registers, settings, request):
        return _joined(options, settings)
    ask(storage, request)
    note(f"tenure: the cluster's root key is {fingerprint(marker.root_key)}: compare it with what init said")
    note(f"tenure: {node} asks to join. Where the root key is, compare the fingerprint and call:")
    note(f"  tenure trust approve {node} --fingerprint {request.fingerprint} --root-key FILE --root {root}")
    clock = SystemClock()
    began = clock.boot_ns()
    while clock.boot_ns() - began < wait:
        clock.sleep(min(wait, _LOOK_NS))
        if finish(registers, settings, request):
            return _joined(options, settings)
    raise TryAgain("not-approved", f"nobody has let {node} in within {span_text(wait)}", hint="call it again")


COMMANDS: Final = {
    "init": Command("Make a cluster of an empty directory.", _add_init, run_init),
    "join": Command("Let this machine into a cluster.", _add_join, run_join),
}
