"""The command line over a real root: data on stdout, diagnostics on stderr, the exit codes of docs/exit-codes.md."""

from __future__ import annotations

import base64
import io
import json
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.writing import NotCommitted, Unknown
from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.paths import chain_path
from appliance.node.records import StoredChain
from appliance.session.session import Session
from tenure.__main__ import main
from tests.support.cluster import Site, wait_until
from tests.support.warm import WarmProcess
from timeagent.clock import SystemClock
from timeagent.errors import LeaseLost
from timeagent.units import MS, parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

type Say = Callable[..., "Said"]


class Said:
    """What a command said."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def object(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        (only,) = self.objects
        return only

    @property
    def objects(self) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.out.splitlines()]
        assert all(each["version"] == 1 and each["schema"].startswith("tenure.") for each in found)
        return found


@pytest.fixture
def say(site: Site, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Say:
    """Run a command about the site in this process."""

    def run(*words: str, stdin: bytes = b"", status: int = 0) -> Said:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        done = main([*words, *site.options()])
        out, err = capfdbinary.readouterr()
        assert done == status, (words, done, err)
        return Said(done, out.decode("utf-8", "surrogateescape"), err.decode())

    return run


def chain_end(site: Site) -> CeilingKind:
    chain = StoredChain(site.storage, chain_path(1, 0))
    return open_ceiling(chain.read(chain.list_afresh()[-1]) or b"", "newest")[0].kind


def held(site: Site, *domains: str) -> bool:
    """Whether somebody holds any of these."""
    with site.open() as cluster, cluster.session() as session:
        try:
            session.acquire(*domains, timeout_s=0)
        except Exception:  # noqa: BLE001 - whatever the reason
            return True
    return False


# -- init and join -----------------------------------------------------------------------------------------------------


def test_init_and_join_set_up_what_publish_and_read_use(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.node.runtime.SHARED_MEMORY", site.tmpfs)
    (tmp_path / "r").mkdir()
    dirs = [tmp_path / "n1", tmp_path / "n2"]

    def init(*words: str) -> list[str]:
        assert main(["init", str(tmp_path / "r"), "--allow-root", "--assume-radius", "5ms", *words]) == 0
        return capsys.readouterr().out.splitlines()

    said = json.loads(init("--node", "one", "--node-dir", str(dirs[0]), "--span", "500ms", "--json")[0])
    assert said["schema"] == "tenure.init"
    assert (said["node"], said["node_dir"], said["root"]) == ("one", str(dirs[0]), str(tmp_path / "r"))
    assert said["takeover_ns"] == 13_250 * MS
    assert said["root_key"].startswith("SHA256:")
    rest = ["--root", str(tmp_path / "r"), "--allow-root"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
    assert main(["publish", "log", "--lease", "a", *rest, "--node-dir", str(dirs[0])]) == 0
    words = ["join", str(tmp_path / "r"), "--allow-root", "--root-key", str(dirs[0] / "root.key"), "--json"]
    capsys.readouterr()
    assert main([*words, "--node", "two", "--node-dir", str(dirs[1])]) == 0
    assert json.loads(capsys.readouterr().out)["node"] == "two"
    assert main(["read", "log", "--level", "latest", *rest, "--node-dir", str(dirs[1])]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_init_and_join_speak_to_people_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r").mkdir()
    words = ["init", str(tmp_path / "r"), "--allow-root", "--assume-radius", "5ms", "--node-dir", str(tmp_path / "n")]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "within 13.75 s" in out
    assert "assumed to be good to 5 ms" in err
    words = ["join", str(tmp_path / "r"), "--allow-root", "--root-key", str(tmp_path / "n" / "root.key")]
    assert main([*words, "--node", "two", "--node-dir", str(tmp_path / "m")]) == 0
    out, err = capsys.readouterr()
    assert "node two" in out
    assert "tenure shards share two --root-key" in err


# -- publish and read --------------------------------------------------------------------------------------------------


def test_each_line_of_standard_input_is_a_message_and_reading_prints_them(say: Say) -> None:
    said = say("publish", "log", "--lease", "a", stdin=b"one\n\nthree\nno newline")
    assert said.out == ""
    assert "4 messages committed to log" in said.err
    said = say("read", "log", "--level", "latest")
    assert said.out == "one\n\nthree\nno newline\n"
    assert said.err == ""


def test_publishing_a_file_under_two_leases_as_json(say: Say, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"1\n2\n")
    said = say("publish", "log", str(tmp_path / "in"), "--lease", "b", "--lease", "a", "--lease", "a", "--json")
    assert said.object == {
        "schema": "tenure.publish",
        "version": 1,
        "log": "log",
        "committed": 2,
        "outcome": "Committed",
        "reason": None,
    }
    messages = say("read", "log", "--level", "latest", "--json").objects
    assert [message["payload"] for message in messages] == ["1", "2"]
    assert messages[0]["domains"] == ["a", "b"]


def test_empty_input_publishes_nothing_and_makes_no_log(say: Say, site: Site) -> None:
    assert say("publish", "log", "--lease", "a", "--json").object["committed"] == 0
    assert list((site.root / "logs").iterdir()) == []


def test_large_input_goes_in_batches(say: Say) -> None:
    lines = b"".join(b"%d\n" % number for number in range(5_000))
    assert say("publish", "log", "--lease", "a", "--json", stdin=lines).object["committed"] == 5_000
    messages = say("read", "log", "--level", "latest", "--json").objects
    assert [int(message["payload"]) for message in messages] == list(range(5_000))
    assert {message["sequence"] for message in messages} == {1, 2}


def test_message_as_json_says_where_it_stands(say: Say, site: Site) -> None:
    say("publish", "log", "--lease", "a", stdin=b"text\n\xff\x00raw\n")
    first, second = say("read", "log", "--level", "latest", "--json").objects
    assert list(first)[:2] == ["schema", "version"]
    assert parse_instant(first["timestamp"]) == first["timestamp_ns"]
    assert second["timestamp_ns"] > first["timestamp_ns"]
    assert (first["writer"], first["sequence"], first["index"], second["index"]) == ("node1", 1, 0, 1)
    assert (site.root / first["path"]).is_file()
    assert len(first["attempt"]) == 32
    assert base64.b64decode(second["payload_base64"]) == b"\xff\x00raw"
    assert "payload" not in second
    assert say("read", "log", "--level", "latest").out.encode("utf-8", "surrogateescape") == b"text\n\xff\x00raw\n"


def test_reading_between_two_instants(say: Say) -> None:
    say("publish", "log", "--lease", "a", stdin=b"0\n1\n2\n")
    stamps = [message["timestamp"] for message in say("read", "log", "--level", "latest", "--json").objects]
    assert say("read", "log", "--level", "latest", "--after", stamps[0], "--until", stamps[1]).out == "1\n"
    assert say("read", "log", "--level", "latest", "--after", stamps[2]).out == ""


def test_settled_reading_waits_only_if_told_to(say: Say) -> None:
    say("publish", "log", "--lease", "a", stdin=b"1\n")
    early = say("read", "log")
    assert early.out == ""
    assert early.err == "tenure: 1 bag not closed yet: --settle waits until everything up to now is final\n"
    assert say("read", "log", "--json").err.count("\n") == 1  # the object about the reading, and no more
    assert say("read", "log", "--settle").out == "1\n"
    late = say("read", "log")
    assert (late.out, late.err) == ("1\n", "")


def test_copy_of_the_root_is_named_and_another_path_to_it_is_not(
    say: Say, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("publish", "log", "--lease", "a", stdin=b"1\n")
    say("read", "log", "--settle")
    copy, other, moved = tmp_path / "copy", tmp_path / "other", tmp_path / "moved"
    shutil.copytree(site.root, copy)
    other.symlink_to(site.root)
    root = copy
    monkeypatch.setattr(
        site, "options", lambda: ["--root", str(root), "--node-dir", str(site.node_dir()), "--allow-root"]
    )
    assert say("read", "log").err == (
        f"tenure: node.toml names {site.root}, and {copy} is another root: what is written here is not there\n"
    )
    root = other
    assert say("read", "log").err == ""
    root = site.root.rename(moved)
    assert say("read", "log").err == ""
    moved.rename(site.root)


def test_what_is_rejected_is_counted_on_stderr(say: Say, site: Site) -> None:
    say("publish", "log", "--lease", "a", stdin=b"1\n")
    (path,) = (site.root / "logs" / "log").rglob("*.msg")
    whole = (site.root / "policy" / "00000001").read_bytes()  # a whole piece, and no frame
    (path.parent / path.name.replace("00000001", "00000002")).write_bytes(whole)
    said = say("read", "log", "--level", "latest")
    assert said.out == "1\n"
    assert "1 rejected: damaged" in said.err


@pytest.mark.parametrize(
    ("outcome", "status", "word"), [(Unknown("why"), 4, "unknown"), (NotCommitted("why"), 1, "not committed")]
)
def test_batch_that_is_not_committed_ends_with_its_exit_code(
    say: Say, monkeypatch: pytest.MonkeyPatch, outcome: object, status: int, word: str
) -> None:
    monkeypatch.setattr(Session, "publish", lambda *_, **__: outcome)
    said = say("publish", "log", "--lease", "a", "--json", stdin=b"1\n", status=status)
    assert (said.object["committed"], said.object["reason"]) == (0, "why")
    assert word in said.err


def test_lost_lease_is_exit_code_76(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object, **__: object) -> object:
        raise LeaseLost("lease-expired", "the lease is expired", hint="acquire it again")

    monkeypatch.setattr(Session, "publish", lost)
    assert "[lease-expired]" in say("publish", "log", "--lease", "a", stdin=b"1\n", status=76).err


def test_busy_domain_is_exit_code_75_and_names_its_holder(say: Say, site: Site) -> None:
    with site.open() as cluster, cluster.session("month end") as session, session.acquire("a"):
        said = say("publish", "log", "--lease", "a", "--wait", "10ms", stdin=b"1\n", status=75)
    assert "(month end)" in said.err
    assert "[busy]" in said.err


def test_embedded_publish_stops_its_shard_orderly(say: Say, site: Site) -> None:
    for _ in range(2):
        say("publish", "log", "--lease", "a", stdin=b"1\n")
        assert chain_end(site) is CeilingKind.ORDERLY
    with site.open() as cluster, cluster.session() as session, session.acquire("a") as leases:
        assert leases[0].settle_to_ns == 0  # nobody has to wait for what a command held


# -- leases ------------------------------------------------------------------------------------------------------------


def test_leases_are_listed_and_shown_while_they_are_held(say: Say, site: Site) -> None:
    with site.open() as cluster, cluster.session("month end") as session, session.acquire("a", "b") as leases:
        shards = say("lease", "ls", "--json").object["shards"]
        assert [view["domain"] for view in shards[0]["leases"]] == ["a", "b"]
        shown = say("lease", "show", "a", "--json").object["lease"]
        assert shown["fence"] == str(leases[0].fence)
        assert shown["expiry_ns"] >= parse_instant(shown["granted"])
        assert (shown["mode"], shown["phase"], shown["node"], shown["purpose"]) == ("X", "held", "node1", "month end")
        assert "a  X held  node1/" in say("lease", "ls").out
        assert "(month end)" in say("lease", "show", "a").out
        assert say("lease", "show", "c", "--json", status=1).object["lease"] is None
        assert "nobody has it" in say("lease", "show", "c", status=1).out


def test_listing_where_no_shard_answers_is_exit_code_69(say: Say) -> None:
    said = say("lease", "ls", "--json", status=69)
    assert said.object["shards"] == [{"shard": 0, "node": "node1", "answers": False}]
    assert "way out: no process of node1 runs it now" in say("lease", "show", "a", status=69).err


def test_holding_says_the_fence_and_gives_back(say: Say, site: Site) -> None:
    rows = say("lease", "hold", "b", "a", "--seconds", "0", "--json").objects
    assert [row["domain"] for row in rows] == ["a", "b"]
    assert all(int(row["fence"]) > 0 and row["expiry_ns"] > 0 for row in rows)
    assert "a: held, mode X, fence" in say("lease", "hold", "a", "--seconds", "0.05").out
    assert "a: held, mode S, fence" in say("lease", "hold", "a", "--mode", "S", "--seconds", "0.05").out
    assert not held(site, "a", "b")


def test_holding_ends_as_soon_as_the_lease_is_lost(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: Session, leases: Any) -> None:  # noqa: ANN401 - Leases
        leases[0].ended = "unknown"
        monkeypatch.undo()
        self.check_held(leases)

    monkeypatch.setattr(Session, "check_held", lost)
    said = say("lease", "hold", "a", "--seconds", "3600", status=76)
    assert "[lease-unknown]" in said.err


def started(site: Site, *words: str) -> subprocess.Popen[str]:
    return WarmProcess("tenure", [*words, *site.options()], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


# Service supervisors and time-outs send SIGTERM; without an orderly end every domain of the shard waits afterwards.
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_hold_gives_back_and_stops_orderly(site: Site, number: int, status: int) -> None:
    with started(site, "lease", "hold", "a", "--seconds", "3600", "--json") as process:
        assert process.stdout
        assert process.stderr
        assert json.loads(process.stdout.readline())["domain"] == "a"
        assert held(site, "a")
        process.send_signal(number)
        assert process.wait(60) == status
        assert "Traceback" not in process.stderr.read()
    assert chain_end(site) is CeilingKind.ORDERLY
    assert not held(site, "a")


def test_output_that_cannot_be_written_is_an_input_output_error(site: Site) -> None:
    command = f"{sys.executable} -m tenure lease ls --json {' '.join(site.options())}"
    for ending in (">/dev/full", ">&-"):
        done = subprocess.run(["sh", "-c", f"{command} {ending}"], capture_output=True, text=True, check=False)
        assert done.returncode == 74, done.stderr
        assert "Traceback" not in done.stderr
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m tenure --help >/dev/full"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr


# -- bags --------------------------------------------------------------------------------------------------------------


def test_bags_are_listed_shown_closed_settled_and_sealed(say: Say, site: Site) -> None:
    say("publish", "log", "--lease", "a", stdin=b"1\n")
    (rack,) = say("bag", "ls", "log", "--json").objects
    (bag,) = rack["bags"]
    assert (rack["state"], bag["state"], bag["files"]) == ("open", "open", 1)
    assert bag["due_ns"] - bag["start_ns"] == site.policy.span_ns + site.policy.grace_ns
    shown = say("bag", "show", bag["path"], "--json").object
    assert (shown["closed"], shown["files"][0]["state"]) == (False, "open")
    assert "open, timestamps from" in say("bag", "show", bag["path"]).out

    clock = SystemClock()
    if clock.realtime_ns() < bag["due_ns"] - 100 * MS:
        assert "cannot be closed before" in say("bag", "close", bag["path"], status=1).err
    wait_until(clock, lambda: clock.realtime_ns() > bag["due_ns"] + 5 * MS)
    assert say("bag", "close", bag["path"], "--json").object["files"] == 1
    assert "holds 1 file, for ever" in say("bag", "close", bag["path"]).out
    shown = say("bag", "show", bag["path"], "--json").object
    assert (shown["closed"], shown["files"][0]["state"]) == (True, "listed")
    horizon = say("bag", "settle", "log", "--to", bag["start"], "--json").object["horizon_ns"]
    assert horizon >= bag["start_ns"]
    assert "is final" in say("bag", "settle", "log", "--to", bag["start"]).out
    sealed = say("bag", "seal", "log", "--json").object
    assert sealed["sealed"] >= 0
    assert "closed 0 bags" in say("bag", "seal", "log").out
    for last in ("1", "9" * 30):
        assert bag["path"] in say("bag", "ls", "log", "--last", last).out


def test_file_that_came_too_late_is_shown_as_void_and_a_missing_one_as_missing(say: Say, site: Site) -> None:
    say("publish", "log", "--lease", "a", stdin=b"1\n")
    say("read", "log", "--settle")
    path = next((site.root / "logs" / "log").rglob("*.msg"))
    bag = str(path.parent.relative_to(site.root))
    path.rename(path.with_name(path.name.replace("00000001", "00000002")))
    states = {row["name"]: row["state"] for row in say("bag", "show", bag, "--json").object["files"]}
    assert states == {path.name: "missing", path.name.replace("00000001", "00000002"): "void: not on the list"}


def test_stranger_in_a_rack_is_noted(say: Say, site: Site) -> None:
    say("publish", "log", "--lease", "a", stdin=b"1\n")
    rack = next((site.root / "logs" / "log").rglob("*.msg")).parent.parent
    (rack / "notes").mkdir()
    said = say("bag", "ls", "log")
    assert "notes is not on the log's grid" in said.err
    assert "notes" not in said.out
    assert say("bag", "ls", "log", "--json").object["strangers"] == ["notes"]


def test_bag_that_is_not_there_is_named(say: Say, site: Site) -> None:
    say("publish", "log", "--lease", "a", stdin=b"1\n")
    path = next((site.root / "logs" / "log").rglob("*.msg")).parent
    other = path.name.replace(path.name[9:12], "000" if path.name[9:12] != "000" else "100")
    gone = path.with_name(other).relative_to(site.root)
    if not (site.root / gone).exists():
        assert "[no-such-bag]" in say("bag", "show", str(gone), status=2).err


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["option", "variable"])
def test_time_takes_what_the_roots_policy_assumes(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("timeagent.sources.local.KernelSource.sample", _deaf)
    monkeypatch.delenv("TENURE_ROOT", raising=False)
    if by == "variable":
        monkeypatch.setenv("TENURE_ROOT", str(site.root))
    words = ["--root", str(site.root)] if by == "option" else []
    assert main(["time", "now", "--json", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["latest_ns"] - said["earliest_ns"] == 2 * site.policy.assumed_radius_ns
    assert (said["source"], said["assumed"], said["status"]) == ("assumed", True, "free-running")
    assert main(["time", "sources", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["sources"][-1]["bounded"]
    assert main(["time", "now", "--json", "--assume-radius", "7ms", *words]) == 0
    assert json.loads(capsys.readouterr().out)["radius_ns"] == 7 * MS


def _deaf(_: object) -> object:
    from timeagent.errors import BadTime

    raise BadTime("not-synchronized", "the kernel's clock is unsynchronised")


def test_time_without_a_root_shows_what_is_known_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("timeagent.sources.local.KernelSource.sample", _deaf)
    monkeypatch.delenv("TENURE_ROOT", raising=False)
    assert main(["time", "now", "--json"]) == 75
    said = json.loads(capsys.readouterr().out)
    assert {"earliest_ns", "latest_ns", "status", "source"} <= set(said)
    assert said["bounded"] is False


def test_time_at_something_that_is_no_root_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["time", "now", "--root", str(tmp_path)]) == 65
    assert "[not-a-root]" in capsys.readouterr().err


# -- the daemon --------------------------------------------------------------------------------------------------------


def test_daemon_serves_closes_what_is_due_and_ends_orderly_on_sigterm(say: Say, site: Site) -> None:
    with started(site, "node", "run", "--json") as daemon:
        assert daemon.stdout
        assert daemon.stderr
        try:
            assert json.loads(daemon.stdout.readline()) == {
                "schema": "tenure.node",
                "version": 1,
                "node": "node1",
                "shards": [0],
                "time": "embedded",
                "address": None,
                "http": str(site.tmpfs / "node1" / "http.sock"),
                "awaited": [],
            }
            say("publish", "log", "--lease", "a", stdin=b"1\n")
            assert chain_end(site) is CeilingKind.RUNNING  # the daemon's, not the command's
            assert "[node-runs-already]" in say("node", "run", status=74).err
            (bag,) = say("bag", "ls", "log", "--json").object["bags"]
            wait_until(SystemClock(), (site.root / bag["path"] / "lock").exists)
            assert say("read", "log").out == "1\n"
        finally:
            daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(60) == 0
        assert daemon.stdout.read() == ""
        said = daemon.stderr.read()
    assert "runs shards [0]" in said
    assert "stopping" in said
    assert chain_end(site) is CeilingKind.ORDERLY
