"""The checkers' own reader sees what formats gets wrong in writing and reading alike; and shares nothing with it."""

from __future__ import annotations

import ast
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.bag import acceptance
from appliance.formats import closed, framing, merkle
from tests.simulation.actors import writer
from tests.simulation.checkers import reading
from tests.simulation.checkers.catalogue import violations
from tests.simulation.planting import Planter
from tests.simulation.scenarios import SCENARIOS

if TYPE_CHECKING:
    from tests.simulation.mutant import Break

JUDGED = frozenset({"appliance", "auditor", "tenure", "timeagent", "tui"})
OWN = ("forms.py", "naming.py", "reading.py", "record.py")
SEEDS = 30

FAULTS: dict[str, tuple[str, tuple[Break, ...]]] = {
    "the lengths of messages are big-endian": (
        "bags",
        (
            (
                framing,
                "encode_frame",
                "columns = struct.pack(f'<{count}q{count}I', *timestamps, *map(len, payloads))",
                "columns = struct.pack(f'<{count}q', *timestamps) + struct.pack(f'>{count}I', *map(len, payloads))",
            ),
            (framing, "open_frame", "'<u4'", "'>u4'"),
        ),
    ),
    "a node of a Merkle tree hashes right before left": (
        "leases",
        (
            (merkle, "tree", "left + right", "right + left"),
            (
                merkle,
                "KnownPaths.holds",
                "sibling + current if position & 1 else current + sibling",
                "current + sibling if position & 1 else sibling + current",
            ),
        ),
    ),
    "a Merkle path leads nowhere, and nobody follows it": (
        "leases",
        (
            (merkle, "joined_paths", "below.append(b''.join((before, right, above)))", "below.append(before + left)"),
            (
                acceptance,
                "Judge._read_witness",
                "not KnownPaths(head.count, head.root).holds(signed.entry, signed.index, signed.path)",
                "None",
            ),
        ),
    ),
    "a lock file has its two numbers in the other order": (
        "policies",
        (
            (
                closed,
                "made_lock",
                "return made_for_ever(LockFile, cluster_id, log, bag, closer, *numbers, entries)",
                """lock, _ = made_for_ever(LockFile, cluster_id, log, bag, closer, *numbers, entries)
return (lock, made_for_ever(LockFile, cluster_id, log, bag, closer, *numbers[::-1], entries)[1])""",
            ),
            (
                closed,
                "open_lock",
                "lock = decode(LockFile, stamped.body, where)",
                """other = decode(LockFile, stamped.body, where)
numbers = (other.policy_number, other.trust_number)
lock = LockFile(other.cluster_id, other.log, other.bag, other.closer, *numbers, other.entries)""",
            ),
        ),
    ),
}
"""What is wrong in a writer and its reader alike, in which scenario that matters, and what is put in whose place."""


def _objections(scenario: str) -> set[str]:
    found: set[str] = set()
    for seed in range(SEEDS):
        world = SCENARIOS[scenario](seed)
        world.run()
        found |= {checker for checker, _ in violations(world)}
    return found


@pytest.mark.verify
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_of_writer_and_reader_alike_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, breaks = FAULTS[fault]
    for module, function, old, new in breaks:
        original = attrgetter(function)(module)
        with monkeypatch.context() as patch:
            Planter(patch).plant(module, function, old, new)
            code = attrgetter(function)(module).__code__
        monkeypatch.setattr(original, "__code__", code)  # under whatever name others have imported it
    assert _objections(scenario) - {"bug"}


def test_frame_without_a_lease_is_not_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    Planter(monkeypatch).plant(writer, "Writer.run", "(issuer.lease(),)", "()")
    assert "committed" in _objections("bags")


@pytest.mark.parametrize("name", OWN)
def test_own_reader_imports_nothing_of_what_it_judges(name: str) -> None:
    tree = ast.parse((Path(reading.__file__).parent / name).read_text(encoding="utf-8"))
    modules = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    modules += [alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names]
    assert not {module.partition(".")[0] for module in modules} & JUDGED
