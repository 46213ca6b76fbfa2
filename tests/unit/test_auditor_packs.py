"""The auditor reads packs as it reads directories: the same verdicts before and after packing."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING

import pytest

from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK, PRELOCK, RETAINED, SEAL
from auditor.audit import audit
from auditor.evidence.tree import Tree
from auditor.explain.words import explain_lines
from auditor.report.formats import json_bytes
from auditor.rules.result import exit_status
from tests.fault_injection.faults_packs import pack_tree, packed
from tests.fault_injection.fixtures import eventful_tree, small_tree
from tests.fault_injection.plants import all_plants
from tests.fault_injection.tree import ClusterTree
from tests.fault_injection.writer import Writer
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OF_DIRECTORIES = frozenset(
    {"late-writer", "ghost-bag", "overwritten-lock", "damaged-lock", "lost-file", "missing-prelock", "foreign-file"}
)
"""What is said of a directory, and gone with it: what was listed is judged in the pack, the rest is void."""

_PLACE = re.compile(r"logs/[^ ;:,]*")


def findings(tree: ClusterTree) -> list[object]:
    """Everything that a report says, but for where things stand."""
    report = json.loads(json_bytes(audit(Tree(tree.root))))
    said = []
    for finding in report["findings"]:
        if finding["code"] in OF_DIRECTORIES:
            continue
        said.append(
            (finding["code"], finding["verdict"], _PLACE.sub("", finding["explanation"]), len(finding["evidence"]))
        )
    return [report["summary"], *sorted(said)]  # they are told in the order of paths, which packing changes


def test_eventful_tree_audits_the_same_before_and_after_packing(tmp_path: Path) -> None:
    tree = eventful_tree(tmp_path)
    before = findings(tree)
    assert pack_tree(tree, sweep=False) > 1
    assert findings(tree) == before
    pack_tree(tree)
    assert list(tree.root.glob(f"logs/*/*/*/{PACK}"))
    assert findings(tree) == before


BREACHES = [
    pytest.param(plant, id=f"{code}-{plant.__name__}")
    for code, all_of in all_plants().items()
    for plant in all_of
    if code not in OF_DIRECTORIES
    and not code.endswith("-pack")
    and code not in ("retained-rack", "damaged-seal", "unreadable")
]


@pytest.mark.verify
@pytest.mark.parametrize("plant", BREACHES)
def test_every_breach_is_found_in_packs_as_in_directories(plant: Callable[[Path], ClusterTree], tmp_path: Path) -> None:
    tree = plant(tmp_path)
    before = findings(tree)
    pack_tree(tree)
    assert findings(tree) == before


def test_half_swept_rack_audits_as_a_packed_one(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    before = findings(tree)
    pack_tree(tree, sweep=False)
    for file in sorted(tree.root.glob("logs/*/*/*/*/*.msg"))[:1]:
        file.unlink()
    assert findings(tree) == before
    for prelock in sorted(tree.root.glob("logs/*/*/*/*/prelock"))[:1]:
        prelock.unlink()
    assert findings(tree) == before
    assert audit(Tree(tree.root)).findings == ()


# It needs no pack, and a packer removes its directories one name after the other.
def test_rack_of_bags_that_nobody_wrote_to_is_swept_and_nothing_is_lost(tmp_path: Path) -> None:
    tree = ClusterTree(tmp_path)
    grid = tree.log()
    bags = [grid.bag(grid.first_ns), grid.bag(grid.first_ns + grid.birth.span_ns)]
    tree.until(bags[1].due_ns + SECOND)
    for bag in bags:
        tree.close(bag)
    tree.settle(grid)
    assert (tmp_path / bags[0].rack.path / SEAL).exists()
    before = findings(tree)
    for name in (PRELOCK, LOCK):
        tree.remove(f"{bags[0].path}/{name}")
        assert findings(tree) == before
    shutil.rmtree(tmp_path / bags[0].path)
    assert findings(tree) == before
    shutil.rmtree(tmp_path / bags[1].path)
    assert findings(tree) == before
    assert audit(Tree(tree.root)).findings == ()


# A writer that was stopped for hours may bring a directory back: void, and no crime.
def test_directory_that_came_back_after_packing_or_retention_is_void(tmp_path: Path) -> None:
    tree, pack = packed(tmp_path)
    grid = tree.grids["orders"]
    Writer(tree).publish(grid, at=grid.first_ns + 7)
    assert {finding.code for finding in audit(Tree(tree.root)).findings} <= {"ghost-bag", "late-writer"}
    pack.with_name(RETAINED).touch()
    pack.unlink()
    codes = {finding.code for finding in audit(Tree(tree.root)).findings}
    assert "retained-rack" in codes
    assert codes <= {"retained-rack", "ghost-bag", "late-writer"}


def test_evidence_in_a_pack_is_explained_from_the_pack(tmp_path: Path) -> None:
    tree, pack = packed(tmp_path)
    pack.write_bytes(pack.read_bytes()[:300] + b"???" + pack.read_bytes()[303:])
    result = audit(Tree(tree.root))
    (finding,) = result.findings
    assert finding.code == "altered-file"
    place = finding.evidence[-1] if finding.evidence[-1].path.endswith(PACK) else finding.evidence[0]
    assert place.path.endswith(PACK)
    assert 0 < place.offset < 300
    assert f"offset {place.offset}" in finding.explanation
    assert any(PACK in line for line in explain_lines(finding, Tree(tree.root)))


def test_rack_that_retention_emptied_accuses_nobody(tmp_path: Path) -> None:
    tree, pack = packed(tmp_path)
    pack.with_name(RETAINED).touch()
    pack.unlink()
    result = audit(Tree(tree.root))
    (finding,) = result.findings
    assert (finding.code, finding.verdict) == ("retained-rack", "unverifiable")
    assert "2 files" in finding.explanation
    assert exit_status(result) == 3
