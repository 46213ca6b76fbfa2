"""What is clean is judged by columns: every verdict is the one that the rules alone come to."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tarfile
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from appliance.formats.witness import Half
from auditor import audit as judging
from auditor.audit import Options, audit
from auditor.columns.layout import Spool
from auditor.commands import selftest
from auditor.evidence.finding import RULES
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from auditor.rules import grants, history, timestamps
from auditor.rules import suspects as domains_by_columns
from auditor.walk import listed
from tests.bench.corpus.build import build, build_bank
from tests.bench.corpus.faults import CODES, FILE_FAULTS
from tests.fault_injection.fixtures import eventful_tree, small_tree
from tests.fault_injection.moving import Move, moved_tree, resharded_tree
from tests.fault_injection.plants import all_plants
from tests.support.by_rules import by_columns_first, by_rules
from timeagent.errors import Environment
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from auditor.columns.index import DomainRows
    from auditor.evidence.signatures import FrameEvidence
    from auditor.rules.history import DomainHistory
    from tests.fault_injection.plants import Plant

MESSAGES = 2 * 5120
MESSAGES_AROUND_FAULTS = 5 * 5120
PLANTS: dict[str, Plant] = {
    f"{code}, {plant.__name__}": plant for code, plants in sorted(all_plants().items()) for plant in plants
}


def covered(root: Path) -> bytes:
    """Audit a tree, and have the rules alone judge it; return what both say."""
    signatures = Signatures()
    said = by_columns_first(root, signatures)
    assert by_rules(root, signatures) == said
    return said


@pytest.mark.verify
@pytest.mark.parametrize("plant", [small_tree, eventful_tree, *PLANTS.values()], ids=["small", "eventful", *PLANTS])
def test_whatever_a_rule_finds_is_suspect_by_columns(tmp_path: Path, plant: Plant) -> None:
    covered(plant(tmp_path).root)


@pytest.mark.verify
def test_whatever_a_rule_finds_in_the_selftest_is_suspect_by_columns(tmp_path: Path) -> None:
    with tarfile.open(selftest.PACKED, "r|xz") as archive:
        archive.extractall(tmp_path, filter="tar")
    trees = [*tmp_path.glob(f"*/*/{selftest.TREE}"), *tmp_path.glob(f"*/*/{selftest.OTHER}")]
    assert len(trees) > len(RULES)
    for tree in trees:
        covered(tree)


@pytest.mark.verify
@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_rule_finds_in_a_random_tree_is_suspect_by_columns(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    packed = rng.random() < 0.3
    codes = [code for code in CODES if not (packed and code in FILE_FAULTS)]
    planted = {code: rng.randint(1, 3) for code in rng.sample(codes, 4)}
    kind = rng.choice(["log", "maildir"])
    build(tmp_path, 5120 * rng.randint(5, 6), kind=kind, packed=packed, plant=planted, message_bytes=10)
    covered(tmp_path)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean tree."""
    root = tmp_path_factory.mktemp("clean")
    build(root, MESSAGES, message_bytes=10)
    return root


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean tree of the bank."""
    root = tmp_path_factory.mktemp("bank")
    build_bank(root, MESSAGES // 10, message_bytes=10)
    return root


@pytest.mark.parametrize("tree", ["clean", "bank"])
def test_a_clean_tree_is_judged_by_columns_alone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tree: str
) -> None:
    root = request.getfixturevalue(tree)
    said = covered(root)
    for module, name in ((listed, "judge_frame"), (judging, "domain_history")):
        monkeypatch.setattr(module, name, None)
    assert json_bytes(audit(Tree(root))) == said
    with pytest.raises(TypeError):
        by_rules(root)


def test_only_what_is_near_a_fault_is_judged_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, MESSAGES_AROUND_FAULTS, message_bytes=10, plant={"r1-breach": 1, "count-mismatch": 1})
    judged: list[str] = []

    def counted(module: ModuleType, name: str) -> None:
        judge = getattr(module, name)

        def counting(*arguments: object, **named: object) -> object:
            judged.append(name)
            return judge(*arguments, **named)

        monkeypatch.setattr(module, name, counting)

    counted(listed, "judge_frame")
    counted(judging, "domain_history")
    audit(Tree(tmp_path))
    assert judged.count("judge_frame") == 1
    assert judged.count("domain_history") == 2


# What ended before the move, or began after it, is clean however much of that there is.
@pytest.mark.parametrize("make", [moved_tree, resharded_tree])
def test_only_what_is_held_through_a_move_is_judged_by_rows(
    make: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    moving: list[bool] = []
    judge, judge_frame = history.domain_history, timestamps.judge_frame

    def counting(rows: DomainRows, *rest: Any) -> DomainHistory:  # noqa: ANN401
        judged.append(rows.domain)
        return judge(rows, *rest)

    def counting_frames(evidence: FrameEvidence, *rest: Any, **named: Any) -> timestamps.Judgement:  # noqa: ANN401
        moving.append(any(held.head.half is not Half.WHOLE for held in evidence.witnesses))
        return judge_frame(evidence, *rest, **named)

    monkeypatch.setattr(judging, "domain_history", counting)
    monkeypatch.setattr(listed, "judge_frame", counting_frames)
    assert audit(Tree(make(tmp_path).root)).findings == ()
    assert sorted(judged) == ["alice", "carol", "dave", "erin"]
    assert moving == [True] * 4


def test_long_past_of_a_domain_costs_its_move_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move = Move(tmp_path)
    move.tree.advance(5 * MS)
    for _ in range(20):
        move.old.end(move.old.grant("alice", move.other))
        move.tree.advance(MS)
    move.both()
    leaving, coming = move.take("alice", move.writer)
    move.writer.publish(move.grid, leaving, coming)
    move.old.end(leaving)
    coming.shard.end(coming)
    move.new()
    move.tree.until(move.old.floor_ns + SECOND)
    (shard,) = move.coming
    shard.extend()
    for _ in range(20):
        shard.end(shard.grant("alice", move.other))
        move.tree.advance(MS)
    asked: list[history.LeaseHistory] = []
    other_halves = grants._other_halves

    def counting(lease: history.LeaseHistory, domain: DomainHistory) -> list[history.LeaseHistory]:
        asked.append(lease)
        return other_halves(lease, domain)

    monkeypatch.setattr(grants, "_other_halves", counting)
    assert by_rules(move.done().root) == by_columns_first(tmp_path)
    assert len(asked) < 20


# Every planned move leaves maps for ever, and every turn of a shard a batch.
def test_maps_are_gone_through_once_a_shard_and_not_for_every_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, asked, overtaken = moved_tree(tmp_path).root, list[int](), domains_by_columns._overtaken

    def counting(shard: int, cluster: history.ClusterFacts) -> int:
        asked.append(shard)
        return overtaken(shard, cluster)

    monkeypatch.setattr(domains_by_columns, "_overtaken", counting)
    audit(Tree(root))
    assert len(asked) == len(set(asked)) == 2


# Marks tell leases from each other; whoever makes two of them alike gains nothing.
def test_leases_that_columns_cannot_tell_from_each_other_are_judged_by_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, MESSAGES_AROUND_FAULTS, message_bytes=10, plant={"count-mismatch": 2, "grant-overlap": 2})
    said = by_rules(tmp_path)
    monkeypatch.setattr(domains_by_columns, "marks", lambda names, _: np.zeros(len(names), np.uint64))
    assert by_columns_first(tmp_path) == said


def test_columns_that_find_no_room_beside_the_index_are_in_it(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = json_bytes(audit(Tree(clean)))
    tried = []

    def full(_: Spool, data: bytes) -> int:
        tried.append(len(data))
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Spool, "_write", full)
    assert json_bytes(audit(Tree(clean))) == said
    assert tried


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_files_beside_the_index_that_vanish_while_an_audit_runs_are_named(
    tmp_path: Path, clean: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, how: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def vanish(done: int, total: int, *_: object) -> None:
        if done == total:
            for each in tmp_path.glob("tenure-audit-*/*[0-9]"):
                if how == "gone":
                    each.unlink()
                else:
                    os.truncate(each, 1)

    with pytest.raises(Environment, match=str(tmp_path)) as raised:
        audit(Tree(clean), options=Options(jobs=jobs), progress=vanish)
    assert raised.value.code == "audit-files-lost"
    assert raised.value.exit_status == 74
    assert not list(tmp_path.iterdir())


def test_directory_of_an_audit_that_vanishes_while_it_runs_is_no_crash(
    tmp_path: Path, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tried: list[Path] = []
    for jobs in (1, 2):
        for at in range(1, 4):

            def vanish(done: int, total: int, *_: object, at: int = at) -> None:
                if done == at * total // 3:
                    tried.extend(tmp_path.glob("tenure-audit-*"))
                    for each in tmp_path.glob("tenure-audit-*"):
                        shutil.rmtree(each)

            with suppress(Environment):  # the columns that were written by then are lost; or none was
                audit(Tree(clean), options=Options(jobs=jobs), progress=vanish)
    assert len(tried) == 6
    assert not list(tmp_path.iterdir())


def test_two_processes_and_an_index_file_say_the_same_by_columns(tmp_path: Path) -> None:
    build(tmp_path / "tree", MESSAGES_AROUND_FAULTS, message_bytes=10, plant={"forged-witness": 2, "grant-overlap": 2})
    tree, index = Tree(tmp_path / "tree"), tmp_path / "index"
    said = json_bytes(audit(tree))
    assert json_bytes(audit(tree, options=Options(jobs=2))) == said
    assert json_bytes(audit(tree, options=Options(jobs=4, index_file=index))) == said
    assert json_bytes(audit(tree, options=Options(index_file=index))) == said
