"""Leases that are lost: why, and who wants to be told.

A loss is found by whoever looks first: the renewal thread, or a call that uses the lease. It is told after every lock
is let go, once to each listener, in the thread that found it.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.formats.lease import Holder
    from timeagent.units import Span

    from .held import Lease

_log = logging.getLogger(__name__)


class Reason(StrEnum):
    """Why a lease is over against its holder's will."""

    EXPIRED = "expired"
    """It was not renewed in time: the process, or its renewal thread, stood still."""
    HOLD_CAP = "hold cap"
    """It was held for as long as it was taken for (``hold_ns_max``)."""
    NO_PROGRESS = "no progress"
    """Its holder did not get on (``progress_within_ns``), so it was not renewed."""
    REVOKED = "revoked"
    """An operator has ended it: ``Loss.by`` says who and why."""
    BROKEN = "broken"
    """Its shard has ended it, or does not know it any more."""
    SHARD_UNREACHABLE = "shard unreachable"
    """It expired while its shard did not answer."""
    CLOCK_UNSAFE = "clock unsafe"
    """It expired, or may have, while this node had no bounded time; or its shard's witness contradicts this clock."""
    RECALLED = "recalled"
    """Another asked for it, and it is given back, as was chosen when it was taken."""


UNKNOWN: Final = frozenset({Reason.SHARD_UNREACHABLE, Reason.CLOCK_UNSAFE})
"""What leaves it open whether the shard still has a lease that is not over here."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One lost lease. ``ended``: the same as the lease's: the last word of the error's code."""

    lease: Lease
    reason: Reason
    ended: str
    by: Holder | None = None
    """Who revoked it, and as the purpose why; None where nobody did, or its shard does not remember."""

    def __str__(self) -> str:
        """Return it in words, without the domain."""
        return self.reason + (f" by {self.by.node}/{self.by.process}: {self.by.purpose}" if self.by else "")


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a holder knows of its lease at an instant."""

    state: Literal["held", "unknown", "over"]
    """``unknown``: the last renewal failed, so nobody here can tell what its shard knows of it."""
    good_ns: Span
    """How long it may still be used, whatever its shard does: 0 if it is over."""
    reason: Reason | None
    """Why it is unknown, or over against its holder's will."""


type Listener = Callable[[Loss], None]


class Losses:
    """What was lost in one session, and the listeners. Safe to share between threads."""

    def __init__(self) -> None:
        """Know of nothing."""
        self._lock = Lock()
        self._found: deque[Loss] = deque()
        self._of_all: list[Listener] = []
        self._of_one: dict[Lease, list[Listener]] = {}
        self._told: set[Lease] = set()

    def found(self, loss: Loss) -> None:
        """Take note, under whatever lock: nobody is told yet."""
        self._found.append(loss)

    def listen(self, listener: Listener) -> None:
        """Tell it of every loss from now on."""
        with self._lock:
            self._of_all.append(listener)

    def listen_to(self, lease: Lease, listener: Listener) -> None:
        """Tell it if this lease is lost: at once, if others have been told already, or it is not kept any more."""
        with self._lock:
            coming = any(each.lease is lease for each in tuple(self._found))
            told = lease in self._told or (lease.loss is not None and not coming)
            if not told:
                self._of_one.setdefault(lease, []).append(listener)
        if told and lease.loss is not None:
            _tell(listener, lease.loss)

    def forget(self, leases: list[Lease]) -> None:
        """Drop what is known of leases that were given back."""
        with self._lock:
            for lease in leases:
                self._of_one.pop(lease, None)
                self._told.discard(lease)

    def tell(self) -> None:
        """Tell everybody of what was found. Call it without any lock."""
        while self._found:
            with self._lock:
                if not self._found:
                    return
                loss = self._found.popleft()
                self._told.add(loss.lease)
                listeners = [*self._of_one.pop(loss.lease, ()), *self._of_all]
            for listener in listeners:
                _tell(listener, loss)


def _tell(listener: Listener, loss: Loss) -> None:
    try:
        listener(loss)
    except Exception:  # noqa: BLE001 - whatever an application's function raises
        # The other leases still have to be renewed, and the other listeners told: the lease itself stays lost by name.
        _log.exception("lost-listener-failed domain=%s reason=%s", loss.lease.domain, loss.reason)
