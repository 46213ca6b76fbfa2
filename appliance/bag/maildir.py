"""Write one file into a bag of a maildir log, to one of three outcomes (docs/protocol/bag.md).

1. ensure     the bag's directory is there;
2. publish    the complete file appears under its own name, or its outcome is doubtful;
3. look       afresh, at the bag and then at its rack, always: no clock excuses it, because a paused machine's clock
              cannot be believed. No prelock in either: whoever closes later will list the file. Otherwise the closing
              is finished here and now, and what it recorded is the outcome.

Up to step 3 everything may be repeated: the name belongs to this writer, incarnation and sequence alone, so that a file
that is there already is ours.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from appliance.formats.paths import PRELOCK
from timeagent.errors import Damaged, LeaseholdError
from timeagent.units import MS

from .authority import Authority
from .closer import NotDue
from .outcome import Committed, NotCommitted, Unknown
from .storage import Published

if TYPE_CHECKING:
    from appliance.formats.paths import Bag, DataName, Grid

    from .authority import Contents
    from .context import BagContext
    from .outcome import Outcome

_SLICE_NS: Final = 100 * MS
"""How long a wait goes on before the mount is looked at again: somebody may have closed the bag early."""


@dataclass(frozen=True, slots=True)
class FrameFile:
    """One attempt: a bag, a name that no other attempt has, and the whole frame."""

    bag: Bag
    name: DataName
    data: bytes


class MaildirWriter:
    """Writes complete files into the bags of one log."""

    def __init__(self, context: BagContext, grid: Grid, authority: Authority | None = None) -> None:
        """Touch nothing yet."""
        self._storage = context.storage
        self._time = context.time
        self._tmp = context.tmp(grid.birth.log)
        self._first_ns = grid.first_ns
        self._authority = authority or Authority(context, grid)
        self._ensured = ""

    def write(self, file: FrameFile) -> Outcome:
        """Publish the file and find out what became of it. Repeating the same file is safe and may decide an Unknown.

        Never raises for what the mount, the clock or other nodes do: that is Unknown, with the reason. Touches the
        mount; does not wait.
        """
        assert file.name.suffix == "msg"
        if file.bag.start_ns < self._first_ns:
            return NotCommitted(f"{file.bag.path} is older than the log")
        try:
            self._publish(file)
        except LeaseholdError as doubt:
            return self._after_doubt(file, doubt)
        try:
            return self._look(file)
        except LeaseholdError as problem:
            return Unknown(str(problem))

    def resolve(self, file: FrameFile, deadline_boot_ns: int | None = None) -> Outcome:
        """Decide an attempt whose outcome is Unknown, without publishing anything: close its bag, when it is due.

        Waits for that, in slices, at most until the deadline (boot time). Unknown only if the deadline passed or the
        mount or the clock fails. Raises Damaged: then nobody can decide it.
        """
        try:
            while isinstance(closed := self._authority.close(file.bag), NotDue):
                if self._is_in_time(file):
                    return Committed()
                if deadline_boot_ns is not None and self._time.boot_ns() >= deadline_boot_ns:
                    return Unknown(f"{file.bag.path} is not closed yet")
                self._time.sleep(_SLICE_NS)
            return _decided(file, closed)
        except Damaged:
            raise
        except LeaseholdError as problem:
            return Unknown(str(problem))

    def _publish(self, file: FrameFile) -> None:
        # Remembered, not looked up: a bag's directory goes only after a seal, and then ABSENT leads to the seal.
        if self._ensured != file.bag.path:
            self._storage.ensure_directory(file.bag.path)
            self._ensured = file.bag.path
        published = self._storage.publish(f"{file.bag.path}/{file.name.text()}", file.data, self._tmp)
        if published is Published.ABSENT:
            self._ensured = ""

    def _look(self, file: FrameFile) -> Outcome:
        """Look at bag and rack after the publication has returned."""
        name = file.name.text()
        seen = self._storage.look(file.bag.path, (name, PRELOCK))
        if seen is None or name not in seen:
            return _decided(file, self._authority.by_seal(file.bag))
        if PRELOCK in seen:
            closed = self._authority.closer.help(file.bag)
            return _decided(file, self._authority.answer(file.bag, closed))
        if self._authority.rack_begun(file.bag.rack):
            return _decided(file, self._authority.by_seal(file.bag))
        return Committed()

    def _after_doubt(self, file: FrameFile, doubt: LeaseholdError) -> Outcome:
        """Look after a publication that may be happening still."""
        try:
            return self._look(file) if self._is_there(file) else Unknown(str(doubt))
        except LeaseholdError as problem:
            return Unknown(f"{doubt}; then {problem}")

    def _is_in_time(self, file: FrameFile) -> bool:
        """Whether the file is there and nobody has begun to close."""
        return self._is_there(file) and isinstance(self._look(file), Committed)

    def _is_there(self, file: FrameFile) -> bool:
        """Whether the file has appeared. The look for the prelock must be another one, begun after this.

        Within one look the two names are not seen at one instant: a link that is still under way could appear after the
        prelock was found absent and a closer has listed.
        """
        return bool(self._storage.look(file.bag.path, (file.name.text(),)))


def _decided(file: FrameFile, contents: Contents) -> Outcome:
    """Return what the record says of the attempt. Raises Damaged if it holds other bytes under our name."""
    if contents.lock is None:
        return NotCommitted(f"late: the rack was sealed without {file.bag.path}")
    entry = contents.lock.by_name().get(file.name.text())
    if entry is None:
        return NotCommitted(f"late: {file.bag.path} was closed before the file was there")
    if entry.size != len(file.data) or entry.digest != hashlib.sha256(file.data).digest():
        raise Damaged(
            "other-bytes",
            f"{file.bag.path} lists {entry.name} with {entry.size} bytes, not the {len(file.data)} that were written",
            hint="two processes share one writer incarnation, or the file was altered",
        )
    return Committed()
