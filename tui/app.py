"""The program ``leasehold top``: takes states from a feed and shows them. Touches neither mount nor shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.reactive import var

from .messages import FeedFailed, StateArrived
from .screens.help import HelpScreen
from .screens.overview import OverviewScreen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Protocol

    from .state import ClusterState

    class StateFeed(Protocol):
        """Where states come from: feed.py."""

        def start(self, take: Callable[[ClusterState], None], failed: Callable[[BaseException], None]) -> None:
            """Begin to hand over states, from other threads."""
            ...

        def stop(self) -> None:
            """End; waits for nobody."""
            ...

        def ask_now(self) -> None:
            """Hand over a fresh state soon."""
            ...


DARK = "textual-dark"
LIGHT = "textual-light"


class TopApp(App[None]):
    """The operator's window. Every screen shows the same state."""

    TITLE = "leasehold top"
    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("space", "pause", "Pause", key_display="space"),
        Binding("r", "refresh_now", "Refresh"),
        Binding("ctrl+c", "quit", "Quit", show=False),
        Binding("d", "dark", "Dark or light", show=False),
    ]
    paused: var[bool] = var(default=False, init=False)

    def __init__(self, feed: StateFeed) -> None:
        """Take the feed; it is started with the screen."""
        super().__init__()
        self._feed = feed
        self._overview = OverviewScreen()
        self._state: ClusterState | None = None
        self._one_more = False

    def on_mount(self) -> None:
        """Open the overview and start the feed."""
        self.theme = DARK
        self.animation_level = "none"  # what moves four times a second need not glide
        self.push_screen(self._overview)
        self._feed.start(lambda state: self._post(StateArrived(state)), lambda problem: self._post(FeedFailed(problem)))

    def on_unmount(self) -> None:
        """Stop the feed."""
        self._feed.stop()

    def _post(self, message: StateArrived | FeedFailed) -> None:
        self.post_message(message)

    def on_state_arrived(self, message: StateArrived) -> None:
        """Show it, unless paused."""
        if self.paused and not self._one_more:
            return
        self._one_more = False
        self._state = message.state
        self._show()

    def on_feed_failed(self, message: FeedFailed) -> None:
        """End with the traceback of what is a bug; the terminal is given back first."""
        raise message.problem

    def _show(self) -> None:
        if self._state is not None and self._overview.is_mounted:
            self._overview.show(self._state, paused=self.paused)

    def watch_paused(self) -> None:
        """Say at once whether it is paused."""
        self._show()

    def action_pause(self) -> None:
        """Hold the picture, or let it go on."""
        self.paused = not self.paused
        if not self.paused:
            self._feed.ask_now()

    def action_refresh_now(self) -> None:
        """Ask everything again at once; paused, take one more picture."""
        self._one_more = True
        self._feed.ask_now()

    def action_dark(self) -> None:
        """Change between dark and light."""
        self.theme = LIGHT if self.theme == DARK else DARK

    def action_help(self) -> None:
        """List the keys of the screen that is seen."""
        self.push_screen(HelpScreen(list(self._keys())))

    def _keys(self) -> Iterable[tuple[str, str]]:
        """Yield each key of what has the focus, its screen and the program, with what it does; each action once."""
        seen: dict[str, tuple[list[str], str]] = {}
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if binding.description and active.enabled and not binding.system:
                keys, _ = seen.setdefault(binding.action, ([], binding.description))
                keys.append(self.get_key_display(binding))
        for keys, what in seen.values():
            yield " ".join(dict.fromkeys(keys)), what
