"""``tenure node run|upgrade``: this node's shards and metronome; going over to another release.

An upgrade sees whether the other release reads this root before anything changes. The package is installed while the
daemon goes on, which loaded all its code when it started; then the units restart once, and the shards' leases wait for
that on tmpfs. Repeated, it finds that the release runs already.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from argparse import SUPPRESS, Namespace
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

import msgspec

from timeagent import VERSION
from timeagent.console import argument, command, note, present, with_verbs
from timeagent.errors import BadConfiguration, BadRequest, Environment, TryAgain

from ..bag.roots import storage_at
from ..formats.birth import FORMAT, format_of
from ..formats.names import parse_address
from ..formats.paths import MARKER
from ..formats.shardmap import shard_text
from ..node.settings import root_path
from . import service
from .opening import add_cluster_options, note_skew, open_cluster, releases_of, stop_on_signals
from .service import keeping, running_release

if TYPE_CHECKING:  # what a cluster loads may begin threads: it is loaded behind the fork of service.as_own_user
    from appliance.cluster import Cluster


def run_node(options: Namespace) -> int:
    from ..daemon.daemon import Node

    interrupted = Event()
    stop = stop_on_signals(interrupted)
    cluster = open_cluster(options)
    if options.listen:
        cluster.settings = replace(cluster.settings, listen=parse_address(options.listen))
    if options.http:
        cluster.settings = replace(cluster.settings, http=parse_address(options.http))
    with contextlib.ExitStack() as behind, cluster:
        node = Node(cluster, version=VERSION)
        behind.callback(node.close)
        shards = node.start()
        fields = {
            "node": cluster.settings.node,
            "shards": shards,
            "awaited": [{"shard": shard, "reason": why} for shard, why in node.awaited.items()],
            "time": "agent" if cluster.time_by_agent else "embedded",
            "address": None if node.address is None else str(node.address),
            "http": None if node.web_address is None else str(node.web_address),
        }
        present(options, "tenure.node", fields)
        reached = f", reached at {node.address}" if node.address else ""
        note(f"tenure: node {cluster.settings.node} runs shards {shards or 'none'}{reached}")
        for shard, why in node.awaited.items():
            note(f"tenure: shard {shard_text(shard)} is waited for: {why}")
        made = "from the node's agent" if cluster.time_by_agent else "made in this process: no agent runs"
        note(f"tenure: time {made} (tenure time run)")
        try:
            node.run(stop, lambda shard: note(f"tenure: shard {shard_text(shard)} runs here now"))
        finally:
            node.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends the waiting
        note(f"tenure: {node.stopping(drains=interrupted.is_set())}")
    return 0


_TOLD: Final = "./usr/share/tenure/release.json"
_COMMAND: Final = "/usr/bin/tenure"
_RUNS_ALREADY: Final = 100
"""An exit code between processes of one call: there is nothing to do."""


class Release(msgspec.Struct):
    release: str
    root_format: int


def run_upgrade(options: Namespace) -> int:
    root = root_path(options.root)
    coming = read_package(Path(options.package)) if options.package else Release(VERSION, FORMAT)
    if options.installed:  # the package has restarted what ran; what did not is started
        service.start(Path(root))
        return service.as_own_user(lambda: _told(options), allow_root=options.allow_root)
    status = service.as_own_user(lambda: _look(options, coming), allow_root=options.allow_root)
    if status == _RUNS_ALREADY:
        return 0
    if status or options.no_systemd:
        return status
    if not isinstance(root, Path) or not service.is_there() or options.node_dir is not None:
        hint = "end `tenure node run` with SIGTERM, and start it again from the other release"
        raise TryAgain("no-units", "no units of tenure run the daemon of this machine", hint=hint)
    note(f"tenure: {service.units(root)[1]} restarts; leases stay, and go on with the release that starts")
    if options.package:
        _install(Path(options.package))
        # What runs here is the earlier release, whose files are gone: the other one goes on.
        words = [_COMMAND, "node", "upgrade", "--installed", "--root", str(root)] + ["--json"] * options.json
        os.execv(_COMMAND, words)  # noqa: S606 - the command that was installed just now
    service.restart(root)
    return service.as_own_user(lambda: _told(options), allow_root=options.allow_root)


def read_package(path: Path) -> Release:
    """Return what a .deb says of itself. Raises BadRequest."""
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
    except (OSError, msgspec.DecodeError, RecursionError) as problem:
        what = f"is no package of tenure: {problem}" if path.exists() else "is not there"
        raise BadRequest("bad-package", f"{path} {what}", hint="name the .deb that `make deb` made") from None


def _look(options: Namespace, coming: Release) -> int:
    """See whether it can be done, and say who runs what."""
    root = root_path(options.root)
    here = format_of(storage_at(root).read(MARKER) or b"")
    if here is not None and here != coming.root_format:
        what = f"{root} is of format {here}; release {coming.release} reads format {coming.root_format}"
        raise BadConfiguration("root-format", what, hint="nothing was changed: take a release that reads it")
    with open_cluster(options) as cluster:
        known = releases_of(cluster, coming.release).look()
        runs = running_release(cluster.settings, cluster.registers.cluster_id)
        silent = runs is None and keeping(cluster.settings, cluster.registers.cluster_id)[0]
        words = runs or ("a daemon that does not answer" if silent else "no daemon")
        note(f"tenure: here {words} runs, {coming.release} is to run; {root} is of format {here}")
        note_skew({**known, cluster.settings.node: runs})
        if runs == coming.release and not options.package:
            _runs(options, cluster, runs, already=True)
            return _RUNS_ALREADY
    return 0


def _install(package: Path) -> None:
    done = subprocess.run(  # noqa: S603 - one file's name
        ["dpkg", "--install", str(package.absolute())],  # noqa: S607 - wherever Debian has it
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        what = f"dpkg --install {package}: {(done.stderr or done.stdout).strip()}"
        hint = "repair that, then call this again: `tenure status` says what runs until then"
        raise Environment("not-installed", what, hint=hint)


def _told(options: Namespace) -> int:
    """Say what runs now. Raises TryAgain where nothing answers."""
    with open_cluster(options) as cluster:
        runs = running_release(cluster.settings, cluster.registers.cluster_id)
        if runs is None:
            raise TryAgain("no-daemon", "the daemon was started, and does not answer", hint="systemctl status says why")
        note_skew(releases_of(cluster, runs).look())
        return _runs(options, cluster, runs, already=False)


def _runs(options: Namespace, cluster: Cluster, release: str, *, already: bool) -> int:
    fields = {"node": cluster.settings.node, "release": release, "already": already}
    return present(options, "tenure.upgrade", fields, f"{cluster.settings.node} runs {release}{' already' * already}.")


_VERBS: Final = {
    "run": command(
        "run until SIGTERM (all leases stay, for the next run on this boot) or SIGINT (wait until they are over)",
        run_node,
        argument("--listen HOST[:PORT]", "answer other nodes there (default: `listen` in node.toml)"),
        argument("--http HOST:PORT", "answer HTTP there (default: `http` in node.toml)"),
        add_cluster_options,
    ),
    "upgrade": command(
        "have another release run: check, install, restart; leases go on",
        run_upgrade,
        argument("--package FILE", "install this .deb first, which restarts the daemon"),
        argument("--installed", SUPPRESS),
        argument("--no-systemd", "only see whether it could be done"),
        add_cluster_options,
    ),
}
COMMANDS: Final = {"node": with_verbs("Run this node's shards and metronome; have another release run.", _VERBS)}
