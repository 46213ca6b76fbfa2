"""What all screens share: title and tabs, a filter, the keys that mean the same on all; the screen of one subject."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, Protocol, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import ScreenResume
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget

from timeagent.errors import TenureError
from timeagent.units import Instant

from ..feed import ArchiveLoader
from ..model.state import SUBJECTS, ClusterState, DetailLine, LeaseRow, Subject
from ..model.tables import ExportSheet, Listing, ListOptions
from ..model.words import BAG_LEGEND, CONDITION_CELLS
from ..widgets.lines import FilterField, KeysLine, TabLine, TitleBar, WordsLine
from ..widgets.row_table import DetailTable, PickTable, RowTable


class ScreenEntry(NamedTuple):
    key: str
    name: str
    title: str
    place: str
    """Module below this package, and class. Imported when the screen is first opened."""

    def made(self) -> TopScreen:
        module, _, name = self.place.partition(":")
        found: type[TopScreen] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
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


class Program(Protocol):
    """What screens ask of the program that shows them: app.py."""

    paused: bool
    theme: str
    archives: ArchiveLoader

    @property
    def main(self) -> TopScreen: ...
    @property
    def writable(self) -> bool: ...
    @property
    def of_record(self) -> bool: ...
    def show_now(self, screen: TopScreen) -> None: ...
    def look_at(self, instant: Instant | None) -> None: ...
    def look_up(self, subject: Subject, take: Callable[[Sequence[DetailLine] | TenureError], None]) -> None: ...
    def work[T](
        self, body: Callable[[], T], take: Callable[[T | TenureError], None], within: float | None = None
    ) -> None: ...
    def open(self, subject: Subject) -> None: ...
    def replay_at(self, instant: Instant | None, follow: str | None = None) -> None: ...
    def revoke(self, row: LeaseRow) -> None: ...
    def export(self, sheet: ExportSheet | None) -> None: ...
    def close(self, screen: Screen[None]) -> None: ...


BESIDE_WIDTH_MIN: Final = 110
"""From this width on two parts stand beside each other."""
LEASE_LEGEND: Final = "Leases", "  ".join(f"{cell.text} {name}" for name, cell in CONDITION_CELLS.items())


class TopScreen(Screen[None], inherit_bindings=False):
    """One of the screens behind a number, or what is opened from one. It shows states; it asks nothing by itself."""

    NAME: ClassVar[str] = ""
    """As in SCREENS; empty for what is opened from others."""
    FILTERS: ClassVar[bool] = False
    """Whether it has rows that ``/`` narrows: then ``filter_words`` is called with what is typed."""
    REVOKES: ClassVar[bool] = False
    """Whether its cursor may stand on a lease: then ``lease`` says on which."""
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
        Binding("R", "revoke", "Revoke"),
    ]
    state: ClusterState | None = None
    _theme = ""
    _seen: tuple[int, bool, Size] | None = None
    """What is drawn: going to and fro draws nothing anew."""

    def compose(self) -> ComposeResult:
        yield TitleBar()
        yield TabLine(self.top.main.NAME if not self.NAME else self.NAME, SCREENS, writable=self.top.writable)
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
        """Show it in the new size, once everything has its place."""
        self.call_after_refresh(self._show_again)

    def _show_again(self) -> None:
        if self.is_mounted:
            self._seen = None
            self.top.show_now(self)

    @property
    def top(self) -> Program:
        return cast("Program", self.app)

    # Filter.

    def filter_words(self, words: str) -> None:
        self.want(replace(self.options, words=words.strip()))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the filter a slash is a slash; where nothing can be narrowed, or revoked, there is none."""
        del parameters
        if action == "revoke":
            return self.REVOKES and self.top.writable
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
        return "" if subject is None else subject.identifier

    def lease(self) -> LeaseRow | None:
        return None

    def action_revoke(self) -> None:
        """Revoke the lease that the cursor is on, once its name and a reason are typed."""
        row = self.lease()
        if row is None:
            self.notify("no lease is under the cursor", timeout=2)
        else:
            self.top.revoke(row)

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
