"""The writer that a process uses where its node has one: hand in first, write oneself where that leaves doubt.

The node's writer is only for speed. A process that gets no clear answer from it writes the same frame into a file of
its own: equal frames of one bag count once, so both may be there. Only "not in the record" is harder to say then: the
frame must be in no file of the closed bag that either of them wrote, and the bytes are looked at to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from appliance.bag.outcome import Committed, NotCommitted, Unknown
from appliance.formats.framing import pieces
from timeagent.errors import TenureError

from .client import Doubt, NotTaken

if TYPE_CHECKING:
    from appliance.bag.authority import Authority
    from appliance.bag.outcome import Outcome
    from appliance.formats.paths import Bag, Grid

    from ..bag.listedfiles import ListedFiles
    from ..bag.writing import FrameFile, Writer
    from .client import Handed


class WriterDoor(Protocol):
    """The node's writer, as a process reaches it."""

    def submit(self, bag: Bag, frames: bytes) -> Handed:
        """Hand whole frames of a bag in and wait for what becomes of them."""
        ...


class SharedWriter:
    """Writes the files of one process into the bags of one log, through its node's writer where that answers."""

    def __init__(self, own: Writer, door: WriterDoor, grid: Grid, authority: Authority, files: ListedFiles) -> None:
        """Touch nothing yet."""
        self._own = own
        self._door = door
        self._grid = grid
        self._authority = authority
        self._files = files
        self._doubts: dict[tuple[str, str], bytes | None] = {}
        """Attempts whose outcome is open, by bag and name: with the incarnation of the node's writer that may have
        written them, or may still; None where only the own file is in doubt. Neither is handed in again: what the
        node's writer says of a later file says nothing of an earlier one."""

    def write(self, file: FrameFile) -> Outcome:
        """Publish the frame, here or there, and find out what became of it. May be repeated while that is Unknown.

        Once the outcome is known it is not asked for again: what the node's writer did is forgotten then. Never raises
        for what the mount, the clock, the node's writer or other nodes do: that is Unknown. Touches the mount; waits
        for the node's writer as long as the door's patience lasts.
        """
        if _key(file) in self._doubts:
            return self._decided(file, self._own.write(file))
        answer = self._door.submit(file.bag, file.data)
        match answer:
            case NotTaken.NOT_TAKEN:
                self._doubts[_key(file)] = None
                return self._decided(file, self._own.write(file))
            case Doubt(reason, incarnation):
                self._doubts[_key(file)] = incarnation
                return Unknown(reason)
            case _:
                return answer

    def resolve(self, file: FrameFile, deadline_boot_ns: int | None = None) -> Outcome:
        """Decide an attempt whose outcome is Unknown by closing its bag, when it is due. Raises Damaged. May wait."""
        return self._decided(file, self._own.resolve(file, deadline_boot_ns))

    def _decided(self, file: FrameFile, own: Outcome) -> Outcome:
        """Join what is known of the own file with what the node's writer may have done."""
        incarnation = self._doubts.get(_key(file))
        outcome = own
        if incarnation is not None and isinstance(own, NotCommitted):
            try:
                outcome = self._searched(file, incarnation, own)
            except TenureError as problem:
                return Unknown(str(problem))
        if not isinstance(outcome, Unknown):
            self._doubts.pop(_key(file), None)
        return outcome

    def _searched(self, file: FrameFile, incarnation: bytes, own: NotCommitted) -> Outcome:
        """Look for the frame in the files of the node's writer that the closed bag lists. Touches the mount."""
        contents = self._authority.read(file.bag)
        if contents is None:
            return Unknown(f"{file.bag.path} is not closed")
        if contents.lock is None:
            return own
        wanted = [piece.payload for piece in pieces(file.data)[0]]
        for entry in contents.lock.entries:
            name = self._grid.data_name(entry.name)
            theirs = name is not None and (name.writer, name.incarnation) == (file.name.writer, incarnation)
            if theirs and any(piece.payload in wanted for piece in self._files.pieces_of(file.bag, entry)):
                return Committed()
        return own


def _key(file: FrameFile) -> tuple[str, str]:
    return file.bag.path, file.name.text()
