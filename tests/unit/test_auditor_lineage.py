"""The chain of evidence beneath a finding: every link, every check with value and limit, in step with the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from auditor.cli import COMMANDS
from auditor.evidence import finding as check
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from auditor.explain import lineage as reading
from auditor.explain.archive import read_archive
from auditor.explain.lineage import LinkKind, lineage, lineage_lines
from auditor.rules import bags, endings, grants, leases, timestamps
from tests.fault_injection.faults_bags import late_writer, lost_file, lost_lock
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.faults_time import r1_breach
from tests.fault_injection.fixtures import only_file
from tests.fault_injection.plants import all_plants
from tests.support.mutants import plant as plant_mutant
from tests.unit.test_auditor_explain import run

if TYPE_CHECKING:
    from types import ModuleType

    from auditor.evidence.finding import Check, Finding
    from auditor.explain.archive import Archive
    from auditor.explain.lineage import Link
    from tests.fault_injection.plants import Plant

USERS = (bags, endings, grants, leases, reading, timestamps)

PLANTS = [(code, each) for code, plants in sorted(all_plants().items()) for each in plants]

OF_PIECES = frozenset(
    {
        "altered-file",
        "early-grant",
        "foreign-lease",
        "late-writer",
        "overwritten-lock",
        "r1-breach",
        "read-mode-write",
        "tentative-write",
        "timestamp-after-expiry",
        "timestamp-below-floor",
        "timestamp-outside-bag",
        "watermark-beyond-expiry",
    }
)
"""Codes that a check of one piece shows, and not only the finding's own words, in at least one planted tree."""


def chains(plant: Plant, place: Path) -> list[tuple[Finding, Link]]:
    archive = read_archive(Tree(plant(place / "tree").root))
    return [(finding, lineage(finding, archive)) for finding in archive.audit.findings]


def failing(link: Link) -> set[str]:
    return {check.code for check in link.chain() if check.holds is False}


def disagreements(found: list[tuple[Finding, Link]]) -> list[str]:
    """Where a check says otherwise than the audit. What is void anyway is not judged, so a check of it may fail."""
    codes = {finding.code for finding, _ in found}
    void = any(finding.verdict is Verdict.OK for finding, _ in found)
    told = [
        f"{finding.code} shows no check of its own"
        for finding, link in found
        if not any(check.code == finding.code and check.holds is not True for check in link.chain())
    ]
    accused = {code for _, link in found for code in failing(link)} - codes
    return told + ([] if void else [f"a check of {code} fails, which the audit did not find" for code in accused])


@pytest.mark.verify
@pytest.mark.parametrize(("code", "plant"), PLANTS, ids=[each.__name__ for _, each in PLANTS])
def test_checks_say_what_the_rules_say(code: str, plant: Plant, tmp_path: Path) -> None:
    found = chains(plant, tmp_path)
    assert {finding.code for finding, _ in found} == {code}
    assert not disagreements(found)


def test_check_of_the_piece_itself_fails_and_not_only_the_findings_words(tmp_path: Path) -> None:
    shown = set()
    for number, (code, plant) in enumerate(PLANTS):
        if code in OF_PIECES:
            for _, link in chains(plant, tmp_path / str(number)):
                shown |= {code for each in link.under if code in failing(each)}
    assert shown == OF_PIECES


def titles(link: Link) -> list[tuple[LinkKind, str]]:
    return [(each.kind, each.title) for each in link.walk()]


def test_chain_leads_from_the_message_to_the_key_of_the_shard(tmp_path: Path) -> None:
    ((_, link),) = chains(r1_breach, tmp_path)
    chain, at = [link], link
    for kind in (LinkKind.FRAME, LinkKind.WITNESS, LinkKind.LEASE, LinkKind.LEDGER, LinkKind.CEILING):
        at = next(each for each in at.under if each.kind is kind)
        chain.append(at)
    assert [each.where is not None for each in chain] == [False, True, True, True, True, True]
    assert any(each.kind is LinkKind.KEY and each.title.startswith("witness key") for each in chain[-2].under)
    assert any(each.kind is LinkKind.LOCK for each in chain[1].under)


def check_of(link: Link, code: str) -> list[Check]:
    return [check for check in link.chain() if check.code == code]


def test_every_check_has_its_value_and_its_limit(tmp_path: Path) -> None:
    ((_, link),) = chains(r1_breach, tmp_path)
    (check,) = check_of(link, "r1-breach")
    assert (check.what, check.limit, check.holds) == ("timestamp − signed time", "at most 1.005 s", False)
    good = [each for each in link.chain() if each.holds]
    assert len(good) >= 10
    assert all(each.value and each.limit for each in good)


def test_late_file_is_checked_like_any_other_so_that_one_sees_that_only_the_list_voids_it(tmp_path: Path) -> None:
    ((_, link),) = chains(late_writer, tmp_path)
    (listed,) = check_of(link, "late-writer")
    assert (listed.value, listed.limit) == ("not listed", "listed")
    assert all(check.holds for check in check_of(link, "forged-witness"))


def test_file_that_is_not_there_leads_to_the_list_that_names_it(tmp_path: Path) -> None:
    ((_, link),) = chains(lost_file, tmp_path)
    missing = next(each for each in link.under if each.kind is LinkKind.MISSING)
    assert [(check.value, check.holds) for check in missing.checks] == [("not there", False)]
    assert missing.under[0].kind is LinkKind.LOCK


def test_seal_that_is_cut_off_after_the_audit_ends_no_explanation(tmp_path: Path) -> None:
    tree = lost_lock(tmp_path)
    archive = read_archive(Tree(tmp_path))
    (finding,) = (each for each in archive.audit.findings if each.code == "lost-file")
    seal = only_file(tree, "logs/*/*/*/seal")
    tree.put(seal, tree.get(seal)[:-120])
    assert list(lineage_lines(lineage(finding, archive)))


def test_overlapping_grants_show_the_lease_before_and_what_it_would_have_taken(tmp_path: Path) -> None:
    ((_, link),) = chains(granted_while_held, tmp_path)
    lease = next(each for each in link.under if check_of_own(each, "early-grant"))
    assert any(each.kind is LinkKind.LEASE for each in lease.under)
    assert "after its expiry" in check_of_own(lease, "early-grant")[0].limit


def check_of_own(link: Link, code: str) -> list[Check]:
    return [check for check in link.checks if check.code == code]


def test_explain_prints_the_chain_with_every_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = granted_while_held(tmp_path / "tree").root
    ((finding, link),) = [(f, lineage(f, a)) for a in [read_archive(Tree(tree))] for f in a.audit.findings]
    assert run(finding.id, tree, "--chain") == 1
    out = capsys.readouterr().out
    assert out.splitlines() == list(lineage_lines(link))
    assert "    NO  the lease before was over: granted by" in out
    assert "    ok  expiry below the ceiling:" in out
    assert run(finding.id, tree, "--json") == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["lineage"] == link.fields()
    assert "explain" in COMMANDS


GIVEN = "'grant-overlap', AT_WATERMARK"
ABOVE = "'watermark-below-message', watermark"
WITHIN = "'watermark-beyond-expiry', watermark"
MUTANTS = [
    (timestamps, "frame_checks", "allowed + token.radius_ns", "2**62"),
    (timestamps, "frame_checks", "bag[0] <= first <= last < bag[1]", "first <= last"),
    (timestamps, "lease_checks", "_expiry_ns(evidence, held)", "2**62"),
    (timestamps, "lease_checks", "witness.floor_ns", "0"),
    (timestamps, "lease_checks", "phase is Phase.HELD", "True"),
    (bags, "file_checks", "now == entry.digest", "True"),
    (leases, "statement_checks", "latest_expiry_ns(token, widest)", "2**62"),
    (leases, "statement_checks", "max(witness.expiry_ns, witness.fence)", "0"),
    (check, "signed_in_order", "r2_holds(cause, effect, effect_covers_cause=covers)", "True"),
    (reading, "_after", "conflicts(modes[-1], witness.mode)", "True"),
    (grants, "follow_checks", f"compared({GIVEN}, floor_ns, '≥', watermark)", f"compared({GIVEN}, floor_ns, '≥', 0)"),
    (grants, "_surely_past", "True if earliest > expiry_ns else False if latest <= expiry_ns else None", "True"),
    (endings, "ending_checks", f"asked({ABOVE}, top_ns)", f"asked({ABOVE}, 0)"),
    (endings, "ending_checks", f"asked({WITHIN}, expiry_ns)", f"asked({WITHIN}, 2**62)"),
]


CAUGHT_IN = frozenset(
    {
        "altered-file",
        "early-grant",
        "grant-above-ceiling",
        "grant-overlap",
        "r1-breach",
        "r2-breach",
        "tentative-write",
        "term-above-policy",
        "timestamp-after-expiry",
        "timestamp-below-floor",
        "timestamp-outside-bag",
        "watermark-below-message",
        "watermark-beyond-expiry",
    }
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Archive, tuple[bool, set[str]]]]:
    """Trees with a breach each, read once, and what is said of them: only that is changed by a mutant."""
    place = tmp_path_factory.mktemp("planted")
    chosen = [each for code, each in PLANTS if code in CAUGHT_IN]
    archives = [read_archive(Tree(each(place / str(number)).root)) for number, each in enumerate(chosen)]
    return [(each, said(each)) for each in archives]


def said(archive: Archive) -> tuple[bool, set[str]]:
    """Whether checks and rules agree, and the codes of checks of pieces that fail."""
    found = [(finding, lineage(finding, archive)) for finding in archive.audit.findings]
    return not disagreements(found), {code for _, link in found for each in link.under for code in failing(each)}


@pytest.mark.parametrize(("module", "name", "old", "new"), MUTANTS)
def test_check_that_says_otherwise_than_the_audit_is_caught(
    module: ModuleType,
    name: str,
    old: str,
    new: str,
    told: list[tuple[Archive, tuple[bool, set[str]]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(agrees for _, (agrees, _) in told)
    users = [each for each in USERS if getattr(each, name, None) is getattr(module, name)]
    plant_mutant(monkeypatch, module, name, old, new)
    for each in users:
        monkeypatch.setattr(each, name, getattr(module, name))
    assert any(said(each) != before for each, before in told)
