"""The keys of what has the focus, in one line. One widget, where a widget a key takes most of a change of screens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from textual.strip import Strip
from textual.widget import Widget

from ..cellwidth import cells_of
from ..tones import drawn
from .framing import Framing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.style import Style
    from textual.binding import Binding
    from textual.events import Click
    from textual.geometry import Region
    from textual.screen import Screen

FIRST: Final = ("help", "quit")
"""What stays where there is no room for all; the rest is in the help."""
GAP: Final = 2


class KeysLine(Widget):
    """Key and meaning, as many as there is room for. A click is as the key."""

    def __init__(self) -> None:
        """Know of no keys yet."""
        super().__init__(id="keys-line")
        self._keys: list[tuple[str, str, str]] = []
        self._places: list[tuple[int, int, str]] = []
        self._strip: Strip | None = None
        self._frame = Framing(self)

    def on_mount(self) -> None:
        """Follow the bindings."""
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self._changed(self.screen)

    def _changed(self, screen: Screen[object]) -> None:
        if not self.is_attached or screen is not self.screen:
            return
        keys = list(self._bound(screen))
        if keys != self._keys:
            self._keys, self._strip = keys, None
            self.refresh()

    def _bound(self, screen: Screen[object]) -> Iterator[tuple[str, str, str]]:
        """Yield (key, as it is shown, what it does) of each binding that is to be shown; each action once."""
        found: dict[str, Binding] = {}
        for each in screen.active_bindings.values():
            if each.binding.show:
                found.setdefault(each.binding.action, each.binding)
        for binding in sorted(found.values(), key=lambda binding: binding.action not in FIRST):
            yield binding.key, self.app.get_key_display(binding), binding.description

    def on_resize(self) -> None:
        """Lay it out anew."""
        self._strip = None

    def notify_style_update(self) -> None:
        """Draw it in another theme."""
        super().notify_style_update()
        self._strip = None
        self._frame.forget()

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render it with what stands around it."""
        return self._frame.lines(crop, self.render_line, super().render_lines)

    def render_line(self, y: int) -> Strip:
        """Render the line."""
        del y
        if self._strip is None:
            self._strip = self._made(self.size.width, drawn(self, "bold $text-accent"), drawn(self))
        return self._strip

    def _made(self, width: int, key_style: Style, style: Style) -> Strip:
        segments = [Segment(" ", style)]
        self._places = []
        at = 1
        for key, shown, what in self._keys:
            size = cells_of(shown) + 1 + cells_of(what)
            if at + size > width:
                continue
            self._places.append((at, at + size, key))
            segments += [Segment(f"{shown} ", key_style), Segment(what + " " * GAP, style)]
            at += size + GAP
        return Strip(segments).adjust_cell_length(width, style)

    def on_click(self, event: Click) -> None:
        """Do what the key does."""
        for first, end, key in self._places:
            if first <= event.x < end:
                self.app.simulate_key(key)
