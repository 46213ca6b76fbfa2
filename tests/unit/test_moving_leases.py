"""Leases whose domain moves to another shard: held from one, from both, from the other, and lost to nobody."""

from __future__ import annotations

from dataclasses import fields
from itertools import count
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from appliance.bag.writing import Committed, Unknown
from appliance.formats.lease import LeaseOutcome, Mode
from appliance.formats.shardmap import SHARDS_MAX, ShardMap
from appliance.formats.witness import Ended, Half
from appliance.lease import ceiling
from appliance.lease import shard as shard_module
from appliance.lease.ceiling import Beginning, CeilingChain, Extended, InDoubt, ShardIdentity, StoppedOrderly
from appliance.lease.wire import Acquire, Granted, Inspect, LeasePage, Over, Renew, Revoke, Unavailable, Upgrade
from appliance.session import held
from appliance.session.endings import LossReason
from appliance.session.held import Lease
from tests.support.cluster import HandSite
from tests.support.mutants import Mutant, check_noticed
from tests.support.session_world import LOG, Planted, done_but_failed, not_done, payloads, publish
from tests.support.shards import MemoryChain, acquire, opened
from tests.support.values import CLUSTER, NODE, WITNESS_KEY
from timeagent.errors import Damaged, Environment, LeaseLost, ShardUnavailable, TenureError, TryAgain
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.lease.shard import Shard
    from appliance.lease.wire import Reply, Request
    from appliance.session.held import Loss
    from appliance.session.session import Session
    from timeagent.units import Span

OLD, NEW, NEWER = 0, SHARDS_MAX, 3 * SHARDS_MAX
"""The shard that leaves, the one that comes, and the one that comes with the next move."""


class MovingSite(HandSite):
    """A site whose only shard moves, step by step."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.old = self.shard(OLD)
        self.both_map = ShardMap(number=2, cluster_id=CLUSTER, owners=(NODE,), chains=(2,), before=self.map.layout)
        self.new_map = replace(self.both_map, number=3, before=None)

    def shard(self, number: int) -> Shard:
        found = self.transport(number).shard
        assert found is not None
        return found

    def leases(self, number: int) -> int:
        """How many leases of a shard are out."""
        (page,) = self.shard(number).turn([Inspect(after_domain="", leases_max=1)])
        assert isinstance(page, LeasePage)
        return page.numbers.leases

    def both(self) -> None:
        """Everybody goes by the map in phase *both*."""
        self.map = self.both_map
        self.new = self.start(NEW)
        assert self.old.go_by(self.both_map)

    def after(self) -> StoppedOrderly:
        """Everybody goes by the map after that; return how the shard that leaves has ended."""
        self.map = self.new_map
        assert self.old.go_by(self.new_map)
        end = self.old.stop_orderly()
        assert isinstance(end, StoppedOrderly), end
        assert self.new.go_by(self.new_map, Beginning(end.floor_ns, end.settle_to_ns))
        return end

    def moves_on(self, *, known: bool = True) -> None:
        """Let the next move begin. ``known``: the shard that leaves goes by its map already."""
        self.map = replace(self.both_map, number=4, chains=(4,), before=self.new_map.layout)
        self.start(NEWER)
        assert not known or self.new.go_by(self.map)

    def renews(self, session: Session) -> None:
        """Let a renewal period pass, and have the session renew what is due then."""
        self.time.advance(self.policy.renew_period_ns)
        session.renew_due()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[MovingSite]:
    made = MovingSite(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_lease_is_held_through_a_move_and_nobody_else_ever_has_it(site: MovingSite, *, together: bool) -> None:
    session, rival = site.session(session_leases=together), site.session()
    lost: list[object] = []
    session.on_lost(lost.append)
    leases = session.acquire("d", "e", timeout_s=0)
    fences = [each.fence for each in leases]
    assert isinstance(publish(session, leases, b"old"), Committed)
    site.both()
    assert isinstance(publish(session, leases, b"alone"), Committed)
    site.renews(session)
    assert [len(each.halves()) for each in leases] == [2, 2]
    assert isinstance(publish(session, leases, b"both"), Committed)
    with pytest.raises(TryAgain):
        rival.acquire("d", timeout_s=0)
    for _ in range(5):
        site.renews(session)
    assert isinstance(publish(session, leases, b"both, for long"), Committed)
    end = site.after()
    assert isinstance(publish(session, leases, b"both still"), Committed)
    site.renews(session)
    assert [each.shard for each in leases] == [NEW, NEW]
    for _ in range(5):
        site.renews(session)
    assert isinstance(publish(session, leases, b"new"), Committed)
    assert [each.fence for each in leases] == fences
    assert lost == []
    with pytest.raises(TryAgain):
        rival.acquire("d", timeout_s=0)
    assert session.relinquish(leases)
    (next_one,) = rival.acquire("d", timeout_s=0)
    assert next_one.fence > max(fences)
    assert next_one.floor_ns >= end.floor_ns
    assert isinstance(rival.publish(LOG, [b"next"], under=[next_one]), Committed)
    site.time.advance(30 * SECOND)
    assert payloads(site) == [b"old", b"alone", b"both", b"both, for long", b"both still", b"new", b"next"]


@pytest.mark.parametrize("shard", [OLD, NEW])
@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_lease_that_is_revoked_while_its_domain_moves_is_kept_from_nobody(
    site: MovingSite, shard: int, *, together: bool
) -> None:
    session, rival = site.session(session_leases=together), site.session()
    lease, _ = session.acquire("d", "e", timeout_s=0)
    site.both()
    site.renews(session)
    half = next(each for each in (lease, lease.second) if each is not None and each.shard == shard)
    by = half.signed.witness().holder
    revoke = Revoke(request_id=b"r" * 16, domain="d", correlation_id=half.correlation_id, by=by)
    (over,) = site.shard(shard).turn([revoke])
    assert isinstance(over, Over)
    believed_until = lease.expiry_ns
    until = site.time.now().latest + site.policy.lease_term_max_ns + 2 * site.policy.renew_period_ns
    while site.time.now().latest < until:  # its holder does nothing about it
        site.renews(session)
    assert lease.loss is not None
    (next_one,) = rival.acquire("d", timeout_s=0)
    assert next_one.floor_ns >= believed_until


@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
@pytest.mark.parametrize("count", [1, 20], ids=["one by one", "dropped together"])
def test_lease_that_is_taken_while_its_domain_moves_is_double_and_given_back_to_both(
    site: MovingSite, count: int, *, together: bool
) -> None:
    site.both()
    session = site.session(session_leases=together)
    leases = session.acquire(*(f"d{n}" for n in range(count)), timeout_s=0)
    assert {len(each.halves()) for each in leases} == {2}
    assert {each.second.fence > each.fence for each in leases if each.second} == {True}
    assert isinstance(publish(session, leases, b"both"), Committed)
    assert (site.leases(OLD), site.leases(NEW)) == (count, count)
    assert session.relinquish(leases)
    assert (site.leases(OLD), site.leases(NEW)) == (0, 0)
    site.time.advance(30 * SECOND)
    assert payloads(site) == [b"both"]


def test_stronger_mode_is_taken_from_both_shards(site: MovingSite) -> None:
    site.both()
    session = site.session()
    (lease,) = leases = session.acquire("d", mode=Mode.S, timeout_s=0)
    session.upgrade(lease, Mode.X, timeout_s=0)
    assert lease.second is not None
    assert (lease.mode, lease.second.mode) == (Mode.X, Mode.X)
    assert isinstance(publish(session, leases, b"both"), Committed)
    site.time.advance(30 * SECOND)
    assert payloads(site) == [b"both"]


# One half of each mode is worth the weaker: who has that is told nothing else, and loses nothing.
def test_lease_keeps_its_mode_until_both_shards_have_granted_a_stronger_one(site: MovingSite) -> None:
    site.both()
    session = site.session()
    (lease,) = leases = session.acquire("d", mode=Mode.IX, timeout_s=0)
    site.transport(NEW).script = ["lost"] * 6
    with pytest.raises(ShardUnavailable):
        session.upgrade(lease, Mode.X, timeout_s=0)
    assert (lease.mode, lease.ended) == (Mode.IX, None)
    site.transport(NEW).script = []
    site.renews(session)
    assert (lease.mode, lease.ended) == (Mode.IX, None)
    assert isinstance(publish(session, leases, b"both"), Committed)
    before = len(site.transport(OLD).calls)
    session.upgrade(lease, Mode.X, timeout_s=0)
    assert not any(isinstance(each, Upgrade) for each in site.transport(OLD).calls[before:])
    assert lease.mode is Mode.X
    assert isinstance(publish(session, leases, b"stronger"), Committed)
    site.time.advance(30 * SECOND)
    assert payloads(site) == [b"both", b"stronger"]


@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_lease_that_goes_on_with_a_weaker_half_has_its_mode(site: MovingSite, *, together: bool) -> None:
    site.both()
    session, rival = site.session(session_leases=together), site.session()
    (lease,) = session.acquire("d", mode=Mode.S, timeout_s=0)
    site.transport(NEW).script = ["lost"] * 6
    with pytest.raises(ShardUnavailable):
        session.upgrade(lease, Mode.X, timeout_s=0)
    site.transport(NEW).script = []
    site.renews(session)
    site.after()
    site.renews(session)
    assert (lease.shard, lease.mode) == (NEW, Mode.S)
    assert [each.mode for each in rival.acquire("d", mode=Mode.S, timeout_s=0)] == [Mode.S]


# Readers take no half beside a whole lease: it goes on with the second half before it is written under.
@pytest.mark.parametrize("heard", [False, True], ids=["neither half has it", "the first half has it"])
@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_mode_that_the_second_half_gets_when_it_is_whole_is_that_of_the_lease(
    site: MovingSite, *, heard: bool, together: bool
) -> None:
    site.both()
    session = site.session(session_leases=together)
    (lease,) = leases = session.acquire("d", mode=Mode.S, timeout_s=0)
    if heard:
        site.transport(NEW).script = ["lost"] * 6
        with pytest.raises(ShardUnavailable):
            session.upgrade(lease, Mode.X, timeout_s=0)
        site.transport(NEW).script = []
    site.after()
    reader = site.session()
    (before,) = reader.acquire("d", mode=Mode.S, timeout_s=0)
    reader.relinquish([before])
    session.upgrade(lease, Mode.X, timeout_s=0)
    assert (lease.shard, lease.mode, len(lease.halves())) == (NEW, Mode.X, 1)
    assert lease.fence > before.fence
    assert isinstance(publish(session, leases, b"whole"), Committed)
    site.renews(session)
    site.time.advance(30 * SECOND)
    assert payloads(site) == [b"whole"]


# A session lease that is whole already is told so by no later renewal.
def test_lease_whose_second_half_is_whole_by_the_time_that_it_is_taken_goes_on_with_it(
    site: MovingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.both()
    session, way = site.session(session_leases=True), site.transport(NEW)
    call = way.call

    def answers_late(requests: list[Request], timeout_ns: Span) -> list[Reply]:
        replies = call(requests, timeout_ns)
        if isinstance(requests[0], Upgrade):
            monkeypatch.undo()
            site.after()
            site.renews(session)  # as its own thread does
        return replies

    monkeypatch.setattr(way, "call", answers_late)
    leases = session.acquire("d", timeout_s=0)
    assert [(each.shard, len(each.halves())) for each in leases] == [(NEW, 1)]
    assert isinstance(publish(session, leases, b"whole"), Committed)
    site.time.advance(30 * SECOND)
    assert payloads(site) == [b"whole"]


# What the shard that comes states when it grants the stronger mode counts for the lease, not for its half alone.
def test_stronger_second_half_raises_what_the_lease_waits_for(site: MovingSite) -> None:
    site.both()
    session = site.session()
    (lease,) = session.acquire("d", mode=Mode.S, timeout_s=0)
    (stray,) = site.new.turn([replace(acquire(site, "d", mode=Mode.S, request_id=bytes(16)), map_number=2)])  # type: ignore[arg-type]
    assert isinstance(stray, Granted)
    for _ in range(5):
        site.renews(session)
    session.upgrade(lease, Mode.X, timeout_s=0, record_only=True)
    assert lease.settle_to_ns >= opened(stray)[1].expiry_ns


# It was asked for before the lease became stronger, and its answer comes after that.
def test_second_half_in_a_weaker_mode_is_given_back(site: MovingSite) -> None:
    session, rival = site.session(), site.session()
    (lease,) = session.acquire("d", mode=Mode.S, timeout_s=0)
    site.both()
    site.transport(NEW).script = ["done"] * 3
    site.renews(session)
    assert (lease.second, site.leases(NEW)) == (None, 1)
    lease.own_mode = Mode.X  # as its shard has granted meanwhile
    site.renews(session)
    assert (lease.second, site.leases(NEW)) == (None, 0)
    site.renews(session)
    assert lease.second is not None
    assert lease.second.mode is Mode.X
    with pytest.raises(TryAgain):
        rival.acquire("d", mode=Mode.S, timeout_s=0)


def test_shards_serve_who_goes_by_the_map_that_they_go_by(site: MovingSite) -> None:
    def asked(shard: int, map_number: int) -> str:
        request = replace(acquire(site, "d"), map_number=map_number)  # type: ignore[arg-type]
        (reply,) = site.shard(shard).turn([request])
        return reply.code if isinstance(reply, Unavailable) else type(reply).__name__

    site.request_id = lambda: site.chance.randbytes(16)  # type: ignore[attr-defined]
    assert [asked(OLD, number) for number in (1, 2)] == ["Granted", "map-not-yet"]
    site.both()
    assert [asked(OLD, number) for number in (1, 2, 3)] == ["newer-map", "Denied", "map-not-yet"]
    assert [asked(NEW, number) for number in (1, 2, 3)] == ["newer-map", "Granted", "map-not-yet"]
    site.after()
    assert [asked(NEW, number) for number in (1, 2, 3)] == ["newer-map", "newer-map", "Denied"]


# Whoever moves shards took its right for past, and has ended the move, or will: no lease from before is out.
def test_shard_that_stood_still_beyond_its_ceiling_has_seen_the_move_before_it_grants_again(site: MovingSite) -> None:
    def asked(domain: str, map_number: int) -> str:
        request = acquire(site, domain, request_id=site.chance.randbytes(16))  # type: ignore[arg-type]
        (reply,) = site.old.turn([replace(request, map_number=map_number)])
        return reply.code if isinstance(reply, Unavailable) else type(reply).__name__

    assert asked("d", 1) == "Granted"
    site.map = site.both_map
    site.start(NEW)
    assert asked("e", 1) == "Granted"
    site.time.advance(2 * site.policy.lease_term_max_ns)
    assert asked("f", 1) == "newer-map"
    assert asked("f", 2) == "Granted"
    site.map = site.new_map
    site.time.advance(2 * site.policy.lease_term_max_ns)
    assert asked("g", 2) == "newer-map"


# Its node was down while it became whole and was to leave again: it has not taken on what the shards before it state.
def test_shard_that_came_and_stood_still_serves_the_next_move_only_above_those_that_it_follows(
    site: MovingSite,
) -> None:
    session = site.session()
    leases = session.acquire("d", timeout_s=0)
    assert isinstance(publish(session, leases, b"before"), Committed)
    session.relinquish(leases)
    site.both()
    assert site.old.go_by(site.new_map)
    end = site.old.stop_orderly()
    assert isinstance(end, StoppedOrderly)
    site.map = replace(site.both_map, number=4, chains=(4,), before=site.new_map.layout)
    site.time.advance(3 * site.policy.lease_term_max_ns)
    request = replace(acquire(site, "d", request_id=bytes(16)), map_number=4)  # type: ignore[arg-type]
    (reply,) = site.new.turn([request])
    assert isinstance(reply, Unavailable), opened(reply)
    assert reply.code == "map-not-yet"
    assert site.new.go_by(site.map, Beginning(end.floor_ns, end.settle_to_ns))
    (reply,) = site.new.turn([request])
    assert opened(reply)[1].floor_ns >= end.floor_ns


def test_right_that_had_lapsed_counts_once_the_newest_map_was_read(site: MovingSite) -> None:
    reads: list[ShardMap | TenureError] = [Environment("planted", "no mount"), site.map]

    def read() -> ShardMap:
        found = reads.pop(0)
        if isinstance(found, TenureError):
            raise found
        return found

    identity = ShardIdentity(CLUSTER, 1, 0, NODE, b"a run ..")
    records = MemoryChain()
    chain = CeilingChain(records, site.time, WITNESS_KEY, site.policy, identity, look_at_maps=read)
    began = chain.begin()
    assert isinstance(began, InDoubt)
    assert "no mount" in began.reason
    assert (chain.number, chain.newest_map) == (0, None)
    assert isinstance(chain.begin(), Extended)
    assert (chain.number, chain.newest_map, reads) == (1, site.map, [])
    site.time.advance(chain.ceiling_ns - site.time.now().latest - 1)
    assert isinstance(chain.extend(), Extended), "it lasted until this was linked, and nobody took it for past"
    reads += [Damaged("planted", "no map"), site.both_map]
    site.time.advance(chain.ceiling_ns - site.time.now().latest)
    assert isinstance(chain.extend(), InDoubt)
    assert chain.number == 2
    assert isinstance(chain.extend(), Extended)
    assert (chain.number, chain.newest_map) == (3, site.both_map)
    reads.append(site.new_map)
    heir = ShardIdentity(CLUSTER, 1, 0, NODE, b"another ")
    chain = CeilingChain(records, site.time, WITNESS_KEY, site.policy, heir, look_at_maps=read)
    assert isinstance(chain.begin(), Extended), "the right of the run before has not lapsed"
    assert (chain.number, chain.newest_map) == (4, site.new_map)


# The thread of the chain has read the map just when a turn has looked for one.
def test_map_that_the_chain_reads_while_a_turn_begins_is_gone_by_from_the_next(
    site: MovingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[ShardMap | None] = [None]

    def looked(_: CeilingChain) -> ShardMap | None:
        known.append(site.both_map)
        return known[-2]

    monkeypatch.setattr(CeilingChain, "newest_map", property(looked, lambda _, new: known.append(new)), raising=False)
    site.old.turn([])
    site.old.turn([])
    assert site.old.going_by == site.both_map.number


# What a lease from the old shard alone allows until then, a successor must be above, also where that lease is not over.
def test_shard_that_leaves_ends_above_what_may_be_believed_in_alone(site: MovingSite) -> None:
    (lease,) = site.session().acquire("d", timeout_s=0)
    site.both()
    end = site.after()
    assert (end.floor_ns, end.settle_to_ns) == (lease.expiry_ns, lease.expiry_ns)
    (next_one,) = site.session().acquire("d", "e", timeout_s=0, record_only=True)[:1]
    assert next_one.settle_to_ns >= lease.expiry_ns


# The run that leaves knows nothing of it, and would let the move end while its holder believes in it alone.
@pytest.mark.parametrize("leaves_first", [False, True])
def test_lease_of_a_run_that_crashed_is_held_from_the_old_shard_alone(site: MovingSite, *, leaves_first: bool) -> None:
    (lease,) = site.session().acquire("d", timeout_s=0)
    if leaves_first:
        site.map = site.both_map
    site.old = site.start(OLD)
    site.both()
    (page,) = site.old.turn([Inspect(after_domain="", leases_max=1)])
    assert isinstance(page, LeasePage)
    assert page.numbers.alone_until_ns >= lease.expiry_ns


# Else the map after that may come while two hold it: its holder, who has not heard of it, goes on with the second half.
def test_lease_that_was_revoked_may_be_believed_in_alone_until_its_expiry(site: MovingSite) -> None:
    holding, other = site.session(), site.session()
    (lease,) = holding.acquire("d", timeout_s=0)
    by = lease.signed.witness().holder
    revoke = Revoke(request_id=b"r" * 16, domain="d", correlation_id=lease.correlation_id, by=by)
    (over,) = site.old.turn([revoke])
    assert isinstance(over, Over)
    (later,) = other.acquire("d", timeout_s=0, record_only=True)
    other.relinquish([later])
    site.both()
    (page,) = site.old.turn([Inspect(after_domain="", leases_max=1)])
    assert isinstance(page, LeasePage)
    assert page.numbers.alone_until_ns >= lease.expiry_ns


# Its last record may be linked though that was reported as failed: what ended after it would not be in it.
def test_shard_that_leaves_ends_no_lease_above_its_last_record(site: MovingSite) -> None:
    site.both()
    (lease,) = site.session().acquire("d", timeout_s=0)
    site.map = site.new_map
    assert site.old.go_by(site.new_map)
    site.chain(OLD).faults["link"] = ["done"]
    assert isinstance(site.old.stop_orderly(), InDoubt)
    site.time.midpoint_ns = lease.expiry_ns + 10 * SECOND
    assert site.leases(OLD) == 1  # a turn that comes between ends nothing either
    by = lease.signed.witness().holder
    revoke = Revoke(request_id=b"r" * 16, domain="d", correlation_id=lease.correlation_id, by=by)
    (refused,) = site.old.turn([revoke])
    assert isinstance(refused, Unavailable)
    end = site.old.stop_orderly()
    assert isinstance(end, StoppedOrderly)
    ends = [each for each in site.ledger_of(OLD) if isinstance(each, Ended)]
    assert all(each.floor_ns <= end.floor_ns and each.settle_to_ns <= end.settle_to_ns for each in ends)


def test_new_shard_is_above_the_old_one_for_domains_that_it_knew_too(site: MovingSite) -> None:
    site.both()
    session = site.session()
    session.relinquish(session.acquire("known", timeout_s=0))
    site.time.advance(SECOND)
    session.relinquish(session.acquire("later", timeout_s=0))
    end = site.after()
    for domain in ("known", "unknown"):
        (lease,) = session.acquire(domain, timeout_s=0, record_only=True)
        assert lease.floor_ns >= end.floor_ns
        assert lease.fence > end.floor_ns


# Else it would run towards the expiry of the half that is gone until the other is due, and the next move might begin.
@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_lease_goes_on_with_its_second_half_as_soon_as_that_is_whole(site: MovingSite, *, together: bool) -> None:
    session = site.session(session_leases=together)
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.renews(session)
    site.map = site.new_map
    assert site.old.go_by(site.new_map)
    end = site.old.stop_orderly()
    assert isinstance(end, StoppedOrderly)
    site.renews(session)
    assert lease.shard == OLD  # the shard that comes does not go by the newest map yet
    assert site.new.go_by(site.new_map, Beginning(end.floor_ns, end.settle_to_ns))
    site.time.advance(100 * MS)
    session.renew_due()
    assert lease.shard == NEW


@pytest.mark.parametrize("look", range(1, 7))
def test_renewal_goes_on_while_another_ends_the_move(
    site: MovingSite, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """``look``: during which of the looks that it takes at the map, for the shard that has left."""
    session = site.session()
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.renews(session)
    site.after()
    half_of, looks = ShardMap.half_of, count(1)

    def ended_meanwhile(shard_map: ShardMap, shard: int) -> Half | None:
        if shard == OLD and next(looks) == look and lease.second is not None:
            lease.go_on_with_second()
        return half_of(shard_map, shard)

    monkeypatch.setattr(ShardMap, "half_of", ended_meanwhile)
    site.renews(session)
    assert (lease.shard, lease.second, lease.ended) == (NEW, None, None)
    lease.check()


# The shard that left knows nothing of it any more, which says nothing of the half that it is held by.
def test_answer_about_the_first_half_that_comes_late_ends_no_lease_that_has_gone_on(
    site: MovingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, way = site.session(), site.transport(OLD)
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.renews(session)

    def answers_late(requests: list[Request], timeout_ns: Span) -> list[Reply]:
        monkeypatch.undo()
        site.after()
        session.renew_due()  # as another thread does
        assert lease.shard == NEW
        return [Over(each.request_id, LeaseOutcome.UNKNOWN, None) for each in requests if isinstance(each, Renew)]

    monkeypatch.setattr(way, "call", answers_late)
    site.renews(session)
    assert (lease.shard, lease.ended) == (NEW, None)
    assert lease.outlook().state == "held"


def test_half_that_a_lease_has_gone_on_without_ends_nothing(site: MovingSite) -> None:
    session = site.session()
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.renews(session)
    half = lease.second
    assert half is not None
    site.after()
    site.renews(session)
    site.moves_on()
    site.renews(session)
    assert lease.second not in (half, None)
    half.lose("expired", LossReason.EXPIRED)  # by an answer that was long on its way
    assert lease.ended is None
    assert lease.second is not None
    lease.second.lose("expired", LossReason.EXPIRED)
    assert lease.ended == "expired"


class SeenOnce(Lease):
    """A lease that has gone on with its second half as soon as somebody has seen that."""

    half: Lease | None = None

    def _seen(self) -> Lease | None:
        half, self.half = self.half, None
        return half

    def _set(self, half: Lease | None) -> None:
        self.half = half

    second = property(_seen, _set)


def test_expiry_is_read_while_another_ends_the_move(site: MovingSite) -> None:
    (lease,) = site.session().acquire("d", timeout_s=0)
    (half,) = site.session().acquire("e", timeout_s=0)
    seen = SeenOnce(**{each.name: getattr(lease, each.name) for each in fields(lease) if each.init})
    seen.second = half
    assert seen.expiry_ns == min(lease.expiry_ns, half.expiry_ns)


def test_lease_is_lost_with_either_half(site: MovingSite) -> None:
    session = site.session()
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.renews(session)
    site.start(NEW)  # an empty one: the other has crashed
    site.renews(session)
    assert lease.ended is not None


# Its session lease was lost while it was granted: without that one's witness no reader would take what is written.
@pytest.mark.parametrize("before", [False, True], ids=["taken in a move", "held before"])
def test_second_half_that_is_lost_as_it_comes_is_not_written_under(site: MovingSite, *, before: bool) -> None:
    session = site.session(session_leases=True)
    taken = session.acquire("d", timeout_s=0) if before else None
    site.both()

    def loses(requests: list[Request]) -> None:
        if isinstance(requests[0], Acquire):
            site.transport(NEW).before = lambda _: None
            (each,) = [each for each in session._leasing.session_leases.all() if each.shard == NEW]
            each.lose("suspect", LossReason.CLOCK_UNSAFE)

    site.transport(NEW).before = loses
    taken = taken or session.acquire("d", timeout_s=0)
    site.renews(session)
    site.renews(session)
    if before:
        assert isinstance(publish(session, taken, b"1"), Committed)
        assert payloads(site) == [b"1"]
    else:
        with pytest.raises(LeaseLost):
            publish(session, taken, b"1")


# Another thread takes it for the lease that is kept: under the same request it would be the half that this gives back.
def test_second_half_that_is_asked_for_while_the_lease_is_kept_for_its_next_use_costs_it_nothing(
    site: MovingSite,
) -> None:
    session = site.session()
    leases = session.acquire("d", timeout_s=0, sticky_s=1000)
    site.both()
    site.transport(NEW).script = ["lost"] * 3
    site.renews(session)

    def keeps(requests: list[Request]) -> None:
        if isinstance(requests[0], Acquire):
            site.transport(NEW).before = lambda _: None
            session.relinquish(leases)
            session.renew_due()

    site.transport(NEW).before = keeps
    site.renews(session)
    site.renews(session)
    (lease,) = session.acquire("d", timeout_s=0, sticky_s=1000)
    assert lease.fence == leases[0].fence
    assert (lease.ended, len(lease.halves()), site.leases(NEW)) == (None, 2, 1)


# It was kept for its next use between the renewal by which it went on and the look for what has moved.
def test_lease_that_is_kept_as_it_moves_is_heard_of_at_its_new_shard(site: MovingSite) -> None:
    session, rival = site.session(), site.session()
    leases = session.acquire("d", timeout_s=0, sticky_s=1000)
    site.both()
    site.renews(session)
    site.after()
    site.time.advance(site.policy.renew_period_ns)
    session._renewer.renew_due()
    session.relinquish(leases)
    session.renew_due()
    with pytest.raises(TryAgain):
        rival.acquire("d", timeout_s=0)
    session.renew_due()
    rival.acquire("d", timeout_s=0, record_only=True)


# Its session lease is renewed by another thread, before it is given back with its watermark.
def test_second_half_of_a_lease_that_is_recalled_is_not_given_back_without_a_word(site: MovingSite) -> None:
    session, rival = site.session(session_leases=True), site.session()
    (lease,) = session.acquire("d", timeout_s=0, recall="relinquish")
    site.both()
    site.renews(session)
    site.renews(session)
    assert len(lease.halves()) == 2
    lease.on_lost(lambda _: site.renews(session))
    with pytest.raises(TryAgain):
        rival.acquire("d", timeout_s=0)
    session.renew_due()
    assert lease.ended == "recalled"
    rival.acquire("d", timeout_s=0)


# Its loss is told when it is over, or an attempt later.
@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_silent_shard_that_comes_is_not_waited_for_long_beyond_the_end_of_a_lease(
    site: MovingSite, monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    session = site.session(session_leases=together)
    told: list[Span] = []
    session.on_lost(lambda loss: told.append(site.time.midpoint_ns - loss.lease.expiry_ns))
    session.acquire("d", timeout_s=0)
    site.both()
    way = site.transport(NEW)

    def silent(requests: list[Request], timeout_ns: Span) -> list[Reply]:
        site.time.advance(timeout_ns)
        raise ShardUnavailable("planted", "nothing came")

    monkeypatch.setattr(way, "call", silent)
    while not told:
        site.time.advance(100 * MS)
        session.renew_due()
    assert told[0] < site.policy.attempt_timeout_ns


# Its other half is renewed meanwhile.
def test_lease_is_unknown_while_the_shard_of_its_second_half_does_not_answer(site: MovingSite) -> None:
    session = site.session()
    lost: list[Loss] = []
    session.on_lost(lost.append)
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.renews(session)
    assert lease.outlook().state == "held"
    site.transport(NEW).script = ["lost"] * 10_000
    site.renews(session)
    assert (lease.outlook().state, lease.outlook().reason) == ("unknown", LossReason.SHARD_UNREACHABLE)
    while not lost:
        site.renews(session)
    assert lost[0].reason is LossReason.SHARD_UNREACHABLE


# Half a lease that has no other would count for nothing: it goes on as it was, until it is over or has its second half.
def test_lease_is_not_renewed_as_a_half_before_it_has_the_other(site: MovingSite) -> None:
    session = site.session()
    (lease,) = session.acquire("d", timeout_s=0)
    expiry = lease.expiry_ns
    site.both()
    site.coming[NEW].script = ["lost"] * 6
    site.renews(session)
    assert (lease.second, lease.expiry_ns) == (None, expiry)
    named = [each.map_number for each in site.transport(OLD).calls if isinstance(each, Renew)]
    assert named == [1]
    site.renews(session)
    assert lease.second is None
    site.renews(session)
    assert len(lease.halves()) == 2
    assert lease.expiry_ns > expiry


def misses_the_end_of_a_move(site: MovingSite, session: Session, answers_lost: int, *, known: bool = True) -> Lease:
    """Let a lease meet the next move before it heard of the first one's end; the shard that comes then answers late.

    ``known``: the shard that leaves then goes by the map of that already.
    """
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.renews(session)
    site.after()
    site.moves_on(known=known)
    site.coming[NEWER].script = ["lost"] * answers_lost
    return lease


@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_messages_in_doubt_are_counted_under_the_half_that_has_gone_on_and_moves_again(
    site: MovingSite, *, together: bool
) -> None:
    mount = Planted(site.storage)
    session = site.session(session_leases=together, storage=mount)
    leases = session.acquire("d", timeout_s=0)
    (lease,) = leases
    site.both()
    site.renews(session)
    mount.at("publish", ".msg", done_but_failed)
    for _ in range(2):
        mount.at("look", site.bag_now(LOG).path, not_done)
    assert isinstance(publish(session, leases, b"1", b"2"), Unknown)
    site.after()
    site.renews(session)
    site.moves_on()
    site.renews(session)
    assert (lease.shard, len(lease.halves())) == (NEW, 2)
    assert session.resolve(LOG, [lease]) == Committed()
    assert lease.messages == 2


# Its session lease is renewed meanwhile, as half of one, and would not be due again before the lease is over.
def test_lease_that_missed_the_end_of_a_move_asks_for_its_next_half_until_it_has_it(site: MovingSite) -> None:
    session = site.session(session_leases=True)
    lease = misses_the_end_of_a_move(site, session, answers_lost=3)
    expiry = lease.expiry_ns
    site.renews(session)
    assert (lease.shard, lease.second, lease.expiry_ns) == (NEW, None, expiry)
    assert lease.session_lease is not None
    assert lease.session_lease.expiry_ns > expiry
    site.time.advance(100 * MS)
    session.renew_due()
    assert len(lease.halves()) == 2
    assert lease.expiry_ns > expiry


# The shard that it has gone on with is whole by the map that was missed, and does not know the next one yet.
@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_lease_that_missed_the_end_of_a_move_is_whole_once_it_is_renewed_so(
    site: MovingSite, *, together: bool
) -> None:
    session = site.session(session_leases=together)
    lost: list[Loss] = []
    session.on_lost(lost.append)
    lease = misses_the_end_of_a_move(site, session, answers_lost=10_000, known=False)
    expiry = lease.expiry_ns
    site.renews(session)
    assert (lease.shard, lease.second, len(lease.halves())) == (NEW, None, 1)
    assert lease.expiry_ns > expiry
    assert site.new.go_by(site.map)
    site.coming[NEWER].script = []
    site.renews(session)
    site.renews(session)
    assert len(lease.halves()) == 2
    assert lost == []


@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_lease_that_has_moved_once_is_not_renewed_as_a_half_before_it_has_the_other(
    site: MovingSite, *, together: bool
) -> None:
    session = site.session(session_leases=together)
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.renews(session)
    site.after()
    site.renews(session)
    assert (lease.shard, lease.second) == (NEW, None)
    expiry = lease.expiry_ns
    site.moves_on()
    site.coming[NEWER].script = ["lost"] * 3
    site.renews(session)
    assert (lease.second, lease.expiry_ns) == (None, expiry)
    site.renews(session)
    assert len(lease.halves()) == 2
    assert lease.expiry_ns > expiry


# What the shard states that it moves from, not what its holder sees: that is of the shard before.
@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_half_of_the_next_move_states_no_less_than_that_of_the_last_one(site: MovingSite, *, together: bool) -> None:
    session = site.session(session_leases=together)
    (lease,) = session.acquire("d", timeout_s=0)
    site.both()
    site.new = site.start(NEW)  # after a crash: it grants above the ceiling of the run before
    site.renews(session)
    site.after()
    site.renews(session)
    stated = lease.signed.witness().fence
    site.moves_on()
    site.renews(session)
    (first, second), now = lease.halves(), site.time.now().latest
    assert first.signed.witness().fence == stated > now
    assert second.signed.witness().fence >= stated


@pytest.mark.parametrize("together", [False, True], ids=["leases", "session lease"])
def test_lease_that_ran_out_for_want_of_its_next_half_is_lost_and_told_and_asked_for_no_more(
    site: MovingSite, *, together: bool
) -> None:
    session = site.session(session_leases=together)
    lost: list[Loss] = []
    session.on_lost(lost.append)
    lease = misses_the_end_of_a_move(site, session, answers_lost=10_000)
    site.renews(session)
    for _ in range(2 * site.policy.lease_term_max_ns // SECOND):
        site.time.advance(SECOND)
        session.renew_due()
    assert [each.lease for each in lost] == [lease]
    asked = len(site.transport(NEWER).calls)
    site.coming[NEWER].script = []
    site.renews(session)
    assert lease.outlook().state == "over"
    assert len(site.transport(NEWER).calls) == asked


# The shard that comes granted it, and its answer was lost; by the next round the first half is another.
def test_second_half_that_was_granted_beside_an_earlier_first_half_is_not_kept(site: MovingSite) -> None:
    site.both()
    site.transport(NEW).script = ["done"] * 3
    (lease,) = site.session().acquire("d", timeout_s=20)
    first, second = lease.halves()
    assert second.fence >= first.fence
    assert site.leases(NEW) == 1


def test_neither_half_of_a_lease_is_asked_for_beyond_the_cap_on_its_hold(site: MovingSite) -> None:
    session = site.session()
    hold_s = (site.policy.lease_term_max_ns + 3 * site.policy.renew_period_ns) / SECOND
    (lease,) = session.acquire("d", hold_s_max=hold_s)
    cap = lease.until_ns
    site.renews(session)
    site.both()
    site.renews(session)
    assert lease.second is not None
    assert (lease.expiry_ns, lease.second.expiry_ns) == (site.time.now().midpoint + lease.term_ns,) * 2
    for _ in range(2):
        site.renews(session)
        assert cap is not None
        assert max(lease.own_expiry_ns, lease.second.expiry_ns) <= cap


def test_half_that_is_taken_late_is_not_asked_for_beyond_the_cap_on_the_hold(site: MovingSite) -> None:
    session = site.session()
    hold_s = (site.policy.lease_term_max_ns + site.policy.renew_period_ns // 2) / SECOND
    (lease,) = session.acquire("d", hold_s_max=hold_s)
    site.both()
    site.renews(session)
    assert lease.second is not None
    assert lease.until_ns is not None
    assert max(lease.own_expiry_ns, lease.second.expiry_ns) <= lease.until_ns


# The half from the shard that comes is given back with a watermark above all that the one that left has said.
def test_who_reads_by_hints_after_a_move_finds_what_was_written_before_it(site: MovingSite) -> None:
    session = site.session()
    mine = session.acquire("d", timeout_s=0)
    (lease,) = mine
    assert isinstance(publish(session, mine, b"alone"), Committed)
    site.both()
    for _ in range(6):
        site.renews(session)
    site.map = site.new_map
    assert site.old.go_by(site.new_map)
    end = site.old.stop_orderly()
    assert isinstance(end, StoppedOrderly)
    assert isinstance(publish(session, mine, b"both"), Committed)
    assert lease.watermark_ns is not None
    assert lease.watermark_ns > end.floor_ns
    session.relinquish([lease])
    assert site.new.go_by(site.new_map, Beginning(end.floor_ns, end.settle_to_ns))
    reader = site.session()
    leases = reader.acquire("d", timeout_s=0)
    assert [each.payload for each in reader.read_domains(LOG, under=leases)] == [b"alone", b"both"]


MUTANTS = {
    "a right that had lapsed is had again unseen": Mutant(
        ceiling, "CeilingChain._link_and_look", "self._time.now().latest >= self._lasts_ns()", "not self._lasts_ns()",
        test_shard_that_stood_still_beyond_its_ceiling_has_seen_the_move_before_it_grants_again,
    ),
    "what was seen is gone by at the next look for a map": Mutant(
        shard_module, "Shard._begin_turn", "newest is not None", "False",
        test_shard_that_stood_still_beyond_its_ceiling_has_seen_the_move_before_it_grants_again,
    ),
    "a map that is damaged ends the shard": Mutant(
        ceiling, "CeilingChain._link_and_look", "TenureError", "Environment",
        test_right_that_had_lapsed_counts_once_the_newest_map_was_read,
    ),
    "what was in doubt stays with the half that it was written under": Mutant(
        held, "Lease.standing", "first.second is not self", "first.second is None",
        test_messages_in_doubt_are_counted_under_the_half_that_has_gone_on_and_moves_again, (False,),
    ),
}  # fmt: skip


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_step_is_noticed(name: str, site: MovingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, MUTANTS[name], {"site": site})
