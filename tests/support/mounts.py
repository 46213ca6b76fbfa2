"""Real mounts for tests: small, full or read-only. Skips where this machine does not let us mount."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _mount(*words: str) -> bool:
    try:
        return subprocess.run(["mount", *words], capture_output=True, check=False, timeout=30).returncode == 0
    except OSError:
        return False


@contextlib.contextmanager
def small_mount(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own, of about this size, at a new directory."""
    place.mkdir()
    if not _mount("-t", "tmpfs", "-o", f"size={size}", "tenure-test", str(place)):
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


def make_read_only(place: Path) -> None:
    if not _mount("-o", "remount,ro", str(place)):
        pytest.skip("this machine does not let us mount read-only")


def fill(place: Path) -> None:
    """Leave no room."""
    with contextlib.suppress(OSError), (place / "filler").open("wb") as filler:
        while True:
            filler.write(bytes(4096))
            filler.flush()
