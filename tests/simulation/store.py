"""The production lease store, in memory: making its tables takes longer than many turns of a shard."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import apsw

from appliance.lease.store import LeaseStore

_MEMORY = Path(":memory:")


class MemoryStore(LeaseStore):
    """A store that begins with a copy of an empty one."""

    def __init__(self) -> None:
        super().__init__(_MEMORY)

    @staticmethod
    def _opened(path: Path) -> apsw.Connection:
        connection = apsw.Connection(str(path))
        connection.deserialize("main", _empty())
        return connection


@cache
def _empty() -> bytes:
    made = LeaseStore(_MEMORY)
    try:
        return made._connection.serialize("main")
    finally:
        made.close()
