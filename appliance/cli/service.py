"""This machine's daemons, from outside: their units, whether they run, which release, and how they say that they are.

Units are there where systemd runs the machine and tenure's are installed: named after the root. `init` and `join`
switch them on, `leave` switches them off, `node upgrade` restarts them. Who calls these as the superuser is tenure's
own user for what is done on the mount, and the superuser again for the units.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

import msgspec

from appliance.doctor.health import judge_daemon
from timeagent.console import guarded, note
from timeagent.errors import SOFTWARE, BadTime, Environment
from timeagent.sources.nonce import DOOR_NAME, NonceClient
from timeagent.units import SECOND

from ..bag.roots import Root
from ..doctor.health import CheckVerdict, HealthCheck, unsure
from ..node.runtime import CHECKS_PATH, HTTP_SOCKET, daemon_lock, kept_by, runtime_of
from ..node.settings import Settings
from ..recipes.processes import SIGNALLED

USER: Final = "tenure"
"""Whom systemd/tenure.sysusers.conf makes."""

_RUNNING: Final = Path("/run/systemd/system")
_TEMPLATE: Final = "tenure@.target"
_UNIT_PATHS: Final = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.")
_STEP_S: Final = 240
"""Longer than what the units wait for: the time, 60 s; an orderly stop, 30 s."""


def instance(root: Path) -> str:
    """Return how a unit's name says a path: what `systemd-escape -p` says."""
    parts = [part for part in os.fsencode(root).split(b"/") if part]
    escaped = "-".join("".join(chr(b) if b in _PLAIN else f"\\x{b:02x}" for b in part) for part in parts)
    if escaped.startswith("."):
        escaped = "\\x2e" + escaped[1:]
    return escaped or "-"


def units(root: Path) -> list[str]:
    """Return all units for a root: time agent, node, and the target that holds both."""
    name = instance(root)
    return [f"tenure-time@{name}.service", f"tenure-node@{name}.service", f"tenure@{name}.target"]


def is_there() -> bool:
    return _RUNNING.is_dir() and any((Path(place) / _TEMPLATE).exists() for place in _UNIT_PATHS)


def switch_on(root: Path) -> None:
    """Start the units, now and whenever the machine starts. Idempotent. Raises Environment."""
    _systemctl("enable", "--quiet", *units(root))
    _systemctl("start", units(root)[-1])


def switch_off(root: Path) -> None:
    """Stop the units in good order, and start them no more. Idempotent. Raises Environment."""
    names = units(root)
    _systemctl("disable", "--quiet", *names)
    _systemctl("kill", "--signal=SIGINT", names[1], check=False)  # it drains: nobody goes on here with its leases
    _systemctl("stop", *reversed(names))


def start(root: Path) -> None:
    """Start the units, and wait until those say that they are ready that do not run yet. Raises Environment."""
    _systemctl("start", *units(root))


def restart(root: Path) -> None:
    """Stop and start the time agent, then the node, so that leases do not wait for both. Raises Environment.

    Waits until they say that they are ready.
    """
    time_unit, node, target = units(root)
    _systemctl("restart", time_unit)
    _systemctl("restart", node)
    _systemctl("start", target)


def _systemctl(*words: str, check: bool = True) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - words of ours
            ["systemctl", "--no-ask-password", *words],  # noqa: S607 - wherever this machine has it
            capture_output=True,
            text=True,
            check=False,
            timeout=_STEP_S,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Environment("systemd", f"systemctl {words[0]}: {problem}", hint="--no-systemd") from None
    if check and done.returncode:
        what = f"systemctl {' '.join(words)}: {(done.stderr or done.stdout).strip() or done.returncode}"
        hint = "systemctl status and journalctl -u say why; as the superuser? --no-systemd leaves the units alone"
        raise Environment("systemd", what, hint=hint)


def as_own_user(work: Callable[[], int], *, allow_root: bool = False) -> int:
    """Do it as tenure's own user where the superuser calls and there is one; return its exit code.

    ``allow_root``: as the superuser all the same. A process of its own does it, which gives up what the superuser may.
    Blocks until it ends.
    """
    user = None
    with contextlib.suppress(KeyError):
        user = pwd.getpwnam(USER)
    if allow_root or os.geteuid() != 0 or user is None:
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status if status >= 0 else SIGNALLED - status  # as shells have it
    status = SOFTWARE
    try:
        os.initgroups(USER, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        os.umask(0o002)
        os.environ["HOME"] = user.pw_dir
        try:
            status = guarded(work)
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else SOFTWARE
    except Exception:  # noqa: BLE001 - nothing above it says what it is: the process ends here
        traceback.print_exc()
        note("tenure: this is a defect of the program, and no answer [defect]")
    finally:
        try:
            with contextlib.suppress(OSError):
                sys.stdout.flush()  # what was said before it failed
        finally:
            os._exit(status)


def offered(root: Root, *, wanted: bool) -> None:
    """Switch the units on where that is wanted and possible; else say what remains to be done. Raises Environment."""
    if not isinstance(root, Path) or not is_there():  # a unit is named for a directory
        note(f"tenure: to run the node: tenure node run --root {root}")
    elif not wanted:
        note(f"tenure: the units are left alone: systemctl enable --now {units(root)[-1]} starts the node")
    elif os.geteuid() != 0:
        names = " ".join(units(root))
        note(f"tenure: to run the node, as the superuser: systemctl enable --now {names}")
    else:
        switch_on(root)
        note(f"tenure: {units(root)[-1]} is switched on and runs")


_PATIENCE_S: Final = 2.0
_VERSION: Final = re.compile(rb'^tenure_node_info\{.*version="([^"]*)"', re.MULTILINE)
_KEY_END: Final = re.compile(rb'^tenure_key_end_timestamp_seconds\{purpose="([a-z]+)"\} (\d[\d.e+]*)$', re.MULTILINE)


class _Line(msgspec.Struct):
    check: str
    verdict: CheckVerdict
    reason: str
    way_out: str | None


class _Told(msgspec.Struct):
    release: str
    checks: list[_Line]


class _Connection(HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, place: Path) -> None:
        super().__init__("localhost", timeout=_PATIENCE_S)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_PATIENCE_S)
        self.sock.connect(str(self._place))


def _asked(settings: Settings, cluster_id: bytes, path: str) -> tuple[int, bytes] | None:
    """Ask this machine's daemon by its door on tmpfs; None where none answers. Blocks for some seconds at most."""
    try:
        with contextlib.closing(_Connection(runtime_of(settings, cluster_id) / HTTP_SOCKET)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
    except (OSError, HTTPException):
        return None


def daemon_check(settings: Settings, cluster_id: bytes) -> tuple[HealthCheck, str | None]:
    """Ask this machine's daemon how it is; return that, judged, and the release that it runs, if it says so."""
    answer = _asked(settings, cluster_id, CHECKS_PATH)
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        if answer is not None:
            told = msgspec.json.decode(answer[1], type=_Told)
            said = [HealthCheck(each.check, each.verdict, each.reason, each.way_out or "") for each in told.checks]
            return judge_daemon(settings.node, said, None, None), told.release
    runs, listens = keeping(settings, cluster_id)
    return judge_daemon(settings.node, None, runs, listens if answer is None else None), None


def time_agent_check(settings: Settings, cluster_id: bytes) -> list[HealthCheck]:
    """Say of a time agent that ran here that it does not answer; nothing where none was, or it does. Blocks a while."""
    runtime = runtime_of(settings, cluster_id)
    if not (runtime / DOOR_NAME).exists():
        return []
    try:
        NonceClient(runtime).report()
    except BadTime as problem:
        return [unsure("time agent", f"{problem.message}: what began with it has no time meanwhile", problem.hint)]
    return []


def keeping(settings: Settings, cluster_id: bytes) -> tuple[str | None, str | None]:
    """Return in words which process has the lock of this machine's daemon, and which listens at its door; or None."""
    runtime = runtime_of(settings, cluster_id)
    if not daemon_lock(runtime).is_held():
        return None, None
    listens = kept_by(runtime / HTTP_SOCKET)
    return listens or "another process of this machine", listens


def running_release(settings: Settings, cluster_id: bytes) -> str | None:
    """Return which release this machine's daemon runs, also an earlier one; None where none answers."""
    answer = _asked(settings, cluster_id, "/metrics")
    if answer is None:
        return None
    found = _VERSION.search(answer[1])
    return found[1].decode() if found else ""


def key_ends(settings: Settings, cluster_id: bytes) -> dict[str, int]:
    """Return until when each key counts that this machine's daemon uses, by purpose; empty where none answers."""
    answer = _asked(settings, cluster_id, "/metrics")
    found = _KEY_END.findall(answer[1]) if answer is not None else []
    return {purpose.decode(): round(float(end)) * SECOND for purpose, end in found}
