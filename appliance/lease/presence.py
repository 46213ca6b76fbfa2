"""Who has died between a tentative lease and a held one: nobody hears of that lease any more, and others wait for it.

A tentative lease may be ended at any time, because nothing was written under it. So what a holder has taken tentatively
is withdrawn when the connections are gone over which it asked, and none has come in their place for a while. A held
lease does not depend on a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from timeagent.units import SECOND

from ..formats.lease import Phase
from .wire import Acquire, Withdraw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from timeagent.units import Span

    from ..formats.lease import Holder
    from .connection import Connection
    from .wire import Request, Task

GRACE_NS: Final[Span] = 2 * SECOND
"""How long a holder may be without a connection: longer than a client needs that lost an answer and asks again."""

DOMAINS_MAX: Final = 4096
"""How many domains are remembered of one holder: what it took tentatively before has been upgraded, or runs out."""


@dataclass(slots=True)
class _Asked:
    """What a holder took tentatively, and over which connections that are open."""

    domains: dict[str, None] = field(default_factory=dict)
    connections: set[Connection] = field(default_factory=set)
    left_ns: int = 0


class Presence:
    """The holders that have asked one server for tentative leases. For one thread."""

    def __init__(self) -> None:
        """Know of nobody."""
        self._asked: dict[Holder, _Asked] = {}
        self._over: dict[Connection, set[Holder]] = {}
        self._left: dict[Holder, None] = {}

    def heard(self, connection: Connection, call: Sequence[Request]) -> None:
        """Take note of who asks for what over a connection."""
        for request in call:
            if isinstance(request, Acquire) and request.phase is Phase.TENTATIVE:
                asked = self._asked.setdefault(request.holder, _Asked())
                asked.connections.add(connection)
                asked.domains[request.domain] = None
                if len(asked.domains) > DOMAINS_MAX:
                    del asked.domains[next(iter(asked.domains))]
                self._over.setdefault(connection, set()).add(request.holder)
                self._left.pop(request.holder, None)

    def left(self, connection: Connection, now: int) -> None:
        """Take note that a connection is closed."""
        for holder in self._over.pop(connection, ()):
            asked = self._asked[holder]
            asked.connections.discard(connection)
            if not asked.connections:
                asked.left_ns = now
                self._left[holder] = None

    def gone(self, now: int) -> list[Task]:
        """Return what has to be withdrawn of those who have been away for too long; they are not known any more."""
        over = [holder for holder in self._left if now - self._asked[holder].left_ns >= GRACE_NS]
        for holder in over:
            del self._left[holder]
        return [Withdraw(holder=holder, domains=tuple(self._asked.pop(holder).domains)) for holder in over]
