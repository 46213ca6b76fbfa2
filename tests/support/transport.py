"""A transport to a shard in this process: every call is one turn, and no answer is held back."""

from __future__ import annotations

import contextlib
import random

from appliance.formats.policy import Policy, PolicyNumbers
from appliance.lease.client import AcquireDeadline, LeaseClient, LeaseUnavailable, Result
from appliance.lease.shard import Shard
from appliance.lease.wire import Denied, Reply, Request
from tests.support.values import CLUSTER
from timeagent.clock import NodeTime
from timeagent.units import Span

POLICY = Policy(number=1, cluster_id=CLUSTER)


class InProcessTransport:
    """A shard in this process. ``guard``: the lock that everybody holds who calls it, if there are several threads."""

    def __init__(self, shard: Shard, guard: contextlib.AbstractContextManager[object] | None = None) -> None:
        self._shard = shard
        self._guard = guard or contextlib.nullcontext()

    def call(self, requests: list[Request], timeout_ns: Span) -> list[Reply]:
        del timeout_ns
        with self._guard:
            return self._shard.turn(requests)


def acquire_within(
    client: LeaseClient,
    time: NodeTime,
    domain: str,
    wait_ns: Span,
    *,
    policy: PolicyNumbers = POLICY,
    term_ns: Span | None = None,
    chance: random.Random | None = None,
) -> Result:
    """Ask for one domain until it is granted or the wait is over; the last answer then."""
    ask = client.ask(domain)
    deadline = AcquireDeadline(time, policy, wait_ns)
    chance = chance or random.Random(5)
    while True:
        wait, keep = deadline.next_call()
        (result,) = client.acquire([ask], term_ns=term_ns, wait_ns=wait, keep_ns=keep)
        if not isinstance(result, Denied | LeaseUnavailable) or deadline.over():
            return result
        deadline.pause(chance, result.earliest_ns if isinstance(result, Denied) else None)
