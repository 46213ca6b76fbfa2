"""Runs on a node: latency, rate and RPCs of tenure on the mount beside what one would use instead, in one run.

Interleaved rounds, medians. RPCs are counted by the kernel, for the whole mount, in /proc/self/mountstats: this program
has the mount of its machine to itself, and what its shard does at its own pace (a ceiling record a second while a lease
is out) is measured apart and taken off. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import mailbox
import os
import re
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.bag.posix import PosixStorage
from appliance.bag.writing import Committed
from appliance.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOAD = b"x" * 300
BATCH = 256
IDLE_S = 8.0
COUNT = re.compile(r"^\s+([A-Z_]+): (\d+) ", re.MULTILINE)


def rpcs(mount: str) -> Counter[str]:
    """How many requests of each kind the client has sent for a mount since it was mounted."""
    for section in Path("/proc/self/mountstats").read_text(encoding="ascii").split("device ")[1:]:
        if f" mounted on {mount} with fstype nfs" in section:
            return Counter({name: int(count) for name, count in COUNT.findall(section.partition("per-op")[2])})
    raise SystemExit(f"{mount} is no NFS mount")


class Measured:
    """Rounds of each operation: their seconds, and the requests of all of them."""

    def __init__(self, mount: str) -> None:
        self._mount = mount
        self.seconds: dict[str, list[float]] = {}
        self.requests: dict[str, Counter[str]] = {}

    def take(self, name: str, operation: Callable[..., object], *words: object) -> None:
        """Do it once."""
        before, begun = rpcs(self._mount), time.monotonic()
        operation(*words)
        took = time.monotonic() - begun
        self.seconds.setdefault(name, []).append(took)
        self.requests.setdefault(name, Counter()).update(rpcs(self._mount) - before)

    def rows(self, idle: dict[str, float], own: frozenset[str]) -> list[dict[str, object]]:
        """One a name. ``own``: those during which the shard's own requests went on."""
        found: list[dict[str, object]] = []
        for name, seconds in self.seconds.items():
            rounds = len(seconds)
            counts = {op: count / rounds for op, count in self.requests[name].items()}
            if name in own:
                spent = sum(seconds) / rounds
                counts = {op: max(0.0, count - idle.get(op, 0.0) * spent) for op, count in counts.items()}
            ordered = sorted(seconds)
            found.append(
                {
                    "name": name,
                    "rounds": rounds,
                    "median_ms": statistics.median(seconds) * 1000,
                    "p95_ms": ordered[int(rounds * 0.95)] * 1000,
                    "rpcs": {op: round(count, 2) for op, count in sorted(counts.items()) if count >= 0.05},
                    "rpcs_in_all": round(sum(counts.values()), 1),
                }
            )
        return found


def bare(directory: Path, names: list[int]) -> None:
    """Create, write, close: what nobody can do without."""
    names.append(len(names))
    with (directory / f"f{len(names)}").open("xb") as file:
        file.write(PAYLOAD)


def lock_file(directory: Path) -> None:
    """The lock of old: a file of one's own, linked to the lock's name, its link count looked at; then given back."""
    own = directory / f"{os.getpid()}"
    with own.open("xb") as file:
        file.write(b"me")
    os.link(own, directory / "lock")
    assert own.stat().st_nlink == 2
    own.unlink()
    (directory / "lock").unlink()


def main() -> int:
    """Measure everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    top = Path(options.root) / "beside"
    for name in ("bare", "lock"):
        (top / name).mkdir(parents=True, exist_ok=True)
    box = mailbox.Maildir(str(top / "maildir"))
    measured, names = Measured(options.root), list[int]()
    storage = PosixStorage(Path(options.root))
    for directory in ("beside/verbs", "beside/tmp"):
        storage.ensure_directory(directory)
    sizes = {"appended": 0}

    def append() -> None:
        sizes["appended"] = storage.append("beside/verbs/log", PAYLOAD, sizes["appended"])

    with Cluster.open(options.root) as cluster, cluster.session("measuring") as session:
        cluster.create_log("frames")
        cluster.create_log("appends", "log")

        def cycle() -> None:
            with session.acquire("cycle", record_only=True) as leases:
                assert isinstance(session.publish("frames", [PAYLOAD], under=leases), Committed)

        with session.acquire("held", record_only=True) as held:

            def publish(log: str, payloads: list[bytes]) -> None:
                assert isinstance(session.publish(log, payloads, under=held), Committed)

            def read_open(horizon: int) -> None:
                session.read("frames", under=held, after_ns=horizon - 1)

            for log in ("frames", "appends"):
                session.publish(log, [PAYLOAD], under=held)
            before = rpcs(options.root)
            time.sleep(IDLE_S)
            idle = {op: count / IDLE_S for op, count in (rpcs(options.root) - before).items()}
            batch = [PAYLOAD] * BATCH
            for number in range(options.rounds):
                measured.take("create + write + close", bare, top / "bare", names)
                measured.take("mailbox.Maildir.add", box.add, PAYLOAD)
                measured.take("lock file by link(2), taken and given back", lock_file, top / "lock")
                measured.take("verb: publish", storage.publish, f"beside/verbs/{number}", PAYLOAD, "beside/tmp")
                measured.take("verb: append", append)
                measured.take("verb: look", storage.look, "beside/verbs", ("prelock",))
                measured.take("publish, maildir log", publish, "frames", [PAYLOAD])
                measured.take("publish, log of kind log", publish, "appends", [PAYLOAD])
                measured.take(f"publish {BATCH} at once, maildir log", publish, "frames", batch)
                measured.take("acquire, publish, relinquish", cycle)
                measured.take("read the open bags (latest)", read_open, session.horizon("frames"))
    own = frozenset(name for name in measured.seconds if name.startswith(("publish", "acquire", "read")))
    print(json.dumps({"idle_rpcs_per_s": idle, "rows": measured.rows(idle, own)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
