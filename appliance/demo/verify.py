"""After the demo: do all nodes read the same, is the money there, is every acknowledged transfer in the record.

Reading and judging are done by the real commands, as child processes: one ``tenure read`` per node, one
``tenure audit``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from appliance.demo.bank import LOG, Books
from appliance.demo.director import Course
from timeagent.errors import Environment

from .machines import DemoPlace

READ_SECONDS = 60
AUDIT_SECONDS = 120


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    """What was found."""

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
    command = [sys.executable, "-m", "tenure", *words]
    return subprocess.run(command, capture_output=True, timeout=seconds, check=False)  # noqa: S603 - our own command


def read_as(place: DemoPlace, node: int) -> list[dict[str, Any]]:
    """Return the settled messages as one node reads them, in order."""
    settings = place.machines[node]
    words = ["read", LOG, "--json", "--allow-root", "--root", str(settings.root), "--node-dir", str(settings.directory)]
    done = _tenure(words, READ_SECONDS)
    if done.returncode:
        raise Environment("demo-failed", f"{settings.node} cannot read: {done.stderr.decode(errors='replace').strip()}")
    return [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def verify(place: DemoPlace, course: Course, acknowledged: set[str]) -> DemoVerdict:
    """Read as every node, and compare with what was acknowledged."""
    readings = [read_as(place, node) for node in range(len(place.machines))]
    digests = {hashlib.sha256(msgspec.json.encode(reading)).digest() for reading in readings}
    books = Books().apply_all(message["payload"].encode() for message in readings[0])
    transfers = len(books.seen) - len(course.openings)
    missing = sorted((acknowledged | set(course.openings)) - set(books.seen))
    return DemoVerdict(
        transfers_acknowledged=len(acknowledged),
        transfers_read=transfers,
        lost=missing,
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
        raise Environment(
            "demo-failed", f"the audit failed: {done.stderr.decode(errors='replace').strip()}", hint="run it by hand"
        ) from None
