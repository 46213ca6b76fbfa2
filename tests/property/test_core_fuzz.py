"""Hostile bytes and wrong objects for a native core that watches every step (fuzz_core.py): a short run of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from release.core import SANITIZERS
from tests.support.native import altered, made


def watched(
    path: Path, repository: Path, inputs: int, module: str = "tests.property.fuzz_core"
) -> subprocess.CompletedProcess[str]:
    """Run the fuzz on a core that was built with sanitizers."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    if not Path(library.stdout.strip()).is_absolute():
        pytest.skip("gcc has no AddressSanitizer here")
    return subprocess.run(
        [sys.executable, "-m", module, "--inputs", str(inputs), "--core", str(path)],
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


@pytest.mark.verify
def test_core_agrees_and_stays_within_its_memory(tmp_path: Path, repository: Path) -> None:
    done = watched(made(tmp_path, SANITIZERS), repository, 500)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "500 frames" in done.stdout


@pytest.mark.verify
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("put(both, bytes, NAME_BYTES);", "put(both, bytes, 3 * NAME_BYTES);", "heap-buffer-overflow"),
        ("index >= (uint64_t)PyTuple_Size(entries)", "0", "Sanitizer"),
        ("    Py_INCREF(*who);\n", "", "heap-use-after-free"),
    ],
)
def test_step_outside_is_found(old: str, new: str, said: str, tmp_path: Path, repository: Path) -> None:
    done = watched(made(tmp_path, SANITIZERS, altered(tmp_path / "native", "turn.c", old, new)), repository, 2000)
    assert done.returncode != 0
    assert said in done.stderr, done.stderr[-4000:]
