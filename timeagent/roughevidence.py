"""What Roughtime servers were asked and answered, raw, on this node's disk: so many files, the oldest deleted.

``chain-00000001.jsonl`` holds one exchange a line, in the members of a malfeasance report's response. Each file is a
chain by itself: when one is full, the next begins with its last exchange. ``report-00000001.json`` is a malfeasance
report. ``tenure time verify FILE`` judges both.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from .malfeasance import Queried, encode_line, encode_report

LINES_MAX: Final = 256
CHAINS_MAX: Final = 16
REPORTS_MAX: Final = 64

_NUMBERED: Final = re.compile(r"(?:chain|report)-(?P<number>[0-9]{8})\.jsonl?")
_log = logging.getLogger(__name__)


class RoughEvidence(Protocol):
    """Where exchanges and reports are kept. Neither call raises: time goes on without evidence."""

    def keep(self, queried: Queried) -> None:
        """Keep one verified exchange; one without ``rand`` begins a chain."""
        ...

    def report(self, chain: Sequence[Queried]) -> None:
        """Keep a malfeasance report."""
        ...


class RoughEvidenceFiles:
    """A directory of evidence."""

    def __init__(
        self,
        directory: Path,
        *,
        lines_max: int = LINES_MAX,
        chains_max: int = CHAINS_MAX,
        reports_max: int = REPORTS_MAX,
    ) -> None:
        """Take the directory; it is made when there is something to keep."""
        assert lines_max > 1
        self._directory = directory
        self._lines_max = lines_max
        self._most = {"chain": chains_max, "report": reports_max}
        self._file: Path | None = None
        self._lines = 0
        self._last: Queried | None = None

    def keep(self, queried: Queried) -> None:
        """Append one line. What fails is logged."""
        try:
            if self._file is None or queried.rand is None or self._lines >= self._lines_max:
                linked = self._last is not None and queried.rand is not None
                first = replace(self._last, rand=None) if linked and self._last else replace(queried, rand=None)
                self._file, self._lines = self._new("chain", ".jsonl", encode_line(first)), 1
                if not linked:
                    self._last = queried
                    return
            with self._file.open("ab") as file:
                file.write(encode_line(queried))
            self._lines += 1
            self._last = queried
        except OSError as problem:
            self._file = None
            self._failed(problem)

    def report(self, chain: Sequence[Queried]) -> None:
        """Write one report."""
        try:
            path = self._new("report", ".json", encode_report(chain))
        except OSError as problem:
            self._failed(problem)
        else:
            _log.error("roughtime-malfeasance report=%s", path)

    def _new(self, kind: str, suffix: str, data: bytes) -> Path:
        """Write the first bytes of the next file of a kind, and delete the oldest beyond the limit."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = sorted(path for path in self._directory.glob(f"{kind}-*") if _NUMBERED.fullmatch(path.name))
        number = int(kept[-1].stem.partition("-")[2]) + 1 if kept else 1
        path = self._directory / f"{kind}-{number:08d}{suffix}"
        with path.open("xb") as file:
            file.write(data)
        for old in kept[: max(0, len(kept) + 1 - self._most[kind])]:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()
        return path

    def _failed(self, problem: OSError) -> None:
        _log.warning("roughtime-evidence-not-kept directory=%s reason=%s", self._directory, problem.strerror)
