"""The port of a time source: what it says about this machine's clock, as an interval at a boot-time instant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from timeagent.interval import TimeInterval
    from timeagent.signedtime import ClockStatus


@dataclass(frozen=True, slots=True)
class Sample:
    """``true - CLOCK_REALTIME`` was inside ``offset`` (nanoseconds) when CLOCK_BOOTTIME was ``boot_ns``."""

    source: str
    offset: TimeInterval
    boot_ns: int
    status: ClockStatus
    assumed: bool = False
    cluster_time: bool = False
    """Relative to a named reference of this cluster, not to UTC."""


class Source(Protocol):
    """One opinion about this machine's clock."""

    @property
    def name(self) -> str:
        """A short word: what ``time sources`` shows."""
        ...

    def sample(self) -> Sample:
        """Ask once. Raises BadTime with the reason when the source has no bound to give. Blocks at most briefly."""
        ...
