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
    from appliance.session.endings import Recall
    from appliance.session.held import Lease
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
    name: home
    for home, names in {
        "appliance.bag.message": "Message MessageBatch",
        "appliance.bag.writing": "Committed NotCommitted Outcome Unknown",
        "appliance.cluster": "Cluster",
        "appliance.formats.lease": "Mode",
        "appliance.recipes.cached_value": "CachedValue",
        "appliance.recipes.election": "Election Leader Leadership",
        "appliance.recipes.exclusion": "Hold Mutex RWLock Semaphore",
        "appliance.recipes.fence_gate": "FenceGate",
        "appliance.recipes.mount_election": "MountElection MountLeadership",
        "appliance.recipes.path_lock": "PathLock",
        "appliance.session.asking": "Leases",
        "appliance.session.endings": "Recall",
        "appliance.session.held": "Lease",
        "appliance.session.session": "Session",
        "appliance.views": "Fold",
        "timeagent.errors": "BadConfiguration BadRequest BadTime Damaged Environment LeaseLost NotTrusted "
        "ShardUnavailable TenureError TryAgain UnknownOutcome",
        "timeagent.units": "TimeInterval",
    }.items()
    for name in names.split()
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
