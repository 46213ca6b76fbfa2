"""Python clients as a user writes them: a worker that takes jobs as JSON lines and answers each with one.

``python holders.py ours|redis|kazoo TARGET PID``. Runs under this repository's interpreter for our client, and under
the peers' own for theirs, so it imports what it needs only then. Jobs: ``{"job": "sets", "size": k, "seconds": s}``
takes k leases and gives them back, one client; ``{"job": "contended", "clients": n, "seconds": s}`` has n threads want
one domain; ``{"job": "stay", "name": n}`` takes a domain for good. Who is in a list that only holders are in tells
double holders.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

TERM_S = 10
ROUNDS_VERIFIED = 20


class Client(Protocol):
    """One kind of client. What ``take`` returns is given to ``give``."""

    def take(self, names: list[str]) -> list[Any]: ...
    def give(self, found: list[Any]) -> None: ...
    def contender(self, name: str) -> tuple[Callable[..., Any], Callable[[list[Any]], object]]: ...
    def verified(self) -> int: ...


class Ours:
    """Our client on its Unix socket; a sample of the witnesses is verified when the time is over."""

    def __init__(self, target: str) -> None:
        from appliance.formats.lease import Holder
        from appliance.lease.client import LeaseClient
        from appliance.lease.transport import UnixTransport
        from tests.bench.leases.served import node_time, policy
        from timeagent.clock import SystemClock

        numbers = policy(TERM_S)
        holder = Holder(
            node="node-a",
            process=os.getpid(),
            boot=bytes(16),
            incarnation=os.getpid().to_bytes(8, "big"),
            purpose="bench",
        )
        transport = UnixTransport(Path(target), SystemClock())
        self._time, self._policy = node_time(numbers), numbers
        self._client = LeaseClient(transport, self._time, numbers, holder, random.Random())
        self._names = itertools.count()
        self.sampled: list[tuple[str, Any]] = []

    def take(self, names: list[str]) -> list[Any]:
        from appliance.lease.client import LeaseGranted

        found: list[Any] = self._client.acquire(names)
        assert all(isinstance(each, LeaseGranted) for each in found), found[:3]
        if len(self.sampled) < ROUNDS_VERIFIED:
            self.sampled += [(names[0], found[0].signed), (names[-1], found[-1].signed)]
        return found

    def give(self, found: list[Any]) -> None:
        from appliance.lease.wire import NO_REQUEST, Over, Relinquish

        witnesses = [each.witness for each in found]
        done = self._client.relinquish([Relinquish(NO_REQUEST, each.domain, each.correlation_id) for each in witnesses])
        assert all(isinstance(each, Over) and each.outcome == "relinquished" for each in done), done[:3]

    def contender(self, name: str) -> tuple[Callable[..., Any], Callable[[list[Any]], object]]:
        from appliance.lease.client import LeaseGranted
        from tests.support.transport import acquire_within

        def take(term_ns: int | None = None) -> list[Any]:
            result = acquire_within(self._client, self._time, name, 30 * 10**9, policy=self._policy, term_ns=term_ns)
            assert isinstance(result, LeaseGranted), result
            if len(self.sampled) < ROUNDS_VERIFIED:
                self.sampled.append((name, result.signed))
            return [result]

        return take, self.give

    def verified(self) -> int:
        from tests.bench.leases.served import KEYRING
        from tests.support.values import CLUSTER, witness_refused

        for name, signed in self.sampled:
            assert signed.witness().domain == name
            why = witness_refused(signed, KEYRING, CLUSTER)
            assert why is None, why
        count, self.sampled = len(self.sampled), []
        return count


class Redis:
    """redis-py: a pipeline of SET NX PX and of scripted deletions; its Lock, as it is."""

    def __init__(self, target: str) -> None:
        self._client: Any = importlib.import_module("redis").Redis(unix_socket_path=target)
        script = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"
        self._sha = self._client.script_load(script)

    def take(self, names: list[str]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.set(name, b"token of 16 byte", nx=True, px=30_000)
        assert all(pipe.execute())
        return names

    def give(self, found: list[Any]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for name in found:
            pipe.evalsha(self._sha, 1, name, b"token of 16 byte")
        assert all(pipe.execute())

    def contender(self, name: str) -> tuple[Callable[..., Any], Callable[[list[Any]], object]]:
        lock = self._client.lock(name, timeout=TERM_S)

        def take() -> None:
            assert lock.acquire()

        return take, lambda _: lock.release()

    def verified(self) -> int:
        return 0


class Kazoo:
    """kazoo's Lock, one for each name; contenders share eight clients."""

    def __init__(self, target: str) -> None:
        made: Any = importlib.import_module("kazoo.client").KazooClient
        self._clients = [made(hosts=target, timeout=30) for _ in range(8)]
        for each in self._clients:
            each.start()
        self._next = itertools.cycle(self._clients)

    def take(self, names: list[str]) -> list[Any]:
        locks = [self._clients[0].Lock("/" + name) for name in names]
        assert all(each.acquire() for each in locks)
        return locks

    def give(self, found: list[Any]) -> None:
        for each in found:
            each.release()

    def contender(self, name: str) -> tuple[Callable[..., Any], Callable[[list[Any]], object]]:
        lock = next(self._next).Lock("/" + name)
        return lock.acquire, lambda _: lock.release()

    def verified(self) -> int:
        return 0


def processor_ns(pid: str) -> int:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks)


def sets(client: Client, pid: str, size: int, seconds: float) -> dict[str, Any]:
    names = itertools.cycle([[f"set{size}-{turn}-{n}" for n in range(size)] for turn in range(max(2, 2000 // size))])
    client.give(client.take(next(names)))
    pairs, spent, began = 0, processor_ns(pid) + time.process_time_ns(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        client.give(client.take(next(names)))
        pairs += size
    took, spent = time.perf_counter() - began, processor_ns(pid) + time.process_time_ns() - spent
    return {"rate": pairs / took, "cpu_us": spent / 1000 / pairs}


def contended(client: Client, pid: str, clients: int, seconds: float) -> dict[str, Any]:
    holder: list[int] = []  # a grant while somebody is in here is a double holder
    state = {"last": -1, "changes": 0, "doubles": 0}
    waits: list[float] = []
    problems: list[str] = []
    stop = threading.Event()
    name = f"contended-{os.getpid()}-{time.monotonic_ns()}"
    ready = threading.Barrier(clients + 1)

    def hold(number: int) -> None:
        try:
            take, give = client.contender(name)
            ready.wait(60)
            while not stop.is_set():
                asked = time.perf_counter()
                found = take()
                got = time.perf_counter()
                state["doubles"] += len(holder)
                holder.append(number)
                if not stop.is_set() and state["last"] != number:
                    state["changes"] += 1
                    waits.append(got - asked)
                state["last"] = number
                holder.remove(number)
                give(found)
        except Exception as problem:  # noqa: BLE001 - said by the main thread
            problems.append(repr(problem))
            stop.set()
            ready.abort()

    threads = [threading.Thread(target=hold, args=(number,), daemon=True) for number in range(clients)]
    for each in threads:
        each.start()
    ready.wait(60)
    spent, began = processor_ns(pid), time.perf_counter()
    stop.wait(seconds)
    took, changes, spent = time.perf_counter() - began, state["changes"], processor_ns(pid) - spent
    stop.set()
    for each in threads:
        each.join(30)
    return {
        "rate": changes / took,
        "cpu_us": spent / 1000 / max(1, changes),
        "longest_wait_us": max(waits, default=0) * 1e6,
        "mean_wait_us": sum(waits) / max(1, len(waits)) * 1e6,
        "double_holders": state["doubles"],
        "problems": problems + [f"{each.name} never ended" for each in threads if each.is_alive()],
    }


def stay(client: Client, name: str) -> None:
    """Take a domain and never give it back: the caller kills this process."""
    take, _ = client.contender(name)
    print(json.dumps({"waits": name}), flush=True)
    take(10**9)
    print(json.dumps({"holds": name}), flush=True)
    time.sleep(3600)


def main() -> None:
    kind, target, pid = sys.argv[1:]
    kinds: dict[str, Callable[[str], Client]] = {"ours": Ours, "redis": Redis, "kazoo": Kazoo}
    client = kinds[kind](target)
    print(json.dumps({"ready": kind}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        found: dict[str, Any] = {}
        match job.pop("job"):
            case "sets":
                found = sets(client, pid, **job)
            case "contended":
                found = contended(client, pid, **job)
            case "stay":
                stay(client, **job)
        print(json.dumps({"double_holders": 0, "problems": [], **found, "verified": client.verified()}), flush=True)
    os._exit(0)  # threads of a client library, or one that waits, keep nobody


if __name__ == "__main__":
    main()
