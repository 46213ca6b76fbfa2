"""The self-test finds what it plants, says so in both forms, and fails where a rule does not look any more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from auditor import selftest
from auditor.rules.registry import RULES
from tenure.__main__ import main

if TYPE_CHECKING:
    import pytest


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(["audit", "--selftest", *arguments])
    return status, capsys.readouterr().out


def test_every_rule_finds_what_is_planted_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "--json")
    shown = json.loads(out)
    assert (shown["schema"], shown["version"]) == ("tenure.selftest", 1)
    assert [each for each in shown["cases"] if not each["passed"]] == []
    assert status == 0
    assert shown["summary"] == {"trees": len(shown["cases"]), "rules": len(RULES), "failed": 0, "untried": []}


def test_judge_that_has_gone_blind_fails_its_selftest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditor.audit.check_sequences", lambda *_: iter(()))
    status, out = run(capsys)
    assert status == 1
    failed = {line.split()[1] for line in out.splitlines() if "FAILED: found nothing" in line}
    assert failed == {"lost-frame", "sequence-reused", "sequence-disorder", "r2-breach"}
    assert out.splitlines()[-1].endswith("failed")


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
