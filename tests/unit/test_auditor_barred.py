"""What cannot be looked into is said to be so: not passed over in silence, and nobody is accused because of it."""

from __future__ import annotations

import dataclasses
import errno
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.formats.paths import SEAL
from auditor.audit import audit, audit_with_timeline
from auditor.evidence.finding import Verdict
from auditor.evidence.opening import open_tree
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from auditor.rules.result import Audit, exit_status
from tests.fault_injection.faults_packs import pack_rack
from tests.fault_injection.fixtures import Story, rack_not_sealed, small_tree
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from auditor.evidence.tree import Opened
    from tests.fault_injection.tree import ClusterTree

SIGNATURES = Signatures()
DAY = "logs/orders/2026-11-20"
DIRECTORIES = (
    "logs",
    "logs/orders",
    DAY,
    f"{DAY}/22-00-00",
    f"{DAY}/22-00-00/22-00-01.000-1000-2000",
    f"{DAY}/22-00-10",
    f"{DAY}/22-00-10/22-00-10.000-1000-2000",
    "shards",
    "shards/00000001",
    "shards/00000001/0000",
    "ledger",
    "ledger/00000001",
    "ledger/00000001/0000",
    "policy",
    "trust",
    "map",
)


def two_racks(root: Path, *, seal: bool = True) -> ClusterTree:
    """One lease, and a message of it in each of two racks; the second names the first as committed."""
    story = Story(root)
    lease = story.lease()
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    story.tree.advance(8 * SECOND + 500 * MS)
    story.shard.prolong(lease)
    story.tree.advance(500 * MS)
    story.writer.publish(story.grid, lease)
    story.shard.end(lease)
    return story.done(seal=seal)


def two_logs(root: Path) -> ClusterTree:
    """One lease, and a message of it in each of two logs."""
    story = Story(root)
    payments = story.tree.log("payments")
    lease = story.lease()
    story.tree.advance(50 * MS)
    story.writer.publish(story.grid, lease)
    story.tree.advance(2 * SECOND)
    story.writer.publish(payments, lease)
    story.shard.end(lease)
    story.tree.settle(story.grid)
    story.tree.settle(payments)
    return story.tree


class Closed(Tree):
    """A tree with a directory, or a file, that this user may not look into."""

    closed = ""

    def _bars(self, path: str) -> bool:
        if path != self.closed and not path.startswith(f"{self.closed}/"):
            return False
        self.unreadable[path] = "Permission denied"
        return True

    def names(self, directory: str) -> list[tuple[str, bool]]:
        return [] if self._bars(directory) else super().names(directory)

    def open_file(self, path: str) -> Opened | None:
        return None if self._bars(path) else super().open_file(path)


def closed(root: Path, path: str) -> Tree:
    tree = Closed(root)
    tree.closed = path
    return tree


def linked(root: Path, path: str) -> Tree:
    (root / path).rename(root.parent / "elsewhere")
    (root / path).symlink_to(root.parent / "elsewhere")
    return Tree(root)


def in_a_tar_file(root: Path, path: str) -> Tree:
    return packed_up(linked(root, path).root)


def packed_up(root: Path) -> Tree:
    with tarfile.open(root.parent / "copy.tar", "w") as archive:
        archive.add(root, arcname="tree")
    return open_tree(root.parent / "copy.tar")


def codes(result: Audit) -> set[str]:
    """What is found beside the record that is missing, which is so said of registers."""
    return {each.code for each in result.findings if not each.code.startswith("unverifiable-")}


@pytest.mark.parametrize("bar", [closed, linked, in_a_tar_file])
@pytest.mark.parametrize("path", DIRECTORIES)
def test_directory_that_nobody_can_look_into_hides_and_accuses_nobody(
    path: str, bar: Callable[[Path, str], Tree], tmp_path: Path
) -> None:
    result = audit(bar(two_racks(tmp_path / "tree").root, path), signatures=SIGNATURES)
    assert codes(result) == {"unreadable"}
    assert any(each.subject == path for each in result.findings)
    assert exit_status(result) == 3


# Its rack has no seal yet, so that nothing but the directory itself says what was in the bag.
@pytest.mark.parametrize("bar", [closed, linked])
def test_bag_of_an_open_rack_that_nobody_can_look_into_lost_nothing(
    bar: Callable[[Path, str], Tree], tmp_path: Path
) -> None:
    tree = two_racks(tmp_path / "tree", seal=False)
    assert audit(Tree(tree.root), signatures=SIGNATURES).findings == ()
    assert codes(audit(bar(tree.root, DIRECTORIES[4]), signatures=SIGNATURES)) == {"unreadable"}


@pytest.mark.parametrize("bar", [closed, linked])
def test_log_that_nobody_can_look_into_lost_nothing(bar: Callable[[Path, str], Tree], tmp_path: Path) -> None:
    tree = two_logs(tmp_path / "tree")
    assert audit(Tree(tree.root), signatures=SIGNATURES).findings == ()
    assert codes(audit(bar(tree.root, "logs/orders"), signatures=SIGNATURES)) == {"unreadable"}


def test_pack_that_nobody_may_read_was_not_altered(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    rack = next(tree.root.glob(f"logs/*/*/*/{SEAL}")).parent
    pack_rack(rack)
    pack = (rack / "pack").relative_to(tree.root).as_posix()
    assert codes(audit(closed(tree.root, pack), signatures=SIGNATURES)) == {"unreadable"}
    tree.remove(pack)
    os.mkfifo(tree.root / pack)
    assert codes(audit(Tree(tree.root), signatures=SIGNATURES)) == {"unreadable"}


def directory(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to("/nowhere")


@pytest.mark.parametrize("put", [directory, pipe, link])
def test_what_stands_in_the_place_of_a_file_is_said_in_a_directory_as_in_a_tar_file(
    put: Callable[[Path], None], tmp_path: Path
) -> None:
    tree = small_tree(tmp_path / "tree")
    for path in tree.files():
        data = tree.get(path)
        tree.remove(path)
        put(tree.root / path)
        result = audit(Tree(tree.root), signatures=SIGNATURES)
        assert codes(result) == {"unreadable"}, path
        assert path in {each.subject for each in result.findings}
        assert exit_status(result) == 3
        assert json_bytes(audit(packed_up(tree.root), signatures=SIGNATURES)) == json_bytes(result), path
        (tree.root / path).rmdir() if put is directory else (tree.root / path).unlink()
        tree.put(path, data)


def test_link_to_nobodys_business_is_not_followed_and_is_said(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    (tree.root / "logs" / ".snapshot").symlink_to("/")
    assert audit(Tree(tree.root), signatures=SIGNATURES).findings == ()
    (tree.root / "logs" / "newest").symlink_to("orders")
    result = audit(Tree(tree.root), signatures=SIGNATURES)
    assert [(each.code, each.subject) for each in result.findings] == [("unreadable", "logs/newest")]


def test_root_may_be_reached_by_a_link(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    (tmp_path / "link").symlink_to(tree.root)
    assert audit(open_tree(tmp_path / "link"), signatures=SIGNATURES).findings == ()


class Shrinking(Tree):
    """A tree whose ledgers and messages are written anew while they are read: shorter than when they were opened."""

    def open_file(self, path: str) -> Opened | None:
        opened = super().open_file(path)
        if opened is None or not path.endswith((".ledger", ".msg")):
            return opened
        return dataclasses.replace(opened, size=opened.size + 50)


# Nobody waits for the rest, and nobody is accused of having taken it away.
def test_file_that_became_shorter_while_it_was_read_is_unreadable(tmp_path: Path) -> None:
    tree = small_tree(tmp_path)
    result = audit(Shrinking(tmp_path), signatures=SIGNATURES)
    assert codes(result) == {"unreadable"}
    assert {each.subject for each in result.findings} >= {each for each in tree.files() if each.endswith(".ledger")}
    assert "became shorter" in result.findings[0].explanation


# As when its server exports something else for a while: that it is not there would be said of the cluster.
@pytest.mark.parametrize(
    "place", ["22-00-00", "22-00-00/22-00-01.000-1000-2000", "22-00-00/22-00-01.000-1000-2000/lock"]
)
def test_what_has_a_stale_handle_is_unreadable_and_not_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    small_tree(tmp_path)
    opens = os.open

    def stale(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if os.fspath(path) == str(tmp_path / DAY / place):
            raise OSError(errno.ESTALE, "Stale file handle")
        return opens(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", stale)
    result = audit(Tree(tmp_path), signatures=SIGNATURES)
    assert {each.verdict for each in result.findings} <= {Verdict.INDETERMINATE, Verdict.UNVERIFIABLE}
    assert f"{DAY}/{place}" in {each.subject for each in result.findings if each.code == "unreadable"}


# Between the two the file server may lose it, or its disk fail.
def test_file_that_is_opened_and_cannot_be_asked_for_its_size_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tree(tmp_path)
    path, fstat = f"{DAY}/22-00-00/22-00-01.000-1000-2000/lock", os.fstat

    def stale(descriptor: int) -> os.stat_result:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path / path:
            raise OSError(errno.ESTALE, "Stale file handle")
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", stale)
    count = len(list(Path("/proc/self/fd").iterdir()))
    result = audit(Tree(tmp_path), signatures=SIGNATURES)
    assert [(each.code, each.subject) for each in result.findings] == [("unreadable", path)]
    assert len(list(Path("/proc/self/fd").iterdir())) == count


# Whoever lists the bag with a timeline opens more than who does not.
def test_bag_whose_lock_file_cannot_be_read_tells_the_same_with_and_without_a_timeline(tmp_path: Path) -> None:
    tree, _ = rack_not_sealed(tmp_path / "tree")
    lock = next(path for path in tree.root.rglob("lock") if list(path.parent.glob("*.msg")))
    for path in (lock, next(lock.parent.glob("*.msg"))):
        path.unlink()
        path.mkdir()
    plain, (timed, timeline) = audit(Tree(tree.root)), audit_with_timeline(Tree(tree.root))
    timeline.close()
    assert plain == timed
    assert {each.subject.rpartition("/")[2][-4:] for each in plain.findings if each.code == "unreadable"} == {
        "lock",
        ".msg",
    }
