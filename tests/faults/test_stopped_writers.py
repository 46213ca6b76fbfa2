"""SIGSTOP at the lines of writing; all is sealed, packed, deleted meanwhile; SIGCONT: nothing appears in the past."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from appliance.bag.packer import Packer, PackState
from appliance.formats.birth import BagKind
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from auditor.rules import bags as bag_rules
from auditor.walk import bags
from tests.fault_injection.tree import START_NS, ClusterTree
from tests.support.killing import LINES_MAX, MESSAGES, Process, delete_old, payload_of, run_stopped
from tests.support.mutants import plant
from tests.support.shares import sampled
from tests.support.warm import ran
from timeagent.units import DAY, MINUTE

ROOT = Path(__file__).parents[2]
STRIDE = 41
"""Of the lines, so many apart, a process is stopped at in `make test`; at each of them in the slow tests."""


def everything_meanwhile(root: Path, kind: BagKind, *, deleted: bool) -> list[bytes]:
    """Seal and pack, and delete the pack; return what was settled before."""
    late = Process(ClusterTree(root), kind, "n2", MINUTE)
    rack = late.grid.rack(START_NS)
    late.authority.sealer.seal(rack)
    read = [message.payload for message in late.reader.settled()]
    state = Packer(late.context, late.grid, late.authority.sealer).pack(rack).state
    assert state is PackState.PACKED or (
        state is PackState.EMPTY and not read
    )  # a file may be listed with no frame yet
    if deleted:
        delete_old(Process(ClusterTree(root), kind, "n2", 2 * DAY), root)
    return read


def check(place: Path, kind: BagKind, first: int, stride: int, *, deleted: bool) -> None:
    told_late = False
    for line in range(first, LINES_MAX, stride):
        root, read = place / str(line), list[bytes]()
        told = run_stopped(root, kind, line, lambda: read.extend(everything_meanwhile(root, kind, deleted=deleted)))  # noqa: B023 - called at once
        if told is None:
            assert told_late
            return
        assert len(told) == MESSAGES
        for sequence, outcome in enumerate(told, 1):
            if outcome != "Unknown":
                assert (outcome == "Committed") is (payload_of(sequence) in read)
        told_late |= "NotCommitted" in told
        if not deleted:
            again = Process(ClusterTree(root), kind, "n1", MINUTE)
            assert [message.payload for message in again.reader.settled()] == read
        findings = audit(Tree(root)).findings
        assert [each for each in findings if each.verdict is Verdict.VIOLATION] == []
        shutil.rmtree(root)
    raise AssertionError(f"more than {LINES_MAX} lines")


def in_a_process_of_its_own(place: Path, kind: BagKind, stride: int, *, deleted: bool) -> None:
    """Fork where there is one thread only."""
    words = [str(place), str(kind), str(stride), str(deleted)]
    done = ran("tests.faults.test_stopped_writers", words, timeout_s=1100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", sampled([(kind, deleted) for kind in BagKind for deleted in (False, True)], 3))
def test_writer_stopped_at_some_lines_makes_nothing_appear(tmp_path: Path, case: tuple[BagKind, bool]) -> None:
    kind, deleted = case
    in_a_process_of_its_own(tmp_path, kind, STRIDE, deleted=deleted)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("kind", list(BagKind))
def test_writer_stopped_at_any_line_makes_nothing_appear(tmp_path: Path, kind: BagKind, *, deleted: bool) -> None:
    in_a_process_of_its_own(tmp_path, kind, 1, deleted=deleted)


# What a stalled writer leaves in a rack whose pack retention has deleted is void: no file was lost there.
@pytest.mark.parametrize("mutant", [False, True])
def test_directory_that_comes_back_after_retention_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, mutant: bool
) -> None:
    if mutant:
        plant(monkeypatch, bag_rules, "retained_files", "not listing.retained", "True")
        monkeypatch.setattr(bags, "retained_files", bag_rules.retained_files)
    root = tmp_path / "root"
    tree = ClusterTree(root)
    writer = Process(tree, BagKind.MAILDIR)
    attempts = [writer.attempt(sequence, payload_of(sequence)) for sequence in (1, 2)]
    writer.writer.write(attempts[0])
    everything_meanwhile(root, BagKind.MAILDIR, deleted=True)
    (root / attempts[1].bag.path).mkdir()
    (root / attempts[1].bag.path / attempts[1].name.text()).write_bytes(attempts[1].data)
    codes = {finding.code for finding in audit(Tree(root)).findings}
    assert ("lost-file" in codes) is mutant
    assert ("retained-rack" in codes) is not mutant


if __name__ == "__main__":
    check(Path(sys.argv[1]), BagKind(sys.argv[2]), 3, int(sys.argv[3]), deleted=sys.argv[4] == "True")
