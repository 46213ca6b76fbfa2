"""One candidate leads in an epoch, and epochs only grow in true time: nobody surely leads once a later one did."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History, Led


def check(history: History, _: Record) -> Iterator[str]:
    leaders: dict[tuple[str, int], str] = {}
    last: dict[str, Led] = {}
    for led in sorted(history.led, key=lambda each: each.true_ns):
        leader = leaders.setdefault((led.election, led.epoch), led.who)
        if leader != led.who:
            yield f"{leader} and {led.who} both led {led.election} in epoch {led.epoch}"
        before = last.get(led.election, led)
        if led.epoch < before.epoch:
            yield (
                f"{led.who} surely led {led.election} at {led.true_ns}, in epoch {led.epoch}; {before.who} had in "
                f"epoch {before.epoch}, at {before.true_ns}"
            )
            return
        last[led.election] = led
