"""What a shard knows of where messages are: how it grows with what holders say, and who is told. Pure.

Of the messages under a lease that ended without its holder's word nothing is known but that none is above the floor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from ..formats.hints import NOTHING_WRITTEN, PLACES_MAX, capped, joined, nothing_known
from ..formats.lease import Mode
from .domain import Grant, Taken
from .wire import Acquire, Upgrade

if TYPE_CHECKING:
    from ..formats.hints import Hints
    from .domain import Bounds, Command, Lease, State

HINT_BYTES_MAX: Final = 64 * 1024 * 1024
"""How much a shard remembers of where messages are: more than that is forgotten as it comes in."""


def remembering(state: State, hints: Hints | None, bounds: Bounds) -> State:
    """Add what is known about the messages of a lease that has ended: none of them is above the floor by now.

    None: nothing else is known about them.
    """
    if hints == NOTHING_WRITTEN:
        return state
    memory = state.memory
    about = nothing_known(memory.floor_ns) if hints is None else capped(hints, memory.floor_ns)
    about = joined(memory.hints, about, bytes_max=memory.hints.bytes + bounds.hint_bytes_left)
    return msgspec.structs.replace(state, memory=msgspec.structs.replace(memory, hints=about))


def said(state: Taken, lease: Lease, hints: Hints | None, bounds: Bounds) -> Hints:
    """Return what the holder has said about what it wrote. All leases of a domain share one number of places."""
    if hints is None:
        return lease.hints
    others = sum(len(each.hints.places) for each in state.leases if each is not lease)
    most = max(0, PLACES_MAX - others)
    return joined(lease.hints, hints, places_max=most, bytes_max=lease.hints.bytes + bounds.hint_bytes_left)


def hints_for(command: Command, state: State, correlation_id: bytes) -> Hints | None:
    """Return what a grant says about the messages of others: all of them have ended where nobody else may write."""
    request = command.request if isinstance(command, Grant) else command
    if not (isinstance(request, (Acquire, Upgrade)) and request.hints_wanted and isinstance(state, Taken)):
        return None
    mode = next((each.mode for each in state.leases if each.correlation_id == correlation_id), Mode.IS)
    return state.memory.hints if mode.reads_all else None
