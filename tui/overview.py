"""The overview in words: titles and rows that the screen and ``--once`` share. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .state import Reach
from .words import Cell, bag_cell, clock_text, log_words, radius_words

if TYPE_CHECKING:
    from timeagent.interval import TimeInterval

    from .columns import Field
    from .state import ClusterState, LogView


def title_words(state: ClusterState, badge: str = "") -> str:
    """Return the first line: which cluster, live or not, what time."""
    cluster = f"cluster {state.cluster_id[:12]}" if state.cluster_id else "cluster ?"
    badge = badge or ("OFFLINE VIEW" if state.offline else "LIVE")
    return f"{cluster}  {state.path}  {badge}  {time_words(state)}"


def time_words(state: ClusterState) -> str:
    """Return the time for the title: the middle of the interval, and its radius."""
    return f"{clock_text(state.clock.now.midpoint)} UTC {radius_words(state.clock)}"


def leases_title(state: ClusterState, shown: int | None = None, words: str = "") -> str:
    """Say how many leases there are, and of which shards that is not known."""
    silent = [str(shard.shard) for shard in state.shards if shard.freshness.reach is not Reach.ANSWERS]
    total = len(state.leases)
    if not state.cluster_id:
        return "Leases ?"
    count = f"{shown} of {total}" if words and shown is not None else str(total)
    title = f"Leases {count}"
    if state.offline:
        title += " last known, from the ledgers"
    elif silent:
        title += f" known; no answer from shard{'s' if len(silent) > 1 else ''} {', '.join(silent)}"
    return title + (f"   filter: {words}" if words else "")


def nothing_words(state: ClusterState, words: str = "") -> str:
    """Say why there are no rows in the table of leases."""
    if not state.cluster_id:
        return "not known: the mount has not answered yet"
    if words and state.leases:
        return f"none of {len(state.leases)} leases matches the filter"
    if state.offline:
        return "the ledgers know of no lease that is still out"
    silent = [shard for shard in state.shards if shard.freshness.reach is not Reach.ANSWERS]
    if silent:
        others = "; the others have no leases out" if len(silent) < len(state.shards) else ""
        return f"not known: {len(silent)} of {len(state.shards)} shards have no answer{others}"
    return "no leases are out"


def log_row(log: LogView, now: TimeInterval) -> tuple[Field, ...]:
    """Return the fields of a log, in the order of LOG_COLUMNS."""
    return (Cell(log.name), tuple(bag_cell(bag) for bag in log.bags), log_words(log, now))
