"""Leases in an order, narrowed and in groups: which row stands where. Pure, and over columns where there are many.

A hundred thousand rows are arranged in a part of a second; so a screen lets a thread do it where there are many, and
keeps what it has until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

import numpy as np

from appliance.formats.shardmap import shard_text
from timeagent.interval import TimeInterval

from .state import LeaseRow, LeaseRows
from .words import condition, matching


class LeaseOrder(StrEnum):
    """By what rows are sorted."""

    DOMAIN = "domain"
    EXPIRY = "expiry"
    HOLDER = "holder"
    WAITING = "waiting"
    MESSAGES = "messages"
    FENCE = "fence"


class LeaseGroup(StrEnum):
    """By what rows stand together."""

    NONE = "none"
    NODE = "node"
    HOLDER = "holder"
    SHARD = "shard"
    STATE = "state"
    PURPOSE = "purpose"


@dataclass(frozen=True, slots=True)
class ListOptions[O: StrEnum, G: StrEnum]:
    """How the rows of a list should be arranged: in which order and groups, narrowed by which words."""

    order: O
    group: G
    words: str = ""
    backwards: bool = False

    def next_order(self) -> Self:
        return replace(self, order=_after(self.order), backwards=False)

    def next_group(self) -> Self:
        return replace(self, group=_after(self.group))

    def turned(self) -> Self:
        return replace(self, backwards=not self.backwards)

    def narrowed(self, words: str) -> Self:
        return replace(self, words=words.strip())


def _after[E: StrEnum](value: E) -> E:
    every = list(type(value))
    return every[(every.index(value) + 1) % len(every)]


@dataclass(frozen=True, slots=True)
class LeaseOptions(ListOptions[LeaseOrder, LeaseGroup]):
    """How leases should be arranged."""

    order: LeaseOrder = LeaseOrder.DOMAIN
    group: LeaseGroup = LeaseGroup.NONE


@dataclass(frozen=True, slots=True)
class GroupHeading:
    """The line above a group."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class LeaseArrangement:
    """Rows by their numbers in a book, with headings between them."""

    wanted: LeaseOptions
    leases: LeaseRows
    places: Sequence[int]
    """Numbers of rows; -1 - h: heading h."""
    headings: tuple[GroupHeading, ...]
    shown: int
    """How many rows match."""

    def at(self, index: int) -> LeaseRow | GroupHeading:
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


_KEYS: Final[dict[LeaseOrder, Callable[[LeaseRow], tuple[object, ...]]]] = {
    LeaseOrder.HOLDER: lambda row: (row.node, row.process),
    LeaseOrder.WAITING: lambda row: (-1 if row.waiting is None else row.waiting,),
    LeaseOrder.MESSAGES: lambda row: (-1 if row.messages is None else row.messages,),
    LeaseOrder.FENCE: lambda row: (row.fence,),
}


def arrange(leases: LeaseRows, wanted: LeaseOptions, now: TimeInterval) -> LeaseArrangement:
    """Arrange leases. What cannot be told (None) sorts as the least. Costs a pass or a sort over all rows."""
    found = matching(leases.texts, wanted.words) if wanted.words.split() else range(len(leases))
    places = _sorted(leases, found, wanted)
    if wanted.group is LeaseGroup.NONE:
        return LeaseArrangement(wanted, leases, places, (), len(places))
    groups: dict[str, list[int]] = {}
    for place in places:
        groups.setdefault(_group(leases[int(place)], wanted.group, now), []).append(int(place))
    headings: list[GroupHeading] = []
    rows: list[int] = []
    for name in sorted(groups):
        rows.append(-1 - len(headings))
        headings.append(GroupHeading(name, len(groups[name])))
        rows += groups[name]
    return LeaseArrangement(wanted, leases, rows, tuple(headings), len(places))


def _sorted(leases: LeaseRows, found: Sequence[int], wanted: LeaseOptions) -> Sequence[int]:
    if wanted.order is LeaseOrder.DOMAIN:  # as they are
        return found[::-1] if wanted.backwards else found
    if wanted.order is LeaseOrder.EXPIRY:
        chosen = np.asarray(found, np.int64)
        order = np.argsort(leases.expiries[chosen], kind="stable")
        return chosen[order[::-1] if wanted.backwards else order]  # type: ignore[return-value]
    key = _KEYS[wanted.order]
    return sorted(found, key=lambda place: key(leases[place]), reverse=wanted.backwards)


def _group(row: LeaseRow, group: LeaseGroup, now: TimeInterval) -> str:
    match group:
        case LeaseGroup.NODE:
            return row.node
        case LeaseGroup.HOLDER:
            return f"{row.node}/{row.process}"
        case LeaseGroup.SHARD:
            return f"shard {shard_text(row.shard)}"
        case LeaseGroup.STATE:
            return condition(row, now)
        case LeaseGroup.PURPOSE:
            return row.purpose or "-"
        case LeaseGroup.NONE:
            return ""
