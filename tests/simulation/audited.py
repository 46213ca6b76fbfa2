"""P7: the production auditor on the tree that a run left behind."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.formats.closed import PACK
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from tests.simulation.keys import FastSignatures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.evidence.finding import Finding
    from auditor.rules.result import Audit
    from tests.simulation.world import World

MEMORY = Path("/dev/shm")

CLOCK_CODES = frozenset({"r2-breach", "premature-lock", "unsettled-write", "hidden-bag", "overtaken-lease"})
"""What may be found where clocks lied, and nowhere else: the clocks broke their bounds, and that is all."""

KEY_CODES = frozenset({"ended-key"})
"""What may be found where a node went on with a key that had ended: nobody can tell it from who found the key."""

LEDGER_CODES = frozenset({"chain-gap", "ledger-gap", "missing-ledger", "truncated-ledger"})
"""What may be doubted where ledger blocks did not reach the mount."""

KEY_DOUBTS = LEDGER_CODES | {"grant-without-right", "chain-fork"}
"""What may be doubted where ledger blocks and ceiling records were signed with a key that had ended."""


@contextmanager
def place_in_memory() -> Iterator[Path]:
    """Make a directory, where there is one of memory in it, and remove it."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


def write_tree(world: World, root: Path) -> None:
    """Write what the file server holds into a directory, as a copy of the root would have it."""
    for directory in world.server.directories:
        os.makedirs(f"{root}/{directory}", exist_ok=True)  # noqa: PTH103 - a tree has many, and a Path for each is slow
    for path, file in world.server.files().items():
        with open(f"{root}/{path}", "xb") as there:  # noqa: PTH123
            there.write(file.data)


def audited(world: World) -> Audit:
    """Return the audit of a finished run."""
    with place_in_memory() as root:
        write_tree(world, root)
        return audit_at(world, root)


def audit_at(world: World, root: Path) -> Audit:
    """Return the audit of what was written of a run."""
    signatures = Signatures() if world.founded.real else FastSignatures()
    return audit(Tree(root), root_key=world.founded.root.public, signatures=signatures)


def false_alarms(world: World) -> Iterator[str]:
    """Yield whatever accuses or doubts: nobody broke a rule or damaged a file. What is merely told is true."""
    for finding in audited(world).findings:
        if finding.verdict is not Verdict.OK and not innocent(world, finding):
            yield f"{finding.verdict} {finding.code}: {finding.explanation}"


def lost_blocks(world: World) -> bool:
    """Whether a ledger block that a shard handed on is not on the mount: refused, or lost with who was killed."""
    there = b"".join(file.data for path, file in world.server.files().items() if path.startswith("ledger/"))
    return any(block not in there for block in world.history.blocks)


def is_true(world: World, finding: Finding) -> bool:
    """Whether it tells of a clock that lied, or of a node that went on with a key which had ended."""
    if finding.code in KEY_CODES:
        return any(f" of {node} " in finding.explanation for node in world.history.overstayed)
    return world.lying and finding.code in CLOCK_CODES


def innocent(world: World, finding: Finding) -> bool:
    """Whether what the simulation did to clocks, ledgers and packs is what the finding says."""
    if is_true(world, finding):
        return True
    if finding.verdict is Verdict.INDETERMINATE and world.history.overstayed and finding.code in KEY_DOUBTS:
        return True
    if finding.code in LEDGER_CODES and finding.verdict is Verdict.INDETERMINATE and lost_blocks(world):
        return True
    if finding.code == "truncated-ledger":
        run = bytes.fromhex(Path(finding.subject).name.partition(".")[0])
        return run in world.history.stopping  # killed, or seen, between its orderly record and its last block
    return finding.code == "retained-rack" and f"{finding.subject}/{PACK}" in world.server.graves
