"""A founded cluster: keys, policies, and the tree that every run begins with. Made once, copied for each run."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from appliance.admin.membership import found_cluster, publish_map
from appliance.admin.trust import admit
from appliance.bag.logs import Store, create_log
from appliance.bag.ports import BagContext
from appliance.formats.birth import BagKind, LogBirth
from appliance.formats.paths import Grid
from appliance.formats.policy import Policy, check_policy
from appliance.node.records import Registers
from tests.simulation.clocks import SimulatedTime
from tests.simulation.keys import FastRegisters, FastSigner
from tests.simulation.mount import SimulatedMount
from tests.simulation.scheduler import Scheduler
from tests.simulation.server import Server
from timeagent.keys import Purpose, Signer
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from appliance.bag.ports import Storage
    from timeagent.units import Instant

CLUSTER = bytes(range(16))
T0: Instant = 1_795_212_600 * SECOND
"""2026-11-20 22:10:00, the start of a rack."""


def names(count: int) -> tuple[str, ...]:
    """Return the names of so many nodes."""
    return tuple(f"n{number}" for number in range(1, count + 1))


NODES = names(6)
LOGS = ("alpha", "beta")
KINDS = {"alpha": BagKind.MAILDIR, "beta": BagKind.LOG}

SHORT = check_policy(
    Policy(
        number=1,
        cluster_id=CLUSTER,
        span_ns=500 * MS,
        grace_ns=1_200 * MS,
        rack_ns=5 * SECOND,
        seal_delay_ns=2_500 * MS,
        radius_ns_max=50 * MS,
        r1_tolerance_ns=600 * MS,
        lease_term_max_ns=2 * SECOND,
        renew_period_ns=600 * MS,
        holder_margin_ns=100 * MS,
        attempt_timeout_ns=300 * MS,
        batch_ns_max=100 * MS,
        ceiling_ahead_ns=500 * MS,
        ceiling_period_ns=250 * MS,
    )
)
"""Spans in the relations of the defaults, but shorter: a run meets more of them in the same number of operations."""

PATIENT = check_policy(msgspec.structs.replace(SHORT, grace_ns=3 * SECOND, seal_delay_ns=3_800 * MS))
"""Bags of logs that are born under it stay open for longer than another policy may want racks to."""

DEFAULT = check_policy(
    Policy(number=1, cluster_id=CLUSTER, rack_ns=10 * SECOND, seal_delay_ns=5 * SECOND, radius_ns_max=250 * MS)
)
"""The defaults, but for racks of ten bags that are sealed five seconds after their end."""


UNTUNED = check_policy(Policy(number=1, cluster_id=CLUSTER))
"""The defaults, as a cluster has them that nobody has tuned."""


@cache
def grid_of(birth: LogBirth) -> Grid:
    """Return the grid of a log: one for all runs, because it remembers names only, which cost more than a step."""
    return Grid(birth)


def signer(name: str, *, real: bool) -> Signer:
    """Return the key of that name: always the same."""
    seed = hashlib.sha256(name.encode()).digest()
    return Signer(seed) if real else FastSigner(seed)


ELSEWHERE = "s3://bucket/elsewhere"


class Founded:
    """A tree with marker, records, map and a log of each kind, by policy, kind of keys, nodes and number of shards.

    ``placed``: the logs that are in another store.
    """

    def __init__(
        self,
        policy: Policy,
        shards: int,
        *,
        real: bool,
        nodes: tuple[str, ...] = NODES,
        placed: tuple[str, ...] = (),
    ) -> None:
        self.policy = policy
        self.real = real
        self.root = signer("root", real=real)
        self.keys = {
            node: {purpose: signer(f"{node} {purpose}", real=real) for purpose in (Purpose.TIME, Purpose.WITNESS)}
            for node in nodes
        }
        self.server = Server(Scheduler("founding", start_ns=T0, end_ns=T0, steps_max=0))
        mount = SimulatedMount(self.server, "founder")
        found_cluster(mount, Path("/"), policy, self.root)
        registers = self.registers(mount)
        for node in nodes:
            admit(registers, self.root, node, {each: key.public for each, key in self.keys[node].items()}, T0)
        publish_map(registers, self.root, [nodes[shard] for shard in range(shards)])
        self.map = registers.newest_map()
        time = SimulatedTime(self.server.scheduler, self.keys["n1"][Purpose.TIME])
        self.elsewhere = Server(self.server.scheduler)
        store = Store(ELSEWHERE, SimulatedMount(self.elsewhere, "founder elsewhere"))
        for log in LOGS:
            where = store if log in placed else None
            create_log(BagContext(mount, time, registers, "n1"), log, KINDS[log], where)

    def registers(self, mount: Storage) -> Registers:
        """Return the records as one process reads them."""
        kind = Registers if self.real else FastRegisters
        return kind(mount, CLUSTER, self.root.verifier())


@cache
def founded(
    *,
    short: bool,
    shards: int,
    real: bool,
    patient: bool = False,
    untuned: bool = False,
    nodes: tuple[str, ...] = NODES,
    placed: tuple[str, ...] = (),
) -> Founded:
    """Return a founded cluster; the same object for the same question."""
    policy = UNTUNED if untuned else PATIENT if patient else SHORT if short else DEFAULT
    return Founded(msgspec.structs.replace(policy), shards, real=real, nodes=nodes, placed=placed)
