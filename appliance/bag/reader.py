"""Read messages in order: settled ones, which are final and the same for everyone, and the latest.

The order is (timestamp, writer, incarnation, sequence, index). Columns stay columns until messages are yielded.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from appliance.formats.frame import open_frame
from appliance.formats.framing import pieces
from appliance.formats.paths import LOCK, PRELOCK, DataName, parse_data_name
from timeagent.errors import Damaged, TryAgain
from timeagent.units import INSTANT_MAX

from .acceptance import Judge, Refusal
from .closer import NotDue
from .horizon import Horizon
from .racks import racks_there
from .records import RecordNumbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from appliance.formats.frame import Frame
    from appliance.formats.lockfile import LockEntry, LockFile
    from appliance.formats.paths import Bag, Grid, Rack
    from timeagent.units import Instant

    from .authority import Contents
    from .context import BagContext

_TRIES: Final = 3
_JUDGES_KEPT: Final = 8


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the record, with where it stands."""

    timestamp_ns: Instant
    writer: str
    incarnation: bytes
    sequence: int
    index: int
    """Its place in its frame."""
    payload: bytes
    attempt_id: bytes
    domains: tuple[str, ...]
    """What its writer had leases on."""
    bag_path: str
    file_name: str


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A frame with the messages of it that are in the record and asked for: their indices, in order."""

    frame: Frame
    file_name: str
    domains: tuple[str, ...]
    chosen: NDArray[np.int64]


class Reader:
    """Reads one log."""

    def __init__(self, context: BagContext, grid: Grid, horizon: Horizon | None = None) -> None:
        """Touch nothing yet."""
        self._storage = context.storage
        self._records = context.records
        self._grid = grid
        self.horizon = horizon or Horizon(context, grid)
        self._authority = self.horizon.authority
        self._judges: dict[RecordNumbers, Judge] = {}
        self.rejected: Counter[str] = Counter()
        """How many messages were rejected so far, by Refusal; reading a bag again counts again."""

    def settled(self, after_ns: Instant = 0, until_ns: Instant | None = None) -> Iterator[Message]:
        """Yield the messages with a timestamp above ``after_ns``, up to and with ``until_ns``, below the horizon.

        Final, and the same for every reader. The horizon is refreshed once, at the beginning, and nothing is closed. To
        go on later, pass ``horizon.reached - 1`` of before. Raises Environment, TryAgain, and Damaged for a file that
        was listed and is missing or altered. Touches the mount; only bags that can hold such messages.
        """
        until = INSTANT_MAX if until_ns is None else until_ns
        yield from self._closed_part(after_ns, until, min(self.horizon.refresh(), until + 1))

    def latest(self, after_ns: Instant = 0) -> Iterator[Message]:
        """Yield the settled messages and those of bags that are open still.

        What it yields is final; what it leaves out is not: a bag may get more messages until it is closed, and for a
        domain that is held in S, SIX or X it is complete once the log was settled to what the lease asks. Helps to
        close what somebody began to close. Raises as ``settled``. Touches the mount.
        """
        end = self.horizon.refresh()
        yield from self._closed_part(after_ns, INSTANT_MAX, end)
        start = max(end, after_ns + 1)
        for rack in reversed(list(racks_there(self._storage, self._grid, start - 1))):
            for bag in self._bags_there(rack, start, INSTANT_MAX):
                yield from self._open_bag(bag, after_ns)

    def _closed_part(self, after_ns: Instant, until_ns: Instant, end: Instant) -> Iterator[Message]:
        start = max(after_ns + 1, self._grid.first_ns)
        while start < end:
            rack = self._grid.rack(start)
            for bag, contents in self._closed_bags(rack, start, end):
                yield from self._closed_bag(bag, contents, after_ns, until_ns)
            start = rack.end_ns

    def _closed_bags(self, rack: Rack, start: Instant, end: Instant) -> Iterator[tuple[Bag, Contents]]:
        """Yield the bags of a rack below the horizon that exist."""
        seal = self._authority.sealer.sealed(rack)
        if seal is not None:
            for entry in seal.entries:
                bag = self._grid.parse_bag(rack, entry.bag)
                if bag is not None and bag.end_ns > start and bag.start_ns < end:
                    yield bag, self._authority.in_seal(seal, bag)
            return
        for bag in self._bags_there(rack, start, end):
            contents = self._authority.read(bag)
            if contents is None:
                raise Damaged(
                    "lock-missing",
                    f"{bag.path} was closed and has no lock file",
                    hint="restore the bag from a copy of the tree",
                )
            yield bag, contents

    def _bags_there(self, rack: Rack, start: Instant, end: Instant) -> list[Bag]:
        """Return the bags of a rack that have a directory and hold instants in ``[start, end)``, in order."""
        found = [self._grid.parse_bag(rack, name) for name in self._storage.list_afresh(rack.path) or ()]
        return sorted(bag for bag in found if bag is not None and bag.end_ns > start and bag.start_ns < end)

    def _closed_bag(self, bag: Bag, contents: Contents, after_ns: Instant, until_ns: Instant) -> Iterator[Message]:
        if contents.lock is None:
            return
        files = {entry.name: self._listed(bag, entry) for entry in contents.lock.entries}
        judge = self._judge(_numbers(contents.lock))
        yield from self._messages(bag, self._accepted(bag, files, judge, after_ns, until_ns))

    def _listed(self, bag: Bag, entry: LockEntry) -> bytes:
        """Return the bytes that a lock file lists. Raises Damaged."""
        path = f"{bag.path}/{entry.name}"
        data = self._storage.read(path)
        if data is None and self._storage.look(bag.path, (entry.name,)):
            data = self._storage.read(path)
        if data is None:
            raise Damaged("file-missing", f"{path} is listed in the lock file and is not there", hint=_RESTORE)
        listed = data[: entry.size]
        if len(listed) != entry.size or hashlib.sha256(listed).digest() != entry.digest:
            raise Damaged(
                "file-altered", f"{path} does not hold the {entry.size} bytes that were listed", hint=_RESTORE
            )
        return listed

    def _open_bag(self, bag: Bag, after_ns: Instant) -> Iterator[Message]:
        """Read what is there, then look whether closing has begun: if it has not, all that was read will be listed."""
        for _ in range(_TRIES):
            files = self._files_there(bag)
            begun = files is None or bool(self._storage.look(bag.path, (PRELOCK,)))
            if files is not None and not begun and not self._authority.rack_begun(bag.rack):
                judge = self._judge(self._records.newest())
                yield from self._messages(bag, self._accepted(bag, files, judge, after_ns, INSTANT_MAX))
                return
            contents = self._authority.close(bag) if begun else self._authority.by_seal(bag)
            if not isinstance(contents, NotDue):
                yield from self._closed_bag(bag, contents, after_ns, INSTANT_MAX)
                return
        raise TryAgain("bag-unreadable", f"{bag.path} cannot be read or closed now", hint="look at the directory")

    def _files_there(self, bag: Bag) -> dict[str, bytes] | None:
        """Return the data files of an open bag; None if it is not there, is being closed, or hides a file."""
        names = self._storage.list_afresh(bag.path)
        if names is None or PRELOCK in names or LOCK in names:
            return None
        files = {name: self._storage.read(f"{bag.path}/{name}") for name in names if _is_data(name)}
        whole = {name: data for name, data in files.items() if data is not None}
        return whole if len(whole) == len(files) else None

    def _judge(self, numbers: RecordNumbers) -> Judge:
        judge = self._judges.get(numbers)
        if judge is None:
            records = self._records
            judge = Judge(records.cluster_id, records.keyring(numbers.trust), records.policy(numbers.policy))
            if len(self._judges) >= _JUDGES_KEPT:
                self._judges.pop(next(iter(tuple(self._judges))), None)
            self._judges[numbers] = judge
        return judge

    def _accepted(
        self, bag: Bag, files: Mapping[str, bytes], judge: Judge, after_ns: Instant, until_ns: Instant
    ) -> list[_Accepted]:
        """Judge every frame of the files; frames that are equal count once."""
        found: dict[bytes, _Accepted] = {}
        for file_name, data in files.items():
            name = parse_data_name(file_name)
            for frame in self._frames(f"{bag.path}/{file_name}", data) if name is not None else ():
                assert name is not None
                if frame.digest in found:
                    continue
                verdict = judge.verdict(frame, name, bag)
                self.rejected.update(verdict.refused)
                wanted = (frame.timestamps > after_ns) & (frame.timestamps <= until_ns)
                if verdict.accepted is not None:
                    if not verdict.accepted.any():
                        continue  # a copy under a wrong name must not stand for the frame itself
                    wanted &= verdict.accepted
                found[frame.digest] = _Accepted(frame, file_name, verdict.domains, np.flatnonzero(wanted))
        return sorted(found.values(), key=lambda each: _rank(each.frame))

    def _frames(self, where: str, data: bytes) -> Iterator[Frame]:
        for piece in pieces(data)[0]:
            try:
                yield open_frame(piece, where)
            except Damaged:
                self.rejected[Refusal.DAMAGED] += 1

    @staticmethod
    def _messages(bag: Bag, frames: list[_Accepted]) -> Iterator[Message]:
        """Yield the chosen messages of all frames in one order. ``frames`` are in order of writer and sequence."""
        if not frames:
            return
        stamps = np.concatenate([each.frame.timestamps[each.chosen] for each in frames])
        which = np.repeat(np.arange(len(frames)), [len(each.chosen) for each in frames])
        index = np.concatenate([each.chosen for each in frames])
        # A stable sort keeps equal timestamps in the order of the frames, which is that of writer and sequence.
        order = np.argsort(stamps, kind="stable")
        ends = [np.cumsum(each.frame.lengths, dtype=np.int64).tolist() for each in frames]
        attempts = [_attempts(each.frame) for each in frames]
        columns = zip(stamps[order].tolist(), which[order].tolist(), index[order].tolist(), strict=True)
        for timestamp, number, place in columns:
            each = frames[number]
            head = each.frame.head
            begin = ends[number][place - 1] if place else 0
            yield Message(
                timestamp_ns=timestamp,
                writer=head.writer,
                incarnation=head.incarnation,
                sequence=head.sequence,
                index=place,
                payload=bytes(each.frame.body[begin : ends[number][place]]),
                attempt_id=attempts[number][place],
                domains=each.domains,
                bag_path=bag.path,
                file_name=each.file_name,
            )


_RESTORE: Final = "restore it from a copy of the tree; what this bag held cannot be read until then"


def _numbers(lock: LockFile) -> RecordNumbers:
    return RecordNumbers(lock.trust_number, lock.policy_number)


def _rank(frame: Frame) -> tuple[str, bytes, int, bytes]:
    return frame.head.writer, frame.head.incarnation, frame.head.sequence, frame.digest


def _attempts(frame: Frame) -> list[bytes]:
    """Return the id of the attempt that each message belongs to."""
    return [attempt.id for attempt in frame.head.attempts for _ in range(attempt.messages)]


def _is_data(name: str) -> bool:
    parsed: DataName | None = parse_data_name(name)
    return parsed is not None and parsed.suffix == "msg"
