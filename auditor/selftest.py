"""The self-test: each rule is shown a tree with its breach, and must name exactly that; good trees must stay silent.

The trees are made here, of the installed formats and keys that nobody else has, in a temporary directory. What an audit
that passes this says of a real tree does not depend on trust in this program's tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from .against import compared
from .audit import audit
from .load import Tree
from .planting.plants import all_plants, all_twins
from .planting.stories import eventful_tree, small_tree
from .rules.registry import RULES
from .verification import Signatures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .planting.plants import Plant, Twins

SCHEMA = "tenure.selftest"
VERSION = 1
GOOD = "good"
PREFIX = "tenure-selftest-"


@dataclass(frozen=True, slots=True)
class Case:
    """One tree: what was planted in it (a code, or "good"), by which story, and the codes that were found."""

    planted: str
    story: str
    found: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether exactly what was planted was found."""
        return self.found == (() if self.planted == GOOD else (self.planted,))


def cases() -> Iterator[Case]:
    """Make and audit one tree after the other. Raises OSError where nothing can be written."""
    signatures = Signatures()
    for story in (small_tree, eventful_tree):
        yield Case(GOOD, story.__name__, _codes(story, signatures))
    planted, twins = all_plants(), all_twins()
    for code in RULES:
        for plant in planted.get(code, ()):
            yield Case(code, plant.__name__, _codes(plant, signatures))
        for pair in twins.get(code, ()):
            yield Case(code, pair.__name__, _codes_of_two(pair, signatures))


def _codes(plant: Plant, signatures: Signatures) -> tuple[str, ...]:
    with TemporaryDirectory(prefix=PREFIX) as place:
        result = audit(Tree(plant(Path(place) / "tree").root), signatures=signatures)
        return tuple(sorted({finding.code for finding in result.findings}))


def _codes_of_two(pair: Twins, signatures: Signatures) -> tuple[str, ...]:
    with TemporaryDirectory(prefix=PREFIX) as place:
        one, two = Tree(pair(Path(place) / "tree", Path(place) / "other").root), Tree(Path(place) / "other")
        result = compared(audit(one, signatures=signatures), audit(two, signatures=signatures), one, two)
        return tuple(sorted({finding.code for finding in result.findings}))


def untried(tried: list[Case]) -> list[str]:
    """Return the codes that no case has planted."""
    return sorted(RULES.keys() - {case.planted for case in tried})


def text_lines(tried: list[Case]) -> Iterator[str]:
    """Yield a table, a line a story, and last what it came to."""
    for case in tried:
        rule = RULES.get(case.planted)
        number = f"{rule.number}" if rule else ""
        word = "ok" if case.passed else f"FAILED: found {', '.join(case.found) or 'nothing'}"
        yield f"{number:>4} {case.planted:<24} {case.story.replace('_', ' '):<66} {word}"
    yield ""
    failed = [case for case in tried if not case.passed]
    missing = untried(tried)
    yield f"{len(tried)} trees, {len(RULES) - len(missing)} of {len(RULES)} rules, {len(failed)} failed"


def json_fields(tried: list[Case]) -> dict[str, Any]:
    """Return what JSON shows, beside schema and version."""
    return {
        "summary": {
            "trees": len(tried),
            "rules": len(RULES),
            "failed": sum(not case.passed for case in tried),
            "untried": untried(tried),
        },
        "cases": [
            {
                "rule": RULES[case.planted].number if case.planted in RULES else None,
                "planted": case.planted,
                "story": case.story,
                "found": list(case.found),
                "passed": case.passed,
            }
            for case in tried
        ],
    }
