"""``tenure doctor`` and ``tenure probe``: whether a mount, this machine and its clock will do, and why not.

One line for each requirement: PASS, FAIL or UNSURE, the reason, and the way out. It changes nothing but a directory of
its own below ``tmp``, which it removes. A mount that hangs fails its line, and the doctor goes on. The probe's other
client is a process that answers one JSON object a line: over ssh on another machine, or here, on a second mount of the
same export (``-o nosharecache``, or the mount of another network namespace). Nothing stays behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import select
import shlex
import socket
import stat
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

from appliance.cluster import Cluster
from timeagent import core
from timeagent.clock import SystemClock
from timeagent.console import Progress, argument, command, one_of, present, printable, say
from timeagent.errors import BadConfiguration, BadRequest, Environment, NotTrusted, TenureError
from timeagent.showing import known_by_agent, known_without_agent
from timeagent.units import SECOND, Span, TimeInterval

from ..admin.membership import read_marker
from ..bag.logs import names_there
from ..bag.posix import PosixStorage
from ..bag.roots import cluster_storage_at, is_address, parse_root
from ..doctor import file_system
from ..doctor.health import (
    ASSUMED_WORDS,
    CheckVerdict,
    HealthCheck,
    exit_status,
    failed,
    judge_clock,
    judge_etcd,
    judge_keys,
    judge_room,
    judged,
    passed,
    unsure,
)
from ..doctor.probes import TwoHands, probe_store
from ..formats.birth import ROOT_VARIABLE, open_birth, store_of
from ..formats.names import Address
from ..formats.paths import BIRTH, LOGS, MARKER
from ..lease.turn_log import Etcd
from ..node.runtime import SHARED_MEMORY
from ..node.settings import Settings
from .clock import assumed_radius_ns, find_agent, machine_sources
from .opening import JSON, releases_of

PATIENCE_S: Final = 20.0
"""How long a question to the mount may take; after the first that takes longer nothing is asked of it any more."""
PROBE_PATIENCE_S: Final = 60.0
_CONNECT_S: Final = 2.0
_ETCD_NS: Final[Span] = 2 * SECOND
_MOUNTSTATS: Final = Path("/proc/self/mountstats")


class MountHangsError(Exception):
    """The mount did not answer in time."""


def run_doctor(options: Namespace) -> int:
    path = options.path or os.environ.get(ROOT_VARIABLE)
    if not path:
        hint = f"name a root, or a directory that shall become one, or set {ROOT_VARIABLE}"
        raise BadRequest("no-path", "there is no PATH to look at", hint=hint)
    if is_address(path):
        raise BadRequest("no-mount", f"{path} is no directory", hint=f"tenure probe {path}")
    checks = look_at(Path(path).absolute(), Path(options.node_dir) if options.node_dir else None)
    return told("tenure.doctor", {"path": path}, checks, options)


def told(schema: str, fields: dict[str, Any], checks: Sequence[HealthCheck], options: Namespace) -> int:
    counts = {verdict.value: sum(check.verdict is verdict for check in checks) for verdict in CheckVerdict}
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.verdict:6}  {check.name:{width}}  {check.reason}")
        if check.way_out:
            lines.append(f"{'':6}  {'':{width}}  way out: {check.way_out}")
    shown = fields | {"checks": [check.fields() for check in checks], "summary": counts}
    present(options, schema, shown, *map(printable, lines))
    return exit_status(checks)


def look_at(path: Path, node_dir: Path | None, *, patience_s: float = PATIENCE_S) -> list[HealthCheck]:
    """Return every line. Blocks for the mount at most a few times its patience."""
    away = ""
    on_mount: dict[str, Callable[[], Sequence[HealthCheck]]] = {
        "directory": partial(_directory, path),
        "files": partial(_files, path),
        "room": lambda: judge_room(file_system.room_of(path)),
        "server clock": partial(_server_clock, path),
    }
    looks = on_mount | {
        "user": _user,
        "tmpfs": _tmpfs,
        "clock": lambda: _clock(None if away else path, node_dir),
        "randomness": _randomness,
        "core": lambda: [passed("core", core.said())],
        "node": partial(_node, path, node_dir),
        "stores": lambda: _stores(path) if not away else [],
    }
    progress = Progress("doctor", len(looks))
    found: list[HealthCheck] = []
    for number, (name, look) in enumerate(looks.items()):
        progress.show(number, name)
        asks_mount = name in on_mount or name == "node"
        if asks_mount and away:
            found.append(unsure(name, f"not asked: {away}", "repair that, then ask again"))
            continue
        try:
            found += within(patience_s, look)
        except MountHangsError:
            away = away or ("the mount hangs" if asks_mount else "")
            way_out = "is the server up, and reached? dmesg; nfsstat -c"
            found.append(failed(name, f"no answer within {patience_s:g} s", way_out))
        except TenureError as problem:
            found.append(failed(name, problem.message, problem.hint or "see docs/operators.md"))
        except OSError as problem:
            away = away or ("the directory cannot be opened" if name == "directory" else "")
            found.append(failed(name, _what(problem), "check that it is mounted, and its owner, mode and options"))
    progress.done()
    return found


def _what(problem: OSError) -> str:
    return f"{problem.strerror or problem}" + (f": {problem.filename}" if problem.filename else "")


def within[T](patience_s: float, work: Callable[[], T]) -> T:
    """Return what it returns, raise what it raises, or MountHangsError. What hangs stays behind in its thread."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as raised:  # noqa: BLE001 - handed to the caller
            answer.set_exception(raised)

    thread = Thread(target=run, name="doctor", daemon=True)
    thread.start()
    thread.join(patience_s)
    if not answer.done():
        raise MountHangsError
    return answer.result()


def _directory(path: Path) -> list[HealthCheck]:
    found = file_system.judge_directory(path)
    mount = file_system.mount_of(path.resolve())
    if mount is None:
        return [found, failed("file system", f"no mount holds {path}", "is /proc mounted?")]
    return [found, file_system.judge_kind(mount), *file_system.judge_options(mount)]


def _files(path: Path) -> list[HealthCheck]:
    found = []
    with file_system.TrialDirectory(path, f"doctor.{socket.gethostname()}.{os.getpid()}") as trial:
        experiments = {
            "user mapping": trial.owner,
            "hard links": trial.linked,
            "exclusive create": trial.exclusive,
            "listing": trial.listed,
        }
        for name, experiment in experiments.items():
            try:
                found.append(experiment())
            except OSError as problem:  # what the operating system refuses fails that line alone
                said = problem.strerror or str(problem)
                found.append(failed(name, said, "docs/nfs.md says what a mount must do"))
        mount = file_system.mount_of(path.resolve())
        if mount is not None and mount.nfs:
            before = file_system.delegations_returned(_mountstats(), mount.point)
            trial.read_often()
            after = file_system.delegations_returned(_mountstats(), mount.point)
            found += filter(None, [file_system.judge_delegations(mount, before, after)])
    return found


def _mountstats() -> str:
    return _MOUNTSTATS.read_text(encoding="utf-8", errors="replace")


def _server_clock(path: Path) -> list[HealthCheck]:
    clock, tmp = SystemClock(), f"tmp/doctor.clock.{socket.gethostname()}.{os.getpid()}"
    storage = PosixStorage(path)
    had_tmp = storage.look(".", ["tmp"])
    before = clock.realtime_ns()
    try:
        server = storage.server_clock(tmp)
    finally:
        storage.remove_directory(tmp)
        if not had_tmp:
            storage.remove_directory("tmp")
    # A file system stamps with its clock's tick, up to 10 ms old.
    return [file_system.judge_server_clock(server, TimeInterval(before - SECOND // 100, clock.realtime_ns()))]


def _user() -> list[HealthCheck]:
    user = os.geteuid()
    wrong = "this is the superuser, whom no file mode stops, and whom root_squash makes nobody"
    way_out = "run it as the user that runs the node (tenure); in throw-away machines commands take --allow-root"
    who = judged("user", f"user {user}", wrong, way_out, holds=user != 0)
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    told = re.search(r"^Umask:\s*([0-7]+)", status, re.MULTILINE)
    umask = int(told[1], 8) if told else 0o022
    if not umask & stat.S_IWGRP:
        return [who, passed("umask", f"{umask:04o}")]
    price = f"{umask:04o}: other users of the group could not write to new directories"
    way_out = "umask 002 (UMask=0002 in a unit), unless all processes run as one user"
    return [who, unsure("umask", price, way_out)]


def _tmpfs() -> list[HealthCheck]:
    mount = file_system.mount_of(SHARED_MEMORY)
    kind = mount.kind if mount else "nothing"
    said = f"{SHARED_MEMORY} is on {kind}"
    wrong = f"{said}: a lease shard must forget everything when the machine stops"
    way_out = "mount a tmpfs there, or set runtime in node.toml"
    return [judged("tmpfs", said, wrong, way_out, holds=kind in file_system.FORGETFUL)]


def _clock(path: Path | None, node_dir: Path | None) -> list[HealthCheck]:
    """Ask the agent of a root's node; without a path the only one of this user: the mount is not asked which it is."""
    clock, agent = SystemClock(), find_agent(path, node_dir if path else None)
    if agent is not None:
        known = known_by_agent(agent, clock)
    else:
        sources = machine_sources(clock, node_dir)
        known = known_without_agent(clock, sources, 0)
        if known.problem:
            known = known_without_agent(clock, sources, _assumed_radius(path))
    why = "; ".join(f"{each.source}: {each.reason}" for each in known.sources if each.interval is None)
    radius = None if known.problem else known.now.radius
    return [judge_clock(radius, why or "no source", ASSUMED_WORDS if known.assumed else f"by {known.source}")]


def _assumed_radius(path: Path | None) -> Span:
    return assumed_radius_ns(path) if path is not None and PosixStorage(path).look(".", [MARKER]) else 0


def _randomness() -> list[HealthCheck]:
    try:
        os.getrandom(16, os.GRND_NONBLOCK)
    except BlockingIOError:
        way_out = "wait for it, or give the machine virtio-rng"
        return [failed("randomness", "the kernel has not gathered any yet", way_out)]
    return [passed("randomness", "the kernel's generator is ready")]


def _node(path: Path, node_dir: Path | None) -> list[HealthCheck]:
    storage = PosixStorage(path)
    if not storage.look(".", [MARKER]):
        return [passed("root", "no root yet: tenure init makes one of an empty directory")]
    found = [passed("root", f"cluster {read_marker(storage, path).cluster_id.hex()[:12]}")]
    try:
        cluster = Cluster.open(path, node_dir=node_dir, allow_root=True)  # reads the key files, and their modes
    except BadConfiguration as problem:
        if problem.code != "not-joined":
            raise
        return [*found, unsure("node", problem.message, problem.hint)]
    with cluster:
        settings, others = cluster.settings, releases_of(cluster)
        found.append(passed("node", f"{settings.node}, whose keys the newest trust record knows"))
        try:
            cluster.check_trusted_now()
        except NotTrusted as problem:
            found.append(judge_keys(settings.node, problem, {}))
        found += _etcd(settings)
        if settings.listen is not None:
            found.append(_port(settings.listen))
        others.look()
        return found + others.checks()


def _etcd(settings: Settings) -> list[HealthCheck]:
    """Say which instances of the etcd that keeps the turns of this node's shards answer, and take writes."""
    access = settings.etcd
    if access is None:
        return []
    answers: dict[str, str | TenureError] = {}
    for endpoint in access.endpoints:
        store = Etcd([endpoint], _ETCD_NS, ca=access.ca, cert=access.cert, key=access.key)
        with contextlib.closing(store):
            try:
                answers[endpoint] = store.version()
            except TenureError as problem:
                answers[endpoint] = problem
    return [judge_etcd(endpoint, answer, alone=len(answers) == 1) for endpoint, answer in answers.items()]


def _stores(path: Path) -> list[HealthCheck]:
    """Say of each log that is not at the root whether it is found where its birth record says, from here."""
    root, found = PosixStorage(path), []
    storage = cluster_storage_at(path)
    for log in names_there(root):
        where = f"{LOGS}/{log}/{BIRTH}"
        try:
            birth = root.read(where)
            named = "" if birth is None else store_of(open_birth(birth, where)[0])
            if not named:
                continue
            storage.look(f"{LOGS}/{log}", ())
        except TenureError as problem:
            found.append(failed("store", problem.message, problem.hint))
        else:
            found.append(passed("store", f"the log {log} is in {named}, and found there"))
    return found


def _port(at: Address) -> HealthCheck:
    """Say whether one could listen there, or somebody answers already."""
    here = "127.0.0.1" if at.host in ("0.0.0.0", "::") else at.host  # noqa: S104 - compared
    found = passed("port", f"{at} is the node's, or free for it")
    with contextlib.suppress(OSError):
        socket.create_connection((here, at.port), _CONNECT_S).close()
        return found
    try:
        family, kind, _, _, address = socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(address)
    except OSError as problem:
        way_out = "change `listen` in node.toml, or stop who listens there"
        return failed("port", f"{at}: {problem.strerror or problem}", way_out)
    return found


class FarHands:
    """The other client's hands, over a pipe."""

    def __init__(self, command: Sequence[str], patience_s: float = PROBE_PATIENCE_S) -> None:
        self._patience_s = patience_s
        try:
            self._process = subprocess.Popen(  # noqa: S603 - ssh, or this program, with words of their own
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as problem:
            what = f"cannot start {command[0]}: {problem.strerror}"
            raise Environment("peer-absent", what, hint="is ssh installed?") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asks, self._answers = self._process.stdin, self._process.stdout

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what it did not take any more is of no use to anybody
            self._asks.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def ask(self, verb: str, *words: str) -> bool | str:
        answer: Any = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            self._asks.write(json.dumps([verb, *words]) + "\n")
            self._asks.flush()
            if not select.select([self._answers], [], [], self._patience_s)[0]:
                what = f"the other client does not answer: {verb}"
                raise Environment("peer-silent", what, hint="does the mount hang there?")
            answer = json.loads(self._answers.readline())
        if not isinstance(answer, dict) or not {"said", "problem"} & answer.keys():
            hint = "try it by hand: ssh HOST tenure probe PATH --serve x"
            raise Environment("peer-gone", "the other client ended, or does not speak as tenure does", hint=hint)
        if "problem" in answer:
            raise Environment("peer-failed", f"the other client: {answer['problem']}", hint="run tenure doctor there")
        said: bool | str = answer["said"]
        return said


def serve(hands: file_system.TrialDirectory) -> int:
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = {"said": hands.ask(*json.loads(line))}
        except OSError as problem:
            answer = {"problem": _what(problem)}
        except (TenureError, ValueError, TypeError, RecursionError) as problem:
            answer = {"problem": str(problem)}
        say(json.dumps(answer))
        sys.stdout.flush()
    return 0


def _other(options: Namespace, token: str) -> list[str]:
    if options.second:
        return [sys.executable, "-P", "-m", "tenure", "probe", str(Path(options.second).absolute()), "--serve", token]
    path = options.peer_path or str(Path(options.path).absolute())
    if options.peer.startswith("-"):
        raise BadRequest("bad-peer", f"{options.peer!r} is no host", hint="--peer HOST or --peer USER@HOST")
    there = [*shlex.split(options.peer_command), "probe", path, "--serve", token]
    return ["ssh", "-o", "BatchMode=yes", "--", options.peer, shlex.join(there)]


def run_probe(options: Namespace) -> int:
    path = parse_root(options.path)
    if not isinstance(path, Path):
        return told("tenure.probe", {"path": path, "other": None}, probe_store(path, os.urandom(6).hex()), options)
    if not (options.peer or options.second or options.serve):
        raise BadRequest("no-peer", "a mount is probed by two clients", hint="--peer HOST, or --second MOUNT")
    if options.serve:
        return serve(file_system.TrialDirectory(path, f"probe.{file_system.checked(options.serve)}"))
    token = os.urandom(6).hex()
    try:
        with (
            file_system.TrialDirectory(path, f"probe.{token}") as here,
            contextlib.closing(FarHands(_other(options, token))) as there,
        ):
            chance = random.Random(os.urandom(8))  # noqa: S311 - jitter
            checks = _experiments(TwoHands(here, there, chance, SystemClock()))
    except OSError as problem:
        raise Environment("mount-refused", f"{path}: {problem.strerror}", hint="tenure doctor says more") from None
    return told("tenure.probe", {"path": options.path, "other": options.peer or options.second}, checks, options)


def _experiments(two: TwoHands) -> list[HealthCheck]:
    found = [two.same_place()]
    if found[0].verdict is CheckVerdict.FAIL:
        return found
    rest = (two.names_seen, two.absences, two.bytes_seen, two.link_race, two.exclusive_race)
    progress = Progress("probe", len(rest))
    for number, experiment in enumerate(rest):
        progress.show(number, experiment.__name__.replace("_", " "))
        found.append(experiment())
    progress.done()
    return found


COMMANDS: Final = {
    "doctor": command(
        "Whether a directory, this machine and its clock will do.",
        run_doctor,
        argument(
            "path PATH",
            "the shared directory: a root, or one that shall become a root (default: TENURE_ROOT)",
            nargs="?",
        ),
        argument("--node-dir DIR", "this node's settings and keys (default: the usual places)"),
        JSON,
    ),
    "probe": command(
        "What two clients see of each other on one mount; whether an object store keeps what it is asked.",
        run_probe,
        argument("path PATH", "the shared directory, as this machine mounts it; or s3://BUCKET/PREFIX"),
        one_of(
            argument("--peer HOST", "another machine that has it mounted, by ssh"),
            argument("--second MOUNT", "a second mount of the same export on this machine"),
            argument("--serve TOKEN", "be the other client, on stdin and stdout"),
        ),
        argument("--peer-path PATH", "where the peer mounts it (default: the same path)"),
        argument("--peer-command WORDS", "tenure there (default: that)", default="tenure"),
        JSON,
    ),
}
