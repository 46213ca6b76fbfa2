"""A transport to a shard in this process: every call is one turn, and no answer is held back."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from appliance.lease.shard import Shard
    from appliance.lease.wire import Reply, Request
    from timeagent.units import Span


class InProcessTransport:
    """A shard in this process. ``guard``: the lock that everybody holds who calls it, if there are several threads."""

    def __init__(self, shard: Shard, guard: contextlib.AbstractContextManager[object] | None = None) -> None:
        self._shard = shard
        self._guard = guard or contextlib.nullcontext()

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        del timeout_ns
        with self._guard:
            return self._shard.turn(requests)
