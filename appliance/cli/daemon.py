"""This machine's daemons, as a command sees them: whether they run, which release, and how they say that they are."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

import msgspec

from appliance.doctor.check import CheckVerdict, HealthCheck
from timeagent.units import SECOND

from ..node.settings import Settings

_PATIENCE_S: Final = 2.0
_VERSION: Final = re.compile(rb'^tenure_node_info\{.*version="([^"]*)"', re.MULTILINE)
_KEY_END: Final = re.compile(rb'^tenure_key_end_timestamp_seconds\{purpose="([a-z]+)"\} (\d[\d.e+]*)$', re.MULTILINE)


class _Line(msgspec.Struct):
    check: str
    verdict: CheckVerdict
    reason: str
    way_out: str | None


class _Told(msgspec.Struct):
    """What a daemon says at CHECKS_PATH."""

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
    from ..daemon.daemon import HTTP_SOCKET
    from ..node.runtime import runtime_of

    try:
        with closing(_Connection(runtime_of(settings, cluster_id) / HTTP_SOCKET)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
    except (OSError, HTTPException):
        return None


def daemon_check(settings: Settings, cluster_id: bytes) -> tuple[HealthCheck, str | None]:
    """Ask this machine's daemon how it is; return that, judged, and the release that it runs, if it says so."""
    from ..daemon.status import CHECKS_PATH
    from ..doctor.health import judge_daemon

    answer = _asked(settings, cluster_id, CHECKS_PATH)
    try:
        told = None if answer is None else msgspec.json.decode(answer[1], type=_Told)
    except msgspec.DecodeError:
        told = None
    runs, listens = (None, None) if told is not None else keeping(settings, cluster_id)
    listens = listens if answer is None else None
    said = None if told is None else [HealthCheck(c.check, c.verdict, c.reason, c.way_out or "") for c in told.checks]
    return judge_daemon(settings.node, said, runs, listens), None if told is None else told.release


def time_agent_check(settings: Settings, cluster_id: bytes) -> list[HealthCheck]:
    """Say of a time agent that ran here that it does not answer; nothing where none was, or it does. Blocks a while."""
    from appliance.doctor.check import unsure
    from timeagent.errors import BadTime
    from timeagent.sources.nonce import DOOR_NAME, NonceClient

    from ..node.runtime import runtime_of

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
    from ..daemon.daemon import HTTP_SOCKET
    from ..node.runtime import daemon_lock, kept_by, runtime_of

    runtime = runtime_of(settings, cluster_id)
    if not daemon_lock(runtime).is_held():
        return None, None
    listens = kept_by(runtime / HTTP_SOCKET)
    return listens or "another process of this machine", listens


def running_release(settings: Settings, cluster_id: bytes) -> str | None:
    """Return which release this machine's daemon runs, also an earlier one; None where none answers."""
    answer = _asked(settings, cluster_id, "/metrics")
    found = _VERSION.search(answer[1]) if answer is not None else None
    return None if answer is None else found[1].decode() if found else ""


def key_ends(settings: Settings, cluster_id: bytes) -> dict[str, int]:
    """Return until when each key counts that this machine's daemon uses, by purpose; empty where none answers."""
    answer = _asked(settings, cluster_id, "/metrics")
    found = _KEY_END.findall(answer[1]) if answer is not None else []
    return {purpose.decode(): round(float(end)) * SECOND for purpose, end in found}
