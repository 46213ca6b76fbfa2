"""``Leases``: what one ``acquire`` has taken, to be given back together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, overload

from .held import Lease


class Leases(Sequence["Lease"]):
    """The leases of one ``acquire``, in order of domain. Relinquished at the end of a ``with`` block."""

    def __init__(self, leases: Sequence[Lease], give_back: Callable[[Sequence[Lease]], object]) -> None:
        """Hold them. ``give_back``: their session's way to relinquish."""
        self._give_back = give_back
        self._leases = tuple(leases)

    @overload
    def __getitem__(self, index: int) -> Lease: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Lease, ...]: ...
    def __getitem__(self, index: int | slice) -> Lease | tuple[Lease, ...]:
        return self._leases[index]

    def __len__(self) -> int:
        return len(self._leases)

    def __enter__(self) -> Self:
        """Hold them for a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them back, with the right watermark."""
        self._give_back(self)
