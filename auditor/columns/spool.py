"""Where columns wait between the reading of the parts and the judging of the buckets: files that every process sees.

Each process that reads appends to a file of its own, and tells the others where its rows stand; whoever judges maps the
files. Rows go through no pipe and no database, and are in nobody's memory twice.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

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
        self._maps: dict[int, memoryview] = {}

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

    def read(self, place: Place) -> tuple[memoryview, memoryview]:
        """Return rows and raw bytes. Raises OSError."""
        known = self._maps.get(place.process)
        end = place.at + place.rows + place.raw
        if known is None or len(known) < end:
            with (self._directory / str(place.process)).open("rb") as file:
                known = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._maps[place.process] = known
        middle = place.at + place.rows
        return known[place.at : middle], known[middle:end]

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
        self._maps.clear()
