"""The program ``tenure top``, and what its screens share: title and tabs, a filter, the keys that mean the same on all.

It takes states from a feed and shows them on the screens behind numbers (screens/), and on one about a subject. Touches
no mount, no shard.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, cast

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import Vertical
from textual.events import ScreenResume
from textual.geometry import Size
from textual.message import Message
from textual.reactive import var
from textual.screen import Screen
from textual.widget import Widget

from timeagent.console import printable
from timeagent.errors import BadRequest, TenureError
from timeagent.units import SECOND, Instant

from .feed import SILENT_NS, ArchiveLoader, Feed
from .model.state import SUBJECTS, ClusterState, DetailLine, LeaseRow, Subject, ViewKind, identifier_of, title_of
from .model.tables import EXPORT_DIRECTORY, ExportForm, ExportSheet, Listing, ListOptions, sheet_text, write_export
from .model.words import BAG_LEGEND, CONDITION_CELLS
from .widgets.dialogs import ExportScreen, HelpScreen, RevokeScreen
from .widgets.lines import DARK, LIGHT, FilterField, KeysLine, TabLine, TitleBar, WordsLine
from .widgets.row_table import DetailTable, PickTable, RowTable


class ScreenEntry(NamedTuple):
    key: str
    name: str
    title: str
    place: str
    """Module in ``screens``, and class. Imported when the screen is first opened."""

    def made(self) -> TopScreen:
        module, _, name = self.place.partition(":")
        found: type[TopScreen] = getattr(importlib.import_module(f"{__package__}.screens.{module}"), name)
        return found()


SCREENS: Final = (
    ScreenEntry("1", "overview", "Overview", "cluster:OverviewScreen"),
    ScreenEntry("2", "leases", "Leases", "cluster:LeasesScreen"),
    ScreenEntry("3", "bags", "Bags", "cluster:BagsScreen"),
    ScreenEntry("4", "time", "Time", "cluster:TimeScreen"),
    ScreenEntry("5", "findings", "Findings", "findings:FindingsScreen"),
    ScreenEntry("6", "replay", "Replay", "replay:ReplayScreen"),
)
"""The screens that a number opens: keys, tabs, help and palette follow from it."""


# -- screens -----------------------------------------------------------------------------------------------------------


BESIDE_WIDTH_MIN: Final = 110
"""From this width on two parts stand beside each other."""
LEASE_LEGEND: Final = "Leases", "  ".join(f"{cell.text} {name}" for name, cell in CONDITION_CELLS.items())


class TopScreen(Screen[None], inherit_bindings=False):
    """One of the screens behind a number, or what is opened from one. It shows states; it asks nothing by itself."""

    NAME: ClassVar[str] = ""
    """As in SCREENS; empty for what is opened from others."""
    FILTERS: ClassVar[bool] = False
    """Whether it has rows that ``/`` narrows: then ``filter_words`` is called with what is typed."""
    LEGENDS: ClassVar[tuple[tuple[str, str], ...]] = (LEASE_LEGEND, ("Bags", BAG_LEGEND))
    """What the symbols on it mean, by what they stand for: the help says so."""
    READS_STATE: ClassVar[bool] = True
    """Whether it shows what a state says of the instant that is looked at; else that is not made for it."""
    BINDINGS: ClassVar[list[BindingType]] = [
        # With priority it is done before the next key is looked at: what is typed, or pasted, after it is the filter.
        Binding("slash", "filter", "Filter", key_display="/", priority=True),
        Binding("tab", "app.focus_next", "Next part", key_display="tab", show=False),
        Binding("shift+tab", "app.focus_previous", "Part before", show=False),
        Binding("escape", "back", "Back", show=False),
        Binding("e", "export", "Export", show=False),
    ]
    state: ClusterState | None = None
    _theme = ""
    _seen: tuple[int, bool, Size] | None = None
    """What is drawn: going to and fro draws nothing anew."""

    def compose(self) -> ComposeResult:
        yield TitleBar()
        yield TabLine(self.NAME or self.top.main.NAME, SCREENS, writable=self.top.writable)
        with Vertical(id="body"):
            yield from self.parts()
            if self.FILTERS:
                yield FilterField()
        yield KeysLine()

    def parts(self) -> Iterable[Widget]:
        raise NotImplementedError

    def show(self, state: ClusterState, *, paused: bool) -> None:
        """Show a state: the title, and what ``draw`` adds. Called four times a second: must not wait for anything."""
        self.state = state
        if not self.query(TitleBar):
            return  # the program ends, and this screen is being taken down
        seen = (id(state), paused, self.size)
        if seen == self._seen:
            return
        self._seen = seen
        self.query_one(TitleBar).show(state, paused=paused)
        self.query_one(TabLine).show(state)
        self.draw(state)

    def draw(self, state: ClusterState) -> None:
        raise NotImplementedError

    def on_screen_resume(self, event: ScreenResume) -> None:
        """Show at once what is known: while it was not seen it was told nothing."""
        event.refresh_styles = self._theme != self.top.theme  # matching every selector anew takes longer than the rest
        self._theme = self.top.theme
        self.top.show_now(self)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show_again)

    def _show_again(self) -> None:
        if self.is_mounted:
            self._seen = None
            self.top.show_now(self)

    @property
    def top(self) -> TopApp:
        return cast("TopApp", self.app)

    # Filter.

    def filter_words(self, words: str) -> None:
        self.want(replace(self.options, words=words.strip()))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the filter a slash is a slash; where nothing can be narrowed there is none."""
        del parameters
        return not (action == "filter" and (not self.FILTERS or isinstance(self.focused, FilterField)))

    def action_filter(self) -> None:
        field = self.query_one(FilterField)
        field.display = True
        self.set_focus(field)

    def action_back(self) -> None:
        """End the filter; without one, go back to where this was opened from."""
        if self.FILTERS:
            field = self.query_one(FilterField)
            if field.value or field.display:
                self.action_unfilter()
                return
        self.top.close(self)

    def action_unfilter(self) -> None:
        self.query_one(FilterField).value = ""
        self._leave_filter()

    def on_input_changed(self, event: FilterField.Changed) -> None:
        if isinstance(event.input, FilterField):
            self.filter_words(event.value)

    def on_input_submitted(self, event: FilterField.Submitted) -> None:
        if isinstance(event.input, FilterField):
            self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one(FilterField).display = False
        if isinstance(self.AUTO_FOCUS, str):
            self.set_focus(self.query_one(self.AUTO_FOCUS))

    # Lists.

    LISTING: ClassVar[Listing[Any, Any]]
    options: ListOptions
    """By what its rows can be arranged, and how they should be, of a screen that has some that can be."""

    def want(self, options: ListOptions) -> None:
        self.options = options
        if self.state is not None:
            self.draw(self.state)

    def action_sort(self) -> None:
        order = _after([*self.LISTING.orders], self.options.order)
        self.want(replace(self.options, order=order, backwards=False))

    def action_turn(self) -> None:
        self.want(replace(self.options, backwards=not self.options.backwards))

    def action_group(self) -> None:
        self.want(replace(self.options, group=_after([*self.LISTING.groups], self.options.group)))

    # What the cursor is on.

    def subject(self) -> Subject | None:
        """Return what the cursor is on: what ``enter`` opens and ``y`` copies."""
        table = self.focused
        found = table.key if isinstance(table, PickTable) else None
        return found if isinstance(found, SUBJECTS) else None

    def on_pick_table_chosen(self) -> None:
        self.chosen()

    def chosen(self) -> None:
        subject = self.subject()
        if subject is not None:
            self.top.open(subject)

    def copied(self) -> str:
        subject = self.subject()
        return "" if subject is None else identifier_of(subject)

    # Export.

    def exported(self) -> ExportSheet | None:
        """Return the rows that are seen, as they are written to a file; None where there are none."""
        table = self.focused
        return ExportSheet(self.NAME or "details", table.rows_shown()) if isinstance(table, RowTable) else None

    def action_export(self) -> None:
        self.top.export(self.exported())


def _after(names: Sequence[str], name: str) -> str:
    return names[(names.index(name) + 1) % len(names)]


class EvidenceScreen(TopScreen):
    """A screen of what an audit found, or a record tells: in two parts, beside each other where there is room."""

    PARTS: ClassVar[tuple[str, ...]]
    """By their ids; answers also come while the program ends, and some of them are gone."""

    @property
    def whole(self) -> bool:
        return self.is_mounted and all(self.query_one_optional(f"#{part}") is not None for part in self.PARTS)

    def on_resize(self) -> None:
        self.set_class(self.size.width >= BESIDE_WIDTH_MIN, "beside")

    def draw(self, state: ClusterState) -> None:
        """Take the evidence when it is there; it is shown once the parts have their room."""
        del state
        self.top.archives.take_record()
        self.call_after_refresh(self.look)

    def look(self) -> None:
        raise NotImplementedError

    def action_audit(self) -> None:
        if self.state is not None:
            self.top.archives.audit_now(self.state)
            self.look()


class DetailScreen(TopScreen):
    FILTERS = True
    AUTO_FOCUS = "#details"

    def __init__(self, subject: Subject, trail: str) -> None:
        """Name the subject; it is asked about when the screen is seen. ``trail``: the way here."""
        super().__init__()
        self.about = subject
        self._trail = trail

    def parts(self) -> Iterable[Widget]:
        yield WordsLine(self._trail, id="trail", cut=True)
        yield DetailTable(id="details")

    def on_mount(self) -> None:
        self.ask()

    def ask(self) -> None:
        self.query_one(DetailTable).ask(self.about, self.top.look_up)

    def draw(self, state: ClusterState) -> None:
        self.query_one(DetailTable).tick(state)

    def filter_words(self, words: str) -> None:
        self.query_one(DetailTable).narrow(words)

    def subject(self) -> Subject | None:
        return self.query_one(DetailTable).subject

    def copied(self) -> str:
        return super().copied() or self.query_one(DetailTable).text


# -- the program -------------------------------------------------------------------------------------------------------


type Revoke = Callable[[str, str, str, str], str]
"""Ends a lease: domain, correlation id, the domain as it was typed, the reason. Returns what came of it, in words.

Blocks; raises TenureError."""


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
        self._newest: ClusterState | None = None
        """What came last: shown already, or held back by a pause."""
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
        self.feed.start(lambda state: self.post_message(StateArrived(state)), self._failed)

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

    def on_state_arrived(self, message: StateArrived) -> None:
        self._newest = message.state
        if self.paused and not self._one_more:
            return
        self._one_more = False
        self._show()

    def _show(self) -> None:
        self.state = self._newest
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
        answer = self.feed.do(body, self._failed)
        if within and wait((answer,), within).done:
            take(answer.result())
        else:
            answer.add_done_callback(lambda _: self.call_later(take, answer.result()))

    def complain(self, problem: TenureError, what: str = "") -> None:
        words = (f"{what}: " if what else "") + problem.message + (f"; {problem.hint}" if problem.hint else "")
        self.notify(printable(words), severity="error", markup=False)

    # -- screens ---------------------------------------------------------------------------------------------------

    @property
    def main(self) -> TopScreen:
        """The screen behind the number that was pressed last, whatever was opened from it."""
        return next(screen for screen in self.screen_stack if isinstance(screen, TopScreen))

    def action_go(self, name: str) -> None:
        while len(self.screen_stack) > 2:  # noqa: PLR2004 - Textual's own, and ours
            self.pop_screen()
        if name != self.main.NAME:
            self.delay_update(SETTLING)
            self.switch_screen(name)

    def open(self, subject: Subject) -> None:
        trail = [
            self.main.NAME,
            *(title_of(screen.about) for screen in self.screen_stack if isinstance(screen, DetailScreen)),
        ]
        self.push_screen(DetailScreen(subject, TRAIL.join([*trail, title_of(subject)])))

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
            self.notify(printable(found), markup=False)

    def close(self, screen: Screen[None]) -> None:
        if screen is self.screen and screen is not self.main:
            self.pop_screen()

    def export(self, sheet: ExportSheet | None) -> None:
        if self.is_web:
            why, hint = "a page in a browser writes no file", "open tenure top in a terminal"
            self.complain(BadRequest("only-looks", why, hint=hint))
            return
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
        """Ask everything again at once; paused, take one more picture, and one when the answers should be there."""
        self._one_more = True
        self.feed.ask_now()
        if self.paused:
            self.set_timer(SILENT_NS / SECOND, self._show)
        if isinstance(self.screen, DetailScreen):
            self.screen.ask()

    def action_copy(self) -> None:
        """Put what the cursor is on into the terminal's clipboard (OSC 52)."""
        text = printable(self.screen.copied()) if isinstance(self.screen, TopScreen) else ""
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
