"""How many requests to the mount may be under way at once: one after the other, or in threads.

Protocol code does not depend on it: what is done at once is independent, and what has an order is done in order.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Parallel(Protocol):
    """Does one thing to each of several items."""

    @property
    def width(self) -> int:
        """So many at once."""
        ...

    def each[T, R](self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the results in order. Raises what the first of them raises, when none is under way any more."""
        ...


class Serial:
    """One after the other, in the caller's thread."""

    width: Final = 1

    def each[T, R](self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the results in order."""
        return [do(item) for item in items]


@dataclass(frozen=True, slots=True)
class Threads:
    """In threads that end with the call. The ports below must be safe to share between threads."""

    width: int = 16

    def each[T, R](self, do: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the results in order."""
        if len(items) == 1:
            return [do(items[0])]
        with ThreadPoolExecutor(self.width, "tenure-bags") as pool:
            return list(pool.map(do, items))
