"""The commands audit and explain: output, exit codes, and what they refuse."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from auditor.evidence.opening import find_root, open_tree
from tenure.__main__ import main
from tests.fault_injection.faults_bags import file_in_a_rack, off_grid_day
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import small_tree
from tests.fault_injection.tree import ClusterTree
from tests.fault_injection.writer import Writer
from timeagent.errors import BadRequest, Damaged
from timeagent.keys import public_line
from timeagent.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fault_injection.plants import Plant


def run(command: str, *arguments: str | Path) -> int:
    return main([command, *map(str, arguments)])


def breached(root: Path) -> ClusterTree:
    tree = small_tree(root)
    path = next(path for path in tree.files() if path.endswith(".msg"))
    tree.put(path, tree.get(path)[:-1] + b"\0")
    Writer(tree).publish(tree.grids["orders"], at=tree.grids["orders"].first_ns + SECOND)
    return tree


def test_good_tree_exits_with_0_and_says_whose_key_was_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_tree(tmp_path)
    assert run("audit", tmp_path) == 0
    shown = capsys.readouterr()
    assert "taken from the tree itself" in shown.out
    assert shown.out.splitlines()[-1].startswith("0 violations, 0 indeterminate, 0 unverifiable, 3 messages, 2 bags")
    assert shown.err == ""


@pytest.mark.parametrize("words", [("audit", "--since"), ("audit", "--until"), ("replay", "--at")])
def test_instant_that_is_none_is_refused_with_the_form_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    small_tree(tmp_path)
    assert run(words[0], tmp_path, words[1], "yesterday") == 2
    assert "way out: write 2026-11-20T22:10:07.5Z or" in capsys.readouterr().err


# A verdict on a part must not be read as one on the whole.
def test_text_says_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tree(tmp_path)
    words = ("--since", "2026-11-20T22:10:07Z", "--log", "orders", "--only", "r2-*,violation")
    assert run("audit", tmp_path, *words) == 0
    said = "narrowed to: since 2026-11-20T22:10:07.000000000Z; logs orders; codes r2-*, violation"
    assert said in capsys.readouterr().out.splitlines()
    assert run("audit", tmp_path) == 0
    assert "narrowed" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--json", "--jsonl"), ("--format", "text", "--json")])
def test_two_forms_of_a_report_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    small_tree(tmp_path)
    with pytest.raises(SystemExit) as refused:
        run("audit", tmp_path, *words)
    assert refused.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_root_key_can_be_pinned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = small_tree(tmp_path / "tree")
    key = tmp_path / "root.pub"
    key.write_text(public_line(tree.root_key.public, "ours") + "\n")
    assert run("audit", tree.root, "--root-key", key) == 0
    assert "pinned by --root-key" in capsys.readouterr().out
    # The marker itself holds such a line.
    assert run("audit", tree.root, "--root-key", tree.root / "TENURE") == 0
    assert run("audit", tree.root, "--root-key", tmp_path / "none") == BadRequest.exit_status


def test_findings_are_named_and_exit_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    breached(tmp_path)
    assert run("audit", tmp_path) == 1
    shown = capsys.readouterr().out
    assert "altered-file" in shown
    assert "late-writer" in shown
    assert "1 violation, 0 indeterminate, 0 unverifiable, 1 to know" in shown


def test_json_has_the_stated_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    breached(tmp_path)
    assert run("audit", tmp_path, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["version"]) == ("tenure.audit", 1)
    keys = {"messages", "bags", "witnesses", "violations", "indeterminate", "unverifiable", "provisional"}
    assert keys <= set(told["summary"])
    first = told["findings"][0]
    assert {"id", "code", "verdict", "severity", "title", "subject", "evidence"} <= set(first)
    assert set(first["evidence"][0]) == {"path", "offset", "length"}
    assert (first["code"], first["verdict"]) == ("altered-file", "violation")


# Somebody else's copy, elsewhere, in another order on disk: the same bytes, so that two audits can be compared.
def test_json_is_the_same_bytes_for_the_same_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = breached(tmp_path / "one")
    for path in reversed(tree.files()):
        place = tmp_path / "two" / "inner" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tree.root / path, place)
    run("audit", tmp_path / "one", "--json")
    one = capsys.readouterr().out
    run("audit", tmp_path / "two" / "inner", "--json")
    assert one.replace(f"{tmp_path}/one", f"{tmp_path}/two/inner") == capsys.readouterr().out
    assert one.count(str(tmp_path)) == 1


def test_tree_is_not_touched(tmp_path: Path) -> None:
    tree = breached(tmp_path)
    before = {path: (tree.get(path), (tree.root / path).stat().st_mtime_ns) for path in tree.files()}
    run("audit", tmp_path)
    assert before == {path: (tree.get(path), (tree.root / path).stat().st_mtime_ns) for path in tree.files()}


def test_explain_shows_both_records_and_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    granted_while_held(tmp_path)
    run("audit", tmp_path, "--json")
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert run("explain", finding["id"][:6], tmp_path) == 1
    shown = capsys.readouterr().out
    assert shown.count("grant of lease") == 2
    assert "the earlier lease:" in shown
    assert "the grant:" in shown
    assert "docs/findings.md#early-grant" in shown


@pytest.mark.parametrize("finding", ["ffffffffffff", ""])
def test_finding_that_is_not_there_is_refused_by_name(
    finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_tree(tmp_path)
    assert run("explain", finding, tmp_path) == BadRequest.exit_status
    assert "no-such-finding" in capsys.readouterr().err


# Who names the directory of all copies would get the verdict of one, and not know of which.
def test_directory_with_a_tree_in_it_is_refused_and_the_tree_named(tmp_path: Path) -> None:
    small_tree(tmp_path / "copy")
    (tmp_path / "notes").mkdir()
    for opening in (find_root, open_tree):
        with pytest.raises(Damaged, match="a tree lies below it") as problem:
            opening(tmp_path)
        assert problem.value.exit_status == 65
        assert problem.value.hint == f"name it: {tmp_path / 'copy'}"
    assert find_root(tmp_path / "copy") == tmp_path / "copy"
    small_tree(tmp_path / "second")
    with pytest.raises(Damaged, match=f"2 trees lie below it: {tmp_path}/copy, {tmp_path}/second"):
        find_root(tmp_path)


@pytest.mark.parametrize("command", ["audit", "replay", "explain d", "bundle d", "top --once --offline", "top --once"])
def test_every_command_refuses_a_directory_with_a_tree_in_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    granted_while_held(tmp_path / "copy")
    rest = ["--output", str(tmp_path / "new.tar")] if command.startswith("bundle") else []
    assert main([*command.split(), str(tmp_path), *rest]) == 65
    out, err = capsys.readouterr()
    assert out == ""
    assert f"way out: name it: {tmp_path / 'copy'}" in err
    assert main([*command.split(), str(tmp_path / "copy"), *rest]) in (0, 1)


# A file of that name in a part of a tree makes no tree of what it lies in.
def test_part_of_a_tree_is_opened_whatever_lies_in_it(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "copy")
    (tree.root / "TENURE").rename(tree.root / "logs" / "TENURE")
    assert open_tree(tree.root).root == tree.root


def test_report_names_the_tree_that_was_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = granted_while_held(tmp_path / "copy")
    shutil.copytree(tree.root, tmp_path / "part", ignore=shutil.ignore_patterns("TENURE"))
    (tmp_path / "latest").symlink_to("copy")
    with tarfile.open(tmp_path / "copy.tar", "w") as archive:
        archive.add(tree.root, "monday/copy")
    whole = {"path": str(tree.root), "inside": "", "marker": True}
    inside = {"path": f"{tmp_path}/copy.tar", "inside": "monday/copy", "marker": True}
    part = {"path": f"{tmp_path}/part", "inside": "", "marker": False}
    cases = [
        (tree.root, whole, f"{tree.root}"),
        (tmp_path / "latest", whole, f"{tree.root}"),
        (tmp_path / "copy.tar", inside, f"{tmp_path}/copy.tar, in it monday/copy"),
        (tmp_path / "part", part, f"{tmp_path}/part (a part of a tree: it holds no file TENURE)"),
    ]
    for path, place, words in cases:
        status = run("audit", path)
        assert capsys.readouterr().out.splitlines()[0] == f"tree: {words}"
        run("audit", path, "--json")
        document = json.loads(capsys.readouterr().out)
        assert (document["tree"], document["exit_code"]) == (place, status)
        run("audit", path, "--jsonl")
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["tree"] == place
        run("audit", path, "--format", "sarif")
        (told,) = json.loads(capsys.readouterr().out)["runs"]
        assert told["properties"]["tree"] == place
        assert told["originalUriBaseIds"]["TREE"]["description"]["text"].endswith(words)
        run("audit", path, "--format", "junit")
        suite = ET.fromstring(capsys.readouterr().out)
        named = {each.get("name"): each.get("value") for each in suite.iter("property")}
        assert named == {"tree": words, "exit-code": str(status)}
    run("audit", tree.root, "--against", tmp_path / "copy.tar")
    assert f"held against: {cases[2][2]}" in capsys.readouterr().out


def test_tar_file_of_two_trees_is_refused(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "copy")
    with tarfile.open(tmp_path / "two.tar", "w") as archive:
        archive.add(tree.root, "a")
        archive.add(tree.root, "b")
    with pytest.raises(Damaged, match="holds 2 trees: a, b") as problem:
        open_tree(tmp_path / "two.tar")
    assert problem.value.code == "not-a-tree"


# What the rules dealt with as they should wakes nobody at night.
@pytest.mark.parametrize(
    ("plant", "usual", "most", "unverifiable"),
    [(file_in_a_rack, 0, 1, 0), (off_grid_day, 1, 1, 0), (granted_while_held, 1, 1, 1)],
)
def test_what_is_only_worth_knowing_is_exit_code_0(
    plant: Plant, usual: int, most: int, unverifiable: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = plant(tmp_path / "tree")
    for words, status in {
        (): usual,
        ("--fail-on", "warning"): usual,
        ("--fail-on", "any"): most,
        ("--fail-on", "unverifiable"): unverifiable,
        ("--fail-on", "never"): 0,
    }.items():
        assert run("audit", tree.root, "--json", *words) == status, words
        document = json.loads(capsys.readouterr().out)
        assert document["exit_code"] == status
        (finding,) = document["findings"]
        assert run("audit", tree.root, "--format", "sarif", *words) == status
        (told,) = json.loads(capsys.readouterr().out)["runs"]
        assert told["invocations"][0]["exitCode"] == status
    run("audit", tree.root, "--format", "junit")
    (case,) = (each for each in ET.fromstring(capsys.readouterr().out).iter("testcase") if each.get("file") is not None)
    assert [each.tag for each in case] == [{0: "system-out", 1: "skipped"}[usual] if not unverifiable else "failure"]
    assert run("explain", finding["id"], tree.root) == usual
    assert run("audit", tree.root, "--no-payload-hash") == (1 if unverifiable else 3)


@pytest.mark.parametrize(
    ("make", "status", "code"), [("nothing", 74, "no-root"), ("empty", 65, "not-a-tree"), ("file", 65, "not-a-tree")]
)
def test_what_is_no_tree_exits_with_a_code_and_a_way_out(
    make: str, status: int, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place"
    if make == "empty":
        place.mkdir()
    elif make == "file":
        place.write_text("x")
    assert run("audit", place) == status
    shown = capsys.readouterr()
    assert f"[{code}]" in shown.err
    assert "way out" in shown.err
    assert shown.out == ""


def test_audit_without_a_path_judges_the_root_that_the_environment_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = small_tree(tmp_path / "copy")
    monkeypatch.setenv("TENURE_ROOT", str(tree.root))
    assert run("audit", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tree"]["path"] == str(tree.root)
    monkeypatch.delenv("TENURE_ROOT")
    assert run("audit") == 2
    assert "TENURE_ROOT" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["diff", "export"])
def test_word_without_what_it_needs_is_no_path(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("audit", word) == 2
    said = capsys.readouterr().err
    assert f"[bad-{word}]" in said
    assert "way out" in said
    small_tree(tmp_path / word)
    assert run("audit", word) == 0


def test_index_can_be_kept_in_a_file_but_never_over_another(tmp_path: Path) -> None:
    tree = breached(tmp_path / "tree")
    assert run("audit", tree.root, "--db", tmp_path / "index.db") == 1
    assert (tmp_path / "index.db").stat().st_size > 0
    assert run("audit", tree.root, "--db", tmp_path / "index.db") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything: NOTHING is known about refused files")
def test_file_that_may_not_be_read_is_unverifiable(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    path = next(path for path in tree.files() if path.endswith(".msg"))
    (tree.root / path).chmod(0)
    assert run("audit", tree.root) == 3


# What an older or a newer version wrote is not judged by the wrong rules: the version is told.
@pytest.mark.parametrize("number", [0, 2])
def test_tree_of_another_format_is_refused_with_its_version(number: int, tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    tree.put("TENURE", tree.get("TENURE").replace(b"format 1", b"format %d" % number))
    with pytest.raises(Damaged, match=f"is a tree of format {number}") as told:
        open_tree(tree.root)
    assert told.value.code == "other-format"
    assert told.value.exit_status == 65


def test_reread_without_an_index_is_refused_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_tree(tmp_path)
    for words in (("audit",), ("explain", "v-0000"), ("bundle", "v-0000")):
        command, *rest = words
        assert run(command, *rest, tmp_path, "--reread") == BadRequest.exit_status
        said = capsys.readouterr()
        assert said.out == ""
        assert "[no-db]" in said.err
        assert "--db FILE" in said.err
    assert run("audit", tmp_path, "--reread", "--db", tmp_path.with_name("index")) == 0
