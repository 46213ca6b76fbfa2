"""The demo's course, and the faults in it: found, open accounts, trade, cut a node's power, take over, settle, verify.

The director watches what the tellers say; it decides nothing about money. Afterwards reading and judging are done by
the real commands, as child processes: one ``tenure read`` per node, one ``tenure audit``.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec

from timeagent.clock import MachineClock
from timeagent.errors import Environment, ShardUnavailable
from timeagent.units import MS, SECOND, Span, span_text

from ..bag.logs import BagView, ClosingState, racks_there, view_rack
from ..bag.writing import Committed
from ..cluster import Cluster
from ..formats.closed import open_lock
from ..formats.framing import CHECKSUM_BYTES, Kind
from ..formats.paths import LOCK
from ..formats.stamped import stamp
from .bank import LOG, Books, Opening, account, encode
from .machines import PATIENCE_NS, DemoPlace, Event, Machine
from .rogue import EARLY_DOMAIN

ACCOUNTS: Final = 12
OPENING_AMOUNT: Final = 100
OPENINGS: Final = {f"open-{number:02d}": account(number) for number in range(ACCOUNTS)}
REBOOT_NS: Final = SECOND
"""How long the killed machine is away before its daemon starts again."""

READ_SECONDS: Final = 60
AUDIT_SECONDS: Final = 120
_SEAL_POLL_NS: Final = 100 * MS


@dataclass(slots=True)
class Course:
    acknowledged: list[str] = field(default_factory=list)
    victim: str = ""
    held_by_victim: list[str] = field(default_factory=list)
    takeover_ns: dict[str, Span] = field(default_factory=dict)
    """For each domain that the victim held: how long after the power cut another node's transfer was acknowledged."""
    time_by_agent: bool = False


@dataclass
class Director:
    place: DemoPlace
    clock: MachineClock
    randomness: random.Random
    narrate: Callable[[str], None]
    agents: bool = False
    """Whether each machine has a time agent."""
    course: Course = field(default_factory=Course)
    _events: SimpleQueue[tuple[str, Event]] = field(default_factory=SimpleQueue)
    _killed_ns: int = 0

    def __post_init__(self) -> None:
        machines, chance = self.place.machines, self.randomness
        self.machines = [Machine(each, chance.getrandbits(31), self._events) for each in machines]

    def open_cluster(self) -> Cluster:
        return Cluster.open(self.place.root, node_dir=self.place.machines[0].directory, allow_root=True)

    def begin(self, fault: str | None) -> None:
        if fault == "early-grant":
            with self.open_cluster() as cluster:
                self.machines[cluster.map.shard_of(EARLY_DOMAIN)].rogue_daemon = fault
        self._start_agents(self.machines)
        for machine in self.machines:
            machine.start_daemon()
        for _ in self.machines:
            self.await_event("schema", "tenure.node", "the daemons to start")
        with self.open_cluster() as cluster, cluster.session("opening accounts") as session:
            by_agent = self.course.time_by_agent = cluster.time_by_agent
            maker = "comes from the node's agent" if by_agent else "is made in each process: no agent runs"
            self.narrate(f"Time {maker}.")
            for name, opened in OPENINGS.items():
                entry = Opening(id=name, account=opened, amount=OPENING_AMOUNT)
                with session.acquire(opened, record_only=True) as leases:
                    outcome = session.publish(LOG, [encode(entry)], under=leases)
                if not isinstance(outcome, Committed):
                    raise Environment("demo-failed", f"opening {opened} ended as {outcome}", hint="run it again")
        self.narrate(f"{ACCOUNTS} accounts are open with {OPENING_AMOUNT} each; {ACCOUNTS * OPENING_AMOUNT} in all.")
        for machine in self.machines:
            machine.start_teller(ACCOUNTS)
        self.narrate(f"{len(self.machines)} tellers, one per node, move money under leases of both accounts.")

    def _start_agents(self, machines: Sequence[Machine]) -> None:
        """Start their time agents, if this demo has any; wait until all have a time."""
        if not self.agents:
            return
        for machine in machines:
            machine.start_agent()
        for _ in machines:
            self.await_event("schema", "tenure.time.run", "the time agents to start")

    def trade(self, span: Span) -> None:
        self._follow(lambda _: False, span)

    def cut_power(self) -> None:
        """Kill a random node while its teller holds leases."""
        victim = self.randomness.choice(self.machines)
        deadline = self.clock.boot_ns() + PATIENCE_NS
        with self.open_cluster() as cluster:
            while True:
                victim.send("teller", signal.SIGSTOP)
                held = self._held_by(cluster, victim.running["teller"].pid)
                if held:
                    break
                if self.clock.boot_ns() > deadline:
                    what = f"{victim.name} has held no lease for {span_text(PATIENCE_NS)}"
                    hint = f"run it while less else does, or look at stderr.log under {self.place.directory}"
                    raise Environment("demo-stuck", what, hint=hint)
                victim.send("teller", signal.SIGCONT)
                self.clock.sleep(self.randomness.randrange(20) * MS)
                self._drain()
        victim.cut_power()
        self._killed_ns = self.clock.boot_ns()
        self.course.victim, self.course.held_by_victim = victim.name, held
        self.narrate(f"{victim.name} loses its power in mid-transaction; it held {' and '.join(held)}.")
        policy = self.place.policy
        longest = span_text(max(policy.takeover_ns(), policy.restart_ns()))
        self.narrate("Its own shard is gone too, with all it knew. Nobody repairs anything:")
        self.narrate(f"the others wait until its last rights are surely over and its bags closed, about {longest}.")

    @staticmethod
    def _held_by(cluster: Cluster, teller: int) -> list[str]:
        held = []
        for shard in cluster.map.shards:
            with contextlib.suppress(ShardUnavailable):
                _, leases = cluster.inspect(shard)
                held += [each.domain for each in leases if each.phase == "held" and each.holder.process == teller]
        return sorted(held)

    def take_over(self) -> None:
        """Bring the node's daemon back; wait until others have written under everything that the dead teller held."""
        victim = next(machine for machine in self.machines if machine.name == self.course.victim)
        self.trade(REBOOT_NS)
        self._start_agents([victim])
        victim.start_daemon()
        # Before its teller: a process that finds no shard of its node running runs it itself, and the daemon could not.
        self.await_event("schema", "tenure.node", f"{victim.name}'s daemon to start")
        self.narrate(f"{victim.name} is back, as its service supervisor would bring it: with an empty lease shard.")
        course = self.course
        if not self._follow(lambda _: len(course.takeover_ns) == len(course.held_by_victim)):
            missing = sorted(set(course.held_by_victim) - set(course.takeover_ns))
            what = f"nobody took over {' and '.join(missing)}"
            raise Environment("demo-stuck", what, hint="run it again, and keep the directory")
        for domain, span in sorted(self.course.takeover_ns.items()):
            self.narrate(f"{domain} was taken over {span_text(span // MS * MS)} after the power cut.")
        victim.start_teller(ACCOUNTS)

    def finish(self) -> None:
        """Let the tellers finish, then make everything final. Waits until one rack at least is sealed."""
        for machine in self.machines:
            machine.finish("teller")
        self._drain()
        with self.open_cluster() as cluster:
            log = cluster.logs.opened(LOG)
            log.horizon.settle(cluster.time.now().latest)
            while log.horizon.authority.sealer.newest_sealed() is None:
                self.clock.sleep(_SEAL_POLL_NS)
        self.narrate(f"The tellers have gone home; {len(self.course.acknowledged)} transfers were acknowledged.")

    def close(self) -> None:
        for machine in self.machines:
            machine.finish("daemon")
        for machine in self.machines:
            for reader in machine.readers:
                reader.join()
        self._drain()

    def discard(self) -> None:
        """End whatever still runs, however the demo ended, and forget the tmpfs directories."""
        for machine in self.machines:
            machine.cut_power()
        self.place.forget()

    def await_event(self, key: str, value: str, what: str) -> None:
        """Wait until somebody says what is wanted. Raises Environment, naming ``what``, when nobody does."""
        if not self._follow(lambda event: event.get(key) == value):
            hint = f"look at stderr.log under {self.place.directory}"
            raise Environment("demo-stuck", f"waited in vain for {what}", hint=hint)

    def _follow(self, done: Callable[[Event], bool], span: Span = PATIENCE_NS) -> bool:
        """Take note of what everybody says until it is done, for so long at most; return whether it was."""
        deadline = self.clock.boot_ns() + span
        event: Event = {}
        while not done(event):
            left = deadline - self.clock.boot_ns()
            if left <= 0:
                return False
            event = self._next(left) or {}
        return True

    def _drain(self) -> None:
        while self._next() is not None:
            pass

    def _next(self, wait_ns: Span = 0) -> Event | None:
        """Take note of the next thing that somebody said, and return it; None: there is nothing new in that time."""
        try:
            name, event = self._events.get(timeout=wait_ns / SECOND)
        except Empty:
            return None
        course = self.course
        if event.get("event") == "acknowledged":
            course.acknowledged.append(event["id"])
            if self._killed_ns and name != course.victim and event["boot_ns"] > self._killed_ns:
                for domain in (event["source"], event["target"]):
                    if domain in course.held_by_victim and domain not in course.takeover_ns:
                        course.takeover_ns[domain] = event["boot_ns"] - self._killed_ns
        return event


# ---- planted faults: each leaves the evidence that the real accident would leave, and the audit must name it ----


def _late_writer(director: Director) -> None:
    machine = director.machines[0]
    machine.start_rogue("late-writer")
    director.await_event("event", "pausing", "the late writer to be paused")
    policy = director.place.policy
    director.narrate("A machine is paused in the middle of a write, until its lease and its bag are long over.")
    director.trade(policy.takeover_ns() + policy.span_ns + policy.grace_ns)
    machine.send("rogue", signal.SIGCONT)
    machine.finish("rogue")
    director.narrate("It goes on, and its message appears too late: the bag's list was linked without it.")


def _forged_witness(director: Director) -> None:
    machine = director.machines[0]
    machine.start_rogue("forged-witness")
    machine.finish("rogue")
    director.narrate("An application writes a million under a witness that it made up.")


def _early_grant(director: Director) -> None:
    with (
        director.open_cluster() as cluster,
        cluster.session("rightful holder") as first,
        cluster.session("favoured holder") as second,
        first.acquire(EARLY_DOMAIN, record_only=True),
        second.acquire(EARLY_DOMAIN, record_only=True),
    ):
        director.narrate(f"A shard gives {EARLY_DOMAIN} away while another holds it.")


def _sealed_bag(cluster: Cluster) -> BagView:
    grid = cluster.logs.opened(LOG).grid
    for rack in reversed(list(racks_there(cluster.context.storage, grid))):
        view = view_rack(cluster.context, grid, rack)
        if view.state is ClosingState.SEALED:
            for bag in view.bags:
                if bag.files:
                    return bag
    raise Environment("demo-failed", "no sealed rack holds a message", hint="run it with more --seconds")


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
    path = f"{bag.bag.path}/{bag.files[0]}"
    data = bytearray(_read(cluster, path))
    position = data.rindex(b'"amount":') + len(b'"amount":')
    data[position] = ord("9") if data[position] != ord("9") else ord("8")
    data[-CHECKSUM_BYTES:] = hashlib.sha256(data[:-CHECKSUM_BYTES]).digest()[:CHECKSUM_BYTES]
    _replace(cluster, path, bytes(data))
    return f"Somebody changes an amount in {bag.files[0]} and mends its checksum."


def _lose(cluster: Cluster, bag: BagView) -> str:
    cluster.context.storage.unlink(f"{bag.bag.path}/{bag.files[0]}")
    return f"Somebody deletes {bag.files[0]}."


def _overwrite(cluster: Cluster, bag: BagView) -> str:
    """Write a lock file that lists one file less, with a true stamp of a node of this cluster."""
    path = f"{bag.bag.path}/{LOCK}"
    lock, _ = open_lock(_read(cluster, path), bag.bag.path)
    shorter = msgspec.structs.replace(lock, entries=lock.entries[1:])
    _replace(cluster, path, stamp(Kind.LOCK, shorter, cluster.time))
    return f"Somebody writes another lock file over that of {bag.bag.path}."


def _on_the_tree(change: Callable[[Cluster, BagView], str]) -> Callable[[Director], None]:
    """Return what does this to a sealed bag when the cluster has stopped, and says what was done."""

    def plant(director: Director) -> None:
        with director.open_cluster() as cluster:
            director.narrate(change(cluster, _sealed_bag(cluster)))

    return plant


FAULTS: Final[Mapping[str, tuple[bool, Callable[[Director], None]]]] = {
    "late-writer": (True, _late_writer),
    "forged-witness": (True, _forged_witness),
    "altered-file": (False, _on_the_tree(_alter)),
    "lost-file": (False, _on_the_tree(_lose)),
    "early-grant": (True, _early_grant),
    "overwritten-lock": (False, _on_the_tree(_overwrite)),
}
"""By name: whether the cluster still runs when a fault is planted, and what plants it."""


def plant(fault: str | None, director: Director, *, runs: bool) -> None:
    """Plant a fault, if this is its time: while the cluster ``runs``, or after that."""
    if fault is not None and FAULTS[fault][0] is runs:
        FAULTS[fault][1](director)


# ---- afterwards: do all nodes read the same, is the money there, is every acknowledged transfer in the record ----


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    transfers_acknowledged: int
    transfers_read: int
    lost: list[str]
    """Ids that were acknowledged and are not in the record."""
    doubled: int
    sum_conserved: bool
    lowest_balance: int
    nodes_agree: bool

    @property
    def good(self) -> bool:
        return (
            not self.lost and not self.doubled and self.sum_conserved and self.lowest_balance >= 0 and self.nodes_agree
        )


def _tenure(words: list[str], seconds: int) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-m", "tenure", *words]
    try:
        return subprocess.run(command, capture_output=True, timeout=seconds, check=False)  # noqa: S603 - our own command
    except subprocess.TimeoutExpired:
        what = f"tenure {words[0]} has not ended within {seconds} s"
        raise Environment("demo-stuck", what, hint="run the demo again, while less else runs") from None


def read_as(place: DemoPlace, node: int) -> list[dict[str, Any]]:
    settings = place.machines[node]
    words = ["read", LOG, "--json", "--allow-root", "--root", str(settings.root), "--node-dir", str(settings.directory)]
    done = _tenure(words, READ_SECONDS)
    if done.returncode:
        raise Environment("demo-failed", f"{settings.node} cannot read: {done.stderr.decode(errors='replace').strip()}")
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def verify(place: DemoPlace, acknowledged: set[str]) -> DemoVerdict:
    """Read as every node, and compare with what was acknowledged."""
    readings = [read_as(place, node) for node in range(len(place.machines))]
    digests = {hashlib.sha256(msgspec.json.encode(reading)).digest() for reading in readings}
    books = Books().apply_all(message["payload"].encode() for message in readings[0])
    return DemoVerdict(
        transfers_acknowledged=len(acknowledged),
        transfers_read=len(books.seen) - len(OPENINGS),
        lost=sorted((acknowledged | OPENINGS.keys()) - books.seen.keys()),
        doubled=books.doubled,
        sum_conserved=books.conserved,
        lowest_balance=books.lowest,
        nodes_agree=len(digests) == 1,
    )


def audit(place: DemoPlace) -> tuple[int, dict[str, Any]]:
    done = _tenure(["audit", str(place.root), "--json"], AUDIT_SECONDS)
    try:
        return done.returncode, msgspec.json.decode(done.stdout)
    except msgspec.DecodeError:
        what = f"the audit failed: {done.stderr.decode(errors='replace').strip()}"
        raise Environment("demo-failed", what, hint="run it by hand") from None
