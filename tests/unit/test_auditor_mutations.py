"""An archived tree, changed anywhere: a flipped byte, a file that is gone, doubled, swapped or cut is named, always.

Archived: every rack sealed, every shard stopped orderly, nothing torn. In a tree that is still written to the end of a
killed shard's ledger and an open bag have no fixed contents (docs/verification.md).
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK, MARKER, PRELOCK, SEAL
from auditor.audit import audit
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes, text_lines
from auditor.rules.result import FailOn, exit_status
from tests.fault_injection.faults_packs import pack_rack
from tests.fault_injection.history import at_random, beginning_with
from tests.fault_injection.tree import ClusterTree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIGNATURES = Signatures()
SHORT = 30
LONG = 2_400


@dataclass
class Archive:
    """A clean tree, and its files' contents to go back to."""

    root: Path
    files: dict[str, bytes]

    @classmethod
    def of(cls, root: Path) -> Archive:
        return cls(
            root, {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
        )

    def restore(self, *paths: str) -> None:
        for path in paths:
            if path in self.files:
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).write_bytes(self.files[path])
            else:
                (self.root / path).unlink(missing_ok=True)

    def filled(self, chance: random.Random) -> str:
        return chance.choice([path for path, data in self.files.items() if data])


def archive(place: Path) -> Archive:
    with beginning_with(at_random(11, 9)):
        tree = ClusterTree(place)
    racks = sorted(seal.parent for seal in tree.root.glob(f"logs/*/*/*/{SEAL}"))
    assert sum(pack_rack(rack) for rack in racks[::2]) >= 1
    found = Archive.of(tree.root)
    names = {path.rpartition("/")[2].rpartition(".")[2] for path in found.files}
    assert {"pack", "seal", "lock", "msg", "ledger", "prelock", "TENURE", "log"} <= names
    assert audit(Tree(tree.root), signatures=SIGNATURES).findings == ()
    return found


def flipped(tree: Archive, chance: random.Random) -> tuple[str, ...]:
    path = tree.filled(chance)
    data = bytearray(tree.files[path])
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    (tree.root / path).write_bytes(data)
    return (path,)


def gone(tree: Archive, chance: random.Random) -> tuple[str, ...]:
    path = chance.choice([each for each in tree.files if not by_design(tree, each)])
    (tree.root / path).unlink()
    return (path,)


def doubled(tree: Archive, chance: random.Random) -> tuple[str, ...]:
    """A copy under another name beside it, or under the name of another file's neighbour."""
    path = tree.filled(chance)
    beside = chance.choice(list(tree.files))
    copy = f"{beside.rpartition('/')[0]}/{path.rpartition('/')[2]}.{chance.randrange(100)}".removeprefix("/")
    (tree.root / copy).write_bytes(tree.files[path])
    return (copy,)


def swapped(tree: Archive, chance: random.Random) -> tuple[str, ...]:
    one = tree.filled(chance)
    other = chance.choice([each for each, data in tree.files.items() if data and data != tree.files[one]])
    (tree.root / one).write_bytes(tree.files[other])
    (tree.root / other).write_bytes(tree.files[one])
    return one, other


def cut(tree: Archive, chance: random.Random) -> tuple[str, ...]:
    path = tree.filled(chance)
    (tree.root / path).write_bytes(tree.files[path][: chance.randrange(len(tree.files[path]))])
    return (path,)


def by_design(tree: Archive, path: str) -> bool:
    """What may go without a finding (docs/verification.md): a log's newest seal, what is swept where nobody wrote."""
    rack, _, name = path.rpartition("/")
    if path == MARKER:
        return True  # a part of a tree has none
    if name == SEAL:
        log = "/".join(path.split("/")[:2])
        newest = max(each for each in tree.files if each.startswith(f"{log}/") and each.endswith(f"/{SEAL}"))
        return path == newest and f"{rack}/{PACK}" not in tree.files
    above = rack.rpartition("/")[0]
    swept = f"{above}/{SEAL}" in tree.files and not any(
        each.startswith(f"{above}/") and each.endswith(".msg") for each in tree.files
    )
    return name in (PRELOCK, LOCK) and swept


KINDS: tuple[Callable[[Archive, random.Random], tuple[str, ...]], ...] = (flipped, gone, doubled, swapped, cut)


def try_mutations(tree: Archive, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        changed = kind(tree, chance)
        result = audit(Tree(tree.root), signatures=SIGNATURES)
        named = {place.path for finding in result.findings for place in finding.evidence}
        said = [(finding.code, finding.subject) for finding in result.findings]
        assert exit_status(result, FailOn.ANY) != 0, (kind.__name__, changed)
        assert set(changed) & named or any(path in subject for path in changed for _, subject in said), (
            kind.__name__,
            changed,
            said,
        )
        assert list(text_lines(result))
        assert json_bytes(result)
        tree.restore(*changed)
    assert audit(Tree(tree.root), signatures=SIGNATURES).findings == ()


def test_no_change_of_an_archived_tree_goes_unnoticed(tmp_path: Path) -> None:
    try_mutations(archive(tmp_path / "tree"), SHORT, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_change_of_an_archived_tree_goes_unnoticed_at_length(seed: int, tmp_path: Path) -> None:
    try_mutations(archive(tmp_path / "tree"), LONG // 4, 100 + seed)


def test_directory_of_an_archived_tree_that_is_gone_is_noticed(tmp_path: Path) -> None:
    tree = archive(tmp_path / "tree")
    directories = sorted({path.rpartition("/")[0] for path in tree.files if "/" in path})
    for directory in directories:
        inside = [path for path in tree.files if path.startswith(f"{directory}/")]
        if any(path.endswith(f"/{SEAL}") and by_design(tree, path) for path in inside):
            continue
        shutil.rmtree(tree.root / directory)
        assert exit_status(audit(Tree(tree.root), signatures=SIGNATURES), FailOn.ANY) != 0, directory
        tree.restore(*inside)
