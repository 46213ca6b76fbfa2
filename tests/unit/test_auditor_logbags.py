"""The auditor reads log bags: what lies past the listed size, what is short or altered, what is foreign or repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.formats.birth import BagKind
from appliance.formats.framing import PIECE_BYTES_MAX
from appliance.formats.paths import DataName
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from tests.fault_injection.tree import START_NS, ClusterTree
from tests.support.killing import INCARNATION, Process, payload_of, write
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def tree(tmp_path: Path) -> ClusterTree:
    return ClusterTree(tmp_path)


def process(tree: ClusterTree, later_ns: int = 0) -> Process:
    return Process(tree, BagKind.LOG, later_ns=later_ns)


def close(tree: ClusterTree) -> None:
    late = process(tree, 5 * SECOND)
    late.horizon.settle(START_NS + SECOND)


def log_file(tree: ClusterTree) -> str:
    (path,) = (path for path in tree.files() if path.endswith(".log"))
    return path


def codes(tree: ClusterTree) -> set[str]:
    return {each.code for each in audit(Tree(tree.root)).findings if each.verdict is Verdict.VIOLATION}


def torn(tree: ClusterTree, data: bytes) -> bytes:
    return data + process(tree).attempt(9, b"torn").data[:-5]


def late(tree: ClusterTree, data: bytes) -> bytes:
    return data + process(tree).attempt(9, b"late").data


def short(_: ClusterTree, data: bytes) -> bytes:
    return data[:-1]


def altered(_: ClusterTree, data: bytes) -> bytes:
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


def more_than_one_append(_: ClusterTree, data: bytes) -> bytes:
    return data + bytes(PIECE_BYTES_MAX)


def almost_one_append(_: ClusterTree, data: bytes) -> bytes:
    return data + bytes(PIECE_BYTES_MAX - 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (more_than_one_append, {"late-writer"}),
        (almost_one_append, set()),
        (torn, set()),
        (late, {"late-writer"}),
        (short, {"altered-file"}),
        (altered, {"altered-file"}),
    ],
)
def test_file_that_is_not_as_it_was_listed(
    tree: ClusterTree, change: Callable[[ClusterTree, bytes], bytes], expected: set[str]
) -> None:
    write(tree, BagKind.LOG, lambda _: None)
    close(tree)
    path = log_file(tree)
    tree.put(path, change(tree, tree.get(path)))
    late_writers = {each.code for each in audit(Tree(tree.root)).findings} & {"late-writer", "altered-file"}
    assert late_writers == expected


def test_torn_tail_in_an_open_bag_is_innocent(tree: ClusterTree) -> None:
    write(tree, BagKind.LOG, lambda _: None)
    path = log_file(tree)
    tree.put(path, torn(tree, tree.get(path)))
    close(tree)
    result = audit(Tree(tree.root))
    assert result.summary.messages == 3
    assert codes(tree) == set()


def test_frame_that_was_appended_twice_counts_once(tree: ClusterTree) -> None:
    write(tree, BagKind.LOG, lambda _: None)
    again = process(tree).attempt(2, payload_of(2))
    path = f"{again.bag.path}/{DataName('n1', INCARNATION, 7, 'log').text()}"
    tree.put(path, again.data)
    close(tree)
    assert audit(Tree(tree.root)).summary.messages == 3
    assert codes(tree) == set()


def test_frame_in_a_file_of_another_run_of_its_node_belongs(tree: ClusterTree) -> None:
    attempt = process(tree).attempt(1, b"m")
    process(tree).context.storage.ensure_directory(attempt.bag.path)
    tree.put(f"{attempt.bag.path}/{DataName('n1', b'w' * 8, 1, 'log').text()}", attempt.data)
    close(tree)
    assert codes(tree) == set()
    assert audit(Tree(tree.root)).summary.messages == 1


def test_frame_in_another_nodes_file_is_misplaced(tree: ClusterTree) -> None:
    attempt = process(tree).attempt(1, b"m")
    process(tree).context.storage.ensure_directory(attempt.bag.path)
    tree.put(f"{attempt.bag.path}/{DataName('n2', INCARNATION, 1, 'log').text()}", attempt.data)
    close(tree)
    assert codes(tree) == {"damaged-frame"}


def test_file_of_the_other_kind_is_foreign(tree: ClusterTree) -> None:
    write(tree, BagKind.LOG, lambda _: None)
    close(tree)
    attempt = process(tree).attempt(9, b"m")
    tree.put(f"{attempt.bag.path}/{attempt.name.text()}", attempt.data)
    assert codes(tree) == set()
    assert audit(Tree(tree.root)).summary.messages == 3
