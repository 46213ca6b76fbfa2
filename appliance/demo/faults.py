"""Planting faults: what the audit must name afterwards. Each leaves the evidence that the real accident would leave."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable

import msgspec

from appliance.cluster import Cluster
from appliance.demo.bank import LOG
from appliance.demo.director import Director
from appliance.demo.rogue import EARLY_DOMAIN
from appliance.formats.framing import CHECKSUM_BYTES, Kind
from appliance.formats.lockfile import open_lock
from appliance.formats.paths import LOCK
from appliance.formats.stamped import stamp
from timeagent.errors import Environment

from ..bag.logs import racks_there
from ..bag.survey import BagView, ClosingState, view_rack


def during(fault: str, director: Director) -> None:
    """Plant what has to happen while the cluster runs."""
    if fault == "late-writer":
        _late_writer(director)
    elif fault == "forged-witness":
        machine = director.machines[0]
        machine.await_rogue(machine.start_rogue("forged-witness"))
        director.narrate("An application writes a million under a witness that it made up.")
    elif fault == "early-grant":
        _early_grant(director)


def _late_writer(director: Director) -> None:
    machine = director.machines[0]
    process = machine.start_rogue("late-writer")
    director.await_event(lambda event: event.get("event") == "pausing", "the late writer to be paused")
    policy = director.place.policy
    director.narrate("A machine is paused in the middle of a write, until its lease and its bag are long over.")
    director.trade(policy.takeover_ns() + policy.span_ns + policy.grace_ns)
    process.send_signal(signal.SIGCONT)
    machine.await_rogue(process)
    director.narrate("It goes on, and its message appears too late: the bag's list was linked without it.")


def _early_grant(director: Director) -> None:
    with (
        director.open_cluster() as cluster,
        cluster.session("rightful holder") as first,
        cluster.session("favoured holder") as second,
        first.acquire(EARLY_DOMAIN, record_only=True),
        second.acquire(EARLY_DOMAIN, record_only=True),
    ):
        director.narrate(f"A shard gives {EARLY_DOMAIN} away while another holds it.")


def afterwards(fault: str, director: Director, narrate: Callable[[str], None]) -> None:
    """Plant what happens to the tree when the cluster has stopped."""
    plants = {"altered-file": _alter, "lost-file": _lose, "overwritten-lock": _overwrite}
    if fault in plants:
        with director.open_cluster() as cluster:
            narrate(plants[fault](cluster, _sealed_bag(cluster)))


def _sealed_bag(cluster: Cluster) -> BagView:
    grid = cluster.logs.opened(LOG).grid
    for rack in reversed(list(racks_there(cluster.context.storage, grid))):
        view = view_rack(cluster.context, grid, rack)
        if view.state is ClosingState.SEALED:
            for bag in view.bags:
                if bag.files:
                    return bag
    raise Environment("demo-failed", "no sealed rack holds a message", hint="run it with more --seconds")


def _file(bag: BagView) -> str:
    return f"{bag.bag.path}/{bag.files[0]}"


def _read(cluster: Cluster, path: str) -> bytes:
    data = cluster.context.storage.read(path)
    if data is None:
        raise Environment("demo-failed", f"{path} is not there", hint="run it again")
    return data


def _replace(cluster: Cluster, path: str, data: bytes) -> None:
    """Put other bytes under a name, as nobody who keeps the protocol does."""
    cluster.context.storage.unlink(path)
    cluster.context.storage.publish(path, data, "tmp")


def _alter(cluster: Cluster, bag: BagView) -> str:
    """Change an amount inside a message, and mend the checksum, as somebody who knows the format would."""
    path = _file(bag)
    data = bytearray(_read(cluster, path))
    position = data.rindex(b'"amount":') + len(b'"amount":')
    data[position] = ord("9") if data[position] != ord("9") else ord("8")
    data[-CHECKSUM_BYTES:] = hashlib.sha256(data[:-CHECKSUM_BYTES]).digest()[:CHECKSUM_BYTES]
    _replace(cluster, path, bytes(data))
    return f"Somebody changes an amount in {bag.files[0]} and mends its checksum."


def _lose(cluster: Cluster, bag: BagView) -> str:
    cluster.context.storage.unlink(_file(bag))
    return f"Somebody deletes {bag.files[0]}."


def _overwrite(cluster: Cluster, bag: BagView) -> str:
    """Write a lock file that lists one file less, with a true stamp of a node of this cluster."""
    path = f"{bag.bag.path}/{LOCK}"
    lock, _ = open_lock(_read(cluster, path), bag.bag.path)
    shorter = msgspec.structs.replace(lock, entries=lock.entries[1:])
    _replace(cluster, path, stamp(Kind.LOCK, shorter, cluster.time))
    return f"Somebody writes another lock file over that of {bag.bag.path}."
