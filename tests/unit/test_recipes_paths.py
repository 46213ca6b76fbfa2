"""``PathLock``: whom it makes wait, on a small tree all there are; and that it holds what it says."""

from __future__ import annotations

import asyncio
from itertools import combinations, combinations_with_replacement, product
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag.writing import Committed
from appliance.formats.lease import Mode, conflicts
from appliance.recipes import path_lock
from appliance.recipes.path_lock import PathLock, checked_path, path_modes
from tenure.aio import AsyncCluster
from tests.support.documents import blocks, run_program
from timeagent.errors import BadRequest, LeaseLost, TryAgain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.support.cluster import Site

PATHS = [PurePosixPath(each) for each in ("/", "/a", "/a/b", "/a/b/c", "/a/d", "/e", "/e/f")]
"""Three levels, siblings, and a second branch."""

type Task = tuple[tuple[PurePosixPath, ...], tuple[PurePosixPath, ...]]
"""What somebody reads and writes."""


def tasks() -> Iterator[Task]:
    """Yield every task with up to two paths read and two written, and at least one of them."""
    some = [each for count in (0, 1, 2) for each in combinations(PATHS, count)]
    return ((read, write) for read in some for write in some if read or write)


def touched(paths: tuple[PurePosixPath, ...]) -> int:
    """Return, a bit each, the paths that are, are in or have in them one of these."""
    near = (each.is_relative_to(path) or path.is_relative_to(each) for each in PATHS for path in paths)
    bits = [1 << number for number in range(len(PATHS)) for _ in paths]
    return sum({bit for bit, is_near in zip(bits, near, strict=True) if is_near})


def named(task: Task) -> int:
    return sum(1 << PATHS.index(path) for path in {*task[0], *task[1]})


def waits(one: Mapping[PurePosixPath, Mode], other: Mapping[PurePosixPath, Mode]) -> bool:
    return any(conflicts(mode, other[path]) for path, mode in one.items() if path in other)


def judged() -> tuple[int, int, int]:
    """Return how many pairs of tasks there are, run together though they must not, and wait though they need not."""
    alike: dict[tuple[tuple[PurePosixPath, Mode], ...], list[tuple[int, int]]] = {}
    for task in tasks():
        alike.setdefault(tuple(path_modes(*task).items()), []).append((touched(task[1]), named(task)))
    kinds = [(dict(key), each) for key, each in alike.items()]
    pairs = unsound = idle = 0
    for (modes, mine), (others, theirs) in combinations_with_replacement(kinds, 2):
        found = waits(modes, others)
        for one, other in combinations_with_replacement(mine, 2) if mine is theirs else product(mine, theirs):
            wanted = bool(one[0] & other[1] or other[0] & one[1])  # what one writes, the other touches
            pairs += 1
            unsound += wanted and not found
            idle += found and not wanted
    return pairs, unsound, idle


def test_two_tasks_wait_for_each_other_just_where_one_writes_what_the_other_touches() -> None:
    assert judged() == (353_220, 0, 0)


# The rule with four modes: a read of what lies above an own write is not locked.
def test_rule_without_six_lets_tasks_run_together_that_must_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = path_lock._both
    monkeypatch.setattr(
        path_lock, "_both", lambda one, other: Mode.IX if whole(one, other) is Mode.SIX else whole(one, other)
    )
    assert judged() == (353_220, 4_761, 0)


@pytest.mark.parametrize(
    ("read", "write", "modes"),
    [
        (["/a"], [], {"/": "IS", "/a": "S"}),
        ([], ["/a/b"], {"/": "IX", "/a": "IX", "/a/b": "X"}),
        (["/a"], ["/a/b"], {"/": "IX", "/a": "SIX", "/a/b": "X"}),
        (["/"], ["/e"], {"/": "SIX", "/e": "X"}),
        (["/a/b"], ["/a"], {"/": "IX", "/a": "X"}),
        (["/a", "/a/b"], [], {"/": "IS", "/a": "S"}),
        (["/a/b"], ["/a/d"], {"/": "IX", "/a": "IX", "/a/b": "S", "/a/d": "X"}),
        (["/a"], ["/a"], {"/": "IX", "/a": "X"}),
        ([], ["/a/b", "/a-b"], {"/": "IX", "/a": "IX", "/a/b": "X", "/a-b": "X"}),
    ],
)
def test_each_level_is_leased_in_the_weakest_mode_that_allows_the_task(
    read: list[str], write: list[str], modes: dict[str, str]
) -> None:
    found = {str(path): str(mode) for path, mode in path_modes(read, write).items()}
    assert found == modes
    assert list(found) == list(modes), "those above come first"


@pytest.mark.parametrize("path", ["", "a", "a/b", ".", "..", "/a/../b", "//a", "/.."])
def test_path_that_might_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(BadRequest) as refused:
        checked_path(path)
    assert refused.value.code == "bad-path"
    assert refused.value.hint


# Its letters are strings too, and "/" alone would be the whole tree.
@pytest.mark.parametrize("wrong", ["/", "/a/b", 5, None, [5], b"/a"])
def test_what_is_no_list_of_paths_is_refused(wrong: Any) -> None:  # noqa: ANN401 - that is what is wrong
    for verb in ("read", "write"):
        with pytest.raises(BadRequest) as refused:
            path_modes(**{"read": (), "write": (), verb: wrong})
        assert refused.value.code == "bad-type"


def test_one_path_has_one_name_however_it_is_written() -> None:
    names: list[path_lock.AnyPath] = ["/a/b", "/a/b/", "/a//b", "/a/./b", PurePosixPath("/a/b")]
    assert {checked_path(each) for each in names} == {PurePosixPath("/a/b")}


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (([], ["/a"]), ([], ["/a/b"]), False),
        (([], ["/a/b"]), ([], ["/a/d"]), True),
        ((["/"], ["/e"]), ([], ["/a"]), False),
        ((["/a"], []), (["/a/b"], []), True),
        (([], ["/"]), (["/a"], []), False),
    ],
)
def test_blocks_run_together_or_the_second_is_told_who_has_what(
    site: Site,
    first: tuple[list[str], list[str]],
    second: tuple[list[str], list[str]],
    together: bool,  # noqa: FBT001 - what is expected
) -> None:
    with site.open() as cluster:
        lock = PathLock(cluster, purpose="first")
        other = PathLock(cluster, purpose="second")
        with lock(*first) as held:
            held.check()
            if together:
                with other(*second, timeout_s=0) as theirs:
                    theirs.check()
            else:
                with pytest.raises(TryAgain) as refused, other(*second, timeout_s=0):
                    pass
                assert "first" in refused.value.message
        with other(*second, timeout_s=5):
            pass
        with PathLock(cluster, "another-tree")(write=["/"], timeout_s=0), lock(write=["/"], timeout_s=5):
            pass


def test_messages_are_published_under_what_is_written(site: Site) -> None:
    with site.open() as cluster, PathLock(cluster).copy("/in/1", "/out/1") as held:
        assert [str(lease.mode) for lease in held.writing] == ["IX", "IX", "X"]
        assert held.session.publish("log", [b"copied"], under=held.writing) == Committed()


def test_block_that_is_over_holds_nothing_and_says_so(site: Site) -> None:
    with site.open() as cluster:
        held = PathLock(cluster).rename("/a", "/b")
        with pytest.raises(BadRequest):
            held.check()
        with held:
            assert len(held.leases) == 3
        with pytest.raises(LeaseLost):
            held.leases[0].check()


def test_paths_of_one_block_are_not_locked_by_a_second_one(site: Site) -> None:
    with site.open() as cluster:
        held = PathLock(cluster)(write=["/a"])
        with held:
            with pytest.raises(BadRequest, match="already"), held:
                pytest.fail("it was entered twice")
            held.check()
        with held:
            held.check()


def test_block_of_asyncio_locks_the_same_and_leaves_nothing_when_cancelled(site: Site) -> None:
    async def scene() -> None:
        async with await AsyncCluster.open(site.root, node_dir=site.node_dir(), allow_root=True) as cluster:
            lock = PathLock(cluster)
            async with lock(read=["/a"], write=["/b"]) as held:
                held.check()
                waiting = asyncio.ensure_future(lock.delete("/").__aenter__())
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                with pytest.raises(BadRequest, match="asyncio"), lock.read("/a"):
                    pass
            async with lock(write=["/"], timeout_s=5):
                pass
            with pytest.raises(BadRequest, match="blocks"):
                async with PathLock(cluster.core).read("/a"):
                    pass

    asyncio.run(asyncio.wait_for(scene(), 90))


def test_nothing_to_lock_and_names_too_long_are_refused_before_anything_is_asked(site: Site) -> None:
    with site.open() as cluster:
        for read, code in (([], "no-path"), (["/" + "x" * 600], "bad-domain")):
            with pytest.raises(BadRequest) as refused:
                PathLock(cluster)(read=read)
            assert refused.value.code == code
        with pytest.raises(BadRequest):
            PathLock(cluster, "no/tree")
    with pytest.raises(BadRequest) as refused:
        PathLock(None)  # type: ignore[arg-type]
    assert refused.value.code == "bad-type"


def test_program_of_the_page_locks_what_it_says(repository: Path, site: Site, tmp_path: Path) -> None:
    (program,) = blocks((repository / "docs/recipes/paths.md").read_text(encoding="utf-8"), "python")
    said = run_program(program, "/srv/tenure", site, tmp_path)
    held = ["/files IX", "/files/archive IX", "/files/archive/2026 X", "/files/inbox S"]
    assert said == f"{held}\n"
