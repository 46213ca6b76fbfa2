"""Commands that run in the process of a test, and what they say."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING
from unittest.mock import patch

from tenure.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class Said:
    """What a command said."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    def is_error(self, status: int, code: str) -> bool:
        """One line with the code and one with the way out; no data."""
        lines = [line for line in self.err.splitlines() if line]
        named = any(line.endswith(f"[{code}]") for line in lines)
        return (self.status, self.out, named, lines[-1].startswith("  way out: ")) == (status, "", True, True)


def spoken(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one command to its end. What other threads say meanwhile is in what it said."""
    streams = [io.TextIOWrapper(io.BytesIO(text), "utf-8", write_through=True) for text in (stdin.encode(), b"", b"")]
    with ExitStack() as stack:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            stack.enter_context(patch.object(sys, name, stream))
        status = main(list(words))
    out, err = (stream.buffer.getvalue().decode() for stream in streams[1:])
    return subprocess.CompletedProcess(words, status, out, err)


def speaker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """For fixtures: what runs a command and returns what it said."""

    def run(*words: str, stdin: bytes = b"") -> Said:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main(list(words))
        return Said(status, *capsys.readouterr())

    return run
