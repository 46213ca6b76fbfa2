"""Which nodes answer, and which release each runs: what the certificates say that they show where they answer others.

For people only: nothing is decided by it. What two releases do not understand of each other they refuse by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from threading import Event, Thread
from typing import Final

from timeagent.clock import NodeTime
from timeagent.errors import Environment, TenureError
from timeagent.keys import KeyInUse, Signer
from timeagent.units import MS, SECOND, Span

from ..doctor.health import HealthCheck, judge_reached, judge_releases, unknown
from ..lease import tls
from ..lease.transport import TlsTransport
from ..lease.wire import PROTOCOL_VERSION, Hello
from .hosted_shard import in_thread
from .record_watch import TrustWatch
from .runtime import begin

LOOK_NS: Final[Span] = 2 * SECOND
"""How often the others are asked: with ASK_NS, a node that stands still is known within five seconds."""
LOOK_NS_A_NODE: Final[Span] = 100 * MS
"""But not more of them a second than this allows: each is a handshake, on both sides."""
ASK_NS: Final[Span] = 2 * SECOND
"""How long a node has to answer."""
_AT_ONCE: Final = 16

UNSAID: Final = "unsaid"
"""Of a node that answers and names no release."""


class Releases:
    """What each node says that it runs. Thread-safe."""

    def __init__(
        self, node: str, tls_key: Signer | KeyInUse, cluster_id: bytes, trust: TrustWatch, time: NodeTime, own: str
    ) -> None:
        """Ask nobody yet. ``own``: what runs here."""
        self._node = node
        self._ends = tls.OwnEnds(tls.client_context, tls_key)
        self._greeting = Hello(version=PROTOCOL_VERSION, cluster_id=cluster_id, node=node, shard=None)
        self._trust = trust
        self._time = time
        self.own = own
        self.known: Mapping[str, str | None] = {node: own}
        """By node, as of the last look; None: it did not answer."""
        self._addresses: dict[str, str] | None = None
        """Where each other node was asked then."""
        self._closed = Event()
        self.thread = Thread(target=self._run, name="tenure-releases", daemon=True)

    @property
    def period_ns(self) -> Span:
        return max(LOOK_NS, len(self.known) * LOOK_NS_A_NODE)

    def look(self) -> Mapping[str, str | None]:
        """Ask every node that has an address; return who runs what. Blocks for ASK_NS, more with many silent nodes.

        Raises Environment where this process may have no more threads.
        """
        addresses = {node: str(self._trust.address_of(node)) for node in self._trust.nodes()}
        addresses.pop(self._node, None)
        found: dict[str, str | None] = dict.fromkeys(addresses)
        nodes = iter(list(addresses))

        def ask() -> None:
            for node in nodes:  # the next that no other thread has taken
                found[node] = self._of(node)

        # A pool's threads would be waited for by an interpreter that ends.
        threads = [in_thread(f"tenure-release_{number}", ask) for number in range(min(_AT_ONCE, len(found)))]
        for each in threads:
            each.join()
        self.known, self._addresses = {self._node: self.own} | found, addresses
        return self.known

    def checks(self) -> list[HealthCheck]:
        """Return what the last look comes to. Never blocks."""
        addresses = self._addresses
        if addresses is None:
            return [unknown("other nodes", "no answer yet", "wait a moment")]
        known = {**self.known, self._node: self.own}
        silent = {node: address for node, address in addresses.items() if known.get(node) is None}
        return [judge_reached([node for node in addresses if node not in silent], silent), judge_releases(known)]

    def _of(self, node: str) -> str | None:
        if self._closed.is_set():
            return None
        try:
            with contextlib.closing(TlsTransport(node, self._ends, self._trust, self._time, self._greeting)) as line:
                return line.release(ASK_NS) or UNSAID
        except TenureError:
            return None

    def start(self) -> None:
        """Begin to ask. Raises Environment."""
        begin(self.thread)

    def close(self) -> None:
        """Look no more. Does not wait for a node that does not answer. Idempotent."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(Environment):  # asked again next time
                self.look()
            self._closed.wait(self.period_ns / SECOND)


def skewed(known: Mapping[str, str | None]) -> bool:
    """Whether nodes that answer run more than one release."""
    return len({release for release in known.values() if release is not None}) > 1


def in_words(known: Mapping[str, str | None]) -> str:
    return ", ".join(f"{node} {release or 'no answer'}" for node, release in sorted(known.items()))
