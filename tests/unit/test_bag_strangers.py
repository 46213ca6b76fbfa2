"""What others leave in a log's directories, under names that look like ours: nothing is lost, and it can be packed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.bag.packer import Packer, PackState
from appliance.bag.posix import PosixStorage
from appliance.bag.writing import Committed
from appliance.formats.paths import DataName
from tenure.__main__ import main
from tests.support.bags import INCARNATION, Node
from tests.support.cluster import sites
from timeagent.errors import Environment
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = DataName("n1", INCARNATION, 9).text()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node that has committed one message, on real files."""
    (tmp_path / "root").mkdir()
    node = Node(PosixStorage(tmp_path / "root"))
    assert node.writer.write(node.file(b"a")) == Committed()
    return node


def places(node: Node, root: Path) -> tuple[Path, Path]:
    """The bag with the message, and where the one after it would be."""
    bag = node.grid.bag(node.time.midpoint_ns)
    return root / bag.path, root / node.grid.bag(bag.end_ns).path


def full_directory(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("x")


def strange_names(path: Path) -> None:
    for name in (b"\xff\xfe", b"\xff.msg", b"lock.old"):
        (path.parent / os.fsdecode(name)).touch()


INSIDE: dict[str, tuple[Callable[[Path], object], bool]] = {
    "directory": (Path.mkdir, True),
    "full directory": (full_directory, True),
    "names that are no text": (strange_names, True),
    "pipe": (os.mkfifo, False),
    "link that leads away": (lambda path: path.symlink_to("/etc/passwd"), False),
    "link that leads nowhere": (lambda path: path.symlink_to("/nowhere/at/all"), False),
}


@pytest.mark.parametrize("what", INSIDE)
def test_bag_with_a_stranger_is_closed_sealed_and_packed(node: Node, tmp_path: Path, what: str) -> None:
    leave, stays = INSIDE[what]
    bag, _ = places(node, tmp_path / "root")
    leave(bag / DATA)
    rack = node.grid.rack(node.time.midpoint_ns)
    node.time.advance(30 * SECOND)
    node.sealer.seal(rack)
    assert node.again().settled() == [b"a"]
    for _ in range(2):
        report = Packer(node.context, node.grid, node.sealer).pack(rack, again=True)
        assert report.state is PackState.PACKED
        assert report.left == ((bag.relative_to(tmp_path / "root").as_posix(),) if stays else ())
        assert node.again().settled() == [b"a"]
    assert bag.exists() is stays
    assert not list(bag.glob("*1.msg"))


@pytest.mark.parametrize("level", ["bag", "rack", "day"])
def test_file_in_the_place_of_a_directory_is_named_and_when_it_is_moved_all_goes_on(
    node: Node, tmp_path: Path, level: str
) -> None:
    _, following = places(node, tmp_path / "root")
    rack = node.grid.rack(node.time.midpoint_ns)
    later = tmp_path / "root" / node.grid.next_rack(rack).path
    stray = {"bag": following, "rack": later, "day": later.parents[1] / "2023-11-15"}[level]
    stray.write_text("x")
    node.time.advance(30 * SECOND)
    for work in (lambda: node.again().horizon.settle(node.time.midpoint_ns - 8 * SECOND), node.again().latest):
        with pytest.raises(Environment) as refused:
            work()
        assert (refused.value.code, stray.name in refused.value.message) == ("not-a-directory", True)
        assert "move it out of the way" in (refused.value.hint or "")
    stray.unlink()
    node.again().horizon.settle(node.time.midpoint_ns - 8 * SECOND)
    assert node.again().settled() == [b"a"]


def test_names_that_are_no_text_are_shown_as_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for site in sites(tmp_path):
        with site.open() as cluster, cluster.session() as session, session.acquire("a") as leases:
            session.publish("log", [b"1"], under=leases)
        (data,) = site.root.glob("logs/log/2*/*/*/*.msg")
        strange_names(data)
        strange_names(data.parent)
        path = data.parent.relative_to(site.root).as_posix()
        for words in (("show", path), ("show", path, "--json"), ("ls", "log"), ("ls", "log", "--json")):
            assert main(["bag", *words, *site.options()]) == 0
        said = capsys.readouterr()
        assert "\\xff.msg" in said.out
        assert "\\xff\\xfe is not on the log's grid" in said.err
