"""P7: the production auditor on the tree that a run left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.formats.pack import PACK
from auditor.audit import audit
from auditor.finding import Verdict
from auditor.load import Tree
from auditor.verification import Signatures
from tests.simulation.keys import FastSignatures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.audit import Audit
    from tests.simulation.world import World

MEMORY = Path("/dev/shm")

CLOCK_CODES = frozenset({"r2-breach", "premature-lock"})
"""What may be found where clocks lied, and nowhere else: the clocks broke their bounds, and that is all."""


def write_tree(world: World, root: Path) -> None:
    """Write what the file server holds into a directory, as a copy of the root would have it."""
    for directory in world.server.directories:
        (root / directory).mkdir(parents=True, exist_ok=True)
    for path, file in world.server.files().items():
        (root / path).write_bytes(file.data)


def audited(world: World) -> Audit:
    """Return the audit of a finished run."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        write_tree(world, Path(name))
        signatures = Signatures() if world.founded.real else FastSignatures()
        return audit(Tree(Path(name)), root_key=world.founded.root.public, signatures=signatures)


def false_alarms(world: World) -> Iterator[str]:
    """Yield each violation, and each doubt about keys or records: nobody broke a rule or damaged a file."""
    for finding in audited(world).findings:
        if finding.verdict is Verdict.UNVERIFIABLE or finding.verdict is Verdict.VIOLATION:
            if world.lying and finding.code in CLOCK_CODES:
                continue
            if finding.code == "retained-rack" and f"{finding.subject}/{PACK}" in world.server.graves:
                continue  # retention deleted it
            yield f"{finding.code}: {finding.explanation}"
