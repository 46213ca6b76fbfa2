"""Append frames to files in the bags of a log of kind *log*, to one of three outcomes (docs/protocol/bag.md).

1. ensure     the bag's directory is there;
2. append     to a file that this object alone writes, where it wrote every byte itself and the size is what it last
              saw: open, append, flush, close, all in one verb;
3. look       afresh, at the bag and then at its rack, always (looks.py).

After a failed, short or doubtful append the file is never appended to again: a torn frame in the middle would hide
acknowledged ones behind it, because a file is read from its beginning up to where no whole frame begins. What comes
next, also the same attempt again, goes to a new file; equal frames within a bag count once.

After doubt nothing is concluded from reading the file back: this machine may read from its own cache what never
reached the server. Closing the bag decides, by the sizes that it lists.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING, Final

import msgspec

from appliance.formats.birth import BagKind
from appliance.formats.framing import pieces
from appliance.formats.paths import DataName
from timeagent.errors import Damaged, Environment, TryAgain

from .listedfiles import ListedFiles
from .looks import LookingWriter
from .outcome import Committed, NotCommitted, Unknown
from .storage import PATH_ABSENT, SIZE_NOT_EXPECTED

if TYPE_CHECKING:
    from appliance.formats.lockfile import LockEntry
    from appliance.formats.paths import Grid

    from .authority import Authority, Contents
    from .context import BagContext
    from .looks import FrameFile
    from .outcome import Outcome

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A file is not appended to beyond this: closers and readers read it whole. A larger frame gets a file of its own."""
_NEW_FILES_MAX: Final = 64
"""So many files that are not as this object left them, or are another's, are passed over in one write."""
_BAGS_KEPT: Final = 16
_ATTEMPTS_KEPT: Final = 4_096


type _Key = tuple[str, str, bytes, int]
"""An attempt's bag, writer, incarnation and sequence."""


def _key(file: FrameFile) -> _Key:
    name = file.name
    return file.bag.path, name.writer, name.incarnation, name.sequence


class _OwnFile(msgspec.Struct):
    """A file that this object made, up to where it wrote every byte itself."""

    name: str
    size: int = 0


class _Place(msgspec.Struct):
    """Where an attempt was appended to."""

    name: str
    end: int
    """Where its last frame ends: it is listed if this much of the file is."""
    sure: bool = False
    """Whether the append said that it was done."""


class _Tried(msgspec.Struct):
    """What is known of an attempt that is under way or in doubt."""

    places: list[_Place] = []
    perhaps_before: bool = True
    """Whether it may have been appended elsewhere in files of ours than at the places: it came again, or another
    object wrote it. Then our files are read, as far as they are listed."""


class _OwnFiles(msgspec.Struct):
    """This object's files of one incarnation in one bag."""

    free: list[_OwnFile] = []
    """Those that may be appended to, and that no thread is appending to."""
    made: set[str] = set()
    highest: int = 0
    """The highest sequence of an attempt: one that is not above it may have been tried before."""


class LogFileWriter(LookingWriter):
    """Appends to its own files in the bags of one log. Thread-safe: threads that append at once use two files."""

    def __init__(self, context: BagContext, grid: Grid, authority: Authority | None = None) -> None:
        """Touch nothing yet."""
        super().__init__(context, grid, authority)
        self._listed_files = ListedFiles(context.storage)
        self._numbers = itertools.count(1)
        self._files: OrderedDict[tuple[str, bytes], _OwnFiles] = OrderedDict()
        self._tried: OrderedDict[_Key, _Tried] = OrderedDict()
        self._lock = Lock()

    def write(self, file: FrameFile) -> Outcome:
        """Append an attempt and find out what became of it; as ``Writer.write``."""
        outcome = super().write(file)
        self._forget_if_known(file, outcome)
        return outcome

    def resolve(self, file: FrameFile, deadline_boot_ns: int | None = None) -> Outcome:
        """Decide an attempt whose outcome is Unknown; as ``Writer.resolve``."""
        outcome = super().resolve(file, deadline_boot_ns)
        self._forget_if_known(file, outcome)
        return outcome

    def _publish(self, file: FrameFile) -> None:
        self._ensure(file.bag)
        for _ in range(_NEW_FILES_MAX):
            own, place = self._begin(file)
            try:
                size = self._storage.append(f"{file.bag.path}/{place.name}", file.data, own.size)
            except Environment as problem:
                if problem.code == PATH_ABSENT:
                    self._ensured = ""
                    return
                if problem.code != SIZE_NOT_EXPECTED:
                    raise
                self._take_back(file, place)
                continue
            if size != place.end:
                raise Environment(
                    "append-short",
                    f"{file.bag.path}/{place.name} has {size} bytes after an append that ends at {place.end}",
                    hint="the next attempt goes to a new file",
                )
            place.sure = True
            self._give_back(file, own, size)
            return
        raise TryAgain(
            "files-taken",
            f"{file.bag.path} has {_NEW_FILES_MAX} files of this writer that it did not leave so",
            hint="two processes share one writer incarnation, or somebody writes to its files",
        )

    def _begin(self, file: FrameFile) -> tuple[_OwnFile, _Place]:
        """Take a file that nobody else appends to, and note, before the append, that the attempt may be in it."""
        with self._lock:
            files = self._of(file)
            own = None
            while own is None and files.free:
                own = files.free.pop()
                if own.size + len(file.data) > FILE_BYTES_MAX:
                    own = None
            if own is None:
                name = DataName(file.name.writer, file.name.incarnation, next(self._numbers), BagKind.LOG.suffix)
                own = _OwnFile(name.text())
                files.made.add(own.name)
            place = _Place(own.name, own.size + len(file.data))
            key = _key(file)
            tried = self._tried.get(key)
            if tried is None:
                if len(self._tried) >= _ATTEMPTS_KEPT:
                    self._tried.popitem(last=False)
                tried = self._tried[key] = _Tried(perhaps_before=file.name.sequence <= files.highest)
                files.highest = max(files.highest, file.name.sequence)
            tried.places.append(place)
        return own, place

    def _take_back(self, file: FrameFile, place: _Place) -> None:
        """Nothing was appended there, and the file is not, or not only, ours: its listed size says nothing."""
        with self._lock:
            self._of(file).made.discard(place.name)
            self._tried[_key(file)].places.remove(place)

    def _give_back(self, file: FrameFile, own: _OwnFile, size: int) -> None:
        own.size = size
        with self._lock:
            self._of(file).free.append(own)

    def _of(self, file: FrameFile) -> _OwnFiles:
        key = (file.bag.path, file.name.incarnation)
        files = self._files.get(key)
        if files is None:
            if len(self._files) >= _BAGS_KEPT:
                self._files.popitem(last=False)
            files = self._files[key] = _OwnFiles()
        return files

    def _tried_of(self, file: FrameFile) -> _Tried:
        with self._lock:
            return self._tried.get(_key(file)) or _Tried()

    def _forget_if_known(self, file: FrameFile, outcome: Outcome) -> None:
        if not isinstance(outcome, Unknown):
            with self._lock:
                self._tried.pop(_key(file), None)

    def _file_name(self, file: FrameFile) -> str:
        places = self._tried_of(file).places
        for place in reversed(places):
            if place.sure:
                return place.name
        return places[-1].name

    def _is_there(self, file: FrameFile) -> bool:
        """Only an append that said so counts; the look will find its file."""
        return any(place.sure for place in self._tried_of(file).places)

    def _listed(self, file: FrameFile, contents: Contents) -> Outcome:
        """Committed if the attempt lies within the listed size of any file that it was appended to."""
        assert contents.lock is not None
        listed = contents.lock.by_name()
        tried = self._tried_of(file)
        places = tried.places
        if any(place.name in listed and listed[place.name].size >= place.end for place in places):
            return Committed()
        with self._lock:
            known = frozenset() if tried.perhaps_before else frozenset(self._of(file).made)
        others = [entry for name, entry in listed.items() if name not in known and self._is_ours(file, entry)]
        if any(self._found_in(file, entry) for entry in others):
            return Committed()
        begun = [
            place for place in places if place.name in listed and self._is_in_part(file, place, listed[place.name])
        ]
        if begun:
            return Unknown(f"{file.bag.path} lists {begun[0].name} with a part of the frames: each stands for itself")
        return NotCommitted(f"late: {file.bag.path} was closed before the frames were there")

    def _is_ours(self, file: FrameFile, entry: LockEntry) -> bool:
        """Whether a file that this object did not make, or has forgotten, may hold the attempt: by its incarnation."""
        name = self._grid.data_name(entry.name)
        return name is not None and (name.writer, name.incarnation) == (file.name.writer, file.name.incarnation)

    def _found_in(self, file: FrameFile, entry: LockEntry) -> bool:
        """Whether a listed file holds the attempt's frames, in a row. Raises TryAgain if it cannot be read."""
        wanted = [piece.payload for piece in pieces(file.data)[0]]
        try:
            there = [piece.payload for piece in self._listed_files.pieces_of(file.bag, entry)]
        except Damaged as problem:
            raise TryAgain(
                "file-unreadable",
                f"{entry.name} may hold the attempt and cannot be read: {problem.message}",
                hint="read the log: if the messages are there, they were committed",
            ) from None
        return any(there[n : n + len(wanted)] == wanted for n in range(len(there)))

    @staticmethod
    def _is_in_part(file: FrameFile, place: _Place, entry: LockEntry) -> bool:
        """Whether the list ends between two frames of the attempt."""
        return entry.size > place.end - len(file.data)
