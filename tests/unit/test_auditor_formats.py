"""What audit prints: five formats, what is chosen of it, when it fails, and two reports compared."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from auditor.evidence.finding import RULES
from tenure.__main__ import main
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.faults_time import message_after_expiry
from tests.fault_injection.fixtures import Story, small_tree
from tests.support.jsonschema import problems
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from tests.fault_injection.tree import ClusterTree

Capture = pytest.CaptureFixture[str]


def run(command: str, *arguments: str | Path) -> int:
    return main([command, *map(str, arguments)])


def schema(repository: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((repository / f"docs/schemas/{name}.json").read_text())
    return document


def mixed(root: Path) -> ClusterTree:
    """A violation, something to know, and something that cannot be verified."""
    story = Story(root)
    _lease, path = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.advance(4 * SECOND)
    story.tree.close(bag, omit=[path.rpartition("/")[2]], change={"policy_number": 7})
    story.shard.grant("alice", story.other)
    return story.done()


def test_every_document_is_as_its_schema_says(repository: Path, tmp_path: Path, capsys: Capture) -> None:
    mixed(tmp_path)
    granted_while_held(tmp_path / "tree")
    cases: dict[str, tuple[str, list[str | Path]]] = {
        "tenure.audit.v1": (
            "audit",
            [tmp_path, "--json", "--only", "early-grant", "--since", "2026-11-20T00:00:00Z"],
        ),
        "tenure.explain.v1": ("explain", ["d", tmp_path / "tree", "--json"]),
        "tenure.replay.v1": ("replay", [tmp_path, "--json", "--newest", "3", "--grace", "9s"]),
        "tenure.replay.steps.v1": ("replay", [tmp_path, "--json", "--step", "event"]),
    }
    for name, (command, arguments) in cases.items():
        assert run(command, *arguments) in {0, 1, 3}
        document = json.loads(capsys.readouterr().out)
        assert f"{document['schema']}.v{document['version']}" == name
        assert list(problems(document, schema(repository, name))) == []
    run("audit", tmp_path, "--jsonl")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["finding"] * (len(lines) - 1) + ["summary"]
    for line in lines:
        assert list(problems(line, schema(repository, "tenure.audit.line.v1"))) == []


# 0 is what nothing has moved: an integer still, and null where an instant would be read; in the order of the fields.
def test_no_document_has_a_day_of_1970(repository: Path, tmp_path: Path, capsys: Capture) -> None:
    granted_while_held(tmp_path / "tree")
    message_after_expiry(tmp_path / "late")
    cases: dict[str, tuple[str, list[str | Path]]] = {
        "tenure.audit.v1": ("audit", [tmp_path / "late", "--json"]),
        "tenure.explain.v1": ("explain", ["d", tmp_path / "tree", "--json"]),
        "tenure.replay.v1": ("replay", [tmp_path / "tree", "--json"]),
    }
    for name, (command, arguments) in cases.items():
        assert run(command, *arguments) in {0, 1}
        text = capsys.readouterr().out
        assert "1970" not in text
        assert re.search(r'"(floor|earliest)":null,"(floor|earliest)_ns":0', text), name
        assert list(problems(json.loads(text), schema(repository, name))) == []


# What the schema does not say is found: a check that takes everything would be no check.
@pytest.mark.parametrize("spoil", ["unknown", "missing", "type", "enum", "pattern"])
def test_document_that_differs_from_its_schema_is_refused(
    repository: Path, tmp_path: Path, capsys: Capture, spoil: str
) -> None:
    granted_while_held(tmp_path)
    run("audit", tmp_path, "--json")
    document = json.loads(capsys.readouterr().out)
    finding = document["findings"][0]
    match spoil:
        case "unknown":
            finding["colour"] = "red"
        case "missing":
            del finding["evidence"][0]["offset"]
        case "type":
            document["summary"]["messages"] = "0"
        case "enum":
            finding["verdict"] = "guilty"
        case _:
            finding["times"][0]["earliest"] = "yesterday"
    assert len(list(problems(document, schema(repository, "tenure.audit.v1")))) == 1


def test_sarif_names_rule_level_place_and_a_stable_fingerprint(tmp_path: Path, capsys: Capture) -> None:
    mixed(tmp_path)
    status = run("audit", tmp_path, "--format", "sarif")
    text = capsys.readouterr().out
    document = json.loads(text)
    (sarif_run,) = document["runs"]
    assert document["version"] == "2.1.0"
    assert sarif_run["invocations"] == [{"executionSuccessful": True, "exitCode": status}]
    rules = sarif_run["tool"]["driver"]["rules"]
    kinds = set()
    for result in sarif_run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"] in RULES
        assert (result["kind"] == "fail") == (result["level"] != "none")
        kinds.add((result["kind"], result["properties"]["verdict"]))
        place = result["locations"][0]["physicalLocation"]
        assert (tmp_path / place["artifactLocation"]["uri"]).parent.exists()
    assert {("fail", "violation"), ("informational", "ok"), ("review", "unverifiable")} <= kinds
    run("audit", tmp_path, "--json")
    ids = [finding["id"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert [each["partialFingerprints"]["tenureFindingId/v1"] for each in sarif_run["results"]] == ids
    run("audit", tmp_path, "--format", "sarif")
    assert capsys.readouterr().out == text


def test_junit_fails_what_is_violated_and_skips_what_cannot_be_told(tmp_path: Path, capsys: Capture) -> None:
    mixed(tmp_path)
    run("audit", tmp_path, "--format", "junit")
    (suite,) = ET.fromstring(capsys.readouterr().out)
    cases = suite.findall("testcase")
    failed = [case for case in cases if case.find("failure") is not None]
    errors = [case for case in cases if case.find("error") is not None]
    assert [case.get("name", "").split()[0] for case in failed] == ["early-grant"]
    assert (int(suite.get("tests", "")), int(suite.get("failures", "")), int(suite.get("errors", ""))) == (
        len(cases),
        len(failed),
        len(errors),
    )
    assert errors
    assert "witness.ledger" not in (failed[0].find("failure").text or "")  # type: ignore[union-attr]
    assert "ledger/" in (failed[0].find("failure").text or "")  # type: ignore[union-attr]
    assert {"r1-breach", "lost-file"} <= {case.get("name") for case in cases if len(case) == 0}


def test_hostile_names_leave_xml_well_formed(tmp_path: Path, capsys: Capture) -> None:
    tree = small_tree(tmp_path)
    path = next(path for path in tree.files() if path.endswith(".msg"))
    bag = Path(path).parent
    (tmp_path / bag.parent / "a<b>&\x1b[31m\"'").mkdir()
    run("audit", tmp_path, "--format", "junit")
    text = capsys.readouterr().out
    assert "\x1b" not in text
    ET.fromstring(text)


def test_name_of_several_lines_adds_none_to_a_failure(tmp_path: Path, capsys: Capture) -> None:
    story = Story(tmp_path)
    story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.done(seal=False)
    story.tree.close(bag, change={"bag": "other\nlogs/orders/log 0+0"})
    run("audit", tmp_path, "--format", "junit")
    (failure,) = ET.fromstring(capsys.readouterr().out).iter("failure")
    assert "other\\nlogs/orders/log 0+0" in (failure.text or "").splitlines()[0]


def test_name_that_somebody_made_long_is_cut(tmp_path: Path, capsys: Capture) -> None:
    story = Story(tmp_path)
    lease, _ = story.written()
    story.writer.publish(story.grid, lease, at=story.tree.now_ns + 2 * MS, change={"writer": "w" * 200_000})
    story.shard.end(lease)
    story.done()
    for shown in ("text", "json", "junit"):
        assert run("audit", tmp_path, "--format", shown) == 1
        told = capsys.readouterr().out
        assert "www… (200,1" in told or r"www\u2026 (200,1" in told
        assert len(told) < 100_000


def test_only_and_fail_on_choose(tmp_path: Path, capsys: Capture) -> None:
    mixed(tmp_path)

    def codes(*arguments: str) -> tuple[int, set[str]]:
        status = run("audit", tmp_path, "--json", *arguments)
        return status, {finding["code"] for finding in json.loads(capsys.readouterr().out)["findings"]}

    status, every = codes()
    assert status == 1
    assert {"early-grant", "unverifiable-policy", "late-writer"} <= every
    assert codes("--only", "early-*") == (1, {"early-grant"})
    assert codes("--only", "unverifiable") == (3, {code for code in every if code.startswith("unverifiable")})
    assert codes("--only", "late-writer,early-grant", "--fail-on", "violation") == (1, {"late-writer", "early-grant"})
    assert codes("--only", "late-writer", "--fail-on", "violation") == (0, {"late-writer"})
    assert codes("--only", "late-writer") == (0, {"late-writer"})
    assert codes("--only", "late-writer", "--fail-on", "any") == (1, {"late-writer"})
    assert codes("--only", "unverifiable-policy", "--fail-on", "indeterminate")[0] == 0
    assert codes("--only", "unverifiable-policy", "--fail-on", "unverifiable")[0] == 3
    assert codes("--fail-on", "never") == (0, every)
    assert run("audit", tmp_path, "--only", "no-such-code") == 2
    assert "[no-such-code]" in capsys.readouterr().err


def report(capsys: Capture, path: Path, tree: Path) -> Path:
    run("audit", tree, "--json")
    path.write_text(capsys.readouterr().out)
    return path


def test_diff_says_what_came_went_and_changed(repository: Path, tmp_path: Path, capsys: Capture) -> None:
    granted_while_held(tmp_path / "tree")
    bad = report(capsys, tmp_path / "bad.json", tmp_path / "tree")
    document = json.loads(bad.read_text())
    good, other = copy.deepcopy(document), copy.deepcopy(document)
    good["findings"], good["summary"]["violations"] = [], 0
    other["findings"][0]["verdict"] = "indeterminate"
    places = {}
    for name, each in (("good", good), ("other", other)):
        places[name] = tmp_path / f"{name}.json"
        places[name].write_text(json.dumps(each))

    assert run("audit", "diff", bad, bad) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 findings came, 0 went, 0 changed"
    assert run("audit", "diff", places["good"], bad) == 1
    assert capsys.readouterr().out.startswith("+ ")
    assert run("audit", "diff", bad, places["good"]) == 1
    assert capsys.readouterr().out.startswith("- ")
    assert run("audit", "diff", bad, places["other"], "--json") == 1
    difference = json.loads(capsys.readouterr().out)
    assert list(problems(difference, schema(repository, "tenure.audit.diff.v1"))) == []
    assert [len(difference[key]) for key in ("came", "went", "changed")] == [0, 0, 1]


def report_of(**finding: object) -> bytes:
    """A report with one finding, some of it replaced."""
    whole = (
        dict.fromkeys(("id", "code", "subject", "verdict", "severity", "explanation"), "x") | {"times": []} | finding
    )
    return json.dumps({"schema": "tenure.audit", "version": 1, "summary": {}, "findings": [whole]}).encode()


def test_diff_reads_a_report_of_one_finding(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(report_of())
    assert run("audit", "diff", tmp_path / "report.json", tmp_path / "report.json") == 0


def test_diff_prints_nothing_that_a_terminal_obeys(tmp_path: Path, capsys: Capture) -> None:
    evil = "\x1b[31mEVIL\x07\n"
    for name, report in (("a", report_of(**dict.fromkeys(("id", "code", "verdict"), evil))), ("b", report_of())):
        (tmp_path / name).write_text(json.dumps(json.loads(report) | {"summary": {evil: name}}))
    assert run("audit", "diff", tmp_path / "a", tmp_path / "b") == 1
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert len(out.splitlines()) == 4


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"[]",
        b'{"schema": "tenure.audit", "version": 2}',
        b'{"schema": "x"}',
        b'{"schema": "\xff"}',
        b"[" * 100_000,
        report_of(id=[]),
        report_of(id=None),
        report_of(code={}),
        report_of(subject=5),
        report_of(explanation=None),
        report_of(verdict=[1]),
    ],
    ids=range(12),
)
def test_diff_refuses_what_is_no_report(tmp_path: Path, capsys: Capture, contents: bytes) -> None:
    place = tmp_path / "report.json"
    place.write_bytes(contents)
    assert run("audit", "diff", place, place) == 2
    assert "[not-a-report]" in capsys.readouterr().err
    assert run("audit", "diff", tmp_path / "none", place) == 2
    assert run("audit", "diff", place) == 2
    assert run("audit", tmp_path, tmp_path) == 2
    assert "[two-paths]" in capsys.readouterr().err


def test_what_was_left_out_has_not_passed(tmp_path: Path, capsys: Capture) -> None:
    tree = mixed(tmp_path / "tree")
    run("audit", tree.root, "--format", "junit", "--only", "violation", "--no-payload-hash")
    suite = ET.fromstring(capsys.readouterr().out)
    cases = [case for case in suite.iter("testcase") if not len(case)]
    assert cases == []
    left_out = [each.get("value", "") for each in suite.iter("property") if each.get("name") == "left-out"]
    assert any("Payloads were not hashed" in each for each in left_out)
    assert any("violation" in each for each in left_out)
    run("audit", tree.root, "--format", "sarif", "--no-payload-hash")
    (ran,) = json.loads(capsys.readouterr().out)["runs"]
    assert ran["properties"]["payloads_hashed"] is False
