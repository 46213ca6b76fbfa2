"""What everything in a bag's protocol is given: the ports, and the name of this node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.formats.paths import LOGS, TMP

from .parallel import Serial

if TYPE_CHECKING:
    from timeagent.clock import NodeTime

    from .parallel import Parallel
    from .records import Records
    from .storage import Storage


@dataclass(frozen=True, slots=True)
class BagContext:
    """The ports. Protocol code below has no other way to the world."""

    storage: Storage
    time: NodeTime
    records: Records
    node: str
    parallel: Parallel = field(default_factory=Serial)
    """How requests to the mount that do not depend on each other are made."""

    def tmp(self, log: str) -> str:
        """Return the directory where this node prepares files of a log."""
        return f"{LOGS}/{log}/{TMP}/{self.node}"
