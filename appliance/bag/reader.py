"""Read messages in order: settled ones, final and the same for everyone, or the latest; once, or as the horizon grows.

The order is (timestamp, writer, incarnation, sequence, index). Bags are read one at a time: memory is bounded by the
largest bag, however long the log (docs/protocol/bag.md). Columns stay columns: a ``Message`` is made only for who
iterates over messages.

Who follows a log polls it. The promise is the settled way: in order, each message once, nothing left out, whatever
process asks when. Positions can be kept and given back. The latest way is for people who cannot wait for a bag to be
closed: it never repeats a message and never goes back in the order, so it has to leave out what appears below what it
has handed out already, and counts that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from appliance.formats.framing import Kind, Piece, open_frame, pieces
from appliance.formats.paths import LOCK, PRELOCK, Bag, DataName, Grid
from timeagent.errors import BadRequest, Damaged, TryAgain
from timeagent.units import INSTANT_MAX, MS, Instant, Span

from .acceptance import Judge, Refusal
from .closedbags import ClosedBag, ClosedBags, RackGone, Stretches, retained
from .closing import NotDue
from .horizon import Horizon
from .logs import is_there, racks_there
from .message import START, BatchPart, FrameOrigin, Message, MessageBatch, Position, before, cursor_text
from .ports import BagContext, RecordNumbers

__all__ = ["Level", "Message", "Reader", "Reading"]

type _Read = tuple[BatchPart | None, Mapping[str, int]]
"""What is accepted of a frame, and how many messages were refused, by Refusal."""
type Files = Container[str] | None
"""The names of some files of a bag; None: all of them."""

_TRIES: Final = 3
_JUDGES_KEPT: Final = 8
_FRAMES_KEPT: Final = 1_024
_FRAME_BYTES_KEPT_MAX: Final = 4_096
"""Frames up to this size are not judged again when they are read again: the latest are read over and over."""


class Level(StrEnum):
    """How much a reading may rely on what others do afterwards."""

    SETTLED = "settled"
    """Closed bags only: final, and the same for every reader."""
    LATEST = "latest"
    """Open bags too: what it yields is final, what it leaves out is not."""
    STALE_OK = "stale-ok"
    """As settled, and as old as the caller allows: what this process knows to be closed, without asking again."""


def checked_level(name: str) -> Level:
    """Return the level. Raises BadRequest that names those there are."""
    if name not in tuple(Level):
        raise BadRequest("bad-level", f"{name!r} is no level of reading", hint=", ".join(Level))
    return Level(name)


class Reading(Iterator[MessageBatch]):
    """One pass over a log, bag by bag. Iterate; ``position`` says from where the next pass goes on."""

    def __init__(
        self,
        log: str,
        batches: Iterator[MessageBatch],
        gone: list[RackGone],
        after: Position,
        horizon_ns: Instant,
        end_ns: Instant,
    ) -> None:
        self._log = log
        self._batches = batches
        self.gone = gone
        """The stretches met so far, in order, whose messages were given up by retention."""
        self._end_ns = end_ns
        self.horizon_ns = horizon_ns
        """Every bag that begins before this instant was closed when the pass began."""
        self.position = after
        """Everything settled up to here was handed out. Never moves past the horizon."""
        self._failed: BaseException | None = None

    @property
    def cursor(self) -> str:
        return cursor_text(self._log, self.position)

    def __next__(self) -> MessageBatch:
        """Return the next batch. Raises as ``Reader.batches``; once it has, always that: go on with another pass."""
        if self._failed is not None:  # what failed is over for Python, which is not the end of the log
            raise self._failed
        try:
            batch = next(self._batches)
        except StopIteration:
            self._move(before(self._end_ns))
            raise
        except BaseException as problem:
            self._failed = problem
            raise
        if batch.settled:
            self._move(max(batch.last, before(batch.complete_ns)))
        return batch

    def _move(self, to: Position) -> None:
        self.position = max(self.position, to)


class Reader:
    def __init__(self, context: BagContext, grid: Grid, horizon: Horizon) -> None:
        self.log = grid.birth.log
        self._storage = context.storage
        self._records = context.records
        self._grid = grid
        self.horizon = horizon
        self._authority = self.horizon.authority
        self._closed = ClosedBags(context.storage, grid, self._authority, context.records.cluster_id)
        self._judges: dict[RecordNumbers, Judge] = {}
        self._read: dict[tuple[Judge, str, DataName, bytes], _Read] = {}
        self.rejected: Counter[str] = Counter()
        """How many messages were rejected so far, by Refusal; reading a bag again counts again."""

    def batches(
        self,
        after: Position = START,
        until_ns: Instant | None = None,
        level: Level = Level.SETTLED,
        as_of_ns: Instant = 0,
        *,
        gone_ok: bool = False,
    ) -> Reading:
        """Begin a pass over the messages above a position, with timestamps up to and with ``until_ns``.

        ``settled``: below the horizon, which is refreshed once, here; nothing is closed. ``latest``: then the open bags
        too; helps to close what somebody began to close. ``stale-ok``: as settled, but the horizon is refreshed only if
        what this process knows of it does not reach ``as_of_ns``; the answer may be as old as that, and may end there.

        What retention gave up is an error, BadRequest, code ``gone``, where it is met; with ``gone_ok`` it is passed
        over and named in ``Reading.gone``. Batches are not empty.

        Raises, here and while iterating, Environment, TryAgain, and Damaged for a file that was listed and is missing
        or altered. Touches the mount; only bags that can hold such messages.
        """
        until = INSTANT_MAX if until_ns is None else until_ns
        known = self.horizon.reached
        horizon = known if level is Level.STALE_OK and known >= as_of_ns else self.horizon.refresh()
        end = min(horizon, until + 1)
        gone = Stretches(self._grid.birth.log, ok=gone_ok)
        settled = self._closed_part(after, until, end, gone)
        batches = settled if level is not Level.LATEST else self._then_open(settled, after, until, horizon, gone)
        return Reading(self.log, filter(None, batches), gone.met, after, horizon, end)

    def settled(self, after_ns: Instant = 0, until_ns: Instant | None = None) -> Iterator[Message]:
        """Yield the settled messages with a timestamp above ``after_ns``, up to and with ``until_ns``.

        Final, and the same for every reader. To go on later, pass ``horizon.reached - 1`` of before. Otherwise as
        ``batches``; touches nothing before the first message is asked for.
        """
        for batch in self.batches(before(after_ns + 1), until_ns):
            yield from batch

    def latest(self, after_ns: Instant = 0, until_ns: Instant | None = None) -> Iterator[Message]:
        """Yield the settled messages and those of bags that are open still.

        What it yields is final; what it leaves out is not: a bag may get more messages until it is closed, and for a
        domain that is held in S, SIX or X it is complete once the log was settled to what the lease asks. Otherwise as
        ``settled``.
        """
        for batch in self.batches(before(after_ns + 1), until_ns, Level.LATEST):
            yield from batch

    def _closed_part(
        self, after: Position, until: Instant, end: Instant, gone: Stretches
    ) -> Iterator[MessageBatch | None]:
        for closed in self._closed.between(after.timestamp_ns, end, gone):
            yield self._closed_bag(closed, after, until)

    def _then_open(
        self, settled: Iterator[MessageBatch | None], after: Position, until: Instant, horizon: Instant, gone: Stretches
    ) -> Iterator[MessageBatch | None]:
        yield from settled
        start = max(horizon, after.timestamp_ns)
        for rack in reversed(list(racks_there(self._storage, self._grid, start))):
            found = self._closed.there(rack, start, min(rack.end_ns, until + 1))
            if isinstance(found, list):
                for bag in found:
                    yield self._open_bag(bag, after, until)
            else:
                for closed in self._closed.in_seal(found, rack, start, until + 1, gone):
                    yield _unsettled(self._closed_bag(closed, after, until))

    def open_bags(self) -> int:
        """Return how many bags there are beyond the horizon that is known here: what they hold is not settled.

        Raises Environment, TryAgain, Damaged. Touches the mount.
        """
        start = self.horizon.reached
        racks = racks_there(self._storage, self._grid, start)
        found = [self._closed.there(rack, start, rack.end_ns) for rack in racks]
        return sum(len(bags) for bags in found if isinstance(bags, list))

    def in_files(self, files: Mapping[Instant, Files], after_ns: Instant) -> Iterator[MessageBatch]:
        """Yield the messages above an instant that stand in these files, by the start of their bags; as *latest*.

        What is named and is not there, or not listed, holds nothing: a name says where to look. Nothing else is read.
        Raises as ``batches``, ``gone`` only where a bag that is named was given up. Touches the mount.
        """
        gone = Stretches(self.log, ok=False)
        after = before(after_ns + 1)
        for start in sorted(files):
            bag = self._grid.bag(max(start, self._grid.first_ns))
            if bag.start_ns == start and bag.end_ns > after_ns + 1:
                batch = self._named_bag(bag, after, files[start], gone)
                if batch is not None:
                    yield batch

    def _named_bag(self, bag: Bag, after: Position, files: Files, gone: Stretches) -> MessageBatch | None:
        if bag.start_ns >= self.horizon.reached and is_there(self._storage, bag.path):
            return self._open_bag(bag, after, INSTANT_MAX, files)
        found: Iterator[ClosedBag] = iter(())
        if bag.start_ns < self.horizon.reached:
            found = self._closed.between(bag.start_ns, bag.end_ns, gone)
        elif seal := self._authority.sealer.sealed(bag.rack):  # it never existed, or was deleted: the seal knows
            found = self._closed.in_seal(seal, bag.rack, bag.start_ns, bag.end_ns, gone)
        closed = next(found, None)
        return None if closed is None else _unsettled(self._closed_bag(closed, after, INSTANT_MAX, files))

    def _closed_bag(
        self, closed: ClosedBag, after: Position, until: Instant, only: Files = None
    ) -> MessageBatch | None:
        named = RecordNumbers(closed.lock.trust_number, closed.lock.policy_number)
        try:
            accepted = self._accepted(closed.bag, self._closed.files.pieces(closed.bag, closed.lock, only), named)
        except (Damaged, TryAgain) as problem:
            rack = closed.bag.rack
            self._closed.forget(rack)
            seal = self._authority.sealer.sealed(rack) if isinstance(problem, Damaged) else None
            if seal is not None and retained(self._storage, rack, seal):  # since it was looked up
                raise TryAgain("given-up", f"{rack.path} was given up while it was read", hint="read again") from None
            raise
        complete = min(closed.bag.end_ns, until + 1)
        return _batch(accepted, after, until, settled=True, complete_ns=complete)

    def _open_bag(self, bag: Bag, after: Position, until: Instant, only: Files = None) -> MessageBatch | None:
        """Read what is there, then look whether closing has begun: if it has not, all that was read will be listed."""
        for _ in range(_TRIES):
            files = self._files_there(bag, only)
            begun = files is None or bool(self._storage.look(bag.path, (PRELOCK,)))
            if files is not None and not begun and not self._authority.rack_begun(bag.rack):
                found = ((name, pieces(data)[0]) for name, data in files.items())
                accepted = self._accepted(bag, found, self._records.newest())
                return _batch(accepted, after, until, settled=False, complete_ns=0)
            contents = self._authority.close(bag) if begun else self._authority.by_seal(bag)
            if not isinstance(contents, NotDue):
                lock = contents.lock
                return None if lock is None else _unsettled(self._closed_bag(ClosedBag(bag, lock), after, until, only))
        raise TryAgain("bag-unreadable", f"{bag.path} cannot be read or closed now", hint="look at the directory")

    def _files_there(self, bag: Bag, only: Files = None) -> dict[str, bytes] | None:
        """Return the data files of an open bag; None if it is not there, is being closed, or hides a file."""
        names = self._storage.list_afresh(bag.path)
        if names is None or PRELOCK in names or LOCK in names:
            return None
        chosen = [name for name in names if self._grid.data_name(name) and (only is None or name in only)]
        files = {name: self._storage.read(f"{bag.path}/{name}") for name in chosen}
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

    def _accepted(self, bag: Bag, files: Iterable[tuple[str, list[Piece]]], named: RecordNumbers) -> list[BatchPart]:
        """Judge every frame; return what is accepted of each, in order of rank. Equal frames count once.

        Frames of one rank are twins: only a writer's breach makes them.
        """
        judge = self._judge(named)
        found: dict[tuple[str, bytes, int], dict[bytes, BatchPart]] = {}
        for file_name, inside in files:
            name = self._grid.data_name(file_name)
            if name is None:
                continue
            for piece in inside:
                part, refused = self._judged(piece, name, bag, named, judge)
                if refused:
                    self.rejected.update(refused)
                if part is not None:
                    found.setdefault(part.origin.rank[:3], {}).setdefault(part.origin.frame.digest, part)
        twins = (part for rank in sorted(found) for part in _numbered(found[rank]))
        return [part for part in twins if part.first < part.end]

    def _judged(self, piece: Piece, name: DataName, bag: Bag, named: RecordNumbers, judge: Judge) -> _Read:
        """Return what is accepted of the frame in a piece, and how much is refused. The same bytes are judged once."""
        if piece.kind is not Kind.FRAME or len(piece.payload) > _FRAME_BYTES_KEPT_MAX:
            return self._judged_anew(piece, name, bag, named, judge)
        key = (judge, bag.path, name, piece.digest)
        known = self._read.get(key)
        if known is None:
            known = self._judged_anew(piece, name, bag, named, judge)
            if len(self._read) >= _FRAMES_KEPT:
                self._read.clear()
            self._read[key] = known
        return known

    def _judged_anew(self, piece: Piece, name: DataName, bag: Bag, named: RecordNumbers, judge: Judge) -> _Read:
        """Judge a frame by the trust record that is ``named``, and by the policy that the frame names.

        Under that one its writer found it good. What a lock file names bounds that; a frame beyond the bound is judged
        by the lock file's.
        """
        try:
            frame = open_frame(piece, f"{bag.path}/{name.text()}")
        except Damaged:
            return None, {Refusal.DAMAGED: 1}
        policy = frame.head.policy_number
        own = judge if not 1 <= policy < named.policy else self._judge(RecordNumbers(named.trust, policy))
        verdict = own.verdict(frame, name, bag)
        if verdict.refused and verdict.first == verdict.end:
            return None, verdict.refused  # a copy under a wrong name must not stand for the frame itself
        return BatchPart(
            FrameOrigin(frame, bag.path, name.text(), verdict.domains), verdict.first, verdict.end
        ), verdict.refused


def _batch(
    parts: Iterable[BatchPart], after: Position, until: Instant, *, settled: bool, complete_ns: Instant
) -> MessageBatch | None:
    """Return what lies between the bounds; None if nothing does."""
    cut = (part.above(after) for part in parts)
    chosen = [inside for part in cut if part is not None and (inside := part.up_to(until)) is not None]
    return MessageBatch(chosen, settled=settled, complete_ns=complete_ns) if chosen else None


def _unsettled(batch: MessageBatch | None) -> MessageBatch | None:
    """Return a closed bag's messages as part of the latest: bags before it may be open."""
    return None if batch is None else MessageBatch(batch.parts, settled=False)


def _numbered(twins: Mapping[bytes, BatchPart]) -> Iterable[BatchPart]:
    """Return frames of one sequence in order of their digests, each with its number."""
    if len(twins) == 1:
        return twins.values()
    return [
        BatchPart(FrameOrigin(each.frame, each.bag_path, each.file_name, each.domains, number), part.first, part.end)
        for number, (_, part) in enumerate(sorted(twins.items()))
        for each in (part.origin,)
    ]


POLL_NS: Final[Span] = 500 * MS
"""How often is looked whether the horizon has moved: a look or two at the mount each time."""


type Wait = Callable[[Span, Instant], object]
"""Wait for the next look: about that long, or until something may have happened at the horizon, which is told too. To
be woken too early or never costs nothing but time."""


class Follower:
    """Follows one log from a position on. Iterate over ``batches``; it ends only by who iterates."""

    def __init__(
        self,
        reader: Reader,
        wait: Wait,
        after: Position = START,
        *,
        level: Level = Level.SETTLED,
        poll_ns: Span = POLL_NS,
        help_closing: Callable[[], object] | None = None,
        gone_ok: bool = False,
    ) -> None:
        """Touch nothing yet.

        ``help_closing`` is called before each look, to close what is due: a metronome's turn. ``gone_ok``: what
        retention gave up is left out and named in ``gone``, instead of an error.
        """
        self._reader = reader
        self._wait = wait
        self._level = level
        self._poll_ns = poll_ns
        self._help = help_closing
        self._gone_ok = gone_ok
        self.gone: list[RackGone] = []
        self.position = after
        """Everything settled up to here was handed out; a follower that begins here repeats and misses nothing."""
        self.overtaken = 0
        """How many messages the latest way has left out so far, since they appeared below others."""
        self._highest = after
        self._open: Counter[str] = Counter()
        """How many messages of each open bag were handed out."""

    @property
    def cursor(self) -> str:
        return cursor_text(self._reader.log, self.position)

    def batches(self) -> Iterator[MessageBatch]:
        """Yield batches, for ever; blocks while there is nothing. Raises as ``Reader.batches`` but for TryAgain."""
        while True:
            try:
                if self._help is not None:
                    self._help()
                yield from self._pass()
            except TryAgain:
                pass  # the mount or a closer is slow; what was handed out is known: the next look goes on from there
            self._wait(self._poll_ns, self._reader.horizon.reached)

    def _pass(self) -> Iterator[MessageBatch]:
        reading = self._reader.batches(self.position, level=self._level, gone_ok=self._gone_ok)
        try:
            for batch in reading:
                chosen = batch if self._level is not Level.LATEST else self._unseen(batch)
                # Before it is handed out: whoever stops there has it.
                self.position = reading.position
                if len(chosen):
                    self._highest = max(self._highest, chosen.last)
                    yield chosen
        finally:
            self.position = reading.position
            # What lies above is met again.
            self.gone += [each for each in reading.gone if each.end_ns <= self.position.timestamp_ns]

    def _unseen(self, batch: MessageBatch) -> MessageBatch:
        """Return what stands above all that was handed out, and count what a bag gained below it."""
        bag = batch.parts[0].origin.bag_path
        unseen = batch.above(self._highest)
        if batch.settled:
            self.overtaken += len(batch) - len(unseen) - self._open.pop(bag, 0)
        else:
            self._open[bag] += len(unseen)
        return unseen
