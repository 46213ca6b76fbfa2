"""Daemons and clients on a directory of this machine, in one process, by its own clock: what they ask is counted."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final

import msgspec

from appliance.bag.posix import PosixStorage
from appliance.daemon.daemon import Node
from appliance.formats.policy import check_policy
from tests.simulation.cluster import LOGS
from tests.simulation.scale import model
from tests.simulation.scale.cast import Load, kind_of
from tests.support.cluster import Site
from tests.support.run_stage import slow_policy
from tests.support.storage import WrappedStorage
from timeagent.clock import SystemClock
from timeagent.units import MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.formats.policy import Policy

WHOLE_MAX: Final = 10
"""Up to so many nodes a simulation renews every session in its shard."""
CLIENTS: Final = 2
"""Of each node: each has a lease, and publishes, with a second in between."""
FLUSHES: Final = "flushes"
WARM_S: Final = 300
"""Until racks of a minute are sealed and packed as they come."""
COUNTED_S: Final = 120
PATIENCE_S: Final = 60


def _policy(path: Path) -> Policy:
    numbers = slow_policy(path)
    return check_policy(
        msgspec.structs.replace(numbers, rack_ns=MINUTE, seal_delay_ns=5 * SECOND, span_ns=SECOND, grace_ns=2 * SECOND)
    )


POLICY: Final = _policy(Path("/"))


class Port(WrappedStorage):
    """Counts calls of verbs by kind. Thread-safe."""

    def __init__(self, root: Path, calls: Counter[str], guard: Lock) -> None:
        super().__init__(PosixStorage(root))
        self._calls = calls
        self._guard = guard

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        del verb
        self.count(kind_of(path))
        return call()

    def count(self, what: str) -> None:
        """Count one call, or one flush."""
        with self._guard:
            self._calls[what] += 1


def row(nodes: int) -> dict[str, Any]:
    """Run so many daemons, with clients; return what they asked for. Takes seven minutes, most of them waiting."""
    load = Load(nodes, idle_logs=nodes, used_logs=1, writers=CLIENTS * nodes, clients=CLIENTS * nodes)
    clock, calls, guard, stop = SystemClock(), Counter[str](), Lock(), Event()
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        names = [f"node{number}" for number in range(1, nodes + 1)]
        site = Site(path, names, _policy(path))
        with site.open() as cluster:
            for log in [*LOGS, "used0", *(f"idle{number}" for number in range(nodes))]:
                cluster.create_log(log)
        daemons = [Node(site.open(name, storage=Port(site.root, calls, guard))) for name in names]
        threads = [Thread(target=_keep_pace, args=(daemon, stop)) for daemon in daemons]
        threads += [
            Thread(target=_publish, args=(site, name, f"{name} {number}", Port(site.root, calls, guard), stop))
            for name in names
            for number in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        clock.sleep(WARM_S * SECOND)
        with guard:
            calls.clear()
        began = clock.boot_ns()
        clock.sleep(COUNTED_S * SECOND)
        with guard:
            span = (clock.boot_ns() - began) / SECOND
            found = {what: count / span for what, count in calls.items()}
        flushes_s = found.pop(FLUSHES, 0.0)
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        site.close()
    return {
        "how": "measured",
        "load": msgspec.to_builtins(load),
        "minutes": COUNTED_S // 60,
        "flushes_s": flushes_s,
        "predicted": model.calls_s(load, site.policy, flushes_s),
        "found": found,
        "bytes_predicted": {},
        "bytes": {},
    }


def _keep_pace(daemon: Node, stop: Event) -> None:
    daemon.start()
    daemon.run(stop)
    daemon.stopping(drains=False)
    daemon._cluster.close()
    daemon.close()


def _publish(site: Site, node: str, domain: str, port: Port, stop: Event) -> None:
    clock = SystemClock()
    with site.open(node, storage=port) as cluster:
        session = cluster.session("measured", session_leases=True)
        with session.acquire(domain, record_only=True, timeout_s=PATIENCE_S) as leases:
            while not stop.is_set():
                session.publish("used0", [b"counted"], under=leases)
                port.count(FLUSHES)
                clock.sleep(SECOND)
