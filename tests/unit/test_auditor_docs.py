"""Every code has its section, every section its code; every exit status its row."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from auditor.evidence.finding import RULES, Verdict
from tests.fault_injection.plants import all_plants, all_twins
from tests.simulation.injected import BEGINS, ENDS
from timeagent import errors

if TYPE_CHECKING:
    from pathlib import Path


def test_every_finding_code_has_its_anchor_and_no_other_is_there(repository: Path) -> None:
    text = (repository / "docs/findings.md").read_text(encoding="utf-8")
    anchors = re.findall(r"^### (\S+)$", text, re.MULTILINE)
    assert len(anchors) == len(set(anchors))
    assert set(anchors) == set(RULES)


def test_table_of_rules_is_the_registry(repository: Path) -> None:
    text = (repository / "docs/findings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| \[(\S+)\]\(#(\S+)\) \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(str(r.number), r.code, r.code, r.verdict, r.title) for r in RULES.values()]


def test_every_rule_has_a_planted_fault_and_its_row_among_the_injections(repository: Path) -> None:
    planted = set(all_plants()) | set(all_twins())
    listed = set(re.findall(r"^\| \d+ \| \[(\S+)\]", (repository / "docs/findings.md").read_text(), re.MULTILINE))
    assert planted == listed == set(RULES)
    table = (repository / "docs/verification.md").read_text().split(BEGINS)[1].split(ENDS)[0]
    rows = re.findall(r"^\| (\d+) \| (\S+) \| [\d,]+ \| 100\.00 % \| 100\.00 % \|$", table, re.MULTILINE)
    assert rows == [(str(rule.number), code) for code, rule in RULES.items()]


# Stated on their own: a section without them leaves its reader with a word.
def test_every_section_says_what_to_make_of_it(repository: Path) -> None:
    text = (repository / "docs/findings.md").read_text(encoding="utf-8")
    for section in text.split("\n### ")[1:]:
        code, _, words = section.partition("\n")
        assert len(words.split("\n## ")[0].split()) >= 10, code


def test_there_are_enough_rules_and_their_numbers_are_their_own() -> None:
    assert len({rule.number for rule in RULES.values()}) == len(RULES) >= 35


def test_every_code_is_kebab_case_with_a_title() -> None:
    for code, rule in RULES.items():
        assert rule.code == code
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)
        assert rule.title


def test_codes_of_what_is_missing_are_unverifiable() -> None:
    assert {code for code in RULES if code.startswith("unverifiable-")} <= {
        code for code, rule in RULES.items() if rule.verdict is Verdict.UNVERIFIABLE
    }


def test_every_exit_status_has_its_row(repository: Path) -> None:
    text = (repository / "docs/exit-codes.md").read_text(encoding="utf-8")
    rows = {int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.TenureError)]
    assert {kind.exit_status for kind in kinds} <= rows
    assert rows == {0, 1, 2, 3, 4, 65, 69, 70, 74, 75, 76, 77, 78, 130, 141, 143}
