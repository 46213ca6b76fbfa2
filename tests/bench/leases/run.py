"""make bench-leases: our lease service against those that one would use instead, interleaved, as ratios.

``python -m tests.bench.leases.run [--short] [--json FILE] [--rounds N] [--only TEXT]``. Every contender of a line is
measured once in every round, in an order that turns; reported are medians of the rounds' ratios of processor time and
of rates, and of both themselves. Processor time is what is judged: under load, rates of a closed loop measure the
scheduler. Nothing is reported of a run with a double holder, a fence that does not grow, or a witness that proves
nothing. Exit 1 when a bar is missed (``bars.py``), 2 when a figure is not believed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.values import CLUSTER

from . import peers
from .bars import judged
from .generator import Figure, Generator, NotBelieved, compiled
from .peers import Absent, Peer
from .served import KEYRING
from .together import FEW, together
from .workers import ROOT, Worker, waited_behind_the_dead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Measure = Callable[[], Figure]


@dataclass(frozen=True, slots=True)
class Length:
    """How long everything takes."""

    rounds: int
    run_ms: int
    contended_s: float
    contended_rounds: int
    held: int
    limit_s: float
    """No line begins later: a bar that was not measured is a bar missed."""


SHORT = Length(rounds=3, run_ms=200, contended_s=0.4, contended_rounds=1, held=10_000, limit_s=30)
FULL = Length(rounds=7, run_ms=1000, contended_s=2.0, contended_rounds=5, held=1_000_000, limit_s=3600)


@dataclass
class Bench:
    """What was found so far."""

    length: Length
    directory: Path
    only: str
    numbers: dict[str, float] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    verified: int = 0
    began: float = field(default_factory=time.monotonic)

    def wants(self, line: str) -> bool:
        """Whether this line was asked for, and there is time for it."""
        return self.only in line and time.monotonic() - self.began < self.length.limit_s

    def line(self, line: str, contenders: Mapping[str, Measure], rounds: int | None = None) -> None:
        """Measure contenders, ``ours`` first, in turn; keep medians, and the ratios of rates within a round."""
        if not self.wants(line) or "ours" not in contenders:
            return
        names = list(contenders)
        found: dict[str, list[Figure]] = {name: [] for name in names}
        for turn in range(rounds or self.length.rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                found[name].append(contenders[name]())
        for name, each in found.items():
            self.figures[f"{line}: {name}"] = {
                "rate": statistics.median(one.rate for one in each),
                "cpu_us": statistics.median(one.cpu_us for one in each),
                "longest_wait_us": max(one.longest_wait_us for one in each),
            }
            self.verified += sum(one.verified for one in each)
            if name != "ours":
                both = list(zip(found["ours"], each, strict=True))
                self.numbers[f"{line}: ours / {name}"] = statistics.median(one.rate / other.rate for one, other in both)
                spent = statistics.median(other.cpu_us / one.cpu_us for one, other in both if one.cpu_us)
                self.numbers[f"{line}: CPU of {name} / ours"] = spent
        ours = found["ours"]
        if all(one.mean_wait_us for one in ours):
            waits = statistics.median(one.longest_wait_us / one.mean_wait_us for one in ours)
            self.numbers[f"{line}: longest wait / mean"] = waits
        self.say(line)

    def say(self, line: str) -> None:
        """Show a line's figures."""
        print(line)
        for name, each in self.figures.items():
            if name.startswith(line + ": "):
                who, numbers = name.removeprefix(line + ": "), (each["rate"], each["cpu_us"])
                ratio = self.numbers.get(f"{line}: ours / {who}")
                dearer = self.numbers.get(f"{line}: CPU of {who} / ours")
                wait = f"  longest wait {each['longest_wait_us'] / 1000:.1f} ms" if each["longest_wait_us"] else ""
                share = "" if ratio is None else f"  {dearer:8.2f} times our processor time, {1 / ratio:6.2f} our rate"
                print(f"  {who:12s} {numbers[0]:10.0f}/s {numbers[1]:8.1f} us of processor{share}{wait}", flush=True)


@contextlib.contextmanager
def ours(directory: Path, name: str, *words: str) -> Iterator[Peer]:
    """Run our server."""
    command = [sys.executable, "-m", "tests.bench.leases.served", str(directory), name, *words]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        path = directory / f"{name}.sock"
        until = time.monotonic() + 60
        while not path.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise NotBelieved(f"our server {name} does not start")
            time.sleep(0.02)
        yield Peer("ours", "", str(path), process.pid)
    finally:
        process.terminate()
        process.wait(20)


def warmed(measure: Measure, most: int) -> None:
    """Use a Java server until a pair costs it no less than before: its compiler works while it is used."""
    before = measure().cpu_us
    for _ in range(most):
        now = measure().cpu_us
        if now > 0.95 * before:
            return
        before = now


def native(bench: Bench, load: Generator, servers: Mapping[str, Peer]) -> None:
    """One lease a request on 64 connections, and 100 a request on 8."""

    def measure(protocol: str, server: str, **settings: object) -> Measure:
        peer = servers[server]
        return lambda: load.run(protocol, peer.target, peer.pid, **settings)

    lines: dict[str, Measure] = {
        "ours": measure("lease", "ours", connections=64),
        "unsigned": measure("lease", "unsigned", connections=64, signed=False),
    }
    if "redis" in servers:
        lines["redis"] = measure("redis", "redis", connections=64)
    if "etcd" in servers:  # the arrangement of 64 clients on connections that is the best for each
        lines["etcd"] = measure("etcd", "etcd", connections=64)
        lines["etcd_txn"] = measure("etcd_txn", "etcd", connections=8, depth=8)
    if "zookeeper" in servers:
        lines["zookeeper"] = measure("zookeeper", "zookeeper", connections=8, depth=8)
        warmed(lines["zookeeper"], most=2 if bench.length is SHORT else 20)
    bench.line("64 connections", lines)
    hundred: dict[str, object] = {"connections": 8, "batch": 100, "keys": 100_000, "prefix": "b"}
    hundred["run_ms"] = 2 * bench.length.run_ms
    lines = {"ours": measure("lease", "ours", **hundred)}
    if "redis" in servers:
        lines["redis"] = measure("redis", "redis", **hundred)
    bench.line("100 a request", lines)


def python(bench: Bench, workers: Mapping[str, Worker]) -> None:
    """Sets of leases, and one by one, by one Python client."""

    def measure(worker: str, size: int) -> Measure:
        seconds = bench.length.run_ms / 1000
        return lambda: workers[worker].figure(job="sets", size=size, seconds=seconds)

    for size in (10, 100, 1000):
        bench.line(f"sets of {size}", {each: measure(each, size) for each in ("ours", "redis-py") if each in workers})
    bench.line("one by one", {each: measure(each, 1) for each in ("ours", "redis-py", "kazoo") if each in workers})


def contended(bench: Bench, load: Generator, servers: Mapping[str, Peer], workers: Mapping[str, Worker]) -> None:
    """One domain that all want; then a holder and a waiter that are killed."""
    seconds = bench.length.contended_s

    def measure(worker: str, clients: int) -> Measure:
        return lambda: workers[worker].figure(job="contended", clients=clients, seconds=seconds)

    def mutex(clients: int) -> Measure:
        settings = {"connections": clients, "keys": 1, "run_ms": int(seconds * 1000)}
        etcd = servers["etcd"]
        return lambda: load.run("etcd_mutex", etcd.target, etcd.pid, prefix=f"m{time.monotonic_ns()}", **settings)

    for clients in (8, 64):
        lines = {each: measure(each, clients) for each in workers}
        if "etcd" in servers:
            lines["etcd_mutex"] = mutex(clients)
        bench.line(f"{clients} contend", lines, bench.length.contended_rounds)
    line = "killed holder and waiter"
    if bench.wants(line):
        own = servers["ours"]
        waited = waited_behind_the_dead(sys.executable, own.target, own.pid)
        bench.numbers[f"{line}: wedges"] = 0
        print(f"{line}\n  the one behind both had the domain {waited:.1f} s after; their term was 1 s", flush=True)


def kept_together(bench: Bench) -> None:
    """A session lease with few and with many leases under it."""
    if not bench.wants("session"):
        return
    many = 100_000 if bench.length is FULL else 10_000
    directory = bench.directory / "together"
    directory.mkdir()
    found = together(directory, many)
    bench.numbers["session: CPU of a renewal, many leases / 1000"] = found["many"] / found["few"]
    if many == 100_000:
        bench.numbers["session of 100000: round trips of a renewal"] = found["round trips"]
    print(
        f"session\n  a renewal takes {found['few']:.0f} us of the shard with {FEW} leases, {found['many']:.0f} us with "
        f"{many}; dropping those {found['drop']:.0f} us",
        flush=True,
    )


def held(bench: Bench, load: Generator) -> None:
    """The same load with few and with many leases held, and what one of them costs in memory."""
    if not bench.wants("leases held"):
        return
    count = bench.length.held
    words = ("--term-s", "3600", "--domains-max", str(2 * count + 100_000))
    directory = bench.directory
    with ours(directory, "few", *words) as few, ours(directory, "many", *words) as many:
        size_before = _bytes(directory, "many", many.pid)
        long: dict[str, object] = {"term_ms": 3_600_000, "batch": 1000, "fill": 1, "connections": 2, "prefix": "held"}
        load.run("lease", few.target, few.pid, keys=1000, **long)
        filled = load.run("lease", many.target, many.pid, keys=count, **long)
        each = (_bytes(directory, "many", many.pid) - size_before) / count
        if bench.length is not SHORT:
            bench.numbers["leases held: bytes a lease"] = each
        lines: dict[str, Measure] = {
            "ours": lambda: load.run("lease", many.target, many.pid, connections=64),
            "few": lambda: load.run("lease", few.target, few.pid, connections=64),
        }
        bench.line("leases held", lines)
        bench.numbers["leases held: many / 1000"] = bench.numbers["leases held: ours / few"]
        print(
            f"  {count} leases were granted at {filled.rate:.0f}/s; {each:.0f} bytes each, in memory and on tmpfs",
            flush=True,
        )


def _bytes(directory: Path, name: str, pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") + (directory / f"{name}.db").stat().st_size


def measured(bench: Bench, stack: contextlib.ExitStack) -> None:
    """Start everything, and run every line."""
    directory = bench.directory
    servers: dict[str, Peer] = {}
    workers: dict[str, Worker] = {}
    with ThreadPoolExecutor() as pool:  # each waits for a process to be ready
        program = pool.submit(compiled, directory)
        clients = pool.submit(peers.clients_python)
        starting = {
            "ours": pool.submit(stack.enter_context, ours(directory, "ours")),
            "unsigned": pool.submit(stack.enter_context, ours(directory, "unsigned", "--unsigned")),
            "redis": pool.submit(stack.enter_context, peers.redis(directory)),
            "etcd": pool.submit(stack.enter_context, peers.etcd(directory)),
            "zookeeper": pool.submit(stack.enter_context, peers.zookeeper(directory)),
        }
    for name, start in starting.items():
        try:
            servers[name] = start.result()
        except Absent as problem:
            bench.skipped[name] = str(problem)
        else:
            print(f"runs: {name} {servers[name].version}", flush=True)
    load = Generator(program.result(), directory, KEYRING, CLUSTER, warm_ms=100, run_ms=bench.length.run_ms)
    for name, kind, server in (
        ("ours", "ours", "ours"),
        ("redis-py", "redis", "redis"),
        ("kazoo", "kazoo", "zookeeper"),
    ):
        peer = servers.get(server)
        if peer is None:
            bench.skipped[name] = f"{server} is absent"
            continue
        try:
            interpreter = sys.executable if kind == "ours" else clients.result()
            workers[name] = stack.enter_context(Worker(interpreter, kind, peer.target, peer.pid))
        except Absent as problem:
            bench.skipped[name] = str(problem)
    for each in workers.values():
        each.heard()
    if "etcd" in bench.skipped:
        bench.skipped["etcd_mutex"] = bench.skipped["etcd"]
    if bench.length is SHORT:
        bench.skipped["session of 100000"] = "a short run has fewer leases"
        bench.skipped["bytes a lease"] = "a short run has so few leases that the shard itself is most of it"
    for name, why in bench.skipped.items():
        print(f"skipped {name}: {why}", flush=True)
    native(bench, load, servers)
    python(bench, workers)
    contended(bench, load, servers, workers)
    kept_together(bench)
    held(bench, load)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="in under 50 s; fewer leases held")
    parser.add_argument("--rounds", type=int, help="how many rounds of every line")
    parser.add_argument("--only", default="", help="only lines whose name holds this text")
    parser.add_argument("--json", type=Path, help="write all figures to this file too")
    options = parser.parse_args()
    with contextlib.suppress(PermissionError):  # all contenders alike: what else the machine does counts less
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    length = SHORT if options.short else FULL
    if options.rounds:
        length = Length(options.rounds, length.run_ms, length.contended_s, options.rounds, length.held, length.limit_s)
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as place:
        bench = Bench(length, Path(place), options.only)
        try:
            with contextlib.ExitStack() as stack:
                measured(bench, stack)
        except NotBelieved as problem:
            print(f"bench-leases: not believed: {problem}", file=sys.stderr)
            return 2
        except Absent as problem:
            print(f"bench-leases: nothing can be measured: {problem}", file=sys.stderr)
            return 2
    if options.only:
        bench.skipped[""] = f"only {options.only!r} was asked for"
    lines, good = judged(bench.numbers, bench.skipped)
    print(f"\n{bench.verified} sampled witnesses verified, no double holder; load average {os.getloadavg()[0]:.1f}")
    print("\n".join(lines))
    if options.json:
        document = {"schema": "tenure-bench-leases", "version": 1, "numbers": bench.numbers}
        options.json.write_text(json.dumps({**document, "figures": bench.figures, "skipped": bench.skipped}, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
