"""In memory what ``appliance.node.wakes`` is on tmpfs."""

from __future__ import annotations


class WokenLogs:
    """The logs that the processes of one machine use, until its daemon takes them up."""

    def __init__(self) -> None:
        self._names = set[str]()

    def wake(self, log: str) -> None:
        self._names.add(log)

    def taken(self) -> list[str]:
        """Return them in order, and forget them."""
        taken = sorted(self._names)
        self._names.clear()
        return taken
