"""The list of Roughtime servers to ask: RFC 10049's JSON (section 8.3), which is also Cloudflare's ``ecosystem.json``.

```json
{"servers": [{"name": "a name", "version": 1, "publicKeyType": "ed25519", "publicKey": "base64 of 32 bytes",
              "addresses": [{"protocol": "udp", "address": "roughtime.example.com:2002"}]}]}
```

Members that are not known are ignored, as the RFC demands. A server that cannot be asked (another kind of key, no UDP
address) is left out; a list that is damaged is refused whole.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from .errors import BadConfiguration

LIST_BYTES_MAX: Final = 1024 * 1024
SERVERS_MAX: Final = 64

_PUBLIC_BYTES: Final = 32
_NAME_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class RoughtimeServer:
    """One server as a client asks it."""

    name: str
    public: bytes
    """Its long-term key."""
    host: str
    port: int


class _Address(msgspec.Struct):
    protocol: str
    address: str


class _Server(msgspec.Struct, rename="camel"):
    name: str
    public_key: str
    addresses: list[_Address]
    public_key_type: str = "ed25519"


class _List(msgspec.Struct):
    servers: list[_Server]


def load_servers(path: Path) -> tuple[RoughtimeServer, ...]:
    """Read the list. Raises BadConfiguration, naming the file and the server. A local disk."""
    try:
        with path.open("rb") as file:
            data = file.read(LIST_BYTES_MAX + 1)
    except OSError as problem:
        raise BadConfiguration(
            "bad-server-list", f"cannot read {path}: {problem.strerror}", hint="name a list of Roughtime servers"
        ) from None
    return parse_servers(data, str(path))


def parse_servers(data: bytes, where: str) -> tuple[RoughtimeServer, ...]:
    """Read the list's bytes. Raises BadConfiguration, naming ``where`` and the server."""
    if len(data) > LIST_BYTES_MAX:
        raise _bad(where, f"it has more than {LIST_BYTES_MAX} bytes")
    try:
        servers = msgspec.json.decode(data, type=_List).servers
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise _bad(where, str(problem)) from None
    read = tuple(server for each in servers if (server := _server(each, where)) is not None)
    if len(read) > SERVERS_MAX:
        raise _bad(where, f"it names {len(read)} servers; {SERVERS_MAX} is the most")
    for names in ([each.name for each in read], [each.public for each in read]):
        if len(set(names)) != len(names):
            raise _bad(where, "two servers have one name, or one key")
    return read


def _server(each: _Server, where: str) -> RoughtimeServer | None:
    address = next((address.address for address in each.addresses if address.protocol == "udp"), None)
    if each.public_key_type != "ed25519" or address is None:
        return None
    name = "".join(letter for letter in each.name if letter.isprintable()).strip()[:_NAME_MAX]
    if not name:
        raise _bad(where, "a server has no name")
    try:
        public = base64.b64decode(each.public_key, validate=True)
    except (binascii.Error, ValueError):
        raise _bad(where, f"{name}: publicKey is not base64") from None
    if len(public) != _PUBLIC_BYTES:
        raise _bad(where, f"{name}: publicKey has {len(public)} bytes, not {_PUBLIC_BYTES}")
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise _bad(where, f"{name}: {address!r} is not HOST:PORT")
    return RoughtimeServer(name, public, host, int(port))


def _bad(where: str, reason: str) -> BadConfiguration:
    return BadConfiguration("bad-server-list", f"{where}: {reason}", hint="the shape is that of RFC 10049, section 8.3")
