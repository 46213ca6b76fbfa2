"""The newest shard map, policy and trust record: each looked for by a thread of its own, so nobody else waits for them.

While the mount does not answer, what was known last counts on: no node loses its shards because the mount is slow.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import ClassVar, Final

from timeagent.clock import Clock
from timeagent.errors import BadRequest, BadTime, Environment, TenureError
from timeagent.keys import Purpose
from timeagent.keys import key_id as id_of
from timeagent.trust import Keyring
from timeagent.units import SECOND, Instant, Span

from ..formats.framing import Kind
from ..formats.names import Address, parse_address
from ..formats.policy import Policy
from ..formats.shardmap import ShardMap
from .records import Registers
from .runtime import begin

_log = logging.getLogger(__name__)

LOOK_NS: Final[Span] = SECOND
"""How often a newer record is looked for."""

PAID_LOOK_NS: Final[Span] = 30 * SECOND
"""The same where each look is paid for: a month of three nodes that look for three kinds costs a third of a unit."""

_LOOK_AGAIN_NS: Final[Span] = SECOND // 10
"""At most so often when somebody asks: a shard without an answer, or an unknown key, makes no work for the mount."""


def look_ns(registers: Registers) -> Span:
    """Return how often newer records are looked for that nobody asks for."""
    return PAID_LOOK_NS if registers.looks_cost else LOOK_NS


class RecordWatch(ABC):
    """What this process knows of the newest record of one kind. Thread-safe."""

    NAME: ClassVar[str]
    """What the record is called in the log and in the name of the thread."""

    def __init__(self, every_ns: Span | None) -> None:
        """Look for nothing yet; once begun, so often, or with None only when asked."""
        self._every_ns = every_ns
        self._lock = Lock()
        self._asked = Event()
        self._closing = Event()
        self.thread: Thread | None = None
        self.failures = 0
        """How often the newest record could not be read, or somebody who was told of it failed."""

    def start(self) -> None:
        """Begin to look, in a thread of its own. Idempotent. Raises Environment; it may be called again then."""
        with self._lock:
            if self.thread is None and not self._closing.is_set():
                thread = Thread(target=self._run, name=f"tenure-{self.NAME}", daemon=True)
                begin(thread)
                self.thread = thread

    def look(self) -> None:
        """Have the newest record read soon. Never blocks."""
        self._asked.set()

    def close(self) -> None:
        """Look no more. Does not wait for a mount that does not answer. Idempotent."""
        self._closing.set()
        self._asked.set()

    def refresh(self) -> None:
        """Take up what is newer now. Touches the mount; what cannot be read leaves what is known. Never raises."""
        try:
            self._take_newest()
        except TenureError as problem:
            self.failures += 1
            _log.warning("%s-not-read code=%s reason=%s", self.NAME, problem.code, problem.message)

    @abstractmethod
    def _take_newest(self) -> None:
        """Read what is newer than what is known, and know it. Touches the mount. Raises TenureError."""

    def _run(self) -> None:
        while not self._closing.is_set():
            self._asked.wait(None if self._every_ns is None else self._every_ns / SECOND)
            self._asked.clear()
            if not self._closing.is_set():
                self.refresh()
                self._closing.wait(_LOOK_AGAIN_NS / SECOND)


class MapWatch(RecordWatch):
    """Which shard map counts now: looked for when somebody asks, and by a daemon all the time."""

    NAME = "map"

    def __init__(self, registers: Registers, first: ShardMap) -> None:
        super().__init__(every_ns=None)
        self._registers = registers
        self.newest = first
        """The newest map known."""

    def look(self) -> None:
        with contextlib.suppress(Environment):  # no more threads: whoever asks next tries again
            self.start()
        super().look()

    def keep_looking(self) -> None:
        """Look unasked from now on, as a daemon does. Idempotent. Raises Environment."""
        self._every_ns = look_ns(self._registers)
        self.start()
        self.look()

    def _take_newest(self) -> None:
        newest = self._registers.newest_map()
        if newest.number > self.newest.number:
            self.newest = newest
            _log.info("map-changed number=%d shards=%d", newest.number, len(newest.owners))


class PolicyWatch(RecordWatch):
    """The numbers of the newest policy that this process knows (PolicyNumbers). They change while it runs.

    What is granted and asked for goes by the newest record. What others may have granted before they knew it goes by
    all of them: bounds beyond which a holder suspects a shard are the widest of any policy. What was written under an
    earlier one stays good: each frame is judged by the policy that it names (``session/stamping.py``). Each number is
    right by itself at any time; two of them read one after the other may be of two policies.
    """

    NAME = "policy"

    span_ns: int
    grace_ns: int
    radius_ns_max: int
    lease_term_max_ns: int
    renew_period_ns: int
    holder_margin_ns: int
    attempt_timeout_ns: int
    ceiling_ahead_ns: int
    ceiling_period_ns: int

    def __init__(self, registers: Registers) -> None:
        """Read every record, once. Touches the mount. Raises Damaged, NotTrusted, BadConfiguration, Environment."""
        super().__init__(look_ns(registers))
        self._registers = registers
        self._listeners: list[Callable[[Policy], object]] = []
        self.granted_ns_max = self.ahead_ns_max = self.r1_tolerance_ns = 0
        self.newest = registers.newest_policy()
        for number in range(1, self.newest.number + 1):
            self._take(registers.policy(number))

    def on_change(self, listener: Callable[[Policy], object]) -> None:
        """Have a function called with every policy that is taken up from now on, in the thread that looks."""
        self._listeners.append(listener)

    def _take_newest(self) -> None:
        newest = self._registers.newest_number(Kind.POLICY) or 0
        for number in range(self.newest.number + 1, newest + 1):
            policy = self._registers.policy(number)
            self._take(policy)
            _log.info("policy-taken-up number=%d", number)
            self._tell(policy)

    def _tell(self, policy: Policy) -> None:
        for listener in self._listeners:
            try:
                listener(policy)
            except Exception:  # noqa: BLE001 - a fault of one ends neither the watch nor what the others hear
                self.failures += 1
                _log.exception("policy-listener-failed number=%d", policy.number)

    def _take(self, policy: Policy) -> None:
        # First what may be believed of others, then what is done: nobody is suspected for what was just allowed.
        self.granted_ns_max = max(self.granted_ns_max, policy.granted_ns_max)
        self.ahead_ns_max = max(self.ahead_ns_max, policy.ahead_ns_max)
        self.r1_tolerance_ns = max(self.r1_tolerance_ns, policy.r1_tolerance_ns)
        self.span_ns, self.grace_ns, self.radius_ns_max = policy.span_ns, policy.grace_ns, policy.radius_ns_max
        self.lease_term_max_ns, self.renew_period_ns = policy.lease_term_max_ns, policy.renew_period_ns
        self.holder_margin_ns, self.attempt_timeout_ns = policy.holder_margin_ns, policy.attempt_timeout_ns
        self.ceiling_ahead_ns, self.ceiling_period_ns = policy.ceiling_ahead_ns, policy.ceiling_period_ns
        self.newest = policy


class TrustWatch(RecordWatch):
    """Who is trusted now, by the newest trust record known to this process (the lease package's Trust).

    A revocation reaches every connection within about ``look_ns`` of the record being seen on this mount.
    """

    NAME = "trust"

    def __init__(
        self, registers: Registers, clock: Clock, on_look: Callable[[Keyring, Instant], object] = lambda *_: None
    ) -> None:
        """Read the newest record, once. Touches the mount. Raises Damaged, NotTrusted, Environment.

        ``on_look`` is called with the keys of the newest record and the time, 0 where none is known, after every look.
        """
        super().__init__(look_ns(registers))
        self._registers = registers
        self._clock = clock
        self._on_look = on_look
        self._instant: Instant = 0
        self._known: tuple[int, Keyring, dict[bytes, str]] = self._newest()

    @property
    def number(self) -> int:
        return self._known[0]

    @property
    def keyring(self) -> Keyring:
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

    def members(self) -> list[str]:
        """Return the nodes of the cluster: those that have a key for connections that is good now."""
        entries = self._known[1].entries(Purpose.TLS)
        return sorted({each.node for each in entries if self.refuses(id_of(each.public)) is None})

    def nodes(self) -> list[str]:
        """Return those of the members that answer others somewhere."""
        return [node for node in self.members() if self.address_of(node) is not None]

    def _take_newest(self) -> None:
        self._known = self._newest()

    def _newest(self) -> tuple[int, Keyring, dict[bytes, str]]:
        number = self._registers.newest_trust().number
        keyring = self._registers.keyring(number)
        self._on_look(keyring, self._at())
        return number, keyring, {id_of(entry.public): entry.node for entry in keyring.entries(Purpose.TLS)}
