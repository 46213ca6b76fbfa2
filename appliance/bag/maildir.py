"""Write one file into a bag of a maildir log, to one of three outcomes (docs/protocol/bag.md).

1. ensure     the bag's directory is there;
2. publish    the complete file appears under its own name, or its outcome is doubtful;
3. look       afresh, at the bag and then at its rack, always (looks.py).

Up to step 3 everything may be repeated: the name belongs to this writer, incarnation and sequence alone, so that a file
that is there already is ours. All the same it is compared: a virtual machine that was copied while it ran goes on
twice, under one incarnation, and the second to come must not take the first one's file for its own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from timeagent.errors import Damaged

from .looks import FrameFile, LookingWriter
from .outcome import Committed, NotCommitted
from .storage import Published

if TYPE_CHECKING:
    from appliance.formats.paths import Grid

    from .authority import Authority, Contents
    from .context import BagContext
    from .outcome import Outcome

__all__ = ["FrameFile", "MaildirWriter"]


_TWINS: Final = "two processes share one writer incarnation, or the file was altered: start the process again"


class MaildirWriter(LookingWriter):
    """Writes complete files into the bags of one log."""

    def __init__(self, context: BagContext, grid: Grid, authority: Authority | None = None) -> None:
        """Touch nothing yet."""
        super().__init__(context, grid, authority)
        self._tmp = context.tmp(grid.birth.log)

    def _publish(self, file: FrameFile) -> None:
        assert file.name.suffix == self._grid.birth.kind.suffix
        self._ensure(file.bag)
        published = self._storage.publish(f"{file.bag.path}/{file.name.text()}", file.data, self._tmp)
        if published is Published.ABSENT:
            self._ensured = ""
        elif published is Published.LOST and self._there(file) not in (None, file.data):
            raise Damaged("other-bytes", f"{file.bag.path} holds another file named {file.name.text()}", hint=_TWINS)

    def _file_name(self, file: FrameFile) -> str:
        return file.name.text()

    def _is_there(self, file: FrameFile) -> bool:
        """A file appears complete; and under its name there may be a twin's."""
        return bool(self._storage.look(file.bag.path, (file.name.text(),))) and self._there(file) == file.data

    def _there(self, file: FrameFile) -> bytes | None:
        return self._storage.read(f"{file.bag.path}/{file.name.text()}")

    def _listed(self, file: FrameFile, contents: Contents) -> Outcome:
        """Return what the list says. Raises Damaged if it holds other bytes under our name."""
        assert contents.lock is not None
        entry = contents.lock.by_name().get(file.name.text())
        if entry is None:
            return NotCommitted(f"late: {file.bag.path} was closed before the file was there")
        if entry.size != len(file.data) or entry.digest != hashlib.sha256(file.data).digest():
            raise Damaged(
                "other-bytes",
                f"{file.bag.path} lists {entry.name} with {entry.size} bytes, not the {len(file.data)} of this attempt",
                hint=_TWINS,
            )
        return Committed(entry.name)
