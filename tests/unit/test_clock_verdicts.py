"""``doctor`` and ``status`` say the same of this machine's clock: the verdict, the reason and the way out."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import appliance.cli.doctor as command
from appliance.demo.machines import DemoPlace, set_up_place
from tenure.__main__ import main
from tests.support.mutants import plant
from timeagent.clock import SystemClock
from timeagent.errors import BadTime


class _Nothing:
    """A kernel whose clock nobody bounds."""

    name = "kernel"

    def __init__(self, _machine: object) -> None: ...

    def sample(self) -> None:
        raise BadTime("not-synchronized", "the kernel states no bound")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DemoPlace]:
    made = set_up_place(tmp_path / "demo", 1, SystemClock().realtime_ns(), random.Random(str(tmp_path)))
    yield made
    made.forget()


def clock_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    main([*words, "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    (found,) = [each for each in checks if each["check"] == "clock"]
    assert isinstance(found, dict)
    return found


def both(place: DemoPlace, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, object], dict[str, object]]:
    node_dir = ["--node-dir", str(place.machines[0].directory)]
    return (
        clock_line(["doctor", str(place.root), *node_dir], capsys),
        clock_line(["status", "--root", str(place.root), *node_dir, "--allow-root"], capsys),
    )


def test_assumed_radius_is_said_by_both(
    place: DemoPlace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("timeagent.agent.settings.own_sources", lambda *_: [])
    monkeypatch.setattr("appliance.cluster.KernelSource", _Nothing)
    doctor, status = both(place, capsys)
    assert doctor == status
    assert doctor["verdict"] == "PASS"
    assert "assumed: the policy states it, nothing measures it" in str(doctor["reason"])


def test_doctor_that_knows_no_policy_is_caught(
    place: DemoPlace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(monkeypatch, command, "_clock", "_assumed_radius(path)", "0")
    with pytest.raises(AssertionError):
        test_assumed_radius_is_said_by_both(place, monkeypatch, capsys)
