"""What checkers go by is told them: no two publications look alike, and when a lease was lost is known."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from appliance.daemon.failover import ShardFailover
from appliance.formats.lease import Mode
from appliance.lease.shard import Shard
from tests.simulation.actors.recalled import Obliging
from tests.simulation.checkers import heirs, waits
from tests.simulation.checkers.catalogue import violations
from tests.simulation.history import Death, History, Hold, Tenant, Turn
from tests.simulation.mutants import MUTANTS
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.scheduler import Machine, Process
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from appliance.session.held import Lease
    from tests.simulation.checkers.record import Record

SEEDS = 40


# Threads of daemons and sessions survive whatever a step of theirs raises: what it did not do is found much later.
@pytest.mark.parametrize(
    ("scenario", "step", "said"),
    [
        ("restarts", (Shard, "suspend"), "shard-broken"),
        ("heirs", (ShardFailover, "_consider"), "tenancy-failed"),
        ("recalls", (Obliging, "_flush"), "recall-listener-failed"),
    ],
)
def test_what_a_thread_survives_is_a_bug(
    scenario: str, step: tuple[type, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise IndexError(said)

    monkeypatch.setattr(*step, broken)
    found: list[tuple[str, str]] = []
    for seed in range(SEEDS):
        world = SCENARIOS[scenario](seed)
        world.run()
        found += violations(world)
        if found:
            break
    assert {checker for checker, text in found if f"goes on after {said}" in text} == {"bug"}


# Readers may accept a message that a writer repeats after a restart, and not the one that was committed.
def test_no_two_publications_say_the_same_also_when_their_writer_began_again() -> None:
    restarts = 0
    for seed in range(SEEDS):
        world = SCENARIOS["bags"](seed)
        world.run()
        restarts += world.scheduler.crashes
        payloads = Counter(payload for attempt in world.history.attempts for payload in attempt.payloads)
        assert set(payloads.values()) <= {1}, payloads
    assert restarts


# Most who lose a lease never give it back: they believed to have it until they found out.
def test_lease_that_was_lost_is_judged_up_to_the_instant_of_its_loss() -> None:
    mutant = next(each for each in MUTANTS if each.name == "a lease is granted to another shortly before it is over")
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        world = SCENARIOS[mutant.scenario](3)
        world.run()
    assert "overlap" in {checker for checker, _ in violations(world)}
    for hold in world.history.holds:
        hold.lost_ns = None
    assert "overlap" not in {checker for checker, _ in violations(world)}


# Whoever stood still until its lease had run out reads its loss beside the next expiry of the session lease.
def test_lost_lease_is_judged_by_the_expiry_that_it_had_then() -> None:
    lease = cast("Lease", SimpleNamespace(expiry_ns=5 * SECOND, ended="revoked"))
    hold = Hold("a", "acct/0", 1, Mode.X, 0, lease, Process(Machine("a"), "a"), lost_ns=4 * SECOND)
    assert hold.believed_until_ns(MS) == 4 * SECOND
    hold.good_until_ns = 2 * SECOND
    assert hold.believed_until_ns(MS) == 2 * SECOND - MS


# A request that is on its way is granted to a holder who is dead already.
@pytest.mark.parametrize(("asked", "objections"), [("acct/0", 0), ("acct/1", 1)])
def test_who_dies_while_it_asks_may_be_in_the_way_for_a_term(asked: str, objections: int) -> None:
    dead, alive = (Process(Machine(name), name) for name in ("dead", "alive"))
    dead.dead = True
    history = History(
        turns=[Turn(dead, asked, 0), Turn(alive, "acct/0", 10 * MS, over_ns=4 * SECOND)],
        deaths=[Death(dead, 5 * MS, "holder died")],
    )
    policy = SimpleNamespace(takeover_ns=lambda: 3 * SECOND, restart_ns=lambda: SECOND)
    assert len(list(waits.check(history, cast("Record", SimpleNamespace(policy=policy))))) == objections


# A node whose clocks stood still counts by them, and has heard of it for longer than it knows.
@pytest.mark.parametrize(("stopped", "objections"), [("n2", 0), ("n1", 1)])
def test_who_was_asked_is_remembered_for_longer_by_clocks_that_stood_still(stopped: str, objections: int) -> None:
    taken = 100 * SECOND
    history = History(
        tenants=[Tenant(0, "n2", b"", taken, taken)],
        visits=[(taken - 17 * SECOND, "n2", 0)],
        owners={0: "n1"},
        stops=[(stopped, taken - 5 * SECOND, 3 * SECOND)],
    )
    assert len(list(heirs.check(history, cast("Record", None)))) == objections
