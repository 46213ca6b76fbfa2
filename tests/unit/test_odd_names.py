"""Any file name that Linux allows, wherever one can stand: every command goes on, and what it says is text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from auditor.evidence.tree import name_of, text_of, text_of_bytes
from tests.fault_injection.faults_leases import granted_while_held
from tests.support.cluster import Site
from tests.support.oddnames import ODD_NAMES, scatter
from tests.support.spoken import Said, speaker
from tests.support.warm import WarmProcess
from timeagent.console import ESCAPED

if TYPE_CHECKING:
    from collections.abc import Callable

type Say = Callable[..., Said]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    speak = speaker(capsys, monkeypatch)

    def run(*words: object, stdin: bytes = b"", status: int | None = None) -> Said:
        for stream in (sys.stdout, sys.stderr):  # as the command's own are
            stream.reconfigure(errors=ESCAPED)  # type: ignore[union-attr]
        said = speak(*map(str, words), stdin=stdin)
        strange = {each for each in said.out + said.err if not each.isprintable() and each != "\n"}
        assert not strange, (words, strange)
        assert said.status in ((0, 1, 3) if status is None else (status,)), (words, said.err)
        return said

    return run


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A tree with one violation, full of odd names."""
    scatter(granted_while_held(tmp_path / "tree").root)
    return tmp_path / "tree"


def test_text_of_a_name_leads_back_to_it_and_to_no_other() -> None:
    names = [*ODD_NAMES, b"\\x5c", b"\\x5cxff", b"\\", b"\\x2d", "\u00e9".encode(), b"a/\xff/\\xff"]
    texts = [text_of_bytes(each) for each in names]
    assert len(set(texts)) == len(names)
    assert [name_of(each).encode("utf-8", "surrogateescape") for each in texts] == names
    assert [text_of(each.decode("utf-8", "surrogateescape")) for each in names] == texts
    assert text_of_bytes(b"\xff\xfe") == "\\xff\\xfe"
    assert text_of_bytes(b"usr\\x2d\\") == "usr\\x2d\\"
    assert all(each.encode().decode() == each for each in texts)


def test_audit_says_the_same_in_every_way_of_reading(copy: Path, tmp_path: Path, say: Say) -> None:
    findings = json.loads(say("audit", copy, "--json").out)["findings"]
    foreign = [each for each in findings if each["code"] == "foreign-file"]
    told = {place["path"] for each in foreign for place in each["evidence"]}
    assert {"\\xff\\xfe", "\\x5cxff\\x5cxfe"} <= told
    assert sum(each["code"] == "early-grant" for each in findings) == 1
    subprocess.run(["tar", "-cf", "copy.tar", "tree"], cwd=tmp_path, check=True)
    (tmp_path / "\x1b[31m").symlink_to(copy)
    for words in (
        (copy, "--jobs", "2"),
        (copy, "--db", tmp_path / "db"),
        (copy, "--db", tmp_path / "db"),
        (copy, "--db", tmp_path / "other\udcff%3f?#", "--jobs", "2"),
        (tmp_path / "copy.tar",),
        (tmp_path / "copy.tar", "--against", tmp_path / "\x1b[31m"),
    ):
        assert json.loads(say("audit", *words, "--json").out)["findings"] == findings, words


def test_every_form_of_a_report_holds_them(copy: Path, say: Say) -> None:
    count = len(json.loads(say("audit", copy, "--json").out)["findings"])
    assert say("audit", copy).out.count("foreign-file: ") > 1
    assert len([json.loads(line) for line in say("audit", copy, "--jsonl").out.splitlines()]) == count + 1
    (run,) = json.loads(say("audit", copy, "--format", "sarif").out)["runs"]
    assert len(run["results"]) == count
    suite = ET.fromstring(say("audit", copy, "--format", "junit").out)
    assert len([case for case in suite.iter("testcase") if case.get("file") is not None]) == count


def test_two_reports_are_compared(copy: Path, tmp_path: Path, say: Say) -> None:
    (tmp_path / "a.json").write_text(say("audit", copy, "--json").out)
    (tmp_path / "b.json").write_text(say("audit", copy, "--json", "--only", "early-grant").out)
    assert say("audit", "diff", tmp_path / "a.json", tmp_path / "a.json").status == 0
    assert "went" in say("audit", "diff", tmp_path / "a.json", tmp_path / "b.json").out
    say("audit", "diff", tmp_path / "a.json", tmp_path / "b.json", "--json")


def test_tables_hold_them(copy: Path, tmp_path: Path, say: Say) -> None:
    pytest.importorskip("duckdb", reason="DuckDB is not installed: NOTHING is known about Parquet files")
    assert "findings.parquet" in say("audit", "export", copy, "--parquet", tmp_path / "out").out


def test_each_kind_of_finding_is_explained_and_bundled(copy: Path, tmp_path: Path, say: Say) -> None:
    findings = json.loads(say("audit", copy, "--json").out)["findings"]
    kinds = {(each["code"], min(1, each["evidence"][0]["path"].count("/"))): each["id"] for each in findings}
    for name in kinds.values():
        assert name in say("explain", name, copy).out
        json.loads(say("explain", name, copy, "--json").out)
        say("explain", name, copy, "--chain")
        ET.fromstring(say("explain", name, copy, "--svg").out)
        bundled = say("bundle", name, copy, "--output", tmp_path / f"{name}.tar")
        report = json.loads(say("audit", tmp_path / f"{name}.tar", "--json").out)
        in_root = name == kinds.get(("foreign-file", 0))  # a bundle holds a name of its own there
        assert bundled.status == (3 if in_root else 0), bundled.err
        assert report["bundle"] == {"finding": name, "confirmed": not in_root}
        assert [each["id"] for each in report["findings"]] == ([] if in_root else [name])


def test_replay_and_screens_show_the_copy(copy: Path, tmp_path: Path, say: Say) -> None:
    index = tmp_path / "db\udcff%3f?#"
    say("audit", copy, "--db", index)
    assert index.is_file()
    for words in ((copy,), ("--db", index)):
        assert "early-grant" in say("replay", *words).out
        json.loads(say("replay", *words, "--json").out)
    say("replay", copy, "--db", index, "--step", "event")
    json.loads(say("replay", copy, "--db", index, "--step", "event", "--json").out)
    say("replay", copy, "--newest", "3", "--shift", "n1=1s")
    assert "n1" in say("top", "--offline", copy, "--db", index, "--once").out
    assert "n1" in say("top", "--db", index, "--once").out
    json.loads(say("top", "--offline", copy, "--json").out)


LIVE = (
    ("read", "log", "--level", "latest"),
    ("bag", "ls", "log"),
    ("bag", "ls", "log", "--json"),
    ("bag", "forecast", "log"),
    ("bag", "forecast", "log", "--json"),
    ("status",),
    ("status", "--json"),
    ("policy", "show"),
    ("view", "ls"),
    ("top", "--once"),
    ("top", "--json"),
)


def test_commands_on_a_live_root_go_on(site: Site, say: Say) -> None:
    def run(*words: str, stdin: bytes = b"") -> Said:
        return say(*words, *site.options(), stdin=stdin)

    run("publish", "log", "--lease", "a", stdin=b"one\ntwo\n")
    (site.root / "views/counts/00000000000000000000000000000000").mkdir(parents=True)
    scatter(site.root)
    for words in LIVE:
        run(*words)
    say("doctor", site.root, "--node-dir", site.node_dir())
    say("doctor", site.root, "--node-dir", site.node_dir(), "--json")
    assert run("read", "log", "--settle").out == "one\ntwo\n"
    (bag,) = {path.parent.relative_to(site.root) for path in site.root.glob("logs/log/*/*/*/*.msg")}
    run("bag", "show", str(bag))
    run("bag", "show", str(bag), "--json")
    run("bag", "close", str(bag))
    for verb in ("settle", "seal", "pack"):
        run("bag", verb, "log")
    for words in LIVE:
        run(*words)
    run("publish", "log", "--lease", "a", stdin=b"three\n")
    assert run("read", "log", "--settle").out == "one\ntwo\nthree\n"


# What an error names is whatever somebody wrote there, too.
def test_errors_name_them_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speak = speaker(capsys, monkeypatch)
    scatter(tmp_path)
    for name in map(os.fsdecode, ODD_NAMES):
        for words in (
            ("audit", f"{tmp_path}/{name}"),
            ("audit", f"{tmp_path}/{name}\udcff"),
            ("init", str(tmp_path), "--allow-root", "--assume-radius", "5ms", "--node-dir", f"{tmp_path}/n"),
            ("read", "log", "--root", f"{tmp_path}/{name}", "--allow-root"),
        ):
            said = speak(*words)
            assert said.status in (65, 74), (words, said.err)
            assert said.out == ""
            assert all(each.isprintable() for line in said.err.split("\n") for each in line), words


# node.toml is UTF-8: the machine could not find its root again.
def test_root_of_such_a_path_is_refused_before_anything_is_made(tmp_path: Path, say: Say) -> None:
    root = tmp_path / "a\udcff"
    root.mkdir()
    own = ("--allow-root", "--assume-radius", "5ms", "--node-dir", str(tmp_path / "node"))
    for words in (("init", str(root), *own), ("init", str(root), *own, "--json"), ("demo", f"{root}/demo")):
        said = say(*words, status=2)
        assert said.is_error(2, "bad-root")
        assert f"{tmp_path}/a\\xff" in said.err
    assert [*tmp_path.rglob("*")] == [root]


def test_every_view_of_such_a_root_shows_them_as_the_audit_does(site: Site, say: Say) -> None:
    root = site.root.rename(site.root.with_name("a\udcff"))
    own = ("--node-dir", site.node_dir(), "--allow-root")
    shown = str(root).replace("\udcff", "\\xff")
    for words in (("status", "--root", root, *own), ("top", root, *own), ("top", "--offline", root)):
        assert json.loads(say(*words, "--json").out)["root"] == shown
    assert json.loads(say("doctor", root, "--node-dir", site.node_dir(), "--json").out)["path"] == shown
    assert json.loads(say("probe", root, "--second", root, "--json").out)["path"] == shown
    assert shown in say("leave", root, *own, "--json").out.replace("\\\\", "\\")


# The outputs of a process of its own: what is shown goes as text through the one place that encodes it.
def test_text_shows_them_as_json_does(site: Site) -> None:
    root = site.root.rename(site.root.with_name("a\udcff"))
    with WarmProcess("tenure", ["top", "--offline", str(root)], stdout=subprocess.PIPE) as process:
        assert f"{site.root.parent}/a\\xff " in process.communicate()[0]
