"""A tmpfs that is really full: who asks for a domain that cannot be remembered is told so, and nobody else notices."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.lease import store, wire
from appliance.lease.ceiling import NotYet, StoppedOrderly
from appliance.lease.client import LeaseClient, LeaseGranted, LeaseUnavailable
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.wire import (
    NO_REQUEST,
    PAGE_LEASES_MAX,
    PROTOCOL_VERSION,
    Denied,
    Hello,
    Inspect,
    LeasePage,
    LeaseView,
    Over,
    Relinquish,
    SessionGranted,
    Welcome,
)
from tests.support.mounts import fill, small_mount
from tests.support.sessions import drop, prolong, session_of, under
from tests.support.shards import HOLDER, POLICY, RIVAL, World, acquire, granted, one
from tests.support.transport import InProcessTransport
from tests.support.values import CLUSTER
from timeagent.errors import Environment

KNOWN = [f"known-{number}" for number in range(40)]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with small_mount(tmp_path / "tmpfs", "2m") as each:
        yield each


@pytest.fixture(params=[1_000, pytest.param(store.UNWRITTEN_MAX, marks=pytest.mark.verify)])
def world(place: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(store, "UNWRITTEN_MAX", request.param)
    each = World(place)
    yield each
    each.close()


def client_of(world: World, shard: Shard) -> LeaseClient:
    return LeaseClient(InProcessTransport(shard), world.time, POLICY, HOLDER, random.Random(5))


def make_full(place: Path, client: LeaseClient, *, give_back: bool = False) -> LeaseUnavailable:
    """Take leases until there is no room for more; return what was said to whoever asked last."""
    fill(place)
    for turn in range(2 + 2 * store.UNWRITTEN_MAX // 1000):
        results = client.acquire([f"{turn}-{number}" for number in range(1000)])
        told = [each for each in results if isinstance(each, LeaseUnavailable)]
        if told:
            assert len(told) == len(results)  # a turn of one kind: nobody was told so before
            return told[-1]
        assert all(isinstance(each, LeaseGranted) for each in results)
        if give_back:
            witnesses = [each.witness for each in results if isinstance(each, LeaseGranted)]
            client.relinquish([Relinquish(NO_REQUEST, each.domain, each.correlation_id) for each in witnesses])
    raise AssertionError("never full")


def shown_of(shard: Shard) -> list[LeaseView]:
    found: list[LeaseView] = []
    after, more = "", True
    while more:
        page = one(shard, Inspect(after_domain=after, leases_max=PAGE_LEASES_MAX))
        assert isinstance(page, LeasePage)
        found += page.leases
        after, more = page.after_domain, page.more
    return found


def domains_of(shard: Shard) -> list[str]:
    return [each.domain for each in shown_of(shard)]


def test_only_a_domain_that_is_not_remembered_has_to_wait_for_room(place: Path, world: World) -> None:
    shard = world.started()
    client = client_of(world, shard)
    leases = {each.witness.domain: each.witness for each in client.acquire(KNOWN) if isinstance(each, LeaseGranted)}
    told = make_full(place, client)
    assert told.code == "store-full"
    for word in (str(place), "tmpfs is full", str(store.UNWRITTEN_MAX), "more room"):
        assert word in told.message
    assert isinstance(one(shard, Hello(version=PROTOCOL_VERSION, cluster_id=CLUSTER)), Welcome)
    shown = domains_of(shard)
    assert shown == sorted(shown)
    assert len(shown) == world.stores[0].leases > store.UNWRITTEN_MAX
    assert all(isinstance(each, LeaseGranted) for each in client.renew(list(leases.values())))
    given = [Relinquish(NO_REQUEST, each.domain, each.correlation_id) for each in list(leases.values())[:20]]
    assert all(isinstance(each, Over) for each in client.relinquish(given))
    assert len(domains_of(shard)) == len(shown) - 20
    assert all(isinstance(each, LeaseGranted) for each in client.acquire(KNOWN[:20]))
    assert isinstance(one(shard, acquire(world, KNOWN[0], holder=RIVAL)), Denied)
    assert isinstance(client.acquire(["another"])[0], LeaseUnavailable)
    (place / "filler").unlink()
    assert isinstance(client.acquire(["another"])[0], LeaseGranted)
    assert len(domains_of(shard)) == len(shown) + 1


# Where it is full a turn takes in some hundreds: so many neighbours are looked at.
def test_domains_that_nobody_has_had_for_long_make_room_and_leases_stay(place: Path, world: World) -> None:
    shard = world.started()
    client = client_of(world, shard)
    client.acquire(KNOWN)
    make_full(place, client, give_back=True)
    remembered = world.stores[0].domains
    world.time.advance(POLICY.lease_term_max_ns // 2)
    came: list[str] = []
    for turn in range(100):
        asked = [f"new-{turn}-{number}" for number in range(100)]
        came += [each.witness.domain for each in client.acquire(asked) if isinstance(each, LeaseGranted)]
        if len(came) >= 1000:
            break
    assert len(came) >= 1000
    assert domains_of(shard) == sorted(KNOWN + came)
    assert world.stores[0].domains <= remembered


def test_session_leases_are_begun_kept_and_dropped_without_room(place: Path, world: World) -> None:
    shard = world.started()
    client = client_of(world, shard)
    session = session_of(shard, world)
    lease = granted(shard, under(world, session, "mine"))
    make_full(place, client)
    other = session_of(shard, world)
    assert session_of(shard, world, holder=RIVAL).holder == RIVAL
    assert isinstance(one(shard, prolong(world, session)), SessionGranted)
    told = one(shard, under(world, other, "another"))
    assert isinstance(told, wire.Unavailable)
    assert told.code == "store-full"
    assert isinstance(one(shard, drop(world, session)), wire.Over)
    assert granted(shard, acquire(world, "mine", holder=RIVAL)).fence > lease.fence


# All of it stands beside the file then: what was surely past is broken, and the two numbers that are linked are right.
def test_shard_stops_in_good_order_without_room(place: Path, world: World) -> None:
    shard = world.started()
    client = client_of(world, shard)
    latest = granted(shard, acquire(world, "last")).fence
    make_full(place, client)
    stopping = shard.stop_orderly()
    assert isinstance(stopping, NotYet)
    assert stopping.leases == world.stores[0].leases
    world.time.advance(2 * POLICY.lease_term_max_ns)
    expiries = max(each.expiry_ns for each in shown_of(shard))
    stopped = shard.stop_orderly()
    assert isinstance(stopped, StoppedOrderly)
    assert stopped.floor_ns >= stopped.settle_to_ns == expiries > latest


def test_shard_that_finds_no_room_at_its_start_says_so(place: Path) -> None:
    fill(place)
    with pytest.raises(Environment, match="tmpfs is full") as caught:
        LeaseStore(place / "shard.db")
    assert caught.value.code == "store-full"
