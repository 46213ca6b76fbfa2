"""The load: the demo's bank, one teller on each node; what they were told is written down here, outside the cluster."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from appliance.demo.bank import LOG, Opening, account, encode
from tests.nfs_lab.channel import MachineError
from tests.nfs_lab.lab import MOUNT
from tests.nfs_lab.site import USER, Site, await_true

if TYPE_CHECKING:
    from tests.nfs_lab.machine import Machine

ACCOUNTS: Final = 12
AMOUNT: Final = 100


@dataclass(slots=True)
class Acknowledged:
    """One message that somebody outside was told is in the record."""

    id: str
    node: str
    heard_at: float
    """time.monotonic() of the host."""
    waited_ms: int = 0
    domains: frozenset[str] = frozenset()
    after_expiry: list[str] = field(default_factory=list)
    """Those domains whose holder before had not come back."""


class Tellers:
    """One a node; those that end unasked are started again."""

    def __init__(self, site: Site, seed: int = 1) -> None:
        """Start nothing yet."""
        self.site = site
        self.acknowledged: list[Acknowledged] = []
        self.events: Counter[str] = Counter()
        self.interruptions: Counter[str] = Counter()
        self._seed = seed
        self._running: dict[str, int] = {}
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        self._held: dict[str, tuple[float, set[str]]] = {}

    def open_accounts(self) -> None:
        """Bring all money into being, by one command."""
        first = self.site.lab.nodes[0]
        openings = [Opening(id=f"open-{n:02d}", account=account(n), amount=AMOUNT) for n in range(ACCOUNTS)]
        first.write("/tmp/openings", "\n".join(encode(opening).decode() for opening in openings) + "\n")
        leases = " ".join(f"--lease {account(n)}" for n in range(ACCOUNTS))
        self.site.command(first, f"publish {LOG} /tmp/openings {leases} --json --wait 2m")
        with self._lock:
            self.acknowledged += [Acknowledged(opening.id, first.name, time.monotonic()) for opening in openings]

    def start(self, *nodes: Machine) -> None:
        """Start the tellers of these nodes, those that do not run."""
        for node in nodes:
            self._wanted.add(node.name)
            if node.name in self._running and not node.ended(self._running[node.name]):
                continue
            self._seed += 1
            words = f"--root {MOUNT} --accounts {ACCOUNTS} --seed {self._seed}"
            text = f"HOME=/var/lib/tenure exec tenure --program /opt/tenure/lab/teller.py {words}"
            listener = lambda line, name=node.name: self._heard(name, line)  # noqa: E731 - one per node
            self._running[node.name] = node.follow(text, listener, USER)

    def keep_going(self) -> None:
        """Start those again that have ended unasked."""
        for node in self.site.lab.nodes:
            if node.name in self._wanted and node.on and node.ended(self._running[node.name]):
                self.events["ended unasked"] += 1
                self.start(node)

    def stop(self) -> None:
        """Let all finish their customer."""
        for node in self.site.lab.nodes:
            self._wanted.discard(node.name)
            if node.name in self._running and not node.ended(self._running[node.name]):
                self.stop_one(node)

    def stop_one(self, node: Machine) -> None:
        """Let the teller of one node finish its customer."""
        self._wanted.discard(node.name)
        number = self._running.pop(node.name)
        node.tell_to_stop(number)
        await_true(lambda: node.ended(number), f"the teller of {node.name} to finish")

    def _heard(self, node: str, line: str) -> None:
        now = time.monotonic()
        try:
            said: dict[str, Any] = json.loads(line)
        except ValueError:
            return  # torn by a power cut
        with self._lock:
            self.events[said["event"]] += 1
            if said["event"] == "acknowledged":
                domains = frozenset((said["source"], said["target"]))
                entry = Acknowledged(said["id"], node, now, said["waited_ms"], domains, said["after_expiry"])
                self.acknowledged.append(entry)
            elif said["event"] == "holding":
                self._held[node] = now, set(said["domains"])
            elif said["event"] == "interrupted":
                self.interruptions[said["code"]] += 1
            elif said["event"] == "not-acknowledged":
                self.interruptions[said["outcome"]] += 1

    def heard(self) -> list[Acknowledged]:
        """All that was acknowledged by now."""
        with self._lock:
            return list(self.acknowledged)

    def await_progress(self, *nodes: Machine, count: int = 3, patience_s: float = 900) -> float:
        """Wait until each of these nodes has acknowledged so many more; return how long. Raises MachineError."""
        begun = time.monotonic()
        names = {node.name for node in nodes}

        def progressed() -> bool:
            self.keep_going()
            fresh = Counter(entry.node for entry in self.heard() if entry.heard_at > begun)
            return all(fresh[name] >= count for name in names)

        try:
            return await_true(
                progressed, f"{' and '.join(sorted(names))} to acknowledge {count} messages each", patience_s
            )
        except MachineError as problem:
            raise MachineError(f"{problem}; {dict(self.events)}, {dict(self.interruptions)}") from None

    def await_holding(self, node: Machine) -> set[str]:
        """Wait until a node's teller has leases, and is not about to give them back; return their domains."""
        begun = time.monotonic()

        def holds() -> bool:
            self.keep_going()
            return node.name in self._held and self._held[node.name][0] > begun

        await_true(holds, f"{node.name} to hold leases", every_s=0.02)
        return self._held[node.name][1]

    def await_takeover(self, domains: set[str], since: float, patience_s: float = 900) -> float:
        """Wait until a message is acknowledged under one of the domains that the dead held; return how long it took.

        Whether it says that its leases followed an expired one does not matter: another customer, who found no money on
        the account, may have had them in between.
        """
        found: list[Acknowledged] = []

        def taken() -> bool:
            self.keep_going()
            found[:] = [entry for entry in self.heard() if entry.heard_at > since and domains & entry.domains]
            return bool(found)

        await_true(taken, f"somebody to take over {', '.join(sorted(domains))}", patience_s)
        return found[0].heard_at - since
