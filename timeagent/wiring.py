"""Which sources an agent asks, from its settings: the joins of adapters and doors, in one place."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from .agentsettings import AgentSettings, Endpoint
from .clock import AgentClock
from .combine import Weight
from .hearing import OWN_GROUP, Listed
from .malfeasance import RoughChain, RoughEvidence
from .serverlist import RoughtimeServer
from .sources.adjtimex import KernelSource
from .sources.assumed import AssumedSource
from .sources.chrony import TIMEOUT_NS as CHRONY_TIMEOUT_NS
from .sources.chrony import ChronySource
from .sources.clockbound import ClockBoundSource
from .sources.exchange import UdpExchange
from .sources.mountctime import MountSource
from .sources.peer import TIMEOUT_NS as PEER_TIMEOUT_NS
from .sources.peer import PeerSource, Refusing
from .sources.port import Source
from .sources.roughtime import PERIOD_NS as ROUGHTIME_PERIOD_NS
from .sources.roughtime import RoughtimeSource
from .units import SECOND, Instant, Span

PEER_PERIOD_NS: Span = 2 * SECOND
MOUNT_PERIOD_NS: Span = 10 * SECOND
"""Touching a file on the mount costs the file server something."""


def own_sources(clock: AgentClock, settings: AgentSettings, chance: random.Random) -> list[Source]:
    """Return the machine's own time services, the best first. Asks none of them."""
    found: list[Source] = []
    if settings.clockbound is not None:
        found.append(ClockBoundSource(clock, settings.clockbound))
    if settings.chrony is not None:
        exchange = _exchange(settings.chrony, CHRONY_TIMEOUT_NS)
        found.append(ChronySource(clock, exchange, chance, cluster_time=settings.cluster_time))
    if settings.kernel:
        found.append(KernelSource(clock))
    return found


def listed_sources(
    clock: AgentClock,
    settings: AgentSettings,
    chance: random.Random,
    *,
    assumed_radius_ns: Span,
    touch: Callable[[], Instant],
    refuses: Callable[[str], Refusing],
    own_word: Callable[[bytes], bytes],
) -> list[Listed]:
    """Return all sources as an agent asks them.

    ``touch`` asks the file server for its clock; ``refuses`` judges what a node signed; ``own_word`` is the agent's.
    """
    listed = [Listed(source, group=OWN_GROUP) for source in own_sources(clock, settings, chance)]
    for node, endpoint in sorted(settings.peers.items()):
        peer = PeerSource(
            clock, node, _exchange(endpoint, PEER_TIMEOUT_NS), refuses(node), _stream(chance), own_word=own_word
        )
        listed.append(Listed(peer, period_ns=PEER_PERIOD_NS))
    if settings.mount_radius_ns:
        mount = MountSource(clock, touch, settings.mount_radius_ns)
        listed.append(Listed(mount, Weight.CROSS_CHECK, period_ns=MOUNT_PERIOD_NS))
    if assumed_radius_ns:
        listed.append(Listed(AssumedSource(clock, assumed_radius_ns), Weight.ASSUMED))
    return listed


def roughtime_sources(
    clock: AgentClock, servers: Sequence[RoughtimeServer], chance: random.Random, evidence: RoughEvidence
) -> list[Listed]:
    """Return Roughtime servers as an agent asks them: outside witnesses, all in one chain.

    ``chance``: nobody may foretell it, or an answer could be older than its question.
    """
    chain = RoughChain(chance, evidence)
    return [
        Listed(RoughtimeSource(clock, server, chain), Weight.CROSS_CHECK, period_ns=ROUGHTIME_PERIOD_NS)
        for server in servers
    ]


def _exchange(endpoint: Endpoint, timeout_ns: Span) -> UdpExchange:
    return UdpExchange(endpoint.host, endpoint.port, timeout_ns=timeout_ns)


def _stream(chance: random.Random) -> random.Random:
    """Return a stream of its own: sources are asked by threads of their own."""
    return random.Random(chance.getrandbits(256))  # noqa: S311 - nonces, from a generator that the main seeded
