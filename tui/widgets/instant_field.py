"""The line in which an instant is typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from timeagent.errors import TenureError

from ..replaying import instant_near

if TYPE_CHECKING:
    from timeagent.units import Instant


class InstantField(Input):
    """Seen only while it is typed in. What is no instant is refused by name, and stays to be mended."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Go there"),
        Binding("escape", "screen.back", "Leave it"),
    ]

    class Given(Message):
        """An instant was typed, or nothing."""

        def __init__(self, instant: Instant | None) -> None:
            """Take it."""
            super().__init__()
            self.instant = instant

    def __init__(self) -> None:
        """Begin empty, and out of sight."""
        super().__init__(placeholder="an instant: 2026-11-20T22:00:01.5Z, or a time of that day", id="instant")
        self._near: Instant = 0

    def open(self, near: Instant) -> None:
        """Ask for one. ``near``: a time of day is of this one's day."""
        self._near = near
        self.display = True
        self.focus()

    def close(self) -> None:
        """Forget what was typed."""
        self.value = ""
        self.display = False

    async def action_submit(self) -> None:
        """Tell what was typed."""
        text = self.value.strip()
        try:
            instant = instant_near(text, self._near) if text else None
        except TenureError as problem:
            self.notify(problem.message, severity="warning", markup=False)
            return
        self.post_message(self.Given(instant))
