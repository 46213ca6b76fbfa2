"""SIGKILL at the lines of packing and retention, on real files: the tree reads the same and audits clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.bag.packer import Packer, PackState
from appliance.formats.birth import BagKind
from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK, PRELOCK, RETAINED, SEAL
from auditor.audit import audit
from auditor.evidence.tree import Tree
from tests.fault_injection.tree import START_NS, ClusterTree
from tests.support.killing import MESSAGES, Process, delete_old, payload_of
from tests.support.shares import shares
from tests.support.warm import ran
from timeagent.units import DAY, MINUTE

STRIDE, SHARES = 34, 2
"""Of the lines, so many apart, a process dies at in one share of the tests; at each of them in the slow tests."""

EVERYTHING = [payload_of(sequence) for sequence in range(1, MESSAGES + 1)]


def deaths(place: Path, kind: BagKind, deed: str, first: int, stride: int) -> list[tuple[Path, bool]]:
    words = [str(place), str(kind), deed, str(first), str(stride)]
    done = ran("tests.support.killing", words, timeout_s=600)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(each["told"] == list(range(1, MESSAGES + 1)) for each in found)
    assert [each["died"] for each in found] == [True] * (len(found) - 1) + [False]
    return [(Path(each["root"]), each["died"]) for each in found]


def process(root: Path, kind: BagKind, later_ns: int) -> Process:
    return Process(ClusterTree(root), kind, "n1", later_ns)


def reads(root: Path, kind: BagKind, later_ns: int = MINUTE) -> list[bytes]:
    return [message.payload for message in process(root, kind, later_ns).reader.settled()]


def codes(root: Path) -> set[str]:
    return {finding.code for finding in audit(Tree(root)).findings}


def check_packing(place: Path, kind: BagKind, first: int, stride: int) -> None:
    states = set()
    for root, _ in deaths(place, kind, "pack", first, stride):
        (rack,) = {seal.parent for seal in root.glob(f"logs/*/*/*/{SEAL}")}
        states.add(((rack / PACK).exists(), len(list(rack.glob(f"*/{LOCK}")))))
        # Whoever finds data in a directory finds the names that send it to the seal.
        for data in [*rack.glob("*/*.msg"), *rack.glob("*/*.log")]:
            assert (data.parent / PRELOCK).exists()
            assert (data.parent / LOCK).exists()
        assert reads(root, kind) == EVERYTHING
        assert codes(root) == set()
        other = process(root, kind, MINUTE)
        packer = Packer(other.context, other.grid, other.authority.sealer)
        assert packer.pack(other.grid.rack(START_NS)).state is PackState.PACKED
        assert sorted(path.name for path in rack.iterdir()) == [PACK, PRELOCK, SEAL]
        assert reads(root, kind) == EVERYTHING
        assert codes(root) == set()
    assert {(False, 1), (True, 1), (True, 0)} <= states


def check_retention(place: Path, kind: BagKind, first: int, stride: int) -> None:
    for root, _ in deaths(place, kind, "retain", first, stride):
        (rack,) = {seal.parent for seal in root.glob(f"logs/*/*/*/{SEAL}")}
        if (rack / PACK).exists():
            assert reads(root, kind) == EVERYTHING
            assert codes(root) == set()
        delete_old(process(root, kind, 2 * DAY), root)
        assert sorted(path.name for path in rack.iterdir()) == [PRELOCK, RETAINED, SEAL]
        assert codes(root) == {"retained-rack"}


@pytest.mark.parametrize("share", shares(SHARES))
@pytest.mark.parametrize("kind", list(BagKind))
def test_packer_killed_at_some_lines_leaves_one_record(tmp_path: Path, kind: BagKind, share: int) -> None:
    check_packing(tmp_path, kind, 1 + share * STRIDE // SHARES, STRIDE)


@pytest.mark.parametrize("share", shares(SHARES))
@pytest.mark.parametrize("kind", list(BagKind))
def test_retention_killed_at_some_lines_leaves_prelock_and_seal(tmp_path: Path, kind: BagKind, share: int) -> None:
    check_retention(tmp_path, kind, 1 + share * STRIDE // SHARES, STRIDE)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", list(BagKind))
def test_packer_killed_at_any_line_leaves_one_record(tmp_path: Path, kind: BagKind) -> None:
    check_packing(tmp_path, kind, 1, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", list(BagKind))
def test_retention_killed_at_any_line_leaves_prelock_and_seal(tmp_path: Path, kind: BagKind) -> None:
    check_retention(tmp_path, kind, 1, 1)
