"""`init` and `join` a second time: they say what is there, and change nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.node.settings import save_settings
from tenure.__main__ import main
from tests.support.cluster import Site, tree
from timeagent.keys import make_node_keys

if TYPE_CHECKING:
    from pathlib import Path


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    status = main([*words, "--json", "--allow-root"])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else {}, err


def test_second_init_says_what_the_first_one_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, here = tmp_path / "root", tmp_path / "node"
    root.mkdir()
    words = ("init", str(root), "--node", "alpha", "--node-dir", str(here), "--assume-radius", "5ms")
    status, first, _ = called(capsys, *words)
    assert (status, first["already"]) == (0, False)
    before = tree(tmp_path)
    status, second, _ = called(capsys, *words)
    assert (status, second) == (0, first | {"already": True})
    assert tree(tmp_path) == before
    status, _, said = called(capsys, *words[:3], "omega", *words[4:])
    assert (status, "is node alpha of the cluster" in said) == (74, True)
    assert tree(tmp_path) == before


# Another machine must not be told that the cluster is its own.
def test_init_of_a_root_that_this_machine_has_not_joined_is_refused_before_it_asks_for_the_time(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.cluster.time_sources", None)
    words = ("--node", "beta", "--node-dir", str(tmp_path / "beta"))
    status, _, said = called(capsys, "init", str(site.root), *words)
    assert (status, "root-exists" in said) == (74, True)


def test_second_join_says_that_it_is_in(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("join", str(site.root), "--node", "beta", "--node-dir", str(tmp_path / "beta"))
    key = ("--root-key", str(site.root_key_file))
    status, first, said = called(capsys, *words, *key)
    assert (status, first["already"]) == (0, False), said
    number = site.registers.newest().trust
    for again in ((*words, *key), words):
        status, second, _ = called(capsys, *again)
        assert (status, second) == (0, first | {"already": True})
    assert site.registers.newest().trust == number


# As a machine that stopped while it joined: the way out is one.
def test_join_that_was_cut_off_before_it_was_let_in_says_what_to_do(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "beta"
    words = ("join", str(site.root), "--node", "beta", "--node-dir", str(place), "--root-key", str(site.root_key_file))
    make_node_keys(place)
    save_settings(replace(site.settings["node1"], directory=place, node="beta"))
    status, _, said = called(capsys, *words)
    assert (status, "key-not-trusted" in said, f"move {place} away" in said) == (77, True, True)
    place.rename(tmp_path / "away")
    assert called(capsys, *words)[0] == 0


def test_init_and_join_of_another_name_are_refused(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--node-dir", str(site.node_dir()))
    for word in ("init", "join"):
        status, _, said = called(capsys, word, str(site.root), "--node", "omega", *where)
        assert (status, "is node node1 of the cluster" in said) == (74, True)
    assert tmp_path.exists()
