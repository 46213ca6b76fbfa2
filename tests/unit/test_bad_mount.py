"""A mount that is full, read-only, or takes nothing, as a command and as a program: named, and nothing half-written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.bag.posix import _environment
from appliance.bag.writing import Committed, Unknown
from appliance.cluster import Cluster
from tests.support.cluster import Site, tree
from tests.support.mounts import fill, make_read_only, small_mount
from tests.support.spoken import Said, speaker
from tests.support.storage import WrappedStorage
from timeagent.errors import Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PUBLISH = ("publish", "log", "--lease", "a", "--wait", "1s")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    return speaker(capsys, monkeypatch)


@pytest.fixture
def small(
    site: Site, say: Callable[..., Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, list[str]]]:
    """A cluster on a mount of 256 KiB: its root, and the options that name it to every command."""
    monkeypatch.setattr("appliance.node.runtime.SHARED_MEMORY", site.tmpfs)
    with small_mount(tmp_path / "mount", "256k") as root:
        rest = ["--node-dir", str(tmp_path / "n"), "--allow-root"]
        assert say("init", str(root), "--assume-radius", "5ms", *rest).status == 0
        yield root, ["--root", str(root), *rest]


class Refusing(WrappedStorage):
    """Every verb that writes is refused as the operating system would."""

    number = errno.ENOSPC
    verbs: tuple[str, ...] = ("ensure_directory", "publish", "ensure_marker", "append", "server_clock")

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if verb in self.verbs:
            raise _environment(verb, path, OSError(self.number, os.strerror(self.number)))
        return call()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (errno.ENOSPC, "mount-full", "No space left on device"),
        (errno.EDQUOT, "mount-full", "quota"),
        (errno.EROFS, "mount-refused", "Read-only file system"),
        (errno.EACCES, "mount-refused", "Permission denied"),
        (errno.ENAMETOOLONG, "name-too-long", "File name too long"),
    ],
)
def test_root_that_takes_nothing_is_named_and_a_reader_still_reads(
    site: Site, number: int, code: str, said: str
) -> None:
    with site.open() as cluster, cluster.session() as session, session.acquire("a") as leases:
        session.publish("log", [b"1"], under=leases)
    before = tree(site.root)
    storage = Refusing(site.storage)
    storage.number = number
    with site.open(storage=storage) as cluster:
        assert [message.payload for message in cluster.read("log", level="latest")] == [b"1"]
        with cluster.session() as session, pytest.raises(Environment) as refused:
            session.acquire("a", timeout_s=0)
        assert said in refused.value.message
        assert refused.value.hint
    storage.verbs = ("publish",)
    with pytest.raises(Environment) as classified:
        storage.publish("x", b"", "tmp")
    assert classified.value.code == code
    assert tree(site.root) == before


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_init_on_a_mount_that_takes_nothing_leaves_nothing_behind(
    say: Callable[..., Said], tmp_path: Path, state: str
) -> None:
    with small_mount(tmp_path / "root", "64k") as root:
        (root / "lost+found").mkdir()
        if state == "full":
            fill(root)
            (root / "filler").replace(root / "lost+found" / "filler")
        else:
            make_read_only(root)
        before = tree(tmp_path)
        said = say("init", str(root), "--node-dir", str(tmp_path / "n"), "--allow-root", "--assume-radius", "5ms")
        assert said.is_error(74, "mount-full" if state == "full" else "mount-refused"), said.err
        left = {path: data for path, data in tree(tmp_path).items() if data is not None}
        assert left == {path: data for path, data in before.items() if data is not None}


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_publishing_to_a_mount_that_takes_nothing_is_named(
    small: tuple[Path, list[str]], say: Callable[..., Said], state: str
) -> None:
    root, options = small
    assert say(*PUBLISH, *options, stdin=b"1\n").status == 0
    if state == "full":
        fill(root)
    else:
        make_read_only(root)
    before = {path: data for path, data in tree(root).items() if data is not None}
    said = say(*PUBLISH, *options, stdin=b"2\n")
    assert said.is_error(74, "chain-in-doubt"), said.err
    assert ("No space left" if state == "full" else "Read-only") in said.err
    assert {path: data for path, data in tree(root).items() if data is not None} == before
    assert say("read", "log", "--level", "latest", *options).out == "1\n"


@pytest.mark.parametrize("kind", ["maildir", "log"])
def test_mount_that_becomes_read_only_is_read_and_closes_nothing(
    small: tuple[Path, list[str]], say: Callable[..., Said], kind: str
) -> None:
    root, options = small
    assert say(*PUBLISH, "--kind", kind, *options, stdin=b"1\n").status == 0
    make_read_only(root)
    before = tree(root)
    assert say("read", "log", "--level", "latest", *options).out == "1\n"
    assert say("read", "log", *options).status == 0
    assert say("bag", "ls", "log", *options).status == 0
    said = say("bag", "settle", "log", *options)
    assert said.is_error(74, "mount-refused"), said.err
    assert "Read-only file system" in said.err
    assert tree(root) == before


# What was said to be Committed would be hidden by the next mount, on the disk of one machine.
def test_root_that_is_unmounted_under_a_writer_takes_nothing(site: Site) -> None:
    with site.open() as cluster, cluster.session() as session, session.acquire("a") as leases:
        assert isinstance(session.publish("log", [b"1"], under=leases), Committed)
        site.root.rename(site.root.with_name("elsewhere"))
        site.root.mkdir()
        cluster.time.sleep(2 * site.policy.span_ns)
        outcome = session.publish("log", [b"2"], under=leases)
        assert isinstance(outcome, Unknown)
        assert "its file system is not mounted" in outcome.reason
        assert tree(site.root) == {}
        site.root.rmdir()
        site.root.with_name("elsewhere").rename(site.root)


# Whoever works with several roots must know which of them it was.
def test_error_names_the_whole_path(site: Site, say: Callable[..., Said], tmp_path: Path) -> None:
    file, absent, sealed = tmp_path / "file", tmp_path / "none", tmp_path / "sealed"
    file.touch()
    own = ("--node-dir", str(tmp_path / "n"), "--allow-root", "--assume-radius", "5ms")
    assert f"open {file}: Not a directory" in say("init", str(file), *own).err
    with pytest.raises(Environment, match=f"read {file}/TENURE: Not a directory"):
        Cluster.open(file, allow_root=True)
    with small_mount(sealed, "64k") as root:
        make_read_only(root)
        assert f"mkdir {root}/policy: Read-only" in say("init", str(root), *own).err
    said = say("probe", str(site.root), "--second", str(absent))
    assert f"the other client: No such file or directory: {absent}/" in said.err
