"""What the feed's threads send to the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from timeagent.errors import TenureError

    from .state import ClusterState
    from .subjects import Details


class StateArrived(Message):
    """A newer state. One that is still waiting to be shown is replaced: a slow terminal gets fewer, never older."""

    def __init__(self, state: ClusterState) -> None:
        """Carry the state."""
        super().__init__()
        self.state = state

    def can_replace(self, message: Message) -> bool:
        """Whether this takes the place of a message that waits."""
        return isinstance(message, StateArrived)


class FeedFailed(Message):
    """A thread of the feed ended by what can only be a bug."""

    def __init__(self, problem: BaseException) -> None:
        """Carry what was raised."""
        super().__init__()
        self.problem = problem


class DetailsArrived(Message):
    """What was asked of a subject has come, or why it has not."""

    def __init__(self, found: Details | TenureError, take: Callable[[Details | TenureError], None]) -> None:
        """Carry it to whoever asked."""
        super().__init__()
        self.found = found
        self.take = take


class WorkDone(Message):
    """A thread has done what the screen asked for."""

    def __init__(self, take: Callable[[], None]) -> None:
        """Carry what is to be done with it."""
        super().__init__()
        self.take = take
