"""The policy in force: the newest record, which every process takes up while it runs; a thread of its own looks for it.

What is granted and asked for goes by the newest record. What others may have granted before they knew it goes by all of
them: bounds beyond which a holder suspects a shard are the widest of any policy. What was written under an earlier one
stays good: each frame is judged by the policy that it names (``session/stamping.py``).
"""

from __future__ import annotations

import logging
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import TenureError
from timeagent.units import SECOND

from .formats.framing import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.units import Span

    from .formats.policy import Policy
    from .registers import Registers

_log = logging.getLogger(__name__)

LOOK_NS: Final[Span] = SECOND
"""How often the newest record is looked for."""


class WatchedPolicy:
    """The numbers of the newest policy that this process knows (PolicyNumbers). They change while it runs. Thread-safe.

    Each number is right by itself at any time; two of them read one after the other may be of two policies.
    """

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
        """Read every record, once. Touches the mount. Raises Damaged, NotTrusted, BadConfiguration, Environment.

        ``registers``: this watch's own, because they are not for several threads.
        """
        self._registers = registers
        self._listeners: list[Callable[[Policy], object]] = []
        self._lock = Lock()
        self._closing = Event()
        self.thread: Thread | None = None
        self.failures = 0
        """How often the newest record could not be read, or somebody who was told of it failed."""
        self.granted_ns_max = self.ahead_ns_max = self.r1_tolerance_ns = 0
        self.newest = registers.newest_policy()
        for number in range(1, self.newest.number + 1):
            self._take(registers.policy(number))

    def on_change(self, listener: Callable[[Policy], object]) -> None:
        """Have a function called with every policy that is taken up from now on, in the thread that looks."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begin to look, in a thread of its own. Idempotent."""
        with self._lock:
            if self.thread is None and not self._closing.is_set():
                self.thread = Thread(target=self._run, name="tenure-policy", daemon=True)
                self.thread.start()

    def close(self) -> None:
        """Look no more. Does not wait for a mount that does not answer. Idempotent."""
        self._closing.set()

    def refresh(self) -> None:
        """Take up what is newer. Touches the mount; what cannot be read leaves what is known. Never raises."""
        try:
            newest = self._registers.newest_number(Kind.POLICY) or 0
            for number in range(self.newest.number + 1, newest + 1):
                policy = self._registers.policy(number)
                self._take(policy)
                _log.info("policy-taken-up number=%d", number)
                self._tell(policy)
        except TenureError as problem:
            self.failures += 1
            _log.warning("policy-not-read code=%s reason=%s", problem.code, problem.message)

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

    def _run(self) -> None:
        while not self._closing.wait(LOOK_NS / SECOND):
            self.refresh()
