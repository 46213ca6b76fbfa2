"""What must hold of leases in every state, without a line of what is judged.

What somebody wrote counts unless the session witness that it carries names the lease as ended. Who comes later, by the
fence, and excludes the writer, writes above that, and has settled up to it unless the writer gave its word first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from appliance.formats.lease import LeaseOutcome, Phase
from appliance.formats.witness import Ended, SessionWitness, Witness
from tests.simulation.checkers.modes import excludes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from appliance.formats.witness import Entry
    from tests.simulation.exhaustive.lease_room import LeaseWorld, Room
    from tests.support.explorer import Notes

EXCLUSION = "an earlier holder's messages are older than those of a later one that it excludes"
SETTLED = "a later holder settles up to what an earlier one wrote without a word"
NEVER_FALLS = "no expiry of a session lease, and no floor, ever falls"
NAMED = "a session's witness names what was ended alone before"
NO_BUG = "nothing breaks"

_WITH_A_WORD = (LeaseOutcome.RELINQUISHED, LeaseOutcome.DROPPED)


class LeasePromises:
    """The promises of docs/protocol/lease.md about floors, expiries and session leases."""

    def __init__(self, world: LeaseWorld) -> None:
        self._entries = world.entries

    def in_step(self, before: Room, after: Room) -> list[str]:
        return [] if before.served == after.served else list(dict.fromkeys(_signed_wrongly(self._entries(after))))

    def in_state(self, room: Room, notes: list[Notes]) -> list[str]:
        broken = [f"{NO_BUG}: {note[1]}" for each in notes for note in each if note[0] == "broke"]
        grants, given = _grants(self._entries(room))
        for each in notes:
            for note in each:
                if note[0] == "wrote" and note[4] not in note[5]:
                    broken += _overtaken(note, grants, given)
        return list(dict.fromkeys(broken))

    def at_end(self, _room: Room, _notes: list[Notes]) -> list[str]:
        return []


def _grants(entries: Iterable[Entry]) -> tuple[list[tuple[int, Witness]], dict[bytes, int]]:
    """Return what was granted, with its place among all that was signed; and where who gave its word ended."""
    grants: list[tuple[int, Witness]] = []
    given: dict[bytes, int] = {}
    for place, entry in enumerate(entries):
        if isinstance(entry, Witness) and entry.phase is Phase.HELD:
            grants.append((place, entry))
        elif isinstance(entry, Ended) and entry.ending.outcome in _WITH_A_WORD:
            given[entry.ending.correlation_id] = place
    return grants, given


def _overtaken(note: Any, grants: list[tuple[int, Witness]], given: dict[bytes, int]) -> Iterator[str]:  # noqa: ANN401
    _, domain, mode, fence, correlation_id, _, stamp = note
    for place, grant in grants:
        later = grant.domain == domain and grant.fence > fence and grant.correlation_id != correlation_id
        if later and excludes(mode, grant.mode):
            if stamp > grant.floor_ns:
                yield EXCLUSION
            if given.get(correlation_id, place) >= place and stamp > grant.settle_to_ns:
                yield SETTLED


def _signed_wrongly(entries: Iterable[Entry]) -> Iterator[str]:
    expiries: dict[bytes, int] = {}
    floors: dict[str, int] = {}
    alone: dict[bytes, set[bytes]] = {}
    over: set[bytes] = set()
    of: dict[bytes, bytes] = {}
    for entry in entries:
        if isinstance(entry, SessionWitness):
            if entry.expiry_ns < expiries.get(entry.session_id, 0):
                yield NEVER_FALLS
            if not alone.get(entry.session_id, set()) <= set(entry.ended):
                yield NAMED
            expiries[entry.session_id] = entry.expiry_ns
        elif isinstance(entry, Witness):
            if entry.session_id is not None and entry.phase is Phase.HELD:
                of[entry.correlation_id] = entry.session_id
        elif isinstance(entry, Ended):
            if entry.floor_ns < floors.get(entry.domain, 0):
                yield NEVER_FALLS
            floors[entry.domain] = entry.floor_ns
            lease = entry.ending.correlation_id
            if entry.ending.outcome is LeaseOutcome.REVOKED and lease in of and of[lease] not in over:
                alone.setdefault(of[lease], set()).add(lease)
