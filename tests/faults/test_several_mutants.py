"""Where one is taken for all: the first of several, a verdict kept for another; planted, the test beside it must notice."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

from appliance import registers
from appliance.bag import acceptance, closer, reader
from appliance.lease import ceiling
from appliance.session import outliving, session, standings
from tests.faults import test_lease_ceiling as ceilings
from tests.simulation.planting import Planter
from tests.unit import test_bag_several as bags
from tests.unit import test_session_several as sessions
from timeagent.errors import LeaseholdError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

node, server = bags.node, bags.server
site, doubted = sessions.site, sessions.doubted
world = ceilings.world

type Fault = tuple[ModuleType, str, str, str, Callable[..., None], tuple[Any, ...]]

MUTANTS: dict[str, Fault] = {
    "watermark of the first message of a batch": (
        session,
        "Session._stamped",
        "made.last_ns",
        "made.first_ns",
        sessions.test_watermark_of_a_lease_is_the_last_message_of_its_batches,
        (),
    ),
    "session lease dropped with its last watermark": (
        standings,
        "Standings.drop",
        "max(wrote, key=lambda lease: lease.watermark_ns or 0, default=None)",
        "wrote[-1] if wrote else None",
        sessions.test_session_lease_is_dropped_with_the_highest_watermark_and_all_that_was_written,
        (),
    ),
    "cursor that skips the rest of a bag": (
        reader,
        "Reader._closed_bag",
        "min(closed.bag.end_ns, until + 1)",
        "closed.bag.end_ns",
        bags.test_reading_that_ended_inside_a_bag_is_gone_on_with_where_it_ended,
        (10, False),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_one_taken_for_all_is_noticed(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    *fault, caught_by, arguments = MUTANTS[name]
    parameters = list(inspect.signature(caught_by).parameters)
    given = dict(zip(parameters[len(parameters) - len(arguments) :], arguments, strict=True))
    given |= {each: request.getfixturevalue(each) for each in parameters if each not in given}
    Planter(monkeypatch).plant(*fault)
    with pytest.raises((AssertionError, pytest.fail.Exception, LeaseholdError)):
        caught_by(**given)
