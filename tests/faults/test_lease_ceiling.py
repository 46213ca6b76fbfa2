"""Every verb of the chain's port, not done, and done but reported failed: no grant ever exceeds an own ceiling."""

import itertools

import msgspec
import pytest

from appliance.formats.chains import CeilingKind, CeilingRecord, open_ceiling
from appliance.formats.framing import Kind
from appliance.formats.stamped import sign
from appliance.lease.ceiling import RECORDS_KEPT, CeilingChain, Deposed, Extended, InDoubt, ShardIdentity
from appliance.lease.wire import Granted, Unavailable
from tests.support.shards import POLICY, TERM, World, acquire, granted, one, opened, renew
from tests.support.values import CLUSTER, NODE, NOW_NS, WITNESS_KEY
from timeagent.errors import BadConfiguration, Damaged
from timeagent.units import SECOND

AHEAD = TERM + POLICY.ceiling_ahead_ns


def chain_of(world: World, *, node: str = NODE, incarnation: bytes = b"chain--1", map_number: int = 1) -> CeilingChain:
    identity = ShardIdentity(CLUSTER, map_number, 0, node, incarnation)
    return CeilingChain(world.chain, world.time, WITNESS_KEY, POLICY, identity)


def record(world: World, number: int) -> CeilingRecord:
    return open_ceiling(world.chain.records[number], "the chain")[0]


def foreign(world: World, number: int, kind: CeilingKind = CeilingKind.RUNNING, **numbers: int) -> CeilingRecord:
    values = {"ceiling_ns": NOW_NS + 100 * SECOND, "floor_ns": 0, "settle_to_ns": 0} | numbers
    made = CeilingRecord(
        cluster_id=CLUSTER,
        map_number=1,
        shard=0,
        number=number,
        node="node-b",
        incarnation=b"another!",
        kind=kind,
        time=world.time.token().encode(),
        **values,
    )
    world.chain.records[number] = sign(Kind.CEILING, made, WITNESS_KEY)
    return made


# -- as it should go ---------------------------------------------------------------------------------------------------


def test_first_record_of_a_first_chain_starts_from_nothing(world: World) -> None:
    chain = chain_of(world)
    assert isinstance(chain.begin(), Extended)
    assert (chain.floor_ns, chain.settle_to_ns, chain.number) == (0, 0, 1)
    assert chain.ceiling_ns == NOW_NS + world.time.radius_ns + AHEAD


def test_running_record_gives_its_ceiling_as_floor_and_settle_to(world: World) -> None:
    before = foreign(world, 7, floor_ns=3, settle_to_ns=4)
    chain = chain_of(world)
    assert isinstance(chain.begin(), Extended)
    assert (chain.floor_ns, chain.settle_to_ns, chain.number) == (before.ceiling_ns, before.ceiling_ns, 8)
    assert (record(world, 8).floor_ns, record(world, 8).settle_to_ns) == (before.ceiling_ns, before.ceiling_ns)


def test_orderly_record_gives_its_two_numbers(world: World) -> None:
    foreign(world, 7, CeilingKind.ORDERLY, floor_ns=3, settle_to_ns=4)
    chain = chain_of(world)
    assert isinstance(chain.begin(), Extended)
    assert (chain.floor_ns, chain.settle_to_ns) == (3, 4)


def test_nobody_links_after_a_terminal_record(world: World) -> None:
    foreign(world, 7, CeilingKind.TERMINAL)
    chain = chain_of(world)
    deposed = chain.begin()
    assert isinstance(deposed, Deposed)
    assert "the right to grant never began" in str(deposed)
    assert sorted(world.chain.records) == [7]


def test_ceilings_never_fall_whatever_the_clock_says(world: World) -> None:
    before = foreign(world, 1)
    chain = chain_of(world)
    chain.begin()
    assert chain.ceiling_ns == before.ceiling_ns
    world.time.advance(1000 * SECOND)
    chain.extend()
    high = chain.ceiling_ns
    world.time.midpoint_ns -= 2000 * SECOND
    chain.extend()
    assert chain.ceiling_ns == high
    chain.finish(5, 6)
    assert [record(world, n).ceiling_ns for n in (2, 3, 4, 5)] == [before.ceiling_ns, high, high, high]


def test_ceiling_lies_above_floor_and_settle_to_of_the_record_before(world: World) -> None:
    foreign(world, 1, CeilingKind.ORDERLY, ceiling_ns=1, floor_ns=NOW_NS + 300 * SECOND, settle_to_ns=2)
    chain = chain_of(world)
    chain.begin()
    assert chain.ceiling_ns == NOW_NS + 300 * SECOND


def test_only_the_newest_records_and_those_of_others_are_kept(world: World) -> None:
    foreign(world, 1)
    chain = chain_of(world)
    chain.begin()
    for _ in range(RECORDS_KEPT + 20):
        world.time.advance(SECOND)
        chain.extend()
    newest = chain.number
    assert sorted(world.chain.records) == [1, *range(newest - RECORDS_KEPT + 1, newest + 1)]


def test_chain_of_a_later_map_does_not_begin_from_nothing(world: World) -> None:
    with pytest.raises(BadConfiguration, match="no chain under map 2"):
        chain_of(world, map_number=2).begin()


def test_record_in_the_wrong_place_is_damage(world: World) -> None:
    foreign(world, 7)
    world.chain.records[8] = world.chain.records.pop(7)
    with pytest.raises(Damaged, match="record 7"):
        chain_of(world).begin()
    world.chain.records[8] = b"torn"
    with pytest.raises(Damaged):
        chain_of(world).begin()


@pytest.mark.parametrize("change", [{"cluster_id": b"x" * 16}, {"map_number": 2}, {"shard": 1}, {"number": 2}])
def test_record_of_another_chain_is_damage(world: World, change: dict[str, object]) -> None:
    moved = msgspec.structs.replace(foreign(world, 1), **change)
    world.chain.records[1] = sign(Kind.CEILING, moved, WITNESS_KEY)
    with pytest.raises(Damaged, match="record 1 of the chain of shard 0, map 1"):
        chain_of(world).begin()


# -- who is no longer the owner ----------------------------------------------------------------------------------------


def test_number_with_foreign_content_ends_the_right(world: World) -> None:
    chain = chain_of(world)
    chain.begin()
    foreign(world, 2)
    assert isinstance(chain.extend(), Deposed)
    assert (chain.ceiling_ns, chain.deposed is None) == (0, False)
    assert isinstance(chain.extend(), Deposed)
    assert isinstance(chain.finish(1, 1), Deposed)


# Who slept while others linked and pruned finds the slot free: only the look afterwards tells.
@pytest.mark.parametrize("newest", [3, 4, 70])
def test_pruned_slot_that_can_be_linked_again_gives_no_right(world: World, newest: int) -> None:
    chain = chain_of(world)
    chain.begin()
    foreign(world, newest)
    assert isinstance(chain.extend(), Deposed)
    assert chain.ceiling_ns == 0


def test_listing_that_does_not_show_the_own_record_does_not_count(world: World) -> None:
    chain = chain_of(world)
    chain.begin()
    old = chain.ceiling_ns
    world.time.advance(SECOND)
    world.chain.hidden = {2}
    assert isinstance(chain.extend(), InDoubt)
    assert chain.ceiling_ns == old
    world.chain.hidden = set()
    assert isinstance(chain.extend(), Extended)
    assert (chain.number, chain.ceiling_ns) == (2, old + SECOND)


def test_two_that_start_at_once_do_not_both_own_the_chain(world: World) -> None:
    one_chain, other = chain_of(world), chain_of(world, incarnation=b"chain--2")
    world.chain.faults["link"] = ["lost"]
    assert isinstance(one_chain.begin(), InDoubt)
    assert isinstance(other.begin(), Extended)
    assert isinstance(one_chain.begin(), Deposed)


def test_record_that_nobody_can_list_gives_no_right(world: World) -> None:
    chain = chain_of(world)
    chain.begin()
    old = chain.ceiling_ns
    world.time.advance(SECOND)
    world.chain.faults = {"list": ["lost"]}
    assert isinstance(chain.extend(), InDoubt)
    assert (chain.number, chain.ceiling_ns) == (1, old)
    foreign(world, 3)
    assert isinstance(chain.extend(), Deposed)


@pytest.mark.parametrize("above", [(9, 5), (5, 9)])
def test_last_record_says_no_more_than_its_ceiling(world: World, above: tuple[int, int]) -> None:
    chain = chain_of(world)
    chain.begin()
    floor, settle_to = (chain.ceiling_ns + each for each in above)
    assert isinstance(chain.finish(floor, settle_to), Extended)
    assert record(world, 2).ceiling_ns == max(floor, settle_to)


# A number that another has: whoever cannot read by whom it was linked knows nothing, and has no right by it.
def test_record_that_cannot_be_read_is_nobodys_own(world: World) -> None:
    chain = chain_of(world)
    chain.begin()
    old = chain.ceiling_ns
    world.time.advance(SECOND)
    world.chain.faults = {"link": ["lost"]}
    assert isinstance(chain.extend(), InDoubt)
    foreign(world, 2)
    world.chain.faults = {"read": ["lost"], "list": [None]}
    assert isinstance(chain.extend(), InDoubt)
    assert (chain.number, chain.ceiling_ns) == (1, old)
    assert isinstance(chain.extend(), Deposed)


def test_record_that_is_gone_when_it_is_read_is_nobodys_own(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(world)
    chain.begin()
    foreign(world, 2)
    monkeypatch.setattr(world.chain, "read", lambda _: None)
    assert not isinstance(chain.extend(), Extended)
    assert chain.number < 2


# -- the table ---------------------------------------------------------------------------------------------------------

VERBS = {"link": ("lost", "done", "repeated"), "list": ("lost",), "read": ("lost",), "unlink": ("lost",)}
FAULTS = [(verb, fault, at) for verb, faults in VERBS.items() for fault in faults for at in range(4)]


@pytest.mark.parametrize(("verb", "fault", "at"), FAULTS)
def test_no_fault_of_the_port_widens_the_right_or_ends_it(world: World, verb: str, fault: str, at: int) -> None:
    shard = world.shard()
    world.chain.faults[verb] = [None] * at + [fault]
    if not isinstance(shard.start(), Extended):
        assert isinstance(shard.start(), Extended)
    lease = granted(shard, acquire(world, "a"))
    for step in range(8):
        world.time.advance(SECOND)
        shard.housekeeping()
        for request in (renew(world, lease), acquire(world, f"d{step}")):
            reply = one(shard, request)
            if isinstance(reply, Granted):
                signed, witness = opened(reply)
                head = signed.batch_head()
                mine = record(world, head.ceiling_number)
                assert mine.incarnation == head.incarnation
                assert witness.expiry_ns <= mine.ceiling_ns == head.ceiling_ns
                assert witness.fence <= mine.ceiling_ns
            else:
                assert isinstance(reply, Unavailable)
    assert granted(shard, renew(world, lease)).expiry_ns == world.time.midpoint_ns + TERM


# Both ends of a hand-over, each with a fault, in every order: what one granted lies below the other's floor.
@pytest.mark.parametrize(("first", "second"), list(itertools.product([None, "lost", "done", "repeated"], repeat=2)))
def test_successor_starts_above_all_that_was_granted(world: World, first: str | None, second: str | None) -> None:
    old = world.started()
    lease = granted(old, acquire(world, "a"))
    world.time.advance(2 * SECOND)
    world.chain.faults["link"] = [first]
    old.housekeeping()
    expiries = [lease.expiry_ns]
    reply = one(old, renew(world, lease))
    if isinstance(reply, Granted):
        expiries.append(opened(reply)[1].expiry_ns)
    world.time.advance(1)
    new = world.shard("node-b")
    world.chain.faults["link"] = [second]
    new.start()
    reply = one(old, renew(world, lease))
    if isinstance(reply, Granted):
        expiries.append(opened(reply)[1].expiry_ns)
    if second in {"lost", "done"}:
        new.start()
    reply = one(old, renew(world, lease))
    if isinstance(reply, Granted):
        expiries.append(opened(reply)[1].expiry_ns)
    answer = one(new, acquire(world, "a"))
    if isinstance(answer, Granted):
        successor = opened(answer)[1]
        assert max(expiries) <= successor.floor_ns
        assert max(expiries) <= successor.settle_to_ns
        assert lease.fence < successor.fence


def test_damaged_old_record_does_not_stop_the_owner(world: World) -> None:
    chain = chain_of(world)
    chain.begin()
    for _ in range(RECORDS_KEPT):
        world.time.advance(SECOND)
        chain.extend()
    world.chain.records[2] = b"torn"
    for _ in range(4):
        assert isinstance(chain.extend(), Extended)


def test_identity_of_a_record_is_the_linkers(world: World) -> None:
    chain = chain_of(world)
    began = chain.begin()
    assert isinstance(began, Extended)
    assert began.data == world.chain.records[1]
    assert msgspec.structs.asdict(record(world, 1))["incarnation"] == b"chain--1"
