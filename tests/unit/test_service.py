"""This machine's units: how they are named, who switches them, and as whom the rest is done."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from appliance.cli import service
from timeagent.errors import BadRequest, Environment

ROOTS = ("/srv/tenure", "/", "/a-b/c d", "/mnt/.hidden", "/.x/y", "/über/ß", "//a//b/", "/a:b_c.d/e@f")


@pytest.mark.skipif(shutil.which("systemd-escape") is None, reason="systemd-escape is not installed (Debian: systemd)")
@pytest.mark.parametrize("root", ROOTS)
def test_instance_is_what_systemd_says(root: str) -> None:
    said = subprocess.run(["systemd-escape", "-p", root], capture_output=True, text=True, check=True, timeout=60)
    assert service.instance(Path(root)) == said.stdout.strip()


def test_instance_of_a_plain_path() -> None:
    assert service.units(Path("/srv/tenure")) == [
        "tenure-time@srv-tenure.service",
        "tenure-node@srv-tenure.service",
        "tenure@srv-tenure.target",
    ]


class Systemctl:
    """A systemctl that notes what it was asked, and fails where it is told to."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = place / "asked"
        script = place / "systemctl"
        script.write_text(f'#!/bin/sh\necho "$@" >> {self.log}\n[ ! -e {place}/fails ] || {{ echo no >&2; exit 5; }}\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
        monkeypatch.setattr(service, "_RUNNING", place)
        monkeypatch.setattr(service, "_UNIT_PATHS", (str(place),))
        (place / "tenure@.target").touch()
        self.fails = place / "fails"

    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    return Systemctl(tmp_path, monkeypatch)


def test_units_are_enabled_and_started(systemctl: Systemctl) -> None:
    assert service.is_there()
    service.switch_on(Path("/srv/x"))
    assert systemctl.asked() == [
        f"--no-ask-password enable --quiet {' '.join(service.units(Path('/srv/x')))}",
        "--no-ask-password start tenure@srv-x.target",
    ]


def test_units_are_disabled_and_stopped_the_target_first(systemctl: Systemctl) -> None:
    service.switch_off(Path("/srv/x"))
    assert systemctl.asked()[-2].endswith("kill --signal=SIGINT tenure-node@srv-x.service")
    assert systemctl.asked()[-1].endswith(
        "stop tenure@srv-x.target tenure-node@srv-x.service tenure-time@srv-x.service"
    )


def test_failure_of_systemctl_is_an_error_that_says_what_it_said(systemctl: Systemctl) -> None:
    systemctl.fails.touch()
    with pytest.raises(Environment, match=r"systemctl start tenure-time@srv-x\.service .*: no") as caught:
        service.start(Path("/srv/x"))
    assert "--no-systemd" in caught.value.hint


@pytest.mark.parametrize("wanted", [True, False])
def test_who_may_not_switch_units_is_told_how(
    systemctl: Systemctl, *, wanted: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    service.offered(Path("/srv/x"), wanted=wanted)
    assert systemctl.asked() == []
    assert "systemctl enable --now" in capsys.readouterr().err


def test_machine_without_units_is_told_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "_RUNNING", tmp_path / "gone")
    service.offered(Path("/srv/x"), wanted=True)
    assert "tenure node run --root /srv/x" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become somebody else")
def test_work_of_the_superuser_is_done_as_the_service_user(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "USER", "nobody")
    nobody = pwd.getpwnam("nobody")

    def work() -> int:
        os.write(1, f"{os.getresuid()} {os.getresgid()} {oct(os.umask(0))}".encode())
        return 3

    assert service.as_own_user(work) == 3
    assert capfd.readouterr().out == f"{(nobody.pw_uid,) * 3} {(nobody.pw_gid,) * 3} 0o2"
    assert os.geteuid() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become somebody else")
def test_error_of_that_work_is_told_and_its_exit_code_kept(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "USER", "nobody")

    def work() -> int:
        raise BadRequest("some-code", "what is wrong", hint="do this")

    assert service.as_own_user(work) == BadRequest.exit_status
    assert "what is wrong [some-code]" in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become somebody else")
@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (PermissionError(13, "Permission denied", "/srv/x"), 74, "/srv/x: Permission denied [input-output]"),
        (RuntimeError("nobody expected it"), 70, "[defect]"),
        (SystemExit(143), 143, ""),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_whatever_else_ends_that_work_is_told_and_has_the_code_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], raised: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr(service, "USER", "nobody")

    def work() -> int:
        raise raised

    assert service.as_own_user(work) == code
    assert said in capfd.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can become somebody else")
def test_signal_that_ends_that_work_is_in_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "USER", "nobody")

    def work() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert service.as_own_user(work) == 128 + signal.SIGKILL


def test_machine_without_that_user_does_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "USER", "nobody-of-that-name")
    assert service.as_own_user(lambda: os.getpid() % 1000) == os.getpid() % 1000
