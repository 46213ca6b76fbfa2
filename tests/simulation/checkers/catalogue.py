"""Every checker by name: the one list that runs, tests and documents use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.checkers import (
    agreement,
    alone,
    asked,
    blocked,
    bounded,
    committed,
    complete,
    due,
    empty,
    endings,
    exclusion,
    finality,
    fresh,
    halves,
    handed,
    handover,
    heirs,
    homes,
    kept,
    leaders,
    lent,
    money,
    narrow,
    outlives,
    overlap,
    past,
    paths,
    patient,
    published,
    resumed,
    revoked,
    served,
    sessions,
    slots,
    truthful,
    unmoved,
    waits,
    witnesses,
)
from tests.simulation.checkers.forms import Broken
from tests.simulation.checkers.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.history import History
    from tests.simulation.world import World

CHECKERS: dict[str, Callable[[History, Record], Iterator[str]]] = {
    "committed": committed.check,
    "agreement": agreement.check,
    "finality": finality.check,
    "past": past.check,
    "published": published.check,
    "exclusion": exclusion.check,
    "complete": complete.check,
    "narrow": narrow.check,
    "fresh": fresh.check,
    "money": money.check,
    "witnesses": witnesses.check,
    "empty": empty.check,
    "resumed": resumed.check,
    "unmoved": unmoved.check,
    "halves": halves.check,
    "waits": waits.check,
    "served": served.check,
    "bounded": bounded.check,
    "alone": alone.check,
    "endings": endings.check,
    "overlap": overlap.check,
    "revoked": revoked.check,
    "truthful": truthful.check,
    "kept": kept.check,
    "paths": paths.check,
    "handed": handed.check,
    "sessions": sessions.check,
    "asked": asked.check,
    "due": due.check,
    "blocked": blocked.check,
    "heirs": heirs.check,
    "patient": patient.check,
    "handover": handover.check,
    "homes": homes.check,
    "slots": slots.check,
    "leaders": leaders.check,
    "lent": lent.check,
    "outlives": outlives.check,
}

TRUE_TIME = (
    overlap.check, revoked.check, handed.check, due.check, patient.check, homes.check, blocked.check, bounded.check,
)  # fmt: skip
"""Those who rely on clocks that keep their bounds."""


def violations(world: World) -> list[tuple[str, str]]:
    """Judge a finished run: which checker objects, and to what.

    ``bug``: code under test raised what it must not, or logged it and went on; ``damage``: it called something damaged,
    and nothing was. ``formats``: it wrote what docs/protocol/formats.md does not say.
    """
    found = [("bug", text) for text in world.scheduler.bugs]
    if not world.rotting:
        found += [("damage", text) for text in world.scheduler.damage]
    try:
        record = Record(world)
        for name, check in CHECKERS.items():
            if world.lying and check in TRUE_TIME:
                continue  # true time is promised nothing then, only the record
            found += [(name, text) for text in check(world.history, record)]
    except Broken as problem:
        found.append(("formats", str(problem)))
    return found
