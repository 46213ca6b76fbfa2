"""The production lease store, in memory: making its tables takes longer than many turns of a shard.

A connection is emptied and used again, by the shards of later runs too: what was prepared for it stays prepared.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import apsw

from appliance.lease.store import LeaseStore

_idle: list[apsw.Connection] = []
"""Connections to empty tables."""


def forget_idle() -> None:
    """Use no connection again that was used until now: code that is wrong may have shared one, or closed it."""
    _idle.clear()


class _Nowhere:
    """In the place of a path: nothing was left under it."""

    name = ":memory:"

    def with_name(self, name: str) -> _Nowhere:
        del name
        return self

    def unlink(self, *, missing_ok: bool) -> None:
        assert missing_ok


class MemoryStore(LeaseStore):
    """A store that begins with empty tables."""

    def __init__(self, path: object = None, left: apsw.Connection | None = None) -> None:
        super().__init__(cast("Path", path or _Nowhere()), left)

    @staticmethod
    def _opened(path: Path) -> apsw.Connection:
        return _idle.pop() if _idle else LeaseStore._opened(Path(path.name))

    def close(self) -> None:
        """Empty the tables, and let nobody use them by this store any more."""
        connection = self._connection
        assert not connection.in_transaction
        self.clear()
        del self._connection
        _idle.append(connection)
