"""P4: an interval holds true time at some instant of its making, whoever sets the clock: steps do not make it lie.

Said of the production EmbeddedTime, whose source is right and whose machine never stood still; nor was its clock set
more than once while the source was asked, which no reading before or after can show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


def check(history: History, record: Record) -> Iterator[str]:
    del record
    for said in history.said:
        if said.latest < said.began_ns or said.ended_ns < said.earliest:
            yield (
                f"{said.node} said {said.earliest} to {said.latest} between {said.began_ns} and {said.ended_ns}: "
                f"wrong by {max(said.began_ns - said.latest, said.earliest - said.ended_ns)} ns"
            )
