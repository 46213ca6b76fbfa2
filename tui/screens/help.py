"""The help: every key of the screen beneath, from its bindings, and what its symbols mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult


class HelpScreen(ModalScreen[None]):
    """A list of keys over the screen; any of its own keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
        Binding("question_mark", "dismiss", "Close", show=False),
        Binding("q", "dismiss", "Close", show=False),
    ]

    def __init__(self, keys: Sequence[tuple[str, str]], legends: Sequence[tuple[str, str]]) -> None:
        """Take each key as it is printed, and what it does; of what there are symbols, and what they mean."""
        super().__init__()
        self._keys = keys
        self._legends = legends

    def compose(self) -> ComposeResult:
        """Show keys and symbols."""
        width = max((len(key) for key, _ in self._keys), default=0)
        lines = [Content.assemble((f"{key:<{width}}  ", "bold $text-accent"), what) for key, what in self._keys]
        symbols = [Content.assemble((f"{what}   ", "bold"), legend) for what, legend in self._legends]
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            yield Static(Content("\n").join(lines), id="keys")
            yield Static(Content("\n\n").join(symbols), id="symbols")
