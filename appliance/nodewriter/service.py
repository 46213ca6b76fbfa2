"""The node's writer itself: checks what it is handed, and writes it under names of its own incarnation.

It puts no word into anybody's mouth: frames are stored as they came, each with the incarnation, the sequence and the
witnesses of the process that made it. What it adds is one file, one publication and one pair of looks for all of them.
"""

from __future__ import annotations

import logging
from threading import Lock
from typing import TYPE_CHECKING, Final, Protocol

from appliance.bag.outcome import Committed, Unknown
from appliance.formats.frame import open_frame
from appliance.formats.framing import pieces
from appliance.formats.paths import DataName
from timeagent.errors import Damaged, TenureError

from ..bag.writing import FrameFile
from .batcher import Batcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.outcome import Outcome
    from appliance.formats.paths import Bag, Grid

    from ..bag.writing import Writer
    from .batcher import Told
    from .wire import Submit

_log = logging.getLogger(__name__)

TRIES: Final = 2
"""An attempt in doubt is tried once more, as it is: that is safe, and tells a lost reply from a failure."""


class WritableLog(Protocol):
    """An open log, as far as a writer needs it."""

    @property
    def grid(self) -> Grid:
        """Where its bags lie."""
        ...

    @property
    def writer(self) -> Writer:
        """What writes into them."""
        ...


class NodeWriter:
    """Everything but the socket. ``submit`` may be called by any thread; ``batcher.run`` or ``.turn`` write."""

    def __init__(self, cluster_id: bytes, node: str, incarnation: bytes, opened: Callable[[str], WritableLog]) -> None:
        """Write for one node. ``incarnation``: 8 random bytes. ``opened``: opens a log by name, for this alone."""
        self.cluster_id = cluster_id
        self.node = node
        self.incarnation = incarnation
        self.batcher = Batcher(self._write)
        self._opened = opened
        self._logs: dict[str, WritableLog] = {}
        self._sequence = 0
        self._lock = Lock()

    def submit(self, submission: Submit, told: Told) -> str | None:
        """Queue a submission; return None, or why it is refused: then nothing of it will ever be written.

        Touches the mount when a log is used for the first time.
        """
        try:
            bag = self._checked(submission)
        except TenureError as problem:
            return str(problem)
        return self.batcher.submit(bag, submission.frames, told)

    def _checked(self, submission: Submit) -> Bag:
        """Return the bag if these are whole frames of it: one bad one would spoil the file for everybody."""
        log = self._log(submission.log)
        bag = log.grid.bag(submission.bag_start_ns)
        found, rest = pieces(submission.frames)
        if rest or not found or bag.start_ns != submission.bag_start_ns:
            raise Damaged("submission-damaged", f"no whole frames of {bag.path}: {rest or 'no bag begins there'}")
        for piece in found:
            frame = open_frame(piece, "a submission")
            head = frame.head
            if (head.cluster_id, head.log, head.writer) != (self.cluster_id, submission.log, self.node):
                raise Damaged("submission-foreign", f"a frame of {head.writer} for {head.log!r}, not of {self.node}")
            if not bag.start_ns <= int(frame.timestamps[0]) <= int(frame.timestamps[-1]) < bag.end_ns:
                raise Damaged("submission-foreign", f"a frame whose messages do not lie in {bag.path}")
        return bag

    def _write(self, bag: Bag, data: bytes) -> Outcome:
        log = self._log(bag.log)
        with self._lock:
            self._sequence += 1
            name = DataName(self.node, self.incarnation, self._sequence, log.grid.birth.kind.suffix)
        file = FrameFile(bag, name, data)
        outcome: Outcome = Unknown("not tried")
        for attempt in range(TRIES):
            outcome = log.writer.write(file)
            if isinstance(outcome, Committed) and attempt:
                return Committed()  # in a log bag the first try may have left the same frames in another file
            if not isinstance(outcome, Unknown):
                return outcome
        _log.warning("flush-in-doubt bag=%s reason=%s", bag.path, outcome)
        return outcome

    def _log(self, name: str) -> WritableLog:
        with self._lock:
            known = self._logs.get(name)
        if known is None:
            known = self._opened(name)
            with self._lock:
                known = self._logs.setdefault(name, known)
        return known
