"""Draws nothing for a while: what a key changes at once, and what a thread is asked for, is drawn together then."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from textual.screen import Screen

HELD: Final = 0.05
"""Seconds for which nothing is drawn while the thread works: mostly it is ready by then, and all is drawn at once."""


class Holding:
    """Holds back what one screen draws; never longer than HELD."""

    def __init__(self, screen: Screen[None]) -> None:
        """Hold back nothing yet."""
        self._screen = screen
        self._held: ExitStack | None = None

    @property
    def on(self) -> bool:
        """Whether something is held back."""
        return self._held is not None

    def begin(self) -> None:
        """Draw nothing from now on, where the screen is the one that is seen."""
        if self._held is None and self._screen.is_current:
            self._held = ExitStack()
            self._held.enter_context(self._screen.app.batch_update())
            asyncio.get_running_loop().call_later(HELD, self.end, self._held)

    def end(self, held: ExitStack | None = None) -> None:
        """Draw what there is. ``held``: only if this is still held."""
        if self._held is not None and held in (None, self._held):
            self._held.close()
            self._held = None
            for screen in self._screen.app.screen_stack[-1:]:  # another one by now, or none while the program ends
                screen.check_idle()
