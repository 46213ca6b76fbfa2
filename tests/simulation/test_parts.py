"""Two parts of one history contradict each other nowhere, and a file of an audit serves for one after the other."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from auditor.audit import Options, audit
from auditor.columns import audit_file
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report import comparing
from auditor.report.comparing import compared
from tests.simulation import scenarios
from tests.simulation.audited import write_tree
from tests.simulation.keys import FastSignatures
from tests.simulation.run import scenario_of
from tests.support.mutants import plant

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

SEEDS = range(28)


def lose(root: Path, chance: random.Random) -> None:
    """Take out of a tree what broken off copying leaves out: names, directories, the end of a file; or damage it."""
    tops = ("logs", "ledger", "shards")
    for path in sorted(each for top in tops for each in (root / top).rglob("*") if each.is_file()):
        lot, data = chance.random(), path.read_bytes()
        if lot < 0.1:
            path.unlink()
        elif lot < 0.15 and data:
            at = chance.randrange(len(data))
            path.write_bytes(data[:at] if lot < 0.12 else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    shutil.rmtree(chance.choice(sorted(each for each in (root / "logs").rglob("*") if each.is_dir())))


def wrong(place: Path) -> Iterator[str]:
    """Yield where two parts of one tree contradict each other, or an audit goes by what the part before it held."""
    for seed in SEEDS:
        world = scenarios.SCENARIOS[scenario_of(seed)](seed)
        world.run()
        signatures = Signatures() if world.founded.real else FastSignatures()
        key, chance = world.founded.root.public, random.Random(seed)
        roots = [place / f"{seed}-{which}" for which in ("one", "other", "now")]
        for root in roots[:2]:
            root.mkdir(parents=True)
            write_tree(world, root)
            lose(root, chance)
        results = [audit(Tree(root), root_key=key, signatures=signatures) for root in roots[:2]]
        one, other = results
        both = compared(one, other, Tree(roots[0]), Tree(roots[1]))
        yield from (f"{seed}: {each.explanation}" for each in both.findings if each.code == "forked-history")
        kept = Options(index_file=place / f"{seed}.db")
        for root, fresh in zip(roots, results, strict=False):
            shutil.rmtree(roots[2], ignore_errors=True)
            shutil.copytree(root, roots[2])
            if audit(Tree(roots[2]), root_key=key, signatures=signatures, options=kept) != fresh:
                yield f"{seed}: another audit of {root.name} by what was kept"
        world.forget()


@pytest.mark.verify
def test_parts_of_one_history_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(wrong(tmp_path / "clean")) == []
    with monkeypatch.context() as patches:
        plant(patches, comparing, "_whole_at", "isinstance(each, Piece)", "True")
        assert any("differ from offset" in each for each in wrong(tmp_path / "damaged"))
    plant(monkeypatch, audit_file, "PartStore.state", "sorted(tree.below(unit.path))", "[]")
    assert any("by what was kept" in each for each in wrong(tmp_path / "kept"))
