"""What everything in a bag's protocol is given: the ports, and the name of this node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.formats.paths import LOGS, TMP

if TYPE_CHECKING:
    from timeagent.clock import NodeTime

    from .records import Records
    from .storage import Storage


@dataclass(frozen=True, slots=True)
class BagContext:
    """The ports. Protocol code below has no other way to the world."""

    storage: Storage
    time: NodeTime
    records: Records
    node: str

    def tmp(self, log: str) -> str:
        """Return the directory where this node prepares files of a log."""
        return f"{LOGS}/{log}/{TMP}/{self.node}"
