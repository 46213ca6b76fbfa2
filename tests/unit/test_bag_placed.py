"""Logs whose bags are in another store than the cluster's root: where what is, and what a wrong store is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.bag.logs import Store, create_log, list_logs, open_log
from appliance.bag.objects import ObjectStorage
from appliance.bag.packer import Packer, PackState
from appliance.bag.ports import BagContext
from appliance.bag.roots import PlacedStorage
from appliance.bag.writing import Committed
from appliance.formats.birth import BagKind, open_birth, store_of
from appliance.formats.framing import Kind
from appliance.formats.paths import Grid
from appliance.formats.stamped import stamp
from tests.support.bags import LOG, STRANGER, T0, TIME_KEY, FixedRecords, Node, time_key
from tests.support.clocks import HandTime
from tests.support.object_store import MemoryBucket
from tests.support.storage import Crash, FailingStorage, Fault, MemoryStorage
from timeagent.errors import BadRequest, Damaged, Environment
from timeagent.keys import Signer
from timeagent.units import MINUTE, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.ports import Storage

ELSEWHERE = "s3://bucket/elsewhere"


class Places:
    """A root, and one store; ``process`` is a new process, which finds the store by what the root says."""

    def __init__(self, kind: BagKind = BagKind.MAILDIR) -> None:
        self.root = MemoryStorage()
        self.bucket = MemoryBucket()
        self.opened: list[str] = []
        self.time = HandTime(TIME_KEY, T0 + 500 * MS)
        self.make(LOG, kind)

    def make(self, log: str, kind: BagKind = BagKind.MAILDIR, store: Store | None = None) -> None:
        create_log(self.context(), log, kind, store or self.store)

    @property
    def store(self) -> Store:
        return Store(ELSEWHERE, ObjectStorage(self.bucket))

    def context(self, found: Callable[[str], Storage] | None = None) -> BagContext:
        return BagContext(PlacedStorage(self.root, found or self._found), self.time, FixedRecords(), "n1")

    def _found(self, named: str) -> Storage:
        self.opened.append(named)
        return ObjectStorage(self.bucket)

    def process(self, log: str = LOG) -> Node:
        context = self.context()
        birth = open_log(context, log)
        assert birth is not None
        return Node(context.storage, "n1", self.time, FixedRecords(), Grid(birth))


@pytest.mark.parametrize("kind", list(BagKind))
def test_all_of_a_log_but_its_birth_is_in_its_store_and_every_process_finds_it(kind: BagKind) -> None:
    places = Places(kind)
    node = places.process()
    for sequence in (1, 2):
        assert isinstance(node.writer.write(node.file(b"%d" % sequence, sequence=sequence)), Committed)
    places.time.advance(4 * SECOND)
    node.horizon.settle(places.time.now().earliest - 3 * SECOND)
    assert places.process().settled() == [b"1", b"2"]
    birth = places.root.files[f"logs/{LOG}/log"]
    assert list(places.root.files) == [f"logs/{LOG}/log"]
    assert places.bucket.objects[f"logs/{LOG}/store"] == birth
    assert len([key for key in places.bucket.objects if key.endswith(kind.suffix)]) == 2
    assert places.opened == [ELSEWHERE] * 2, "once in each process"


def test_rack_is_sealed_and_packed_there() -> None:
    places = Places()
    node = places.process()
    file = node.file(b"m")
    assert isinstance(node.writer.write(file), Committed)
    places.time.advance(30 * MINUTE)
    node.sealer.seal(file.bag.rack)
    assert Packer(node.context, node.grid, node.sealer).pack(file.bag.rack).state is PackState.PACKED
    assert places.process().settled() == [b"m"]
    assert list(places.root.files) == [f"logs/{LOG}/log"]
    assert f"{file.bag.rack.path}/pack" in places.bucket.objects


def test_logs_at_the_root_stay_there_beside_it() -> None:
    places = Places()
    create_log(places.context(), "here")
    node = places.process("here")
    before = dict(places.bucket.objects)
    assert isinstance(node.writer.write(node.file(b"m", log="here")), Committed)
    assert places.bucket.objects == before
    assert places.opened == []
    assert list_logs(places.context()) == [LOG, "here"]


# An endpoint, or a mount, is this machine's own: the same name may lead two of them to different places.
def test_store_that_does_not_hold_the_log_is_not_used() -> None:
    places = Places()
    empty = MemoryBucket()
    storage = places.context(lambda _: ObjectStorage(empty)).storage
    node = places.process()
    bag = node.file(b"m").bag.path
    tried: tuple[Callable[[], object], ...] = (
        lambda: storage.look(bag, ("prelock",)),
        lambda: storage.list_afresh(node.grid.log_path),
        lambda: storage.publish(f"{bag}/x.msg", b"x", "tmp"),
        lambda: storage.ensure_marker(f"{bag}/prelock"),
        lambda: storage.append(f"{bag}/x.log", b"x", 0),
        lambda: storage.server_clock(f"logs/{LOG}/tmp/n1"),
    )
    for attempt in tried:
        with pytest.raises(Environment) as caught:
            attempt()
        assert caught.value.code == "store-not-there"
        assert repr(LOG) in caught.value.message
        assert ELSEWHERE in caught.value.message
        assert "endpoint" in caught.value.hint
    assert empty.objects == {}
    empty.put(f"logs/{LOG}/store", b"of another")
    with pytest.raises(Environment, match="is another log"):
        storage.list_afresh(bag)


def test_store_that_cannot_be_asked_is_named_and_asked_again_and_other_logs_go_on() -> None:
    places = Places()
    create_log(places.context(), "here")
    problems = [Environment("store-failed", "no route to it", hint="see to the network")]

    def found(_: str) -> Storage:
        if problems:
            raise problems.pop()
        return ObjectStorage(places.bucket)

    context = places.context(found)
    assert list_logs(context) == [LOG, "here"]
    assert open_log(context, LOG) is not None, "the root alone is asked"
    with pytest.raises(Environment) as caught:
        context.storage.list_afresh(f"logs/{LOG}")
    assert caught.value.code == "store-unreachable"
    for word in (repr(LOG), ELSEWHERE, "no route to it"):
        assert word in caught.value.message
    assert caught.value.hint.startswith("see to the network")
    assert context.storage.list_afresh("logs/here") is not None
    assert context.storage.list_afresh(f"logs/{LOG}") == ["store"]


def test_first_to_be_at_the_root_says_where_a_log_is() -> None:
    places = Places()
    other = MemoryBucket()
    birth = create_log(places.context(), LOG, store=Store("/srv/other", ObjectStorage(other)))
    assert store_of(birth) == ELSEWHERE
    assert other.objects == {}


class Overtaken(MemoryStorage):
    """A store; while something is put there, somebody else makes the log."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    def ensure_directory(self, path: str) -> None:
        self._meanwhile()
        super().ensure_directory(path)


def test_who_is_overtaken_goes_where_the_first_one_is() -> None:
    places = Places()
    beaten = Overtaken(lambda: places.make("new"))
    birth = create_log(places.context(), "new", store=Store("/srv/beaten", beaten))
    assert store_of(birth) == ELSEWHERE
    assert beaten.files.keys() == {"logs/new/store"}, "left behind, and used by nobody"
    node = places.process("new")
    assert isinstance(node.writer.write(node.file(b"m", log="new")), Committed)
    assert beaten.files.keys() == {"logs/new/store"}


def test_who_died_while_it_made_a_log_is_succeeded() -> None:
    for at in range(1, 99):
        places = Places()
        root = FailingStorage(places.root, Fault.CRASH_BEFORE, at)
        try:
            create_log(BagContext(root, places.time, FixedRecords(), "n1"), "new", BagKind.LOG, places.store)
        except Crash:
            pass
        else:
            break
        left = places.bucket.objects.get("logs/new/store")
        places.time.advance(MINUTE)
        places.make("new")
        assert places.root.files["logs/new/log"] == places.bucket.objects["logs/new/store"]
        assert left in (None, places.bucket.objects["logs/new/store"])
    assert at > 4
    assert left is not None, "the last thing that is done is at the root"


def test_store_in_which_another_cluster_has_that_log_is_refused() -> None:
    places, records = Places(), FixedRecords(cluster_id=b"another cluster!")
    root = MemoryStorage()
    with pytest.raises(BadRequest, match="holds a log 'events' of cluster") as caught:
        create_log(BagContext(root, places.time, records, "n1"), LOG, store=places.store)
    assert caught.value.code == "store-taken"
    assert root.files == {}


@pytest.mark.parametrize("forger", [STRANGER, time_key("n2")], ids=["unknown key", "key of another node"])
def test_birth_that_somebody_put_into_the_store_is_not_carried_to_the_root(forger: Signer) -> None:
    places = Places()
    birth = open_birth(places.root.files[f"logs/{LOG}/log"], "a birth")[0]
    forged = stamp(Kind.BIRTH, msgspec.structs.replace(birth, log="new", grace_ns=0), HandTime(forger, T0))
    places.bucket.put("logs/new/store", forged)
    with pytest.raises(BadRequest, match="that no node of this cluster signed") as caught:
        places.make("new")
    assert caught.value.code == "store-taken"
    assert "logs/new/log" not in places.root.files


def test_root_of_a_cluster_is_no_store_of_another() -> None:
    places = Places()
    places.bucket.put("TENURE", b"a marker")
    with pytest.raises(BadRequest) as caught:
        places.make("new")
    assert caught.value.code == "store-is-root"
    assert "logs/new/log" not in places.root.files


@pytest.mark.parametrize("named", ["relative", "", "/line\nfeed", "/" + "x" * 1024])
def test_what_names_no_store_is_refused_and_is_damage_in_a_birth_record(named: str) -> None:
    places, elsewhere = Places(), MemoryStorage()
    with pytest.raises(BadRequest) as caught:
        places.make("bad", store=Store(named, elsewhere))
    assert caught.value.code == "bad-store"
    assert elsewhere.files == {}
    birth = open_birth(places.root.files[f"logs/{LOG}/log"], "a birth")[0]
    places.root.ensure_directory("logs/bad")
    places.root.files["logs/bad/log"] = stamp(Kind.BIRTH, msgspec.structs.replace(birth, store=named), places.time)
    with pytest.raises(Damaged, match="is no store"):
        open_log(places.context(), "bad")
