"""tenure: leases, timestamped messages in closable bags, and their audit, over one shared directory.

The names that applications use. Each is loaded when it is first asked for, so that a command of the command line loads
only what it needs. Everything else is the inside of the house.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # by its name checkers know it: loading typing takes as long as the start of an interpreter
if TYPE_CHECKING:
    from typing import Final

    from appliance.bag.message import Message, MessageBatch
    from appliance.bag.writing import Committed, NotCommitted, Outcome, Unknown
    from appliance.cluster import Cluster
    from appliance.formats.lease import Mode
    from appliance.recipes.cached_value import CachedValue
    from appliance.recipes.election import Election, Leader, Leadership
    from appliance.recipes.exclusion import Hold, Mutex, RWLock, Semaphore
    from appliance.recipes.fence_gate import FenceGate
    from appliance.recipes.mount_election import MountElection, MountLeadership
    from appliance.recipes.path_lock import PathLock
    from appliance.session.asking import Leases
    from appliance.session.held import Lease, Recall
    from appliance.session.session import Session
    from appliance.views import Fold
    from timeagent.errors import (
        BadConfiguration,
        BadRequest,
        BadTime,
        Damaged,
        Environment,
        LeaseLost,
        NotTrusted,
        ShardUnavailable,
        TenureError,
        TryAgain,
        UnknownOutcome,
    )
    from timeagent.units import TimeInterval

_HOMES: Final = {
    "BadConfiguration": "timeagent.errors",
    "BadRequest": "timeagent.errors",
    "BadTime": "timeagent.errors",
    "CachedValue": "appliance.recipes.cached_value",
    "Cluster": "appliance.cluster",
    "Committed": "appliance.bag.writing",
    "Damaged": "timeagent.errors",
    "Election": "appliance.recipes.election",
    "Environment": "timeagent.errors",
    "FenceGate": "appliance.recipes.fence_gate",
    "Fold": "appliance.views",
    "Hold": "appliance.recipes.exclusion",
    "Leader": "appliance.recipes.election",
    "Leadership": "appliance.recipes.election",
    "Lease": "appliance.session.held",
    "LeaseLost": "timeagent.errors",
    "Leases": "appliance.session.asking",
    "Message": "appliance.bag.message",
    "MessageBatch": "appliance.bag.message",
    "Mode": "appliance.formats.lease",
    "MountElection": "appliance.recipes.mount_election",
    "MountLeadership": "appliance.recipes.mount_election",
    "Mutex": "appliance.recipes.exclusion",
    "NotCommitted": "appliance.bag.writing",
    "NotTrusted": "timeagent.errors",
    "Outcome": "appliance.bag.writing",
    "PathLock": "appliance.recipes.path_lock",
    "RWLock": "appliance.recipes.exclusion",
    "Recall": "appliance.session.held",
    "Semaphore": "appliance.recipes.exclusion",
    "Session": "appliance.session.session",
    "ShardUnavailable": "timeagent.errors",
    "TenureError": "timeagent.errors",
    "TimeInterval": "timeagent.units",
    "TryAgain": "timeagent.errors",
    "Unknown": "appliance.bag.writing",
    "UnknownOutcome": "timeagent.errors",
}


def __getattr__(name: str) -> object:
    """Load a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Name the public names too, loaded or not: for ``dir``, ``help`` and completion."""
    return sorted({*globals(), *_HOMES})


__all__ = [
    "BadConfiguration",
    "BadRequest",
    "BadTime",
    "CachedValue",
    "Cluster",
    "Committed",
    "Damaged",
    "Election",
    "Environment",
    "FenceGate",
    "Fold",
    "Hold",
    "Leader",
    "Leadership",
    "Lease",
    "LeaseLost",
    "Leases",
    "Message",
    "MessageBatch",
    "Mode",
    "MountElection",
    "MountLeadership",
    "Mutex",
    "NotCommitted",
    "NotTrusted",
    "Outcome",
    "PathLock",
    "RWLock",
    "Recall",
    "Semaphore",
    "Session",
    "ShardUnavailable",
    "TenureError",
    "TimeInterval",
    "TryAgain",
    "Unknown",
    "UnknownOutcome",
]
