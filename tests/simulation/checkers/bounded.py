"""A lease that may be kept for so long in all, or while its holder gets on, is renewed no longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History

SLACK_NS = 100 * MS
"""What the steps take between the grant and the note of it, and clocks that are wrong within their bounds."""


def check(history: History, _: Record) -> Iterator[str]:
    for who, domain, expiry_ns, limit_ns in history.kept_until:
        if expiry_ns > limit_ns + SLACK_NS:
            yield f"{who} had {domain} renewed until {expiry_ns}; {limit_ns} was the latest that it may have it"
