"""What a node shows of itself: whether it works, its shards and their leases, for people, scripts and Prometheus.

Nothing here waits for a shard's thread or the mount longer than ``ASK_NS``; a shard is asked by its own socket, like by
any other process, one bounded page at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Final

import msgspec

from timeagent.errors import BadRequest, BadTime, ShardUnavailable
from timeagent.units import SECOND, Instant, Span

from ..bag.roots import Root
from ..cluster import Cluster
from ..doctor.check import CheckVerdict, HealthCheck, failed, not_well, worst
from ..doctor.directory import Room, room_of
from ..doctor.health import judge_awaited_shard, judge_clock, judge_mount, judge_own_shard, judge_space, judge_tmpfs
from ..formats.shardmap import shard_text
from ..lease.transport import UnixTransport
from ..lease.wire import PAGE_LEASES_MAX, Inspect, LeasePage, LeaseView, ShardNumbers, lease_fields, shard_fields
from ..node.record_watch import MapWatch
from ..node.releases import Releases
from ..node.runtime import CHECKS_PATH, kept_by, shard_socket
from .http import JSON, HttpAnswer

ASK_NS: Final[Span] = SECOND
STILL_NS: Final[Span] = 10 * SECOND
"""A loop that has not gone round for so long is stuck: it goes round ten times a second."""

AT_ONCE: Final = frozenset({"/healthz", "/readyz"})
"""The pages that are made without asking a shard or the mount."""

CHECKS_SCHEMA: Final = "tenure.checks"
LEASES_SHOWN: Final = 1_000
LEASES_SHOWN_MAX: Final = 10_000


class Observed:
    """One node, as it is seen from outside. Thread-safe."""

    def __init__(self, cluster: Cluster, others: Releases) -> None:
        """Look at nothing yet. ``others``: who asks the other nodes."""
        self._host = cluster.routes.host
        self._maps = cluster.maps
        self._node = cluster.settings.node
        self._time = cluster.time
        self._policy = cluster.policy
        self._runtime = cluster.routes.runtime
        self._others = others
        self._room: tuple[Room, Instant] | None = None
        self.stopping = False
        self.threads: Callable[[], Sequence[Thread | None]] = tuple
        """Return those of this process that go on until it stops, beside the shards' own."""

    @property
    def own_shards(self) -> list[int]:
        """Return the shards that the map gives to this node, and those of others that run here."""
        newest = self._maps.newest
        owned = {shard for shard in newest.shards if newest.owner_of(shard) == self._node}
        return sorted(owned | set(self._host.everything()))

    def see_mount(self, root: Root) -> None:
        """Note that the mount answers, and what room is left. Touches the mount. An error is no answer.

        An object store has no room that ends, and is not asked.
        """
        if not isinstance(root, Path):
            return
        with contextlib.suppress(OSError):
            self._room = room_of(root), self._time.boot_ns()

    def running(self) -> list[HealthCheck]:
        """Return of each shard that runs here whether it goes round. One that does not is mended by a restart."""
        way_out = "start the daemon again: its supervisor does"
        found = [failed("threads", why, way_out) for why in self.ended()]
        for shard in self.own_shards:
            hosted = self._host.hosted(shard)
            if hosted is not None:
                still = self._time.boot_ns() - hosted.server.counts.looped_ns
                found.append(judge_own_shard(shard, hosted.ended(), still if still > STILL_NS else 0))
        return found

    def ended(self) -> list[str]:
        """Return which threads have ended by themselves: a bug, of which the log says more."""
        threads = () if self.stopping else self.threads()
        return [f"thread {each.name} has ended" for each in threads if each is not None and not each.is_alive()]

    def checks(self) -> list[HealthCheck]:
        """Return all that is seen from here. What fails is this node's own: nobody should ask it for leases now."""
        found = self.running()
        for shard in self.own_shards:
            if self._host.hosted(shard) is None:
                runner = kept_by(shard_socket(self._runtime, shard))
                found.append(judge_awaited_shard(shard, runner, self._host.hindered.get(shard)))
        if self.stopping:
            found.append(failed("node", "it is stopping", "wait, or ask another node"))
        if why := self._host.keys_end():
            found.append(
                failed("keys", f"no shard may run with these keys: {why}", "tenure trust rotate makes the next")
            )
        found += self._tmpfs()
        allowed = self._policy.radius_ns_max
        try:
            found.append(judge_clock(self._time.now().radius, "", "as this node knows it", allowed))
        except BadTime as problem:
            found.append(judge_clock(None, problem.message, "", allowed))
        if self._room is not None:
            room, seen_ns = self._room
            silent = self._time.boot_ns() - seen_ns
            found += [judge_mount(silent if silent > STILL_NS else None), *judge_space(room)]
        return found + self._others.checks()

    def room_bytes(self) -> int:
        """Return what is left on the tmpfs of the shards; 0 where that cannot be said."""
        try:
            return room_of(self._runtime).bytes_left
        except OSError:
            return 0

    def _tmpfs(self) -> list[HealthCheck]:
        """Return that the tmpfs is full, and which shards take no new domains for it."""
        hosted = {shard: each for shard in self.own_shards if (each := self._host.hosted(shard)) is not None}
        full = {shard: why for shard, each in hosted.items() if (why := each.why_full()) is not None}
        way_out = f"see what fills it: du -x {self._runtime}"
        found = [
            failed(f"shard {shard_text(shard)}", f"takes no new domains: {why}", way_out) for shard, why in full.items()
        ]
        return [judge_tmpfs(self._runtime, self.room_bytes()), *found]

    def page(self, shard: int, after: str, leases_max: int) -> LeasePage:
        """Ask a shard of this node for a page. Raises ShardUnavailable."""
        if self._host.hosted(shard) is None:
            raise ShardUnavailable("not-running", f"shard {shard_text(shard)} does not run here now")
        line = UnixTransport(shard_socket(self._runtime, shard), self._time)
        try:
            (reply,) = line.call([Inspect(after_domain=after, leases_max=leases_max)], ASK_NS)
        finally:
            line.close()
        if not isinstance(reply, LeasePage):
            raise ShardUnavailable("no-answer", f"shard {shard_text(shard)} answered with a {type(reply).__name__}")
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


def pages(
    observed: Observed, maps: MapWatch, release: str, metrics: Callable[[], HttpAnswer]
) -> Mapping[str, Callable[..., HttpAnswer]]:
    """Return what is at the read-only door, by path."""

    def health(_: Mapping[str, str]) -> HttpAnswer:
        return _verdict(observed.running())

    def readiness(_: Mapping[str, str]) -> HttpAnswer:
        return _verdict(observed.checks())

    def checks(_: Mapping[str, str]) -> HttpAnswer:
        return _json(CHECKS_SCHEMA, {"release": release, "checks": [each.fields() for each in observed.checks()]})

    def shards(_: Mapping[str, str]) -> HttpAnswer:
        shown: list[dict[str, Any]] = []
        shard_map, here = maps.newest, set(observed.own_shards)
        for shard in shard_map.shards:
            owner = shard_map.owner_of(shard)
            numbers = observed.numbers(shard) if shard in here else None
            shown.append(
                {"shard": shard, "owner": owner, "node": owner, "here": shard in here, "answers": numbers is not None}
                | ({} if numbers is None else shard_fields(numbers))
            )
        return _json("tenure.shards", {"map": shard_map.number, "shards": shown})

    def leases(query: Mapping[str, str]) -> HttpAnswer:
        count = _number(query, "limit", LEASES_SHOWN, LEASES_SHOWN_MAX)
        wanted = [_number(query, "shard", 0, max(maps.newest.shards))] if "shard" in query else observed.own_shards
        if len(wanted) != 1 and "after" in query:
            raise BadRequest("bad-query", "after goes with shard: each shard has an order of its own")
        shown: list[dict[str, Any]] = []
        for shard in wanted:
            found, more = observed.leases(shard, query.get("after", ""), count)
            shown.append({"shard": shard, "more": more, "leases": [lease_fields(view) for view in found]})
        return _json("tenure.leases", {"shards": shown})

    return {
        "/healthz": health,
        "/readyz": readiness,
        CHECKS_PATH: checks,
        "/v1/shards": shards,
        "/v1/leases": leases,
        "/metrics": lambda _: metrics(),
    }


def _verdict(checks: list[HealthCheck]) -> HttpAnswer:
    """Return 503 where something fails, and in either case what is not well, the worst first, each with its way out."""
    wrong = not_well(checks)
    lines = [f"{check.verdict}  {check.words}\n  way out: {check.way_out}\n" for check in wrong]
    return HttpAnswer(503 if worst(checks) is CheckVerdict.FAIL else 200, "".join(lines or ["ok\n"]).encode())


def _json(schema: str, fields: dict[str, Any]) -> HttpAnswer:
    return HttpAnswer(200, msgspec.json.encode({"schema": schema, "version": 1} | fields) + b"\n", JSON)


def _number(query: Mapping[str, str], name: str, usual: int, most: int) -> int:
    text = query.get(name, str(usual))
    if not text.isascii() or not text.isdecimal() or int(text[:9]) > most:
        raise BadRequest("bad-query", f"{name} is {text[:20]!r}; it is a number up to {most}")
    return int(text)
