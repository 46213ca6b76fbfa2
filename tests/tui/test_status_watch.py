"""``status --watch``: the overview as text, redrawn in a terminal; a line a second in a pipe; objects as JSON."""

import json
import random
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import tui.cli
from appliance.demo.machines import DemoPlace, set_up_place
from tenure.__main__ import main
from tests.support.mutants import plant
from tests.support.screens import RecordedSource, busy_state, lease, shard, state, with_shards
from timeagent.clock import SystemClock
from timeagent.units import MS, SECOND
from tui.cli import status_line
from tui.model.state import ClusterState


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DemoPlace]:
    made = set_up_place(tmp_path / "demo", 1, SystemClock().realtime_ns(), random.Random(str(tmp_path)))
    yield made
    made.forget()


def words(place: DemoPlace, *more: str) -> list[str]:
    own = ["--root", str(place.root), "--node-dir", str(place.machines[0].directory), "--allow-root"]
    return ["status", "--watch", *own, *more]


def test_pipe_gets_a_line_each_time(place: DemoPlace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(place, "--count", "2")) == 3
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("shard 0: no answer from node1" in line and "\x1b" not in line for line in lines)
    assert all("→ the next application runs it; tenure node run does all the time" in line for line in lines)


def test_programs_get_an_object_a_line(place: DemoPlace, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(place, "--count", "2", "--json")) == 3
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["schema"] for each in found] == ["tenure.top"] * 2
    (shard,) = (each for each in found[1]["health"]["checks"] if each["check"] == "shard 0")
    assert (found[1]["health"]["level"], shard["verdict"]) == ("attention", "UNSURE")
    assert "node run" in shard["way_out"]
    assert found[0]["nodes"][0]["shards"][0]["leases"] is None, "not known is never zero"


def test_terminal_is_drawn_over_and_never_scrolls(
    place: DemoPlace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "12")
    assert main(words(place, "--count", "2")) == 3
    first, second = capsys.readouterr().out.split("\x1b[H")[1:]
    for drawn in (first, second):
        assert drawn.endswith("\x1b[J")
        assert drawn.count("\n") <= 11
        assert all(len(line.removesuffix("\x1b[K")) < 80 for line in drawn.split("\n"))
        assert "no answer" in drawn


def test_ctrl_c_is_how_it_is_left(place: DemoPlace) -> None:
    command = [sys.executable, "-m", "tenure", *words(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert "no answer" in program.stdout.readline()
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 3, "as of the last line"


def test_no_root_is_refused_and_count_is_of_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--watch", "--count", "1", "--root", str(tmp_path), "--allow-root"]) != 0
    assert main(["status", "--count", "1", "--root", str(tmp_path)]) == 2
    assert "[no-watch]" in capsys.readouterr().err


def test_line_has_every_reason() -> None:
    line = status_line(busy_state())
    assert line.startswith("2026-11-20T22:10:07Z  ✗ NOT HEALTHY · 2 of 3 shards answer · leases at least 8")
    assert "shard 1: no answer from node2 for 3.2 s: connection refused → is node2 stopped, or down?" in line
    assert "2 leases will expire, not renewed" in line
    assert status_line(state()).startswith("2026-11-20T22:10:07Z  ● HEALTHY")


def test_reason_that_is_left_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.cli, "status_line", "*reasons", "*reasons[:1]")
    monkeypatch.setitem(globals(), "status_line", tui.cli.status_line)
    with pytest.raises(AssertionError):
        test_line_has_every_reason()


class Paced(SystemClock):
    """Time that passes by being waited for, and while something is shown."""

    def __init__(self) -> None:
        self.at_ns = 0
        self.waits: list[int] = []

    def boot_ns(self) -> int:
        return self.at_ns

    def sleep(self, span: int) -> None:
        self.waits.append(span)
        self.at_ns += span


class Told(RecordedSource):
    """A source that says something else each time it is looked at by the watching thread, and never ends well."""

    mount = SimpleNamespace(error=None)

    def __init__(self, *told: ClusterState) -> None:
        super().__init__(told[0])
        self.told = list(told)

    def state_at(self, instant: int | None = None) -> ClusterState:
        del instant
        mine = threading.current_thread() is threading.main_thread()
        return self.told.pop(0) if mine and len(self.told) > 1 else self.told[0]


def watched(monkeypatch: pytest.MonkeyPatch, showing_ns: list[int], *told: ClusterState) -> tuple[int, Paced]:
    clock = Paced()
    monkeypatch.setattr(tui.cli, "SystemClock", lambda: clock)
    shown = tui.cli._show

    def show(state: ClusterState, **how: bool) -> None:
        shown(state, **how)
        clock.at_ns += showing_ns.pop(0)

    monkeypatch.setattr(tui.cli, "_show", show)
    first = told[0]  # for the look before the first line
    options = Namespace(json=False, count=len(told))
    return tui.cli.watch(Told(first, *told), options), clock  # type: ignore[arg-type]


def test_line_comes_each_second_however_long_showing_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    status, clock = watched(monkeypatch, [300 * MS, 0, 2_500 * MS, 100 * MS], *[state()] * 4)
    assert status == 0
    assert clock.waits == [700 * MS, SECOND, 0], "at 0, 1, 2, and as soon as a line that took longer is shown"


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ([busy_state(), state()], 0),
        ([state(), busy_state()], 1),
        ([state(), state(leases=(lease(holder_present=False),))], 3),
        ([state(), with_shards(shard(0, runner="node2"))], 3),
    ],
)
def test_exit_code_says_what_the_last_line_said(
    told: list[ClusterState], status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert watched(monkeypatch, [0] * len(told), *told)[0] == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert {0: "● HEALTHY", 1: "✗ NOT HEALTHY", 3: "◐ ATTENTION"}[status] in last
