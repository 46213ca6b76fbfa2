"""Where columns wait between the reading of the parts and the judging of the buckets: files that every process sees.

Each process that reads appends to a file of its own, and tells the others where its rows stand. Rows go through no pipe
and no database; whoever judges a bucket has no more than that one in memory.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from timeagent.errors import Environment

from .layout import Chunk, Place

if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import FileIO
    from pathlib import Path


class Spool:
    """Files in one directory, which is gone with the audit."""

    def __init__(self, directory: Path) -> None:
        """Take a directory that every process of this audit knows."""
        self._directory = directory
        self._own: tuple[int, FileIO] | None = None
        """The process that writes, and its file."""
        self._files: dict[int, FileIO] = {}
        """Of each process, open for reading at places: it does not matter who else has the same descriptor."""

    def keep(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Write what chunks hold; return them with the places instead, and as they are where they do not fit."""
        return [chunk if chunk.place else self._keep(chunk) for chunk in chunks]

    def _keep(self, chunk: Chunk) -> Chunk:
        try:
            at = self._write(chunk.rows)
            self._write(chunk.raw)
        except OSError:
            return chunk
        place = Place(os.getpid(), at, len(chunk.rows), len(chunk.raw))
        return Chunk(chunk.kind, chunk.bucket, chunk.names, b"", b"", place)

    def read(self, place: Place, *, raw: bool) -> tuple[bytes, bytes]:
        """Return rows and, if they are asked for, raw bytes. Raises Environment: what was written is not there."""
        wanted = place.rows + (place.raw if raw else 0)
        try:
            found = self._found(place, wanted)
        except OSError as problem:
            raise Environment(
                "audit-files-lost",
                f"{self._directory}, where this audit keeps what it has read, failed: {problem}",
                hint="let nothing clear it while an audit runs; TMPDIR names another place",
            ) from None
        return (found[: place.rows], found[place.rows :]) if raw else (found, b"")

    def _found(self, place: Place, wanted: int) -> bytes:
        file = self._files.get(place.process)
        if file is None:
            file = self._files[place.process] = (self._directory / str(place.process)).open("rb", buffering=0)
        found = os.pread(file.fileno(), wanted, place.at)
        if len(found) != wanted:
            raise OSError(errno.EIO, f"{len(found)} of {wanted} bytes of columns are there", str(file.name))
        return found

    def _write(self, data: bytes) -> int:
        process = os.getpid()
        if self._own is None or self._own[0] != process:
            file = (self._directory / str(process)).open("ab", buffering=0)
            self._own = process, file
        file, left = self._own[1], memoryview(data)
        at = file.seek(0, os.SEEK_END)
        while left:
            left = left[file.write(left) :]
        return at

    def close(self) -> None:
        """Let go of the own file."""
        if self._own is not None and self._own[0] == os.getpid():
            self._own[1].close()
        self._own = None
        for file in self._files.values():
            file.close()
        self._files.clear()
