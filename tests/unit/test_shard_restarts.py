"""A shard that stops for a restart: whoever takes its file over goes on with everything, once; else it begins empty."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from appliance.formats.framing import pieces
from appliance.formats.lease import Mode, Phase
from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import Resumed, head_digest, open_block
from appliance.lease import store as store_module
from appliance.lease.ceiling import CeilingChain, Deposed, Extended, InDoubt, ShardIdentity
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.whole_shard import Suspension
from appliance.lease.wire import Attend, Denied, Inspect, LeasePage, Over, Recalled, Revoke, Unavailable
from tests.support.sessions import begin, prolong, session_of, stated, under
from tests.support.shards import (
    HOLDER,
    POLICY,
    RIVAL,
    ListLedger,
    World,
    acquire,
    ceiling_of,
    granted,
    one,
    relinquish,
    renew,
    repeated,
)
from tests.support.values import CLUSTER, NODE, WITNESS_KEY
from timeagent.canonical import decode, encode
from timeagent.errors import Damaged
from timeagent.units import SECOND

if TYPE_CHECKING:
    from appliance.lease.ceiling import Extension

BOOT = "this boot"


def file_of(world: World) -> Path:
    return Path(world.stores[-1]._connection.filename)


def suspended(world: World, shard: Shard) -> Suspension:
    """Stop it for a restart, as its host does; return what is left beside its file."""
    said = shard.suspend(BOOT)
    assert isinstance(said, Suspension)
    store = world.stores[-1]
    assert store.leave(encode(said))
    return said


def successor(world: World, said: Suspension, store: LeaseStore) -> Shard:
    """A process that goes on, before it has begun."""
    world.stores.append(store)
    world.ledgers.append(ListLedger())
    identity = said.identity("")
    return Shard(
        identity,
        ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE,)),
        world.policy,
        store=store,
        chain=CeilingChain(world.chain, world.time, WITNESS_KEY, world.policy, identity),
        time=world.time,
        signer=WITNESS_KEY,
        ledger=world.ledger,
        randomness=world.chance,
    )


def taken(world: World, path: Path) -> tuple[Shard, Suspension]:
    found = LeaseStore.taken_over(path)
    assert found is not None
    said = decode(Suspension, found[1])
    return successor(world, said, found[0]), said


def restarted(world: World, shard: Shard) -> Shard:
    path = file_of(world)
    suspended(world, shard)
    world.stores.pop().close()
    after, said = taken(world, path)
    assert isinstance(after.resume(said), Extended)
    return after


def test_leases_are_renewed_and_given_back_by_who_goes_on_in_the_same_incarnation(world: World) -> None:
    shard = world.started()
    first = granted(shard, acquire(world, "a"))
    shared = granted(shard, acquire(world, "b", mode=Mode.S))
    given = granted(shard, acquire(world, "c"))
    assert isinstance(one(shard, relinquish(world, given, written := world.time.midpoint_ns + 7)), Over)
    world.sign_held(shard)
    before = world.ledger.blocks()
    after = restarted(world, shard)
    again = granted(after, renew(world, first))
    assert (again.correlation_id, again.fence, again.floor_ns) == (first.correlation_id, first.fence, first.floor_ns)
    assert isinstance(one(after, acquire(world, "a", holder=RIVAL)), Denied)
    assert granted(after, acquire(world, "b", mode=Mode.S, holder=RIVAL)).fence > shared.fence
    assert granted(after, acquire(world, "c", holder=RIVAL)).floor_ns == written
    head = world.ledger.blocks()[0].batch_head("next")
    assert head.previous == head_digest(before[-1].head)
    assert head.sequence == len(before) + 1
    assert head.incarnation == before[-1].batch_head("last").incarnation


def test_request_has_the_same_answer_before_and_after(world: World) -> None:
    shard = world.started()
    request = acquire(world, "a")
    first = one(shard, request)
    after = restarted(world, shard)
    repeated(first, one(after, request))


def test_new_ceiling_is_linked_before_the_first_grant(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    records = max(world.chain.records)
    after = restarted(world, shard)
    assert max(world.chain.records) == records + 1
    assert granted(after, acquire(world, "b")).expiry_ns <= ceiling_of(world)


def test_session_leases_go_on_with_all_that_is_under_them(world: World) -> None:
    shard = world.started()
    asked = begin(world)
    session = stated(one(shard, asked))
    lease = granted(shard, under(world, session, "a"))
    after = restarted(world, shard)
    assert stated(one(after, asked)).session_id == session.session_id
    world.time.advance(SECOND)
    renewed = one(after, prolong(world, session))
    assert stated(renewed).expiry_ns > session.expiry_ns
    assert renewed.leases == 1  # type: ignore[union-attr]
    assert isinstance(one(after, acquire(world, "a", holder=RIVAL)), Denied)
    assert isinstance(one(after, relinquish(world, lease)), Over)


def test_leases_of_several_holders_stay_theirs(world: World) -> None:
    shard = world.started()
    for domain, holder in (("a", HOLDER), ("b", RIVAL)):
        granted(shard, acquire(world, domain, holder=holder))
    after = restarted(world, shard)
    page = one(after, Inspect(after_domain="", leases_max=9))
    assert isinstance(page, LeasePage)
    assert [(each.domain, each.holder) for each in page.leases] == [("a", HOLDER), ("b", RIVAL)]
    assert page.numbers.leases == 2


def test_what_is_tentative_is_withdrawn(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a", phase=Phase.TENTATIVE))
    kept = granted(shard, acquire(world, "b"))
    after = restarted(world, shard)
    assert granted(after, acquire(world, "a", holder=RIVAL)).fence
    assert granted(after, renew(world, kept)).fence == kept.fence


def test_recalls_go_on_with_their_numbers_and_revocations_are_told_still(world: World) -> None:
    shard = world.started()
    lease, other = granted(shard, acquire(world, "a")), granted(shard, acquire(world, "b"))
    granted(shard, acquire(world, "c"))
    assert isinstance(one(shard, acquire(world, "a", holder=RIVAL)), Denied)
    told = one(shard, attend(world, b"", 0))
    assert isinstance(told, Recalled)
    by = revoke(world, "b", other.correlation_id)
    one(shard, by)
    after = restarted(world, shard)
    assert isinstance(one(after, acquire(world, "a", holder=RIVAL)), Denied)
    again = one(after, attend(world, told.run, told.heard))
    assert isinstance(again, Recalled)
    assert [each.correlation_id for each in again.wanted] == [lease.correlation_id]
    over = one(after, renew(world, other))
    assert isinstance(over, Over)
    assert over.revoked is not None
    assert over.revoked.by == by.by


def attend(world: World, run: bytes, heard: int) -> Attend:
    return Attend(request_id=world.request_id(), holder=HOLDER, run=run or bytes(8), heard=heard, wait_ns=0)


def revoke(world: World, domain: str, correlation_id: bytes) -> Revoke:
    return Revoke(request_id=world.request_id(), domain=domain, correlation_id=correlation_id, by=RIVAL)


def test_evicted_domains_have_the_raised_floor(world: World) -> None:
    shard = world.started()
    shard._eviction.floor_ns, shard._eviction.settle_to_ns = (floor := world.time.midpoint_ns + SECOND), 5
    granted(shard, acquire(world, "a"))
    after = restarted(world, shard)
    lease = granted(after, acquire(world, "new"))
    assert (lease.floor_ns, lease.settle_to_ns) == (floor, 5)


# One of a later map may begin above what its own chain says.
def test_rows_are_read_by_the_numbers_with_which_the_run_began(world: World) -> None:
    shard = world.started()
    shard._eviction.begin(floor := world.time.midpoint_ns - SECOND, floor - 3)
    lease = granted(shard, acquire(world, "a"))
    after = restarted(world, shard)
    again = granted(after, renew(world, lease))
    assert (again.floor_ns, again.settle_to_ns) == (lease.floor_ns, lease.settle_to_ns) == (floor, floor - 3)


def test_who_stops_grants_nothing_more(world: World) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    suspended(world, shard)
    for request in (acquire(world, "b"), renew(world, lease)):
        answer = one(shard, request)
        assert isinstance(answer, Unavailable)
        assert answer.code == "stopping"


def test_file_is_found_once(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    path = file_of(world)
    suspended(world, shard)
    found = LeaseStore.taken_over(path)
    assert found is not None
    assert LeaseStore.taken_over(path) is None
    found[0].close()
    assert LeaseStore.taken_over(path) is None


def test_run_that_went_on_can_stop_again(world: World) -> None:
    lease = granted(shard := world.started(), acquire(world, "a"))
    for turn in range(3):
        shard = restarted(world, shard)
        assert granted(shard, renew(world, lease)).fence == lease.fence
        assert granted(shard, acquire(world, f"b{turn}", holder=RIVAL)).holder == RIVAL
    assert world.stores[-1].rows.named == 2


def test_file_of_a_run_that_was_killed_is_not_found(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    world.stores[-1].write_some()
    assert LeaseStore.taken_over(file_of(world)) is None


def test_copy_of_the_file_is_nobodys(world: World, tmp_path: Path) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    suspended(world, shard)
    copy = tmp_path / "copy.db"
    shutil.copy(file_of(world), copy)
    assert LeaseStore.taken_over(copy) is None
    assert LeaseStore.taken_over(file_of(world)) is not None


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM entry",
        "UPDATE entry SET expiry_ns = expiry_ns + 1",
        "DELETE FROM holder",
        "DELETE FROM session",
        "PRAGMA user_version = 99",
    ],
)
def test_file_that_is_not_what_was_left_is_nobodys(world: World, statement: str) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    session_of(shard, world)
    suspended(world, shard)
    world.stores[-1]._connection.execute(statement)
    assert LeaseStore.taken_over(file_of(world)) is None


@pytest.mark.parametrize("keep", [0, 100, 4096, 9000])
def test_file_that_is_cut_off_is_nobodys(world: World, keep: int) -> None:
    shard = world.started()
    for number in range(40):
        granted(shard, acquire(world, f"{number}" * 40))
    suspended(world, shard)
    path = file_of(world)
    data = path.read_bytes()
    world.stores.pop().close()
    path.write_bytes(data[:keep] + b"rot" * 50)
    assert LeaseStore.taken_over(path) is None
    path.unlink()
    assert LeaseStore.taken_over(path) is None


def test_nothing_is_left_where_the_tmpfs_has_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WRITE_MIN", 4)
    shard = world.started()
    world.leave_room(0)
    for number in range(40):
        granted(shard, acquire(world, f"{number}" * 40))
    said = shard.suspend(BOOT)
    assert isinstance(said, Suspension)
    assert not world.stores[-1].leave(encode(said))


# -- who goes on -------------------------------------------------------------------------------------------------------


def left(world: World) -> tuple[Shard, Suspension]:
    """A run that stopped with a lease out, and whoever is about to go on."""
    shard = world.started()
    granted(shard, acquire(world, "a"))
    path = file_of(world)
    suspended(world, shard)
    world.stores.pop().close()
    return taken(world, path)


def failing(extension: Extension) -> str:
    assert isinstance(extension, Deposed), extension
    return extension.reason


def test_nobody_goes_on_once_another_has_linked_a_record(world: World) -> None:
    after, said = left(world)
    assert isinstance(world.shard("other").start(), Extended)
    assert "not the one with which it stopped" in failing(after.resume(said))


def test_nobody_goes_on_from_a_chain_that_is_gone(world: World) -> None:
    after, said = left(world)
    world.chain.records.clear()
    assert "not the one with which it stopped" in failing(after.resume(said))


def test_of_two_machines_with_the_same_file_one_goes_on(world: World) -> None:
    after, said = left(world)
    clone = successor(world, said, LeaseStore(world.path / "clone.db"))
    assert isinstance(after.resume(said), Extended)
    assert isinstance(clone.resume(said), Deposed)
    assert after.over() is None


# Two machines that were cloned a moment ago may sign the very same bytes.
def test_of_two_who_link_the_same_bytes_one_goes_on(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    said = suspended(world, shard)
    now, token = world.time.now(), world.time.token()
    clock: Any = SimpleNamespace(now=lambda: now, token=lambda: token)
    one_, other = (CeilingChain(world.chain, clock, WITNESS_KEY, world.policy, said.identity("")) for _ in range(2))
    world.chain.faults["link"] = ["lost"]
    assert isinstance(other.resume(said.ceiling, said.pending), InDoubt)
    assert isinstance(one_.resume(said.ceiling, said.pending), Extended)
    assert other.standing[1] == one_.standing[0], "the very same bytes"
    assert "is another's" in failing(other.resume(said.ceiling, said.pending))


def test_lost_reply_of_the_link_is_no_right(world: World) -> None:
    after, said = left(world)
    world.chain.faults["link"] = ["done"]
    assert isinstance(after.resume(said), InDoubt)
    assert "is another's" in failing(after.resume(said))


def test_link_that_was_not_done_is_done_again(world: World) -> None:
    after, said = left(world)
    world.chain.faults["link"] = ["lost"]
    world.chain.faults["list"] = ["lost"]
    assert isinstance(after.resume(said), InDoubt)
    assert isinstance(after.resume(said), InDoubt)
    assert isinstance(after.resume(said), Extended)


def test_link_that_was_won_is_won_though_the_look_failed(world: World) -> None:
    after, said = left(world)
    world.chain.faults["list"] = [None, "lost"]
    assert isinstance(after.resume(said), InDoubt)
    assert isinstance(after.resume(said), Extended)


@pytest.mark.parametrize("linked", [False, True])
def test_record_in_doubt_of_the_run_before_may_be_there_or_not(world: World, *, linked: bool) -> None:
    shard = world.started()
    lease = granted(shard, acquire(world, "a"))
    world.time.advance(2 * SECOND)
    world.chain.faults["link"] = ["done" if linked else "lost"]
    shard.housekeeping()
    after = restarted(world, shard)
    assert granted(after, renew(world, lease)).fence == lease.fence


def test_clock_behind_what_was_signed_is_waited_for(world: World) -> None:
    after, said = left(world)
    world.time.midpoint_ns -= 1
    waits = after.resume(said)
    assert isinstance(waits, InDoubt)
    assert "1 ns behind" in waits.reason
    world.time.advance(1)
    assert isinstance(after.resume(said), Extended)


def test_record_that_a_shard_links_last_counts_as_signed(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    world.time.advance(SECOND)
    said = shard.suspend(BOOT)
    assert isinstance(said, Suspension)
    assert said.signed_ns >= world.time.midpoint_ns


def test_what_is_anothers_is_named(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    said = suspended(world, shard)
    fresh = ShardIdentity(CLUSTER, 1, 0, NODE, bytes(8))
    assert said.difference(fresh, BOOT) is None
    assert "begun anew" in (said.difference(fresh, "another") or "")
    for field, value in (("node", "n9"), ("cluster_id", bytes(16)), ("map_number", 2), ("shard", 5)):
        other = msgspec.structs.replace(said, **{field: value})
        assert str(getattr(said, field).hex() if field == "cluster_id" else getattr(said, field)) in (
            other.difference(fresh, BOOT) or ""
        )


def test_ledger_has_to_end_with_the_batch_that_was_the_last(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    said = suspended(world, shard)
    last = world.ledger.data[-1]
    assert len(last) == said.block_bytes
    assert said.ledger_difference(last) is None
    assert said.ledger_difference(None) == "its ledger does not end where it did"
    for other in (world.ledger.data[0], last[:-1], b"", last + last):
        assert said.ledger_difference(other) == "the last block of its ledger is another"
    (piece,), _ = pieces(last)
    assert head_digest(open_block(piece, "").head) == said.head


def test_what_is_said_is_read_back_and_nothing_else_is(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    said = suspended(world, shard)
    assert decode(Suspension, encode(said)) == said
    with pytest.raises(Damaged):
        decode(Suspension, encode(said)[:-1])


def test_deposed_shard_leaves_nothing(world: World) -> None:
    shard = world.started()
    granted(shard, acquire(world, "a"))
    assert isinstance(world.shard("other").start(), Extended)
    world.time.advance(POLICY.ceiling_period_ns)
    shard.housekeeping()
    assert isinstance(shard.suspend(BOOT), Deposed)


# What it signs first comes after what was signed last, also where the clock steps back behind the look at it.
@pytest.mark.parametrize("verb", ["list", "link"])
def test_clock_that_steps_back_while_a_shard_goes_on_is_waited_for(
    world: World, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    after, said = left(world)
    name = {"list": "list_afresh", "link": "link"}[verb]
    step = getattr(world.chain, name)

    def steps_back(*given: object) -> object:
        world.time.midpoint_ns = said.signed_ns - 1
        return step(*given)

    monkeypatch.setattr(world.chain, name, steps_back)
    assert isinstance(after.resume(said), Extended)
    monkeypatch.undo()
    assert world.ledger.blocks() == []
    refused = one(after, acquire(world, "z"))
    assert isinstance(refused, Unavailable)
    assert refused.code == "bad-time"
    assert "signed at" in refused.message
    world.time.advance(1)
    granted(after, acquire(world, "z"))
    (resumed,) = [each for each in world.ledger.blocks()[0].decoded("first") if isinstance(each, Resumed)]
    assert resumed.since_ns == said.signed_ns
