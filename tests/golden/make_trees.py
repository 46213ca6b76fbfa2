"""Write golden trees, what the audit says of them, and the self-test's: ``python -m tests.golden.make_trees``.

Run it after a change of the formats that comes with a new version, or of what a finding says; read the difference.
"""

from __future__ import annotations

import lzma
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Final

from auditor.audit import audit
from auditor.commands.selftest import GOOD, OTHER, PACKED, TREE
from auditor.evidence.finding import RULES
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from tests.fault_injection.faults_bags import overwritten_lock
from tests.fault_injection.faults_bytes import witness_of_an_unknown_key
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import eventful_tree, small_tree
from tests.fault_injection.moving import moved_tree, resharded_tree
from tests.fault_injection.plants import all_plants, all_twins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fault_injection.tree import ClusterTree

TREES: Final = Path(__file__).with_name("trees")
STORIES: Final[dict[str, Callable[[Path], ClusterTree]]] = {
    "good": small_tree,
    "early-grant": granted_while_held,
    "forged-witness": witness_of_an_unknown_key,
    "overwritten-lock": overwritten_lock,
}


def main() -> None:
    """Write them all anew."""
    for name, story in STORIES.items():
        place = TREES / name
        shutil.rmtree(place, ignore_errors=True)
        story(place / "tree")
        (place / "findings.json").write_bytes(json_bytes(audit(Tree(place / "tree"))))
    with TemporaryDirectory() as cases:
        plant_all(Path(cases))
        with lzma.open(PACKED, "wb") as packed:
            pack(Path(cases), packed)


def plant_all(place: Path) -> None:
    """Write what the self-test audits: the good trees and each planted fault, below the code that must name it."""
    for story in (small_tree, eventful_tree, moved_tree, resharded_tree):
        story(place / GOOD / story.__name__ / TREE)
    for code in RULES:
        for plant in all_plants().get(code, ()):
            plant(place / code / plant.__name__ / TREE)
        for pair in all_twins().get(code, ()):
            pair(place / code / pair.__name__ / TREE, place / code / pair.__name__ / OTHER)


def in_order(place: Path) -> Iterator[Path]:
    """Yield the directories of the cases: good ones first, then by rule and name."""
    for code in (GOOD, *RULES):
        yield from sorted((place / code).iterdir())


def pack(place: Path, file: IO[bytes]) -> None:
    """Put cases into one archive, the same bytes for the same trees."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for case in in_order(place):
            archive.add(case, case.relative_to(place).as_posix(), filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() else 0o644
    return member


if __name__ == "__main__":
    main()
