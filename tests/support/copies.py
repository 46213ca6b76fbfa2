"""A copied tree on the screens, driven by the pilot: fixed bytes, no clock that goes on, nothing from a mount."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from auditor.audit import Options, audit
from auditor.evidence.opening import open_tree
from tests.support.machine import HandMachine
from tui.app import TopApp
from tui.feed import Feed
from tui.sources.record import RecordSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from textual.pilot import Pilot

WIDE, SMALL, LARGE = (120, 36), (80, 24), (200, 60)
SIZES = (SMALL, WIDE, LARGE)
LOOKS_MAX = 6_000
"""Each a hundredth of a second and more: a loaded machine is slow, and no test fails for that."""

type Course = Callable[[Pilot[None], TopApp], Awaitable[None]]


async def until(pilot: Pilot[None], so: Callable[[], object]) -> None:
    """Wait for something to be so."""
    for _ in range(LOOKS_MAX):
        if so():
            return
        await pilot.pause(0.01)
    raise AssertionError(f"it never came to be: {so}")


_INDEXES: dict[object, tuple[bytes, list[tuple[int, int, int, str]]]] = {}
"""By a tree's path and what its files are: its index, and what was told of the way there."""


def _make_index(tree: Path, file: Path, progress: Callable[[int, int, int, str], None]) -> None:
    """Make an index as the program for it does (`auditor.explain.archive`), without starting that; once a tree."""
    files = [(each, status) for each in sorted(tree.rglob("*")) if (status := each.lstat())]
    key = tree, tuple((each, status.st_size, status.st_mtime_ns, status.st_ino) for each, status in files)
    if not file.exists() and key in _INDEXES:
        index, told = _INDEXES[key]
        file.write_bytes(index)
        for step in told:
            progress(*step)
        return
    told = []

    def tell(*step: Any) -> None:  # noqa: ANN401 - passed on
        told.append(step)
        progress(*step)

    audit(open_tree(tree), options=Options(jobs=1, index_file=file, timeline=True), progress=tell)
    _INDEXES[key] = file.read_bytes(), told


@contextmanager
def indexed_here() -> Iterator[None]:
    """Let copies be read in this process."""
    with patch(f"{RecordSource.__module__}.make_index", _make_index):
        yield


def drive_copy(root: Path, course: Course, *, size: tuple[int, int] = WIDE, first: str = "overview") -> None:
    """Open the screens on a copy, wait for it to be read in this process, and let a course run."""

    async def run() -> None:
        machine = HandMachine()
        app = TopApp(Feed(RecordSource(root, machine), machine), first=first)
        app.export_to = root.parent
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.state is not None and app.state.cluster_id)
            await pilot.pause()
            await course(pilot, app)

    with indexed_here():
        asyncio.run(run())


def seen(app: TopApp) -> list[str]:
    """Every line of the terminal, as text."""
    width, height = app.size
    lines = app.screen._compositor.render_strips()
    assert len(lines) == height
    return ["".join(segment.text for segment in strip)[:width] for strip in lines]
