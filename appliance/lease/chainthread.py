"""A ceiling chain whose mount work is done by a thread of its own: whoever grants never waits long for the mount.

The steps of one extension, link and look, stay together on that thread, in their order; only their result crosses over.
Until it has, the right to grant reaches where it reached before: granting stops at that ceiling, renewing too, and
everything else goes on. A look that ended long before its result is taken is as good as a fresh one: what the record
promises is kept by its being there, not by a clock (``ceiling.py``).
"""

from __future__ import annotations

import functools
from threading import Condition, Thread
from typing import TYPE_CHECKING

from timeagent.units import SECOND

from .ceiling import Deposed, Extended, InDoubt

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.clock import NodeTime
    from timeagent.units import Instant

    from ..formats.policy import PolicyNumbers
    from .ceiling import CeilingChain, Extension

_WAITING = InDoubt("the mount has not answered yet")


class ChainThread:
    """One incarnation's side of a ceiling chain (the shard's RightToGrant). For one caller; its own thread links.

    What it says of number, ceiling and floor changes only inside a call, never in between.
    """

    def __init__(self, chain: CeilingChain, time: NodeTime, policy: PolicyNumbers) -> None:
        """Take the chain: nobody else calls it from now on. The thread begins with the first extension."""
        self._chain = chain
        self._time = time
        self._policy = policy
        self._patience_ns = policy.attempt_timeout_ns // 4
        self._changed = Condition()
        self._job: Callable[[], Extension] | None = None
        self._result: Extension | BaseException | None = None
        self._finishing = False
        self._closed = False
        self._thread: Thread | None = None
        self._take_over()

    def _take_over(self) -> None:
        """Say from now on what the chain says. Only while no job is under way."""
        self.number = self._chain.number
        self.ceiling_ns: Instant = self._chain.ceiling_ns
        self.deposed: Deposed | None = self._chain.deposed
        self.floor_ns: Instant = self._chain.floor_ns
        self.settle_to_ns: Instant = self._chain.settle_to_ns

    def begin(self) -> Extension:
        """As the chain's: here, and however long the mount takes. Nobody is served before."""
        try:
            return self._chain.begin()
        finally:
            self._take_over()

    def extend(self) -> Extension:
        """As the chain's; InDoubt while the mount does not answer: the next call takes up what has come of it.

        Waits a quarter of an attempt at most, once for each record, and only where a full term does not fit below the
        ceiling that there is. Raises BadTime.
        """
        assert not self._finishing, "the chain is being finished"
        return self._done(
            self._chain.extend, patient=self.ceiling_ns - self._time.now().latest < self._policy.lease_term_max_ns
        )

    def finish(self, floor_ns: Instant, settle_to_ns: Instant) -> Extension:
        """As the chain's, with the same bounded wait. An extension that is under way is waited for first."""
        if not self._finishing and (self._job is not None or self._result is not None):
            left = self._done(self._chain.extend, patient=False)
            if self._job is not None or isinstance(left, Deposed):
                return left
        self._finishing = True
        return self._done(functools.partial(self._chain.finish, floor_ns, settle_to_ns), patient=True)

    def close(self) -> None:
        """End the thread, once the mount lets it. Does not wait for it. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def waits_for_the_mount(self) -> bool:
        """Whether an extension is under way. Read by other threads."""
        return self._job is not None

    def _done(self, job: Callable[[], Extension], *, patient: bool) -> Extension:
        """Return what came of the job that is under way, or of this one."""
        with self._changed:
            if self._job is None and self._result is None:
                self._begin(job)
                if patient:
                    self._changed.wait_for(lambda: self._result is not None, self._patience_ns / SECOND)
            if self._result is None:
                return _WAITING
            result, self._result = self._result, None
            self._take_over()
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, Extended | Deposed | InDoubt)
        return result

    def _begin(self, job: Callable[[], Extension]) -> None:
        assert not self._closed
        self._job = job
        if self._thread is None:
            self._thread = Thread(target=self._run, name="tenure-ceiling", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or (self._job is not None and self._result is None))
                if self._closed:
                    return
                job = self._job
            assert job is not None
            try:
                result: Extension | BaseException = job()
            except BaseException as problem:  # noqa: BLE001 - it is raised where the extension was asked for
                result = problem
            with self._changed:
                self._result, self._job = result, None
                self._changed.notify_all()
