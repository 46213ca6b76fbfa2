"""The agent's own settings, ``time.toml`` in the node's directory, and the sources and doors that they ask for.

```toml
chrony = "127.0.0.1:323"                  # "" asks no chronyd
clockbound = "/var/run/clockbound/shm0"   # "" asks no ClockBound
kernel = true                             # adjtimex(2)
cluster_time = ""                         # the name of a reference of this cluster, where there is no UTC
mount_radius = ""                         # "1s": check against the file server's clock, trusted to that
listen = ""                               # "0.0.0.0:7425": answer peers over UDP
liars = -1                                # how many voices may be wrong; -1: fewer than half
drift_ppm = 200                           # how fast this machine's clock may run away
evidence = ""                             # where contradictions are kept; default: evidence/ in the node's directory
roughtime_servers = ""                    # a list of Roughtime servers to check against: servers.json
roughtime_listen = ""                     # "0.0.0.0:5319": be a Roughtime server

[peers]                                   # other nodes' agents: voices of their own
node2 = "10.0.0.2:7425"
```
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ..clock import DRIFT_PPM, MachineClock
from ..errors import BadConfiguration, BadRequest
from ..sources.chrony import TIMEOUT_NS as CHRONY_TIMEOUT_NS
from ..sources.chrony import ChronySource, ClockBoundSource
from ..sources.local import AssumedSource, KernelSource, MountSource
from ..sources.nonce import PEER_TIMEOUT_NS, PeerSource, Refusing
from ..sources.port import Endpoint, Source, UdpExchange, parse_endpoint
from ..units import DAY, SECOND, Instant, Span, parse_span
from .discipline import OWN_GROUP, Listed, Weight

FILE: Final = "time.toml"
PPM_MAX: Final = 100_000
LIARS_MAX: Final = 100


class _Toml(msgspec.Struct, forbid_unknown_fields=True):
    chrony: str = "127.0.0.1:323"
    clockbound: str = "/var/run/clockbound/shm0"
    kernel: bool = True
    cluster_time: str = ""
    mount_radius: str = ""
    listen: str = ""
    liars: int = -1
    drift_ppm: int = DRIFT_PPM
    evidence: str = ""
    roughtime_servers: str = ""
    roughtime_listen: str = ""
    peers: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What the agent of this node asks and answers."""

    chrony: Endpoint | None
    clockbound: Path | None
    kernel: bool
    cluster_time: str
    mount_radius_ns: Span
    """0: the file server's clock is not asked."""
    listen: Endpoint | None
    liars: int | None
    drift_ppm: int
    evidence: Path
    roughtime_servers: Path | None
    """The list (timeagent/roughtime/client.py); None: no Roughtime server is asked."""
    roughtime_listen: Endpoint | None
    peers: Mapping[str, Endpoint]


def load_agent_settings(directory: Path) -> AgentSettings:
    """Read ``time.toml``, or take the defaults where there is none. Raises BadConfiguration, naming file and entry."""
    path = directory / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except OSError as problem:
        raise _bad(path, f"cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError as problem:
        raise _bad(path, str(problem)) from None
    return parse_agent_settings(text, path)


def parse_agent_settings(text: str, path: Path) -> AgentSettings:
    """Read the text of a settings file. Raises BadConfiguration, naming ``path`` and the entry. Pure."""
    try:
        raw = msgspec.convert(tomllib.loads(text), _Toml)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as problem:
        raise _bad(path, str(problem)) from None
    if not 1 <= raw.drift_ppm <= PPM_MAX:
        raise _bad(path, f"drift_ppm is {raw.drift_ppm}: from 1 to {PPM_MAX}")
    if "" in raw.peers.values():
        raise _bad(path, f"peers.{next(node for node, text in raw.peers.items() if not text)} is empty")
    for name in ("clockbound", "evidence", "roughtime_servers"):
        if "\0" in getattr(raw, name):
            raise _bad(path, f"{name} is {getattr(raw, name)!r}: no path holds a NUL")
    if not -1 <= raw.liars <= LIARS_MAX:
        raise _bad(path, f"liars is {raw.liars}: from 0 to {LIARS_MAX}, or -1 for fewer than half")
    return AgentSettings(
        chrony=_endpoint(raw.chrony, "chrony", path),
        clockbound=Path(raw.clockbound) if raw.clockbound else None,
        kernel=raw.kernel,
        cluster_time=raw.cluster_time,
        mount_radius_ns=_radius(raw.mount_radius, path),
        listen=_endpoint(raw.listen, "listen", path),
        liars=None if raw.liars < 0 else raw.liars,
        drift_ppm=raw.drift_ppm,
        evidence=path.parent / (raw.evidence or "evidence"),
        roughtime_servers=path.parent / raw.roughtime_servers if raw.roughtime_servers else None,
        roughtime_listen=_endpoint(raw.roughtime_listen, "roughtime_listen", path),
        peers={node: peer for node, text in raw.peers.items() if (peer := _endpoint(text, f"peers.{node}", path))},
    )


def _radius(text: str, path: Path) -> Span:
    if not text:
        return 0
    try:
        span = parse_span(text)
    except BadRequest as problem:
        raise _bad(path, f"mount_radius: {problem.message}") from None
    if not 0 < span <= DAY:
        raise _bad(path, f"mount_radius is {text!r}: above 0 and at most a day")
    return span


def _endpoint(text: str, name: str, path: Path) -> Endpoint | None:
    if not text:
        return None
    endpoint = parse_endpoint(text)
    if endpoint is None:
        raise _bad(path, f"{name} is {text!r}: an address is host:port, or [ipv6]:port")
    return endpoint


def _bad(path: Path, what: str) -> BadConfiguration:
    return BadConfiguration("bad-time-settings", f"{path}: {what}", hint="see docs/operators.md")


PEER_PERIOD_NS: Span = 2 * SECOND
MOUNT_PERIOD_NS: Span = 10 * SECOND
"""Touching a file on the mount costs the file server something."""


def own_sources(clock: MachineClock, settings: AgentSettings, chance: random.Random) -> list[Source]:
    """Return the machine's own time services, the best first. Asks none of them."""
    found: list[Source] = []
    if settings.clockbound is not None:
        found.append(ClockBoundSource(clock, settings.clockbound))
    if settings.chrony is not None:
        exchange = UdpExchange(settings.chrony, timeout_ns=CHRONY_TIMEOUT_NS)
        found.append(ChronySource(clock, exchange, chance, cluster_time=settings.cluster_time))
    if settings.kernel:
        found.append(KernelSource(clock))
    return found


def listed_sources(
    clock: MachineClock,
    settings: AgentSettings,
    chance: random.Random,
    *,
    assumed: AssumedSource,
    touch: Callable[[], Instant],
    refuses: Callable[[str], Refusing],
    own_word: Callable[[bytes], bytes],
) -> list[Listed]:
    """Return all sources as an agent asks them.

    ``assumed``: what the cluster's policy states, or that it states nothing. ``touch`` asks the file server for its
    clock; ``refuses`` judges what a node signed; ``own_word`` is the agent's.
    """
    listed = [Listed(source, group=OWN_GROUP) for source in own_sources(clock, settings, chance)]
    for node, endpoint in sorted(settings.peers.items()):
        peer = PeerSource(
            clock,
            node,
            UdpExchange(endpoint, timeout_ns=PEER_TIMEOUT_NS),
            refuses(node),
            random.Random(chance.getrandbits(256)),  # noqa: S311 - a stream of its own: a thread of its own asks
            own_word=own_word,
        )
        listed.append(Listed(peer, period_ns=PEER_PERIOD_NS))
    if settings.mount_radius_ns:
        mount = MountSource(clock, touch, settings.mount_radius_ns)
        listed.append(Listed(mount, Weight.CROSS_CHECK, period_ns=MOUNT_PERIOD_NS))
    return [*listed, Listed(assumed, Weight.ASSUMED)]
