"""What a state means in words: conditions, and the rows of the tables. Pure; no colour, only tones.

Every condition has a symbol and words, so that nothing depends on colour. What is not known reads as "?" or
"no answer", never as a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

from appliance.bag.logs import ClosingState
from appliance.formats.chains import CeilingKind
from appliance.formats.lease import LeaseOutcome, Phase
from appliance.formats.shardmap import shard_text
from appliance.formats.witness import Half
from timeagent.units import DAY, HOUR, MINUTE, MS, SECOND, Instant, Span, TimeInterval, rfc3339, span_text

from .state import Cell, ClockView, LeaseOrigin, LeaseRow, LeaseRows, LogView, NodeView, Reach, ShardView, Tone

OVERDUE_NS: Final[Span] = 2 * SECOND
"""A bag in use that is not closed this long after it could be has nobody who closes it."""


# -- instants and spans ------------------------------------------------------------------------------------------------


def clock_text(instant: Instant, digits: int = 1) -> str:
    """Return the time of day in UTC, rounded down: ``12:00:06.4``."""
    seconds, rest = divmod(instant % DAY, SECOND)
    fraction = f".{rest:09d}"[: digits + 1] if digits else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}"


def short_span(span: Span) -> str:
    """Return a span in at most seven characters, for a column: ``0.4 s``, ``59.9 s``, ``12 min``, ``3.4 h``."""
    size = abs(span)
    sign = "-" if span < 0 else ""
    if size < MINUTE:
        return f"{sign}{size // (100 * MS) / 10:.1f} s"
    if size < HOUR:
        return f"{sign}{size // MINUTE} min"
    if size < DAY:
        return f"{sign}{size // (HOUR // 10) / 10:.1f} h"
    return f"{sign}{size // DAY} d"


def bytes_text(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:  # noqa: PLR2004 - decimal units
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"  # noqa: PLR2004
        amount /= 1000
    return f"{amount:.1f} TB"


# -- leases ------------------------------------------------------------------------------------------------------------


class Condition(StrEnum):
    """How a lease stands, as far as it can be told from here."""

    HELD = "held"
    TENTATIVE = "tentative"
    DYING = "will expire"
    """It still counts, but nobody will renew it: the holder's process is gone, or its shard has no answer."""
    RECOVERING = "expired, recovering"
    """It is over; who takes the domain next waits until what was written under it is final."""
    OVER = "expired"
    """It is over, and nobody has to wait for it any more."""
    LAST_KNOWN = "last known"
    """The ledger said so last; whether it was given back since is not known."""


CONDITION_CELLS: Final = {
    Condition.HELD: Cell("●"),
    Condition.TENTATIVE: Cell("◌", Tone.DIM),
    Condition.DYING: Cell("◐", Tone.WARN),
    Condition.RECOVERING: Cell("✗", Tone.BAD),
    Condition.OVER: Cell("○", Tone.DIM),
    Condition.LAST_KNOWN: Cell("◇", Tone.DIM),
}


def condition(lease: LeaseRow, now: TimeInterval) -> Condition:
    tentative = lease.phase is Phase.TENTATIVE
    if now.surely_past(lease.expiry_ns):
        return Condition.OVER if tentative or now.surely_past(lease.resumes_ns) else Condition.RECOVERING
    if lease.holder_present is False or lease.origin in (LeaseOrigin.LAST_ANSWER, LeaseOrigin.EARLIER_RUN):
        return Condition.DYING
    if lease.origin is LeaseOrigin.LEDGER:
        return Condition.LAST_KNOWN
    return Condition.TENTATIVE if tentative else Condition.HELD


def counted_ends(leases: LeaseRows, now: TimeInterval) -> tuple[int, int]:
    """Return how many leases are recovering, and how many will expire: by columns, and the few rows in doubt."""
    past = leases.expiries < now.earliest
    stands = [condition(leases[int(index)], now) for index in past.nonzero()[0]]
    dying = leases.fading[~past[leases.fading]]
    return stands.count(Condition.RECOVERING), len(dying)


def lease_words(lease: LeaseRow, now: TimeInterval) -> str:
    stands = condition(lease, now)
    left = short_span(max(0, lease.expiry_ns - now.midpoint))
    resumes = clock_text(lease.resumes_ns + SECOND, 0)  # rounded up
    match stands:
        case Condition.DYING:
            silent = "restarted" if lease.origin is LeaseOrigin.EARLIER_RUN else "silent"
            gone = lease.holder_present is False
            return f"will expire in {left}: {'process gone' if gone else f'shard {shard_text(lease.shard)} {silent}'}"
        case Condition.RECOVERING:
            return f"expired, recovering, resumes at {resumes}"
        case Condition.OVER:
            return f"expired {short_span(now.midpoint - lease.expiry_ns)} ago, free to take"
        case Condition.LAST_KNOWN:
            return f"last known, {short_span(max(0, now.midpoint - (lease.as_of_ns or 0)))} ago"
        case Condition.TENTATIVE:
            return "may not write yet"
        case Condition.HELD:
            mark = " !" if lease.previous in (LeaseOutcome.EXPIRED, LeaseOutcome.REVOKED) else ""
            return "" if lease.previous is None else f"after {lease.previous}{mark}"


def lease_row(lease: LeaseRow, now: TimeInterval) -> tuple[Cell, ...]:
    stands = condition(lease, now)
    tone, left = CONDITION_CELLS[stands].tone, lease.expiry_ns - now.midpoint
    over, soon = stands in (Condition.OVER, Condition.RECOVERING), left < SECOND
    plain = Tone.DIM if tone is Tone.DIM else Tone.PLAIN
    words = lease_words(lease, now)
    word_tone = Tone.WARN if words.endswith("!") else Tone.DIM if tone is Tone.PLAIN else tone
    left_text = "over" if over else short_span(max(0, left)) + ("!" if soon else " ")
    return (
        Cell(CONDITION_CELLS[stands].text, Tone.GOOD if stands is Condition.HELD else tone),
        Cell(lease.domain, plain),
        Cell(lease.mode, plain),
        Cell(lease.phase, plain),
        Cell(f"{lease.node}/{lease.process}", plain),
        Cell(lease.purpose or "-", Tone.DIM),
        Cell(left_text, Tone.WARN if soon and stands is Condition.HELD else tone),
        Cell(fence_text(lease.fence), Tone.DIM),
        Cell(words, word_tone),
    )


def many_lease_row(lease: LeaseRow, now: TimeInterval) -> tuple[Cell, ...]:
    *head, left, _, said = lease_row(lease, now)
    return (
        *head,
        Cell(clock_text(lease.expiry_ns), head[1].tone),
        left,
        Cell("-" if lease.watermark_ns is None else clock_text(lease.watermark_ns), Tone.DIM),
        _count(lease.messages, 6),
        _count(lease.waiting, 4),
        _count(lease.renewals, 5),
        said,
    )


def _count(value: int | None, width: int) -> Cell:
    """Return a number in a width, "?" where nobody says. Where it does not fit, its thousands: cut it were another."""
    if value is None:
        return Cell("?", Tone.DIM)
    texts = (f"{value // 1000**power}{unit}" for power, unit in enumerate(("", *"kMGTPE")))
    return Cell(next(text for text in texts if len(text) <= width), Tone.DIM if value == 0 else Tone.PLAIN)


def fence_text(fence: int) -> str:
    """Return a fence by the end of its seconds, and milliseconds: ``…404.003`` for 1795214404003000001."""
    seconds, rest = divmod(fence, SECOND)
    return f"…{seconds % 1000:03d}.{rest // MS:03d}"


def matching(texts: Sequence[str], words: str) -> list[int]:
    """Return which of some texts in small letters match a filter: every word occurs in it; ``!word`` must not."""
    found = list(range(len(texts)))
    for word in words.casefold().split():
        wanted = len(word) == 1 or not word.startswith("!")
        part = word if wanted else word[1:]
        found = [index for index in found if (part in texts[index]) is wanted]
    return found


# -- nodes and shards --------------------------------------------------------------------------------------------------


def shard_cells(shard: ShardView, now: TimeInterval) -> tuple[Cell, Cell]:
    """Say whether a shard answers, and where if not at the node that the map names; what follows for its domains."""
    waits = shard.waits(now)
    resumes = clock_text(shard.resumes_ns + SECOND, 0) if shard.resumes_ns is not None else "?"
    since = f" since {clock_text(shard.half_ns, 0)}" if shard.half_ns is not None else ""
    moving = Cell("" if shard.half is Half.WHOLE else f"{shard.half}{since}")
    match shard.freshness.reach:
        case Reach.ANSWERS if shard.runner not in (None, shard.node):
            then = f", resumes {resumes}" if waits else ""
            return Cell(f"◐ at {shard.runner}", Tone.WARN), Cell(f"{shard.node} does not run it{then}", Tone.WARN)
        case Reach.ANSWERS:
            said = Cell(f"restarted, resumes {resumes}", Tone.WARN) if waits else moving
            return Cell("● answers", Tone.GOOD), said
        case Reach.SILENT if shard.ceiling_kind is CeilingKind.ORDERLY:
            return Cell("○ stopped", Tone.WARN), Cell("stopped orderly", Tone.DIM)
        case Reach.SILENT:
            span = shard.freshness.silent_ns or 0
            said = Cell("resumes as soon as it runs", Tone.WARN)
            if shard.ceiling_kind is CeilingKind.TERMINAL:
                said = Cell("its map was replaced", Tone.DIM)
            elif waits:
                said = Cell(f"resumes {resumes} once back", Tone.BAD)
            return Cell("✗ no answer" + (f" {short_span(span)}" if span >= 100 * MS else ""), Tone.BAD), said
        case Reach.WAITING:
            return Cell("… asking", Tone.DIM), moving
        case Reach.NOT_ASKED:
            return Cell("◇ not asked", Tone.DIM), moving


def node_rows(node: NodeView, now: TimeInterval) -> list[tuple[Cell, ...]]:
    """Return a row for each shard of a node, in the order of NODE_COLUMNS; one row for a node without shards."""
    silent = node.answers is False
    name = Cell(node.name + (" *" if node.own else "") + (" ✗" if silent else ""), Tone.BAD if silent else Tone.PLAIN)
    if not node.shards:
        nothing = Cell("-", Tone.DIM)
        reached = Cell("✗ no answer", Tone.BAD) if silent else Cell("no shard", Tone.DIM)
        return [(name, nothing, reached, nothing, nothing, nothing, Cell("", Tone.DIM))]
    rows: list[tuple[Cell, ...]] = []
    for index, shard in enumerate(node.shards):
        reach, said = shard_cells(shard, now)
        ceiling = _known(shard.ceiling_ns, lambda end: f"+{short_span(end - now.midpoint)}")
        if shard.ceiling_ns is not None and now.surely_past(shard.ceiling_ns):
            ceiling = Cell("past", Tone.DIM)
        ledger = _known(shard.ledger_bytes, bytes_text)
        if shard.blocks_lost:
            ledger = Cell(f"{shard.blocks_lost} lost !", Tone.WARN)
        numbers = _known(shard.leases, str), ceiling, ledger
        rows.append((name if index == 0 else Cell(""), Cell(shard_text(shard.shard)), reach, *numbers, said))
    return rows


def _known(value: int | None, text: Callable[[int], str]) -> Cell:
    return Cell("?", Tone.WARN) if value is None else Cell(text(value))


# -- bags --------------------------------------------------------------------------------------------------------------

BAG_CELLS: Final = {
    None: Cell("·", Tone.DIM),
    ClosingState.SEALED: Cell("▣", Tone.DIM),
    ClosingState.CLOSED: Cell("■"),
    ClosingState.CLOSING: Cell("◧", Tone.WARN),
    ClosingState.OPEN: Cell("▯", Tone.GOOD),
}
"""By how much each wants to be looked at. None: nobody wrote."""
DAMAGED: Final = "✗"
BAG_LEGEND: Final = "▯ open  ◧ closing  ■ closed  ▣ sealed  · nobody wrote"
UNFINISHED: Final = (ClosingState.OPEN, ClosingState.CLOSING)


def is_idle(log: LogView) -> bool:
    """Return whether nothing that was written waits to be closed: then a horizon that stands still is not late.

    Not said of a log whose horizon lies before all bags that are seen here.
    """
    if log.horizon_ns is None or any(bag.state in UNFINISHED for bag in log.bags):
        return False
    return not log.bags or log.bags[0].start_ns <= log.horizon_ns


def overdue_bags(log: LogView, now: TimeInterval) -> int:
    """Return how many bags that somebody wrote to could long have been closed and are not."""
    return sum(bag.state in UNFINISHED and now.surely_past(bag.due_ns + OVERDUE_NS) for bag in log.bags)


def log_words(log: LogView, now: TimeInterval) -> Cell:
    if log.problem:
        return Cell(log.problem, Tone.BAD)
    if log.horizon_ns is None:
        return Cell("horizon ?", Tone.WARN)
    if is_idle(log):
        return Cell(f"horizon {clock_text(log.horizon_ns)}, nothing waits")
    overdue = overdue_bags(log, now)
    lag = short_span(max(0, now.midpoint - log.horizon_ns))
    words = f"horizon {clock_text(log.horizon_ns)}, {lag} ago"
    return Cell(words + (f"; {overdue} overdue !" if overdue else ""), Tone.WARN if overdue else Tone.PLAIN)


DAY_SHOWN_NS: Final = 18 * 3600 * SECOND
"""An instant that is further away than this from what is looked at is shown with its day."""


def moment(instant: Instant | None, near: Instant | None = None) -> str:
    """Return an instant to the millisecond, with its day where it is far from another.

    "not known" for None, "none" for 0: what was never set.
    """
    if instant is None:
        return "not known"
    if instant == 0:
        return "none"
    if near is not None and abs(instant - near) < DAY_SHOWN_NS:
        return clock_text(instant, 3)
    return f"{rfc3339(instant)[: len('2026-11-20T22:10:07.400')]}Z".replace("T", " ")


# -- time --------------------------------------------------------------------------------------------------------------


def clock_words(clock: ClockView) -> tuple[Cell, ...]:
    if not clock.bounded:
        return (Cell(f"no bound: {clock.problem}", Tone.BAD),)
    between = f"{clock_text(clock.now.earliest, 3)} .. {clock_text(clock.now.latest, 3)} UTC"
    words = Cell(f"{between}  ±{span_text(clock.now.radius)}  source {clock.source}, {clock.status}")
    return (words, Cell("  assumed: stated by the policy, not measured", Tone.WARN)) if clock.assumed else (words,)
