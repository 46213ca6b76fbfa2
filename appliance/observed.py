"""What a node shows of itself: whether it works, its shards and their leases, for people, scripts and Prometheus.

Nothing here waits for a shard's thread or the mount longer than ``ASK_NS``; a shard is asked by its own socket, like by
any other process, one bounded page at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from timeagent.errors import BadRequest, BadTime, ShardUnavailable
from timeagent.units import SECOND, span_text

from .givingway import kept_by
from .lease.showing import lease_fields, shard_fields
from .lease.transport import UnixTransport
from .lease.wire import PAGE_LEASES_MAX, Inspect, Page
from .runtime import shard_socket
from .webdoor import JSON, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from timeagent.clock import NodeTime
    from timeagent.units import Span

    from .formats.policy import PolicyNumbers
    from .lease.wire import LeaseView, ShardNumbers
    from .mapwatch import MapWatch
    from .shards import ShardHost

ASK_NS: Final[Span] = SECOND
STILL_NS: Final[Span] = 10 * SECOND
"""A loop that has not gone round for so long is stuck: it goes round ten times a second."""

LEASES_SHOWN: Final = 1_000
LEASES_SHOWN_MAX: Final = 10_000


class Observed:
    """One node, as it is seen from outside. Thread-safe."""

    def __init__(
        self, host: ShardHost, maps: MapWatch, node: str, time: NodeTime, policy: PolicyNumbers, runtime: Path
    ) -> None:
        """Look at nothing yet."""
        self._host = host
        self._maps = maps
        self._node = node
        self._time = time
        self._policy = policy
        self._runtime = runtime
        self.stopping = False

    @property
    def own_shards(self) -> list[int]:
        """Return the shards that the map gives to this node, and those of others that run here."""
        owned = {shard for shard, owner in enumerate(self._maps.newest.owners) if owner == self._node}
        return sorted(owned | set(self._host.everything()))

    def ill(self) -> list[str]:
        """Return what is wrong with this process: shards that have ended or stand still. Nothing: it is healthy."""
        found = []
        for shard in self.own_shards:
            hosted = self._host.hosted(shard)
            if hosted is None:
                continue
            why = hosted.ended()
            still = self._time.boot_ns() - hosted.server.counts.looped_ns
            if why is not None:
                found.append(f"shard {shard} has ended: {why}")
            elif still > STILL_NS:
                found.append(f"shard {shard} stands still")
        return found

    def unready(self) -> list[str]:
        """Return why nobody should ask this node for leases now. Nothing: it is ready."""
        found = self.ill()
        if self.stopping:
            found.append("the node is stopping")
        found += [self._awaited(shard) for shard in self.own_shards if self._host.hosted(shard) is None]
        try:
            radius, allowed = self._time.now().radius, self._policy.radius_ns_max
        except BadTime as problem:
            found.append(f"no usable time: {problem.message}")
        else:
            if radius > allowed:
                found.append(f"no usable time: known to {span_text(radius)}; the policy allows {span_text(allowed)}")
        return found

    def _awaited(self, shard: int) -> str:
        """Return that a shard does not run here, and which process of this machine has it, if one does."""
        who = kept_by(shard_socket(self._runtime, shard))
        return f"shard {shard} does not run" + (f" here yet: {who} runs it, and gives it up" if who else "")

    def radius_ns(self) -> Span | None:
        """Return how well the time is known here; None: not at all."""
        try:
            return self._time.now().radius
        except BadTime:
            return None

    def page(self, shard: int, after: str, leases_max: int) -> Page:
        """Ask a shard of this node for a page. Raises ShardUnavailable."""
        if self._host.hosted(shard) is None:
            raise ShardUnavailable("not-running", f"shard {shard} does not run here now")
        line = UnixTransport(shard_socket(self._runtime, shard), self._time)
        try:
            (reply,) = line.call([Inspect(after_domain=after, leases_max=leases_max)], ASK_NS)
        finally:
            line.close()
        if not isinstance(reply, Page):
            raise ShardUnavailable("no-answer", f"shard {shard} answered with a {type(reply).__name__}")
        return reply

    def numbers(self, shard: int) -> ShardNumbers | None:
        """Return how a shard of this node stands, or None if it does not say."""
        try:
            return self.page(shard, "", 1).numbers
        except ShardUnavailable:
            return None

    def leases(self, shard: int, after: str, count: int) -> tuple[list[LeaseView], bool]:
        """Return up to ``count`` leases of a shard from behind a domain, and whether there are more."""
        found: list[LeaseView] = []
        while True:
            page = self.page(shard, found[-1].domain if found else after, min(PAGE_LEASES_MAX, count - len(found)))
            found += page.leases
            if not page.more or len(found) >= count:
                return found, page.more


def pages(observed: Observed, maps: MapWatch, metrics: Callable[[], Answer]) -> Mapping[str, Callable[..., Answer]]:
    """Return what is at the read-only door, by path."""

    def health(_: Mapping[str, str]) -> Answer:
        return _verdict(observed.ill())

    def readiness(_: Mapping[str, str]) -> Answer:
        return _verdict(observed.unready())

    def shards(_: Mapping[str, str]) -> Answer:
        shown: list[dict[str, Any]] = []
        shard_map, here = maps.newest, set(observed.own_shards)
        for shard, owner in enumerate(shard_map.owners):
            numbers = observed.numbers(shard) if shard in here else None
            shown.append(
                {"shard": shard, "owner": owner, "node": owner, "here": shard in here, "answers": numbers is not None}
                | ({} if numbers is None else shard_fields(numbers))
            )
        return _json("leasehold.shards", {"map": shard_map.number, "shards": shown})

    def leases(query: Mapping[str, str]) -> Answer:
        count = _number(query, "limit", LEASES_SHOWN, LEASES_SHOWN_MAX)
        wanted = [_number(query, "shard", 0, len(maps.newest.owners) - 1)] if "shard" in query else observed.own_shards
        if len(wanted) != 1 and "after" in query:
            raise BadRequest("bad-query", "after goes with shard: each shard has an order of its own")
        shown: list[dict[str, Any]] = []
        for shard in wanted:
            found, more = observed.leases(shard, query.get("after", ""), count)
            shown.append({"shard": shard, "more": more, "leases": [lease_fields(view) for view in found]})
        return _json("leasehold.leases", {"shards": shown})

    return {
        "/healthz": health,
        "/readyz": readiness,
        "/v1/shards": shards,
        "/v1/leases": leases,
        "/metrics": lambda _: metrics(),
    }


def _verdict(reasons: list[str]) -> Answer:
    if reasons:
        return Answer(503, "".join(f"{reason}\n" for reason in reasons).encode())
    return Answer(200, b"ok\n")


def _json(schema: str, fields: dict[str, Any]) -> Answer:
    return Answer(200, msgspec.json.encode({"schema": schema, "version": 1} | fields) + b"\n", JSON)


def _number(query: Mapping[str, str], name: str, usual: int, most: int) -> int:
    text = query.get(name, str(usual))
    if not text.isascii() or not text.isdecimal() or int(text[:9]) > most:
        raise BadRequest("bad-query", f"{name} is {text[:20]!r}; it is a number up to {most}")
    return int(text)
