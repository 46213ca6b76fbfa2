"""Lines through ``tenure publish`` and back through ``read``, before and after packing: to the byte, and audited.

Each command is a process of its own, as a user runs it; what it cost is what the kernel says of that process.
"""

from __future__ import annotations

import filecmp
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from auditor.audit import audit
from auditor.evidence.tree import Tree
from timeagent.units import SECOND

if TYPE_CHECKING:
    from appliance.formats.birth import BagKind
    from tests.support.cluster import Site

ROOT: Final = Path(__file__).parents[2]
LOG: Final = "orders"
SEALED_WITHIN_S: Final = 100
"""Longer than any rack of a site and its seal's delay take."""

_TOLD: Final = """
import atexit, pathlib, sys
def tell(place=sys.argv.pop(1)):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    peak = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
    pathlib.Path(place).write_text(peak)
atexit.register(tell)
from tenure.__main__ import entry
sys.exit(entry())
"""
"""Not getrusage: what that says of a child begins with the memory of the process that started it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one process took: processor time, wall time, and the most memory it ever had."""

    processor_s: float
    wall_s: float
    peak_bytes: int


class RoundTrip:
    """One log of one kind in a site's cluster, and a file of lines that goes there and back."""

    def __init__(self, site: Site, place: Path, kind: BagKind, messages: int) -> None:
        self.site = site
        self.place = place
        self.kind = kind
        self.messages = messages
        self.sent = place / "sent"
        self.costs: dict[str, Cost] = {}
        place.mkdir(exist_ok=True)
        chance = random.Random(messages)
        with self.sent.open("wb") as file:
            for number in range(messages):
                file.write(b"%d " % number + chance.randbytes(number % 61).replace(b"\n", b"\r") + b"\n")

    def run(self) -> None:
        """Go there and back four times. Raises AssertionError where one byte is another."""
        self.say("publish", "publish", LOG, str(self.sent), "--lease", "a", "--kind", str(self.kind))
        self.read_back("read latest", "--level", "latest")
        self.read_back("read settled", "--settle")
        self.seal()
        assert self.data_files()
        packed = json.loads(self.say("pack", "bag", "pack", LOG, "--all", "--json").read_bytes())
        assert (packed["packed"] > 0, packed["damaged"]) == (True, [])
        assert self.data_files() == [], "what was packed is in no directory any more"
        self.read_back("read packed")
        self.read_back("read packed, latest", "--level", "latest")
        begin = time.process_time(), time.monotonic()
        result = audit(Tree(self.site.root))
        self.costs["audit"] = Cost(time.process_time() - begin[0], time.monotonic() - begin[1], 0)
        assert result.summary.messages == self.messages
        assert [finding.code for finding in result.findings] == []

    def read_back(self, name: str, *words: str) -> None:
        """Read everything, and compare it with what was sent."""
        assert filecmp.cmp(self.say(name, "read", LOG, *words), self.sent, shallow=False), (
            f"{name} is not what was sent"
        )

    def seal(self) -> None:
        """Wait until every rack that holds data is sealed."""
        policy = self.site.policy
        until = time.monotonic() + SEALED_WITHIN_S
        time.sleep((policy.rack_ns + policy.seal_delay_ns + policy.radius_ns_max) / SECOND)
        while any(not (rack / "seal").exists() for rack in {path.parents[1] for path in self.data_files()}):
            assert time.monotonic() < until
            self.say("seal", "bag", "seal", LOG)

    def data_files(self) -> list[Path]:
        return [each for each in (self.site.root / "logs" / LOG).glob("20*/*/*/*") if each.suffix in (".msg", ".log")]

    def say(self, name: str, *words: str) -> Path:
        """Run a command; return the file with what it said on standard output."""
        out, peak = self.place / "out", self.place / "peak"
        command = [sys.executable, "-c", _TOLD, str(peak), *words, *self.site.options()]
        begin = time.monotonic()
        with out.open("wb") as stdout, (self.place / "err").open("wb") as stderr:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=ROOT)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0, (self.place / "err").read_text()
        spent = usage.ru_utime + usage.ru_stime
        self.costs[name] = Cost(spent, time.monotonic() - begin, int(peak.read_text()) * 1024)
        return out
