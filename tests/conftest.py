"""What every test may ask for, and which tests of many are run."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.shares import FULL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cluster import Site
    from tests.support.shards import World

# The same examples in every run and no limit on seconds: a failure is about the code, never about the machine.
# `make verify` tries all of them; more, and other ones each time: make test ARGS=--hypothesis-profile=explore
settings.register_profile("steady", derandomize=True, deadline=None, database=None, max_examples=FULL // 4)
settings.register_profile("full", derandomize=True, deadline=None, database=None, max_examples=FULL)
settings.register_profile("explore", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile("steady")


MEMORY = Path("/dev/shm")
ROOM = 2 << 30


def pytest_configure() -> None:
    """Put what tests write into memory if that has room: they sync thousands of files, which no test needs again."""
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, default=1, metavar="N", help="one in N of the tests; which, the commit says")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a sample of the tests: another one for each commit, and the same in all processes of a run.

    Outside a git repository it is the same for all commits.
    """
    one_in = config.getoption("--sample")
    if one_in > 1:
        git = ["git", "rev-parse", "HEAD"]
        commit = subprocess.run(git, cwd=config.rootpath, capture_output=True, check=False).stdout
        kept = [each for each in items if zlib.crc32(each.nodeid.encode(), zlib.crc32(commit)) % one_in == 0]
        config.hook.pytest_deselected(items=[each for each in items if each not in kept])
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave thousands of collected tests out of every later search for what can be freed."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).parents[1]


@pytest.fixture(params=["python", "native"])
def each_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the Python reference do the bulk work, then the native core; skipped by name where that is not built."""
    from timeagent import core

    native = core.chosen("" if request.param == "native" else "python")
    if native is None and request.param == "native":
        pytest.skip("the native core is not built here")
    monkeypatch.setattr(core, "native", native)
    return str(request.param)


# What these stand on is imported where one is asked for: it is most of the product.


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A cluster of one node by the machine's own clock, unless a file has a ``site`` of its own."""
    from tests.support.cluster import sites

    yield from sites(tmp_path)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """What is around one shard, its ports driven by hand, unless a file has a ``world`` of its own."""
    from tests.support.shards import worlds

    yield from worlds(tmp_path)
