"""Copies that the usual tools make of a directory, held up again and again while others write to it.

A tool is stopped and let go on by signals: as one that copies over a slow line, it sees each directory and each file at
an instant of its own, and in between the cluster does much.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from timeagent.clock import SystemClock
from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK = SystemClock()
SLICE_NS = MS
"""How long a tool works between two halts."""
VANISHED = frozenset({0, 1, 18, 24})
"""How tools end that copied all that was there when they came to it: tar and cp say 1, zip 18, rsync 24."""


@dataclass(frozen=True)
class Way:
    """One way to copy: commands, one after another. ``{root}``: what is copied; ``{to}``: where to."""

    name: str
    commands: tuple[str, ...]
    unpack: str = ""
    """What is done with the result, when nobody is held up any more."""
    audited: str = "{to}"
    """What is audited."""
    keeps: bool = False
    """Whether one copy is brought up to date again and again."""

    def missing(self) -> list[str]:
        """Return which of the programs are not on this machine."""
        tools = {command.split()[0] for command in (*self.commands, self.unpack) if command}
        return sorted(tool for tool in tools if shutil.which(tool) is None)


OURS = "--exclude /tmp/ --exclude /logs/*/tmp/"
"""As docs/operators.md has it."""
WAYS = (
    Way("cp", ("cp -a {root} {to}",)),
    Way("rsync", (f"rsync -a {OURS} {{root}}/ {{to}}",) * 2),
    Way("tar", ("tar -C {root} -cf {to}.tar .",), audited="{to}.tar"),
    Way("zip", ("zip -qr {to}.zip .",), unpack="unzip -q {to}.zip -d {to}"),
)
MORE_WAYS = (
    Way("cp-r", ("cp -r {root} {to}",)),
    Way("rsync-once", ("rsync -a {root}/ {to}",)),
    Way("rsync-kept", ("rsync -a --delete {root}/ {to}",), keeps=True),
    Way("rsync-in-place", ("rsync -a {root}/ {to}", "rsync -a --inplace --delete {root}/ {to}")),
)


def copy(way: Way, root: Path, to: Path, halt: Callable[[], object]) -> Path:
    """Copy a directory, and return what is to be audited. ``halt`` is called again and again, while the tool stands."""
    places = {"root": str(root), "to": str(to)}
    for command in way.commands:
        _held(command.format(**places).split(), root, halt)
    if way.unpack:
        subprocess.run(way.unpack.format(**places).split(), check=True, capture_output=True)
    return Path(way.audited.format(**places))


def _held(words: list[str], root: Path, halt: Callable[[], object]) -> None:
    """Run a tool, in a process group of its own, and hold it up."""
    with subprocess.Popen(words, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0) as tool:
        while tool.poll() is None:  # until then nobody has reaped it, and the group is its own
            os.killpg(tool.pid, signal.SIGSTOP)
            try:
                halt()
            finally:
                os.killpg(tool.pid, signal.SIGCONT)
            CLOCK.sleep(SLICE_NS)
        assert tool.stderr is not None
        assert tool.returncode in VANISHED, tool.stderr.read().decode(errors="replace")
