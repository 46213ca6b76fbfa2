"""The evidence that findings and replay show: of a copy that was read, or of a root that is audited on demand.

Reading happens in a thread of its own: a mount that hangs holds up nobody, and the screens say what is going on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from timeagent.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from auditor.explain.archive import Archive

    from .recorded import Record
    from .state import ClusterState

    class Worker(Protocol):
        """Who does things in threads: app.py."""

        def work[T](self, body: Callable[[], T], take: Callable[[T | TenureError], None]) -> None:
            """Do it elsewhere, and hand over what it came to, or why there is nothing."""
            ...

        def complain(self, problem: TenureError, what: str) -> None:
            """Say over any screen that something was not done, and why."""
            ...


class Shelf:
    """Has one archive at most. Everything but ``_read`` is called by the screen's own thread."""

    def __init__(self, worker: Worker) -> None:
        """Have nothing yet."""
        self._worker = worker
        self._busy = False
        self._done = ""
        self.archive: Archive | None = None
        self.problem: TenureError | None = None

    def take_record(self, record: Record | None) -> None:
        """Use a copy that was read already, once."""
        if record is None or self._busy or self.archive is not None or self.problem is not None:
            return

        def body() -> Archive:
            from auditor.explain.archive import Archive  # noqa: PLC0415 - the auditor is loaded by who asks for it

            return Archive(record.tree, record.audit, record.timeline)

        self._begin("looking through the copy", body)

    def audit_now(self, state: ClusterState) -> None:
        """Read and audit the whole root that a state is of, again if that was done before."""
        if self._busy:
            return
        path = Path(state.path)

        def body() -> Archive:
            from auditor.evidence.opening import open_tree  # noqa: PLC0415
            from auditor.explain.archive import read_archive  # noqa: PLC0415

            return read_archive(open_tree(path), step=self._step)

        self._begin("opening the tree", body)

    def words(self, state: ClusterState | None) -> str:
        """Say why there is nothing to be seen yet."""
        if self._busy:
            return f"{self._done} …"
        if self.problem is not None:
            hint = f" {self.problem.hint}" if self.problem.hint else ""
            return f"no audit: {self.problem.message}.{hint}  a tries again"
        if state is not None and state.mount.problem:
            return f"not known yet: {state.mount.problem}"
        return "not audited yet: a audits the whole tree now, as tenure audit does"

    @property
    def busy(self) -> bool:
        """Whether something is being read."""
        return self._busy

    def _begin(self, words: str, body: Callable[[], Archive]) -> None:
        self._busy, self._done, self.problem = True, words, None
        self._worker.work(body, self._take)

    def _take(self, found: Archive | TenureError) -> None:
        self._busy = False
        if isinstance(found, TenureError):
            self.problem = found
            if self.archive is not None:  # it stays in sight, and hides why there is no newer one
                self._worker.complain(found, "not audited again")
        else:
            self.archive = found

    def _step(self, part: str, done: int, what: str) -> None:
        del what
        words = {"audit": "auditing the tree: {:,} parts", "timeline": "putting it in order of time: {:,} files"}
        self._done = words[part].format(done)
