import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from timeagent.console import Progress, instant_fields, note, own_name, present, print_json, report_error, say
from timeagent.errors import BadTime, Damaged
from timeagent.units import INSTANT_MAX


def test_json_is_one_line_with_schema_and_version_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_json("tenure.example", {"b": 1, "a": None, **instant_fields("at", INSTANT_MAX)}, version=2)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert list(json.loads(out)) == ["schema", "version", "b", "a", "at", "at_ns"]
    assert json.loads(out)["at_ns"] == INSTANT_MAX  # not through a float


def test_instant_that_is_not_known_is_null_twice() -> None:
    assert instant_fields("at", None) == {"at": None, "at_ns": None}


def test_data_goes_to_stdout_and_diagnostics_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    say("data")
    say()
    note("diagnostics")
    assert capsys.readouterr() == ("data\n\n", "diagnostics\n")


def test_error_is_reported_with_code_and_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(BadTime("no-time", "no source", hint="run chrony")) == 75
    assert capsys.readouterr() == ("", "tenure: no source [no-time]\n  way out: run chrony\n")
    assert report_error(Damaged("bad", "broken")) == 65
    assert capsys.readouterr() == ("", "tenure: broken [bad]\n")


def test_exit_code_stays_what_it_is_where_diagnostics_cannot_be_written() -> None:
    with Path("/dev/full").open("wb") as full:
        words = [sys.executable, "-m", "tenure", "status", "--root", "/no/such"]
        assert subprocess.run(words, stderr=full, check=False).returncode == 74


def test_error_shows_bytes_that_are_no_text_as_all_else_does(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\udcff\\udcff"
    report_error(Damaged("bad", f"{name!r} is no name"))
    assert capsys.readouterr().err == "tenure: 'a\\xff\\\\udcff' is no name [bad]\n"


def test_command_names_itself_as_a_shell_would_call_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "tenure"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(program)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert own_name() == "bin/tenure"
    monkeypatch.setenv("PATH", str(program.parent))
    assert own_name() == "tenure"
    monkeypatch.setattr("sys.argv", ["-c"])
    assert own_name() == "tenure"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("bags", 3)
    progress.show(1)
    progress.done()
    assert capsys.readouterr() == ("", "")


def test_progress_rewrites_one_line_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress("bags", 3)
    progress.show(1, "x" * 500)
    progress.show(1, "x" * 500)
    first = capsys.readouterr().err
    assert first.count("bags: 1/3") == 1
    assert len(first) < 130
    progress.done()
    assert capsys.readouterr().err == "\r\x1b[K"
    Progress("bags").done()
    assert capsys.readouterr().err == ""


def test_progress_stays_in_its_row_and_paints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((80, 24)))
    Progress("bags").show(1, "\x1b[2J" + "x" * 500)
    said = capsys.readouterr().err.removeprefix("\r\x1b[K")
    assert (said[:16], len(said)) == ("bags: 1 \\x1b[2Jx", 79)


# A lease that is held for hours says so when it is, also where nobody looks at a terminal.
@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_presented_reaches_a_pipe_at_once(monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as out, os.fdopen(write, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        os.set_blocking(read, False)
        present(Namespace(json=as_json), "tenure.held", {"domain": "d"}, "d: held")
        assert b"d" in (out.read() or b"")
