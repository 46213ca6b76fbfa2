"""SIGKILL at the lines of write, close and seal, on real files: the tree reads the same and audits clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.bag.writing import Committed, NotCommitted
from appliance.formats.birth import BagKind
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from tests.fault_injection.tree import START_NS, ClusterTree
from tests.support.killing import MESSAGES, Process, payload_of
from tests.support.shares import shares
from tests.support.warm import ran
from timeagent.units import MINUTE, SECOND

STRIDE, SHARES = 38, 2
"""Of the lines, so many apart, a process dies at in one share of the tests; at each of them in the slow tests."""


def deaths(place: Path, kind: BagKind, deed: str, first: int, stride: int) -> list[tuple[Path, bool, list[int]]]:
    words = [str(place), str(kind), deed, str(first), str(stride)]
    done = ran("tests.support.killing", words, timeout_s=600)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(Path(each["root"]), each["died"], each["told"]) for each in found]


def judge(root: Path, kind: BagKind, told: list[int], later_ns: int) -> int:
    """Two others read what is there, before and after the sealing; return how many messages that is."""
    tree = ClusterTree(root)
    writer = Process(tree, kind)
    attempts = {sequence: writer.attempt(sequence, payload_of(sequence)) for sequence in range(1, MESSAGES + 1)}
    early = Process(tree, kind, "n2", later_ns=later_ns)
    early.horizon.settle(START_NS + SECOND)
    read = [message.payload for message in early.reader.settled()]
    assert [payload_of(sequence) for sequence in told] == [each for each in read if int(each.split()[0]) in told]
    late = Process(tree, kind, "n2", later_ns=MINUTE)
    # Whoever is asked again says the same: also of the attempt that the dead process was at.
    for sequence, attempt in attempts.items():
        expected = Committed if payload_of(sequence) in read else NotCommitted
        assert isinstance(late.writer.resolve(attempt), expected)
    late.authority.sealer.seal(late.grid.rack(START_NS))
    again = Process(tree, kind, "n1", later_ns=MINUTE)
    assert [message.payload for message in again.reader.settled()] == read
    findings = audit(Tree(root)).findings
    assert [each for each in findings if each.verdict is Verdict.VIOLATION] == []
    return len(read)


def check(place: Path, kind: BagKind, deed: str, first: int, stride: int) -> None:
    found = deaths(place, kind, deed, first, stride)
    assert [died for _, died, _ in found] == [True] * (len(found) - 1) + [False]
    later_ns = MINUTE if deed == "seal" else 5 * SECOND  # time does not go back for who comes after the dead
    counts = {judge(root, kind, told, later_ns) for root, _, told in found}
    assert counts == (set(range(MESSAGES + 1)) if deed == "write" else {MESSAGES})


@pytest.mark.parametrize("deed", ["write", "close", "seal"])
@pytest.mark.parametrize("kind", list(BagKind))
@pytest.mark.parametrize("share", shares(SHARES))
def test_process_killed_at_some_lines_leaves_one_record(tmp_path: Path, kind: BagKind, deed: str, share: int) -> None:
    check(tmp_path, kind, deed, 1 + share * STRIDE // SHARES, STRIDE)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("deed", ["write", "close", "seal"])
@pytest.mark.parametrize("kind", list(BagKind))
def test_process_killed_at_any_line_leaves_one_record(tmp_path: Path, kind: BagKind, deed: str) -> None:
    check(tmp_path, kind, deed, 1, 1)
