"""The doctor: each requirement is met on a good mount and machine, and named when one thing is wrong with it."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.admin.trust import revoke_node
from appliance.cli import doctor as command
from appliance.doctor import file_system as judged
from appliance.doctor.file_system import (
    Mount,
    TrialDirectory,
    delegations_returned,
    judge_delegations,
    judge_kind,
    judge_options,
    mount_of,
    room_of,
)
from appliance.doctor.health import (
    CheckVerdict,
    HealthCheck,
    Room,
    exit_status,
    judge_clock,
    judge_reached,
    judge_room,
    passed,
    unsure,
)
from appliance.formats.names import Address
from tenure.__main__ import main
from tests.support.cluster import Site
from timeagent.errors import Environment
from timeagent.units import MINUTE, MS, SECOND, TimeInterval

MOUNTINFO = """\
22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
31 22 0:44 / /srv/lease\\040hold rw,relatime shared:9 - nfs4 nas:/export rw,vers=4.2,hard,proto=tcp,local_lock=none
32 22 0:45 / /mnt/three rw - nfs nas:/export rw,vers=3,hard
not a line of it
"""
NFS = Mount("/srv", "nfs4", "nas:/export", {"rw": "", "vers": "4.2", "hard": "", "local_lock": "none"})
MOUNTSTATS = """\
device rootfs mounted on / with fstype rootfs
device nas:/other mounted on /elsewhere with fstype nfs4 statvers=1.1
\t DELEGRETURN: 99 99 0 1 1 1 1 1 0
device nas:/export mounted on /srv with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\t DELEGRETURN: 7 7 0 1 1 1 1 1 0
"""


def options(**changes: str | None) -> Mount:
    """NFS with other options; None takes one away."""
    kept = {name: value for name, value in {**NFS.options, **changes}.items() if value is not None}
    return replace(NFS, options=kept)


def verdicts(checks: list[HealthCheck]) -> dict[str, CheckVerdict]:
    return {check.name: check.verdict for check in checks}


# ---- the mount ----


def test_path_is_on_the_innermost_mount_and_escapes_are_read() -> None:
    inner = mount_of(Path("/srv/lease hold/root"), MOUNTINFO)
    assert inner is not None
    assert (inner.point, inner.kind, inner.version) == ("/srv/lease hold", "nfs4", "4.2")
    outer = mount_of(Path("/srv/lease"), MOUNTINFO)
    assert outer is not None
    assert outer.kind == "ext4"
    assert mount_of(Path("/x"), "") is None


@pytest.mark.parametrize("blank", ["\u00a0", "\u2028", "\r", "\f", "\x85", "\udce4"])
def test_mount_is_found_whatever_its_name_is_made_of(
    blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(os.fsencode(f"{MOUNTINFO}33 22 0:46 / /srv/a{blank}b rw - nfs4 nas:/a{blank}b rw,vers=4.2\n"))
    monkeypatch.setattr(judged, "_MOUNTINFO", mounts)
    found = mount_of(Path(f"/srv/a{blank}b/root"))
    assert found is not None
    assert (found.point, found.source, found.nfs) == (f"/srv/a{blank}b", f"nas:/a{blank}b", True)
    stats = MOUNTSTATS.replace("/export", f"/a{blank}b").replace("on /srv", f"on /srv/a{blank}b")
    assert delegations_returned(stats, found.point) == 7


@pytest.mark.parametrize(
    ("kind", "version", "verdict"),
    [
        ("nfs4", "4.2", CheckVerdict.PASS),
        ("nfs", "3", CheckVerdict.PASS),
        ("nfs4", "4.0", CheckVerdict.UNSURE),
        ("nfs", "2", CheckVerdict.UNSURE),
        ("ext4", "", CheckVerdict.PASS),
        ("tmpfs", "", CheckVerdict.UNSURE),
        ("overlay", "", CheckVerdict.UNSURE),
        ("fuse.sshfs", "", CheckVerdict.UNSURE),
        ("cifs", "", CheckVerdict.FAIL),
        ("vfat", "", CheckVerdict.FAIL),
    ],
)
def test_kind_of_file_system(kind: str, version: str, verdict: CheckVerdict) -> None:
    assert judge_kind(Mount("/srv", kind, "x", {"vers": version})).verdict is verdict


def test_usual_nfs_options_pass() -> None:
    assert set(verdicts(judge_options(NFS)).values()) == {CheckVerdict.PASS}


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("writable", {"ro": ""}, CheckVerdict.FAIL),
        ("hard mount", {"soft": "", "hard": None}, CheckVerdict.UNSURE),
        ("close-to-open", {"nocto": ""}, CheckVerdict.FAIL),
        ("caching", {"noac": ""}, CheckVerdict.UNSURE),
        ("caching", {"actimeo": "600"}, CheckVerdict.UNSURE),
        ("caching", {"acdirmax": "61"}, CheckVerdict.UNSURE),
        ("caching", {"fsc": ""}, CheckVerdict.UNSURE),
    ],
)
def test_option_that_takes_something_away_is_named(
    name: str, change: dict[str, str | None], verdict: CheckVerdict
) -> None:
    found = verdicts(judge_options(options(**change)))
    assert found.pop(name) is verdict
    assert set(found.values()) == {CheckVerdict.PASS}


def test_delegations_are_counted_where_the_kernel_counts_them() -> None:
    assert delegations_returned(MOUNTSTATS, "/srv") == 7
    assert delegations_returned(MOUNTSTATS, "/") is None
    assert delegations_returned("", "/srv") is None
    for before, after, verdict in (
        (7, 8, CheckVerdict.FAIL),
        (7, 7, CheckVerdict.PASS),
        (None, 7, CheckVerdict.UNSURE),
    ):
        judged_ = judge_delegations(NFS, before, after)
        assert judged_ is not None
        assert judged_.verdict is verdict
    assert judge_delegations(options(vers="3"), 7, 8) is None


# ---- what was tried out ----


# Where anybody may write, somebody may have made `tmp` beforehand.
def test_what_is_tried_out_is_written_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with TrialDirectory(tmp_path, "x") as probe:
        (tmp_path / "tmp" / "x" / "bytes.1").symlink_to(tmp_path / "mine")
        for verb, *words in (["append", "bytes.1", "b"], ["read", "bytes.1"]):
            with pytest.raises(OSError, match="symbolic links"):
                probe.ask(verb, *words)
    assert (tmp_path / "mine").read_text() == "kept"


def test_good_directory_passes_every_trial_and_nothing_is_left(tmp_path: Path) -> None:
    with TrialDirectory(tmp_path, "x") as probe:
        for trial in (probe.owner, probe.linked, probe.exclusive, probe.listed):
            assert trial().verdict is CheckVerdict.PASS
        probe.read_often()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "tmp").mkdir()
    with TrialDirectory(tmp_path, "x"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


# In a container every run has the same name: process 1 of the same host.
def test_what_a_run_left_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    with TrialDirectory(tmp_path, "doctor.host.1") as killed:
        for trial in (killed.owner, killed.linked, killed.exclusive, killed.listed):
            trial()
        with TrialDirectory(tmp_path, "doctor.host.1") as again:
            checks = [trial() for trial in (again.owner, again.linked, again.exclusive, again.listed)]
            assert set(verdicts(checks).values()) == {CheckVerdict.PASS}
        (tmp_path / "tmp" / "doctor.host.1").mkdir(parents=True)  # for the first one to remove
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("verb", "said", "words"),
    [
        ("link", True, "a second file was linked"),
        ("read", "second", "another file than the one"),
        ("stat", os.stat_result([0o644, 1, 1, 1, 0, 0, 0, 0, 0, 0]), "says that it has 1"),
    ],
)
def test_link_that_does_not_decide_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, said: object, words: str
) -> None:
    monkeypatch.setattr(TrialDirectory, verb, lambda *_: said)
    with TrialDirectory(tmp_path, "x") as trial:
        found = trial.linked()
    assert (found.verdict, words in found.reason) == (CheckVerdict.FAIL, True)


def test_what_else_can_be_wrong_with_files_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    monkeypatch.setattr(TrialDirectory, "make", lambda *_: True)
    monkeypatch.setattr(TrialDirectory, "lists", lambda *_: False)
    with TrialDirectory(tmp_path, "x") as probe:
        (tmp_path / "tmp/x/owner").touch()
        assert probe.owner().verdict is CheckVerdict.FAIL
        assert probe.exclusive().verdict is CheckVerdict.FAIL
        assert probe.listed().verdict is CheckVerdict.FAIL


# /tmp is the usual model for a shared directory, and the wrong one.
@pytest.mark.parametrize(("mode", "verdict"), [(0o2775, "PASS"), (0o777, "UNSURE"), (0o1777, "FAIL"), (0o1770, "FAIL")])
def test_mode_of_the_directory(tmp_path: Path, mode: int, verdict: str) -> None:
    tmp_path.chmod(mode)
    try:
        assert judged.judge_directory(tmp_path).verdict == verdict
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize(
    ("room", "wanted"),
    [
        (Room(2**40, 10**9), ["PASS", "PASS"]),
        (Room(2**40, None), ["PASS", "PASS"]),
        (Room(2**29, 10**4), ["UNSURE", "UNSURE"]),
        (Room(2**20, 10), ["FAIL", "FAIL"]),
    ],
)
def test_room_for_bytes_and_for_names(room: Room, wanted: list[str]) -> None:
    assert [check.verdict for check in judge_room(room)] == wanted


def test_room_is_what_the_file_system_says(tmp_path: Path) -> None:
    room, said = room_of(tmp_path), os.statvfs(tmp_path)
    assert 0 <= room.bytes_left <= said.f_blocks * said.f_frsize


@pytest.mark.parametrize(
    ("off", "verdict"),
    [(0, "PASS"), (2 * SECOND, "PASS"), (3 * SECOND, "UNSURE"), (-60 * MINUTE, "UNSURE")],
)
def test_server_clock_that_is_off(off: int, verdict: str) -> None:
    local = TimeInterval(10**18, 10**18)
    assert judged.judge_server_clock(10**18 + off, local).verdict == verdict
    assert judged.judge_server_clock(10**18 + 2 * MINUTE, local).verdict is CheckVerdict.FAIL


# ---- the machine ----


def as_user(monkeypatch: pytest.MonkeyPatch, user: int, umask: int) -> dict[str, CheckVerdict]:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    before = os.umask(umask)
    try:
        return verdicts(command._user())
    finally:
        os.umask(before)


def test_machine_that_will_do_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_user(monkeypatch, 1000, 0o002) == {"user": CheckVerdict.PASS, "umask": CheckVerdict.PASS}
    found = [
        *command._tmpfs(),
        judge_clock(5 * MS, "", "chrony"),
        *command._randomness(),
        judge_reached(["beta"], {}),
    ]
    assert {check.verdict for check in found} == {CheckVerdict.PASS}
    assert exit_status(found) == 0


def test_each_fault_of_a_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_yet(*_: int) -> bytes:
        raise BlockingIOError

    assert as_user(monkeypatch, 0, 0o022) == {"user": CheckVerdict.FAIL, "umask": CheckVerdict.UNSURE}
    monkeypatch.setattr(judged, "mount_of", lambda _: replace(NFS, kind="ext4"))
    assert verdicts(command._tmpfs()) == {"tmpfs": CheckVerdict.FAIL}
    monkeypatch.setattr(os, "getrandom", nothing_yet)
    assert verdicts(command._randomness()) == {"randomness": CheckVerdict.FAIL}
    assert judge_clock(None, "kernel: unsynchronised", "").verdict is CheckVerdict.FAIL
    assert judge_clock(251 * MS, "", "chrony").verdict is CheckVerdict.FAIL
    silent = judge_reached([], {"beta": "10.0.0.8:7421"})
    assert (silent.verdict, "beta at 10.0.0.8:7421" in silent.reason) == (CheckVerdict.UNSURE, True)
    assert "7420" not in silent.way_out


def test_exit_status_is_that_of_the_worst() -> None:
    assert exit_status([passed("a", "b")]) == 0
    assert exit_status([passed("a", "b"), unsure("a", "b", "c")]) == 3
    assert exit_status([unsure("a", "b", "c"), HealthCheck("a", CheckVerdict.FAIL, "b", "c")]) == 1


# ---- the command ----


def asked(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    status = main(["doctor", str(path), "--json", *words])
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "tenure.doctor"
    assert status == (1 if told["summary"]["FAIL"] else 3 if told["summary"]["UNSURE"] else 0)
    assert all(check["way_out"] for check in told["checks"] if check["verdict"] != "PASS")
    return {check["check"]: check for check in told["checks"]}


def test_empty_directory_is_looked_at_and_left_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(tmp_path, capsys)
    for name in ("directory mode", "user mapping", "hard links", "exclusive create", "listing", "tmpfs", "root"):
        assert found[name]["verdict"] == "PASS", found[name]
    assert list(tmp_path.iterdir()) == []
    assert main(["doctor", str(tmp_path)]) in (1, 3)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("PASS    hard links") for line in lines)


def test_node_that_has_joined_is_looked_at(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--node-dir", str(site.node_dir())]
    found = asked(site.root, capsys, *words)
    assert (found["node"]["verdict"], found["root"]["verdict"]) == ("PASS", "PASS")
    key = site.node_dir() / "witness.key"
    key.chmod(0o644)
    found = asked(site.root, capsys, *words)
    assert found["node"]["verdict"] == "FAIL"
    assert "0644" in found["node"]["reason"]


def test_keys_that_count_no_more_fail(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    revoke_node(site.registers, site.root_key, "node1", 0)
    found = asked(site.root, capsys, "--node-dir", str(site.node_dir()))
    assert (found["keys"]["verdict"], "revoked" in found["keys"]["reason"]) == ("FAIL", True)


def test_directory_that_is_not_there_fails_once_and_the_rest_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(tmp_path / "none", capsys)
    assert found["directory"]["verdict"] == "FAIL"
    on_mount = {name: found[name]["verdict"] for name in ("files", "room", "server clock", "node")}
    assert set(on_mount.values()) == {"UNSURE"}
    assert "root" not in found


def test_path_of_control_characters_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "\x1b[31m")]) == 1
    assert f"No such file or directory: {tmp_path}/\\x1b[31m\n" in capsys.readouterr().out


def test_root_that_the_environment_names_is_looked_at(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_ROOT", raising=False)
    words = ["doctor", "--json", "--node-dir", str(site.node_dir())]
    assert main(words) == 2
    assert "TENURE_ROOT" in capsys.readouterr().err
    monkeypatch.setenv("TENURE_ROOT", str(site.root))
    assert main(words) in (0, 1, 3)
    assert json.loads(capsys.readouterr().out)["path"] == str(site.root)


# An NFS server that is away makes calls wait for ever: that is a finding, and no reason to wait with it.
def test_mount_that_hangs_fails_one_line_and_is_asked_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked_for = threading.Event(), queue.SimpleQueue[str | None]()
    monkeypatch.setattr(command, "find_agent", lambda root, _node_dir: asked_for.put(root))
    monkeypatch.setattr(command, "_files", lambda _path: answer.wait() or [])
    try:
        found = {check.name: check for check in command.look_at(tmp_path, None, patience_s=2.0)}
    finally:
        answer.set()
    assert found["files"].verdict is CheckVerdict.FAIL
    assert "no answer" in found["files"].reason
    assert (found["room"].verdict, found["node"].verdict) == (CheckVerdict.UNSURE, CheckVerdict.UNSURE)
    assert found["tmpfs"].verdict is CheckVerdict.PASS
    assert asked_for.get(timeout=60) is None  # a root's agent is found by reading there


def test_line_about_the_machine_that_hangs_does_not_make_the_mount_answer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    for name in ("_files", "_clock"):
        monkeypatch.setattr(command, name, lambda *_: answer.wait() or [])
    try:
        found = {check.name: check for check in command.look_at(tmp_path, None, patience_s=2.0)}
    finally:
        answer.set()
    assert (found["files"].verdict, found["clock"].verdict) == (CheckVerdict.FAIL, CheckVerdict.FAIL)
    assert (found["node"].verdict, found["node"].reason) == (CheckVerdict.UNSURE, "not asked: the mount hangs")


def test_refusal_of_the_operating_system_fails_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_trial: TrialDirectory) -> HealthCheck:
        raise OSError(95, "Operation not supported")

    def full(_path: Path) -> list[HealthCheck]:
        raise Environment("mount-full", "no space left", hint="free some")

    monkeypatch.setattr(TrialDirectory, "linked", refused)
    monkeypatch.setattr(command, "_server_clock", full)
    found = {check.name: check for check in command.look_at(tmp_path, None)}
    assert found["hard links"].verdict is CheckVerdict.FAIL
    assert found["exclusive create"].verdict is CheckVerdict.PASS
    assert (found["server clock"].verdict, found["server clock"].way_out) == (CheckVerdict.FAIL, "free some")
    assert list(tmp_path.iterdir()) == []


def test_port_that_another_process_has_without_answering_is_in_the_way() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert command._port(Address("127.0.0.1", port)).verdict is CheckVerdict.FAIL
        taken.listen()
        assert command._port(Address("127.0.0.1", port)).verdict is CheckVerdict.PASS
