"""Session leases as columns: until when each was good at what instant, and when it was over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .heads import NEVER, PLACES, marks
from .layout import NOTHING, NUMBER_MAX, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from auditor.history import Position, SessionHistory, SessionName

    from .heads import Heads

type Column = NDArray[np.int64]


class SessionColumns:
    """All session leases that are known, and behind them, in the last place, one that stands for all others."""

    def __init__(self, known: Mapping[SessionName, SessionHistory], heads: Heads) -> None:
        """Take them in order of their names."""
        self._heads = heads
        self._number = {name: number for number, name in enumerate(known)}
        self.over = np.full(len(known) + 1, NEVER)
        """Position of the end of each; NEVER: it is not over."""
        self.suspect = np.zeros(len(known) + 1, np.bool_)
        """Whether something is told of it where more is told than once, or with numbers that are too large."""
        self.suspect[-1] = True
        ends, position, expiry = [0], [NOTHING], [NOTHING]
        ended: list[bytes] = []
        for number, history in enumerate(known.values()):
            highest = 0
            for told in history.told:
                highest = max(highest, told.witness.expiry_ns)
                position.append(self._place(told.position, number))
                expiry.append(min(highest, NUMBER_MAX))
                ended += told.witness.ended
            self.suspect[number] |= highest >= NUMBER_MAX
            ends.append(len(position) - 1)
            if history.over is not None:
                self.over[number] = self._place(history.over.position, number)
        self._ends = np.array([*ends, ends[-1]], np.int64)
        """Where in the columns the last word of each stands that was told before the next one's first."""
        self._position, self._expiry = np.array(position, np.int64), np.array(expiry, np.int64)
        each = numbers(b"".join(ended), 2)
        self.ended = np.unique(marks(np.zeros(len(each), np.int64), each))
        """Marks of the leases that were ended alone."""

    def _place(self, position: Position, number: int) -> int:
        """Return a position as columns have it."""
        *_, incarnation, sequence, place = position
        head = self._heads.once.get((incarnation, sequence))
        if head is None or not self._heads.plain[head] or place >= PLACES:
            self.suspect[number] = True
            return 0
        return head * PLACES + place

    def of(self, run: Column, ids: NDArray[np.uint64]) -> Column:
        """Return the number of the session lease of each run with each id; that of the last place if none is known."""
        keys, first, which = np.unique(marks(run, ids), return_index=True, return_inverse=True)
        found = np.full(len(keys), len(self._number))
        for number, at in enumerate(first.tolist()):
            name = (self._heads.runs[int(run[at])], ids[at].tobytes())
            found[number] = self._number.get(name, len(self._number))
        same = (run == run[first][which]) & (ids == ids[first][which]).all(axis=1)
        return np.where(same, found[which], len(self._number))

    def expiry_before(self, session: Column, position: Column) -> Column:
        """Return the latest expiry that was told of each session lease before a position; NOTHING where none was."""
        low, high = self._ends[session].copy(), self._ends[session + 1].copy()
        while (low < high).any():
            middle = (low + high + 1) // 2
            before = self._position[middle] < position
            low = np.where(before & (low < high), middle, low)
            high = np.where(~before & (low < high), middle - 1, high)
        return np.where(low > self._ends[session], self._expiry[low], NOTHING)
