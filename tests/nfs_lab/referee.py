"""Who judges: what every node reads, held against what was acknowledged outside, and the audit of a copy.

Three things that the cluster itself is not asked about: the list of what was acknowledged is the host's, the copy is
made of the server's disk, and the audit runs here. Each verdict is followed by plants: it could have been another one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.demo.bank import LOG, Books
from tests.nfs_lab.lab import each

if TYPE_CHECKING:
    from tests.nfs_lab.machine import Machine
    from tests.nfs_lab.site import Site
    from tests.nfs_lab.tellers import Tellers

LOCK: Final = "lock"
SEAL: Final = "seal"
PACK: Final = "pack"


@dataclass(slots=True)
class Judgement:
    """What was found at one instant."""

    acknowledged: int = 0
    read: int = 0
    objections: list[str] = field(default_factory=list)
    """What contradicts a promise."""
    findings: Counter[str] = field(default_factory=Counter)
    """Of the audit: how many of each code were not there before."""
    summary: dict[str, int] = field(default_factory=dict)


def ids(messages: list[dict[str, Any]]) -> list[str]:
    """Return the ids of the bank's messages, in their order."""
    return [json.loads(message["payload"])["id"] for message in messages]


def compare(acknowledged: set[str], readings: dict[str, list[dict[str, Any]]], before: list[str]) -> list[str]:
    """Return what is wrong. ``before``: what was settled earlier, in order; later readings only go on from there."""
    objections = []
    orders = {node: ids(messages) for node, messages in readings.items()}
    longest = max(orders.values(), key=len)
    for node, order in {**orders, "an earlier reading": before}.items():
        if longest[: len(order)] != order:
            where = next(n for n, pair in enumerate(zip(order, longest, strict=False)) if pair[0] != pair[1])
            objections.append(f"{node} and another do not read the same from message {where} on")
    for node, order in orders.items():
        if lost := sorted(acknowledged - set(order)):
            objections.append(f"{node} does not read {len(lost)} that were acknowledged: {', '.join(lost[:3])}")
    books = Books().apply_all(m["payload"].encode() for m in max(readings.values(), key=len))
    if books.doubled:
        objections.append(f"{books.doubled} messages are there twice")
    if not books.conserved:
        objections.append(f"money is not conserved: {sum(books.balances.values())} of {books.opened}")
    if books.lowest < 0:
        objections.append(f"an account fell to {books.lowest}: two holders spent the same money")
    return objections


def audit(copy: Path) -> dict[str, Any]:
    """Judge a copy by the real command, here."""
    words = [sys.executable, "-m", "tenure", "audit", str(copy), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1800, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"the audit ended with {done.returncode}: {done.stderr}") from None
    return found


def closed_files(copy: Path) -> list[Path]:
    """The files of a copy that hold messages for ever: packs, and data files of bags that are closed."""
    packs = sorted(seal.with_name(PACK) for seal in copy.rglob(SEAL) if seal.with_name(PACK).exists())
    return packs + sorted(file for lock in copy.rglob(LOCK) for file in lock.parent.glob("*.msg"))


def known_as(finding: dict[str, Any]) -> str:
    """Return what a finding is recognised by in a later audit of the same cluster.

    A message's file moves into a pack, and the place and id of what was found about it with it; the lease that it was
    written under does not change.
    """
    _, under, lease = finding["subject"].partition(" under ")
    return f"{finding['code']} {lease}" if under else str(finding["id"])


class Referee:
    """Judges one cluster again and again; knows what it found before."""

    def __init__(self, site: Site, tellers: Tellers, keep: Path) -> None:
        """Keep copies in a directory of the host."""
        self._site = site
        self._tellers = tellers
        self._keep = keep
        self._known: set[str] = set()
        self._settled: list[str] = []
        self._readings: dict[str, list[dict[str, Any]]] = {}
        self._cursors: dict[str, str] = {}

    def judge(
        self, may: frozenset[str] = frozenset(), must: frozenset[str] = frozenset(), *, anew: bool = False
    ) -> Judgement:
        """Read as every node, copy, audit. ``may``: violations that were injected; ``must``: what has to be found."""
        acknowledged = {entry.id for entry in self._tellers.heard()}
        readings = self.read(anew=anew)
        found = Judgement(len(acknowledged), max(len(messages) for messages in readings.values()))
        found.objections = compare(acknowledged, readings, self._settled)
        copy = self._site.lab.copy_of_export(self._keep / "copy")
        report = audit(copy)
        found.summary = report["summary"]
        fresh = [finding for finding in report["findings"] if known_as(finding) not in self._known]
        self._known |= {known_as(finding) for finding in fresh}
        found.findings = Counter(finding["code"] for finding in fresh)
        for finding in fresh:
            if finding["verdict"] == "violation" and finding["code"] not in may:
                found.objections.append(f"audit: {finding['code']} {finding['subject']}: {finding['title']}")
        found.objections += [
            f"audit: {code} was injected and is not reported" for code in sorted(must - set(found.findings))
        ]
        found.objections += self._plants(copy, acknowledged, readings)
        self._settled = max((ids(messages) for messages in readings.values()), key=len)
        return found

    def read(self, *, anew: bool = False) -> dict[str, list[dict[str, Any]]]:
        """Return the record by node. Each goes on from where its last reading ended; ``anew``: from the beginning.

        A whole record is a minute's work for an emulated machine.
        """
        if anew:
            self._readings.clear()
            self._cursors.clear()
        each([lambda node=node: self._go_on_reading(node) for node in self._site.lab.nodes if node.on])
        return {node: list(messages) for node, messages in self._readings.items()}

    def _go_on_reading(self, node: Machine) -> None:
        fresh, self._cursors[node.name] = self._site.read(node, LOG, self._cursors.get(node.name, ""))
        self._readings.setdefault(node.name, []).extend(fresh)

    def _plants(self, copy: Path, acknowledged: set[str], readings: dict[str, list[dict[str, Any]]]) -> list[str]:
        """Plant a message that nobody wrote, a forgetful node, a changed byte: say which of them goes unnoticed."""
        missed = []
        if not any("nobody-wrote-this" in text for text in compare(acknowledged | {"nobody-wrote-this"}, readings, [])):
            missed.append("referee: an acknowledged message that nobody wrote went unnoticed")
        name, messages = next(iter(readings.items()))
        swapped = {**readings, name: [messages[1], messages[0], *messages[2:]]}
        if not any("do not read the same" in text for text in compare(set(), {**readings, "other": swapped[name]}, [])):
            missed.append("referee: two messages in another order went unnoticed")
        victim = closed_files(copy)[-1]
        original = victim.read_bytes()
        data = bytearray(original)
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
        inside = victim.relative_to(copy).as_posix()
        after = [finding for finding in audit(copy)["findings"] if known_as(finding) not in self._known]
        codes = {finding["code"] for finding in after if inside in json.dumps(finding)}
        victim.write_bytes(original)
        if codes.isdisjoint({"altered-file", "damaged-pack", "damaged-frame"}):
            missed.append(f"referee: a changed byte in {inside} was reported as {sorted(codes)}")
        return missed

    def keep_copy(self, target: Path) -> None:
        """Keep the last copy, for whom it may help."""
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self._keep / "copy", target)
