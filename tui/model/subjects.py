"""What a screen can be opened about: every identifier that is shown leads to what it names. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

import msgspec

from timeagent.console import printable
from timeagent.units import Instant, rfc3339


class Tone(StrEnum):
    """How much something asks to be looked at. What is shown in a tone also says so in words."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    DIM = "dim"
    STRONG = "strong"
    """A heading."""


class Cell(msgspec.Struct, frozen=True, gc=False):
    """A piece of text in a tone. A struct: a page has hundreds, and each is made anew when it is drawn."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class NamedSubject:
    """What a name is enough for."""

    name: str
    WHAT: ClassVar[str] = ""

    @property
    def title(self) -> str:
        return f"{self.WHAT} {self.name}"

    @property
    def identifier(self) -> str:
        return self.name


class DomainSubject(NamedSubject):
    """A domain: who has it, what the next holder must respect, who had it before."""

    WHAT = "domain"


class NodeSubject(NamedSubject):
    """A node: its shards, its clock, what it holds."""

    WHAT = "node"


class ClockSubject(NamedSubject):
    """A node's clock: what it says of itself, and what it said before."""

    WHAT = "clock of"


class FindingSubject(NamedSubject):
    """One finding of the audit, by its id."""

    WHAT = "finding"


@dataclass(frozen=True, slots=True)
class HolderSubject:
    """A holder: one process on one node, and all that it has."""

    node: str
    process: int

    @property
    def title(self) -> str:
        return f"holder {self.identifier}"

    @property
    def identifier(self) -> str:
        return f"{self.node}/{self.process}"


@dataclass(frozen=True, slots=True)
class LeaseSubject:
    """One lease: the chain of its witnesses, and what was written under it."""

    domain: str
    identifier: str
    """Its correlation id."""

    @property
    def title(self) -> str:
        return f"lease {self.identifier[-8:]} on {self.domain}"


@dataclass(frozen=True, slots=True)
class BagSubject:
    """One bag: its files against the list, and who did what to close it."""

    log: str
    start_ns: Instant

    @property
    def title(self) -> str:
        return f"bag {rfc3339(self.start_ns)} of {self.log}"

    @property
    def identifier(self) -> str:
        return f"{self.log} {self.start_ns}"


@dataclass(frozen=True, slots=True)
class PlaceSubject:
    """Bytes in the tree: a witness, a frame and its messages, a lock file. A length of 0 is the whole file."""

    path: str
    offset: int = 0
    length: int = 0

    @property
    def title(self) -> str:
        path = printable(self.path)
        return f"{path} at {self.offset}" if self.offset or self.length else path

    @property
    def identifier(self) -> str:
        return f"{printable(self.path)}:{self.offset}+{self.length}"


type Subject = NamedSubject | HolderSubject | LeaseSubject | BagSubject | PlaceSubject
SUBJECTS: Final = (NamedSubject, HolderSubject, LeaseSubject, BagSubject, PlaceSubject)


@dataclass(frozen=True, slots=True)
class DetailLine:
    """One line about a subject; ``subject``: what it leads to."""

    cells: tuple[Cell, ...]
    subject: Subject | None = None
