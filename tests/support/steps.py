"""How much is done, whatever the machine: by it what costs more than it is long is told from what takes long."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def steps(act: Callable[[], object], package: str = "auditor") -> int:
    """Return how many lines of a package are gone over."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, _event: str, _argument: object) -> object:
        nonlocal count
        count += package in frame.f_code.co_filename
        return trace

    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        act()
    finally:
        sys.settrace(before)
    return count
