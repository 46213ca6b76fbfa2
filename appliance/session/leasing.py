"""Taking, renewing and giving back leases over several shards: the session's side.

Several domains are taken all or none: first all tentatively, then all upgraded. A set that meets an obstacle gives back
what it has and tries again with the same age, so that the older of two sets wins in the end and nobody waits while
holding something.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from appliance.formats.lease import Holder, Mode, Phase
from appliance.lease.client import Ask, Denied, Ended, Giving, Granted, LeaseClient, Result, Suspect, Unavailable
from appliance.lease.wire import Refused
from timeagent.clock import boot_id
from timeagent.errors import BadRequest, BadTime, LeaseholdError, ShardUnavailable, TryAgain
from timeagent.units import MS, rfc3339, span_text

from .held import Lease

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence

    from appliance.formats.policy import Policy
    from appliance.lease.transport import Transport
    from appliance.lease.wire import Age
    from timeagent.clock import NodeTime
    from timeagent.units import Span

PAUSE_NS_MIN: Final = 5 * MS
PAUSE_NS_MAX: Final = 250 * MS
"""A waiting set asks again after this at the latest: a lease may be relinquished before its expiry."""

_log = logging.getLogger(__name__)

type _Obstacle = Denied | Ended | Unavailable | Suspect | Refused


class Routes(Protocol):
    """How the shards are reached."""

    def shard_of(self, domain: str) -> int:
        """Return the shard of a domain."""
        ...

    def transport(self, shard: int) -> Transport:
        """Return the way to a shard. Raises ShardUnavailable when there is none."""
        ...


@dataclass(slots=True)
class _Quest:
    """One acquire: the questions that are still open keep their ids, the set keeps its age."""

    age: Age | None
    asks: dict[str, Ask]


class Leasing:
    """One session's dealings with all shards."""

    def __init__(
        self,
        time: NodeTime,
        policy: Policy,
        routes: Routes,
        node: str,
        incarnation: bytes,
        purpose: str,
        randomness: random.Random,
    ) -> None:
        """Call nothing yet."""
        self._time = time
        self._policy = policy
        self._routes = routes
        self._random = randomness
        self._holder = Holder(
            node=node,
            process=os.getpid(),
            boot=bytes.fromhex(boot_id().replace("-", "")),
            incarnation=incarnation,
            purpose=purpose,
        )
        self._clients: dict[int, LeaseClient] = {}

    def acquire(self, domains: Sequence[str], term_ns: Span, timeout_ns: Span) -> list[Lease]:
        """Take all domains, which are sorted, or none. Blocks up to the time-out.

        Raises TryAgain, BadRequest, BadTime.
        """
        until = self._time.boot_ns() + timeout_ns
        quest = _Quest(None, {})
        pause = PAUSE_NS_MIN
        while True:
            got = self._try(domains, term_ns, quest)
            if isinstance(got, list):
                return got
            self._raise_final(got)
            left = until - self._time.boot_ns()
            if left <= 0:
                raise self._given_up(got, timeout_ns)
            self._time.sleep(min(self._random.randint(pause // 2, pause), left))
            pause = min(2 * pause, PAUSE_NS_MAX)

    def _try(self, domains: Sequence[str], term_ns: Span, quest: _Quest) -> list[Lease] | _Obstacle:
        """Take all domains once, or none: whatever goes wrong, what was taken is given back."""
        taken: list[Lease] = []
        try:
            obstacle = self._take_all(domains, term_ns, quest, taken)
        except BaseException:
            self.relinquish(taken)
            raise
        if obstacle is not None:
            self.relinquish(taken)
            return obstacle
        return taken

    def _take_all(self, domains: Sequence[str], term_ns: Span, quest: _Quest, taken: list[Lease]) -> _Obstacle | None:
        phase = Phase.TENTATIVE if len(domains) > 1 else Phase.HELD
        for shard, group in self._by_shard(domains):
            obstacle: _Obstacle | None = None
            results = self._client(shard).acquire(
                [self._ask(shard, d, quest) for d in group], phase=phase, term_ns=term_ns
            )
            for domain, result in zip(group, results, strict=True):
                if isinstance(result, Granted):
                    taken.append(_lease(shard, result, term_ns))
                else:
                    obstacle = obstacle or result
                if not _may_ask_again(result):
                    del quest.asks[domain]
            if obstacle is not None:
                return obstacle
        return self._upgrade(taken, term_ns) if phase is Phase.TENTATIVE else None

    def _upgrade(self, leases: Sequence[Lease], term_ns: Span) -> _Obstacle | None:
        obstacle: _Obstacle | None = None
        for shard, group in self._grouped(leases):
            for lease, result in zip(group, self._client(shard).upgrade(group, term_ns=term_ns), strict=True):
                if isinstance(result, Granted):
                    lease.take(result.signed, result.witness)
                else:
                    obstacle = obstacle or result
            if obstacle is not None:
                return obstacle
        return None

    def renew(self, leases: Sequence[Lease]) -> list[tuple[Lease, Result]]:
        """Ask for renewals; the caller applies what comes back. Raises BadTime."""
        answers: list[tuple[Lease, Result]] = []
        for term_ns in sorted({lease.term_ns for lease in leases}):
            for shard, group in self._grouped(lease for lease in leases if lease.term_ns == term_ns):
                answers += zip(group, self._client(shard).renew(group, term_ns=term_ns), strict=True)
        return answers

    def relinquish(self, leases: Sequence[Lease]) -> None:
        """Give leases back; they are over for the session. What cannot be given back expires. Raises nothing."""
        for shard, group in self._grouped(leases):
            givings = [
                Giving(
                    lease.domain,
                    lease.correlation_id,
                    lease.watermark_ns,
                    lease.watermark_time,
                    lease.messages,
                    lease.chain_head,
                )
                for lease in group
            ]
            try:
                results = self._client(shard).relinquish(givings)
            except LeaseholdError as problem:
                _log.warning("relinquish-failed shard=%d code=%s reason=%s", shard, problem.code, problem.message)
                continue
            for lease, result in zip(group, results, strict=True):
                if not isinstance(result, Ended):
                    _log.warning("relinquish-unanswered domain=%s result=%s", lease.domain, result)

    def _ask(self, shard: int, domain: str, quest: _Quest) -> Ask:
        if domain not in quest.asks:
            ask = self._client(shard).ask(domain, quest.age)
            quest.age = quest.age or ask.age
            quest.asks[domain] = ask
        return quest.asks[domain]

    def _client(self, shard: int) -> LeaseClient:
        if shard not in self._clients:
            transport = self._routes.transport(shard)
            self._clients[shard] = LeaseClient(transport, self._time, self._policy, self._holder, self._random)
        return self._clients[shard]

    def _by_shard(self, domains: Iterable[str]) -> list[tuple[int, list[str]]]:
        groups: dict[int, list[str]] = {}
        for domain in domains:
            groups.setdefault(self._routes.shard_of(domain), []).append(domain)
        return sorted(groups.items())

    @staticmethod
    def _grouped(leases: Iterable[Lease]) -> list[tuple[int, list[Lease]]]:
        groups: dict[int, list[Lease]] = {}
        for lease in leases:
            groups.setdefault(lease.shard, []).append(lease)
        return sorted(groups.items())

    @staticmethod
    def _raise_final(obstacle: _Obstacle) -> None:
        """Raise what waiting cannot mend."""
        if isinstance(obstacle, Refused):
            raise BadRequest(obstacle.code, obstacle.message, hint=obstacle.hint)
        if isinstance(obstacle, Suspect):
            raise BadTime(
                "suspect-witness",
                f"the shard's witness on {obstacle.witness.domain!r} is refused: {obstacle.reason}",
                hint="a clock is out of its bounds: leasehold time now, on both nodes",
            )

    def _given_up(self, obstacle: _Obstacle, timeout_ns: Span) -> TryAgain:
        waited = span_text(timeout_ns)
        match obstacle:
            case Denied():
                holder = obstacle.holder
                purpose = f" ({holder.purpose})" if holder.purpose else ""
                return TryAgain(
                    "busy",
                    f"{obstacle.ask.domain!r} is {obstacle.reason} by {holder.node}/{holder.process}{purpose} since "
                    f"{rfc3339(obstacle.since_ns)} until {rfc3339(obstacle.until_ns)} at least; waited {waited}",
                    hint="allow more time, or ask the holder",
                )
            case Unavailable():
                return ShardUnavailable(
                    obstacle.code,
                    f"no lease on {obstacle.domain!r} within {waited}: {obstacle.message}",
                    hint="leasehold lease ls shows which shards answer",
                )
            case _:
                return TryAgain("outrun", f"an older request was faster; waited {waited}", hint="try again")


def _may_ask_again(result: Result) -> bool:
    """Whether the same request has to be asked again: it is denied, or it may have been granted without our knowing.

    What was granted, was given back as useless, or has ended, is over: its request gets nothing any more.
    """
    return isinstance(result, Denied) or (isinstance(result, Unavailable) and result.code != "late")


def _lease(shard: int, granted: Granted, term_ns: Span) -> Lease:
    witness = granted.witness
    return Lease(
        domain=witness.domain,
        shard=shard,
        mode=Mode(witness.mode),
        correlation_id=witness.correlation_id,
        fence=witness.fence,
        expiry_ns=witness.expiry_ns,
        floor_ns=witness.floor_ns,
        settle_to_ns=witness.settle_to_ns,
        signed=granted.signed,
        term_ns=term_ns,
    )
