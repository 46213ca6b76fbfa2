"""Follow a log: hand out messages as its horizon grows, by polling.

The promise is the settled way: in order, each message once, nothing left out, whatever process asks when. Positions can
be kept and given back. The latest way is for people who cannot wait for a bag to be closed: it never repeats a message
and never goes back in the order, so it has to leave out what appears below what it has handed out already, and counts
that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from timeagent.errors import TryAgain
from timeagent.units import MS, Instant, Span

from .closedbags import RackGone
from .message import START, MessageBatch, Position, cursor_text
from .reader import Level, Reader

POLL_NS: Final[Span] = 500 * MS
"""How often is looked whether the horizon has moved: a look or two at the mount each time."""


class Wait(Protocol):
    """How to wait for the next look. Being woken too early or never costs nothing but time."""

    def __call__(self, span: Span, horizon_ns: Instant) -> None:
        """Wait about that long, or until something may have happened at the horizon."""


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
        """The position as text, to be kept anywhere."""
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
            self.gone += reading.gone

    def _unseen(self, batch: MessageBatch) -> MessageBatch:
        """Return what stands above all that was handed out, and count what a bag gained below it."""
        bag = batch.parts[0].origin.bag_path
        unseen = batch.above(self._highest)
        if batch.settled:
            self.overtaken += len(batch) - len(unseen) - self._open.pop(bag, 0)
        else:
            self._open[bag] += len(unseen)
        return unseen
