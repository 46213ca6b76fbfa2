"""Good, racy, lying and forgetful object stores are told apart, and only on a good one a cluster is founded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.bag.objects import ObjectStatus
from appliance.doctor.health import CheckVerdict, HealthCheck
from appliance.doctor.probes import StoreProbe
from tenure.__main__ import main
from tests.support.object_store import MemoryBucket, S3Server, s3_server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(monkeypatch) as serving:
        yield serving


def probed(bucket: MemoryBucket) -> list[HealthCheck]:
    return StoreProbe([bucket, bucket], "t").run()


def test_good_store_passes_and_keeps_nothing() -> None:
    bucket = MemoryBucket()
    assert [check.verdict for check in probed(bucket)] == [CheckVerdict.PASS] * 4
    assert bucket.objects == {}


class Forgetful(MemoryBucket):
    """Shows in its listings what was there when it was listed the last time but ``behind``."""

    def __init__(self, behind: int) -> None:
        super().__init__()
        self._behind = behind
        self._shown: dict[str, list[list[str]]] = {}

    def names(self, directory: str) -> list[str]:
        shown = self._shown.setdefault(directory, [[]] * self._behind)
        shown.append(super().names(directory))
        return shown.pop(0)


class Blind(MemoryBucket):
    """Lists nothing where something was put a moment ago."""

    def names(self, directory: str) -> list[str]:
        return [] if "/bag." in directory else super().names(directory)

    def status(self, key: str) -> ObjectStatus | None:
        return None if key.endswith("/prelock") else super().status(key)


class Swapping(MemoryBucket):
    """Says who won, and shows another's bytes."""

    def get(self, key: str, offset: int = 0, limit: int | None = None) -> bytes | None:
        return b"another's" if "/race." in key else super().get(key, offset, limit)


@pytest.mark.parametrize(
    ("bucket", "name"),
    [(Forgetful(1), "seen at once"), (Blind(), "writer and closer"), (Swapping(), "racing puts")],
    ids=["old listings", "neither sees the other", "other bytes"],
)
def test_what_a_store_does_not_keep_is_named(bucket: MemoryBucket, name: str) -> None:
    *before, last = probed(bucket)
    assert all(check.verdict is CheckVerdict.PASS for check in before)
    assert (last.name, last.verdict) == (name, CheckVerdict.FAIL)
    assert last.way_out


def probe(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(["probe", "s3://bucket/root"])
    return status, capsys.readouterr().out


def test_store_that_speaks_s3_is_probed(server: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = probe(capsys)
    assert (status, said.count("PASS")) == (0, 4)
    assert server.objects == {}


def test_store_that_ignores_conditions_lies(server: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.conditional = False
    status, said = probe(capsys)
    assert status == 1
    assert "FAIL    second put  lies" in said


# It looks first and puts afterwards: asked one thing after another it is as good as any.
def test_store_that_looks_first_and_puts_afterwards_races(server: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.pause_s = 0.05
    status, said = probe(capsys)
    assert status == 1
    assert "PASS    second put" in said
    assert "FAIL    racing puts" in said
    assert "races: of 16" in said


def test_cluster_is_founded_on_a_good_store_only(
    server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["init", "s3://bucket/root", "--node", "n1", "--node-dir", str(tmp_path / "n1"), "--allow-root"]
    words += ["--assume-radius", "5ms"]
    server.conditional = False
    assert main(words) == 74
    assert "store-unfit" in capsys.readouterr().err
    assert server.objects == {}
    assert not (tmp_path / "n1").exists()
    server.conditional = True
    assert main(words) == 0
    assert "root/TENURE" in server.objects
    assert main([*words[:2], *words[2:]]) == 0  # once more: it says what is there
    assert "already" in capsys.readouterr().out


def test_doctor_looks_at_directories_and_says_what_looks_at_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "s3://bucket/root"]) == 2
    assert "tenure probe s3://bucket/root" in capsys.readouterr().err


def test_mount_is_probed_by_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(tmp_path)]) == 2
    assert "--peer" in capsys.readouterr().err
