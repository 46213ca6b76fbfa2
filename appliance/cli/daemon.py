"""This machine's daemon, as a command sees it: whether one runs, which release, and whether it is ready."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from appliance.settings import Settings

_PATIENCE_S: Final = 5.0
_VERSION: Final = re.compile(rb'^leasehold_node_info\{.*version="([^"]*)"', re.MULTILINE)


class _Connection(HTTPConnection):
    """HTTP to an address, or to a Unix socket."""

    def __init__(self, place: Path | tuple[str, int]) -> None:
        host, port = ("localhost", 80) if isinstance(place, Path) else place
        super().__init__(host, port, timeout=_PATIENCE_S)
        self._place = place

    def connect(self) -> None:
        if not isinstance(self._place, Path):
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_PATIENCE_S)
        self.sock.connect(str(self._place))


def asked(settings: Settings, cluster_id: bytes, path: str) -> tuple[int, bytes] | None:
    """Ask this machine's daemon by its HTTP door; None where none answers. Blocks for some seconds at most."""
    from appliance.cluster import runtime_of
    from appliance.node import HTTP_SOCKET

    http = settings.http
    place = runtime_of(settings, cluster_id) / HTTP_SOCKET if http is None else http
    try:
        with closing(_Connection(place if isinstance(place, Path) else (place.host, place.port))) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
    except (OSError, HTTPException):
        return None


def standing_still(settings: Settings, cluster_id: bytes) -> str | None:
    """Return in words which process is this machine's daemon, of one that does not answer; None where none runs."""
    from appliance.cluster import runtime_of
    from appliance.givingway import kept_by
    from appliance.node import HTTP_SOCKET
    from appliance.runtime import daemon_lock

    runtime = runtime_of(settings, cluster_id)
    if not daemon_lock(runtime).is_held():
        return None
    return kept_by(runtime / HTTP_SOCKET) or "another process of this machine"


def running_release(settings: Settings, cluster_id: bytes) -> str | None:
    """Return which release this machine's daemon runs; None where none answers."""
    answer = asked(settings, cluster_id, "/metrics")
    found = _VERSION.search(answer[1]) if answer is not None else None
    return None if answer is None else found[1].decode() if found else ""
