"""The doors to the rest of the program: a source of states, the feed that asks it, and who revokes leases.

``tui.sources`` implements them; screens and widgets know no more of it than this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timeagent.errors import TenureError
    from timeagent.units import Instant, Span

    from .state import AuditedCopy, ClusterState
    from .subjects import DetailLine, Subject


class Question(Protocol):
    """Something that is asked again and again, each in a thread of its own."""

    @property
    def name(self) -> str: ...

    @property
    def period_ns(self) -> Span:
        """How long to wait between an answer and asking again."""
        ...

    def put(self) -> None:
        """Ask once, and keep the answer or why there is none. Blocks as long as it takes; raises only what is a bug."""
        ...


class StateSource(Protocol):
    """Where a screen's state comes from: live, a copy, or a record."""

    def questions(self) -> Sequence[Question]:
        """Return what has to be asked. The sequence may grow at its end."""
        ...

    def state_at(self, instant: Instant | None = None) -> ClusterState:
        """Return what is known of an instant (None: now, or the end of a record) from the answers so far. Any thread.

        Never waits for a mount. Equal questions may be answered with the same value: then nothing is new.
        """
        ...

    def details(self, subject: Subject, instant: Instant | None = None) -> Sequence[DetailLine]:
        """Return what is known of a subject at an instant. Blocks as long as the mount does; raises TenureError."""
        ...

    @property
    def record(self) -> AuditedCopy | None:
        """The copy that was read as a whole, with its audit and its timeline; None: there is none (yet)."""
        ...


class StateFeed(Protocol):
    """The threads that ask a source: nothing that is called here blocks."""

    @property
    def record(self) -> AuditedCopy | None:
        """As of the source."""
        ...

    def start(self, take: Callable[[ClusterState], None], failed: Callable[[BaseException], None]) -> None:
        """Call ``take`` with each state, from another thread; ``failed`` with what can only be a bug, and end."""
        ...

    def stop(self) -> None:
        """Ask nothing more. Waits for nobody."""
        ...

    def ask_now(self) -> None:
        """Ask everything again at once that is not being asked."""
        ...

    def look_at(self, instant: Instant | None) -> None:
        """Hand over the states of another instant from now on; None: of now, or of a record's end."""
        ...

    def details(self, subject: Subject, instant: Instant | None) -> Sequence[DetailLine]:
        """As of the source: blocks, raises TenureError."""
        ...

    def do[T](
        self, body: Callable[[], T], take: Callable[[T | TenureError], object], failed: Callable[[BaseException], None]
    ) -> None:
        """Do what may take long, or hang, in a thread of its own, which calls ``take`` with what it came to.

        ``failed``: with whatever it raises but TenureError: a bug.
        """
        ...


class LeaseRevoker(Protocol):
    """Who ends leases."""

    def revoke(self, domain: str, correlation_id: str, typed: str, reason: str) -> str:
        """End one; return what came of it, in words. Blocks; raises TenureError."""
        ...
