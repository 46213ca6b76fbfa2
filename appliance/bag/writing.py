"""Write into the bags of a log, of either kind, to one of three outcomes (docs/protocol/bag.md).

A writer looks afresh, at the bag and then at its rack, after it has published, always: no clock excuses it, because a
paused machine's clock cannot be believed. No prelock in either: whoever closes later will list what was published.
Otherwise the closing is finished here and now, and what it recorded is the outcome.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Protocol, assert_never

import msgspec

from appliance.formats.birth import BagKind
from appliance.formats.framing import measure, pieces
from appliance.formats.paths import PRELOCK, SEAL, Bag, DataName, Grid
from timeagent.errors import Damaged, Environment, TenureError, TryAgain
from timeagent.units import INSTANT_MAX, MS

from ..formats.closed import LockEntry
from .closedbags import FILE_MISSING, PACK_VANISHED, ListedFiles
from .closing import Authority, Contents, NotDue
from .ports import PATH_ABSENT, SIZE_NOT_EXPECTED, BagContext, Published


@dataclass(frozen=True, slots=True)
class Committed:
    """The file is in the record, for ever."""

    file_name: str | None = field(default=None, compare=False, repr=False)
    """The file of the bag that holds it, where that is known: for who wants to find it again soon."""


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The file is not in the record and never will be: the messages may be written again, elsewhere."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Cannot be told now. Repeat the same attempt, or close its bag: that decides it."""

    reason: str


type Outcome = Committed | NotCommitted | Unknown


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

    def resolve(self, file: FrameFile, deadline_boot_ns: int | None = None) -> Outcome:
        """Decide an attempt whose outcome is Unknown, without publishing anything: close its bag, when it is due.

        Waits for that, in slices, at most until the deadline (boot time). Unknown only if the deadline passed or the
        mount or the clock fails. Raises Damaged: then nobody can decide it.
        """


class LookingWriter(ABC):
    """A Writer but for how an attempt is published and what a list says of it."""

    def __init__(self, context: BagContext, grid: Grid, authority: Authority) -> None:
        self._storage = context.storage
        self._time = context.time
        self._grid = grid
        self._authority = authority
        self._wake = context.wake
        self._ensured = ""

    def write(self, file: FrameFile) -> Outcome:
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
        try:
            while isinstance(closed := self._authority.close(file.bag), NotDue):
                if self._is_there(file) and isinstance(self._look(file), Committed):
                    return Committed()  # and nobody has begun to close
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
        """Make the bag's directory, then wake the log's metronome: who is woken finds the directory.

        Remembered: a directory goes only after a seal, and then the look leads to that.
        """
        if self._ensured != bag.path:
            self._storage.ensure_directory(bag.path)
            self._wake(bag.log)
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
        rack = self._storage.look(file.bag.rack.path, (PRELOCK, SEAL))
        if rack is None or rack:
            return self._decided(file, self._authority.by_seal(file.bag))
        return Committed(name)

    def _after_doubt(self, file: FrameFile, doubt: TenureError) -> Outcome:
        """Look after a publication that may be happening still."""
        try:
            return self._look(file) if self._is_there(file) else Unknown(str(doubt))
        except TenureError as problem:
            return Unknown(f"{doubt}; then {problem}")

    def _decided(self, file: FrameFile, contents: Contents) -> Outcome:
        if contents.lock is None:
            return NotCommitted(f"late: the rack was sealed without {file.bag.path}")
        return self._listed(file, contents)


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
    sure: set[str] = set()
    """Those of which an append said that it was done: no twin's file has such a name."""
    highest: int = 0
    """The highest sequence of an attempt: one that is not above it may have been tried before."""


class LogFileWriter(LookingWriter):
    """Appends to its own files in the bags of one log. Thread-safe: threads that append at once use two files.

    1. ensure     the bag's directory is there;
    2. append     to a file that this object alone writes, where it wrote every byte itself and the size is what it last
                  saw: open, append, flush, close, all in one verb;
    3. look       afresh, at the bag and then at its rack, always.

    After a failed, short or doubtful append the file is never appended to again: a torn frame in the middle would hide
    acknowledged ones behind it, because a file is read from its beginning up to where no whole frame begins. What comes
    next, also the same attempt again, goes to a new file; equal frames within a bag count once.

    After doubt nothing is concluded from reading the file back: this machine may read from its own cache what never
    reached the server. Closing the bag decides, by what it lists.
    """

    def __init__(self, context: BagContext, grid: Grid, authority: Authority) -> None:
        super().__init__(context, grid, authority)
        self._listed_files = ListedFiles(context.storage)
        self._numbers = itertools.count(1)
        self._files: OrderedDict[tuple[str, bytes], _OwnFiles] = OrderedDict()
        self._tried: OrderedDict[_Key, _Tried] = OrderedDict()
        self._lock = Lock()

    def write(self, file: FrameFile) -> Outcome:
        outcome = super().write(file)
        if not isinstance(outcome, Unknown):  # who resolves it forgets nothing: another thread may be writing it yet
            with self._lock:
                self._tried.pop(_key(file), None)
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
        """Nothing was appended there, and the file is not, or not only, ours: its listed size says nothing.

        Or nothing can be appended to, in an object store: no other file that was given back is tried in vain.
        """
        with self._lock:
            files = self._of(file)
            files.made.discard(place.name)
            files.free.clear()
            if tried := self._tried.get(_key(file)):  # many others may have been begun since
                tried.places.remove(place)

    def _give_back(self, file: FrameFile, own: _OwnFile, size: int) -> None:
        own.size = size
        with self._lock:
            files = self._of(file)
            files.sure.add(own.name)
            files.free.append(own)

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

    def _file_name(self, file: FrameFile) -> str:
        places = self._tried_of(file).places
        for place in reversed(places):
            if place.sure:
                return place.name
        if not places:  # whoever resolves it looks beside the thread that writes it
            what = f"another thread has found out just now what became of an attempt in {file.bag.path}"
            raise TryAgain("known-meanwhile", what, hint="that thread has the outcome; or ask again")
        return places[-1].name

    def _is_there(self, file: FrameFile) -> bool:
        """Only an append that said so counts; the look will find its file."""
        return any(place.sure for place in self._tried_of(file).places)

    def _listed(self, file: FrameFile, contents: Contents) -> Outcome:
        """Committed if a listed file holds the attempt, which is read: a machine that was copied writes the same names.

        What cannot be read any more, since it was given up, counts by the size that is listed.
        """
        assert contents.lock is not None
        tried = self._tried_of(file)
        with self._lock:
            files = _OwnFiles() if tried.perhaps_before else self._of(file)
            made, sure = frozenset(files.made), frozenset(files.sure)
            places = tuple(tried.places)  # another thread may be writing the same attempt
        ends = {place.name: place.end for place in reversed(places)}  # the first, where it is twice in one file
        wanted = [piece.payload for piece in pieces(file.data)[0]]
        part, unread = "", ""
        for entry in contents.lock.entries:
            name, end = entry.name, ends.get(entry.name, INSTANT_MAX)
            elsewhere = name in made and entry.size <= end - len(file.data)
            if not self._is_ours(file, entry) or (elsewhere and name in sure):
                continue
            try:
                there = [piece.payload for piece in self._listed_files.pieces_of(file.bag, entry)]
            except (Damaged, TryAgain) as problem:
                given_up = problem.code in (FILE_MISSING, PACK_VANISHED)
                if given_up and entry.size >= end:
                    return Committed()
                if not (given_up and elsewhere):
                    unread = f"{name} may hold the attempt and cannot be read: {problem.message}"
                continue  # another file may hold it
            if any(there[n : n + len(wanted)] == wanted for n in range(len(there))):
                return Committed()
            part = part if set(wanted).isdisjoint(there) else name
        if unread:
            hint = "read the log: if the messages are there, they were committed"
            raise TryAgain("file-unreadable", unread, hint=hint)
        if part:
            return Unknown(f"{file.bag.path} lists {part} with a part of the frames: each stands for itself")
        return NotCommitted(f"late: {file.bag.path} was closed before the frames were there")

    def _is_ours(self, file: FrameFile, entry: LockEntry) -> bool:
        """Whether a file is of the attempt's writer, and of its incarnation."""
        name = self._grid.data_name(entry.name)
        return name is not None and (name.writer, name.incarnation) == (file.name.writer, file.name.incarnation)


_TWINS: Final = "two processes share one writer incarnation, or the file was altered: start the process again"


class MaildirWriter(LookingWriter):
    """Writes complete files into the bags of one log.

    1. ensure     the bag's directory is there;
    2. publish    the complete file appears under its own name, or its outcome is doubtful;
    3. look       afresh, at the bag and then at its rack, always.

    Up to step 3 everything may be repeated: the name belongs to this writer, incarnation and sequence alone, so that a
    file that is there already is ours. All the same it is compared: a virtual machine that was copied while it ran goes
    on twice, under one incarnation, and the second to come must not take the first one's file for its own.
    """

    def __init__(self, context: BagContext, grid: Grid, authority: Authority) -> None:
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
        if (entry.size, entry.digest) != measure(file.data)[1:]:
            raise Damaged(
                "other-bytes",
                f"{file.bag.path} lists {entry.name} with {entry.size} bytes, not the {len(file.data)} of this attempt",
                hint=_TWINS,
            )
        return Committed(entry.name)


def writer_for(context: BagContext, grid: Grid, authority: Authority) -> Writer:
    """Return the writer of a log's kind. Touches nothing."""
    match grid.birth.kind:
        case BagKind.MAILDIR:
            return MaildirWriter(context, grid, authority)
        case BagKind.LOG:
            return LogFileWriter(context, grid, authority)
    assert_never(grid.birth.kind)
