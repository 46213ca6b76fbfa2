"""Which node is asked for a shard: by the map, or where it answered last, or the next in the order of heirs."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.formats.names import Address
from appliance.formats.shardmap import ShardMap
from appliance.lease.transport import UnixTransport
from appliance.lease.wire import Inspect, Refused, Unavailable
from appliance.node import releases
from appliance.node.routes import NUMBERS, OwnShard, ShardRoutes, ShardWay
from tests.support.values import CLUSTER
from timeagent.errors import ShardUnavailable
from timeagent.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from appliance.lease.wire import Reply

OWNERS = ("node-b", "node-c")
NODES = ("node-a", "node-b", "node-c", "node-d")
ID = bytes(16)
BUSY = Unavailable(request_id=ID, code="busy", message="there is no room")
REFUSED = Refused(request_id=ID, code="bad-domain", message="it has a control character", hint="leave it out")
MOVED = Refused(request_id=ID, code="wrong-shard", message="the domain is another shard's", hint="ask that one")


class Town(ShardRoutes):
    """Routes of a process at node-d, over lines of which a test says what they answer."""

    def __init__(self, runtime: Path, *owners: str) -> None:
        self.maps_looked = 0
        maps: Any = SimpleNamespace(newest=map_of(*owners), look=self._looked)
        settings: Any = SimpleNamespace(node="node-d", peers={})
        trust: Any = SimpleNamespace(nodes=lambda: list(NODES[:3]))
        nothing: Any = None
        super().__init__(nothing, maps, nothing, settings, nothing, nothing, runtime, trust)
        self.answers: list[Reply] | None = None
        self.asked: list[str] = []

    def _looked(self) -> None:
        self.maps_looked += 1

    def line(self, shard: int, node: str) -> Any:  # noqa: ANN401 - no socket's
        del shard
        self.asked.append(node)
        return self

    def call(self, requests: list[Any], timeout_ns: int) -> list[Reply]:
        del requests, timeout_ns
        if self.answers is None:
            raise ShardUnavailable("no-answer", "nobody is there")
        return self.answers

    def has_map(self, newest: ShardMap) -> None:
        """Have a newer map been found."""
        maps: Any = self.maps
        maps.newest = newest


def map_of(*owners: str, number: int = 1) -> ShardMap:
    return ShardMap(number=number, cluster_id=CLUSTER, owners=owners)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path, *OWNERS)


def call(town: Town, shard: int = 0) -> list[Reply]:
    return ShardWay(town, shard).call([], 1)


def test_owner_is_asked_first_then_the_heirs_in_their_order_then_the_owner_again(town: Town) -> None:
    for _ in range(len(NODES) + 1):
        with pytest.raises(ShardUnavailable):
            call(town)
    order = town.maps.newest.heirs(0, NODES)
    assert town.asked == [*order, "node-b"]
    assert town.maps_looked == len(NODES) + 1


def test_who_answers_is_asked_again(town: Town) -> None:
    with pytest.raises(ShardUnavailable):
        call(town)
    town.answers = [BUSY]
    for _ in range(2):
        assert call(town) == town.answers
    assert town.asked[1:] == [town.maps.newest.heirs(0, NODES)[1]] * 2
    assert town.maps_looked == 1


# Of several threads that missed a shard at one node, some say so late.
def test_node_that_was_missed_already_is_not_missed_again(town: Town) -> None:
    order = town.maps.newest.heirs(0, NODES)
    for node in (*order[:2], order[0], order[0]):
        town.missed(0, node)
    assert town.node_at(0) == order[2]
    assert town.maps_looked == 4


def test_what_was_found_out_about_one_shard_counts_for_that_one(town: Town) -> None:
    town.missed(0, "node-b")
    assert town.node_at(1) == "node-c"


def test_new_map_is_believed_before_what_was_found_out_by_an_older_one(town: Town) -> None:
    town.missed(0, "node-b")
    town.has_map(map_of("node-d", "node-c", number=2))
    assert town.node_at(0) == "node-d"


def test_shard_that_a_new_map_does_not_have_has_moved(town: Town) -> None:
    town.has_map(map_of("node-a", number=2))
    with pytest.raises(ShardUnavailable, match="map 2 has no shard 1") as caught:
        call(town, 1)
    assert caught.value.code == "moved"
    town.missed(1, "node-c")  # noted by who asked before the map was known
    assert town.maps_looked == 1
    assert town.node_at(0) == "node-a"


class Own:
    """This node's shard: each call takes a second of its clock, and what a test says comes of it."""

    def __init__(self, *outcomes: Reply | ShardUnavailable, begins: bool = True) -> None:
        self.outcomes = list(outcomes)
        self.begins = begins
        self.hosted, self.waited = 0, list[int]()
        routes: Any = SimpleNamespace(host=self, maps=SimpleNamespace(newest=map_of("node-d")))
        here: Any = self
        self.way = OwnShard(routes, 0, here, here)

    def boot_ns(self) -> int:
        return len(self.waited) * SECOND

    def call(self, requests: list[Any], timeout_ns: int) -> list[Reply]:
        assert requests == []
        self.waited.append(timeout_ns)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, ShardUnavailable):
            raise outcome
        return [outcome]

    def try_host(self, shard: int, _: ShardMap) -> bool:
        assert shard == 0
        self.hosted += 1
        return self.begins


NOBODY = ShardUnavailable("no-answer", "nobody is there")
GONE: tuple[Reply | ShardUnavailable, ...] = (
    NOBODY,
    *(Unavailable(request_id=ID, code=code, message="over") for code in ("deposed", "not-running")),
)


def test_own_shard_that_answers_is_not_begun() -> None:
    own = Own(BUSY, REFUSED)
    assert [own.way.call([], 3 * SECOND), own.way.call([], 3 * SECOND)] == [[BUSY], [REFUSED]]
    assert own.hosted == 0


@pytest.mark.parametrize("first", GONE)
def test_own_shard_of_whoever_has_ended_is_begun_and_asked_again_in_the_time_that_is_left(
    first: Reply | ShardUnavailable,
) -> None:
    own = Own(first, REFUSED)
    assert own.way.call([], 3 * SECOND) == [REFUSED]
    assert (own.hosted, own.waited) == (1, [3 * SECOND, 2 * SECOND])


@pytest.mark.parametrize(("begins", "left"), [(False, 2), (True, 0)])
def test_own_shard_is_asked_once_where_another_runs_it_or_no_time_is_left(*, begins: bool, left: int) -> None:
    for first in GONE:
        own = Own(first, begins=begins)
        if isinstance(first, ShardUnavailable):
            with pytest.raises(ShardUnavailable, match="nobody is there"):
                own.way.call([], (1 + left) * SECOND)
        else:
            assert own.way.call([], (1 + left) * SECOND) == [first]
        assert own.hosted == 1


@pytest.mark.parametrize("code", ["deposed", "not-running"])
def test_shard_that_says_it_is_over_is_looked_for_elsewhere(town: Town, code: str) -> None:
    town.answers = [BUSY, Unavailable(request_id=ID, code=code, message="over")]
    assert call(town) == town.answers
    assert town.node_at(0) != "node-b"
    assert town.maps_looked == 1


# The map of who answers is newer or older than the one here: with the next map the same request may be right.
def test_domain_of_another_shard_is_for_later_and_has_the_map_looked_for(town: Town) -> None:
    town.answers = [MOVED]
    assert call(town) == [Unavailable(request_id=ID, code="moved", message=MOVED.message)]
    assert town.maps_looked == 1


@pytest.mark.parametrize(
    "reply",
    [
        REFUSED,
        BUSY,
    ],
)
def test_what_a_shard_says_otherwise_is_its_answer_and_moves_nothing(town: Town, reply: Reply) -> None:
    town.answers = [reply]
    assert call(town) == [reply]
    assert town.node_at(0) == "node-b"
    assert town.maps_looked == 0


@pytest.mark.parametrize(
    ("known", "skew"),
    [
        ({"node-a": "1.0"}, False),
        ({"node-a": "1.0", "node-b": "1.0", "node-c": None}, False),
        ({"node-a": "1.0", "node-b": "1.1"}, True),
        ({"node-a": "1.0", "node-b": releases.UNSAID}, True),
    ],
)
def test_releases_differ_between_nodes_that_answer(known: dict[str, str | None], *, skew: bool) -> None:
    assert releases.skewed(known) is skew


class Silent(UnixTransport):
    def call(self, requests: list[Any], timeout_ns: int) -> list[Reply]:
        raise ShardUnavailable("no-answer", f"{len(requests)} requests, and nothing within {timeout_ns} ns")


# Whoever asked for all leases would never have done, and need more and more memory.
@pytest.mark.parametrize("pages", [[""], ["a", "a"], ["b", "c", "a"]])
def test_shard_whose_pages_do_not_go_on_is_asked_no_more(
    town: Town, monkeypatch: pytest.MonkeyPatch, pages: list[str]
) -> None:
    ahead = iter(pages)
    answer: Any = lambda *_: SimpleNamespace(leases=(), more=True, after_domain=next(ahead))  # noqa: E731
    monkeypatch.setattr(town, "_page", answer)
    monkeypatch.setattr(town, "_to_look", lambda *_: SimpleNamespace(close=lambda: None))
    with pytest.raises(ShardUnavailable, match="shard 0 at node node-b shows one page"):
        town.inspect(0)
    assert list(ahead) == []


def test_shard_that_stands_still_is_told_from_one_that_nobody_runs(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy: Any = SimpleNamespace(attempt_timeout_ns=1)
    clock: Any = None
    town._policy = policy
    line = Silent(tmp_path / "shard.sock", clock)

    def hint() -> str:
        with pytest.raises(ShardUnavailable) as told:
            town._page(line, 0, "node-b", NUMBERS)
        return told.value.hint

    assert hint() == "no process of node-b runs it now: tenure node run, on node-b"
    keepers = {line.path: "process 7 of this machine"}
    monkeypatch.setattr("appliance.node.routes.kept_by", keepers.get)
    assert (
        hint()
        == "process 7 of this machine runs it, and does not answer: does it stand still, or get no processor time?"
    )


# An owner that stands still takes seconds of each look; who looks again and again would see the shard come and go.
def test_who_runs_a_shard_in_its_owners_place_is_looked_at_first_while_it_answers(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"node-c"}
    looked: list[str] = []
    page: Any = object()

    def look(shard: int, node: str, question: Inspect) -> Any:  # noqa: ANN401 - no page's
        del shard, question
        looked.append(node)
        if node not in runs:
            raise ShardUnavailable("no-answer", f"{node} stands still")
        return page

    def seen() -> list[str]:
        before = len(looked)
        assert town._first_page(0, NUMBERS)[1] is page
        return looked[before:]

    monkeypatch.setattr(town, "_page_at", look)
    monkeypatch.setattr(town, "runner", lambda _: "node-c")
    assert seen() == ["node-b", "node-c"]
    assert seen() == ["node-c"]
    town.has_map(map_of(*OWNERS, number=2))
    assert seen() == ["node-b", "node-c"]
    runs.symmetric_difference_update({"node-b", "node-c"})
    assert seen() == ["node-c", "node-b"]
    assert seen() == ["node-b"]


# A directory of another user, which node.toml names under peers.
def test_socket_that_may_not_be_looked_at_is_none(town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: Any = town
    known._settings.peers["node-a"] = tmp_path
    known._trust.address_of = lambda _: Address("127.0.0.1", 1)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refused)
        assert not town._is_local(0, "node-a")


# A daemon that is restarted ends at once, though a node does not answer: the interpreter waits for all other threads.
def test_nobody_who_ends_waits_for_a_node_that_is_asked_for_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [f"node-{n}" for n in range(20)]
    trust: Any = SimpleNamespace(nodes=lambda: nodes, address_of=lambda node: f"{node}:7420")
    nothing: Any = None
    asked = []

    def asks(_: object, node: str) -> str | None:
        asked.append((node, threading.current_thread().daemon))
        return None if node == nodes[7] else "1.0"

    monkeypatch.setattr(releases.Releases, "_of", asks)
    found = releases.Releases(nodes[3], nothing, ID, trust, nothing, "1.1").look()
    assert sorted(asked) == sorted((node, True) for node in nodes if node != nodes[3])
    assert found == dict.fromkeys(nodes, "1.0") | {nodes[3]: "1.1", nodes[7]: None}
