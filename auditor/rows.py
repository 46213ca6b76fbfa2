"""The rows of evidence that walks over a tree tell an index, or gather for it in another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from timeagent.console import printable

from .rules.finding import Evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

type Value = str | bytes | int | None

RANKED: Final = {"head": "(incarnation, sequence, digest)", "entry": "(domain, incarnation, sequence, position, head)"}
"""Tables where one fact may be told at several places; of these the place with the lowest rank counts."""


@dataclass(frozen=True, slots=True)
class Use:
    """One frame written under one lease."""

    where: Evidence
    messages: int
    accepted: int
    """How many of them readers accept."""
    first_ns: int
    last_ns: int
    """The lowest and the highest timestamp that is accepted; of all of them where none is."""
    proven: bool
    """Whether its signatures hold, and its bag's list counts. Else it is nothing but a reason to doubt a count."""
    settle_to_ns: int
    """What the witness that the frame carries asks its holder to settle a log to."""
    signed_ns: int
    """The latest instant at which the frame can have been stamped, by its signed time."""
    sequence: int = 0
    """The frame's, in its writer's run."""
    digest: bytes | None = None
    """The frame's; None where it is not known."""

    @property
    def log(self) -> str:
        """The log that it was written to."""
        return self.where.path.split("/")[1]


def encode_rows(rows: Sequence[tuple[Value, ...]]) -> bytes:
    """Return a chunk of rows as bytes, as ``Index.take`` reads them."""
    return msgspec.msgpack.encode(rows)


class Rows:
    """The writing half of an index: what the walks tell."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._closed_to: dict[str, int] = {}
        self._last = ("", "")

    def _insert(self, table: str, row: tuple[Value, ...]) -> None:
        raise NotImplementedError

    def shown(self, path: str) -> str:
        """Return a path as it is shown; most rows in a row are of one file."""
        if path != self._last[0]:
            self._last = path, printable(path)
        return self._last[1]

    def add(self, table: str, *values: Value, where: Evidence, rest: tuple[Value, ...] = (), rank: int = 0) -> None:
        """Insert a row: its values, its place, and what follows.

        ``rank``: which place counts where the same is told at several, the lowest. Frames come in the order in which
        they are read, from 0 up; ledgers below 0, and those read last below all.
        """
        row = (*values, self.shown(where.path), where.offset, where.length, *rest)
        self._insert(table, (*row, rank) if table in RANKED else row)

    def add_bag(
        self, path: str, log: str, start_ns: int, end_ns: int, *, closed: bool, blind: bool, closed_ns: int = 0
    ) -> None:
        """Insert a bag. ``blind``: some of what it was closed with cannot be read. ``closed_ns``: surely not before."""
        row = (printable(path), printable(log), start_ns, end_ns, closed, blind, closed_ns)
        self._insert("bag", row)

    def add_whole(self, log: str, start_ns: int, end_ns: int) -> None:
        """Say that nothing comes any more into a span of a log, but into bags that are told of: its rack is sealed."""
        self._insert("whole", (printable(log), start_ns, end_ns))

    def closed_to(self, log: str, instant: int) -> None:
        """Say that a log is closed up to an instant, at least."""
        self._closed_to[log] = max(instant, self._closed_to.get(log, 0))
