"""What a server counts, for metrics and people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class ServerCounts:
    """What a server has done since it began. Written by its thread, read by others: each number for itself."""

    accepted: int = 0
    calls: int = 0
    requests: int = 0
    turns: int = 0
    turn_ns: int = 0
    """Time spent in turns, waiting for the mount included."""
    looped_ns: int = 0
    """When the loop went round last, since boot; 0: never."""
    throttled: int = 0
    full: int = 0
    """Turns that came to nothing because the tmpfs was full."""
    closed: Counter[str] = field(default_factory=Counter)
    """Connections that ended, by reason."""
