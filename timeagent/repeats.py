"""Log lines that say the same again and again: the first, and then one now and then with a count of the others."""

from __future__ import annotations

import copy
import logging
import re
from threading import Lock
from typing import Final

EVERY_S: Final = 60.0
"""So long after a line others like it are only counted."""

KINDS_MAX: Final = 256
_NUMBER: Final = re.compile(r"\d+")


class Repeats(logging.Filter):
    """A filter for a handler. Thread-safe.

    Two lines are alike that one place logs with the same values; in the last of them, which is a reason in words,
    numbers may differ: ages, sizes and offsets change from one to the next.
    """

    def __init__(self) -> None:
        """Have seen nothing yet."""
        super().__init__()
        self._lock = Lock()
        self._seen: dict[tuple[str, ...], tuple[float, int]] = {}
        """When a line of a kind was let through, and how many have been held back since; the oldest first."""

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        """Return the line, or False for one to hold back."""
        given = record.args if isinstance(record.args, tuple) else ()
        *values, reason = map(str, given or ("",))
        kind = (record.name, str(record.msg), *values, _NUMBER.sub("0", reason))
        with self._lock:
            at, held = self._seen.get(kind, (None, 0))
            if at is not None and 0 <= record.created - at < EVERY_S:
                self._seen[kind] = at, held + 1
                return False
            self._seen.pop(kind, None)
            self._seen[kind] = record.created, 0
            while len(self._seen) > KINDS_MAX:
                del self._seen[next(iter(self._seen))]
        if not held:
            return True
        told = copy.copy(record)
        told.msg, told.args = f"{record.getMessage()} (held back since the last of this kind: {held})", None
        return told
