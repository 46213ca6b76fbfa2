"""The links of a chain of evidence, as values, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from timeagent.console import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from timeagent.units import Instant

    from .checks import Check
    from .finding import Evidence

WORDS: Final = {True: "ok", False: "NO", None: "?"}
"""Whether a check holds, in a word."""


class LinkKind(StrEnum):
    """What a link is."""

    FINDING = "finding"
    FRAME = "frame"
    FILE = "file"
    LOCK = "lock file"
    WITNESS = "witness"
    LEASE = "lease"
    LEDGER = "ledger"
    CEILING = "ceiling"
    KEY = "key"
    RECORD = "record"
    MISSING = "not there"


@dataclass(frozen=True, slots=True)
class Link:
    """One piece of evidence and what it rests on in turn."""

    kind: LinkKind
    title: str
    checks: tuple[Check, ...] = ()
    under: tuple[Link, ...] = ()
    where: Evidence | None = None
    instant_ns: Instant | None = None
    """When it was signed, for going there in a replay."""
    domain: str | None = None
    node: str | None = None
    log: str | None = None

    @property
    def fails(self) -> bool:
        """Whether one of its own checks fails."""
        return any(check.holds is False for check in self.checks)

    def walk(self) -> Iterator[Link]:
        """Yield this link and all beneath it, from the top down."""
        yield self
        for each in self.under:
            yield from each.walk()

    def chain(self) -> Iterator[Check]:
        """Yield the checks of this link and of all beneath it."""
        for link in self.walk():
            yield from link.checks

    def fields(self) -> dict[str, Any]:
        """Return what JSON shows."""
        return {
            "kind": self.kind.value,
            "title": self.title,
            "path": printable(self.where.path) if self.where else None,
            "offset": self.where.offset if self.where else None,
            "length": self.where.length if self.where else None,
            "checks": [check.fields() for check in self.checks],
            "under": [link.fields() for link in self.under],
        }


def lineage_lines(link: Link, depth: int = 0) -> Iterator[str]:
    """Yield the chain as text: a line a link, and beneath it its checks with value and limit."""
    indent = "  " * depth
    yield f"{indent}{link.kind}: {link.title}"
    for check in link.checks:
        limit = f"  ({check.limit})" if check.limit else ""
        yield f"{indent}    {WORDS[check.holds]:<3} {check.what}: {check.value}{limit}"
    for each in link.under:
        yield from lineage_lines(each, depth + 1)
