"""The bars of the screens' speed, what misses them, and how long anything is waited for."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from textual.pilot import Pilot

WAIT_SECONDS: Final = 60

KEY_MS_MAX: Final = 10.0
"""Processor time of the screen's thread for a key, until everything that it brings is drawn."""
PAINT_MS_MAX: Final = 1_000.0
MEMORY_MB_MAX: Final = 150.0
"""Of a record of a million messages, and of ten thousand leases live."""
SHARE_MAX: Final = 0.10
"""Of a core, with ten thousand leases live."""


async def until(pilot: Pilot[None], there: Callable[[], bool], what: str) -> None:
    """Wait for a screen. Raises TimeoutError, naming ``what``, where it does not come."""
    end = time.monotonic() + WAIT_SECONDS
    while not there():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain for {what}")
        await pilot.pause(0.005)


def over(what: str, values: Iterable[tuple[str, float, float]]) -> list[str]:
    """Return which of (name, value, bar) are over their bar. What is no number is over any."""
    return [f"{what}: {name} {value:.4g}, at most {bar:g}" for name, value, bar in values if not value <= bar]


def keys_over(what: str, keys: Mapping[str, float]) -> list[str]:
    """Return which keys take too long, by their milliseconds."""
    return over(what, [(f"key {name}, ms", each, KEY_MS_MAX) for name, each in keys.items()])


def nowhere(what: str, moved: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return which keys mostly changed nothing that is shown, by (changed, pressed): their cost says nothing."""
    return [
        f"{what}: key {name} changed what is shown {changed} times of {pressed}"
        for name, (changed, pressed) in moved.items()
        if 2 * changed <= pressed
    ]


def told(broken: Iterable[str]) -> int:
    """Say what is broken on stderr; return the exit code."""
    lines = list(broken)
    for line in lines:
        print(f"bench-tui: {line}", file=sys.stderr)
    return 1 if lines else 0
