"""Names that people choose, and the rules that they keep: domains, logs, nodes, purposes, addresses of nodes."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import partial
from typing import Final

from timeagent.errors import BadRequest, check_type

DOMAIN_BYTES_MAX: Final = 512
PURPOSE_BYTES_MAX: Final = 128

_NODE: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LOG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_domain(name: str) -> str:
    """Return the name. Raises BadRequest: UTF-8, 1 to 512 bytes, no control characters."""
    try:
        size = len(name.encode())
    except (UnicodeEncodeError, AttributeError):
        check_type(str, domain=name)
        raise BadRequest(
            "bad-domain", f"the domain {name!r} is not UTF-8", hint="use text without surrogates"
        ) from None
    if not 1 <= size <= DOMAIN_BYTES_MAX:
        raise BadRequest(
            "bad-domain",
            f"the domain {name[:60]!r} has {size} bytes; a domain has 1 to {DOMAIN_BYTES_MAX}",
            hint="shorten it, or use a digest of it" if size else "name what the lease is about",
        )
    plain = size == len(name) and name.isprintable()  # ASCII: what it cannot print is what controls
    control = None if plain else next((c for c in name if unicodedata.category(c) == "Cc"), None)
    if control is not None:
        raise BadRequest(
            "bad-domain", f"the domain {name[:60]!r} holds the control character {control!r}", hint="remove it"
        )
    return name


def _check_file_name(what: str, name: str) -> str:
    """Return the name. Raises BadRequest: 1 to 100 of letters, digits, dot, underscore, hyphen; not a dot first."""
    check_type(str, **{what: name})
    if not _LOG.fullmatch(name):
        raise BadRequest(
            f"bad-{what}-name",
            f"{name[:120]!r} is not a {what} name: 1 to 100 of A-Z a-z 0-9 . _ -, beginning with a letter or digit",
            hint="choose another name",
        )
    return name


check_log, check_view, check_election = (partial(_check_file_name, what) for what in ("log", "view", "election"))


def check_node(name: str) -> str:
    """Return the name. Raises BadRequest: what a host name's first label may be."""
    if not _NODE.fullmatch(name):
        raise BadRequest(
            "bad-node-name",
            f"{name[:80]!r} is not a node name: 1 to 63 of a-z 0-9 -, no hyphen at either end",
            hint="use the host's short name in lower case",
        )
    return name


def check_purpose(text: str) -> str:
    """Return what a holder says it is doing. Raises BadRequest: at most 128 bytes, no control characters."""
    check_type(str, purpose=text)
    if len(text.encode(errors="replace")) > PURPOSE_BYTES_MAX or any(
        unicodedata.category(c) in ("Cc", "Cs") for c in text
    ):
        raise BadRequest(
            "bad-purpose",
            f"the purpose {text[:60]!r} is not plain text of at most {PURPOSE_BYTES_MAX} bytes",
            hint="shorten it",
        )
    return text


def tree_of(domain: str) -> str:
    """Return the part of a domain that decides its shard.

    A name that begins with a slash is a path in a tree and hashes by its first component, so that a tree lives in one
    shard; every other name hashes whole.
    """
    if not domain.startswith("/"):
        return domain
    return "/" + domain[1:].split("/", 1)[0]


PORT: Final = 7420
"""The port that a node listens at where none is named."""

_HOST: Final = re.compile(r"(?!.*(?:\.\.|[^.]{64}))[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_V6: Final = re.compile(r"[0-9A-Fa-f:.]{2,45}")


@dataclass(frozen=True, slots=True)
class Address:
    """A host name or IP address, and a port. IPv6 addresses stand in brackets in the text, not in ``host``."""

    host: str
    port: int

    def __str__(self) -> str:
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
