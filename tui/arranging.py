"""Leases in an order, narrowed and in groups: which row stands where. Pure, and over columns where there are many.

A hundred thousand rows are arranged in a part of a second; so a screen lets a thread do it where there are many, and
keeps what it has until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from .words import condition, matching

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeagent.interval import TimeInterval

    from .state import LeaseRow, Leases


class Order(StrEnum):
    """By what rows are sorted."""

    DOMAIN = "domain"
    EXPIRY = "expiry"
    HOLDER = "holder"
    WAITING = "waiting"
    MESSAGES = "messages"
    FENCE = "fence"


class Group(StrEnum):
    """By what rows stand together."""

    NONE = "none"
    NODE = "node"
    HOLDER = "holder"
    SHARD = "shard"
    STATE = "state"
    PURPOSE = "purpose"


@dataclass(frozen=True, slots=True)
class Wanted:
    """How rows should be arranged."""

    words: str = ""
    order: Order = Order.DOMAIN
    backwards: bool = False
    group: Group = Group.NONE


@dataclass(frozen=True, slots=True)
class Heading:
    """The line above a group."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Rows by their numbers in a book, with headings between them."""

    wanted: Wanted
    leases: Leases
    places: Sequence[int]
    """Numbers of rows; -1 - h: heading h."""
    headings: tuple[Heading, ...]
    shown: int
    """How many rows match."""

    def at(self, index: int) -> LeaseRow | Heading:
        """Return what stands at a place."""
        place = int(self.places[index])
        return self.leases[place] if place >= 0 else self.headings[-1 - place]

    def place_of(self, number: int) -> int | None:
        """Return where a row of the book stands; None: it is not shown. At most a pass over all places."""
        if isinstance(self.places, np.ndarray):
            where = np.flatnonzero(self.places == number)
            return int(where[0]) if len(where) else None
        try:
            return self.places.index(number)
        except ValueError:
            return None


_KEYS: Final[dict[Order, Callable[[LeaseRow], tuple[object, ...]]]] = {
    Order.HOLDER: lambda row: (row.node, row.process),
    Order.WAITING: lambda row: (-1 if row.waiting is None else row.waiting,),
    Order.MESSAGES: lambda row: (-1 if row.messages is None else row.messages,),
    Order.FENCE: lambda row: (row.fence,),
}


def arrange(leases: Leases, wanted: Wanted, now: TimeInterval) -> Arrangement:
    """Arrange leases. What cannot be told (None) sorts as the least. Costs a pass or a sort over all rows."""
    found = matching(leases.texts, wanted.words) if wanted.words.split() else range(len(leases))
    places = _sorted(leases, found, wanted)
    if wanted.group is Group.NONE:
        return Arrangement(wanted, leases, places, (), len(places))
    groups: dict[str, list[int]] = {}
    for place in places:
        groups.setdefault(_group(leases[int(place)], wanted.group, now), []).append(int(place))
    headings: list[Heading] = []
    rows: list[int] = []
    for name in sorted(groups):
        rows.append(-1 - len(headings))
        headings.append(Heading(name, len(groups[name])))
        rows += groups[name]
    return Arrangement(wanted, leases, rows, tuple(headings), len(places))


def _sorted(leases: Leases, found: Sequence[int], wanted: Wanted) -> Sequence[int]:
    if wanted.order is Order.DOMAIN:  # as they are
        return found[::-1] if wanted.backwards else found
    if wanted.order is Order.EXPIRY:
        chosen = np.asarray(found, np.int64)
        order = np.argsort(leases.expiries[chosen], kind="stable")
        return chosen[order[::-1] if wanted.backwards else order]  # type: ignore[return-value]
    key = _KEYS[wanted.order]
    return sorted(found, key=lambda place: key(leases[place]), reverse=wanted.backwards)


def _group(row: LeaseRow, group: Group, now: TimeInterval) -> str:
    match group:
        case Group.NODE:
            return row.node
        case Group.HOLDER:
            return f"{row.node}/{row.process}"
        case Group.SHARD:
            return f"shard {row.shard}"
        case Group.STATE:
            return condition(row, now)
        case Group.PURPOSE:
            return row.purpose or "-"
        case Group.NONE:
            return ""
