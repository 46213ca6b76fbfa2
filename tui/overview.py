"""The overview in words: titles and rows that the screen and ``--once`` share. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .state import Reach, View
from .subjects import Cell
from .words import bag_cell, clock_text, clock_words, is_idle, log_words, radius_words, short_span

if TYPE_CHECKING:
    from timeagent.interval import TimeInterval

    from .columns import Field
    from .state import ClusterState, LogView


def title_words(state: ClusterState) -> str:
    """Return the first line: which cluster, live or not, what time."""
    cluster = f"cluster {state.cluster_id[:12]}" if state.cluster_id else "cluster ?"
    return f"{cluster}  {state.path}  {badge_words(state)}  {time_words(state)}"


def badge_words(state: ClusterState) -> str:
    """Say in a word what kind of view this is."""
    if state.view is View.RECORD:
        if state.mount.reach is not Reach.ANSWERS:
            return "READING" if state.mount.reach is Reach.WAITING else "NO COPY"
        return "COPY" if state.last_ns is None or state.clock.now.midpoint >= state.last_ns else "REPLAY"
    if state.mount.reach is Reach.SILENT:
        return "NO ANSWER"
    return "OFFLINE" if state.offline else "LIVE"


def time_words(state: ClusterState) -> str:
    """Return the time for the title: the middle of the interval, and its radius."""
    if state.view is View.RECORD:
        return f"{clock_text(state.clock.now.midpoint, 3)} UTC" if state.cluster_id else ""
    return f"{clock_text(state.clock.now.midpoint)} UTC {radius_words(state.clock)}"


def time_line(state: ClusterState) -> tuple[Cell, ...]:
    """Return what is known of the time; of a record, which instant is seen, and of which it tells."""
    if state.view is View.RECORD and state.first_ns is not None and state.last_ns is not None:
        first, last = clock_text(state.first_ns, 3), clock_text(state.last_ns, 3)
        return (Cell(f"as of {clock_text(state.clock.now.midpoint, 3)} UTC; the copy tells of {first} to {last}"),)
    return clock_words(state.clock)


def numbers_words(state: ClusterState) -> str:
    """Return the numbers that belong on the health line."""
    shards = state.shards
    parts = []
    if shards and not state.offline:
        answering = sum(shard.freshness.reach is Reach.ANSWERS for shard in shards)
        parts.append(f"{answering} of {len(shards)} shards answer")
    if shards:
        parts.append(f"leases {leases_count(state)}")
    waiting = [log for log in state.logs if log.horizon_ns is not None and not is_idle(log)]
    if waiting:
        lag = max(state.clock.now.midpoint - (log.horizon_ns or 0) for log in waiting)
        parts.append(f"horizon {short_span(max(0, lag))} ago")
    elif any(is_idle(log) for log in state.logs):
        parts.append("no message waits")
    return " · ".join(parts)


def leases_count(state: ClusterState) -> str:
    """Return how many leases there are; of shards without an answer that is not known, and it says so."""
    known = len(state.leases)
    if state.view is View.RECORD and state.cluster_id:
        return str(known)
    if state.offline:
        return f"{known} last known"
    silent = _silent(state)
    if not state.cluster_id or (not known and len(silent) == len(state.shards)):
        return "?"
    return f"at least {known}" if silent else str(known)


def leases_title(state: ClusterState, shown: int | None = None, words: str = "") -> str:
    """Return the title of the table of leases: how many, and of which shards that is not known."""
    title = f"Leases   {leases_count(state)}"
    silent = _silent(state)
    if state.view is View.RECORD:
        return _narrowed(title, shown, words)
    if state.offline:
        title += ", from the ledgers"
    elif silent and state.cluster_id:
        title += f"; shard{'s' if len(silent) > 1 else ''} {', '.join(silent)} silent"
    return _narrowed(title, shown, words)


def _narrowed(title: str, shown: int | None, words: str) -> str:
    return f"{title}   {shown} shown, filter: {words}" if words and shown is not None else title


def _silent(state: ClusterState) -> list[str]:
    return [str(shard.shard) for shard in state.shards if shard.freshness.reach is not Reach.ANSWERS]


def nothing_words(state: ClusterState, words: str = "") -> str:
    """Say why there are no rows in the table of leases."""
    if not state.cluster_id:
        return not_known(state)
    if words and state.leases:
        return f"none of {len(state.leases)} leases matches the filter"
    if state.view is View.RECORD:
        return "no leases were out"
    if state.offline:
        return "the ledgers know of no lease that is still out"
    silent = _silent(state)
    if silent:
        others = "; the others have no leases out" if len(silent) < len(state.shards) else ""
        return f"not known: {len(silent)} of {len(state.shards)} shards have no answer{others}"
    return "no leases are out"


def not_known(state: ClusterState) -> str:
    """Say why there is nothing to be seen at all."""
    if state.view is View.RECORD:
        return state.mount.problem or "not known: the copy is still being read"
    return "not known: the mount has not answered yet"


def log_row(log: LogView, now: TimeInterval) -> tuple[Field, ...]:
    """Return the fields of a log, in the order of LOG_COLUMNS."""
    return (Cell(log.name), tuple(bag_cell(bag) for bag in log.bags), log_words(log, now))
