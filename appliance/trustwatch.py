"""Who is trusted now: the newest trust record, looked for by a thread of its own: nobody else waits for the mount.

A revocation reaches every connection within about ``LOOK_NS`` of the record being seen on this mount. While the mount
does not answer, what was known last counts on: a node must not lose its shards because the mount is slow.
"""

from __future__ import annotations

import contextlib
import logging
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadRequest, BadTime, TenureError
from timeagent.keys import key_id as id_of
from timeagent.trust import Purpose
from timeagent.units import SECOND

from .formats.address import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.clock import Clock
    from timeagent.trust import Keyring
    from timeagent.units import Instant, Span

    from .formats.address import Address
    from .registers import Registers

_log = logging.getLogger(__name__)

LOOK_NS: Final[Span] = SECOND
"""How often the newest record is looked for."""

_LOOK_AGAIN_NS: Final[Span] = SECOND // 10
"""At most so often when somebody asks for it: an unknown key must not make work for the mount."""


class TrustWatch:
    """The newest trust record known to this process (the lease package's Trust). Thread-safe."""

    def __init__(
        self, registers: Registers, clock: Clock, on_look: Callable[[Keyring, Instant], object] = lambda *_: None
    ) -> None:
        """Read the newest record, once. Touches the mount. Raises Damaged, NotTrusted, Environment.

        ``registers``: this watch's own, because they are not for several threads. ``on_look`` is called
        with the keys of the newest record and the time, 0 where none is known, after every look.
        """
        self._registers = registers
        self._clock = clock
        self._on_look = on_look
        self._instant: Instant = 0
        self._known: tuple[int, Keyring, dict[bytes, str]] = self._newest()
        self._lock = Lock()
        self._asked = Event()
        self._closed = False
        self.thread: Thread | None = None
        self.failures = 0
        """How often the newest record could not be read."""

    @property
    def number(self) -> int:
        """Return the number of the newest record known."""
        return self._known[0]

    @property
    def keyring(self) -> Keyring:
        """Return the keys of the newest record known."""
        return self._known[1]

    def node_of(self, key_id: bytes) -> str | None:
        """Return whose TLS key this is, whatever its validity, or None."""
        return self._known[2].get(key_id)

    def refuses(self, key_id: bytes) -> str | None:
        """Return why nobody may be at the other end of a connection with this key now, or None if it is good."""
        return self.keyring.refuses(key_id, Purpose.TLS, self._at())

    def _at(self) -> Instant:
        """Return now; without usable time, or with a clock that went back, the last instant: what ended stays so."""
        with contextlib.suppress(BadTime):
            self._instant = max(self._instant, self._clock.now().midpoint)
        return self._instant

    def address_of(self, node: str) -> Address | None:
        """Return where a node answers: what the last of its entries says, in the order of the record."""
        texts = [entry.address for entry in self._known[1].entries(Purpose.TLS) if entry.node == node and entry.address]
        try:
            return parse_address(texts[-1]) if texts else None
        except BadRequest:
            return None

    def nodes(self) -> list[str]:
        """Return the nodes that answer others somewhere and have a key that is good now."""
        entries = [each for each in self._known[1].entries(Purpose.TLS) if self.refuses(id_of(each.public)) is None]
        return sorted({each.node for each in entries if self.address_of(each.node) is not None})

    def look(self) -> None:
        """Have the newest record read soon. Never blocks."""
        self._asked.set()

    def start(self) -> None:
        """Begin to look, in a thread of its own. Idempotent."""
        with self._lock:
            if self.thread is None and not self._closed:
                self.thread = Thread(target=self._run, name="tenure-trust", daemon=True)
                self.thread.start()

    def close(self) -> None:
        """Look no more. Does not wait for a mount that does not answer. Idempotent."""
        self._closed = True
        self._asked.set()

    def refresh(self) -> None:
        """Read the newest record now. Touches the mount; what cannot be read leaves what is known. Never raises."""
        try:
            self._known = self._newest()
        except TenureError as problem:
            self.failures += 1
            _log.warning("trust-not-read code=%s reason=%s", problem.code, problem.message)

    def _newest(self) -> tuple[int, Keyring, dict[bytes, str]]:
        number = self._registers.newest().trust
        keyring = self._registers.keyring(number)
        self._on_look(keyring, self._at())
        return number, keyring, {id_of(entry.public): entry.node for entry in keyring.entries(Purpose.TLS)}

    def _run(self) -> None:
        while not self._closed:
            self._asked.wait(LOOK_NS / SECOND)
            self._asked.clear()
            if not self._closed:
                self.refresh()
                self._clock.sleep(_LOOK_AGAIN_NS)
