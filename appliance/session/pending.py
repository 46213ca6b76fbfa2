"""Who asks for leases in one session.

A session that ends while one of its threads waits for a lease must not be granted it behind its own back: the shard
would have a lease out that nobody gives back, and who stops the shard in good order would wait until it expires. So
whoever asks is told to give up, gives back what came all the same, and is waited for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import RLock
from typing import Final

from appliance.formats.policy import PolicyNumbers
from timeagent.clock import NodeTime
from timeagent.errors import BadRequest
from timeagent.units import MS

ATTEMPTS_WAITED_FOR: Final = 6
"""How many time-outs of an attempt whoever asks is waited for: the call that is held back, and giving back."""

_LOOK_NS: Final = 5 * MS


class PendingAcquires:
    """The threads of one session that ask. Shares the session's lock."""

    def __init__(self, time: NodeTime, policy: PolicyNumbers, lock: RLock) -> None:
        self._time = time
        self._policy = policy
        self._lock = lock
        self._count = 0
        self.over = False
        """Whether nobody may ask any more."""

    @contextlib.contextmanager
    def under_way(self, given_up: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
        """Count who asks; what is handed on says when to give up: ``given_up`` does, or nobody may ask any more.

        Raises BadRequest, ``session-closed``, also in the place of whatever else came of asking meanwhile.
        """
        with self._lock:
            self.check()
            self._count += 1
        try:
            yield lambda: self.over or given_up()
        except Exception:
            self.check()
            raise
        finally:
            with self._lock:
                self._count -= 1

    def check(self) -> None:
        """Raise BadRequest if nobody may ask any more."""
        if self.over:
            raise BadRequest("session-closed", "this session is closed", hint="begin another one")

    def end(self) -> None:
        """Let nobody ask any more. Idempotent; does not wait."""
        with self._lock:
            self.over = True

    def wait(self) -> None:
        """Wait for those who ask to have given up: as long as that may take, and no longer."""
        until = self._time.boot_ns() + ATTEMPTS_WAITED_FOR * self._policy.attempt_timeout_ns
        while self._count and self._time.boot_ns() < until:
            self._time.sleep(_LOOK_NS)
