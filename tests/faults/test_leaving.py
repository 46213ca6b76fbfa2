"""Nodes come, go and change their release: real daemons by TCP, the commands as an operator calls them."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from appliance.admin.membership import given_away, has_left, shards_of
from appliance.formats.shardmap import shard_text
from appliance.node import releases
from tests.support.daemons import Daemons
from timeagent.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with Daemons(tmp_path, "alpha", "beta", "gamma") as running:
        yield running


def leave(daemons: Daemons, node: str, *words: str, key: bool = True) -> tuple[int, dict[str, Any], str]:
    """`tenure leave`, on a node."""
    options = ["--node-dir", str(daemons.site.node_dir(node)), "--allow-root", "--json"]
    keys = ["--root-key", str(daemons.site.root_key_file)] * key
    done = daemons.command("leave", str(daemons.site.root), *options, *keys, *words)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def checks(daemons: Daemons, node: str, *command: str) -> dict[str, dict[str, Any]]:
    done = daemons.tenure(node, *command, "--json")
    return {each["check"]: each for each in json.loads(done.stdout)["checks"]}


def test_node_leaves_in_good_order_and_says_what_it_did_not_do(daemons: Daemons) -> None:
    daemons.start("alpha", "beta", "gamma")
    site = daemons.site
    published = daemons.tenure("alpha", "publish", "ledger", "--lease", "account/7", stdin="credit 5\n")
    assert published.returncode == 0, published.stderr

    # The daemon runs still: its shard is handed over, its keys are left to it.
    code, _, said = leave(daemons, "beta")
    assert (code, "daemon-runs" in said) == (75, True), said
    assert shards_of(site.registers, "beta") == []
    assert not has_left(site.registers, "beta", time.time_ns())
    assert daemons.stop("beta") == 0

    code, told, said = leave(daemons, "beta")
    assert (code, told["left"], told["shards"]) == (0, True, []), said
    assert any("settings and keys stay" in line for line in told["remains"])
    number = site.registers.newest().trust
    code, again, _ = leave(daemons, "beta")
    assert (code, again["left"], site.registers.newest().trust) == (0, True, number)

    # What it left behind is whole: the others run every shard, and do not look for it.
    status = checks(daemons, "alpha", "status")
    shards = map(shard_text, site.registers.newest_map().shards)
    assert [status[f"shard {each}"]["verdict"] for each in shards] == ["PASS"] * 3
    assert "beta" not in status["releases"]["reason"]
    refused = daemons.tenure("beta", "publish", "ledger", "--lease", "account/8", stdin="x\n")
    assert refused.returncode == 77, refused.stderr


def test_shards_are_given_to_no_node_that_does_not_answer(daemons: Daemons) -> None:
    daemons.start("alpha", "gamma")
    code, _, said = leave(daemons, "alpha", "--to", "beta")
    assert (code, "[node-silent]" in said, "--to NODE" in said) == (69, True, True), said
    assert shards_of(daemons.site.registers, "alpha") == [0]
    code, _, said = leave(daemons, "alpha", "--to", "gamma")
    assert (code, "daemon-runs" in said) == (75, True), said
    assert daemons.site.registers.newest_map().owners[0] == "gamma"


# Called again, as it says: its keys count until somebody else runs what it gave away.
def test_keys_are_kept_until_others_run_its_shards_however_often_it_is_called(daemons: Daemons) -> None:
    daemons.start("beta")
    key = ("--root-key", str(daemons.site.root_key_file))
    moved = daemons.tenure("beta", "shards", "move", "1", "gamma", "--silent-too", *key)
    assert moved.returncode == 0, moved.stderr
    for _ in range(2):
        code, _, said = leave(daemons, "beta", "--wait", "0s")
        assert (code, "not-handed-over" in said) == (75, True), said
    daemons.start("gamma")
    code, _, said = leave(daemons, "beta")
    assert (code, "daemon-runs" in said) == (75, True), said


def test_without_the_root_key_it_says_what_remains(daemons: Daemons) -> None:
    code, told, _ = leave(daemons, "gamma", key=False)
    assert (code, told["left"], told["shards"]) == (1, False, [2])
    remains = "\n".join(told["remains"])
    assert "tenure shards move 2 alpha" in remains
    assert f"tenure leave {daemons.site.root} --node gamma" in remains


def test_lost_node_is_taken_out_from_another_machine(daemons: Daemons) -> None:
    daemons.start("alpha", "gamma")
    code, told, said = leave(daemons, "alpha", "--node", "beta", "--to", "gamma")
    assert (code, told["node"], told["left"]) == (0, "beta", True), said
    assert daemons.site.registers.newest_map().owners == ("alpha", "gamma", "gamma")
    code, again, _ = leave(daemons, "alpha", "--node", "beta")
    assert (code, again["left"]) == (0, True)


def test_machine_that_is_no_node_has_nothing_to_leave(daemons: Daemons, tmp_path: Path) -> None:
    words = ["--node-dir", str(tmp_path / "none"), "--allow-root", "--json"]
    done = daemons.command("leave", str(daemons.site.root), *words)
    assert (done.returncode, json.loads(done.stdout)["left"]) == (0, True), done.stderr
    assert "nothing to leave" in done.stderr


def test_last_node_that_answers_keeps_its_shards(daemons: Daemons) -> None:
    site = daemons.site
    daemons.start("alpha")
    for node in ("beta", "gamma"):
        assert leave(daemons, "alpha", "--node", node, "--to", "alpha", "--wait", "0s")[0] in (0, 75)
    for node in ("beta", "gamma"):
        daemons.command(
            *("trust", "revoke", node, "--root-key", str(site.root_key_file)), *daemons.site.options("alpha")
        )
    with pytest.raises(BadRequest, match="no other node answers"):
        given_away(site.registers, "alpha")


def test_status_names_what_does_not_work(daemons: Daemons) -> None:
    daemons.start("alpha", "beta")
    status = checks(daemons, "alpha", "status")
    assert status["daemon"]["verdict"] == "PASS"
    assert [status[f"shard {k}"]["verdict"] for k in range(3)] == ["PASS", "PASS", "FAIL"]
    assert "gamma" in status["other nodes"]["reason"]
    assert daemons.tenure("alpha", "status").returncode == 1
    daemons.start("gamma")
    done = daemons.tenure("alpha", "status")
    assert done.returncode == 0, done.stdout
    away = checks(daemons, "gamma", "status")
    assert away["daemon"]["verdict"] == "PASS"


def test_release_that_differs_is_named_everywhere(daemons: Daemons) -> None:
    daemons.start("alpha", "beta")
    daemons.start_with_release("gamma", "9.9.9")
    for command in (["status"], ["doctor", str(daemons.site.root)]):
        if command[0] == "doctor":
            words = ["--node-dir", str(daemons.site.node_dir("alpha")), "--json"]
            told = json.loads(daemons.command(*command, *words).stdout)["checks"]
            line = {each["check"]: each for each in told}["releases"]
        else:
            line = checks(daemons, "alpha", *command)["releases"]
        assert (line["verdict"], "gamma 9.9.9" in line["reason"]) == ("UNSURE", True), line
    with daemons.site.open("alpha") as cluster:
        trust = cluster.watch_trust()
        watch = releases.Releases(
            cluster.settings.node, cluster.keys.tls, cluster.registers.cluster_id, trust, cluster.time, "0.1.0"
        )
        assert releases.skewed(watch.look())
    daemons.stop("gamma")
    line = checks(daemons, "alpha", "status")["releases"]
    assert (line["verdict"], "9.9.9" in line["reason"]) == ("PASS", False)


def test_upgrade_finds_the_release_running_or_says_how_to_restart(daemons: Daemons) -> None:
    daemons.start("alpha")
    done = daemons.tenure("alpha", "node", "upgrade", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) | {"release": ""} == {
        "schema": "tenure.upgrade",
        "version": 1,
        "node": "alpha",
        "release": "",
        "already": True,
    }
    daemons.stop("alpha")
    daemons.start_with_release("alpha", "0.0.1")
    done = daemons.tenure("alpha", "node", "upgrade")
    assert (done.returncode, "no-units" in done.stderr) == (75, True), done.stderr
    assert "0.0.1 runs" in done.stderr


def test_upgrade_to_a_release_that_does_not_read_the_root_stops_nothing(daemons: Daemons, tmp_path: Path) -> None:
    daemons.start("alpha")
    daemons.site.root.joinpath("TENURE").write_bytes(
        daemons.site.root.joinpath("TENURE").read_bytes().replace(b"format 1", b"format 2")
    )
    done = daemons.tenure("alpha", "node", "upgrade")
    assert (done.returncode, "root-format" in done.stderr) == (78, True), done.stderr
    assert daemons.running["alpha"].poll() is None
    (tmp_path / "x.deb").write_text("no package")
    done = daemons.tenure("alpha", "node", "upgrade", "--package", str(tmp_path / "x.deb"))
    assert (done.returncode, "bad-package" in done.stderr) == (2, True), done.stderr


# Its files are replaced while it runs, and it must never meet those of another release.
def test_daemon_imports_nothing_of_ours_once_it_runs(daemons: Daemons) -> None:
    log = daemons.site.node_dir("alpha") / "stderr.log"
    daemons.start("alpha", environment={"PYTHONPROFILEIMPORTTIME": "1"}, program=("-m", "tenure"))

    def imported() -> set[str]:
        lines = [line for line in log.read_text().splitlines() if line.startswith("import time:")]
        return {name for line in lines if (name := line.split("|")[-1].strip()).startswith(("appliance", "timeagent"))}

    before = imported()
    assert "appliance.daemon.daemon" in before
    published = daemons.tenure("alpha", "publish", "ledger", "--lease", "a/1", stdin="x\n")
    assert published.returncode == 0, published.stderr
    for words in (("read", "ledger", "--settle"), ("lease", "ls"), ("shards", "ls"), ("status",)):
        daemons.tenure("alpha", *words)
    assert daemons.stop("alpha") == 0
    assert imported() == before
