"""Trees as they were written once: the audit of today says of them what it said then, to the byte."""

from __future__ import annotations

import json
import lzma
from io import BytesIO
from pathlib import Path

import pytest

from auditor.audit import audit
from auditor.commands.selftest import PACKED
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from tests.golden.make_trees import STORIES, TREES, pack, plant_all


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("each_core")
@pytest.mark.parametrize("name", sorted(STORIES))
def test_golden_tree_is_judged_as_it_was(name: str) -> None:
    assert json_bytes(audit(Tree(TREES / name / "tree"))) == (TREES / name / "findings.json").read_bytes()


@pytest.mark.parametrize("name", sorted(STORIES))
def test_golden_tree_is_named_after_what_is_found(name: str) -> None:
    findings = json.loads((TREES / name / "findings.json").read_bytes())["findings"]
    assert {finding["code"] for finding in findings} == ({name} if name != "good" else set())


# Scripted by hand clocks and keys from seeds: were they to differ, a test would not repeat what another has seen.
@pytest.mark.parametrize("name", sorted(STORIES))
def test_stories_write_the_same_tree_again(name: str, tmp_path: Path) -> None:
    tree = STORIES[name](tmp_path / "tree")
    assert contents(tree.root) == contents(TREES / name / "tree")


def test_no_golden_tree_is_left_over() -> None:
    assert {path.name for path in TREES.iterdir()} == set(STORIES)


def test_stories_write_what_the_selftest_audits(tmp_path: Path) -> None:
    plant_all(tmp_path / "cases")
    packed = BytesIO()
    pack(tmp_path / "cases", packed)
    assert lzma.decompress(PACKED.read_bytes()) == packed.getvalue()
