"""This machine's units, where systemd runs it and tenure's units are installed: named after the root.

`init` and `join` switch them on, `leave` switches them off, `node upgrade` restarts them. Who calls these as the
superuser is tenure's own user for what is done on the mount, and the superuser again for the units.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from timeagent.console import note, report_error
from timeagent.errors import Environment, TenureError

from ..bag.roots import Root

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


def node_unit(root: Path) -> str:
    return f"tenure-node@{instance(root)}.service"


def units(root: Path) -> list[str]:
    """Return all units for a root: time agent, node, and the target that holds both."""
    name = instance(root)
    return [f"tenure-time@{name}.service", node_unit(root), f"tenure@{name}.target"]


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
    _run("kill", "--signal=SIGINT", node_unit(root))  # it drains: nobody goes on here with its leases
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


def _systemctl(*words: str) -> None:
    done = _run(*words)
    if done.returncode:
        raise Environment(
            "systemd",
            f"systemctl {' '.join(words)}: {(done.stderr or done.stdout).strip() or done.returncode}",
            hint="systemctl status and journalctl -u say why; as the superuser? --no-systemd leaves the units alone",
        )


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - words of ours
            ["systemctl", "--no-ask-password", *words],  # noqa: S607 - wherever this machine has it
            capture_output=True,
            text=True,
            check=False,
            timeout=_STEP_S,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Environment("systemd", f"systemctl {words[0]}: {problem}", hint="--no-systemd") from None


def has_user() -> bool:
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return False
    return True


def as_own_user(work: Callable[[], int], *, allow_root: bool = False) -> int:
    """Do it as tenure's own user where the superuser calls and there is one; return its exit code.

    ``allow_root``: as the superuser all the same. A process of its own does it, which gives up what the superuser may.
    Blocks until it ends.
    """
    if allow_root or os.geteuid() != 0 or not has_user():
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 70
    try:
        user = pwd.getpwnam(USER)
        os.initgroups(USER, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
        os.umask(0o002)
        os.environ["HOME"] = user.pw_dir
        try:
            status = work()
        except TenureError as problem:
            status = report_error(problem)
        sys.stdout.flush()
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
