"""Several holders of one domain in modes that go together, and who excludes whom."""

import msgspec

from appliance.formats.lease import Mode
from appliance.formats.witness import WitnessKind
from appliance.lease.ceiling import NotYet, StoppedOrderly
from appliance.lease.wire import Denied, Hello, Inspect, LeasePage, Over, Refused, Unavailable, Welcome
from tests.support.shards import HOLDER, RIVAL, TERM, World, acquire, ended, granted, one, opened, relinquish, renew
from tests.support.values import CLUSTER, NOW_NS
from timeagent.units import SECOND

# -- several holders ---------------------------------------------------------------------------------------------------


def test_readers_share_a_domain_and_each_has_its_own_witness(world: World) -> None:
    shard = world.started()
    asked = [acquire(world, "a", mode=Mode.S, holder=holder) for holder in (HOLDER, RIVAL)]
    first, second = (granted(shard, each) for each in asked)
    assert first.correlation_id != second.correlation_id
    assert second.fence > first.fence
    assert second.previous_id == first.correlation_id
    again = [granted(shard, each) for each in asked]
    assert again == [msgspec.structs.replace(each, kind=WitnessKind.RENEWAL) for each in (first, second)]
    denied = one(shard, acquire(world, "a"))
    assert isinstance(denied, Denied)
    page = one(shard, Inspect(after_domain="", leases_max=1))
    assert isinstance(page, LeasePage)
    assert [each.correlation_id for each in page.leases] == [first.correlation_id, second.correlation_id]
    assert (page.numbers.domains, page.numbers.leases, page.more) == (1, 2, False)


def test_each_of_several_leases_is_renewed_and_given_back_by_its_own_name(world: World) -> None:
    shard = world.started()
    one_, two = (granted(shard, acquire(world, "a", mode=Mode.IX)) for _ in range(2))
    world.time.advance(SECOND)
    renewed = granted(shard, renew(world, one_))
    assert renewed.expiry_ns == one_.expiry_ns + SECOND
    assert (renewed.fence, renewed.last_ended) == (one_.fence, one_.last_ended)
    over = one(shard, relinquish(world, two, NOW_NS + 10))
    assert isinstance(over, Over)
    writer = one(shard, acquire(world, "a"))
    assert isinstance(writer, Denied)
    assert writer.until_ns == renewed.expiry_ns
    one(shard, relinquish(world, one_, NOW_NS + 5))
    last = granted(shard, acquire(world, "a"))
    assert last.floor_ns == NOW_NS + 10
    assert last.floor_set_by is not None
    assert last.floor_set_by.correlation_id == two.correlation_id
    assert [each.correlation_id for each in ended(world)] == [two.correlation_id, one_.correlation_id]


def test_broken_reader_leaves_its_expiry_as_floor_and_settle_to(world: World) -> None:
    shard = world.started()
    readers = [granted(shard, acquire(world, "a", mode=Mode.S, term_ns=n * SECOND)) for n in (2, 3)]
    world.time.advance(4 * SECOND)
    writer = granted(shard, acquire(world, "a"))
    assert (writer.floor_ns, writer.settle_to_ns) == (readers[1].expiry_ns, readers[1].expiry_ns)
    assert len(ended(world)) == 2


def test_what_a_broken_lease_left_reaches_all_that_are_granted_beside_each_other(world: World) -> None:
    shard = world.started()
    broken = granted(shard, acquire(world, "a", mode=Mode.IX))
    world.time.advance(TERM + SECOND)
    for _ in range(3):
        reader = granted(shard, acquire(world, "a", mode=Mode.S))
        assert (reader.floor_ns, reader.settle_to_ns) == (broken.expiry_ns, broken.expiry_ns)


def test_two_grants_of_one_domain_in_one_turn_are_both_kept(world: World) -> None:
    shard = world.started()
    replies = shard.turn([acquire(world, "a", mode=Mode.S), acquire(world, "a", mode=Mode.S), acquire(world, "a")])
    first, second = (opened(each)[1] for each in replies[:2])
    assert isinstance(replies[2], Denied)
    for lease in (first, second):
        assert granted(shard, renew(world, lease)).correlation_id == lease.correlation_id


def test_stopping_shard_breaks_each_of_several_when_it_is_past(world: World) -> None:
    shard = world.started()
    for seconds in (2, 5):
        granted(shard, acquire(world, "a", mode=Mode.S, term_ns=seconds * SECOND))
    world.time.advance(3 * SECOND)
    assert isinstance(shard.stop_orderly(), NotYet)
    assert len(ended(world)) == 1
    world.time.advance(3 * SECOND)
    stopped = shard.stop_orderly()
    assert isinstance(stopped, StoppedOrderly)
    assert stopped.settle_to_ns == NOW_NS + 5 * SECOND


def test_bad_domain_and_bad_holder_are_refused_by_name(world: World) -> None:
    shard = world.started()
    bad = [
        acquire(world, "a\nb"),
        acquire(world, "ä" * 300),
        acquire(world, "a", holder=msgspec.structs.replace(HOLDER, node="No Name")),
        acquire(world, "a", holder=msgspec.structs.replace(HOLDER, purpose="a\0b")),
    ]
    codes = [reply.code for reply in shard.turn(bad) if isinstance(reply, Refused)]
    assert codes == ["bad-domain", "bad-domain", "bad-node-name", "bad-purpose"]


def test_domain_of_another_shard_is_refused(world: World) -> None:
    world.shards = 2
    replies = world.started().turn([acquire(world, f"d{n}") for n in range(20)])
    assert {getattr(reply, "code", "granted") for reply in replies} == {"granted", "wrong-shard"}


def test_greeting_names_version_and_cluster(world: World) -> None:
    shard = world.started()
    welcome, version, cluster = shard.turn(
        [
            Hello(version=1, cluster_id=CLUSTER),
            Hello(version=2, cluster_id=CLUSTER),
            Hello(version=1, cluster_id=bytes(16)),
        ]
    )
    assert isinstance(welcome, Welcome)
    assert isinstance(version, Refused)
    assert isinstance(cluster, Refused)
    assert (version.code, cluster.code) == ("protocol-version", "other-cluster")


def test_shard_that_was_not_started_grants_nothing(world: World) -> None:
    answer = one(world.shard(), acquire(world, "a"))
    assert isinstance(answer, Unavailable)
    assert answer.code == "not-running"
