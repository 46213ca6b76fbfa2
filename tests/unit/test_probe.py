"""The probe of two clients: it passes on one directory, and names each way in which two clients can disagree."""

from __future__ import annotations

import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.cli import doctor as command
from appliance.doctor.file_system import TrialDirectory
from appliance.doctor.health import CheckVerdict, HealthCheck
from appliance.doctor.probes import ABSENCES, TwoHands
from tenure.__main__ import main
from timeagent.clock import SystemClock
from timeagent.errors import BadRequest, Environment


class Hands:
    """A pair of hands on a directory in memory that both share: a client that does what it should."""

    def __init__(self, shared: dict[str, str]) -> None:
        self.shared = shared
        self.missing: set[str] = set()

    def ask(self, verb: str, *words: str) -> bool | str:
        said: bool | str = getattr(self, verb)(*words)
        return said

    def make(self, name: str, data: str) -> bool:
        return self.shared.setdefault(name, data) is data and self._fresh(name)

    def _fresh(self, name: str) -> bool:
        key = f"made {name}"
        fresh = key not in self.shared
        self.shared[key] = ""
        return fresh

    def append(self, name: str, data: str) -> bool:
        self.shared[name] += data
        return True

    def link(self, name: str, source: str) -> bool:
        if not self._fresh(name):
            return False
        self.shared[name] = self.shared[source]
        return True

    def sees(self, name: str) -> bool:
        return name in self.shared

    def sees_afresh(self, name: str) -> bool:
        return name in self.shared

    def read(self, name: str) -> str:
        return self.shared.get(name, "")


class RemembersAbsences(Hands):
    """As NFS does: a bare stat answers from memory, opening the directory cures it."""

    def sees(self, name: str) -> bool:
        if name not in self.shared:
            self.missing.add(name)
        return name not in self.missing

    def sees_afresh(self, name: str) -> bool:
        self.missing.discard(name)
        return super().sees_afresh(name)


class KeepsAbsences(RemembersAbsences):
    def sees_afresh(self, name: str) -> bool:
        return self.sees(name)


class SeesNothingNew(Hands):
    def sees_afresh(self, name: str) -> bool:
        return not name.startswith("seen.") and super().sees_afresh(name)


class ReadsOldBytes(Hands):
    def __init__(self, shared: dict[str, str]) -> None:
        super().__init__(shared)
        self.cached: dict[str, str] = {}

    def read(self, name: str) -> str:
        return self.cached.setdefault(name, super().read(name))


class AlwaysWins(Hands):
    def link(self, name: str, source: str) -> bool:
        super().link(name, source)
        return True

    def make(self, name: str, data: str) -> bool:
        super().make(name, data)
        return True


class NeverWins(Hands):
    def link(self, name: str, source: str) -> bool:
        return super().link(name, source) and False

    def make(self, name: str, data: str) -> bool:
        return super().make(name, data) and not name.startswith("exclusive")


class ReadsItself(Hands):
    """Both have one winner, and each reads its own."""

    def read(self, name: str) -> str:
        return "there" if name.startswith(("link", "exclusive")) else super().read(name)


class NoWait:
    def realtime_ns(self) -> int:
        return 0

    def boot_ns(self) -> int:
        return 0

    monotonic_ns = raw_ns = boot_ns

    def sleep(self, span: int) -> None:
        SystemClock().sleep(span // 50)


def experiments(there: type[Hands], *, shared: bool = True) -> dict[str, HealthCheck]:
    directory: dict[str, str] = {}
    two = TwoHands(Hands(directory), there(directory if shared else {}), random.Random(1), NoWait())
    return {check.name: check for check in command._experiments(two)}


def test_clients_that_do_what_they_should_pass() -> None:
    found = experiments(Hands)
    assert all(check.verdict is not CheckVerdict.FAIL for check in found.values())
    assert len(found) == 6
    remembering = experiments(RemembersAbsences)["absent names"]
    assert remembering.verdict is CheckVerdict.PASS
    assert f"{ABSENCES // 2} of {ABSENCES}" in remembering.reason


@pytest.mark.parametrize(
    ("there", "name"),
    [
        (SeesNothingNew, "names after opening"),
        (KeepsAbsences, "absent names"),
        (ReadsOldBytes, "bytes after closing"),
        (AlwaysWins, "link race"),
        (AlwaysWins, "exclusive race"),
        (NeverWins, "link race"),
        (NeverWins, "exclusive race"),
        (ReadsItself, "link race"),
        (ReadsItself, "exclusive race"),
    ],
)
def test_client_that_disagrees_is_named(there: type[Hands], name: str) -> None:
    found = experiments(there)
    assert found[name].verdict is CheckVerdict.FAIL
    assert found[name].way_out


def test_two_directories_are_found_to_be_two() -> None:
    found = experiments(Hands, shared=False)
    assert [(check.name, check.verdict) for check in found.values()] == [("one directory", CheckVerdict.FAIL)]


# ---- the command ----


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main(["probe", *words, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "tenure.probe"
    return status, {check["check"]: check["verdict"] for check in told["checks"]}


def test_second_mount_is_asked_and_nothing_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = asked(capsys, str(tmp_path), "--second", str(tmp_path))
    assert status in (0, 3)
    assert set(found.values()) <= {"PASS", "UNSURE"}
    assert found["one directory"] == "PASS"
    assert list(tmp_path.iterdir()) == []


def test_peer_is_asked_by_ssh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, root = tmp_path / "tools", tmp_path / "root"
    tools.mkdir()
    root.mkdir()
    script = tools / "ssh"
    # The host is the last but one word; what runs there is one word for its shell.
    script.write_text(
        '#!/bin/sh\nfor word; do host="$last"; last="$word"; done\n[ "$host" = beta ] || exit 255\nexec sh -c "$last"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    words = ["--peer-command", f"{sys.executable} -m tenure", "--peer-path", str(root)]
    status, found = asked(capsys, str(root), "--peer", "beta", *words)
    assert status in (0, 3)
    assert found["one directory"] == "PASS"
    assert main(["probe", str(root), "--peer", "gamma", *words]) == 74
    assert "peer-gone" in capsys.readouterr().err
    assert main(["probe", str(root), "--peer=-oProxyCommand=x"]) == 2
    assert list(root.iterdir()) == []


def test_other_client_answers_what_it_can_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hands = TrialDirectory(tmp_path, "probe.x")
    hands.__enter__()
    asked_ = [
        '["make", "a", "1"]',
        "junk",
        '["end"]',
        '["read", "../x"]',
        '["append", "none", "1"]',
        '["read", "a"]',
        "[]",
        "[" * 100_000,
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(asked_)))
    assert command.serve(hands) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.get("said") for answer in answers] == [True, None, None, None, None, "1", None, None]
    assert all("problem" in answer for answer in answers if "said" not in answer)
    hands.__exit__(None, None, None)


def test_peer_that_says_nothing_is_given_up() -> None:
    there = command.FarHands(["sleep", "30"], patience_s=0.3)
    with pytest.raises(Environment) as silent:
        there.ask("sees", "x")
    assert silent.value.code == "peer-silent"
    there._process.kill()
    there.close()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a..b", "A", "x" * 65])
def test_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadRequest):
        TrialDirectory(tmp_path, "probe.x").sees(name)
