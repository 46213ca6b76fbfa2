"""The thread that keeps a session's leases: it calls one function at the session's own pace."""

from __future__ import annotations

import logging
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from timeagent.errors import TenureError
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.formats.policy import PolicyNumbers
    from timeagent.units import Span

_log = logging.getLogger(__name__)


PAUSE_NS_MIN: Final = 10 * MS


class Renewal:
    """Calls ``renew_due`` often enough that no lease is renewed much later than its period says."""

    def __init__(self, policy: PolicyNumbers, renew_due: Callable[[], None]) -> None:
        """Start nothing yet."""
        self._pause_ns = _pause_ns(policy.renew_period_ns)
        self._renew_due = renew_due
        self._stop = Event()
        self._lock = Lock()
        self._thread: Thread | None = None

    def start(self, period_ns: Span) -> None:
        """Start the thread, once; from now on keep pace with leases that are renewed with this period."""
        with self._lock:
            self._pause_ns = min(self._pause_ns, _pause_ns(period_ns))
            if self._thread is None and not self._stop.is_set():
                self._thread = Thread(target=self._run, name="tenure-renewal", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Stop it for good and wait until it has ended. Idempotent."""
        self._stop.set()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_ns / SECOND):
            try:
                self._renew_due()
            except TenureError as problem:
                # No renewal now: the leases run towards their expiry, and whoever uses one is told by name.
                _log.warning("renewal-failed code=%s reason=%s", problem.code, problem.message)


def _pause_ns(period_ns: Span) -> Span:
    return max(period_ns // 8, PAUSE_NS_MIN)
