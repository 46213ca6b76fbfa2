"""A log is what its birth record says."""

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import pytest

from appliance.bag.logs import create_log, is_there, list_logs, open_log
from appliance.bag.posix import PosixStorage
from appliance.formats.birth import BagKind, LogBirth
from appliance.formats.framing import Kind
from appliance.formats.stamped import stamp
from tests.support.bags import CLUSTER, LOG, POLICY, T0, Node
from tests.support.storage import FailingStorage, Fault, MemoryStorage, WrappedStorage
from timeagent.errors import BadRequest, Damaged, Environment
from timeagent.units import SECOND


@pytest.fixture
def node() -> Node:
    return Node(MemoryStorage())


def test_log_is_born_at_the_start_of_the_bag_that_holds_now(node: Node) -> None:
    birth = node.grid.birth
    assert (birth.created_ns, birth.kind, birth.created_by) == (T0, BagKind.MAILDIR, "n1")
    assert (birth.span_ns, birth.grace_ns, birth.rack_ns) == (POLICY.span_ns, POLICY.grace_ns, POLICY.rack_ns)


def test_first_birth_wins_whatever_the_policy_is_later(node: Node) -> None:
    node.records.policies[2] = msgspec.structs.replace(POLICY, number=2, span_ns=2 * SECOND)
    node.time.advance(100 * SECOND)
    assert create_log(node.context, LOG) == node.grid.birth
    assert create_log(node.context, "other").span_ns == 2 * SECOND


def test_logs_are_listed_by_their_birth_records(node: Node) -> None:
    create_log(node.context, "a")
    node.context.storage.ensure_directory("logs/unborn")
    node.context.storage.ensure_directory("logs/.hidden")
    assert list_logs(node.context) == ["a", LOG]
    assert open_log(node.context, "unborn") is None
    assert list_logs(Node(MemoryStorage()).context) == [LOG]


# A file that a tool or a person left beside the logs must not keep a daemon from finding them.
def test_file_or_link_beside_the_logs_is_no_log(tmp_path: Path) -> None:
    node = Node(PosixStorage(tmp_path))
    (tmp_path / "logs" / "README").touch()
    (tmp_path / "logs" / "nowhere").symlink_to("gone")
    (tmp_path / "logs" / "loop").symlink_to("loop")
    assert list_logs(node.context) == [LOG]


def test_log_that_cannot_be_looked_at_is_an_error(node: Node) -> None:
    with pytest.raises(Environment):
        list_logs(node.again(FailingStorage(node.context.storage, Fault.NOT_DONE, 2)).context)


def test_bad_name_is_refused(node: Node) -> None:
    with pytest.raises(BadRequest):
        create_log(node.context, "../x")


def test_kind_is_fixed_by_whoever_makes_the_log_first(node: Node) -> None:
    assert create_log(node.context, "x", BagKind.LOG).kind is BagKind.LOG
    assert create_log(node.context, "x", BagKind.MAILDIR).kind is BagKind.LOG
    assert create_log(node.context, LOG, BagKind.LOG).kind is BagKind.MAILDIR


# Two make it at once: both find none, and the second one's record is not the one that is there.
def test_who_is_overtaken_while_it_makes_a_log_returns_the_birth_of_the_first(node: Node) -> None:
    class Overtaken(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            del path
            if verb == "publish":
                create_log(node.context, "x", BagKind.LOG)
            return call()

    birth = create_log(node.again(Overtaken(node.context.storage)).context, "x", BagKind.MAILDIR)
    assert birth.kind is BagKind.LOG
    assert birth == open_log(node.context, "x")


@pytest.mark.parametrize(
    "change", [{"log": "b"}, {"cluster_id": b"x" * 16}, {"created_ns": T0 + 1}, {"span_ns": 7}, {"rack_ns": 7 * SECOND}]
)
def test_birth_that_cannot_be_is_damage(node: Node, change: dict[str, object]) -> None:
    birth = LogBirth(
        cluster_id=CLUSTER,
        log="a",
        kind=BagKind.MAILDIR,
        created_ns=T0,
        span_ns=SECOND,
        grace_ns=2 * SECOND,
        rack_ns=10 * SECOND,
        created_by="n1",
    )
    node.context.storage.ensure_directory("logs/a")
    data = stamp(Kind.BIRTH, msgspec.structs.replace(birth, **change), node.time)
    node.context.storage.publish("logs/a/log", data, "tmp")
    with pytest.raises(Damaged, match="logs/a/log"):
        open_log(node.context, "a")


class Remembering(WrappedStorage):
    """A mount that remembers what was not there, until the directory that it is missing in is opened."""

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.absent: set[str] = set()

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        if any(directory == each or directory.startswith(f"{each}/") for each in self.absent):
            return None
        found = super().look(directory, names)
        if found is not None:
            self.absent = {each for each in self.absent if each.rpartition("/")[0] != directory}
        return found


BAG = f"logs/{LOG}/2026-01-01/10-00-00/10-00-05.000"


@pytest.mark.parametrize("remembered", [BAG, BAG.rpartition("/")[0], f"logs/{LOG}/2026-01-01"])
def test_bag_that_is_remembered_as_absent_is_there(node: Node, remembered: str) -> None:
    inner = node.context.storage
    assert isinstance(inner, MemoryStorage)
    storage = Remembering(inner)
    assert not is_there(storage, BAG)
    for depth in range(3, len(BAG.split("/")) + 1):
        inner.ensure_directory("/".join(BAG.split("/")[:depth]))
    storage.absent = {remembered}
    assert storage.look(BAG, ()) is None
    assert is_there(storage, BAG)
    assert is_there(storage, BAG)
