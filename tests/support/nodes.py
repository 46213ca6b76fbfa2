"""Nodes that trust each other, without a mount: TLS keys, a trust record that a test changes, and a door."""

from __future__ import annotations

import hashlib
import socket
import struct
from threading import Thread
from typing import TYPE_CHECKING

import msgspec

from appliance.formats.names import Address, parse_address
from appliance.lease import tls
from appliance.lease.connection import ClientLimits
from appliance.lease.listeners import TlsListener
from appliance.lease.server import ShardServer
from appliance.lease.transport import TlsTransport
from appliance.lease.wire import LENGTH_BYTES, PROTOCOL_VERSION, Hello, decode_answer
from tests.support.shards import World
from tests.support.values import CLUSTER, NOW_NS
from timeagent.clock import SystemClock
from timeagent.keys import Purpose, Signer, key_id
from timeagent.trust import KeyEntry, Keyring
from timeagent.units import DAY

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from appliance.lease.wire import Reply

SHARD = 0


def tls_key(node: str) -> Signer:
    return Signer(hashlib.sha256(f"{node} tls".encode()).digest())


def entry(node: str, address: str | None = None, **changes: object) -> KeyEntry:
    whole = KeyEntry(
        node=node,
        purpose=Purpose.TLS,
        public=tls_key(node).public,
        valid_from_ns=NOW_NS - DAY,
        valid_until_ns=NOW_NS + DAY,
        address=address,
    )
    return msgspec.structs.replace(whole, **changes)


class HandTrust:
    """The lease package's Trust, over entries that a test replaces; the instant is always the same."""

    def __init__(self, *entries: KeyEntry) -> None:
        self.number = 0
        self.looks = 0
        self.put(*entries)

    def put(self, *entries: KeyEntry) -> None:
        self.entries = entries
        self.number += 1

    def node_of(self, identifier: bytes) -> str | None:
        return next((each.node for each in self.entries if key_id(each.public) == identifier), None)

    def refuses(self, identifier: bytes) -> str | None:
        return Keyring(self.entries).refuses(identifier, Purpose.TLS, NOW_NS)

    def address_of(self, node: str) -> Address | None:
        text = next((each.address for each in self.entries if each.node == node and each.address), None)
        return parse_address(text) if text else None

    def look(self) -> None:
        self.looks += 1


def hello(own: str, **changes: object) -> Hello:
    whole = Hello(version=PROTOCOL_VERSION, cluster_id=CLUSTER, node=own, shard=SHARD)
    return msgspec.structs.replace(whole, **changes)


class DoorWorld:
    """One shard of node-a behind its door, on loopback; node-b and node-c may come in. Close it."""

    def __init__(self, path: Path, limits: ClientLimits | None = None, shown: bytes | None = None) -> None:
        """``shown``: the certificate, if another than the usual one."""
        self.world = World(path)
        self._opened: list[TlsTransport | ssl.SSLSocket] = []
        self.trust = HandTrust(entry("node-a"), entry("node-b"), entry("node-c"))
        self.clock = SystemClock()
        self.server = ShardServer(
            self.world.started(), path / "shard.sock", limits=limits, clock=self.clock, trust=self.trust
        )
        self.serving: ShardServer | None = self.server
        self.door = TlsListener(
            Address("127.0.0.1", 0),
            tls.server_context(tls_key("node-a"), shown),
            self.trust,
            CLUSTER,
            lambda shard: self.serving if shard == SHARD else None,
            self.clock,
        )
        self.trust.put(entry("node-a", str(self.door.address)), entry("node-b"), entry("node-c"))
        self.threads = [Thread(target=run, daemon=True) for run in (self.server.run, self.door.run)]
        for thread in self.threads:
            thread.start()

    def transport(self, node: str = "node-b", greeting: Hello | None = None, to: str = "node-a") -> TlsTransport:
        context = tls.client_context(tls_key(node))
        made = TlsTransport(to, context, self.trust, self.clock, greeting or hello(node))
        self._opened.append(made)
        return made

    def raw(self, context: ssl.SSLContext | None = None, node: str = "node-b") -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.door.address.port), timeout=20)
        made = (context or tls.client_context(tls_key(node))).wrap_socket(plain)
        self._opened.append(made)
        return made

    def close(self) -> None:
        for each in self._opened:  # also where a test ended before it did
            each.close()
        self.door.stop()
        self.server.stop()
        for thread in self.threads:
            thread.join(20)
            assert not thread.is_alive()
        self.world.close()


def read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "closed"
        data += part
    return data


def read_answer(connection: socket.socket, requests: int = 1) -> list[Reply]:
    (length,) = struct.unpack(">I", read_exactly(connection, LENGTH_BYTES))
    return decode_answer(read_exactly(connection, length), requests)


def read_to_the_end(connection: socket.socket) -> bytes:
    data = b""
    try:
        while part := connection.recv(65536):
            data += part
    except OSError:
        pass
    return data
