"""What the writers of both kinds of bags share: the looks after a publication, and what they decide.

A writer looks afresh, at the bag and then at its rack, after it has published, always: no clock excuses it, because a
paused machine's clock cannot be believed. No prelock in either: whoever closes later will list what was published.
Otherwise the closing is finished here and now, and what it recorded is the outcome.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from appliance.formats.paths import PRELOCK, Bag, DataName
from timeagent.errors import Damaged, TenureError
from timeagent.units import MS

from .authority import Authority
from .closer import NotDue
from .outcome import Committed, NotCommitted, Unknown

if TYPE_CHECKING:
    from appliance.formats.paths import Grid

    from .authority import Contents
    from .context import BagContext
    from .outcome import Outcome

_SLICE_NS: Final = 100 * MS
"""How long a wait goes on before the mount is looked at again: somebody may have closed the bag early."""


class FrameFile(msgspec.Struct, frozen=True):
    """One attempt: a bag, a name that no other attempt has, and one or several whole frames.

    In a maildir bag the name is also the file's. In a log bag the frames go into files of the same writer and
    incarnation, several attempts into one, and one attempt perhaps into several.
    """

    bag: Bag
    name: DataName
    data: bytes


class Writer(Protocol):
    """Writes attempts into the bags of one log, to one of three outcomes."""

    def write(self, file: FrameFile) -> Outcome:
        """Publish an attempt and find out what became of it. Repeating the same one is safe and may decide an Unknown.

        Never raises for what the mount, the clock or other nodes do: that is Unknown, with the reason. Touches the
        mount; does not wait.
        """
        ...

    def resolve(self, file: FrameFile, deadline_boot_ns: int | None = None) -> Outcome:
        """Decide an attempt whose outcome is Unknown, without publishing anything: close its bag, when it is due.

        Waits for that, in slices, at most until the deadline (boot time). Unknown only if the deadline passed or the
        mount or the clock fails. Raises Damaged: then nobody can decide it.
        """
        ...


class LookingWriter(ABC):
    """A Writer but for how an attempt is published and what a list says of it."""

    def __init__(self, context: BagContext, grid: Grid, authority: Authority | None = None) -> None:
        """Touch nothing yet."""
        self._storage = context.storage
        self._time = context.time
        self._grid = grid
        self._authority = authority or Authority(context, grid)
        self._ensured = ""

    def write(self, file: FrameFile) -> Outcome:
        """Publish an attempt and find out what became of it; as ``Writer.write``."""
        if file.bag.start_ns < self._grid.first_ns:
            return NotCommitted(f"{file.bag.path} is older than the log")
        try:
            self._publish(file)
        except TenureError as doubt:
            return self._after_doubt(file, doubt)
        try:
            return self._look(file)
        except TenureError as problem:
            return Unknown(str(problem))

    def resolve(self, file: FrameFile, deadline_boot_ns: int | None = None) -> Outcome:
        """Decide an attempt whose outcome is Unknown; as ``Writer.resolve``."""
        try:
            while isinstance(closed := self._authority.close(file.bag), NotDue):
                if self._is_in_time(file):
                    return Committed()
                if deadline_boot_ns is not None and self._time.boot_ns() >= deadline_boot_ns:
                    return Unknown(f"{file.bag.path} is not closed yet")
                self._time.sleep(_SLICE_NS)
            return self._decided(file, closed)
        except Damaged:
            raise
        except TenureError as problem:
            return Unknown(str(problem))

    @abstractmethod
    def _publish(self, file: FrameFile) -> None:
        """Let the attempt appear in its bag. Raises TenureError: then it may have appeared, or may appear later.

        Returns also when the bag's directory is not there: the look will say so.
        """

    @abstractmethod
    def _file_name(self, file: FrameFile) -> str:
        """Return the name of the file in the bag that holds the attempt after ``_publish`` has returned."""

    @abstractmethod
    def _is_there(self, file: FrameFile) -> bool:
        """Whether the attempt has appeared, whole and for good. Raises TenureError.

        The look for the prelock must be another one, begun after this. Within one look two names are not seen at one
        instant: what is still under way could appear after the prelock was found absent and a closer has listed.
        """

    @abstractmethod
    def _listed(self, file: FrameFile, contents: Contents) -> Outcome:
        """Return what a closed bag's list says of the attempt. Raises TenureError if that cannot be told."""

    def _ensure(self, bag: Bag) -> None:
        """Make the bag's directory. Remembered: a directory goes only after a seal, and then the look leads to that."""
        if self._ensured != bag.path:
            self._storage.ensure_directory(bag.path)
            self._ensured = bag.path

    def _look(self, file: FrameFile) -> Outcome:
        """Look at bag and rack after the publication has returned."""
        name = self._file_name(file)
        seen = self._storage.look(file.bag.path, (name, PRELOCK))
        if seen is None or name not in seen:
            return self._decided(file, self._authority.by_seal(file.bag))
        if PRELOCK in seen:
            closed = self._authority.closer.help(file.bag)
            return self._decided(file, self._authority.answer(file.bag, closed))
        if self._authority.rack_begun(file.bag.rack):
            return self._decided(file, self._authority.by_seal(file.bag))
        return Committed(name)

    def _after_doubt(self, file: FrameFile, doubt: TenureError) -> Outcome:
        """Look after a publication that may be happening still."""
        try:
            return self._look(file) if self._is_there(file) else Unknown(str(doubt))
        except TenureError as problem:
            return Unknown(f"{doubt}; then {problem}")

    def _is_in_time(self, file: FrameFile) -> bool:
        """Whether the attempt is there and nobody has begun to close."""
        return self._is_there(file) and isinstance(self._look(file), Committed)

    def _decided(self, file: FrameFile, contents: Contents) -> Outcome:
        if contents.lock is None:
            return NotCommitted(f"late: the rack was sealed without {file.bag.path}")
        return self._listed(file, contents)
