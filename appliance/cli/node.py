"""``tenure node run|upgrade``: this node's shards and metronome, until SIGTERM; going over to another release.

An upgrade:

1. Whether the other release reads this root is seen before anything stops.
2. The daemon stops in good order: its shards go to who asks for them next, and nobody waits for its leases.
3. The package is installed, where one is named; the units start again, and are waited for.

Repeated, it finds that the release runs already.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

import msgspec

from appliance.cli.opening import add_cluster_options, open_cluster
from timeagent.console import Command, note, print_json, say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

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

    from ..daemon.daemon import Node

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


_TOLD: Final = "./usr/share/tenure/release.json"
_COMMAND: Final = "/usr/bin/tenure"
_RUNS_ALREADY: Final = 100
"""An exit code between processes of one call: there is nothing to do."""


class Release(msgspec.Struct):
    """What a package says of itself."""

    release: str
    root_format: int


def add_upgrade(parser: argparse.ArgumentParser) -> None:
    """Add what the verb takes, but for the options of the cluster."""
    parser.add_argument("--package", metavar="FILE", help="install this .deb while the daemon stands still")
    parser.add_argument("--no-systemd", action="store_true", help="only see whether it could be done")


def run_upgrade(options: argparse.Namespace) -> int:
    """Go over to this release, or to a package's."""
    from appliance.cli import service
    from appliance.cluster import root_path
    from timeagent.errors import TryAgain

    root = root_path(options.root)
    coming = read_package(Path(options.package)) if options.package else own_release()

    def as_whom_it_should_be(work: Callable[[], int]) -> int:
        return work() if options.allow_root else service.as_own_user(work)

    status = as_whom_it_should_be(lambda: _look(options, coming))
    if status == _RUNS_ALREADY:
        return 0
    if status or options.no_systemd:
        return status
    if not service.is_there() or options.node_dir is not None:
        raise TryAgain(
            "no-units",
            "no units of tenure run the daemon of this machine",
            hint="end `tenure node run` with SIGTERM, and start it again from the other release",
        )
    time_unit, node_unit, target = service.units(root)
    note(f"tenure: {node_unit} stops: waiting until every lease is relinquished or over")
    service.stop(node_unit)
    service.stop(time_unit)
    if options.package:
        _install(Path(options.package))
        # What runs here is the earlier release, whose files are gone: the other one goes on.
        words = [_COMMAND, "node", "upgrade", "--root", str(root)] + ["--json"] * options.json
        os.execv(_COMMAND, words)  # noqa: S606 - the command that was installed just now
    service.start(target)
    service.start(node_unit)
    return as_whom_it_should_be(lambda: _told(options))


def own_release() -> Release:
    """Return what this program is."""
    from importlib.metadata import version

    from appliance.formats.marker import FORMAT

    return Release(version("tenure"), FORMAT)


def read_package(path: Path) -> Release:
    """Return what a .deb says of itself. Raises BadRequest."""
    from timeagent.errors import BadRequest

    try:
        with subprocess.Popen(  # noqa: S603 - one file's name
            ["dpkg-deb", "--fsys-tarfile", str(path)],  # noqa: S607 - wherever Debian has it
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as whole:
            told = subprocess.run(  # noqa: S603 - the same
                ["tar", "-xO", _TOLD],  # noqa: S607 - the same
                stdin=whole.stdout,
                capture_output=True,
                check=False,
            ).stdout
        return msgspec.json.decode(told, type=Release)
    except (OSError, msgspec.DecodeError) as problem:
        what = f"is no package of tenure: {problem}" if path.exists() else "is not there"
        raise BadRequest("bad-package", f"{path} {what}", hint="name the .deb that `make deb` made") from None


def _look(options: argparse.Namespace, coming: Release) -> int:
    """See whether it can be done, and say who runs what."""
    from appliance.cli.daemon import keeping, running_release
    from appliance.cli.opening import open_cluster
    from appliance.cluster import root_path
    from appliance.formats.marker import format_of
    from appliance.formats.paths import MARKER
    from timeagent.errors import BadConfiguration

    from ..bag.posix import PosixStorage

    root = root_path(options.root)
    here = format_of(PosixStorage(root).read(MARKER) or b"")
    if here is not None and here != coming.root_format:
        raise BadConfiguration(
            "root-format",
            f"{root} is of format {here}; release {coming.release} reads format {coming.root_format}",
            hint="nothing was stopped: take a release that reads it",
        )
    with open_cluster(options) as cluster:
        known = releases(cluster, coming.release)
        runs = running_release(cluster.settings, cluster.registers.cluster_id)
        silent = runs is None and keeping(cluster.settings, cluster.registers.cluster_id)[0]
        words = runs or ("a daemon that does not answer" if silent else "no daemon")
        note(f"tenure: here {words} runs, {coming.release} is to run; {root} is of format {here}")
        _note_skew(known | {cluster.settings.node: runs})
        if runs == coming.release and not options.package:
            _say(options, cluster, runs, already=True)
            return _RUNS_ALREADY
    return 0


def releases(cluster: Cluster, own: str) -> dict[str, str | None]:
    """Ask every node that has an address which release it runs. Blocks for some seconds."""
    from ..node.releases import Releases

    trust = cluster.watch_trust()
    return dict(
        Releases(cluster.settings.node, cluster.keys.tls, cluster.registers.cluster_id, trust, cluster.time, own).look()
    )


def _note_skew(known: dict[str, str | None]) -> None:
    from ..node.releases import in_words, skewed

    if skewed(known):
        note(f"tenure: nodes run different releases: {in_words(known)}")


def _install(package: Path) -> None:
    from timeagent.errors import Environment

    done = subprocess.run(  # noqa: S603 - one file's name
        ["dpkg", "--install", str(package.absolute())],  # noqa: S607 - wherever Debian has it
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Environment(
            "not-installed",
            f"dpkg --install {package}: {(done.stderr or done.stdout).strip()}",
            hint="repair that, then call this again: the daemon stands still until then",
        )


def _told(options: argparse.Namespace) -> int:
    """Say what runs now. Raises TryAgain where nothing answers."""
    from appliance.cli.daemon import running_release
    from appliance.cli.opening import open_cluster
    from timeagent.errors import TryAgain

    with open_cluster(options) as cluster:
        runs = running_release(cluster.settings, cluster.registers.cluster_id)
        if runs is None:
            raise TryAgain("no-daemon", "the daemon was started, and does not answer", hint="systemctl status says why")
        _note_skew(releases(cluster, runs))
        _say(options, cluster, runs, already=False)
    return 0


def _say(options: argparse.Namespace, cluster: Cluster, runs: str, *, already: bool) -> None:
    if options.json:
        print_json("tenure.upgrade", {"node": cluster.settings.node, "release": runs, "already": already})
    else:
        say(f"{cluster.settings.node} runs {runs}{' already' * already}.")


COMMANDS: Final = {
    "node": Command("Run this node's shards and metronome; have another release run.", _add_node, run_verb)
}
