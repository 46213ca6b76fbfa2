"""Put together what several processes hand in, and write it as one file.

While one file of a bag is being written, everything that comes in for that bag waits, and goes into the next: the
slower the mount, the larger the batches. Each submission gets the outcome of the file that it went into; one that could
not be taken is refused before anything is written.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Condition
from typing import TYPE_CHECKING, Final

from appliance.bag.outcome import Unknown
from timeagent.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.outcome import Outcome
    from appliance.formats.paths import Bag

QUEUE_BYTES_MAX: Final = 256 * 1024 * 1024
"""How much may wait for the mount before submissions are refused."""

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
"""How much goes into one file, unless a single submission is larger: it is read whole when its bag is closed."""

type Write = Callable[[Bag, bytes], Outcome]
"""Write some whole frames into a bag as one file. Touches the mount."""

type Told = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class _Submission:
    frames: bytes
    told: Told


class Batcher:
    """Submissions by bag, written by any number of threads, one file of a bag at a time."""

    def __init__(
        self, write: Write, *, queue_bytes_max: int = QUEUE_BYTES_MAX, file_bytes_max: int = FILE_BYTES_MAX
    ) -> None:
        """Write nothing yet: threads that call ``run`` do, or whoever calls ``turn``."""
        self._write = write
        self._queue_bytes_max = queue_bytes_max
        self._file_bytes_max = file_bytes_max
        self._waiting: dict[Bag, deque[_Submission]] = {}
        self._busy: set[Bag] = set()
        self._bytes = 0
        self._closed = False
        self._changed = Condition()
        self.files = 0
        """How many files were written, or tried."""
        self.submissions = 0
        """How many submissions went into them."""

    def submit(self, bag: Bag, frames: bytes, told: Told) -> str | None:
        """Queue whole frames; return None, or why they are refused: then ``told`` is never called.

        ``told`` gets the outcome, once, in a writing thread. Never waits.
        """
        with self._changed:
            if self._closed:
                return "the node's writer is stopping"
            if self._bytes + len(frames) > self._queue_bytes_max:
                return f"{self._bytes} bytes wait for the mount already"
            self._waiting.setdefault(bag, deque()).append(_Submission(frames, told))
            self._bytes += len(frames)
            self._changed.notify()
        return None

    def turn(self) -> bool:
        """Write one file, if something waits whose bag no other thread is writing to. Touches the mount."""
        with self._changed:
            taken = self._take()
        if taken is None:
            return False
        self._flush(*taken)
        return True

    def run(self) -> None:
        """Write until the batcher is closed and nothing waits: the body of a thread."""
        while True:
            with self._changed:
                while (taken := self._take()) is None:
                    if self._closed and not self._waiting:
                        return
                    self._changed.wait()
            self._flush(*taken)

    def close(self) -> None:
        """Take nothing more; what was taken is written. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self) -> tuple[Bag, list[_Submission]] | None:
        bag = next((each for each in self._waiting if each not in self._busy), None)
        if bag is None:
            return None
        queue = self._waiting[bag]
        taken: list[_Submission] = []
        size = 0
        while queue and (not taken or size + len(queue[0].frames) <= self._file_bytes_max):
            taken.append(queue.popleft())
            size += len(taken[-1].frames)
        if not queue:
            del self._waiting[bag]
        self._busy.add(bag)
        return bag, taken

    def _flush(self, bag: Bag, taken: list[_Submission]) -> None:
        data = b"".join(each.frames for each in taken)
        outcome: Outcome = Unknown("the node's writer failed")
        try:
            outcome = self._write(bag, data)
        except TenureError as problem:
            outcome = Unknown(str(problem))
        finally:
            with self._changed:
                self._busy.discard(bag)
                self._bytes -= len(data)
                self.files += 1
                self.submissions += len(taken)
                self._changed.notify_all()
            for each in taken:
                each.told(outcome)
