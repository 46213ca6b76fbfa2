"""A mount that hangs stops granting at the ceiling, and nothing else: whoever serves a shard never waits for it."""

from __future__ import annotations

from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.formats.chains import CeilingKind, open_ceiling
from appliance.formats.shardmap import ShardMap
from appliance.lease.ceiling import (
    CeilingChain,
    Deposed,
    Extended,
    InDoubt,
    NotYet,
    ShardIdentity,
    StoppedOrderly,
)
from appliance.lease.server import ShardServer
from appliance.lease.shard import Shard
from appliance.lease.store import LeaseStore
from appliance.lease.transport import UnixTransport
from appliance.lease.wire import Granted, Hello, Over, Unavailable, Welcome
from tests.support.cluster import wait_until
from tests.support.shards import (
    POLICY,
    ListLedger,
    MemoryChain,
    World,
    acquire,
    granted,
    one,
    opened,
    relinquish,
    renew,
)
from tests.support.values import CLUSTER, NODE, WITNESS_KEY
from timeagent.clock import SystemClock
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.formats.policy import Policy
    from timeagent.units import Span

PATIENT = msgspec.structs.replace(POLICY, attempt_timeout_ns=80 * SECOND)
"""A mount that answers is waited for, however busy this machine is."""


class HungChain(MemoryChain):
    """Answers only while ``up``: what is asked meanwhile waits, as on a hard mount."""

    def __init__(self) -> None:
        super().__init__()
        self.up = Event()
        self.up.set()

    def link(self, number: int, data: bytes) -> bool:
        assert self.up.wait(60)
        return super().link(number, data)

    def list_afresh(self) -> list[int]:
        assert self.up.wait(60)
        return super().list_afresh()


def patient(span: Span) -> Policy:
    """A policy by which a record is waited for so long."""
    return msgspec.structs.replace(PATIENT, attempt_timeout_ns=4 * span)


class Hosted:
    """A shard whose chain is on a mount that a test hangs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.world = World(path)
        self.mount = HungChain()
        identity = ShardIdentity(CLUSTER, 1, 0, NODE, bytes(8))
        self.chain = CeilingChain(self.mount, self.world.time, WITNESS_KEY, PATIENT, identity, apart=True)
        self.store = LeaseStore(path / "hung.db")
        self.shard = Shard(
            identity,
            ShardMap(number=1, cluster_id=CLUSTER, owners=(NODE,)),
            PATIENT,
            store=self.store,
            chain=self.chain,
            time=self.world.time,
            signer=WITNESS_KEY,
            ledger=ListLedger(),
            randomness=self.world.chance,
        )
        assert isinstance(self.shard.start(), Extended)

    def hang(self) -> None:
        self.mount.up.clear()
        self.chain._policy = patient(MS)

    def thawed(self) -> None:
        self.mount.up.set()
        wait_until(SystemClock(), lambda: not self.chain.waits_for_the_mount)
        self.chain._policy = patient(20 * SECOND)

    def close(self) -> None:
        self.mount.up.set()
        self.chain.close()
        self.store.close()
        self.world.close()


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Hosted]:
    each = Hosted(tmp_path)
    yield each
    each.close()


def test_extension_is_handed_over_as_if_the_chain_were_here(hosted: Hosted) -> None:
    first = granted(hosted.shard, acquire(hosted.world, "a"))
    hosted.world.time.advance(5 * SECOND)
    again = opened(one(hosted.shard, renew(hosted.world, first)))[1]
    assert again.expiry_ns == first.expiry_ns + 5 * SECOND
    assert sorted(hosted.mount.records) == [1, 2]
    assert hosted.chain.number == 2


def test_extension_for_which_there_is_no_thread_is_in_doubt_and_made_later(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: Thread) -> None:
        raise RuntimeError(f"can't start new thread: {thread.name}")

    ceiling = hosted.chain.ceiling_ns
    hosted.world.time.advance(5 * SECOND)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", refused)
        assert granted(hosted.shard, acquire(hosted.world, "a")).expiry_ns == ceiling
        assert not hosted.chain.waits_for_the_mount
    assert granted(hosted.shard, acquire(hosted.world, "b")).expiry_ns > ceiling


def test_granting_stops_at_the_ceiling_while_the_mount_hangs_and_goes_on_after(hosted: Hosted) -> None:
    ceiling = hosted.chain.ceiling_ns
    lease = granted(hosted.shard, acquire(hosted.world, "a"))
    hosted.hang()
    hosted.world.time.advance(5 * SECOND)
    shorter = granted(hosted.shard, acquire(hosted.world, "b"))
    assert shorter.expiry_ns == ceiling  # what is left of the right to grant
    assert opened(one(hosted.shard, renew(hosted.world, lease)))[1].expiry_ns == ceiling
    assert isinstance(one(hosted.shard, relinquish(hosted.world, shorter)), Over)
    hosted.world.time.advance(20 * SECOND)
    for _ in range(3):
        assert isinstance(one(hosted.shard, acquire(hosted.world, "c")), Unavailable)
        assert isinstance(hosted.shard.housekeeping(), InDoubt | None)
    assert sorted(hosted.mount.records) == [1]
    hosted.thawed()
    later = granted(hosted.shard, acquire(hosted.world, "c"))
    assert later.expiry_ns > ceiling
    assert later.expiry_ns <= hosted.chain.ceiling_ns


def test_what_is_known_changes_only_when_a_result_is_taken(hosted: Hosted) -> None:
    granted(hosted.shard, acquire(hosted.world, "a"))
    hosted.hang()
    hosted.world.time.advance(3 * SECOND)
    assert isinstance(hosted.chain.extend(), InDoubt)
    hosted.thawed()
    assert sorted(hosted.mount.records) == [1, 2]
    assert hosted.chain.number == 1
    assert isinstance(hosted.chain.extend(), Extended)
    assert hosted.chain.number == 2


# Once nothing is out nobody asks for extensions, and what came of the last one is left over until somebody comes.
def test_first_grant_after_a_quiet_time_is_not_judged_by_an_extension_of_long_ago(hosted: Hosted) -> None:
    lease = granted(hosted.shard, acquire(hosted.world, "a"))
    hosted.hang()
    hosted.world.time.advance(2 * SECOND)
    assert isinstance(hosted.shard.housekeeping(), InDoubt)  # begun, and not waited for
    assert isinstance(one(hosted.shard, relinquish(hosted.world, lease)), Over)
    hosted.thawed()
    hosted.world.time.advance(60 * SECOND)
    assert hosted.shard.housekeeping() is None
    assert granted(hosted.shard, acquire(hosted.world, "b")).expiry_ns > hosted.world.time.midpoint_ns


def test_loss_of_the_chain_is_told_as_soon_as_the_mount_says_it(hosted: Hosted) -> None:
    granted(hosted.shard, acquire(hosted.world, "a"))
    hosted.hang()
    hosted.world.time.advance(5 * SECOND)
    assert isinstance(hosted.chain.extend(), InDoubt)
    hosted.mount.records[2] = b"another's"
    hosted.thawed()
    assert isinstance(hosted.shard.housekeeping(), Deposed)
    assert hosted.chain.ceiling_ns == 0
    assert isinstance(one(hosted.shard, acquire(hosted.world, "b")), Unavailable)
    assert "another's" in str(hosted.shard.over())


def test_orderly_stop_waits_for_the_extension_that_is_under_way(hosted: Hosted) -> None:
    lease = granted(hosted.shard, acquire(hosted.world, "a"))
    hosted.hang()
    hosted.world.time.advance(5 * SECOND)
    assert isinstance(hosted.chain.extend(), InDoubt)
    assert isinstance(hosted.shard.stop_orderly(), NotYet)
    one(hosted.shard, relinquish(hosted.world, lease))
    for _ in range(3):
        assert isinstance(hosted.shard.stop_orderly(), InDoubt)
    hosted.thawed()
    clock = SystemClock()
    ends: list[object] = []
    wait_until(clock, lambda: isinstance(ends.append(hosted.shard.stop_orderly()) or ends[-1], StoppedOrderly))  # type: ignore[func-returns-value]
    assert sorted(hosted.mount.records) == [1, 2, 3]
    kinds = [open_ceiling(hosted.mount.records[n], "r")[0].kind for n in (1, 2, 3)]
    assert kinds == [CeilingKind.RUNNING, CeilingKind.RUNNING, CeilingKind.ORDERLY]


def test_what_goes_wrong_on_the_thread_is_raised_where_it_was_asked_for(hosted: Hosted) -> None:
    def broken(number: int, data: bytes) -> bool:
        raise ZeroDivisionError(number, data)

    hosted.mount.link = broken  # type: ignore[method-assign]
    raised = False
    for _ in range(200):
        try:
            hosted.chain.extend()
        except ZeroDivisionError:
            raised = True
            break
        SystemClock().sleep(MS)
    assert raised


def test_served_clients_are_answered_while_the_mount_hangs(hosted: Hosted, tmp_path: Path) -> None:
    guard = Lock()
    server = ShardServer(hosted.shard, tmp_path / "s", guard)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    transport = UnixTransport(tmp_path / "s", SystemClock())
    (lease,) = transport.call([acquire(hosted.world, "a")], 20 * SECOND)
    assert isinstance(lease, Granted)
    hosted.hang()
    with guard:
        hosted.world.time.advance(5 * SECOND)
    for _ in range(50):
        (reply,) = transport.call([Hello(version=1, cluster_id=CLUSTER)], 20 * SECOND)
        assert isinstance(reply, Welcome)
    wait_until(SystemClock(), lambda: hosted.chain.waits_for_the_mount)
    (over,) = transport.call([relinquish(hosted.world, opened(lease)[1])], 20 * SECOND)
    assert isinstance(over, Over)
    transport.close()
    server.stop()
    thread.join(20)
    assert not thread.is_alive()


# The guard is worth something only if a shard with the bare chain would hang here.
def test_bare_chain_would_hold_the_caller(tmp_path: Path) -> None:
    hosted = Hosted(tmp_path)
    hosted.hang()
    identity = ShardIdentity(CLUSTER, 1, 0, NODE, bytes(8))
    bare = CeilingChain(hosted.mount, hosted.world.time, WITNESS_KEY, PATIENT, identity)
    caller = Thread(target=bare.begin, daemon=True)
    caller.start()
    caller.join(0.2)
    assert caller.is_alive()
    hosted.mount.up.set()
    caller.join(20)
    hosted.close()
