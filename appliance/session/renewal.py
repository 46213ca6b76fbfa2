"""The thread that keeps a session's leases: it calls one function at the session's own pace."""

from __future__ import annotations

import logging
from threading import Event, Thread
from typing import TYPE_CHECKING

from timeagent.errors import LeaseholdError
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.formats.policy import Policy
    from timeagent.clock import Clock

_log = logging.getLogger(__name__)


class Renewal:
    """Calls ``renew_due`` often enough that no lease is renewed later than its period says."""

    def __init__(self, clock: Clock, policy: Policy, renew_due: Callable[[], None]) -> None:
        """Start nothing yet."""
        self._clock = clock
        self._pause_s = max(policy.renew_period_ns // 8, SECOND // 100) / SECOND
        self._renew_due = renew_due
        self._stop = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread, once."""
        if self._thread is None and not self._stop.is_set():
            self._thread = Thread(target=self._run, name="leasehold-renewal", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop it and wait until it has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            try:
                self._renew_due()
            except LeaseholdError as problem:
                # No renewal now: the leases run towards their expiry, and whoever uses one is told by name.
                _log.warning("renewal-failed code=%s reason=%s", problem.code, problem.message)
