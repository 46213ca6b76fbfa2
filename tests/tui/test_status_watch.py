"""``status --watch``: the overview as text, redrawn in a terminal; a line a second in a pipe; objects as JSON."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tui.statuswatch
from appliance.demo.place import Place, set_up_place
from leasehold.__main__ import main
from tests.support.mutants import plant
from tests.support.screens import busy_state, state
from timeagent.clock import SystemClock
from tui.statuswatch import status_line


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = set_up_place(tmp_path / "demo", 1, SystemClock().realtime_ns(), random.Random(str(tmp_path)))
    yield made
    made.forget()


def words(place: Place, *more: str) -> list[str]:
    own = ["--root", str(place.root), "--node-dir", str(place.machines[0].directory), "--allow-root"]
    return ["status", "--watch", *own, *more]


def test_pipe_gets_a_line_each_time(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(place, "--count", "2")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("shard 0 (node1): no answer" in line and "\x1b" not in line for line in lines)


def test_programs_get_an_object_a_line(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(place, "--count", "2", "--json")) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["schema"] for each in found] == ["leasehold.top"] * 2
    assert found[0]["nodes"][0]["shards"][0]["leases"] is None, "not known is never zero"


def test_terminal_is_drawn_over_and_never_scrolls(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "12")
    assert main(words(place, "--count", "2")) == 0
    first, second = capsys.readouterr().out.split("\x1b[H")[1:]
    for drawn in (first, second):
        assert drawn.endswith("\x1b[J")
        assert drawn.count("\n") <= 11
        assert "no answer" in drawn


def test_ctrl_c_is_how_it_is_left(place: Place) -> None:
    command = [sys.executable, "-m", "leasehold", *words(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert "no answer" in program.stdout.readline()
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 0


def test_no_root_is_refused_and_count_is_of_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--watch", "--count", "1", "--root", str(tmp_path), "--allow-root"]) != 0
    assert main(["status", "--count", "1", "--root", str(tmp_path)]) == 2
    assert "[no-watch]" in capsys.readouterr().err


def test_line_has_every_reason() -> None:
    line = status_line(busy_state())
    assert line.startswith("2026-11-20T22:10:07Z  ✗ NOT HEALTHY · 2 of 3 shards answer · leases at least 8")
    assert "shard 1 (node2): no answer for 3.2 s" in line
    assert "2 leases will expire, not renewed" in line
    assert status_line(state()).startswith("2026-11-20T22:10:07Z  ● HEALTHY")


def test_reason_that_is_left_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.statuswatch, "status_line", "*judged.reasons", "*judged.reasons[:1]")
    monkeypatch.setitem(globals(), "status_line", tui.statuswatch.status_line)
    with pytest.raises(AssertionError):
        test_line_has_every_reason()
