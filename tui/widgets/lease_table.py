"""The leases of the overview: who holds what, until when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..columns import LEASE_COLUMNS
from ..overview import leases_title, nothing_words
from ..subjects import DomainSubject
from ..words import filtered, lease_row
from .pick_table import PickTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..state import ClusterState, LeaseRow


class LeaseTable(PickTable):
    """One row per lease, filtered, in order of domain."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(LEASE_COLUMNS, "Leases", id="leases")
        self._state: ClusterState | None = None
        self._words = ""
        self._shown: Sequence[LeaseRow] = ()

    @property
    def row(self) -> LeaseRow | None:
        """The lease under the cursor."""
        return self._shown[self.cursor] if self._shown else None

    @property
    def words(self) -> str:
        """The filter."""
        return self._words

    @words.setter
    def words(self, words: str) -> None:
        self._words = words.strip()
        if self._state is not None:
            self.show(self._state)

    def show(self, state: ClusterState) -> None:
        """Show a state's leases."""
        self._state = state
        now = state.clock.now
        leases = self._shown = filtered(state.leases, self._words)
        self.show_title(leases_title(state, len(leases), self._words))
        self.show_picks(
            len(leases),
            lambda index: lease_row(leases[index], now),
            nothing_words(state, self._words),
            lambda index: DomainSubject(leases[index].domain),
        )
