"""The corpus: clean, the same bytes each time, and what is planted in it is found, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence.tree import Tree
from tests.bench.corpus.build import build
from tests.bench.corpus.faults import CODES, FILE_FAULTS

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = 5 * 5120


def contents(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def planted(root: Path) -> Counter[str]:
    return Counter(finding.code for finding in audit(Tree(root)).findings)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["log", "maildir"])
def test_it_is_clean(tmp_path: Path, kind: str, *, packed: bool) -> None:
    made = build(tmp_path, 2000, kind=kind, packed=packed)
    result = audit(Tree(tmp_path))
    assert result.findings == ()
    assert (made, result.summary.messages, result.summary.witnesses) == (2000, 2000, 200)


def test_the_same_arguments_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        build(tmp_path / name, 300)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES)
def test_each_planted_breach_is_found_and_nothing_else(tmp_path: Path, code: str) -> None:
    build(tmp_path, MESSAGES, plant={code: 3})
    found = planted(tmp_path)
    assert found.pop(code) == 3
    # A frame that is not there was counted by its writer, too.
    assert not found


def test_breaches_of_all_kinds_at_once(tmp_path: Path) -> None:
    wanted = {code: 1 for code in CODES if code not in FILE_FAULTS}
    build(tmp_path, MESSAGES, plant=wanted)
    assert planted(tmp_path) == Counter(wanted)


def test_more_breaches_than_there_is_room_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        build(tmp_path, 2000, plant={"r1-breach": 50})
