"""The node's numbers for Prometheus. Each is read when it is asked for; nothing is counted here."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from timeagent.errors import BadTime
from timeagent.units import SECOND, Span

from ..cluster import Cluster
from ..doctor.check import CheckVerdict, worst
from ..lease.listeners import TlsListener
from ..lease.wire import ShardNumbers
from ..node.hosted_shard import HostedShard
from ..node.releases import Releases, skewed
from .http import HttpAnswer, HttpServer
from .lease_desk import LeaseDesk
from .status import Observed

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


class NodeCollector(Collector):
    """Gathers one node's numbers. What has no answer now is left out, never zero."""

    def __init__(
        self,
        cluster: Cluster,
        observed: Observed,
        releases: Releases,
        door: TlsListener | None,
        webs: Sequence[HttpServer],
        desk: LeaseDesk,
    ) -> None:
        """Take what is asked. ``webs``: the doors that show this, ``desk``: what lends leases."""
        self._cluster = cluster
        self._observed = observed
        self._releases = releases
        self._door = door
        self._webs = webs
        self._desk = desk

    def collect(self) -> Iterator[Metric]:
        """Yield every family. Asks each shard of this node once, for a bounded time."""
        observed = self._observed
        checks, running = observed.checks(), observed.running()
        names = {"node": self._cluster.settings.node, "version": self._releases.own}
        yield InfoMetricFamily("tenure_node", "This node.", value=names)
        yield _gauge("tenure_node_healthy", "1 if every loop goes round.", worst(running) is not CheckVerdict.FAIL)
        yield _gauge("tenure_node_ready", "1 if leases can be asked for.", worst(checks) is not CheckVerdict.FAIL)
        judged = [((check.name, check.verdict), 1) for check in checks]
        yield _gauge("tenure_check", "1 for how a thing is; /readyz says why.", judged, "check", "verdict")
        with contextlib.suppress(BadTime):
            radius = self._cluster.time.now().radius / SECOND
            yield _gauge("tenure_time_radius_seconds", "How well the time is known here.", radius)
        yield _gauge("tenure_tmpfs_free_bytes", "Room for what shards remember.", observed.room_bytes())
        yield _gauge("tenure_policy_record_number", "The newest policy known here.", self._cluster.policy.newest.number)
        ends = {
            purpose: key.end_ns / SECOND for purpose, key in self._cluster.keys.keys.items() if key.end_ns is not None
        }
        what = "Until when a key counts that is in use here."
        yield _gauge("tenure_key_end_timestamp_seconds", what, ends, "purpose")
        yield from self._nodes()
        yield from self._shards()
        yield from _running(self._cluster.routes.host.everything())
        yield from self._doors()
        yield _counter("tenure_sub_leases", "Sub-leases handed out.", self._desk.handed_out)
        yield _counter("tenure_sub_lease_grants", "Leases taken for those.", self._desk.leases)

    def _nodes(self) -> Iterator[Metric]:
        known = self._releases.known
        up = {node: release is not None for node, release in known.items()}
        runs = {(node, release): 1 for node, release in known.items() if release is not None}
        yield _gauge("tenure_peer_up", "1 if the node answered when last asked.", up, "peer")
        yield _gauge("tenure_peer_release", "1 for what a node runs.", runs, "peer", "release")
        yield _gauge("tenure_version_skew", "1 if nodes run different releases.", skewed(known))

    def _shards(self) -> Iterator[Metric]:
        asked = {shard: self._observed.numbers(shard) for shard in self._observed.own_shards}
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
        trust, door = self._cluster.watch_trust(), self._door
        yield _gauge("tenure_trust_record_number", "The newest trust record known here.", trust.number)
        what = "Looks for a newer trust record that failed."
        yield _counter("tenure_trust_look_failures", what, trust.failures)
        if door is not None:
            yield _counter("tenure_door_let_in", "Connections let in by TCP.", door.let_in)
            yield _counter("tenure_door_refused", "Connections refused by TCP, by reason.", door.refused, "reason")
        answered = sum((web.answered.copy() for web in self._webs), Counter())
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
    """Return what Prometheus reads: the text format, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return HttpAnswer(200, generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)
