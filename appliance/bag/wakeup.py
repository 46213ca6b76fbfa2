"""Wake a follower when a file appears near the horizon. On local file systems only, and never a source of truth.

The kernel tells a machine of its own changes: what other clients of an NFS server do makes no event. A follower polls
in any case; a wake-up only makes the next look come sooner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Self

from watchdog.events import DirCreatedEvent, FileCreatedEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from appliance.formats.paths import LOCK, SEAL
from timeagent.units import SECOND, Instant, Span


def _about_what_happened(record: logging.LogRecord) -> bool:
    """Not the error that watchdog's reader logs when an event overtakes the end of its watch, which is no failure."""
    return not str(record.msg).startswith("InotifyEmitter.queue_events() called when the thread is inactive")


# Without a handler of the application's, logging writes errors to stderr, into the end of an orderly `tail`.
logging.getLogger("watchdog.observers.inotify").addFilter(_about_what_happened)


class _Wake(FileSystemEventHandler):
    """A lock file or a seal was linked, or a bag's directory was made."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def on_created(self, event: DirCreatedEvent | FileCreatedEvent) -> None:
        name = event.src_path if isinstance(event.src_path, str) else event.src_path.decode(errors="replace")
        if event.is_directory or name.rpartition("/")[2] in (LOCK, SEAL):
            self._event.set()


class LocalWait:
    """Waits (``reader.Wait``) until something appears in the rack of the horizon. Use in a ``with`` block."""

    def __init__(self, root: Path, rack_at: Callable[[Instant], str]) -> None:
        """Watch nothing yet. ``rack_at`` says in which rack's directory, below the root, an instant lies."""
        self._root = root
        self._rack_at = rack_at
        self._event = Event()
        self._observer: BaseObserver = Observer()
        self._watched: tuple[str, ObservedWatch] | None = None

    def __enter__(self) -> Self:
        self._observer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._observer.stop()
        self._observer.join()

    def __call__(self, span: Span, horizon_ns: Instant) -> None:
        """Wait; a rack that cannot be watched, as one that does not exist yet, is waited for by time alone."""
        self._watch(self._rack_at(horizon_ns))
        self._event.wait(span / SECOND)
        self._event.clear()

    def _watch(self, rack: str) -> None:
        if self._watched is not None and self._watched[0] == rack:
            return
        try:
            watch = self._observer.schedule(_Wake(self._event), str(self._root / rack), recursive=True)
        except OSError:
            return
        if self._watched is not None:
            self._observer.unschedule(self._watched[1])
        self._watched = (rack, watch)
