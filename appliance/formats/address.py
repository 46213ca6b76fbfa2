"""Where a node is reached over TCP: ``HOST:PORT``, as it stands in settings and in the trust record."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from timeagent.errors import BadRequest

PORT: Final = 7420
"""The port that a node listens at where none is named."""

_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_V6: Final = re.compile(r"[0-9A-Fa-f:.]{2,45}")


@dataclass(frozen=True, slots=True)
class Address:
    """A host name or IP address, and a port. IPv6 addresses stand in brackets in the text, not in ``host``."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the text that ``parse_address`` reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``HOST``, ``HOST:PORT``, ``[V6]`` or ``[V6]:PORT``. Raises BadRequest."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        good = bool(bracket and _V6.fullmatch(host) and ":" in host and rest[:1] in ("", ":"))
        port = rest[1:]
        good = good and rest != ":"
    else:
        host, colon, port = text.partition(":")
        good = bool(_HOST.fullmatch(host)) and (bool(port) or not colon)
    if not good or not re.fullmatch(r"[0-9]{0,5}", port) or not 0 < int(port or PORT) < 2**16:
        raise BadRequest(
            "bad-address",
            f"{text[:300]!r} is no address: HOST:PORT, 10.0.0.7:{PORT} or [fe80::7]:{PORT}",
            hint="name a host and a port between 1 and 65535",
        )
    return Address(host, int(port or PORT))
