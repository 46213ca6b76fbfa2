"""The self-test: each rule is shown trees with its breach, and must name exactly that; good trees must stay silent.

The trees were written once, by keys that nobody else has, and are packed into one file beside this module:
``CODE/STORY/tree``, where CODE is what the audit must find, and ``CODE/STORY/other`` where it takes a second copy.
"""

from __future__ import annotations

import itertools
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ..audit import audit
from ..evidence.finding import RULES
from ..evidence.signatures import Signatures
from ..evidence.tree import Tree
from ..report.comparing import compared

PACKED: Final = Path(__file__).with_name("selftest.tar.xz")
SCHEMA = "tenure.selftest"
GOOD = "good"
TREE = "tree"
OTHER = "other"
PREFIX = "tenure-selftest-"


@dataclass(frozen=True, slots=True)
class Case:
    """One tree: what is planted in it (a code, or "good"), by which story, and the codes that were found."""

    planted: str
    story: str
    found: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether exactly what was planted was found."""
        return self.found == (() if self.planted == GOOD else (self.planted,))


def cases() -> Iterator[Case]:
    """Unpack and audit one case after the other. Raises OSError where nothing can be written."""
    signatures = Signatures()
    with tarfile.open(PACKED, "r|xz") as archive:
        for (planted, story), members in itertools.groupby(archive, lambda each: tuple(each.name.split("/")[:2])):
            with TemporaryDirectory(prefix=PREFIX) as place:
                for member in members:
                    archive.extract(member, place, filter="tar")
                yield Case(planted, story, _codes(Path(place) / planted / story, signatures))


def _codes(place: Path, signatures: Signatures) -> tuple[str, ...]:
    tree = Tree(place / TREE)
    result = audit(tree, signatures=signatures)
    if (place / OTHER).exists():
        other = Tree(place / OTHER)
        result = compared(result, audit(other, signatures=signatures), tree, other)
    return tuple(sorted({finding.code for finding in result.findings}))


def untried(tried: list[Case]) -> list[str]:
    """Return the codes that are planted in no case."""
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
