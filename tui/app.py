"""The program ``tenure top``, and its dialogs: takes states from a feed and shows them. Touches no mount, no shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, ClassVar, Final

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.reactive import var
from textual.screen import ModalScreen, Screen
from textual.theme import Theme
from textual.widgets import Input, Static

from timeagent.errors import TenureError
from timeagent.units import Instant

from .feed import ArchiveLoader, Feed
from .model.state import Cell, ClusterState, DetailLine, LeaseRow, Subject, Tone, ViewKind
from .model.tables import EXPORT_DIRECTORY, ExportForm, ExportSheet, sheet_text, write_export
from .model.words import moment
from .screens.screen import SCREENS, DetailScreen, Program, TopScreen
from .widgets.lines import WordsLine

type Revoke = Callable[[str, str, str, str], str]
"""Ends a lease: domain, correlation id, the domain as it was typed, the reason. Returns what came of it, in words.

Blocks; raises TenureError."""


DARK: Final = Theme(
    name="tenure-dark",
    primary="#0178D4",
    secondary="#004578",
    warning="#FFA62B",
    error="#D5556F",
    success="#4EBF71",
    accent="#3FA9F5",
    foreground="#E0E0E0",
    background="#121212",
    surface="#1E1E1E",
    panel="#242F38",
    dark=True,
    variables={
        "text-success": "#8AD4A1",
        "text-warning": "#FFC473",
        "text-error": "#F28FA3",
        "text-accent": "#7CC7FF",
        "primary-muted": "#0C304C",
    },
)
LIGHT: Final = Theme(
    name="tenure-light",
    primary="#004578",
    secondary="#0178D4",
    warning="#8A5300",
    error="#A3142F",
    success="#1B6E37",
    accent="#0B63B0",
    foreground="#1A1A1A",
    background="#FAFAFA",
    surface="#F0F0F0",
    panel="#DCE4EB",
    dark=False,
    variables={
        "text-success": "#17632F",
        "text-warning": "#7D4A00",
        "text-error": "#9B1230",
        "text-accent": "#0B5594",
        "primary-muted": "#C9DDF0",
    },
)


class StateArrived(Message):
    """A newer state. One that is still waiting to be shown is replaced: a slow terminal gets fewer, never older."""

    def __init__(self, state: ClusterState) -> None:
        super().__init__()
        self.state = state

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, StateArrived)


def bound(screen: Screen[Any]) -> Iterable[tuple[ActiveBinding, list[str]]]:
    """Return what keys do on a screen, each action once, with its keys as they are shown."""
    seen: dict[tuple[int, str], tuple[ActiveBinding, list[str]]] = {}  # a part and its screen may call two things alike
    for active in screen.active_bindings.values():
        if active.binding.description and active.enabled and not active.binding.system:
            _, keys = seen.setdefault((id(active.node), active.binding.action), (active, []))
            keys.append(screen.app.get_key_display(active.binding))
    return seen.values()


# -- dialogs -----------------------------------------------------------------------------------------------------------


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
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "Close")]

    def __init__(self, keys: Sequence[tuple[str, str]], legends: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys
        self._legends = legends

    def compose(self) -> ComposeResult:
        width = max((len(key) for key, _ in self._keys), default=0)
        lines = [Content.assemble((f"{key:<{width}}  ", "bold $text-accent"), what) for key, what in self._keys]
        symbols = [Content.assemble((f"{what:{LABEL}}", "bold"), _packed(legend)) for what, legend in self._legends]
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            yield Static(Content("\n").join(lines), id="keys")
            yield Static(Content("\n\n").join(symbols), id="symbols")


class ExportScreen(ModalScreen[ExportForm | None]):
    """Returns the form; None: nothing is written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "choose('jsonl')", "JSONL"),
        Binding("c", "choose('csv')", "CSV"),
        Binding("s", "choose('svg')", "SVG"),
        Binding("escape,e", "dismiss", "Nothing"),
    ]

    def __init__(self, what: str) -> None:
        """Take what there is to write, in words; empty where it is only the screen."""
        super().__init__()
        self._what = what

    def compose(self) -> ComposeResult:
        rows = f"j  {self._what} as JSONL\nc  {self._what} as CSV\n" if self._what else ""
        with Vertical(id="dialog") as box:
            box.border_title = "Export"
            yield Static(f"{rows}s  the screen as SVG", markup=False)
            yield Static("into the directory in which this was started; esc leaves it", id="dialog-keys")

    def action_choose(self, form: str) -> None:
        if form == ExportForm.SVG or self._what:
            self.dismiss(ExportForm(form))


REASON_BYTES_MAX = 128


class RevokeScreen(ModalScreen[tuple[str, str] | None]):
    """Returns the name as it was typed, and the reason; None: nothing is to change."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", "Leave it")]
    AUTO_FOCUS = "#typed"

    def __init__(self, row: LeaseRow) -> None:
        super().__init__()
        self._row = row

    def compose(self) -> ComposeResult:
        row = self._row
        with Vertical(id="dialog") as box:
            box.border_title = "Revoke a lease"
            yield WordsLine(row.domain, id="which")
            yield WordsLine(
                f"{row.mode} {row.phase} of {row.node}/{row.process}  {row.purpose or '-'}", id="whose", cut=True
            )
            yield WordsLine(f"until {moment(row.expiry_ns)} as yet", id="until")
            yield Input(placeholder="its name, to revoke it", id="typed")
            yield Input(placeholder="the reason: kept in the ledger for ever", id="reason")
            yield WordsLine("enter goes on and, with both said, revokes; esc leaves it", id="dialog-keys")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        typed = self.query_one("#typed", Input).value
        reason = self.query_one("#reason", Input)
        if typed != self._row.domain:
            self._refuse("that is not its name: nothing is revoked", "#typed")
        elif event.input is not reason:
            self.set_focus(reason)
        elif not reason.value.strip():
            self._refuse("say why: it stays in the ledger", "#reason")
        elif len(reason.value.encode("utf-8", "surrogatepass")) > REASON_BYTES_MAX:
            self._refuse(f"a reason has at most {REASON_BYTES_MAX} bytes", "#reason")
        else:
            self.dismiss((typed, reason.value))

    def _refuse(self, why: str, field: str) -> None:
        self.query_one("#dialog-keys", WordsLine).say(Cell(why, Tone.BAD))
        self.set_focus(self.query_one(field, Input))


# -- the program -------------------------------------------------------------------------------------------------------


TRAIL: Final = " > "
SETTLING: Final = 0.01
"""Seconds before another screen is drawn: what it learns first is drawn with it, and not once more after it."""


class TopApp(App[None]):
    """The operator's window. Every screen shows the same state."""

    TITLE = "tenure top"
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(entry.key, f"go('{entry.name}')", entry.title, show=False) for entry in SCREENS),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("colon", "command_palette", "Commands", key_display=":"),
        Binding("space", "pause", "Pause", key_display="space"),
        Binding("r", "refresh_now", "Refresh"),
        Binding("y", "copy", "Copy", show=False),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),  # also where something is typed, and in a dialog
        Binding("ctrl+z", "suspend_process", "Into the background", show=False),
        Binding("d", "dark", "Dark or light", show=False),
    ]
    SCREENS: ClassVar = {entry.name: entry.made for entry in SCREENS}
    paused: var[bool] = var(default=False, init=False)

    def __init__(self, feed: Feed, *, revoke: Revoke | None = None, first: str = "overview") -> None:
        """Take the feed; it is started with the screen. ``revoke``: None: nothing can be revoked from here."""
        super().__init__()
        self.feed = feed
        self._revoke = revoke
        self.state: ClusterState | None = None
        self.instant: Instant | None = None
        """What is looked at; None: now, or the end of a record."""
        self.archives = ArchiveLoader(feed, self.work, self.complain)
        """The evidence that was read, for the screens that show it."""
        self.export_to = EXPORT_DIRECTORY
        self._first = first
        self._one_more = False
        self._owed = False
        """Whether another instant is looked at than the newest state is of, and no screen that is seen reads that."""

    def on_mount(self) -> None:
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name
        self.animation_level = "none"  # what moves four times a second need not glide
        self.push_screen(self._first)
        self.feed.start(self._take_state, self._failed)

    def _fatal_error(self) -> None:
        """End for what is a bug. The library would show it too: whoever starts the command does, once."""
        self._close_messages_no_wait()

    def on_unmount(self) -> None:
        self.feed.stop()

    def _failed(self, problem: BaseException) -> None:
        """End with the traceback of what is a bug; the terminal is given back first."""

        def end() -> None:
            raise problem

        self.call_later(end)

    # -- states ----------------------------------------------------------------------------------------------------

    def _take_state(self, state: ClusterState) -> None:
        self.post_message(StateArrived(state))

    def on_state_arrived(self, message: StateArrived) -> None:
        if self.paused and not self._one_more:
            return
        self._one_more = False
        self.state = message.state
        self._show()

    def _show(self) -> None:
        for screen in self._seen():
            self.show_now(screen)

    def show_now(self, screen: TopScreen) -> None:
        if self._owed and screen.READS_STATE:
            self._owed = False
            self.feed.look_at(self.instant)
        if self.state is not None and screen.is_mounted:
            screen.show(self.state, paused=self.paused)

    def _seen(self) -> Iterable[TopScreen]:
        """Yield the screens that are seen: the top one, and those beneath what is only laid over them."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, TopScreen):
                yield screen
            if not screen.is_modal:
                return

    def look_at(self, instant: Instant | None) -> None:
        """Show another instant of a record from now on, on every screen. None: its end.

        A state is made of it as soon as a screen is seen that reads one.
        """
        self.instant = instant
        self._one_more = self.paused
        self._owed = not any(screen.READS_STATE for screen in self._seen())
        if not self._owed:
            self.feed.look_at(instant)

    def look_up(self, subject: Subject, take: Callable[[Sequence[DetailLine] | TenureError], None]) -> None:
        instant = self.instant
        self.work(lambda: self.feed.source.details(subject, instant), take)

    def work[T](
        self, body: Callable[[], T], take: Callable[[T | TenureError], None], within: float | None = None
    ) -> None:
        """Do what may take long, or hang, in a thread of its own; ``take`` gets what it came to, or why nothing.

        ``within``: so many seconds all stands still for it: what has come by then is drawn with what is shown already.
        """
        answer: Future[T | TenureError] = Future()
        self.feed.do(body, answer.set_result, self._failed)
        if within and wait((answer,), within).done:
            take(answer.result())
        else:
            answer.add_done_callback(lambda _: self.call_later(take, answer.result()))

    def complain(self, problem: TenureError, what: str = "") -> None:
        words = (f"{what}: " if what else "") + problem.message + (f"; {problem.hint}" if problem.hint else "")
        self.notify(words, severity="error", markup=False)

    # -- screens ---------------------------------------------------------------------------------------------------

    @property
    def main(self) -> TopScreen:
        """The screen behind the number that was pressed last, whatever was opened from it."""
        return next(screen for screen in self.screen_stack if isinstance(screen, TopScreen))

    def action_go(self, name: str) -> None:
        """Go to one of the screens, and leave what was opened from another."""
        while len(self.screen_stack) > 2:  # noqa: PLR2004 - Textual's own, and ours
            self.pop_screen()
        if name != self.main.NAME:
            self.delay_update(SETTLING)
            self.switch_screen(name)

    def open(self, subject: Subject) -> None:
        trail = [
            self.main.NAME,
            *(screen.about.title for screen in self.screen_stack if isinstance(screen, DetailScreen)),
        ]
        self.push_screen(DetailScreen(subject, TRAIL.join([*trail, subject.title])))

    def replay_at(self, instant: Instant | None, follow: str | None = None) -> None:
        from .screens.replay import ReplayScreen  # noqa: PLC0415 - like every screen, when it is first seen

        self.action_go("replay")
        self.get_screen("replay", ReplayScreen).begin_at(instant, follow)

    @property
    def writable(self) -> bool:
        return self._revoke is not None

    def revoke(self, row: LeaseRow) -> None:
        revoke = self._revoke
        if revoke is None:
            return

        def confirmed(said: tuple[str, str] | None) -> None:
            if said is not None:
                typed, reason = said
                self.work(lambda: revoke(row.domain, row.correlation_id, typed, reason), self._revoked)

        self.push_screen(RevokeScreen(row), confirmed)

    def _revoked(self, found: str | TenureError) -> None:
        self._say(found)
        self.feed.ask_now()

    def _say(self, found: str | TenureError) -> None:
        if isinstance(found, TenureError):
            self.complain(found)
        else:
            self.notify(found, markup=False)

    def close(self, screen: Screen[None]) -> None:
        """Go back to what a screen was opened from; the screens behind numbers stay."""
        if screen is self.screen and screen is not self.main:
            self.pop_screen()

    def export(self, sheet: ExportSheet | None) -> None:
        picture = self.export_screenshot(title=self.TITLE)
        instant = self.state.clock.now.midpoint if self.state is not None else 0
        if self.of_record and self.instant is not None:
            instant = self.instant
        name = self.main.NAME if sheet is None else sheet.name

        def chosen(form: ExportForm | None) -> None:
            if form is None:
                return

            def body() -> str:
                text = picture if form is ExportForm.SVG or sheet is None else sheet_text(sheet, form)
                return f"written: {write_export(self.export_to, name, instant, form, text)}"

            self.work(body, self._say)

        self.push_screen(ExportScreen(f"{len(sheet.rows):,} {name}" if sheet is not None else ""), chosen)

    # -- keys ------------------------------------------------------------------------------------------------------

    def watch_paused(self) -> None:
        self._show()

    def action_pause(self) -> None:
        self.paused = not self.paused
        if not self.paused:
            self.feed.ask_now()

    def action_refresh_now(self) -> None:
        """Ask everything again at once; paused, take one more picture."""
        self._one_more = True
        self.feed.ask_now()
        if isinstance(self.screen, DetailScreen):
            self.screen.ask()

    def action_copy(self) -> None:
        """Put what the cursor is on into the terminal's clipboard (OSC 52)."""
        text = self.screen.copied() if isinstance(self.screen, TopScreen) else ""
        if text:
            self.copy_to_clipboard(text)
        self.notify(f"copied: {text}" if text else "nothing to copy here", timeout=2, markup=False)

    def action_dark(self) -> None:
        self.theme = (LIGHT if self.theme == DARK.name else DARK).name

    def action_help(self) -> None:
        beneath = next(each for each in reversed(self.screen_stack) if isinstance(each, TopScreen))
        self.push_screen(HelpScreen(list(self.keys()), beneath.LEGENDS))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        for active, keys in bound(screen):
            action = partial(self.run_action, active.binding.action, active.node)
            yield SystemCommand(f"{active.binding.description}  ({keys[0]})", "", action)

    def keys(self) -> Iterable[tuple[str, str]]:
        """Yield each key of what has the focus, its screen and the program, with what it does; each action once."""
        for active, keys in bound(self.screen):
            yield " ".join(dict.fromkeys(keys)), active.binding.description

    @property
    def of_record(self) -> bool:
        return self.state is not None and self.state.view is ViewKind.RECORD


_: type[Program] = TopApp
