"""Hostile bytes and wrong objects for a native core that watches every step (fuzz_core.py): a short run of it."""

import contextlib
import gc
import os
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any, cast

import pytest

from appliance.lease.wire import Reply
from release.core import SANITIZERS
from tests.property.fuzz_core import Recording, fuzz, nothing, own_places
from tests.property.test_lease_plain import Sides
from tests.support.native import altered, loaded, made
from tests.support.shards import TERM, acquire, opened, relinquish
from timeagent import core
from timeagent.core import NativeCore


def watched(
    path: Path, repository: Path, inputs: int, module: str = "tests.property.fuzz_core", seed: int = 1
) -> subprocess.CompletedProcess[str]:
    """Run the fuzz on a core that was built with sanitizers."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    if not Path(library.stdout.strip()).is_absolute():
        pytest.skip("gcc has no AddressSanitizer here")
    return subprocess.run(
        [sys.executable, "-m", module, "--inputs", str(inputs), "--seed", str(seed), "--core", str(path)],
        cwd=repository,
        env={
            **os.environ,
            "LD_PRELOAD": library.stdout.strip(),
            "PYTHONMALLOC": "malloc",  # or what Python gives out is one block for the sanitizer
            "ASAN_OPTIONS": "detect_leaks=0",  # interpreters leave much behind when they end
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_core_agrees_on_hostile_frames() -> None:
    native = core.chosen("")
    if native is None:
        pytest.skip("the native core is not here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "native", native)  # put back
        calls, granted = fuzz(native, 300, 1)
    assert 300 > calls > granted > 10


@pytest.mark.verify
@pytest.mark.timeout(0)
def test_core_agrees_and_stays_within_its_memory(tmp_path: Path, repository: Path) -> None:
    done = watched(made(tmp_path, SANITIZERS), repository, 10_000)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "10000 frames" in done.stdout


@pytest.mark.verify
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("put(pieces, name, NAME_BYTES);", "put(pieces, name, 3 * NAME_BYTES);", "heap-buffer-overflow"),
        ("index >= (uint64_t)PyTuple_Size(entries)", "0", "runtime error"),
        ("    Py_INCREF(*who);\n", "", "heap-use-after-free"),
    ],
)
def test_step_outside_is_found(old: str, new: str, said: str, tmp_path: Path, repository: Path) -> None:
    done = watched(made(tmp_path, SANITIZERS, altered(tmp_path / "native", "turn.c", old, new)), repository, 2000)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr[-4000:]


def honest_calls(native: NativeCore) -> list[dict[str, tuple[Any, ...]]]:
    """What the core was called with in a few plain turns."""
    seen: dict[str, tuple[Any, ...]] = {}
    calls = []
    sides = Sides(cast("NativeCore", Recording(native, seen)))
    try:
        for each in (sides.holders, *(side.world for side in sides.all)):
            each.time.advance(3 * TERM)
        sides.serve([acquire(sides.holders, "a")])  # whose holder is known from then on
        granted = sides.serve([acquire(sides.holders, domain) for domain in "bcd"])
        calls.append(dict(seen))
        sides.serve([relinquish(sides.holders, opened(cast("Reply", each))[1]) for each in granted])
        calls.append(dict(seen))
        sides.serve([acquire(sides.holders, domain) for domain in "be"])
        return [*calls, dict(seen)]
    finally:
        sides.close()


def grown(native: NativeCore) -> int:
    """How many bytes more there are after many calls, good and refused ones."""
    calls = honest_calls(native)

    def again() -> None:
        for seen in calls:
            kinds, words, ports, places, numbers, requests = seen["answered"]
            ports = (nothing, nothing, ports[2], ports[3], random.Random(1).randbytes, nothing, nothing)
            for name, arguments in (
                ("answered", (kinds, words, ports, places, numbers, requests)),
                ("replies", seen["replies"]),
                ("tree", (list(seen["replies"][3]),)),
            ):
                function = getattr(native, name)
                for at in range(len(arguments) + 1):  # at last as it was
                    own = own_places(arguments) if name == "answered" else arguments
                    with contextlib.suppress(*[Exception] * (at < len(arguments))):
                        function(*[None if n == at else each for n, each in enumerate(own)])

    again()
    tracemalloc.start()
    try:
        again()
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(100):
            again()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_core_keeps_nothing_of_a_call() -> None:
    native = core.chosen("")
    if native is None:
        pytest.skip("the native core is not here")
    assert min(grown(native) for _ in range(3)) < 2000, "each time: threads of other tests may want memory now and then"


def test_core_goes_on_where_there_is_no_memory(repository: Path) -> None:
    if core.chosen("") is None:
        pytest.skip("the native core is not here")
    pytest.importorskip("_testcapi")
    done = subprocess.run(
        [sys.executable, "-m", "tests.property.starved"], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) > 500


@pytest.mark.verify
@pytest.mark.parametrize("given_back", ["    Py_DECREF(requests);\n", "        Py_XDECREF(below);\n"])
def test_core_that_keeps_something_is_found(given_back: str, tmp_path: Path) -> None:
    sources = altered(tmp_path / "native", "turn.c", given_back, "")
    assert grown(loaded(made(tmp_path, sources=sources))) > 2000
