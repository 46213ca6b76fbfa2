"""What may take long, or hang, is done in a thread of its own: the screen's own thread waits for nothing."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from timeagent.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Callable


def do_elsewhere[T](
    body: Callable[[], T], take: Callable[[T | TenureError], None], failed: Callable[[BaseException], None]
) -> None:
    """Start it and return. ``take`` gets what it came to, or why nothing; ``failed`` whatever else it raises: a bug.

    Both are called from the other thread.
    """

    def run() -> None:
        try:
            found: T | TenureError = body()
        except TenureError as problem:
            found = problem
        except BaseException as problem:  # noqa: BLE001 - a bug; the terminal is given back before it is shown
            failed(problem)
            return
        take(found)

    Thread(target=run, daemon=True, name="top work").start()
