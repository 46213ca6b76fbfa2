"""Time from the node's agent: what a look costs, what the agent costs, and how old its page gets on a busy machine.

Run it as a script: ``python tests/bench/bench_time.py [--rounds N] [--seconds S] [--json]``. Needs nothing but
/dev/shm; for the agent's age under load with a real-time priority it needs CAP_SYS_NICE, and says when it has none.

A look is compared with ``time.clock_gettime_ns`` in the same run: both take turns, in pieces short enough that most are
not interrupted, and the figure is the median over the rounds of each round's ratio. Ages are read from the page, twenty
times a period, while every processor is kept busy.

What the agent takes is also given in this machine's own terms, measured in the same run: how many Ed25519 signatures
made one after the other take as long as one of its turns, and what a process that only sleeps takes for waking.
Its turns run with the caches of whoever ran before, so on a busy machine one takes many times what it takes in a loop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from timeit import Timer
from typing import Any

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from timeagent.agent.bounded_clock import PERIOD_NS  # noqa: E402 - a script finds the repository first
from timeagent.agent.page import AgentTime  # noqa: E402
from timeagent.clock import SystemClock  # noqa: E402
from timeagent.keys import Signer  # noqa: E402
from timeagent.units import DAY, MS, SECOND  # noqa: E402

SEED = b"the time key of this benchmark.."
LOOKS_NS = 100_000
"""How long one piece takes: far below the slice of a processor's time that a process is given."""
PIECES = 40
SIGNATURES = 20
TURNS_A_SECOND = SECOND // PERIOD_NS

# An agent that asks one source and publishes: what `tenure time run` runs, without a cluster around it.
AGENT = """
import sys
from pathlib import Path
from timeagent.agent.agent import Agent, Daemon, QueuedEvidence
from timeagent.clock import SystemClock, boot_id
from timeagent.agent.discipline import Weight
from timeagent.agent.evidence import EvidenceFiles
from timeagent.agent.discipline import OWN_GROUP, Listed, Rules
from timeagent.units import TimeInterval
from timeagent.keys import Signer
from timeagent.sources.nonce import bind_unix, nonce_door
from timeagent.notify import Notifier
from timeagent.sources.port import Sample
from timeagent.agent.page import PAGE_NAME, PageWriter

class Steady:
    name = "steady"
    def sample(self):
        return Sample(TimeInterval(-5_000_000, 5_000_000), clock.boot_ns())

directory, clock = Path(sys.argv[1]), SystemClock()
listed = [Listed(Steady(), group=OWN_GROUP)]
evidence = QueuedEvidence(EvidenceFiles(directory / "evidence"))
agent = Agent(clock, Signer(sys.argv[2].encode()), listed, PageWriter(directory / PAGE_NAME), evidence,
              Rules(250_000_000))
doors = [nonce_door(bind_unix(directory), agent, local_door=True)]
Daemon(agent, clock, listed, doors, evidence, Notifier({})).run(lambda: False)
"""
BUSY = "x = 0\nwhile True:\n    x += 1\n"


class Agent:
    """The agent as a process, with a scheduling of its own."""

    def __init__(self, directory: Path, *prefix: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", AGENT, str(directory), SEED.decode()], env=environment
        )
        key = Signer(SEED).id
        for _ in range(2000):
            time.sleep(0.01)
            try:
                self.time = AgentTime(directory, SystemClock(), key_id=key, radius_ns_max=DAY)
                self.time.now_and_token()
            except Exception:  # noqa: BLE001 - it does not run yet, whatever it is
                continue
            return
        raise SystemExit("the agent did not start")

    def cpu_ns(self) -> int:
        """Processor time that it has taken so far."""
        fields = Path(f"/proc/{self.process.pid}/schedstat").read_text(encoding="ascii").split()
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        each = [int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks]
        return sum(each) or int(fields[0])

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def per_call_ns(call: Timer, calls: int) -> float:
    """The median over pieces of what one call takes."""
    return statistics.median(call.timeit(calls) / calls for _ in range(PIECES)) * SECOND


def looking(agent: Agent, rounds: int) -> dict[str, float]:
    """Ratios of a look, and of its parts, to one bare reading of a clock."""
    bare = Timer("read(clock)", globals={"read": time.clock_gettime_ns, "clock": time.CLOCK_BOOTTIME})
    work = {
        "look": Timer("call()", globals={"call": agent.time.now_and_token}),
        "now": Timer("call()", globals={"call": agent.time.now}),
        "token": Timer("call()", globals={"call": agent.time.token}),
    }
    ratios: dict[str, list[float]] = {name: [] for name in work}
    bare_ns: list[float] = []
    for _ in range(rounds):
        bare_ns.append(per_call_ns(bare, LOOKS_NS // 50))
        for name, call in work.items():
            ratios[name].append(per_call_ns(call, LOOKS_NS // 1000) / bare_ns[-1])
    return {name: statistics.median(each) for name, each in ratios.items()} | {"bare_ns": statistics.median(bare_ns)}


def share(agent: Agent, seconds: float) -> float:
    """Percent of one processor that the agent takes."""
    before, began = agent.cpu_ns(), time.perf_counter_ns()
    time.sleep(seconds)
    return (agent.cpu_ns() - before) / (time.perf_counter_ns() - began) * 100


WAKER = "import time\nprint(flush=True)\nwhile True:\n    time.sleep(0.05)\n"


def waking(seconds: float) -> float:
    """Percent of one processor that a process takes which does nothing but wake as often as the agent turns."""
    process = subprocess.Popen([sys.executable, "-c", WAKER], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # it runs
        path = Path(f"/proc/{process.pid}/schedstat")
        before, began = int(path.read_text(encoding="ascii").split()[0]), time.perf_counter_ns()
        time.sleep(seconds)
        after = int(path.read_text(encoding="ascii").split()[0])
        return (after - before) / (time.perf_counter_ns() - began) * 100
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def signature_ns() -> float:
    """What one signature takes here, of processor time, made in a loop."""
    signer, took = Signer(SEED), []
    for _ in range(PIECES):
        began = time.thread_time_ns()
        for _ in range(SIGNATURES):
            signer.sign("signed time", SEED)
        took.append((time.thread_time_ns() - began) / SIGNATURES)
    return statistics.median(took)


def ages(agent: Agent, seconds: float) -> list[int]:
    """How old the page was at each of many looks, in nanoseconds."""
    found = []
    until = time.perf_counter_ns() + int(seconds * SECOND)
    while time.perf_counter_ns() < until:
        time.sleep(0.0025)
        as_of = agent.time._reader.page().as_of_boot_ns  # refused or not: how old
        found.append(time.clock_gettime_ns(time.CLOCK_BOOTTIME) - as_of)
    return found


def busy_ages(directory: Path, seconds: float, *prefix: str) -> dict[str, float]:
    """Ages while every processor is kept busy twice over by others."""
    agent = Agent(directory, *prefix)
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        found = sorted(ages(agent, seconds))
    finally:
        agent.end()
        for each in busy:
            each.kill()
            each.wait()
    good = sum(age <= 250 * MS for age in found)
    return {
        "looks": len(found),
        "within_250ms_percent": good / len(found) * 100,
        "p50_ms": found[len(found) // 2] / MS,
        "p999_ms": found[len(found) * 999 // 1000] / MS,
        "max_ms": found[-1] / MS,
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement of the agent")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        agent = Agent(Path(directory))
        try:
            results["ratio_to_clock_gettime_ns"] = looking(agent, options.rounds)
            percent = share(agent, options.seconds)
            results["signature_ns"] = signature_ns()
            results["cpu_percent_of_a_core"] = percent
            results["cpu_percent_of_waking_alone"] = waking(options.seconds)
            results["turn_in_signatures"] = percent / 100 * SECOND / TURNS_A_SECOND / results["signature_ns"]
        finally:
            agent.end()
        schedules = {"nice 0": (), "nice -10": ("nice", "-n", "-10"), "fifo 1": ("chrt", "-f", "1")}
        results["page_age_on_busy_processors"] = {}
        for name, prefix in schedules.items():
            if prefix and subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode:
                results["page_age_on_busy_processors"][name] = "not permitted here"
                continue
            aged = busy_ages(Path(directory), options.seconds, *prefix)
            results["page_age_on_busy_processors"][name] = aged
    if options.json:
        print(json.dumps(results))
        return
    ratios = results["ratio_to_clock_gettime_ns"]
    print(f"time.clock_gettime_ns            {ratios['bare_ns']:8.0f} ns")
    for name, what in (("look", "token and interval"), ("now", "interval"), ("token", "token")):
        print(f"{what:24} {ratios[name]:15.1f} x")
    print(f"an Ed25519 signature, in a loop  {results['signature_ns'] / 1000:8.1f} us")
    print(
        f"the agent                        {results['cpu_percent_of_a_core']:8.2f} % of a processor: "
        f"a turn takes as long as {results['turn_in_signatures']:.1f} signatures"
    )
    print(f"a process that only wakes so often{results['cpu_percent_of_waking_alone']:7.2f} % of a processor")
    for name, aged in results["page_age_on_busy_processors"].items():
        if isinstance(aged, str):
            print(f"page age, {name:9} {aged}")
        else:
            print(
                f"page age, {name:9} p50 {aged['p50_ms']:6.1f} ms, p99.9 {aged['p999_ms']:6.1f} ms, "
                f"max {aged['max_ms']:6.1f} ms; {aged['within_250ms_percent']:.2f} % within 250 ms"
            )


if __name__ == "__main__":
    main()
