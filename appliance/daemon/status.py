"""What a node shows of itself: whether it works, its shards and their leases, for people, scripts and Prometheus.

Nothing here waits for a shard's thread or the mount longer than ``ASK_NS``; a shard is asked by its own socket, like by
any other process, one bounded page at a time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from timeagent.errors import BadRequest, BadTime, ShardUnavailable
from timeagent.units import SECOND, Instant, Span

from ..bag.roots import Root
from ..cluster import Cluster
from ..doctor.directory import room_of
from ..doctor.health import (
    CheckVerdict,
    HealthCheck,
    Room,
    failed,
    judge_awaited_shard,
    judge_clock,
    judge_mount,
    judge_own_shard,
    judge_space,
    judge_tmpfs,
    not_well,
    worst,
)
from ..formats.shardmap import shard_text
from ..lease.listeners import TlsListener
from ..lease.transport import UnixTransport
from ..lease.wire import PAGE_LEASES_MAX, Inspect, LeasePage, LeaseView, ShardNumbers, lease_fields, shard_fields
from ..node.hosted_shard import HostedShard
from ..node.releases import Releases, skewed
from ..node.runtime import CHECKS_PATH, kept_by, shard_socket
from .http import JSON, HttpAnswer, HttpServer
from .lease_desk import LeaseDesk

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

    def __init__(self, cluster: Cluster, releases: Releases) -> None:
        """Look at nothing yet. ``releases``: asks the other nodes."""
        self.cluster = cluster
        self.releases = releases
        self._host = cluster.routes.host
        self._runtime = cluster.routes.runtime
        self._room: tuple[Room, Instant] | None = None
        self.stopping = False
        self.threads: Callable[[], Sequence[Thread | None]] = tuple
        """Return those of this process that go on until it stops, beside the shards' own."""

    @property
    def own_shards(self) -> list[int]:
        """Return the shards that the map gives to this node, and those of others that run here."""
        newest = self.cluster.maps.newest
        owned = {shard for shard in newest.shards if newest.owner_of(shard) == self.cluster.settings.node}
        return sorted(owned | set(self._host.everything()))

    def see_mount(self, root: Root) -> None:
        """Note that the mount answers, and what room is left. Touches the mount. An error is no answer.

        An object store has no room that ends, and is not asked.
        """
        if not isinstance(root, Path):
            return
        with contextlib.suppress(OSError):
            self._room = room_of(root), self.cluster.time.boot_ns()

    def running(self) -> list[HealthCheck]:
        """Return of each shard that runs here whether it goes round. One that does not is mended by a restart."""
        way_out = "start the daemon again: its supervisor does"
        found = [failed("threads", why, way_out) for why in self.ended()]
        for shard in self.own_shards:
            hosted = self._host.hosted(shard)
            if hosted is not None:
                still = self.cluster.time.boot_ns() - hosted.server.counts.looped_ns
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
        allowed = self.cluster.policy.radius_ns_max
        try:
            found.append(judge_clock(self.cluster.time.now().radius, "", "as this node knows it", allowed))
        except BadTime as problem:
            found.append(judge_clock(None, problem.message, "", allowed))
        if self._room is not None:
            room, seen_ns = self._room
            silent = self.cluster.time.boot_ns() - seen_ns
            found += [judge_mount(silent if silent > STILL_NS else None), *judge_space(room)]
        return found + self.releases.checks()

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
        line = UnixTransport(shard_socket(self._runtime, shard), self.cluster.time)
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


def pages(observed: Observed, metrics: Callable[[], HttpAnswer]) -> Mapping[str, Callable[..., HttpAnswer]]:
    maps, release = observed.cluster.maps, observed.releases.own

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
        "/healthz": lambda _: _verdict(observed.running()),
        "/readyz": lambda _: _verdict(observed.checks()),
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


type _Values = float | Mapping[Any, float] | Iterable[tuple[Sequence[str], float]]
"""One number; or some, each with its label, or with its labels."""


def _gauge(name: str, what: str, values: _Values, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(name, what, labels=labels), values)


def _counter(name: str, what: str, values: _Values, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(name, what, labels=labels), values)


def _filled[Family: (GaugeMetricFamily, CounterMetricFamily)](family: Family, values: _Values) -> Family:
    for labels, value in _labelled(values):
        family.add_metric(labels, value)
    return family


def _labelled(values: _Values) -> Iterable[tuple[Sequence[str], float]]:
    """Return each number with its labels. What another thread counts just now is copied first."""
    if isinstance(values, Mapping):
        items = sorted(dict(values).items())
        return [(key if isinstance(key, tuple) else (str(key),), value) for key, value in items]
    return [((), values)] if isinstance(values, int | float) else values


@dataclass(frozen=True, eq=False)
class NodeCollector(Collector):
    """Gathers one node's numbers. What has no answer now is left out, never zero."""

    observed: Observed
    door: TlsListener | None
    webs: Sequence[HttpServer]
    """The doors that show this."""
    desk: LeaseDesk

    def collect(self) -> Iterator[Metric]:
        """Yield every family. Asks each shard of this node once, for a bounded time."""
        observed, cluster = self.observed, self.observed.cluster
        checks, running = observed.checks(), observed.running()
        names = {"node": cluster.settings.node, "version": observed.releases.own}
        yield InfoMetricFamily("tenure_node", "This node.", value=names)
        yield _gauge("tenure_node_healthy", "1 if every loop goes round.", worst(running) is not CheckVerdict.FAIL)
        yield _gauge("tenure_node_ready", "1 if leases can be asked for.", worst(checks) is not CheckVerdict.FAIL)
        judged = [((check.name, check.verdict), 1) for check in checks]
        yield _gauge("tenure_check", "1 for how a thing is; /readyz says why.", judged, "check", "verdict")
        with contextlib.suppress(BadTime):
            radius = cluster.time.now().radius / SECOND
            yield _gauge("tenure_time_radius_seconds", "How well the time is known here.", radius)
        yield _gauge("tenure_tmpfs_free_bytes", "Room for what shards remember.", observed.room_bytes())
        yield _gauge("tenure_policy_record_number", "The newest policy known here.", cluster.policy.newest.number)
        keys = cluster.keys.keys
        ends = {purpose: key.end_ns / SECOND for purpose, key in keys.items() if key.end_ns is not None}
        what = "Until when a key counts that is in use here."
        yield _gauge("tenure_key_end_timestamp_seconds", what, ends, "purpose")
        yield from self._nodes()
        yield from self._shards()
        yield from _running(cluster.routes.host.everything())
        yield from self._doors()
        yield _counter("tenure_sub_leases", "Sub-leases handed out.", self.desk.handed_out)
        yield _counter("tenure_sub_lease_grants", "Leases taken for those.", self.desk.leases)

    def _nodes(self) -> Iterator[Metric]:
        known = self.observed.releases.known
        up = {node: release is not None for node, release in known.items()}
        runs = {(node, release): 1 for node, release in known.items() if release is not None}
        yield _gauge("tenure_peer_up", "1 if the node answered when last asked.", up, "peer")
        yield _gauge("tenure_peer_release", "1 for what a node runs.", runs, "peer", "release")
        yield _gauge("tenure_version_skew", "1 if nodes run different releases.", skewed(known))

    def _shards(self) -> Iterator[Metric]:
        asked = {shard: self.observed.numbers(shard) for shard in self.observed.own_shards}
        up = {shard: numbers is not None for shard, numbers in asked.items()}
        yield _gauge("tenure_shard_up", "1 if the shard answers.", up, "shard")
        told = {shard: numbers for shard, numbers in asked.items() if numbers is not None}

        def of(value: Callable[[ShardNumbers], float]) -> _Values:
            return {shard: value(numbers) for shard, numbers in told.items()}

        yield _gauge("tenure_shard_leases", "Leases that are out.", of(lambda n: n.leases), "shard")
        yield _gauge("tenure_shard_sessions", "Session leases that are out.", of(lambda n: n.sessions), "shard")
        yield _gauge("tenure_shard_domains", "Domains that are remembered.", of(lambda n: n.domains), "shard")
        ceilings, what = of(lambda n: n.ceiling_ns / SECOND), "Until when the shard may grant."
        yield _gauge("tenure_shard_ceiling_timestamp_seconds", what, ceilings, "shard")
        yield _counter("tenure_shard_batches", "Batches signed by this incarnation.", of(lambda n: n.batches), "shard")
        lost, what = of(lambda n: n.blocks_lost), "Blocks that the ledger's queue refused."
        yield _counter("tenure_shard_ledger_blocks_lost", what, lost, "shard")

    def _doors(self) -> Iterator[Metric]:
        trust, door = self.observed.cluster.watch_trust(), self.door
        yield _gauge("tenure_trust_record_number", "The newest trust record known here.", trust.number)
        what = "Looks for a newer trust record that failed."
        yield _counter("tenure_trust_look_failures", what, trust.failures)
        if door is not None:
            yield _counter("tenure_door_let_in", "Connections let in by TCP.", door.let_in)
            yield _counter("tenure_door_refused", "Connections refused by TCP, by reason.", door.refused, "reason")
        answered = sum((web.answered.copy() for web in self.webs), Counter())
        yield _counter("tenure_http_answers", "Answers at the read-only doors, by status.", answered, "status")


def _running(hosted: Mapping[int, HostedShard]) -> Iterator[Metric]:
    """Yield what the servers of shards that run here count, and the threads behind them: no shard is asked."""

    def of(value: Callable[[HostedShard], _Values]) -> _Values:
        return [((str(n), *label), v) for n, each in sorted(hosted.items()) for label, v in _labelled(value(each))]

    def seconds(spans: Mapping[Any, Span]) -> _Values:
        return {key: span / SECOND for key, span in dict(spans).items()}

    def outcomes(waits: Mapping[tuple[str, bool], int], unit: int = 1) -> _Values:
        return {(part, "granted" if done else "in-vain"): n / unit for (part, done), n in dict(waits).items()}

    yield _gauge("tenure_server_connections", "Connections that are open.", of(lambda s: s.server.connections), "shard")
    counts = of(lambda s: s.server.counts.accepted)
    yield _counter("tenure_server_connections_accepted", "Connections taken in.", counts, "shard")
    counts, what = of(lambda s: s.server.counts.closed), "Connections that ended, by reason."
    yield _counter("tenure_server_connections_closed", what, counts, "shard", "reason")
    yield _counter("tenure_server_calls", "Calls answered.", of(lambda s: s.server.counts.calls), "shard")
    yield _counter(
        "tenure_server_requests", "Requests in those calls.", of(lambda s: s.server.counts.requests), "shard"
    )
    counts, what = of(lambda s: s.server.counts.turns), "Turns: done as a whole, with one signature."
    yield _counter("tenure_server_turns", what, counts, "shard")
    counts = of(lambda s: s.server.counts.turn_ns / SECOND)
    yield _counter("tenure_server_turn_seconds", "Time spent in turns.", counts, "shard")
    counts, what = of(lambda s: s.server.counts.throttled), "How often a peer had asked for more than it may."
    yield _counter("tenure_server_throttled", what, counts, "shard")
    waits, what = of(lambda s: s.chain.waits_for_the_mount), "1 while a ceiling record waits for the mount."
    yield _gauge("tenure_ceiling_waits_for_mount", what, waits, "shard")
    spooled = of(lambda s: s.spool.bytes_waiting)
    yield _gauge("tenure_ledger_spool_bytes", "Bytes of the ledger that wait.", spooled, "shard")
    counts, what = of(lambda s: s.spool.appends_failed), "Appends to the ledger that failed: gaps in it."
    yield _counter("tenure_ledger_append_failures", what, counts, "shard")
    # What became of leases since each shard began to run here, by the first part of their domains' names.
    yield _gauge("tenure_lease_requests_waiting", "Requests that wait for a domain.", of(lambda s: s.waiting), "shard")
    counts, what = of(lambda s: outcomes(s.lease_counts.waits)), "Requests that left a queue, by outcome."
    yield _counter("tenure_lease_queue_waits", what, counts, "shard", "part", "outcome")
    spans, what = of(lambda s: outcomes(s.lease_counts.waits_ns, SECOND)), "How long those had waited."
    yield _counter("tenure_lease_queue_wait_seconds", what, spans, "shard", "part", "outcome")
    yield _counter("tenure_lease_grants", "Leases granted.", of(lambda s: s.lease_counts.grants), "shard", "part")
    counts, what = of(lambda s: s.lease_counts.ends), "Leases that ended, by outcome."
    yield _counter("tenure_lease_ends", what, counts, "shard", "part", "outcome")
    spans, what = of(lambda s: seconds(s.lease_counts.held_ns)), "How long those had been held."
    yield _counter("tenure_lease_held_seconds", what, spans, "shard", "part")
    counts, what = of(lambda s: s.lease_counts.sad), "Grants of what an earlier holder may believe to have."
    yield _counter("tenure_lease_grants_after_a_loss", what, counts, "shard", "part")
    spans, what = of(lambda s: seconds(s.lease_counts.sad_ns)), "How long those have to wait until it is surely past."
    yield _counter("tenure_lease_loss_wait_seconds", what, spans, "shard", "part")


def exposition(collector: NodeCollector) -> HttpAnswer:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return HttpAnswer(200, generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)
