"""Views: what names a fold, what is refused, what is passed over, what is pruned."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from appliance.bag.message import before
from appliance.demo import bank
from appliance.demo.bank import BALANCES
from appliance.formats.framing import Kind, pack
from appliance.formats.view import (
    Checkpoint,
    FoldIdentity,
    LogStart,
    checkpoint_bytes,
    checkpoint_path,
    open_checkpoint,
    parse_fold,
    parse_horizon,
)
from appliance.session.open_logs import LogBook
from appliance.views import Fold, View
from tests.support.bags import CLUSTER, LOG, T0, Node
from tests.support.readings import fill, fresh_node
from tests.support.storage import MemoryStorage, WrappedStorage
from tests.support.view_world import FOLD, OTHER, step
from timeagent.errors import BadRequest, Damaged
from timeagent.units import INSTANT_MAX, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.ports import Storage

ONE = dataclasses.replace(FOLD, logs=(LOG,))


@pytest.fixture
def node() -> Node:
    node = fresh_node()
    fill(node, [(second, "n1", b"a" * 8, [0, 3]) for second in range(4)])
    node.time.midpoint_ns = T0 + 12 * SECOND  # before the rack may be sealed as a whole
    return node


def opened(node: Node, fold: Fold[bytes] = ONE, storage: Storage | None = None) -> View[bytes]:
    context = node.again(storage).context
    return View(context, LogBook(context), fold)


def advanced(node: Node, second: int) -> Checkpoint:
    node.horizon.settle(T0 + second * SECOND)
    return opened(node).advance()


def files(node: Node) -> dict[str, bytes]:
    storage = node.context.storage
    assert isinstance(storage, MemoryStorage)
    return storage.files


def test_checkpoint_is_named_by_fold_and_horizon_and_read_back(node: Node) -> None:
    checkpoint = advanced(node, 2)
    assert (checkpoint.view, checkpoint.horizon_ns, checkpoint.messages) == ("chain", T0 + 2 * SECOND, 4)
    view = opened(node)
    assert view.newest() == checkpoint
    assert view.state(checkpoint) == checkpoint.state
    assert f"{view.path}/{checkpoint.horizon_ns:019d}" in files(node)
    assert view.path == f"views/chain/{checkpoint.fold.hex()}"


def test_nothing_is_published_where_nothing_was_settled_since(node: Node) -> None:
    first = advanced(node, 2)
    before_it = dict(files(node))
    assert opened(node).advance() == first
    assert files(node) == before_it


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"view": "other"},
        {"logs": (LogStart(log=LOG, created_ns=2),)},
        {"logs": (LogStart(log=LOG, created_ns=1), LogStart(log=OTHER, created_ns=1))},
        {"initial": b"i" * 32},
        {"cluster_id": b"x" * 16},
    ],
)
def test_whatever_a_checkpoint_depends_on_changes_the_name_of_the_fold(change: dict[str, object]) -> None:
    identity = FoldIdentity(
        cluster_id=CLUSTER, view="chain", version=1, logs=(LogStart(log=LOG, created_ns=1),), initial=bytes(32)
    )
    assert msgspec.structs.replace(identity, **change).digest() != identity.digest()


def test_order_in_which_a_fold_names_its_logs_is_nothing() -> None:
    born = {LOG: 1, OTHER: 2}
    turned = dataclasses.replace(FOLD, logs=FOLD.logs[::-1])
    assert FOLD.identity(CLUSTER, born) == turned.identity(CLUSTER, born)


@pytest.mark.parametrize("logs", [(), (LOG, LOG)])
def test_fold_over_nothing_or_twice_the_same_is_refused(logs: tuple[str, ...]) -> None:
    with pytest.raises(BadRequest, match="the fold chain"):
        dataclasses.replace(FOLD, logs=logs)


def test_view_over_a_log_that_does_not_exist_is_refused(node: Node) -> None:
    with pytest.raises(BadRequest, match="'other'"):
        opened(node, FOLD)


def test_fold_that_encodes_one_state_in_two_ways_is_refused_and_publishes_nothing(node: Node) -> None:
    node.horizon.settle(T0 + SECOND)
    fold = dataclasses.replace(ONE, encode=lambda state: state + b"!")
    with pytest.raises(BadRequest, match="in two ways"):
        opened(node, fold).advance()
    assert not any(path.startswith("views/") for path in files(node))


# Two programs that say the same version and do different things: the second is told, the first stays.
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"encode": str}, "bad-type"),
        ({"encode": lambda _state: b"twelve"}, "bad-fold"),
        ({"initial": b"nothing"}, "bad-fold"),
    ],
)
def test_fold_that_cannot_read_what_it_writes_is_refused_and_publishes_nothing(
    node: Node, change: dict[str, Any], code: str
) -> None:
    node.horizon.settle(T0 + 4 * SECOND)
    fold = Fold("count", 1, (LOG,), b"0", int, lambda state, batch: state + len(batch), lambda state: b"%d" % state)
    before = files(node)
    context = node.again().context
    with pytest.raises(BadRequest) as refused:
        View(context, LogBook(context), dataclasses.replace(fold, **change)).advance()
    assert refused.value.code == code
    assert files(node) == before


def test_version_that_no_record_can_hold_is_refused() -> None:
    assert dataclasses.replace(ONE, version=2**63 - 1).identity(CLUSTER, {LOG: T0}).digest()
    with pytest.raises(BadRequest, match="bad-fold"):
        dataclasses.replace(ONE, version=2**64)


def test_other_bytes_of_the_same_fold_are_told(node: Node) -> None:
    checkpoint = advanced(node, 1)
    another = dataclasses.replace(ONE, step=lambda state, batch: step(state, batch)[::-1])
    view = opened(node, another)
    assert checkpoint.fold == view.digest
    path = checkpoint_path("chain", checkpoint.fold, checkpoint.horizon_ns)
    data = files(node).pop(path)

    class Racing(WrappedStorage):
        def list_afresh(self, directory: str) -> list[str] | None:
            names = self.inner.list_afresh(directory)
            if directory == view.path:
                files(node)[path] = data
            return names

    with pytest.raises(Damaged, match="other bytes"):
        opened(node, another, Racing(node.context.storage)).advance()
    assert files(node)[path] == data


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda _: b"", lambda _: pack(Kind.VIEW, b"?")])
def test_damaged_checkpoint_is_passed_over(node: Node, damage: Callable[[bytes], bytes]) -> None:
    older, newer = advanced(node, 1), advanced(node, 2)
    path = checkpoint_path("chain", newer.fold, newer.horizon_ns)
    files(node)[path] = damage(files(node)[path])
    assert opened(node).newest() == older
    with pytest.raises(Damaged) as caught:
        opened(node).advance()  # to where the damaged one stands: it is not replaced, but named
    assert path in caught.value.message
    last = advanced(node, 3)
    assert last.messages == 6
    assert opened(node).newest() == last


def test_checkpoint_that_is_pruned_while_it_is_looked_for_is_passed_over(node: Node) -> None:
    older, newer = advanced(node, 1), advanced(node, 2)
    path = checkpoint_path("chain", newer.fold, newer.horizon_ns)

    class Pruning(WrappedStorage):
        def read(self, name: str) -> bytes | None:
            if name == path:
                files(node).pop(path, None)
            return self.inner.read(name)

    assert opened(node, storage=Pruning(node.context.storage)).newest() == older


def test_checkpoint_above_the_horizon_is_told(node: Node) -> None:
    checkpoint = advanced(node, 2)
    ahead = msgspec.structs.replace(checkpoint, horizon_ns=T0 + 3 * SECOND)
    files(node)[checkpoint_path("chain", ahead.fold, ahead.horizon_ns)] = checkpoint_bytes(ahead)
    with pytest.raises(Damaged, match="settled up to"):
        opened(node).advance()


def test_pruning_keeps_the_newest_and_foreign_names(node: Node) -> None:
    for second in range(1, 5):
        newest = advanced(node, second)
    view = opened(node)
    files(node)[f"{view.path}/notes"] = b"mine"
    assert view.prune(2) == 2
    assert view.prune(2) == 0
    assert sorted(path.rpartition("/")[2] for path in files(node) if path.startswith(view.path)) == [
        f"{T0 + 3 * SECOND:019d}",
        f"{T0 + 4 * SECOND:019d}",
        "notes",
    ]
    assert view.newest() == newest
    with pytest.raises(BadRequest, match="keep 0"):
        view.prune(0)


def test_pruning_does_not_take_a_damaged_checkpoint_for_the_one_to_keep(node: Node) -> None:
    older, newest = advanced(node, 1), advanced(node, 2)
    view = opened(node)
    damaged = checkpoint_path("chain", newest.fold, INSTANT_MAX)
    files(node)[damaged] = b"no checkpoint"
    assert view.prune(1) == 1
    assert view.newest() == newest
    assert checkpoint_path("chain", older.fold, older.horizon_ns) not in files(node)
    assert damaged in files(node)


def test_misplaced_checkpoint_is_damage(node: Node) -> None:
    checkpoint = advanced(node, 1)
    data = checkpoint_bytes(checkpoint)
    path = checkpoint_path("chain", checkpoint.fold, checkpoint.horizon_ns)
    assert open_checkpoint(data, path) == checkpoint
    for where in (
        checkpoint_path("chain", checkpoint.fold, checkpoint.horizon_ns + 1),
        checkpoint_path("other", checkpoint.fold, checkpoint.horizon_ns),
        checkpoint_path("chain", bytes(32), checkpoint.horizon_ns),
    ):
        with pytest.raises(Damaged, match="is a checkpoint of chain"):
            open_checkpoint(data, where)


def test_names_of_folds_and_checkpoints_are_read_strictly() -> None:
    assert parse_fold("ab" * 32) == b"\xab" * 32
    assert [parse_fold(name) for name in ("AB" * 32, "ab" * 31, "ab" * 33, "tmp", "ab" * 31 + "a\n")] == [None] * 5
    assert parse_horizon(f"{INSTANT_MAX:019d}") == INSTANT_MAX
    strangers = ("1", "0" * 20, "-" + "0" * 18, "\u0660" * 19, ".nfs0000", "")
    assert [parse_horizon(name) for name in strangers] == [None] * 6


def test_balances_are_the_books_and_skip_strangers_alike() -> None:
    node = fresh_node()
    entries: list[bank.Opening | bank.Transfer] = [
        bank.Opening("1", "a", 10),
        bank.Opening("2", "b", 5),
        bank.Transfer("3", "a", "b", 4),
        bank.Transfer("4", "b", "c", 9),
        bank.Transfer("5", "c", "a", 20),
    ]
    payloads = [bank.encode(entry) for entry in entries]
    node.writer.write(node.file(*payloads[:2], b"?", *payloads[2:]))
    node.time.advance(10 * SECOND)
    node.horizon.settle(T0 + SECOND)
    books = bank.Books().apply_all(payloads)
    state = BALANCES.decode(BALANCES.initial)
    for batch in node.reader.batches(before(0)):
        for cut in range(1, len(batch)):
            pieces = BALANCES.decode(BALANCES.initial)
            for part in (batch.head(cut), batch.above(batch.head(cut).last)):
                pieces = BALANCES.step(pieces, part)
            whole = BALANCES.step(BALANCES.decode(BALANCES.initial), batch)
            assert BALANCES.encode(pieces) == BALANCES.encode(whole)
        state = BALANCES.step(state, batch)
    assert state == bank.Balances({"a": 26, "b": 0, "c": -11}, opened=15, transfers=3, lowest=-11, strangers=1)
    assert (books.balances, books.opened, books.lowest) == (state.balances, 15, -11)
    raw = BALANCES.encode(state)
    assert BALANCES.encode(BALANCES.decode(raw)) == raw
    assert raw.startswith(b'{"balances":{"a":26,"b":0,"c":-11}')
