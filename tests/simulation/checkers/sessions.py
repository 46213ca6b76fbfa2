"""Session leases: below their ceiling, every later witness names what was ended alone, and nothing comes after the end.

What a lease under one may be written under is its session's expiry, as told up to its end: so high is the floor of
whoever comes next, unless its holder gave its word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers.forms import Ended, SessionEnded, SessionWitness, Witness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History

_WITHOUT_A_WORD = ("revoked", "abandoned", "expired")


def check(history: History, record: Record) -> Iterator[str]:
    del history
    expiries: dict[bytes, int] = {}
    alone: dict[bytes, set[bytes]] = {}
    over: dict[bytes, SessionEnded] = {}
    of: dict[bytes, bytes] = {}
    held: set[bytes] = set()
    for turn in record.turns:
        for entry in turn.entries:
            if type(entry) is SessionWitness:
                name = entry.session_id
                wrong = {
                    f"its expiry fell from {expiries.get(name)}": entry.expiry_ns < expiries.get(name, 0),
                    f"it lies above the ceiling {turn.head.ceiling_ns}": entry.expiry_ns > turn.head.ceiling_ns,
                    "it does not name what was ended alone": not alone.get(name, set()) <= set(entry.ended),
                    "it is over": name in over,
                }
                about = f"a {entry.kind} of session {name.hex()} until {entry.expiry_ns}"
                yield from (f"{about}: {what}" for what, is_so in wrong.items() if is_so)
                expiries[name] = entry.expiry_ns
            elif type(entry) is SessionEnded:
                over[entry.session_id] = entry
                if entry.outcome == "expired" and entry.ended_ns <= entry.expiry_ns:
                    yield f"session {entry.session_id.hex()} was broken at {entry.ended_ns}, before its expiry"
            elif type(entry) is Witness and entry.session_id is not None:
                of[entry.correlation_id] = entry.session_id
                if entry.phase == "held":
                    held.add(entry.correlation_id)
                if entry.session_id in over:
                    yield f"a lease on {entry.domain} is told under session {entry.session_id.hex()}, which is over"
            elif type(entry) is Ended and (lease := entry.ending.correlation_id) in of and lease in held:
                session = of[lease]
                if entry.ending.outcome in _WITHOUT_A_WORD and entry.floor_ns < expiries[session]:
                    yield f"the floor of {entry.domain} is {entry.floor_ns}, below its session's {expiries[session]}"
                if entry.ending.outcome in _WITHOUT_A_WORD and session not in over:
                    alone.setdefault(session, set()).add(lease)
