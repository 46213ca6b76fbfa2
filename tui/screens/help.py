"""The help: every key of the screen beneath, from its bindings, and what its symbols mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

LABEL: Final = 10
ROOM: Final = 54
"""For what symbols mean, beside their label, in a terminal of 80 columns."""


def _packed(legend: str) -> str:
    """Return a legend in lines: no symbol stands apart from its meaning."""
    lines = [""]
    for entry in legend.split("  "):
        if lines[-1] and len(lines[-1]) + 2 + len(entry) > ROOM:
            lines.append("")
        lines[-1] += f"  {entry}" if lines[-1] else entry
    return ("\n" + " " * LABEL).join(lines)


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
        symbols = [Content.assemble((f"{what:{LABEL}}", "bold"), _packed(legend)) for what, legend in self._legends]
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            yield Static(Content("\n").join(lines), id="keys")
            yield Static(Content("\n\n").join(symbols), id="symbols")
