"""``read`` and ``tail`` over a real root: bytes out as they came in, cursors that resume, clean ends."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import select
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.closedbags import RackGone
from appliance.cli.messages import _batches, _conclude, _wait, noting_stalls
from appliance.formats.framing import FRAME_BYTES_MAX, check_payloads
from tenure.__main__ import main
from tests.support.cluster import Site
from timeagent.errors import BadRequest
from timeagent.units import HOUR

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    type Say = Callable[..., tuple[bytes, str]]


@pytest.fixture
def say(site: Site, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run a command about the site in this process; return its standard output and error."""

    def run(*words: str, stdin: bytes = b"", status: int = 0) -> tuple[bytes, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        done = main([*words, *site.options()])
        out, err = capfdbinary.readouterr()
        assert done == status, (words, done, err)
        return out, err.decode()

    return run


def publish(say: Say, *lines: bytes) -> None:
    say("publish", "log", "--lease", "a", stdin=b"".join(line + b"\n" for line in lines))


def objects(out: bytes | str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


# Of a device or a disk image, whose only line may be larger than all memory.
def test_line_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    class Zeros(io.RawIOBase):
        given = 0

        def readable(self) -> bool:
            return True

        def readinto(self, into: Any) -> int:  # noqa: ANN401 - of any kind
            self.given += len(into)
            assert self.given <= 3 * FRAME_BYTES_MAX
            into[:] = bytes(len(into))
            return len(into)

    with pytest.raises(BadRequest, match="exceeds the limit"):
        check_payloads(next(_batches(io.BufferedReader(Zeros()))))


def test_limit_cuts_and_the_cursor_goes_on_exactly(say: Say) -> None:
    publish(say, b"0", b"1", b"2", b"3", b"4")
    out, err = say("read", "log", "--settle", "--limit", "2")
    assert out == b"0\n1\n"
    cursor = err.split("--after ")[1].strip()
    out, err = say("read", "log", "--after", cursor, "--limit", "2")
    assert out == b"2\n3\n"
    assert say("read", "log", "--after", err.split("--after ")[1].strip()) == (b"4\n", "")
    assert say("read", "log", "--limit", "5")[0] == b"0\n1\n2\n3\n4\n"
    assert say("read", "log", "--limit", "0")[0] == b""


def test_every_settled_message_has_its_cursor(say: Say) -> None:
    publish(say, b"0", b"1", b"2")
    assert [each["cursor"] for each in objects(say("read", "log", "--level", "latest", "--json")[0])] == [None] * 3
    found = objects(say("read", "log", "--settle", "--json")[0])
    assert [each["schema"] for each in found] == ["tenure.message"] * 3
    assert say("read", "log", "--after", found[1]["cursor"])[0] == b"2\n"


def test_summary_with_json_stands_on_standard_error(say: Say, site: Site) -> None:
    publish(say, b"0", b"1")
    (path,) = (site.root / "logs" / "log").rglob("*.msg")
    whole = (site.root / "policy" / "00000001").read_bytes()  # a whole piece, and no frame
    (path.parent / path.name.replace("00000001", "00000002")).write_bytes(whole)
    out, err = say("read", "log", "--settle", "--json")
    assert len(objects(out)) == 2
    (summary,) = objects(err)
    assert (summary["schema"], summary["log"], summary["messages"]) == ("tenure.read", "log", 2)
    assert summary["rejected"] == {"damaged": 1}
    assert say("read", "log", "--after", summary["cursor"])[0] == b""


def test_payloads_with_newlines_are_told_apart_by_nul_or_json(say: Say, site: Site) -> None:
    payloads = [b"one\ntwo", b"\xff", b""]
    with site.open() as cluster, cluster.session() as session, session.acquire("a") as leases:
        session.publish("log", payloads, under=leases)
    assert say("read", "log", "--settle")[0] == b"one\ntwo\n\xff\n\n"
    assert say("read", "log", "--print0")[0] == b"one\ntwo\0\xff\0\0"
    found = objects(say("read", "log", "--json")[0])
    assert [(each.get("payload"), each.get("payload_base64")) for each in found] == [
        ("one\ntwo", None),
        (None, "/w=="),
        ("", None),
    ]


# A minute ago there was no log: an empty answer is as old as was allowed.
def test_stale_answer_is_as_old_as_was_allowed(say: Say) -> None:
    publish(say, b"0")
    say("read", "log", "--settle")
    assert say("read", "log", "--level", "stale-ok")[0] == b""
    assert say("read", "log", "--level", "stale-ok", "--as-of", "0s")[0] == b"0\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--after", "c1.nonsense"), "bad-cursor"),
        (("--after", "nonsense"), "bad-instant"),
        (("--limit", "-1"), "bad-limit"),
        (("--level", "stale-ok", "--as-of", "nonsense"), "bad-span"),
        (("--as-of", "1m"), "as-of-unused"),
        (("--level", "latest", "--as-of", "1m"), "as-of-unused"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(say: Say, words: tuple[str, ...], code: str) -> None:
    publish(say, b"0")
    assert f"[{code}]" in say("read", "log", *words, status=2)[1]


@pytest.mark.parametrize("as_json", [False, True])
def test_what_retention_deleted_is_said(capfd: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    gone = [RackGone(1_700_000_400_000_000_000, 1_700_000_410_000_000_000)]
    options = argparse.Namespace(log="log", json=as_json)
    _conclude(options, "tenure.read", {"messages": 0}, {"floor": 2}, gone)
    out, err = capfd.readouterr()
    assert out == ""
    if as_json:
        (said,) = objects(err)
        assert [(each["start_ns"], each["end_ns"]) for each in said["gone"]] == [(gone[0].start_ns, gone[0].end_ns)]
    else:
        assert "deleted what was there from 2023-11-14T22:20:00.000000000Z to 2023-11-14T22:20:10.000000000Z" in err
        assert "2 rejected: floor" in err


def test_bag_that_nobody_closes_is_said_once(say: Say, site: Site, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    publish(say, b"0")
    now = [0]
    with site.open() as cluster:
        log = cluster.logs.opened("log")
        look = noting_stalls(log, lambda: now[0])
        log.horizon.refresh()
        said = []
        for now[0] in (0, HOUR, 2 * HOUR):
            look()
            said.append(capfdbinary.readouterr().err)
        cluster.settle("log", cluster.time.now().latest)
        for now[0] in (3 * HOUR, 4 * HOUR):
            look()
            said.append(capfdbinary.readouterr().err)
    assert [b"--settle" in each for each in said] == [False, True, False, False, False]


@pytest.mark.parametrize(("words", "on"), [(("read",), "--after"), (("tail", "--from", "start"), "--from")])
def test_reading_that_an_error_cuts_short_says_where_it_goes_on(
    say: Say, site: Site, words: tuple[str, ...], on: str
) -> None:
    publish(say, b"0")
    say("bag", "settle", "log")
    (first,) = (site.root / "logs" / "log").rglob("*.msg")
    publish(say, b"1")
    say("bag", "settle", "log")
    (second,) = {*(site.root / "logs" / "log").rglob("*.msg")} - {first}
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    out, err = say(words[0], "log", *words[1:], status=65)
    assert out == b"0\n"
    assert "[file-altered]" in err
    second.write_bytes(whole)
    assert say("read", "log", "--after", err.split(f"{on} ")[1].split()[0])[0] == b"1\n"


# A desktop, or many containers of one user, may have used up all inotify instances: a wake-up is no more than sooner.
def test_tail_waits_by_time_where_the_kernel_tells_of_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "inotify instance limit reached")

    slept: list[int] = []
    cluster: Any = SimpleNamespace(root=tmp_path, time=SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr("appliance.cli.messages.is_local", lambda _: True)
    monkeypatch.setattr("appliance.bag.wakeup.Observer", none_left)
    with contextlib.ExitStack() as until_the_end:
        _wait(cluster, cluster, until_the_end)(7, 0)
    assert slept == [7]


def tail(site: Site, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tenure", "tail", "log", "--settle", "--poll", "50ms", *words, *site.options()]
    # With a buffer, as users have it: what is seen has been accounted for.
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_tail_prints_what_becomes_final_and_says_where_it_was_ended(
    say: Say, site: Site, number: signal.Signals, code: int
) -> None:
    publish(say, b"0", b"1")
    with tail(site, "--from", "start") as process:
        assert process.stdout
        assert process.stderr
        assert [process.stdout.readline() for _ in range(2)] == [b"0\n", b"1\n"]
        publish(say, b"2")
        assert process.stdout.readline() == b"2\n"
        process.send_signal(number)
        assert process.wait(60) == code
        (said,) = process.stderr.read().decode().splitlines()
    assert "3 messages" in said
    publish(say, b"3")
    with tail(site, "--from", said.split("--from ")[1], "--json") as process:
        assert process.stdout
        assert process.stderr
        assert json.loads(process.stdout.readline())["payload"] == "3"
        process.send_signal(number)
        assert process.wait(60) == code
        assert objects(process.stderr.read())[-1]["schema"] == "tenure.tail"


def test_tail_whose_reader_goes_away_ends_without_a_word(say: Say, site: Site) -> None:
    publish(say, b"0")
    with tail(site, "--from", "start") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        publish(say, b"1")
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def test_tail_begins_now_if_nothing_else_is_said(say: Say, site: Site) -> None:
    publish(say, b"before")
    with tail(site) as process:
        assert process.stdout
        while not select.select([process.stdout], [], [], 0)[0]:
            publish(say, b"after")  # again, until it has begun
        assert process.stdout.readline() == b"after\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
