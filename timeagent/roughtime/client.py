"""The source *Roughtime*: an outside witness, good to seconds; and the list of servers to ask (RFC 10049, section 8.3).

```json
{"servers": [{"name": "a name", "version": 1, "publicKeyType": "ed25519", "publicKey": "base64 of 32 bytes",
              "addresses": [{"protocol": "udp", "address": "roughtime.example.com:2002"}]}]}
```

Members that are not known are ignored, as the RFC demands. A server that cannot be asked (another kind of key, no UDP
address) is left out; a list that is damaged is refused whole.

A server that does not answer, or whose answer does not verify, is left alone for 1 s, then 1.5 times as long after each
failure, up to a day (RFC 10049); a verified answer alone ends that.

What is refused, by name: ``roughtime-waiting`` (left alone until then), ``no-answer``, ``roughtime-malformed``,
``roughtime-signature``, ``roughtime-delegation`` (an online key that is expired or not yet valid).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ..clock import MachineClock
from ..errors import BadConfiguration, BadTime, Damaged
from ..sources.port import Endpoint, Exchange, Sample, UdpExchange, offset_between, parse_endpoint
from ..units import DAY, MS, SECOND, Span, span_text
from .malfeasance import RoughChain

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
    endpoint: Endpoint


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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
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
    endpoint = parse_endpoint(address)
    if endpoint is None:
        raise _bad(where, f"{name}: {address!r} is not HOST:PORT")
    return RoughtimeServer(name, public, endpoint)


def _bad(where: str, reason: str) -> BadConfiguration:
    return BadConfiguration("bad-server-list", f"{where}: {reason}", hint="the shape is that of RFC 10049, section 8.3")


TIMEOUT_NS: Final[Span] = 1500 * MS
PERIOD_NS: Final[Span] = 64 * SECOND
"""How often a public server may be asked: it serves many."""
RETRY_NS: Final[Span] = SECOND
RETRY_NS_MAX: Final[Span] = DAY


def retry_after(failures: int) -> Span:
    """Return how long a server is left alone after so many failures in a row."""
    times = min(failures - 1, 64)  # a day is reached long before
    span: Span = RETRY_NS * 3**times // 2**times
    return min(span, RETRY_NS_MAX)


class RoughtimeSource:
    def __init__(
        self,
        machine: MachineClock,
        server: RoughtimeServer,
        chain: RoughChain,
        exchange: Callable[[Endpoint], Exchange] = lambda endpoint: UdpExchange(endpoint, timeout_ns=TIMEOUT_NS),
    ) -> None:
        self.name = f"roughtime {server.name}"
        self._machine = machine
        self._server = server
        self._chain = chain
        self._exchange = exchange(server.endpoint)
        self._failures = 0
        self._not_before_ns = 0

    def sample(self) -> Sample:
        """Ask once. Blocks at most for the exchange's time-out, and for the chain's other questions. Raises BadTime."""
        boot_ns = self._machine.boot_ns()
        if boot_ns < self._not_before_ns:
            raise BadTime(
                "roughtime-waiting",
                f"{self.name} failed {self._failures} times in a row and is left alone for "
                f"{span_text(self._not_before_ns - boot_ns)}",
                hint="is its address right, and its key?",
            )
        instants = [0, 0]

        def timed(request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
            nonlocal boot_ns
            boot_ns, instants[0] = self._machine.boot_ns(), self._machine.realtime_ns()
            answer = self._exchange(request, wanted)
            instants[1] = self._machine.realtime_ns()
            return answer

        try:
            answer = self._chain.ask(self._server.public, timed)
        except (BadTime, Damaged) as problem:
            self._failures += 1
            self._not_before_ns = self._machine.boot_ns() + retry_after(self._failures)
            if isinstance(problem, BadTime):
                raise
            raise BadTime(
                problem.code, f"{self.name}: {problem.message}", hint="compare its public key with the server list"
            ) from None
        self._failures = self._not_before_ns = 0
        return Sample(offset_between(answer.interval, *instants), boot_ns)
