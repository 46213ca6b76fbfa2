"""The node's numbers for Prometheus. Each is read when it is asked for; nothing is counted here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from timeagent.units import SECOND

from ..doctor.check import CheckVerdict, worst
from ..lease.listeners import TlsListener
from ..node.hosted_shard import HostedShard
from ..node.own_keys import OwnKeys
from ..node.record_watch import TrustWatch
from ..node.releases import Releases, skewed
from ..node.shards import ShardHost
from .http import HttpAnswer, HttpServer
from .lease_desk import LeaseDesk
from .status import Observed

_SHARD: Final = ("shard",)


class NodeCollector(Collector):
    """Gathers one node's numbers. What has no answer now is left out, never zero."""

    def __init__(
        self,
        node: str,
        version: str,
        observed: Observed,
        host: ShardHost,
        door: TlsListener | None = None,
        trust: TrustWatch | None = None,
        releases: Releases | None = None,
        keys: OwnKeys | None = None,
    ) -> None:
        """Take what is asked. ``web`` has the doors that show this, ``desk`` what lends leases, once there are any."""
        self._node = node
        self._version = version
        self._observed = observed
        self._host = host
        self._door = door
        self._trust = trust
        self._releases = releases
        self._keys = keys
        self.web: list[HttpServer] = []
        self.desk: LeaseDesk | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield every family. Asks each shard of this node once, for a bounded time."""
        yield InfoMetricFamily("tenure_node", "This node.", value={"node": self._node, "version": self._version})
        checks = self._observed.checks()
        running = worst(self._observed.running()) is not CheckVerdict.FAIL
        yield _gauge("tenure_node_healthy", "1 if every loop goes round.", running)
        yield _gauge("tenure_node_ready", "1 if leases can be asked for.", worst(checks) is not CheckVerdict.FAIL)
        judged = GaugeMetricFamily(
            "tenure_check", "1 for how a thing is; /readyz says why.", labels=("check", "verdict")
        )
        for check in checks:
            judged.add_metric([check.name, check.verdict], 1)
        yield judged
        radius = self._observed.radius_ns()
        if radius is not None:
            yield _gauge("tenure_time_radius_seconds", "How well the time is known here.", radius / SECOND)
        hosted = {shard: each for shard in self._observed.own_shards if (each := self._host.hosted(shard)) is not None}
        yield _gauge("tenure_tmpfs_free_bytes", "Room for what shards remember.", self._observed.room_bytes())
        yield _gauge("tenure_policy_record_number", "The newest policy known here.", self._observed.policy_number)
        yield from self._key_ends()
        yield from self._nodes()
        yield from self._shards()
        yield from _servers(hosted)
        yield from _leases(hosted)
        yield from self._doors()
        if self.desk is not None:
            yield CounterMetricFamily("tenure_sub_leases", "Sub-leases handed out.", self.desk.handed_out)
            yield CounterMetricFamily("tenure_sub_lease_grants", "Leases taken for those.", self.desk.leases)

    def _key_ends(self) -> Iterator[Metric]:
        if self._keys is None:
            return
        ends = GaugeMetricFamily(
            "tenure_key_end_timestamp_seconds", "Until when a key counts that is in use here.", labels=("purpose",)
        )
        for purpose, key in sorted(self._keys.keys.items()):
            if key.end_ns is not None:
                ends.add_metric([purpose], key.end_ns / SECOND)
        yield ends

    def _nodes(self) -> Iterator[Metric]:
        if self._releases is None:
            return
        known = self._releases.known
        answers = GaugeMetricFamily("tenure_peer_up", "1 if the node answered when last asked.", labels=("peer",))
        runs = GaugeMetricFamily("tenure_peer_release", "1 for what a node runs.", labels=("peer", "release"))
        for peer, release in sorted(known.items()):
            answers.add_metric([peer], release is not None)
            if release is not None:
                runs.add_metric([peer, release], 1)
        yield from (answers, runs)
        yield _gauge("tenure_version_skew", "1 if nodes run different releases.", skewed(known))

    def _shards(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("tenure_shard_up", "1 if the shard answers.", labels=_SHARD)
        leases = GaugeMetricFamily("tenure_shard_leases", "Leases that are out.", labels=_SHARD)
        sessions = GaugeMetricFamily("tenure_shard_sessions", "Session leases that are out.", labels=_SHARD)
        domains = GaugeMetricFamily("tenure_shard_domains", "Domains that are remembered.", labels=_SHARD)
        ceiling = GaugeMetricFamily(
            "tenure_shard_ceiling_timestamp_seconds", "Until when the shard may grant.", labels=_SHARD
        )
        batches = CounterMetricFamily("tenure_shard_batches", "Batches signed by this incarnation.", labels=_SHARD)
        lost = CounterMetricFamily(
            "tenure_shard_ledger_blocks_lost", "Blocks that the ledger's queue refused.", labels=_SHARD
        )
        for shard in self._observed.own_shards:
            numbers = self._observed.numbers(shard)
            up.add_metric([str(shard)], numbers is not None)
            if numbers is not None:
                leases.add_metric([str(shard)], numbers.leases)
                sessions.add_metric([str(shard)], numbers.sessions)
                domains.add_metric([str(shard)], numbers.domains)
                ceiling.add_metric([str(shard)], numbers.ceiling_ns / SECOND)
                batches.add_metric([str(shard)], numbers.batches)
                lost.add_metric([str(shard)], numbers.blocks_lost)
        yield from (up, leases, sessions, domains, ceiling, batches, lost)

    def _doors(self) -> Iterator[Metric]:
        if self._trust is not None:
            yield _gauge("tenure_trust_record_number", "The newest trust record known here.", self._trust.number)
            yield CounterMetricFamily(
                "tenure_trust_look_failures", "Looks for a newer trust record that failed.", self._trust.failures
            )
        if self._door is not None:
            yield CounterMetricFamily("tenure_door_let_in", "Connections let in by TCP.", self._door.let_in)
            refused = CounterMetricFamily(
                "tenure_door_refused", "Connections refused by TCP, by reason.", labels=("reason",)
            )
            for reason, count in sorted(self._door.refused.copy().items()):
                refused.add_metric([reason], count)
            yield refused
        answered = CounterMetricFamily(
            "tenure_http_answers", "Answers at the read-only doors, by status.", labels=("status",)
        )
        for status, count in sorted(sum((door.answered.copy() for door in self.web), Counter()).items()):
            answered.add_metric([str(status)], count)
        yield answered


def _servers(hosted: dict[int, HostedShard]) -> Iterator[Metric]:
    """Yield what the servers and the threads behind them count themselves: no shard is asked."""
    connections = GaugeMetricFamily("tenure_server_connections", "Connections that are open.", labels=_SHARD)
    accepted = CounterMetricFamily("tenure_server_connections_accepted", "Connections taken in.", labels=_SHARD)
    closed = CounterMetricFamily(
        "tenure_server_connections_closed", "Connections that ended, by reason.", labels=("shard", "reason")
    )
    calls = CounterMetricFamily("tenure_server_calls", "Calls answered.", labels=_SHARD)
    requests = CounterMetricFamily("tenure_server_requests", "Requests in those calls.", labels=_SHARD)
    turns = CounterMetricFamily("tenure_server_turns", "Turns: done as a whole, with one signature.", labels=_SHARD)
    seconds = CounterMetricFamily("tenure_server_turn_seconds", "Time spent in turns.", labels=_SHARD)
    throttled = CounterMetricFamily(
        "tenure_server_throttled", "How often a peer had asked for more than it may.", labels=_SHARD
    )
    waits = GaugeMetricFamily(
        "tenure_ceiling_waits_for_mount", "1 while a ceiling record waits for the mount.", labels=_SHARD
    )
    spooled = GaugeMetricFamily("tenure_ledger_spool_bytes", "Bytes of the ledger that wait.", labels=_SHARD)
    failed = CounterMetricFamily(
        "tenure_ledger_append_failures", "Appends to the ledger that failed: gaps in it.", labels=_SHARD
    )
    for shard, each in sorted(hosted.items()):
        label, counts = [str(shard)], each.server.counts
        connections.add_metric(label, each.server.connections)
        accepted.add_metric(label, counts.accepted)
        for reason, count in sorted(counts.closed.copy().items()):
            closed.add_metric([*label, reason], count)
        calls.add_metric(label, counts.calls)
        requests.add_metric(label, counts.requests)
        turns.add_metric(label, counts.turns)
        seconds.add_metric(label, counts.turn_ns / SECOND)
        throttled.add_metric(label, counts.throttled)
        waits.add_metric(label, each.chain.waits_for_the_mount)
        spooled.add_metric(label, each.spool.bytes_waiting)
        failed.add_metric(label, each.spool.appends_failed)
    yield from (connections, accepted, closed, calls, requests, turns, seconds, throttled, waits, spooled, failed)


def _leases(hosted: dict[int, HostedShard]) -> Iterator[Metric]:
    """Yield what became of leases since each shard began to run here, by the first part of their domains' names."""
    labels = ("shard", "part")
    waiting = GaugeMetricFamily("tenure_lease_requests_waiting", "Requests that wait for a domain.", labels=_SHARD)
    queued = CounterMetricFamily(
        "tenure_lease_queue_waits", "Requests that left a queue, by outcome.", labels=(*labels, "outcome")
    )
    queued_seconds = CounterMetricFamily(
        "tenure_lease_queue_wait_seconds", "How long those had waited.", labels=(*labels, "outcome")
    )
    grants = CounterMetricFamily("tenure_lease_grants", "Leases granted.", labels=labels)
    ends = CounterMetricFamily("tenure_lease_ends", "Leases that ended, by outcome.", labels=(*labels, "outcome"))
    held = CounterMetricFamily("tenure_lease_held_seconds", "How long those had been held.", labels=labels)
    sad = CounterMetricFamily(
        "tenure_lease_grants_after_a_loss", "Grants of what an earlier holder may believe to have.", labels=labels
    )
    sad_seconds = CounterMetricFamily(
        "tenure_lease_loss_wait_seconds", "How long those have to wait until it is surely past.", labels=labels
    )
    for shard, each in sorted(hosted.items()):
        waiting.add_metric([str(shard)], each.waiting)
        counts = each.lease_counts
        for part, count in sorted(counts.grants.copy().items()):
            grants.add_metric([str(shard), part], count)
        for (part, granted), count in sorted(counts.waits.copy().items()):
            label = [str(shard), part, "granted" if granted else "in-vain"]
            queued.add_metric(label, count)
            queued_seconds.add_metric(label, counts.waits_ns[part, granted] / SECOND)
        for (part, outcome), count in sorted(counts.ends.copy().items()):
            ends.add_metric([str(shard), part, outcome], count)
        for family, spans in ((held, counts.held_ns), (sad_seconds, counts.sad_ns)):
            for part, span in sorted(spans.copy().items()):
                family.add_metric([str(shard), part], span / SECOND)
        for part, count in sorted(counts.sad.copy().items()):
            sad.add_metric([str(shard), part], count)
    yield from (waiting, queued, queued_seconds, grants, ends, held, sad, sad_seconds)


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(name, what, value)


def exposition(collector: NodeCollector) -> HttpAnswer:
    """Return what Prometheus reads: the text format, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return HttpAnswer(200, generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)
