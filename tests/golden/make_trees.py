"""Write the golden trees and what the audit says of them: ``python -m tests.golden.make_trees``.

Run it after a change of the formats that comes with a new version, or of what a finding says; read the difference.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from auditor.audit import audit
from auditor.load import Tree
from auditor.planting.faults_bags import overwritten_lock
from auditor.planting.faults_bytes import witness_of_an_unknown_key
from auditor.planting.faults_leases import granted_while_held
from auditor.planting.stories import small_tree
from auditor.report import json_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from auditor.planting.tree import ClusterTree

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


if __name__ == "__main__":
    main()
