"""However late a request arrives, and however often: no expiry is later than its holder ever asked for.

So a domain is free again at a time that its dead holder knew (P5), and a lease whose holder heard nothing is not kept
alive by what is still on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.forms import SessionWitness, Witness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    asked = history.asked
    for turn in record.turns:
        for entry in turn.entries:
            if type(entry) is SessionWitness:
                until = max(asked.get(entry.session_id, 0), asked.get(entry.holder.incarnation, 0))
                what = f"session {entry.session_id.hex()}"
            elif type(entry) is Witness and entry.session_id is None:
                first = asked.get((entry.holder.incarnation, entry.domain), 0)
                until = max(asked.get(entry.correlation_id, 0), first)
                what = f"{entry.domain}, fence {entry.fence},"
            else:
                continue
            if entry.expiry_ns > until:
                yield f"a {entry.kind} of {what} lasts until {entry.expiry_ns}, and was asked for until {until}"
