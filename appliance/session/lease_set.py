"""``Leases``: what one ``acquire`` has taken, to be given back together."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from .held import Lease


class Leases(tuple["Lease", ...]):  # noqa: SLOT001 - a tuple has no room for a slot
    """The leases of one ``acquire``, in order of domain. Relinquished at the end of a ``with`` block."""

    give_back: Callable[[Leases], object]
    """Their session's way to relinquish."""

    def __enter__(self) -> Self:
        """Hold them for a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give them back, with the right watermark."""
        self.give_back(self)
