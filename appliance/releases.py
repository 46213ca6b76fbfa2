"""Which release each node runs: what the certificates say that nodes show where they answer others.

For people only: nothing is decided by it. What two releases do not understand of each other they refuse by name.
"""

from __future__ import annotations

import contextlib
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import LeaseholdError
from timeagent.units import SECOND

from .lease import tls
from .lease.transport import TlsTransport
from .lease.wire import PROTOCOL_VERSION, Hello

if TYPE_CHECKING:
    from collections.abc import Mapping

    from timeagent.clock import NodeTime
    from timeagent.units import Span

    from .settings import Settings
    from .trustwatch import TrustWatch

LOOK_NS: Final[Span] = 30 * SECOND
"""How often a daemon asks the others."""
ASK_NS: Final[Span] = 2 * SECOND
"""How long a node has to answer."""

UNSAID: Final = "unsaid"
"""Of a node that answers and names no release."""


class Releases:
    """What each node says that it runs. Thread-safe."""

    def __init__(self, settings: Settings, cluster_id: bytes, trust: TrustWatch, time: NodeTime, own: str) -> None:
        """Ask nobody yet. ``own``: what runs here."""
        self._settings = settings
        self._greeting = Hello(version=PROTOCOL_VERSION, cluster_id=cluster_id, node=settings.node, shard=None)
        self._trust = trust
        self._time = time
        self.own = own
        self.known: Mapping[str, str | None] = {settings.node: own}
        """By node, as of the last look; None: it did not answer."""
        self._closed = Event()

    def look(self) -> Mapping[str, str | None]:
        """Ask every node that has an address, one after the other; return who runs what. Blocks, ASK_NS a node."""
        found: dict[str, str | None] = {self._settings.node: self.own}
        for node in self._trust.nodes():
            if node != self._settings.node and not self._closed.is_set():
                found[node] = self._of(node)
        self.known = found
        return found

    def _of(self, node: str) -> str | None:
        context = tls.client_context(self._settings.tls_key())
        with contextlib.closing(TlsTransport(node, context, self._trust, self._time, self._greeting)) as line:
            try:
                return line.release(ASK_NS) or UNSAID
            except LeaseholdError:
                return None

    def start(self) -> None:
        """Look now and then, in a thread of its own."""
        Thread(target=self._run, name="leasehold-releases", daemon=True).start()

    def close(self) -> None:
        """Look no more. Does not wait for a node that does not answer. Idempotent."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self.look()
            self._closed.wait(LOOK_NS / SECOND)


def skewed(known: Mapping[str, str | None]) -> bool:
    """Whether nodes that answer run more than one release."""
    return len({release for release in known.values() if release is not None}) > 1


def in_words(known: Mapping[str, str | None]) -> str:
    """Return who runs what."""
    return ", ".join(f"{node} {release or 'no answer'}" for node, release in sorted(known.items()))
