"""Keys that are rotated under running processes: daemons, time agents and applications, under load.

Each takes its next keys up by itself. Who cannot stops before its keys end, and says so. What signs on all the same is
named by the audit for what it is.
"""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.opening import open_tree
from tests.support.atwork import CLOCK, PATIENCE_NS, AtWork
from tests.support.cluster import wait_until
from tests.support.daemons import Daemons
from tests.support.ports import free_port
from timeagent.keys import Purpose
from timeagent.units import DAY, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.cluster import Site

pytestmark = pytest.mark.timeout(300)
DEAF = """
import sys
from appliance.node.own_keys import OwnKeys
OwnKeys.look = lambda *_: None
from tenure.__main__ import entry
sys.exit(entry())
"""
"""A daemon as it was before it looked for its keys."""


def rotated(daemons: Daemons, node: str, overlap: str, *words: str) -> int:
    """Rotate a node's keys by the command; return when the earlier ones end."""
    root_key = str(daemons.site.root_key_file)
    done = daemons.tenure(node, "trust", "rotate", "--root-key", root_key, "--overlap", overlap, *words)
    assert done.returncode == 0, done.stderr
    number = daemons.site.registers.newest().trust
    ends = {each.valid_until_ns for each in daemons.site.registers.trust(number).keys if each.node == node}
    return max(end for end in ends if end < CLOCK.realtime_ns() + DAY)


def pass_by(instant: int) -> None:
    """Wait until an instant is past."""
    wait_until(CLOCK, lambda: CLOCK.realtime_ns() > instant, PATIENCE_NS)


def violations(site: Site) -> dict[str, int]:
    """Audit the root; count its violations by code."""
    found = audit(open_tree(site.root), root_key=site.root_key.public).findings
    wrong = [each.code for each in found if each.verdict is Verdict.VIOLATION]
    return {code: wrong.count(code) for code in wrong}


def log_of(site: Site, node: str, name: str = "stderr.log") -> str:
    return (site.node_dir(node) / name).read_text()


@pytest.fixture
def work(tmp_path: Path) -> Iterator[AtWork]:
    with AtWork(tmp_path, "node1", "node2", agents=("node1",)) as each:
        yield each


@pytest.mark.verify
def test_daemons_agents_and_applications_take_their_next_keys_up_under_load(work: AtWork) -> None:
    daemons, site = work.daemons, work.daemons.site
    work.more(20)
    first = max(rotated(daemons, node, "3s") for node in ("node1", "node2"))
    work.more(20)
    pass_by(first + SECOND)
    work.more(20)
    second = max(rotated(daemons, node, "2s") for node in ("node1", "node2"))
    pass_by(second + SECOND)
    work.more(20)
    for node in ("node1", "node2"):
        told = json.loads(daemons.tenure(node, "status", "--json").stdout)["checks"]
        assert {each["check"]: each["verdict"] for each in told}["keys"] == "PASS", told
        taken = [line for line in log_of(site, node).splitlines() if "key-taken-up" in line]
        for purpose in (Purpose.WITNESS, Purpose.TLS):
            assert sum(f"purpose={purpose} " in line for line in taken) == 2, taken
    assert log_of(site, "node1", "agent.log").count("key-taken-up purpose=time") == 2
    work.finish()
    assert [daemons.stop(node) for node in ("node1", "node2", "node1 agent")] == [0, 0, 0]
    assert violations(site) == {}


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with Daemons(tmp_path, "node1", "node2") as each:
        yield each


def domain_of(daemons: Daemons, node: str) -> str:
    with daemons.site.open("node1") as cluster:
        owned = (f"d{n}" for n in range(999) if cluster.map.owners[cluster.map.shard_of(f"d{n}")] == node)
        return next(owned)


# As under systemd, whose credentials are copies that stay as they were when the daemon began.
def test_daemon_that_cannot_take_its_next_keys_up_stops_before_the_end_and_says_so(
    daemons: Daemons, tmp_path: Path
) -> None:
    site, credentials, port = daemons.site, tmp_path / "credentials", free_port()
    credentials.mkdir()
    for purpose in Purpose:
        shutil.copy2(site.node_dir("node2") / f"{purpose}.key", credentials)
    settings = site.node_dir("node2") / "node.toml"
    settings.write_text(settings.read_text().replace("listen =", f'http = "127.0.0.1:{port}"\nlisten ='))
    daemons.start("node1")
    daemons.start("node2", environment={"CREDENTIALS_DIRECTORY": str(credentials)})
    domain = domain_of(daemons, "node2")
    end = rotated(daemons, "node2", "14s")
    wait_until(CLOCK, lambda: "key-ends purpose=witness" in log_of(site, "node2"), PATIENCE_NS)
    told = json.loads(daemons.tenure("node2", "status", "--json").stdout)["checks"]
    (keys,) = [each for each in told if each["check"] == "keys"]
    assert keys["verdict"] == "UNSURE"
    assert "witness until" in keys["reason"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        metrics = answer.read().decode()
    (told_end,) = re.findall(r'^tenure_key_end_timestamp_seconds{purpose="witness"} (.*)$', metrics, re.MULTILINE)
    assert float(told_end) == end / SECOND

    def unready() -> str:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20).close()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.read().decode()
        return ""

    wait_until(CLOCK, lambda: "no shard may run with these keys" in unready(), PATIENCE_NS)
    assert CLOCK.realtime_ns() < end
    assert daemons.running["node2"].wait(60) == 77
    assert CLOCK.realtime_ns() < end, "in good order: the last record is signed with keys that count"
    assert "[key-not-trusted]" in log_of(site, "node2")
    pass_by(end)
    taken = daemons.tenure("node1", "lease", "acquire", domain, "--wait", "60s")
    assert taken.returncode == 0, taken.stderr
    assert daemons.stop("node1") == 0
    assert violations(site) == {}


def test_what_a_deaf_daemon_signs_after_the_end_of_its_keys_is_no_forgery(daemons: Daemons) -> None:
    daemons.start("node1", program=("-c", DEAF))
    daemons.start("node2")
    domain = domain_of(daemons, "node1")
    pass_by(rotated(daemons, "node1", "0s", "--purpose", "witness") + SECOND)
    assert daemons.tenure("node2", "lease", "acquire", domain).returncode == 0
    daemons.kill("node1")
    daemons.kill("node2")
    assert set(violations(daemons.site)) == {"ended-key"}
