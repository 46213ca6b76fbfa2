"""Elections over a lease, and what a receiver does that remembers epochs: on a hand-driven clock."""

from __future__ import annotations

import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count
from typing import TYPE_CHECKING

import pytest

from appliance.recipes.election import Election, Leader
from appliance.recipes.exclusion import tree_of
from appliance.recipes.fence_gate import IN_MEMORY, FenceGate
from tests.support.cluster import HandSite, hand_sites
from timeagent.errors import BadRequest, Damaged, Environment, LeaseLost, ShardUnavailable, TryAgain
from timeagent.units import INSTANT_MAX, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from timeagent.units import Span


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=3)


def candidate(site: HandSite, name: str) -> Election:
    return Election(site.session(name), "e")


def when_it_sleeps(site: HandSite, what: Callable[[], object]) -> None:
    """Do something once, when somebody waits next."""
    sleep = site.time.sleep

    def doing(span: Span) -> None:
        site.time.sleep = sleep  # type: ignore[method-assign]
        sleep(span)
        what()

    site.time.sleep = doing  # type: ignore[method-assign]


def leads(election: Election) -> bool:
    try:
        election.campaign(timeout_s=0).resign()
    except TryAgain:
        return False
    return True


def test_one_leads_and_everybody_can_see_who(site: HandSite) -> None:
    a, b = candidate(site, "a"), candidate(site, "b")
    assert b.leader() is None
    with a.campaign() as leadership:
        leader = b.leader()
        assert isinstance(leader, Leader)
        assert (leader.candidate, leader.epoch) == ("a", leadership.epoch)
        assert not leads(b)
    assert b.leader() is None


def test_epochs_only_grow_also_over_a_crash_of_the_shard(site: HandSite) -> None:
    epochs = []
    for crash in (False, True, False):
        leadership = candidate(site, "a").campaign()
        epochs.append(leadership.epoch)
        if crash:
            site.start(site.shard_of(tree_of("election", "e")))
        else:
            leadership.resign()
    assert sorted(set(epochs)) == epochs


def test_leader_that_stood_still_acts_no_more_and_another_leads(site: HandSite) -> None:
    old = candidate(site, "a").campaign()
    site.time.advance(old.lease.term_ns + SECOND)
    new = candidate(site, "b").campaign(timeout_s=0)
    assert new.act(lambda: "done") == "done"
    assert new.epoch > old.epoch
    with pytest.raises(LeaseLost):
        old.act(lambda: pytest.fail("done"))


def test_expired_leader_is_shown_to_nobody(site: HandSite) -> None:
    old = candidate(site, "a").campaign()
    site.time.advance(old.lease.term_ns + SECOND)
    assert candidate(site, "b").leader() is None


def test_leader_that_campaigns_again_is_told_at_once(site: HandSite) -> None:
    a = candidate(site, "a")
    with a.campaign(), pytest.raises(BadRequest) as told:
        a.campaign()
    assert told.value.code == "held-here"


def test_lead_is_handed_over_to_the_one_who_is_named_whoever_comes_first(site: HandSite) -> None:
    leadership = candidate(site, "a").campaign()
    b, c = candidate(site, "b"), candidate(site, "c")
    epochs: list[int] = []

    def others_come() -> None:
        assert not leads(b)
        assert c.leader() is None
        epochs.append(c.campaign(timeout_s=0).epoch)

    when_it_sleeps(site, others_come)
    assert leadership.resign(to="c")
    leader = b.leader()
    assert leader is not None
    assert (leader.candidate, [leader.epoch]) == ("c", epochs)
    assert leader.epoch > leadership.epoch
    with pytest.raises(LeaseLost):
        leadership.check()


def test_nominee_that_does_not_come_costs_the_time_out_and_no_more(site: HandSite) -> None:
    leadership = candidate(site, "a").campaign()
    began = site.time.boot_ns()
    assert not leadership.resign(to="nobody", timeout_s=3)
    assert site.time.boot_ns() < began + 5 * SECOND
    assert leads(candidate(site, "b"))


def test_nomination_of_a_leader_that_died_ends_with_its_lease(site: HandSite) -> None:
    a = candidate(site, "a")
    leadership = a.campaign()
    (nomination,) = a._session.acquire(a._nomination("c"))  # the first two steps of resigning, and no third
    leadership.relinquish()
    assert not leads(candidate(site, "b"))
    site.time.advance(nomination.term_ns + SECOND)
    assert leads(candidate(site, "b"))


def test_who_waits_out_a_nomination_leads_after_it(site: HandSite) -> None:
    leadership = candidate(site, "a").campaign()
    epochs: list[int] = []

    def waits() -> None:
        with pytest.raises(TryAgain):
            candidate(site, "b").campaign(timeout_s=1)  # inside the patience of who resigns
        epochs.append(leadership.epoch)

    when_it_sleeps(site, waits)
    assert not leadership.resign(to="c", timeout_s=3)
    assert candidate(site, "b").campaign(timeout_s=0).epoch > epochs[0]


def test_lead_is_kept_by_who_cannot_nominate(site: HandSite) -> None:
    leadership = candidate(site, "a").campaign()
    with pytest.raises(BadRequest, match="leads already"):
        leadership.resign(to="a")
    shard = site.transports[site.shard_of(tree_of("election", "e"))]
    shard.script = ["lost"] * 40
    with pytest.raises(ShardUnavailable):
        leadership.resign(to="c", timeout_s=1)
    shard.script = []
    leadership.check()


# The lead is given back by then: what the shard does not say now is looked for again, until the time-out.
def test_shard_that_is_silent_while_a_hand_over_is_watched_raises_nothing(site: HandSite) -> None:
    leadership = candidate(site, "a").campaign()
    c = candidate(site, "c")
    shard = site.transports[site.shard_of(tree_of("election", "e"))]

    def leads_and_falls_silent() -> None:
        c.campaign(timeout_s=0)
        shard.script = ["lost"] * 3

    when_it_sleeps(site, leads_and_falls_silent)
    assert leadership.resign(to="c")


def test_run_leads_for_one_epoch_and_resigns_whatever_comes_of_it(site: HandSite) -> None:
    a = candidate(site, "a")
    assert a.run(lambda leadership: leadership.epoch) > 0
    with pytest.raises(ZeroDivisionError):
        a.run(lambda _: 1 // 0)
    assert leads(candidate(site, "b"))


def test_observer_hears_of_every_new_epoch(site: HandSite) -> None:
    heard = candidate(site, "o").observe(every_s=0.5)
    assert next(heard) is None
    leadership = candidate(site, "a").campaign()
    first = next(heard)
    assert isinstance(first, Leader)
    assert first.epoch == leadership.epoch
    when_it_sleeps(site, leadership.resign)
    assert next(heard) is None


def test_observer_of_a_closed_session_sees_nothing_more(site: HandSite) -> None:
    session = site.session("o")
    heard = Election(session, "e").observe(every_s=0.5)
    assert next(heard) is None
    when_it_sleeps(site, session.close)
    with pytest.raises(BadRequest) as told:
        next(heard)
    assert told.value.code == "session-closed"


# -- who comes too late ------------------------------------------------------------------------------------------------


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[Callable[..., FenceGate]]:
    """Make gates, by default of one file."""
    with contextlib.ExitStack() as made:

        def gate(path: Path | str = tmp_path / "fences.db", **options: float) -> FenceGate:
            return made.enter_context(contextlib.closing(FenceGate(path, **options)))

        yield gate


def test_gate_lets_the_highest_fence_pass_and_refuses_the_one_before(gates: Callable[..., FenceGate]) -> None:
    for gate in (gates(), gates(IN_MEMORY)):
        for fence in (5, 5, 7):
            with gate.passing(fence):
                pass
        with pytest.raises(LeaseLost) as refused, gate.passing(5):
            pytest.fail("passed")
        assert refused.value.code == "fence-passed"
        assert gate.highest() == 7
        with gate.passing(5, name="another"):
            pass


def test_fence_is_remembered_before_its_holder_passes_whatever_becomes_of_it(gates: Callable[..., FenceGate]) -> None:
    def fails() -> None:
        with gates().passing(7):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with pytest.raises(LeaseLost), gates().passing(6):
        pytest.fail("passed")


def test_nobody_passes_beside_another(gates: Callable[..., FenceGate]) -> None:
    one, other = gates(), gates(patience_s=0)
    with one.passing(5), pytest.raises(TryAgain) as told, other.passing(6):
        pytest.fail("passed")
    assert told.value.code == "busy"
    with other.passing(6):
        pass


# A month is more milliseconds than SQLite counts, and the threads of one gate wait for no lock of SQLite's.
def test_gate_waits_as_long_as_its_patience_is_and_no_longer(gates: Callable[..., FenceGate]) -> None:
    def passes(gate: FenceGate) -> bool:
        with gate.passing(6):
            return True

    one, hasty, patient = gates(), gates(IN_MEMORY, patience_s=0), gates(patience_s=30 * 86400)
    with ThreadPoolExecutor(1) as thread:
        with hasty.passing(5):
            for ask in (hasty.highest, lambda: passes(hasty)):
                with pytest.raises(TryAgain) as told:
                    thread.submit(ask).result(10)
                assert told.value.code == "busy"
        with one.passing(5):
            waits = thread.submit(passes, patient)
            wait([waits], 0.3)
        assert waits.result(10)


def test_nobody_passes_while_another_looks_whether_it_may(
    gates: Callable[..., FenceGate], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates(), gates(patience_s=0)
    look, looks = one._refused, count(1)

    def looking(name: str, fence: int) -> int | None:
        if next(looks) == 2:  # its fence is remembered, and it has not passed
            with pytest.raises(TryAgain), other.passing(6):
                pytest.fail("passed")
        return look(name, fence)

    monkeypatch.setattr(one, "_refused", looking)
    with one.passing(5):
        assert next(looks) == 3


@pytest.mark.parametrize("wrong", [0, -1, INSTANT_MAX + 1, True, "7"])
def test_what_is_no_fence_is_refused(wrong: int, gates: Callable[..., FenceGate]) -> None:
    gate = gates()
    with pytest.raises(BadRequest), gate.passing(wrong):
        pytest.fail("passed")
    assert gate.highest() == 0


def test_gate_within_its_own_block_is_refused_and_the_block_goes_on(gates: Callable[..., FenceGate]) -> None:
    gate = gates()
    with gate.passing(3):
        with pytest.raises(BadRequest) as refused, gate.passing(4, name="another"):
            pytest.fail("passed")
        assert refused.value.code == "passing"
        assert gate.highest() == 3
    with gate.passing(4, name="another"):
        pass


# A reader holds up who writes: that one does not pass, and neither it nor another is locked out afterwards.
def test_gate_that_could_not_be_written_lets_pass_again(tmp_path: Path) -> None:
    file = tmp_path / "fences.db"
    with (
        contextlib.closing(FenceGate(file, patience_s=0)) as gate,
        contextlib.closing(sqlite3.connect(file)) as reader,
    ):
        for fence in (1, 2):
            with gate.passing(fence, name=str(fence)):
                pass
        reading = reader.execute("SELECT name FROM highest")
        reading.fetchone()
        with pytest.raises(TryAgain), gate.passing(5):
            pytest.fail("it was not remembered")
        reading.close()
        assert gate.highest() == 0
        with contextlib.closing(FenceGate(file, patience_s=0)) as other, other.passing(7):
            pass
        with gate.passing(7):
            pass


# Ctrl-C while another passes comes out when that one has passed, and the gate is this one's.
def test_gate_whose_waiting_is_interrupted_lets_others_pass(
    gates: Callable[..., FenceGate], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = gates(), gates(patience_s=0)
    execute = one._execute

    def interrupted(statement: str, *values: str | int) -> list[tuple[int]]:
        execute(statement, *values)
        raise KeyboardInterrupt

    with monkeypatch.context() as planted:
        planted.setattr(one, "_execute", interrupted)
        with pytest.raises(KeyboardInterrupt), one.passing(3):
            pytest.fail("passed")
    for gate in (other, one):
        with gate.passing(3):
            pass


def test_name_that_cannot_be_kept_is_refused(gates: Callable[..., FenceGate]) -> None:
    gate = gates()
    with pytest.raises(BadRequest), gate.passing(1, name="\udcff"):
        pytest.fail("it passed")
    with gate.passing(1):
        pass


def test_file_that_is_no_gate_is_refused_by_name(tmp_path: Path, gates: Callable[..., FenceGate]) -> None:
    (tmp_path / "text").write_bytes(b"not a database" * 100)
    with pytest.raises(Damaged, match="text"):
        gates(tmp_path / "text")
    with pytest.raises(Environment, match="there-is-none"):
        gates(tmp_path / "there-is-none" / "fences.db")
    gate = gates()
    gate.close()
    for ask in (gate.highest, gate.passing(1).__enter__):
        with pytest.raises(BadRequest) as closed:
            ask()
        assert closed.value.code == "gate-closed"


def test_zombie_is_refused_by_the_receiver(site: HandSite, gates: Callable[..., FenceGate]) -> None:
    """It looked at its clock, was stopped before it acted, and goes on when another leads, and wrote, long since."""
    gate, written = gates(), []

    def write(fence: int) -> None:
        with gate.passing(fence):
            written.append(fence)

    zombie = candidate(site, "a").campaign()
    zombie.act(lambda: write(zombie.epoch))
    zombie.check()
    site.time.advance(zombie.lease.term_ns + 100 * MS)
    successor = candidate(site, "b").campaign(timeout_s=5)
    successor.act(lambda: write(successor.epoch))
    with pytest.raises(LeaseLost) as refused:
        write(zombie.epoch)  # the line behind its check
    assert refused.value.code == "fence-passed"
    assert written == [zombie.epoch, successor.epoch]
