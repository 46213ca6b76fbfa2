"""What one turn of a server takes from its connections, and who gets which of the replies.

Answers of a connection go out in the order of its calls. Most calls are answered in their turn, and nothing of them is
kept; the others wait at their connection until their answers are complete (``connection.Owed``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..formats.lease import Phase
from .connection import Owed, held_back
from .wire import Acquire, Hello, Refused, Relinquish, Renew, encode_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .connection import Connection, HeldBack, Limits
    from .presence import Presence
    from .wire import Encoded, Reply, Request


def ordinary(call: Sequence[Request]) -> bool:
    """Whether there is nothing in a call that a server has to remember: no Hello, nothing tentative, nobody waits."""
    for request in call:
        kind = type(request)
        if kind is Acquire:
            if request.wait_ns or request.phase is not Phase.HELD:  # type: ignore[union-attr]
                return False
        elif kind is not Relinquish and kind is not Renew:
            return False
    return True


class Gathered:
    """The calls of one turn, in the order in which they came."""

    __slots__ = ("_answered", "_greeted", "_limits", "_presence", "calls", "requests", "waiters")

    def __init__(self, limits: Limits, presence: Presence, answered: Callable[[Owed], None]) -> None:
        """Begin without any. ``answered``: called when an answer has come that was held back."""
        self._limits = limits
        self._presence = presence
        self._answered = answered
        self._greeted = False
        self.requests: list[Request] = []
        self.calls: list[tuple[Connection, int, Owed | None]] = []
        """Whose call, how many requests, and where its answers are gathered if the shard may hold any back."""
        self.waiters: dict[int, HeldBack] = {}
        """By position among the requests."""

    def take(self, connection: Connection, call: list[Request]) -> None:
        """Take a connection's next call."""
        owed = None
        if not ordinary(call):
            self._presence.heard(connection, call)
            owed = held_back(connection, call, self._limits, self._answered)
            if owed is not None:
                self.waiters.update({len(self.requests) + each.position: each for each in owed.waiters})
            self._greeted = self._greeted or any(isinstance(request, Hello) for request in call)
        self.requests += call
        self.calls.append((connection, len(call), owed))

    def frames(self, replies: Sequence[Encoded | Reply | None]) -> tuple[dict[Connection, bytes], list[Connection]]:
        """Return what goes out at once; and who has answers at the connection. Those whose Hello is refused leave."""
        out: dict[Connection, bytes] = {}
        behind: list[Connection] = []
        start = 0
        for connection, count, owed in self.calls:
            answer = replies[start : start + count]
            if owed is None and not connection.owed:
                frame = encode_answer(answer)  # type: ignore[arg-type]  # nobody waits for any of them
                out[connection] = out[connection] + frame if connection in out else frame
            else:
                waiting = owed or Owed(connection, [None] * count, count)
                waiting.fill(answer)
                connection.owed.append(waiting)
                behind.append(connection)
            if self._greeted and self._hello_refused(start, answer):
                connection.leaving = True  # another version, another cluster: nothing it says means what it seems to
            start += count
        return out, behind

    def _hello_refused(self, start: int, answer: Sequence[Encoded | Reply | None]) -> bool:
        call = self.requests[start : start + len(answer)]
        return any(isinstance(each, Hello) for each in call) and any(isinstance(each, Refused) for each in answer)
