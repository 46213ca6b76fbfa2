"""``tenure time run``: the node's time agent, until SIGTERM."""

from __future__ import annotations

import logging
import os
import random
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Final

from appliance.cluster import Cluster
from timeagent.agent.agent import Agent, Daemon, QueuedEvidence
from timeagent.agent.discipline import Listed, Rules, Weight
from timeagent.agent.evidence import EvidenceFiles
from timeagent.agent.page import PAGE_NAME, PageWriter
from timeagent.agent.settings import listed_sources, load_agent_settings
from timeagent.clock import SystemClock
from timeagent.console import note, present
from timeagent.errors import BadConfiguration, Environment
from timeagent.keys import Purpose, key_path, load_node_key
from timeagent.notify import Notifier, Repeats
from timeagent.roughtime.client import PERIOD_NS, RoughtimeSource, load_servers
from timeagent.roughtime.malfeasance import RoughChain, RoughEvidenceFiles
from timeagent.roughtime.server import DIRECTORY, Delegations, RoughServer, load_delegations, rough_door
from timeagent.signedtime import SignedTime
from timeagent.sources.local import AssumedSource
from timeagent.sources.nonce import DOOR_NAME, Refusing, bind_unix, nonce_door
from timeagent.sources.port import bind_udp

from ..node.record_watch import TrustWatch
from ..node.runtime import LocalLock, ensure_runtime, runtime_of
from .opening import open_cluster, stop_on_signals

LOCK_NAME: Final = "time.lock"


def refuses_peer(trust: TrustWatch, node: str) -> Refusing:
    """Return what judges a signed time over a digest: why it is not accepted as this node's, by the newest record."""

    def judge(token: SignedTime, covered: bytes) -> str | None:
        keyring = trust.keyring
        owner = keyring.node_of(token.key_id)
        if owner is not None and owner != node:
            return f"key {keyring.named(token.key_id)} is that of node {owner}"
        return keyring.refuses_time(token, covered)

    return judge


def run_agent(options: Namespace) -> int:
    stop = stop_on_signals()
    handler = logging.StreamHandler()
    handler.addFilter(Repeats())
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", handlers=[handler])
    with open_cluster(options) as cluster:
        directory = ensure_runtime(runtime_of(cluster.settings, cluster.registers.cluster_id))
        lock = LocalLock(directory / LOCK_NAME)
        if not lock.try_acquire():
            hint = "stop it first: there is one agent per node"
            raise Environment("agent-runs-already", f"another process runs the time agent of {directory}", hint=hint)
        with lock:
            _serve(cluster, directory, stop.is_set, options)
    return 0


def _serve(cluster: Cluster, directory: Path, stop: Callable[[], bool], options: Namespace) -> None:
    settings = load_agent_settings(cluster.settings.directory)
    clock = SystemClock()
    chance = random.Random(os.urandom(32))  # noqa: S311 - nonces, seeded from the system
    assumed = AssumedSource(clock, cluster.policy.newest.assumed_radius_ns)
    listed = listed_sources(
        clock,
        settings,
        chance,
        assumed=assumed,
        touch=lambda: cluster.context.storage.server_clock("tmp"),
        refuses=lambda node: refuses_peer(cluster.watch_trust(), node),
        own_word=lambda chance: agent.own_word(chance),  # noqa: PLW0108 - it is made of them
    )
    if settings.roughtime_servers is not None:
        # All in one chain; nobody may foretell its chance, or an answer could be older than its question.
        chain = RoughChain(random.SystemRandom(), RoughEvidenceFiles(settings.evidence / "roughtime"))
        listed += [
            Listed(RoughtimeSource(clock, server, chain), Weight.CROSS_CHECK, period_ns=PERIOD_NS)
            for server in load_servers(settings.roughtime_servers)
        ]
    delegations = _delegations(cluster) if settings.roughtime_listen is not None else None
    evidence = QueuedEvidence(EvidenceFiles(settings.evidence))
    agent = Agent(
        clock,
        cluster.keys.time,
        listed,
        PageWriter(directory / PAGE_NAME),
        evidence,
        Rules(cluster.policy.radius_ns_max, settings.liars, settings.drift_ppm),
    )
    cluster.policy.on_change(lambda policy: agent.limit_radius(policy.radius_ns_max))
    cluster.policy.on_change(lambda policy: assumed.state(policy.assumed_radius_ns))
    cluster.policy.start()
    doors = []
    try:
        if settings.listen is not None:
            doors.append(nonce_door(bind_udp(settings.listen.host, settings.listen.port), agent, local_door=False))
        if settings.roughtime_listen is not None and delegations is not None:
            server = RoughServer(agent.now, delegations)
            at = settings.roughtime_listen
            doors.append(rough_door(bind_udp(at.host, at.port), server))
        doors.append(nonce_door(bind_unix(directory), agent, local_door=True))
        shown = [each.name for each in listed if each.source is not assumed or cluster.policy.newest.assumed_radius_ns]
        fields = {"node": cluster.settings.node, "directory": str(directory), "sources": shown}
        present(options, "tenure.time.run", fields)
        note(f"tenure: time agent of node {cluster.settings.node}; sources: {', '.join(shown) or 'none'}")
        Daemon(agent, clock, listed, doors, evidence, Notifier()).run(stop)
    finally:
        for door in doors:
            door.close()
        (directory / DOOR_NAME).unlink(missing_ok=True)  # who looks for an agent finds none


def _delegations(cluster: Cluster) -> Delegations:
    """Return the node's online Roughtime keys, and its long-term key where that is here. Raises BadConfiguration."""
    directory, node = cluster.settings.directory, cluster.settings.node
    known = cluster.registers.keyring(cluster.registers.newest_trust().number).entries(Purpose.ROUGHTIME)
    own = [entry.public for entry in known if entry.node == node]
    long_term = load_node_key(directory, Purpose.ROUGHTIME) if key_path(directory, Purpose.ROUGHTIME).exists() else None
    public = long_term.public if long_term else own[-1] if own else bytes(32)
    made = load_delegations(directory, public)
    if public not in own or not (made or long_term):
        raise BadConfiguration(
            "no-delegation",
            f"node {node} is to be a Roughtime server, and {directory / DIRECTORY} holds no online key by a Roughtime "
            "key of the trust record",
            hint="where the long-term key is: tenure trust delegate",
        )
    return Delegations(made, long_term)
