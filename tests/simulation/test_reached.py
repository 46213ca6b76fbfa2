"""The fixed seeds of each scenario reach what it is for: a schedule in which nothing is promised breaks no promise."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.horizon import Horizon
from appliance.bag.packer import Packer, PackReport, PackState, Retention
from appliance.bag.writing import LogFileWriter, LookingWriter, Unknown
from appliance.daemon.failover import ShardFailover
from appliance.daemon.pace import Pace
from appliance.session.session import Session
from tests.simulation import scenarios, world
from tests.simulation.actors.registrar import Registrar
from tests.simulation.minima import MINIMA, counted, shortfalls
from tests.simulation.scheduler import Scheduler
from timeagent.errors import TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.timeout(300)
@pytest.mark.verify
@pytest.mark.parametrize("scenario", scenarios.WEIGHTS)
def test_fixed_seeds_of_a_scenario_reach_what_it_is_for(scenario: str) -> None:
    assert shortfalls(scenario, counted(scenario)) == {}


def test_every_scenario_has_minima() -> None:
    assert set(MINIMA) == set(scenarios.WEIGHTS)
    assert all("committed" in minima and all(minima.values()) for minima in MINIMA.values())


SETTLED_LEAST = 500
"""How many settled readings have to show a message, in all scenarios together: so often is *agreement* asked."""


def test_settled_readings_show_messages() -> None:
    assert sum(minima["settled readings"] for minima in MINIMA.values()) >= SETTLED_LEAST


def _in_doubt(*_: object) -> Unknown:
    return Unknown("planted")


def _nothing_sealed(*_: object, **__: object) -> PackReport:
    return PackReport(PackState.UNSEALED)


def _not_now(*_: object, **__: object) -> Any:  # noqa: ANN401 - never returns
    raise TryAgain("busy", "planted", hint="none")


def _skip(*_: object) -> None:
    """Do nothing."""


type Places = list[tuple[type | ModuleType, str, Callable[..., object]]]

_WRITES: Places = [
    (writer, verb, _in_doubt) for writer in (LookingWriter, LogFileWriter) for verb in ("write", "resolve")
]
FAULTS: dict[str, tuple[str, str, Places]] = {
    "every write is in doubt": ("bags", "committed", _WRITES),
    "every write under leases is in doubt": ("stalls", "committed", _WRITES),
    "the packer never packs": ("packs", "packed racks", [(Packer, "pack", _nothing_sealed)]),
    "retention gives nothing up": ("packs", "given-up packs", [(Retention, "turn", lambda *_: [])]),
    "no lease is granted": ("leases", "grants", [(Session, "acquire", _not_now)]),
    "no horizon moves": ("eclipse", "settled readings", [(Horizon, "refresh", lambda horizon: horizon.reached)]),
    "nobody reads afterwards what applications wrote": (
        "shares",
        "settled readings",
        [(world, "read_afterwards", _skip)],
    ),
    "no key changes": ("rotations", "trust records", [(Registrar, "_rotation", lambda *_: _skip)]),
    "nobody inherits a shard": ("heirs", "taken over", [(ShardFailover, "_inherits", lambda *_: False)]),
    "no log is ever due again": ("bags", "advances at the pace", [(Pace, "_set_due", _skip)]),
    "nobody crashes": ("batching", "crashes", [(Scheduler, "crash", lambda *_: None)]),
}
"""What is wrong, in which scenario that shows, by which word; and what is put in the place of what."""


@pytest.mark.timeout(300)
@pytest.mark.verify
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_by_which_nothing_happens_falls_below_a_minimum(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, word, places = FAULTS[fault]
    for owner, name, instead in places:
        monkeypatch.setattr(owner, name, instead)
    assert word in shortfalls(scenario, counted(scenario))


def test_shortfall_says_how_much_there_is() -> None:
    counts = {**MINIMA["takers"], "committed": 3}
    assert shortfalls("takers", counts) == {"committed": f"3, at least {MINIMA['takers']['committed']} wanted"}
