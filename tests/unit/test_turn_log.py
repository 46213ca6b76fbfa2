"""Turns that are kept beyond a crash: whoever goes on knows what was told, and two never go on with one log."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.formats.chains import open_ceiling
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.shardmap import ShardMap
from appliance.formats.witness import CeilingCopy, Resumed, head_digest
from appliance.lease import turn_log
from appliance.lease.ceiling import CeilingChain, Extended, ShardIdentity
from appliance.lease.domain import Free, State, Taken
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.turn_log import LogLost, TurnChanges, TurnLog
from appliance.lease.whole_shard import Suspension
from appliance.lease.wire import Attend, Denied, Over, Recalled, Revoke
from tests.support.etcd import DONE, LATE, LOST, MemoryKeyValues
from tests.support.sessions import begin, drop, prolong, stated, under
from tests.support.shards import (
    HOLDER,
    RIVAL,
    TERM,
    ListLedger,
    World,
    acquire,
    granted,
    one,
    relinquish,
    renew,
    repeated,
    upgrade,
)
from tests.support.values import CLUSTER, NODE, WITNESS_KEY
from timeagent.canonical import decode, encode
from timeagent.errors import Damaged, ShardUnavailable
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from appliance.formats.witness import Witness
    from appliance.lease.wire import Request

MAP = ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE,))
PATIENCE = 300 * MS


class Kept:
    """A world whose shard keeps its turns, run after run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = MemoryKeyValues()
        self.log = self.new_log()
        self.written = 0

    def new_log(self) -> TurnLog:
        world = self.world
        return TurnLog(self.store, CLUSTER, 0, world.chance.randbytes(16), world.time, PATIENCE)

    def _shard(self, identity: ShardIdentity) -> Shard:
        world, log = self.world, self.log
        world.ledgers.append(ListLedger())
        ledger = world.ledger
        log.written = lambda: min(self.written, len(ledger.data))
        return Shard(
            identity,
            MAP,
            world.policy,
            store=world.stores[-1],
            chain=CeilingChain(world.chain, world.time, WITNESS_KEY, world.policy, identity),
            time=world.time,
            signer=WITNESS_KEY,
            ledger=ledger,
            randomness=world.chance,
            log=log,
        )

    def _store(self) -> LeaseStore:
        stores = self.world.stores
        stores.append(LeaseStore(self.world.path / f"shard-{len(stores)}.db"))
        return stores[-1]

    def started(self) -> Shard:
        self.log = self.new_log()
        self.log.found()
        self.log.take(0)
        self._store()
        shard = self._shard(ShardIdentity(CLUSTER, 1, 0, NODE, self.world.chance.randbytes(8)))
        assert isinstance(shard.start(), Extended)
        return shard

    def taken(self) -> tuple[Shard, Suspension]:
        """What the process that comes next finds, before it has linked anything."""
        self.log = self.new_log()
        head = self.log.found()
        assert head is not None
        newest = self.world.chain.records[max(self.world.chain.records)]
        record = open_ceiling(newest, "the newest")[0]
        said = decode(Suspension, head.said)
        assert head.difference(said, record) is None
        self.log.take(record.number)
        self.log.load(self._store(), said)
        said = msgspec.structs.replace(said, ceiling=newest)
        return self._shard(said.identity("")), said

    def gone_on(self) -> Shard:
        """Let the process die, and another go on."""
        shard, said = self.taken()
        self.world.ledger.data += self.log.blocks()
        assert isinstance(shard.resume(said), Extended)
        return shard


@pytest.fixture
def kept(world: World) -> Kept:
    return Kept(world)


def states(store: LeaseStore) -> dict[str, State]:
    return {each: state for each in store.remembered() if (state := store.read(each)) is not None}


def out(store: LeaseStore) -> dict[str, State]:
    return {each: state for each, state in states(store).items() if isinstance(state, Taken)}


# -- who goes on -------------------------------------------------------------------------------------------------------


def test_leases_go_on_after_a_crash_in_the_same_incarnation(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    first = granted(shard, acquire(world, "a"))
    shared = granted(shard, acquire(world, "b", mode=Mode.S))
    before = world.ledger.blocks()
    was = out(world.stores[-1])
    after = kept.gone_on()
    assert out(world.stores[-1]) == was
    assert isinstance(one(after, acquire(world, "a", holder=RIVAL)), Denied)
    again = granted(after, renew(world, first))
    assert (again.correlation_id, again.fence, again.floor_ns) == (first.correlation_id, first.fence, first.floor_ns)
    assert granted(after, acquire(world, "b", mode=Mode.S, holder=RIVAL)).fence > shared.fence
    blocks = world.ledger.blocks()
    assert [each.head for each in blocks[: len(before)]] == [each.head for each in before]
    head = blocks[len(before)].batch_head("next")
    assert (head.previous, head.sequence) == (head_digest(before[-1].head), len(before) + 1)
    assert head.incarnation == before[-1].batch_head("last").incarnation
    assert any(isinstance(each, Resumed) for each in blocks[len(before)].decoded("next"))


def test_domain_that_was_given_back_is_free_at_once_above_what_was_written(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    lease, plain = granted(shard, acquire(world, "a")), granted(shard, acquire(world, "b"))
    granted(shard, acquire(world, "c"))
    written = lease.floor_ns + 7
    world.time.advance(SECOND)
    assert isinstance(one(shard, relinquish(world, lease, world.time.midpoint_ns)), Over)
    assert isinstance(one(shard, relinquish(world, plain)), Over)
    written = world.time.midpoint_ns
    after = kept.gone_on()
    assert set(states(world.stores[-1])) == {"c"}
    for domain, before in (("a", lease), ("b", plain)):
        now = granted(after, acquire(world, domain, holder=RIVAL))
        assert now.floor_ns >= written
        assert now.fence > before.fence
        assert now.settle_to_ns == 0


def test_lease_whose_holder_died_expires_as_it_did_before(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    lease = granted(shard, acquire(world, "a"))
    after = kept.gone_on()
    denied = one(after, acquire(world, "a", holder=RIVAL))
    assert isinstance(denied, Denied)
    assert denied.until_ns == lease.expiry_ns
    world.time.advance(TERM + SECOND)
    next_lease = granted(after, acquire(world, "a", holder=RIVAL))
    assert (next_lease.floor_ns, next_lease.settle_to_ns) == (lease.expiry_ns, lease.expiry_ns)


# Its holder may write until the expiry, though the domain is free.
def test_domain_of_a_revoked_lease_keeps_its_settle_to_and_others_are_not_delayed(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    lease = granted(shard, acquire(world, "a"))
    by = Revoke(request_id=world.request_id(), domain="a", correlation_id=lease.correlation_id, by=RIVAL)
    one(shard, by)
    after = kept.gone_on()
    assert isinstance(world.stores[-1].read("a"), Free)
    now = granted(after, acquire(world, "a", holder=RIVAL))
    assert (now.floor_ns, now.settle_to_ns) == (lease.expiry_ns, lease.expiry_ns)
    assert granted(after, acquire(world, "b")).settle_to_ns < lease.expiry_ns


def test_such_a_domain_is_forgotten_when_that_is_past(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    lease = granted(shard, acquire(world, "a"))
    one(shard, Revoke(request_id=world.request_id(), domain="a", correlation_id=lease.correlation_id, by=RIVAL))
    world.time.advance(2 * TERM)
    granted(shard, acquire(world, "b"))
    after = kept.gone_on()
    assert set(states(world.stores[-1])) == {"b"}
    assert granted(after, acquire(world, "a")).floor_ns >= lease.expiry_ns


def test_request_has_the_same_answer_before_and_after(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    request = acquire(world, "a")
    first = one(shard, request)
    repeated(first, one(kept.gone_on(), request))


def test_session_leases_go_on_with_all_that_is_under_them(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    session, dropped = stated(one(shard, begin(world))), stated(one(shard, begin(world)))
    lease = granted(shard, under(world, session, "a"))
    granted(shard, under(world, dropped, "b"))
    written = world.time.midpoint_ns + 5
    one(shard, drop(world, dropped, written))
    after = kept.gone_on()
    world.time.advance(SECOND)
    renewed = one(after, prolong(world, session))
    assert stated(renewed).expiry_ns > session.expiry_ns
    assert renewed.leases == 1  # type: ignore[union-attr]
    assert isinstance(one(after, acquire(world, "a", holder=RIVAL)), Denied)
    assert isinstance(one(after, relinquish(world, lease)), Over)
    assert granted(after, acquire(world, "b", holder=RIVAL)).floor_ns == written
    gone = kept.gone_on()
    assert world.stores[-1].leases == 1
    assert dropped.session_id not in world.stores[-1].sessions
    assert granted(gone, acquire(world, "a", holder=RIVAL)).fence > lease.fence


def test_what_is_tentative_is_withdrawn_by_who_goes_on(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    tentative = granted(shard, acquire(world, "a", phase=Phase.TENTATIVE))
    after = kept.gone_on()
    assert granted(after, acquire(world, "a", holder=RIVAL)).fence > tentative.fence
    assert isinstance(one(after, upgrade(world, tentative)), Over)


# Some were told after the last turn that changed anything.
def test_recalls_are_numbered_above_all_that_were_told(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    for domain in ("a", "b"):
        granted(shard, acquire(world, domain))
    run = shard._identity.incarnation
    heard = 0
    for domain in ("a", "b"):
        assert isinstance(one(shard, acquire(world, domain, holder=RIVAL)), Denied)
        told = one(shard, attend(world, run, heard))
        assert isinstance(told, Recalled)
        heard = told.heard
    after = kept.gone_on()
    assert isinstance(one(after, acquire(world, "a", holder=RIVAL)), Denied)
    told = one(after, attend(world, run, heard))
    assert isinstance(told, Recalled)
    assert [each.domain for each in told.wanted] == ["a"]


def attend(world: World, run: bytes, heard: int) -> Attend:
    return Attend(request_id=world.request_id(), holder=HOLDER, run=run, heard=heard, wait_ns=0)


def test_nothing_is_signed_behind_what_was_signed_before(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    granted(shard, acquire(world, "a"))
    after, said = kept.taken()
    with world.time.set_back(SECOND):
        assert "behind what was signed last" in after.resume(said).reason  # type: ignore[union-attr]
    assert isinstance(after.resume(said), Extended)


# -- what is told is kept ----------------------------------------------------------------------------------------------


def unanswered(shard: Shard, *requests: Request) -> None:
    with pytest.raises(LogLost):
        shard.turn(requests)
    assert shard.over() is not None


def test_turn_without_an_answer_from_the_store_is_answered_to_nobody(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    lease = granted(shard, acquire(world, "a"))
    blocks = len(world.ledger.data)
    kept.store.down = True
    unanswered(shard, acquire(world, "b"), relinquish(world, lease))
    assert len(world.ledger.data) == blocks
    kept.store.down = False
    unanswered(shard, acquire(world, "c"))  # never again
    after = kept.gone_on()
    assert isinstance(one(after, acquire(world, "a", holder=RIVAL)), Denied)
    assert granted(after, acquire(world, "b", holder=RIVAL))


@pytest.mark.parametrize("faults", [[LOST], [DONE], [LATE], [DONE, LOST, DONE], [LATE, LOST, DONE]])
def test_transaction_whose_answer_is_lost_is_asked_for_again_and_done_once(kept: Kept, faults: list[str]) -> None:
    world, shard = kept.world, kept.started()
    kept.store.script = list(faults)
    lease = granted(shard, acquire(world, "a"))
    granted(shard, acquire(world, "b"))
    for each in kept.store.late:
        assert not kept.store.do(*each)
    after = kept.gone_on()
    assert granted(after, renew(world, lease)).fence == lease.fence
    assert set(out(world.stores[-1])) == {"a", "b"}


@pytest.mark.parametrize("fault", [DONE, LATE, LOST])
def test_what_is_in_doubt_when_a_run_ends_counts_as_it_was_found(kept: Kept, fault: str) -> None:
    world, shard = kept.world, kept.started()
    request = acquire(world, "a")
    kept.store.script = [fault] * 100
    unanswered(shard, request)
    kept.store.script = []
    heads = [head_digest(each.head) for each in world.ledger.blocks()]
    after = kept.gone_on()
    assert not any(kept.store.do(*each) for each in kept.store.late)
    assert (set(out(world.stores[-1])) == {"a"}) is (fault == DONE)
    assert granted(after, request)
    blocks = world.ledger.blocks()
    heads = [bytes(32), *(head_digest(each.head) for each in blocks)]
    assert [each.batch_head("").previous for each in blocks] == heads[:-1]  # one chain, without a gap


def test_two_runs_never_both_go_on(kept: Kept) -> None:
    world, first = kept.world, kept.started()
    granted(first, acquire(world, "a"))
    second = kept.gone_on()
    unanswered(first, acquire(world, "b"))
    assert "taken its log over" in str(first.over())
    assert granted(second, acquire(world, "b", holder=RIVAL))
    third = kept.started()
    world.time.advance(SECOND)
    unanswered(second, acquire(world, "c"))
    assert granted(third, acquire(world, "c"))


def test_taking_over_is_not_done_twice_by_two_that_found_the_same(kept: Kept) -> None:
    granted(kept.started(), acquire(kept.world, "a"))
    one_log, other = kept.new_log(), kept.new_log()
    for each in (one_log, other):
        assert each.found() is not None
    one_log.take(1)
    with pytest.raises(LogLost):
        other.take(1)


def test_nobody_begins_while_the_store_is_down(kept: Kept) -> None:
    kept.store.down = True
    with pytest.raises(ShardUnavailable):
        kept.new_log().found()


# -- what nobody goes on with ------------------------------------------------------------------------------------------


def difference(kept: Kept) -> str | None:
    head = kept.new_log().found()
    assert head is not None
    newest = open_ceiling(kept.world.chain.records[max(kept.world.chain.records)], "the newest")[0]
    return head.difference(decode(Suspension, head.said), newest)


def test_what_another_has_linked_a_record_after_is_nobodys(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    granted(shard, acquire(world, "a"))
    assert difference(kept) is None
    assert isinstance(world.shard("other").start(), Extended)
    assert "not that of a run" in str(difference(kept))


def test_what_ended_in_good_order_is_nobodys(kept: Kept) -> None:
    shard = kept.started()
    shard.stop_orderly()
    assert "not that of a run" in str(difference(kept))


# A store that was set up again from a copy has lost turns; some were told.
def test_store_in_which_turns_are_missing_is_found_out_by_the_chain(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    granted(shard, acquire(world, "a"))
    copy = dict(kept.store.pairs)
    for _ in range(2):
        world.time.advance(world.policy.ceiling_period_ns + SECOND)
        shard.housekeeping()
    assert difference(kept) is None
    kept.store.pairs = copy
    assert "turns that were kept are missing" in str(difference(kept))


def test_crash_between_a_record_and_its_turn_is_no_difference(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    granted(shard, acquire(world, "a"))
    world.time.advance(world.policy.ceiling_period_ns + SECOND)
    kept.store.down = True
    with pytest.raises(LogLost):
        shard.housekeeping()
    kept.store.down = False
    for _ in range(3):  # nor are runs that link theirs, and no more
        after, said = kept.taken()
        kept.store.down = True
        with pytest.raises(LogLost):
            after.resume(said)
        kept.store.down = False
    assert granted(kept.gone_on(), acquire(world, "b"))
    copies = [each for each in world.ledger.entries() if isinstance(each, CeilingCopy)]
    assert open_ceiling(copies[-1].record, "")[0].number == max(world.chain.records)


def test_log_without_its_last_turn_is_damaged(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    granted(shard, acquire(world, "a"))
    for key in [each for each in kept.store.pairs if b"/turn/" in each]:
        del kept.store.pairs[key]
    with pytest.raises(Damaged, match="ends with turn 0"):
        kept.taken()


# Another release may write another form; what cannot be read is as if there were nothing.
def test_head_of_another_form_is_nobodys_and_one_that_cannot_be_read_can_be_taken(kept: Kept) -> None:
    granted(kept.started(), acquire(kept.world, "a"))
    head = kept.new_log().found()
    assert head is not None
    newest = open_ceiling(kept.world.chain.records[max(kept.world.chain.records)], "the newest")[0]
    other = msgspec.structs.replace(head, form=99)
    assert "form 99" in str(other.difference(decode(Suspension, head.said), newest))
    (guard,) = [each for each in kept.store.pairs if each.endswith(b"/head")]
    kept.store.pairs[guard] = kept.store.pairs[guard][0], b"rot"
    log = kept.new_log()
    with pytest.raises(Damaged):
        log.found()
    log.take(0)
    assert kept.new_log().found() is not None


@pytest.mark.parametrize("state", [b"\x91\xa4rot!", b"\x91\xa2\xff\xff"])
def test_state_that_cannot_be_read_is_damage(kept: Kept, state: bytes) -> None:
    granted(kept.started(), acquire(kept.world, "a"))
    changes = TurnChanges(domains=(("a", state),), sessions=())
    (key,) = [each for each in kept.store.pairs if b"/turn/" in each]
    kept.store.pairs[key] = 1, encode(changes)
    with pytest.raises(Damaged, match="state of a domain"):
        kept.taken()


def test_what_another_has_put_among_the_turns_and_blocks_is_no_part_of_them(kept: Kept) -> None:
    world = kept.world
    lease = granted(kept.started(), acquire(world, "a"))
    for key in [each for each in kept.store.pairs if b"/turn/" in each or b"/block/" in each]:
        for name in (b"", b"!", b"-1", key.rpartition(b"/")[0][-16:] + b"/x"):
            kept.store.pairs[key[: -len(b"0123456789abcdef/01234567")] + name] = 1, b"another's"
    assert granted(kept.gone_on(), renew(world, lease)).fence == lease.fence


# -- how much it is ----------------------------------------------------------------------------------------------------


def test_what_is_out_is_found_whatever_the_turns_and_the_log_stays_short(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    chance = random.Random(3)
    leases: dict[str, Witness] = {}
    for turn in range(600):
        if turn % 100 == 99:
            shard = kept.gone_on()
        asked: list[Request] = []
        for domain in {f"d{chance.randrange(40)}" for _ in range(chance.randrange(1, 4))}:
            lease = leases.pop(domain, None)
            if lease is None:
                leases[domain] = granted(shard, acquire(world, domain))
            elif chance.random() < 0.5:
                leases[domain] = lease
                asked.append(renew(world, lease))
            else:
                asked.append(relinquish(world, lease))
        shard.turn(asked)
        kept.written = len(world.ledger.data)
        world.time.advance(5 * MS)
        if turn % 50 == 0:
            was = out(world.stores[-1])
            reader = kept.new_log()
            head = reader.found()
            assert head is not None
            reader._turn = head.turn
            found = LeaseStore(world.path / "read.db")
            reader.load(found, decode(Suspension, head.said))
            assert out(found) == was
            assert found.leases == len(was)
            found.close()
    turns = sum(b"/turn/" in each for each in kept.store.pairs)
    blocks = sum(b"/block/" in each for each in kept.store.pairs)
    assert turns < 40
    assert blocks <= 2
    for _ in range(40):  # what is renewed by nobody does not keep the others there
        granted(shard, renew(world, next(iter(leases.values()))))
    assert sum(b"/turn/" in each for each in kept.store.pairs) < 20


def test_turn_that_is_larger_than_a_transaction_is_kept_whole_or_not_at_all(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_log, "PART_BYTES", 100)
    monkeypatch.setattr(turn_log, "REQUEST_BYTES", 300)
    world, shard = kept.world, kept.started()
    granted(shard, acquire(world, "a"))
    before = kept.store.commits
    shard.turn([acquire(world, f"b{n}") for n in range(20)])
    assert kept.store.commits > before + 10
    kept.store.script = [None, None, None, *[LOST] * 100]
    unanswered(shard, *[acquire(world, f"c{n}" * 9) for n in range(20)])
    kept.store.script = []
    after = kept.gone_on()
    assert set(out(world.stores[-1])) == {"a", *(f"b{n}" for n in range(20))}
    granted(after, acquire(world, "d"))
    kept.gone_on()
    assert "d" in out(world.stores[-1])


def test_blocks_stay_until_the_ledger_has_them(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    leases = [granted(shard, acquire(world, f"{n}")) for n in range(3)]
    assert len(kept.log.blocks()) == len(world.ledger.data) == 4
    kept.written = 3
    one(shard, renew(world, leases[0]))
    assert kept.log.blocks() == world.ledger.data[3:]


def test_ended_lease_is_told_as_unknown_by_who_goes_on(kept: Kept) -> None:
    world, shard = kept.world, kept.started()
    lease = granted(shard, acquire(world, "a"))
    one(shard, relinquish(world, lease))
    over = one(kept.gone_on(), relinquish(world, lease))
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.UNKNOWN
