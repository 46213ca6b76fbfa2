"""Native cores that are built for a test: of the sources as they are, or with a fault in them."""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from release.core import REPOSITORY, build
from timeagent.core import NativeCore


def altered(into: Path, file: str, old: str, new: str) -> Path:
    """Copy the sources with one piece of one file replaced, which must be there exactly once; return where they are."""
    shutil.copytree(REPOSITORY / "native", into)
    text = (into / file).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {file}"
    (into / file).write_text(text.replace(old, new), encoding="utf-8")
    return into


def made(into: Path, flags: Sequence[str] = (), sources: Path = REPOSITORY / "native") -> Path:
    """Build a core, or skip the test where none can be built."""
    path = build(into, flags, sources)
    if path is None:
        if build(into, flags) is not None:
            raise AssertionError("the sources as they are can be built, the altered ones cannot")
        pytest.skip("the core cannot be built here: no C compiler, Python.h or openssl/evp.h")
    return path


def loaded(path: Path) -> NativeCore:
    """Load a core beside the one that may be at work."""
    spec = importlib.util.spec_from_file_location("tenure._core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("NativeCore", module)
