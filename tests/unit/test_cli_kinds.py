"""Logs of both kinds by the command line: made on request, refused if of the other kind, read back to the byte."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from appliance.cluster import Cluster
from appliance.formats.birth import BagKind
from tests.support.cluster import Site
from tests.support.round_trip import LOG, RoundTrip
from tests.support.spoken import spoken
from timeagent.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path


def say(site: Site, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = spoken(*words, *site.options())
    assert done.returncode == status, done.stderr
    return done


def data_files(site: Site, log: str) -> set[str]:
    return {path.suffix for path in (site.root / "logs" / log).rglob("*.*") if path.suffix in (".msg", ".log")}


@pytest.mark.parametrize(
    ("words", "suffix"), [((), ".msg"), (("--kind", "maildir"), ".msg"), (("--kind", "log"), ".log")]
)
def test_kind_counts_when_the_log_is_made(site: Site, tmp_path: Path, words: tuple[str, ...], suffix: str) -> None:
    (tmp_path / "in").write_bytes(b"one\ntwo\n")
    said = say(site, "publish", "orders", str(tmp_path / "in"), "--lease", "a", *words)
    assert "2 messages committed" in said.stderr
    assert data_files(site, "orders") == {suffix}
    say(site, "publish", "orders", str(tmp_path / "in"), "--lease", "a")
    assert data_files(site, "orders") == {suffix}
    assert say(site, "read", "orders", "--level", "latest").stdout == "one\ntwo\none\ntwo\n"


def test_other_kind_than_the_logs_is_refused_by_name(site: Site, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\n")
    say(site, "publish", "orders", str(tmp_path / "in"), "--lease", "a", "--kind", "log")
    said = say(site, "publish", "orders", str(tmp_path / "in"), "--lease", "a", "--kind", "maildir", status=2)
    for word in ("other-kind", "orders", "maildir", "log"):
        assert word in said.stderr
    assert say(site, "read", "orders", "--level", "latest").stdout == "one\n"


def test_log_is_made_by_the_library(site: Site) -> None:
    with site.open() as cluster:
        assert isinstance(cluster, Cluster)
        cluster.create_log("orders", "log")
        cluster.create_log("orders", "log")
        assert cluster.logs.opened("orders").grid.birth.kind is BagKind.LOG
        with pytest.raises(BadRequest, match="other-kind"):
            cluster.create_log("orders")
        with pytest.raises(BadRequest, match="bad-kind"):
            cluster.create_log("more", "pile")


if TYPE_CHECKING:
    from pathlib import Path

MANY = 20_000


@pytest.mark.verify
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", list(BagKind))
def test_many_messages_come_back_to_the_byte_before_and_after_packing(
    site: Site, tmp_path: Path, kind: BagKind
) -> None:
    RoundTrip(site, tmp_path / "trip", kind, MANY).run()


def test_one_altered_byte_is_noticed(site: Site, tmp_path: Path) -> None:
    trip = RoundTrip(site, tmp_path / "trip", BagKind.LOG, 50)
    trip.say("publish", "publish", LOG, str(trip.sent), "--lease", "a")
    trip.sent.write_bytes(trip.sent.read_bytes()[:-2] + b"?\n")
    with pytest.raises(AssertionError, match="is not what was sent"):
        trip.read_back("read latest", "--level", "latest")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", list(BagKind))
def test_a_million_messages_come_back_to_the_byte_before_and_after_packing(
    site: Site, tmp_path: Path, kind: BagKind
) -> None:
    RoundTrip(site, tmp_path / "trip", kind, 1_000_000).run()
