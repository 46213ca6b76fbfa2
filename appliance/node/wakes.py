"""How the processes of a machine wake its daemon's metronome: an empty file on tmpfs for each log that they use.

The daemon takes the files away as it takes the logs up, so that none is lost, however many there are and whoever stops
in between; at most one for each log is left where no daemon runs. Nothing depends on it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

DIRECTORY: Final = "woken"


class Wakes:
    """The logs of one node that were woken and not yet taken up. Thread-safe."""

    def __init__(self, runtime: Path) -> None:
        """Take the node's directory on tmpfs. Touches nothing yet."""
        self._path = runtime / DIRECTORY

    def open(self) -> None:
        """Make it possible to wake: a daemon has begun. Raises OSError."""
        self._path.mkdir(mode=0o700, exist_ok=True)

    def wake(self, log: str) -> None:
        """Have the daemon look at a log soon, if one has run here. Never raises, never waits."""
        with contextlib.suppress(OSError):
            (self._path / log).touch(0o600)

    def taken(self) -> list[str]:
        """Return the logs that were woken since this was called last. Never raises.

        A file is taken away before its log is looked at: who wakes it later makes a new one.
        """
        names = []
        with contextlib.suppress(OSError):
            for path in self._path.iterdir():
                with contextlib.suppress(OSError):
                    path.unlink()
                    names.append(path.name)
        return names
