"""A port that a test gives to its server is still free when the server begins."""

import socket
from pathlib import Path

import pytest

from tests.support.ports import free_port


def test_port_is_none_that_the_kernel_gives_to_connections() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    given = {free_port() for _ in range(50)}
    assert len(given) == 50
    assert not any(first <= port <= last for port in given)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_port_that_somebody_has_is_not_given(kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_INET, kind) as holder:
        taken = free_port() + 1
        holder.bind(("127.0.0.1", taken))
        assert free_port() != taken
