"""Many leases as one value: rows for what is seen, and columns for what is counted or sorted. Pure.

Counting how they stand four times a second must not cost a step per lease and time: an answer's rows are made once, and
what changes with the clock is a comparison of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from .state import LeaseRow


class Leases(Sequence["LeaseRow"]):
    """Rows that never change. Equal to any sequence of the same rows."""

    def __init__(self, rows: Iterable[LeaseRow] = ()) -> None:
        """Take the rows as they are."""
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> LeaseRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LeaseRow, ...]: ...
    def __getitem__(self, index: int | slice) -> LeaseRow | tuple[LeaseRow, ...]:
        """Return a row, or several."""
        return self._rows[index]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        """Whether the rows are the same, in a book or in a tuple."""
        return self._rows == (other._rows if isinstance(other, Leases) else other)

    def __hash__(self) -> int:
        """Return a hash of the rows."""
        return hash(self._rows)

    def __repr__(self) -> str:
        """Name the rows."""
        return f"Leases({self._rows!r})"

    @cached_property
    def expiries(self) -> NDArray[np.int64]:
        """When each expires."""
        return np.fromiter((row.expiry_ns for row in self._rows), np.int64, len(self._rows))

    @cached_property
    def fading(self) -> NDArray[np.int64]:
        """Which of them nobody will renew: the holder's process is gone, or the shard does not answer for it."""
        return np.array(
            [
                index
                for index, row in enumerate(self._rows)
                if row.holder_present is False or row.origin in ("last answer", "earlier run")
            ],
            np.int64,
        )

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """What a filter looks at, of each: domain, mode, phase, holder, purpose, in small letters."""
        return tuple(
            f"{row.domain} {row.mode} {row.phase} {row.node}/{row.process} {row.purpose}".casefold()
            for row in self._rows
        )
