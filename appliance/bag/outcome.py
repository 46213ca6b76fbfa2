"""The outcome of a write: three values, and none of them is an exception."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Committed:
    """The file is in the record, for ever."""

    file_name: str | None = field(default=None, compare=False, repr=False)
    """The file of the bag that holds it, where that is known: for who wants to find it again soon."""


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The file is not in the record and never will be: the messages may be written again, elsewhere."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Cannot be told now. Repeat the same attempt, or close its bag: that decides it."""

    reason: str


type Outcome = Committed | NotCommitted | Unknown
