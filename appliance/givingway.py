"""An application that runs its machine's shard gives it up when the daemon comes.

Whoever asks first runs a shard (``shards.py``), also an application whose daemon was killed a moment ago. But only the
daemon answers other nodes, and it goes on when applications end: while an application kept the shard, the rest of the
cluster could have no lease of it. So an application looks now and then for a daemon, stops the shard in good order when
there is one, and begins none while it runs. The daemon takes it from there (``tenancy.py``).
"""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Final

from timeagent.units import MS

from .lease.connection import credentials

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from timeagent.clock import NodeTime
    from timeagent.units import Instant, Span

    from .machinery import Machinery, Running

_log = logging.getLogger(__name__)

LOOK_NS: Final[Span] = 250 * MS
"""How often a shard's loop looks whether there is a daemon."""


class GivingWay:
    """One application's shards, as far as they are the daemon's."""

    def __init__(
        self, machinery: Machinery, time: NodeTime, leave: Callable[[int], None], keys_end: Callable[[], str | None]
    ) -> None:
        """Look for nobody yet. ``leave``: stop a shard in good order and give up its lock; it may block.

        ``keys_end``: why no shard may go on in this process for its keys, or None.
        """
        self._machinery = machinery
        self._time = time
        self._leave = leave
        self._keys_end = keys_end
        self._looked: dict[int, Instant] = {}
        self._leaving: dict[int, Running] = {}

    def look(self, shard: int) -> None:
        """Begin to give a shard up if a daemon runs, or its keys end. For the shard's own loop.

        Never blocks, touches tmpfs only.
        """
        now = self._time.boot_ns()
        if now - self._looked.get(shard, 0) < LOOK_NS:
            return
        self._looked[shard] = now
        leaving = self._leaving.get(shard)
        if leaving is not None and leaving.is_alive():
            return
        why = "the daemon runs" if self._machinery.daemon_runs() else self._keys_end()
        if why is None:
            return
        _log.info("shard-gives-way shard=%d reason=%s", shard, why)
        self._leaving[shard] = self._machinery.spawn(f"tenure-leave-{shard}", lambda: self._leave(shard))


def kept_by(path: Path) -> str | None:
    """Return in words which other process of this machine listens at a shard's socket; None: none that is seen.

    Touches tmpfs only; never blocks. It is there also while it stands still.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(0)
        try:
            asking.connect(str(path))
            process = credentials(asking)[0]
        except BlockingIOError:
            process = 0  # so many wait to be let in that nobody hears who it is
        except OSError:
            return None
    if process == os.getpid():
        return None
    return f"process {process} of this machine" if process else "another process of this machine"
