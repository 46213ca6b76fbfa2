"""A copy that was read whole, for looking at: its audit, its timeline, and what is needed to look closer.

Everything that explains one tree again and again (screens, explanations) shares one of these, so that each signature is
checked once.

The database that a timeline can be read from is made by a program of its own: who shows it needs neither the memory nor
the time of that. It says how far it is on stdout, a line of JSON each; when nobody reads that any more, it ends:

    python -P -m auditor.explain.archive TREE FILE
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from auditor.columns.events import AS_IT_WAS, NAME_THE_COPY, NEEDS_TREE, WhatIf
from auditor.evidence.finding import Finding
from auditor.evidence.records import ClusterRecords, load_records
from auditor.evidence.signatures import FrameReader, Signatures
from auditor.evidence.tree import Tree
from auditor.rules.result import Audit
from auditor.timeline.timeline_reader import Timeline
from timeagent import errors
from timeagent.errors import BadRequest, TenureError

from .context import Traces

if TYPE_CHECKING:
    from auditor.timeline.what_if import Changes

type ReadingStep = Callable[[str, int, str], None]
"""Told of what goes on: which part of the work ("audit", "timeline"), how much of it is done, and what is read."""


@dataclass(frozen=True)
class Archive:
    """A tree with its audit and its timeline. Safe to share between threads."""

    copy: Tree | None
    """None: there is only what its audit has kept."""
    audit: Audit
    timeline: Timeline
    signatures: Signatures = field(default_factory=Signatures)
    root_key: bytes | None = None

    @property
    def tree(self) -> Tree:
        """The tree, where bytes are needed. Raises BadRequest where there is only the index."""
        if self.copy is None:
            raise BadRequest(NEEDS_TREE, "the bytes are in the copy, and only its index is here", hint=NAME_THE_COPY)
        return self.copy

    @cached_property
    def records(self) -> ClusterRecords:
        return load_records(self.tree, self.signatures, self.root_key)[0]

    def changed(self, lens: WhatIf) -> tuple[Timeline, Changes]:
        """Read the tree again as if something had been otherwise. Returns its timeline, and which findings differ.

        Costs as much as reading the tree twice.
        """
        from auditor.timeline.what_if import changes  # noqa: PLC0415 - who only looks does not load what judges

        timeline, after = self._judged(lens)
        return timeline, changes(self._as_it_was, after)

    @cached_property
    def _as_it_was(self) -> list[Finding]:
        return self._judged(AS_IT_WAS)[1]

    def _judged(self, lens: WhatIf) -> tuple[Timeline, list[Finding]]:
        from auditor.timeline.what_if import judged_timeline  # noqa: PLC0415 - as above

        return judged_timeline(self.tree, lens, root_key=self.root_key, signatures=self.signatures)

    @cached_property
    def frames(self) -> FrameReader:
        """Reads frames of this tree again, with the answers so far."""
        return FrameReader(self.signatures, self.records.cluster_id)

    @cached_property
    def leases(self) -> Traces:
        """Return every lease by domain and correlation id, those of a domain in the order of their first witness."""
        return Traces(self.timeline)


def read_archive(tree: Tree, *, step: ReadingStep | None = None) -> Archive:
    """Audit a tree and read its timeline. Never raises for what is in it. Blocks as long as both take.

    ``step`` is called again and again while that goes on; what it raises ends the reading.
    """
    from auditor.audit import audit_with_timeline  # noqa: PLC0415 - as above

    def audited(done: int, total: int, _messages: int, what: str) -> None:
        if step:
            step("audit" if done < total else "timeline", done, what)

    signatures = Signatures()
    result, timeline = audit_with_timeline(tree, signatures=signatures, progress=audited)
    timeline.state_at()  # folded here, where one waits anyway
    return Archive(tree, result, timeline, signatures)


UNREAD: Final = 141
UNCAUGHT: Final = 1
"""How Python ends with an exception: a bug."""
LINES_MAX: Final = 20
"""So much is told of what a program said that failed otherwise than by an error of ours."""


def make_index(tree: Path, file: Path, progress: Callable[[int, int, int, str], None]) -> None:
    """Audit a tree into a file, with its timeline, or bring that up to date. Blocks; ``progress`` is that of ``audit``.

    Raises TenureError with what the audit raised.
    """
    # -P: modules of ours, never files of the directory that one is in, which may be the copy itself.
    command = [sys.executable, "-P", "-m", __name__, str(tree.absolute()), str(file.absolute())]
    problem: dict[str, str] | None = None
    words: deque[str] = deque(maxlen=LINES_MAX)
    with subprocess.Popen(  # noqa: S603 - words of ours
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        for line in program.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                words.append(line)
                continue
            if isinstance(said, dict):
                problem = said
            else:
                progress(*said)
    if problem is not None:
        kind: type[TenureError] = getattr(errors, problem.pop("kind"))
        raise kind(**problem)
    if program.returncode:
        what = f"the index of {tree} was not made: {''.join(words).strip() or program.returncode}"
        if program.returncode == UNCAUGHT:
            raise AssertionError(what)
        raise TenureError("index-failed", what, hint="see what tenure audit says of it")


def main(words: list[str]) -> int:
    from auditor.audit import Options, audit  # noqa: PLC0415 - who shows it needs none of this
    from auditor.evidence.opening import open_tree  # noqa: PLC0415

    tree, file = words

    def tell(*said: object) -> None:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    try:
        options = Options(jobs=0, index_file=Path(file), timeline=True)
        audit(open_tree(Path(tree)), options=options, progress=tell)
    except BrokenPipeError:
        return UNREAD
    except TenureError as problem:
        said = {"code": problem.code, "message": problem.message, "hint": problem.hint}
        sys.stdout.write(json.dumps({"kind": type(problem).__name__} | said) + "\n")
        return problem.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
