"""What a node shows of itself: whether it works, its shards and their leases, for people, scripts and Prometheus.

Nothing here waits for a shard's thread or the mount longer than ``ASK_NS``; a shard is asked by its own socket, like by
any other process, one bounded page at a time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from timeagent.console import json_bytes
from timeagent.errors import BadRequest, BadTime, ShardUnavailable
from timeagent.units import SECOND, Instant, Span

from ..bag.roots import Root
from ..cluster import Cluster
from ..doctor.file_system import room_of
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
from ..formats.shardmap import ShardMap, shard_text
from ..lease.listeners import TlsListener
from ..lease.server import ServerCounts
from ..lease.transport import UnixTransport
from ..lease.wire import PAGE_LEASES_MAX, Inspect, LeasePage, LeaseView, ShardNumbers, lease_fields, shard_fields
from ..node.hosted_shard import HostedShard, LeaseCounts
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
        self._routes = cluster.routes
        self._host, self._runtime = self._routes.host, self._routes.runtime
        self._room: Room | None = None
        self._answered_ns: Instant | None = None
        """When the mount answered last, or, before it was asked, when the daemon began."""
        self.stopping = False
        self.threads: Callable[[], Sequence[Thread | None]] = tuple
        """Return those of this process that go on until it stops, beside the shards' own."""

    @property
    def own_shards(self) -> list[int]:
        """Return the shards that the map gives to this node, and those of others that run here."""
        return sorted({*self._routes.own_shards(), *self._host.everything()})

    def see_mount(self, root: Root) -> None:
        """Note that the mount answers, and what room is left. Touches the mount. An error is no answer.

        An object store has no room that ends, and is not asked.
        """
        if not isinstance(root, Path):
            return
        with contextlib.suppress(OSError):
            self._room = room_of(root)
            self._answered_ns = self.cluster.time.boot_ns()

    def expect_mount(self) -> None:
        """Have it noticed from now on if the mount does not answer, though it may never be asked for that reason."""
        if isinstance(self.cluster.root, Path):
            self._answered_ns = self.cluster.time.boot_ns()

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
        found.append(judge_tmpfs(self._runtime, self.room_bytes()))
        for shard, hosted in self._host.everything().items():
            if hosted.store.full:
                what, way_out = hosted.store.why_full(), f"see what fills it: du -x {self._runtime}"
                found.append(failed(f"shard {shard_text(shard)}", f"takes no new domains: {what}", way_out))
        allowed = self.cluster.policy.radius_ns_max
        try:
            found.append(judge_clock(self.cluster.time.now().radius, "", "as this node knows it", allowed))
        except BadTime as problem:
            found.append(judge_clock(None, problem.message, "", allowed))
        if self._answered_ns is not None:
            silent = self.cluster.time.boot_ns() - self._answered_ns
            if self._room is not None or silent > STILL_NS:
                found.append(judge_mount(silent if silent > STILL_NS else None))
        if self._room is not None:
            found += judge_space(self._room)
        return found + self.releases.checks()

    def room_bytes(self) -> int:
        """Return what is left on the tmpfs of the shards; 0 where that cannot be said."""
        try:
            return room_of(self._runtime).bytes_left
        except OSError:
            return 0

    def page(self, shard: int, after: str, leases_max: int) -> LeasePage:
        """Ask a shard of this node for a page. Raises ShardUnavailable."""
        if self._host.hosted(shard) is None:
            raise ShardUnavailable("not-running", f"shard {shard_text(shard)} does not run here now")
        with contextlib.closing(UnixTransport(shard_socket(self._runtime, shard), self.cluster.time)) as line:
            (reply,) = line.call([Inspect(after_domain=after, leases_max=leases_max)], ASK_NS)
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
            page = self.page(shard, after, min(PAGE_LEASES_MAX, count - len(found)))
            found += page.leases
            after = page.after_domain
            if not page.more or len(found) >= count:
                return found, page.more


def pages(collector: NodeCollector) -> Mapping[str, Callable[[Mapping[str, str]], HttpAnswer]]:
    """Return what makes each page, by its path, of the query."""
    observed = collector.observed
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
        wanted = [_shard(query, maps.newest)] if "shard" in query else observed.own_shards
        if len(wanted) != 1 and "after" in query:
            raise BadRequest("bad-query", "after goes with shard: each shard has an order of its own")
        shown: list[dict[str, Any]] = []
        silent: ShardUnavailable | None = None
        for shard in wanted:
            try:
                found, more = observed.leases(shard, query.get("after", ""), count)
            except ShardUnavailable as problem:
                silent = problem
                shown.append({"shard": shard, "answers": False, "more": False, "leases": []})
            else:
                rows = [lease_fields(view) for view in found]
                shown.append({"shard": shard, "answers": True, "more": more, "leases": rows})
        if silent is not None and not any(each["answers"] for each in shown):
            raise silent
        return _json("tenure.leases", {"shards": shown})

    return {
        "/healthz": lambda _: _verdict(observed.running()),
        "/readyz": lambda _: _verdict(observed.checks()),
        CHECKS_PATH: checks,
        "/v1/shards": shards,
        "/v1/leases": leases,
        "/metrics": lambda _: HttpAnswer(200, generate_latest(collector), CONTENT_TYPE_PLAIN_0_0_4),
    }


def _verdict(checks: list[HealthCheck]) -> HttpAnswer:
    """Return 503 where something fails, and in either case what is not well, the worst first, each with its way out."""
    wrong = not_well(checks)
    lines = [f"{check.verdict}  {check.words}\n  way out: {check.way_out}\n" for check in wrong]
    return HttpAnswer(503 if worst(checks) is CheckVerdict.FAIL else 200, "".join(lines or ["ok\n"]).encode())


def _json(schema: str, fields: dict[str, Any]) -> HttpAnswer:
    return HttpAnswer(200, json_bytes({"schema": schema, "version": 1} | fields) + b"\n", JSON)


def _shard(query: Mapping[str, str], known: ShardMap) -> int:
    shard = _number(query, "shard", 0, max(known.shards))
    if known.owner_of(shard) is None:
        has = ", ".join(map(str, known.shards))
        raise BadRequest("bad-query", f"map {known.number} has no shard {shard}; it has {has}")
    return shard


def _number(query: Mapping[str, str], name: str, usual: int, most: int) -> int:
    text = query.get(name, str(usual))
    digits = text.lstrip("0") or text[:1]  # shards are shown with zeros before them
    if not text.isascii() or not text.isdecimal() or len(digits) > len(str(most)) or int(digits) > most:
        raise BadRequest("bad-query", f"{name} is {text[:20]!r}; it is a number up to {most}")
    return int(digits)


type _Values = float | Mapping[Any, float] | Iterable[tuple[Sequence[str], float]]
"""One number; or some, each with its label, or with its labels."""


def _metric(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, what: str, values: _Values, *labels: str
) -> Metric:
    family = kind(f"tenure_{name}", what, labels=labels)
    for each, value in _labelled(values):
        family.add_metric(each, value)
    return family


_gauge: Final = partial(_metric, GaugeMetricFamily)
_counter: Final = partial(_metric, CounterMetricFamily)


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
        checks, running, known = observed.checks(), observed.running(), observed.releases.known
        names = {"node": cluster.settings.node, "version": observed.releases.own}
        yield InfoMetricFamily("tenure_node", "This node.", value=names)
        yield _gauge("node_healthy", "1 if every loop goes round.", worst(running) is not CheckVerdict.FAIL)
        yield _gauge("node_ready", "1 if leases can be asked for.", worst(checks) is not CheckVerdict.FAIL)
        judged = [((check.name, check.verdict), 1) for check in checks]
        yield _gauge("check", "1 for how a thing is; /readyz says why.", judged, "check", "verdict")
        with contextlib.suppress(BadTime):
            radius = cluster.time.now().radius / SECOND
            yield _gauge("time_radius_seconds", "How well the time is known here.", radius)
        yield _gauge("tmpfs_free_bytes", "Room for what shards remember.", observed.room_bytes())
        yield _gauge("policy_record_number", "The newest policy known here.", cluster.policy.newest.number)
        keys, what = cluster.keys.keys, "Until when a key counts that is in use here."
        ends = {purpose: key.end_ns / SECOND for purpose, key in keys.items() if key.end_ns is not None}
        yield _gauge("key_end_timestamp_seconds", what, ends, "purpose")
        up = {node: release is not None for node, release in known.items()}
        yield _gauge("peer_up", "1 if the node answered when last asked.", up, "peer")
        runs = {(node, release): 1 for node, release in known.items() if release is not None}
        yield _gauge("peer_release", "1 for what a node runs.", runs, "peer", "release")
        yield _gauge("version_skew", "1 if nodes run different releases.", skewed(known))
        yield from _asked({shard: observed.numbers(shard) for shard in observed.own_shards})
        yield from _running(cluster.routes.host.everything())
        trust, door = cluster.watch_trust(), self.door
        yield _gauge("trust_record_number", "The newest trust record known here.", trust.number)
        yield _counter("trust_look_failures", "Looks for a newer trust record that failed.", trust.failures)
        if door is not None:
            yield _counter("door_let_in", "Connections let in by TCP.", door.let_in)
            yield _counter("door_refused", "Connections refused by TCP, by reason.", door.refused, "reason")
        answered = sum((web.answered.copy() for web in self.webs), Counter())
        yield _counter("http_answers", "Answers at the read-only doors, by status.", answered, "status")
        yield _counter("sub_leases", "Sub-leases handed out.", self.desk.handed_out)
        yield _counter("sub_lease_grants", "Leases taken for those.", self.desk.leases)


def _asked(asked: Mapping[int, ShardNumbers | None]) -> Iterator[Metric]:
    """Yield what shards say of themselves."""
    up = {shard: numbers is not None for shard, numbers in asked.items()}
    yield _gauge("shard_up", "1 if the shard answers.", up, "shard")
    table: list[tuple[Callable[..., Metric], str, str, Callable[[ShardNumbers], float]]] = [
        (_gauge, "leases", "Leases that are out.", lambda n: n.leases),
        (_gauge, "sessions", "Session leases that are out.", lambda n: n.sessions),
        (_gauge, "domains", "Domains that are remembered.", lambda n: n.domains),
        (_gauge, "ceiling_timestamp_seconds", "Until when the shard may grant.", lambda n: n.ceiling_ns / SECOND),
        (_counter, "batches", "Batches signed by this incarnation.", lambda n: n.batches),
        (_counter, "ledger_blocks_lost", "Blocks that the ledger's queue refused.", lambda n: n.blocks_lost),
    ]
    for kind, name, what, of in table:
        told = {shard: of(numbers) for shard, numbers in asked.items() if numbers is not None}
        yield kind(f"shard_{name}", what, told, "shard")


def _running(hosted: Mapping[int, HostedShard]) -> Iterator[Metric]:
    """Yield what the servers of shards that run here count, and the threads behind them: no shard is asked."""

    def seconds(spans: Mapping[Any, Span]) -> _Values:
        return {key: span / SECOND for key, span in dict(spans).items()}

    def outcomes(waits: Mapping[tuple[str, bool], int], unit: int = 1) -> _Values:
        return {(part, "granted" if done else "in-vain"): n / unit for (part, done), n in dict(waits).items()}

    def counted(name: str, what: str, of: Callable[[ServerCounts], _Values], *labels: str) -> Metric:
        return by_shard(_counter, f"server_{name}", what, lambda s: of(s.server.counts), *labels)

    def by_part(name: str, what: str, of: Callable[[LeaseCounts], _Values], *labels: str) -> Metric:
        return by_shard(_counter, f"lease_{name}", what, lambda s: of(s.ledger.lease_counts), "part", *labels)

    def by_shard(
        kind: Callable[..., Metric], name: str, what: str, of: Callable[[HostedShard], _Values], *labels: str
    ) -> Metric:
        found = [((str(n), *label), v) for n, each in sorted(hosted.items()) for label, v in _labelled(of(each))]
        return kind(name, what, found, "shard", *labels)

    yield by_shard(_gauge, "server_connections", "Connections that are open.", lambda s: s.server.connections)
    yield counted("connections_accepted", "Connections taken in.", lambda c: c.accepted)
    yield counted("connections_closed", "Connections that ended, by reason.", lambda c: c.closed, "reason")
    yield counted("calls", "Calls answered.", lambda c: c.calls)
    yield counted("requests", "Requests in those calls.", lambda c: c.requests)
    yield counted("turns", "Turns: done as a whole, with one signature.", lambda c: c.turns)
    yield counted("turn_seconds", "Time spent in turns.", lambda c: c.turn_ns / SECOND)
    yield counted("throttled", "How often a peer had asked for more than it may.", lambda c: c.throttled)
    what = "1 while a ceiling record waits for the mount."
    yield by_shard(_gauge, "ceiling_waits_for_mount", what, lambda s: s.chain.waits_for_the_mount)
    yield by_shard(_gauge, "ledger_spool_bytes", "Bytes of the ledger that wait.", lambda s: s.spool.bytes_waiting)
    what = "Appends to the ledger that failed: gaps in it."
    yield by_shard(_counter, "ledger_append_failures", what, lambda s: s.spool.appends_failed)
    yield by_shard(_gauge, "lease_requests_waiting", "Requests that wait for a domain.", lambda s: s.shard.waiting)
    # What became of leases since each shard began to run here, by the first part of their domains' names.
    yield by_part("queue_waits", "Requests that left a queue, by outcome.", lambda c: outcomes(c.waits), "outcome")
    what = "How long those had waited."
    yield by_part("queue_wait_seconds", what, lambda c: outcomes(c.waits_ns, SECOND), "outcome")
    yield by_part("grants", "Leases granted.", lambda c: c.grants)
    yield by_part("ends", "Leases that ended, by outcome.", lambda c: c.ends, "outcome")
    yield by_part("held_seconds", "How long those had been held.", lambda c: seconds(c.held_ns))
    yield by_part("grants_after_a_loss", "Grants of what an earlier holder may believe to have.", lambda c: c.sad)
    what = "How long those have to wait until it is surely past."
    yield by_part("loss_wait_seconds", what, lambda c: seconds(c.sad_ns))
