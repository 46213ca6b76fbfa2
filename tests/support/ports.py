"""Ports of loopback for servers that a test starts as processes of their own."""

from __future__ import annotations

import itertools
import os
import socket

# Below those that Linux gives to whoever connects somewhere (`net.ipv4.ip_local_port_range`): one of these is taken
# by any connection between the look and the server's start.
_PORTS = range(10_000, 32_000)
_APART = 2_741  # between processes whose numbers follow each other, as pytest-xdist's workers' do

_next = itertools.count(os.getpid() * _APART)


def free_port() -> int:
    """A port at which nobody listens by TCP or UDP, and which this process is given once."""
    for number in itertools.islice(_next, len(_PORTS)):
        port = _PORTS[number % len(_PORTS)]
        if all(_is_free(port, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
            return port
    raise OSError(f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free")


def _is_free(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET, kind) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
