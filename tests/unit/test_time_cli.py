"""``tenure time``: in process over a hand-driven machine, and once as people call it."""

import argparse
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import clock
from appliance.cli.clock import COMMANDS, _source_lines
from tests.support.machine import START_NS, HandMachine, StatedSource
from tests.support.values import COVERED, NOW_NS, ROOT_KEY, TIME_KEY, nonce_token, page_token
from timeagent.clock import MachineClock
from timeagent.console import Command
from timeagent.errors import BadConfiguration, BadRequest, BadTime, Damaged, Environment
from timeagent.keys import public_line
from timeagent.showing import UNBOUNDED_RADIUS_NS
from timeagent.sources.port import Source
from timeagent.units import MS, rfc3339

SILENT = BadTime("not-synchronized", "the kernel's clock is unsynchronised", hint="run chrony")


def parsed(command: Command, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(words)


class Bench:
    """The word ``time`` over one stated source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = HandMachine()
        self.source = StatedSource(self.machine, 5 * MS)
        monkeypatch.setattr(clock, "SystemClock", lambda: self.machine)
        monkeypatch.setattr(clock, "machine_sources", self.sources)
        monkeypatch.setattr(clock, "find_agent", lambda *_: None)

    def sources(self, machine: MachineClock, _: str | None) -> list[Source]:
        assert machine is self.machine
        return [self.source]

    def run(self, *words: str) -> int:
        command = COMMANDS["time"]
        return command.run(parsed(command, *words))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(capsys.readouterr().out)
    return fields


def test_now_shows_the_interval_and_where_it_is_from(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("now", "--json") == 0
    assert shown(capsys) == {
        "schema": "tenure.time.now",
        "version": 1,
        "earliest": rfc3339(START_NS - 5 * MS),
        "earliest_ns": START_NS - 5 * MS,
        "latest": rfc3339(START_NS + 5 * MS),
        "latest_ns": START_NS + 5 * MS,
        "radius_ns": 5 * MS,
        "bounded": True,
        "status": "synchronized",
        "source": "stated",
        "agent": False,
        "assumed": False,
        "cluster_time": False,
        "clock_epoch": None,
        "disagreeing": [],
        "refused": [],
    }


# A script must never take for a bound what is none: the interval is a day wide, and it says so three times.
def test_now_without_a_bound_says_so_and_names_the_way_out(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.source.refusal = SILENT
    assert bench.run("now", "--json") == 75
    out, err = capsys.readouterr()
    fields = json.loads(out)
    assert (fields["status"], fields["source"], fields["bounded"], fields["assumed"]) == (
        "unknown",
        "none",
        False,
        False,
    )
    assert fields["latest_ns"] - fields["earliest_ns"] == 2 * UNBOUNDED_RADIUS_NS
    assert [refused["source"] for refused in fields["refused"]] == ["stated"]
    assert "unsynchronised" in fields["refused"][0]["reason"]
    assert "[no-time]" in err
    assert "--assume-radius" in err
    assert "tenure policy set --assumed-radius" in err


def test_stated_radius_is_used_only_without_a_measurement_and_labelled(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run("now", "--json", "--assume-radius", "250ms") == 0
    assert shown(capsys)["source"] == "stated"
    bench.source.refusal = SILENT
    assert bench.run("now", "--json", "--assume-radius", "250ms") == 0
    fields = shown(capsys)
    assert (fields["source"], fields["assumed"], fields["status"]) == ("assumed", True, "free-running")
    assert fields["radius_ns"] == 250 * MS
    assert [refused["source"] for refused in fields["refused"]] == ["stated"]


def test_radius_of_the_policy_is_asked_for_and_the_command_line_comes_first(
    bench: Bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "assumed_radius_ns", lambda _: 7 * MS)
    bench.source.refusal = SILENT
    assert bench.run("now", "--json") == 0
    assert shown(capsys)["radius_ns"] == 7 * MS
    assert bench.run("now", "--json", "--assume-radius", "9ms") == 0
    assert shown(capsys)["radius_ns"] == 9 * MS


@pytest.mark.parametrize("radius", ["0", "2d", "soon"])
def test_radius_that_is_none_is_refused(bench: Bench, radius: str) -> None:
    with pytest.raises(BadRequest):
        bench.run("now", "--assume-radius", radius)


def test_now_is_shown_to_people_too(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("now") == 0
    out = capsys.readouterr().out
    assert rfc3339(START_NS - 5 * MS) in out
    assert "5 ms" in out
    bench.source.refusal = SILENT
    assert bench.run("now") == 75
    assert "unbounded" in capsys.readouterr().out
    assert bench.run("now", "--assume-radius", "1s") == 0
    assert "assumed" in capsys.readouterr().out


def test_sources_are_listed_each_with_its_interval_or_its_reason(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.run("sources", "--json") == 0
    stated, assumed = shown(capsys)["sources"]
    assert (stated["source"], stated["bounded"], stated["reason"]) == ("stated", True, None)
    assert (stated["earliest_ns"], stated["latest_ns"]) == (START_NS - 5 * MS, START_NS + 5 * MS)
    assert (assumed["source"], assumed["bounded"], assumed["earliest_ns"]) == ("assumed", False, None)
    assert "no radius is stated" in assumed["reason"]
    bench.source.refusal = SILENT
    assert bench.run("sources", "--json", "--assume-radius", "1s") == 0
    stated, assumed = shown(capsys)["sources"]
    assert (stated["bounded"], assumed["bounded"], assumed["assumed"]) == (False, True, True)
    assert "unsynchronised" in stated["reason"]
    assert bench.run("sources") == 0
    out = capsys.readouterr().out
    assert "stated      no bound: the kernel's clock is unsynchronised" in out


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "time.pub"
    path.write_text(public_line(TIME_KEY.public, "node-a") + "\n")
    return str(path)


def token_file(tmp_path: Path, data: bytes) -> str:
    path = tmp_path / "token"
    path.write_bytes(data)
    return str(path)


def in_hex(data: bytes) -> bytes:
    text = data.hex()
    return f"{text[:100]}\n{text[100:]}\n".encode()


@pytest.mark.parametrize("form", [bytes, in_hex])
def test_token_is_verified_raw_and_in_hex(
    bench: Bench,
    tmp_path: Path,
    key_file: str,
    capsys: pytest.CaptureFixture[str],
    form: Any,  # noqa: ANN401
) -> None:
    file = token_file(tmp_path, form(page_token().encode()))
    assert bench.run("verify", file, "--key", key_file, "--json") == 0
    fields = shown(capsys)
    assert fields["verified"] is True
    assert fields["door"] == "page"
    assert (fields["midpoint_ns"], fields["radius_ns"], fields["sequence"]) == (NOW_NS, 5 * MS, 7)
    assert fields["key_id"] == TIME_KEY.id.hex()
    assert bench.run("verify", file, "--key", key_file) == 0
    assert "signature good" in capsys.readouterr().out


def test_token_is_read_from_standard_input(
    bench: Bench, key_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(page_token().encode())))
    assert bench.run("verify", "-", "--key", key_file, "--json") == 0
    assert shown(capsys)["verified"] is True


def test_token_of_the_nonce_door_needs_what_it_covers(
    bench: Bench, tmp_path: Path, key_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = token_file(tmp_path, nonce_token(COVERED).encode())
    assert bench.run("verify", file, "--key", key_file, "--over", COVERED.hex(), "--json") == 0
    assert shown(capsys)["door"] == "nonce"
    assert bench.run("verify", file, "--key", key_file, "--json") == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["verified"] is None
    assert "--over" in err
    assert bench.run("verify", file, "--key", key_file, "--over", bytes(32).hex()) == 1
    assert "signature BAD" in capsys.readouterr().out
    page = token_file(tmp_path, page_token().encode())
    assert bench.run("verify", page, "--key", key_file, "--over", COVERED.hex()) == 1


def test_without_a_key_nothing_is_verified(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("verify", token_file(tmp_path, page_token().encode())) == 3
    out, err = capsys.readouterr()
    assert "not checked" in out
    assert "--key" in err


def test_token_of_another_key_or_with_a_flipped_bit_is_bad(
    bench: Bench, tmp_path: Path, key_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = token_file(tmp_path, page_token(signer=ROOT_KEY).encode())
    assert bench.run("verify", foreign, "--key", key_file) == 1
    assert "SHA256:" in capsys.readouterr().err
    data = bytearray(page_token().encode())
    data[15] ^= 1
    assert bench.run("verify", token_file(tmp_path, bytes(data)), "--key", key_file) == 1


@pytest.mark.parametrize("data", [b"", b"x" * 127, b"x" * 128, b"x" * 129, b"zz" * 128, bytes(64).hex().encode()])
def test_what_is_no_token_is_refused(bench: Bench, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Damaged) as refused:
        bench.run("verify", token_file(tmp_path, data))
    assert refused.value.code == "time-damaged"


def test_files_and_digests_that_are_none_are_refused_by_name(bench: Bench, tmp_path: Path, key_file: str) -> None:
    file = token_file(tmp_path, page_token().encode())
    with pytest.raises(Environment, match="nowhere"):
        bench.run("verify", str(tmp_path / "nowhere"))
    with pytest.raises(BadConfiguration):
        bench.run("verify", file, "--key", file)
    with pytest.raises(BadRequest):
        bench.run("verify", file, "--key", key_file, "--over", "00")


@pytest.mark.parametrize("words", [(), ("never",), ("now", "more"), ("verify",)])
def test_wrong_words_are_a_usage_error(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parsed(COMMANDS["time"], *words)
    assert stopped.value.code == 2
    assert "usage" in capsys.readouterr().err


# Whatever this machine's clock is worth: the fields are there, and the exit code says whether they are a bound.
@pytest.mark.parametrize(("words", "bounded"), [((), None), (("--assume-radius", "250ms"), True)])
def test_command_shows_the_time_on_any_machine(repository: Path, words: tuple[str, ...], bounded: bool | None) -> None:  # noqa: FBT001
    environment = {name: value for name, value in os.environ.items() if name != "TENURE_ROOT"}
    command = [sys.executable, "-m", "tenure", "time", "now", "--json", *words]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    fields = json.loads(done.stdout)
    assert done.returncode == (0 if fields["bounded"] else 75), done.stderr
    assert bounded in {None, fields["bounded"]}
    assert fields["earliest_ns"] < fields["latest_ns"]
    assert {"status", "source", "radius_ns", "assumed", "refused", "earliest", "latest"} <= set(fields)
    assert bool(done.stderr) != fields["bounded"]


def test_wait_ends_at_once_when_the_time_is_known_well_enough(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("wait", "--json") == 0
    assert shown(capsys)["radius_ns"] == 5 * MS


# It waits by the machine's clock, asks again and again, and says at the end why it gave up.
def test_wait_gives_up_and_says_why(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("wait", "--radius", "1ms", "--timeout", "2s") == 75
    assert "radius-too-wide" in capsys.readouterr().err
    assert bench.source.asked > 5
    bench.source.refusal = SILENT
    assert bench.run("wait", "--timeout", "2s") == 75
    assert "[no-time]" in capsys.readouterr().err


def test_wait_ends_when_a_source_begins_to_speak(bench: Bench) -> None:
    bench.source.refusal = SILENT

    def speak() -> None:
        if bench.source.asked == 4:
            bench.source.refusal = None

    bench.source.at_sample = speak
    assert bench.run("wait") == 0


def test_sources_are_watched_as_often_as_was_asked(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run("sources", "--watch", "--count", "3") == 0
    assert capsys.readouterr().out.count("together") == 3
    assert bench.run("sources", "--watch", "--count", "2", "--json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["agent"] for line in lines] == [False, False]


def test_agent_that_asks_no_source_says_so() -> None:
    assert _source_lines([])[0].startswith("no source is asked: time.toml")
