"""Seals follow each other: every rack from a log's birth on is sealed, in order, whether anybody wrote to it or not.

A rack without a seal that is older than a sealed one has therefore lost it; so has one without a directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.lockfile import open_lock
from appliance.formats.paths import SEAL
from timeagent.errors import Damaged

from .finding import Evidence, Verdict
from .rules.registry import found

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from appliance.formats.lockfile import RackSeal
    from appliance.formats.paths import Grid, Rack
    from timeagent.signedtime import SignedTime

    from .finding import Finding
    from .load import Tree


@dataclass(slots=True)
class BagCounts:
    """What the walk has seen."""

    bags: int = 0
    provisional: int = 0
    messages: int = 0
    """In the record: in listed files of closed bags, and accepted."""
    rejected: int = 0
    """In listed files of closed bags, and dropped by readers."""


@dataclass(frozen=True, slots=True)
class SealFacts:
    """A rack's seal, read."""

    locks: dict[str, bytes]
    where: Evidence
    token: SignedTime | None
    raw: bytes
    """All bytes of its file."""

    def lists_files(self) -> bool:
        """Whether it lists any file: a rack without files is swept without a pack."""
        return any(open_lock(raw, self.where.path)[0].entries for raw in self.locks.values())


class SealOrder:
    """The racks of one log as they are walked, oldest first."""

    def __init__(self, tree: Tree, grid: Grid) -> None:
        """Expect the rack that the log was born in."""
        self._tree = tree
        self._grid = grid
        self._expected = grid.rack(grid.first_ns)
        self._open: list[tuple[Rack, Rack | None]] = []
        """Since the last sealed rack: one without a seal, or the first of a stretch that is not there and its end."""

    def take(self, rack: Rack, seal: Evidence | None, *, has_seal: bool) -> Iterator[Finding]:
        """Take the next rack. ``seal``: where its seal is, if it holds; ``has_seal``: whether there is a file."""
        if rack.start_ns < self._expected.start_ns:
            return
        if rack.start_ns > self._expected.start_ns:
            self._open.append((self._expected, rack))
        if not has_seal and rack.path not in self._tree.unreadable:
            self._open.append((rack, None))
        self._expected = self._grid.next_rack(rack)
        if seal is None:
            return
        for first, end in self._open:
            # Looked at again: in a tree that is still written to it may have been sealed meanwhile.
            sealed = any(name == SEAL for name, _ in self._tree.names(first.path))
            if not sealed and not self._tree.hides(first.path):
                yield _missing(first, end, rack, seal)
        self._open.clear()


def _missing(first: Rack, end: Rack | None, sealed: Rack, seal: Evidence) -> Finding:
    """lost-file: indeterminate, because a copy may have passed by before the racks were sealed."""
    path = f"{first.path}/{SEAL}"
    what = f"{first.path} has no seal" if end is None else f"the racks from {first.path} up to {end.path} are not there"
    reason = (
        f"{what}, and {sealed.path} has one; racks are sealed in order. It was taken out, or the copy was made while "
        "they were being sealed"
    )
    title = "the seal of a rack is missing" if end is None else "sealed racks are missing"
    return found("lost-file", path, reason, [Evidence(path), seal], verdict=Verdict.INDETERMINATE, title=title)


def damaged_inside(seal: RackSeal) -> str | None:
    """Return what is wrong with the lock files in a seal, or None."""
    for entry in seal.entries:
        try:
            open_lock(entry.lock, f"the lock file of {entry.bag} in the seal")
        except Damaged as problem:
            return problem.message
    return None


def first_unlisted(grid: Grid, rack: Rack, locks: Mapping[str, bytes]) -> int | None:
    """Return where the first bag of a sealed rack begins that its seal does not list; None where it lists all."""
    start = max(rack.start_ns, grid.first_ns)
    while start < rack.end_ns:
        bag = grid.bag(start)
        if bag.name not in locks:
            return start
        start = bag.end_ns
    return None
