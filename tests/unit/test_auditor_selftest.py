"""The self-test finds what is planted, says so in both forms, and fails for a blind rule or a wrong expectation."""

from __future__ import annotations

import json
import lzma
import tarfile
from typing import TYPE_CHECKING

import pytest

from auditor.commands import selftest
from auditor.evidence.finding import RULES
from tenure.__main__ import main
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import small_tree

if TYPE_CHECKING:
    from pathlib import Path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["audit", "--selftest", *arguments])
    return status, capsys.readouterr().out


@pytest.mark.verify  # they are the trees of test_auditor_rules, packed: tests/golden/test_trees.py says so
def test_every_rule_finds_what_is_planted_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "--json")
    shown = json.loads(out)
    assert (shown["schema"], shown["version"]) == ("tenure.selftest", 1)
    assert [each for each in shown["cases"] if not each["passed"]] == []
    assert status == 0
    assert shown["summary"] == {"trees": len(shown["cases"]), "rules": len(RULES), "failed": 0, "untried": []}


def test_selftest_finds_what_is_planted_and_a_judge_that_has_gone_blind_fails_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unseen = {"lost-frame", "sequence-reused", "sequence-disorder", "r2-breach"}
    packed = tmp_path / "packed"
    with tarfile.open(selftest.PACKED) as every, tarfile.open(packed, "w:xz", preset=0) as some:
        for member in every:
            if member.name.split("/")[0] in {*unseen, "r1-breach", selftest.GOOD}:
                some.addfile(member, every.extractfile(member) if member.isfile() else None)
    monkeypatch.setattr(selftest, "PACKED", packed)
    status, out = run(capsys, "--json")
    shown = json.loads(out)
    assert (shown["schema"], shown["version"]) == ("tenure.selftest", 1)
    assert {each["planted"] for each in shown["cases"]} == {*unseen, "r1-breach", selftest.GOOD}
    untried = sorted(RULES.keys() - {*unseen, "r1-breach"})
    assert shown["summary"] == {"trees": len(shown["cases"]), "rules": len(RULES), "failed": 0, "untried": untried}
    assert status == 1  # for the rules that nothing is planted for
    monkeypatch.setattr("auditor.audit.check_sequences", lambda *_: iter(()))
    status, out = run(capsys)
    assert status == 1
    failed = {line.split()[1] for line in out.splitlines() if "FAILED: found nothing" in line}
    assert failed == unseen
    assert out.splitlines()[-1].endswith("failed")


# A good tree that is said to hold a fault, a fault that is said to be none, and one by the name of another.
def test_wrong_expectation_fails_the_selftest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tree(tmp_path / "small")
    granted_while_held(tmp_path / "granted")
    packed = tmp_path / "packed"
    with lzma.open(packed, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
        for name, planted in (("small", "r1-breach"), ("granted", "good"), ("granted", "r2-breach")):
            archive.add(tmp_path / name, f"{planted}/a_story/tree")
    monkeypatch.setattr(selftest, "PACKED", packed)
    status, out = run(capsys, "--json")
    assert status == 1
    assert [(each["planted"], each["found"], each["passed"]) for each in json.loads(out)["cases"]] == [
        ("r1-breach", [], False),
        ("good", ["early-grant"], False),
        ("r2-breach", ["early-grant"], False),
    ]


def test_rule_that_nothing_is_planted_for_is_told() -> None:
    assert selftest.untried([selftest.Case("r1-breach", "a story", ("r1-breach",))]) == sorted(
        RULES.keys() - {"r1-breach"}
    )


def test_audit_without_a_path_names_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit"]) == 2
    assert "--selftest" in capsys.readouterr().err


def test_selftest_beside_a_path_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--selftest", "copy"]) == 2
    assert "copy would not be looked at [two-paths]" in capsys.readouterr().err
