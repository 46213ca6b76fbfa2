"""What all screens share: title and tabs, a filter line, the footer, and the keys that mean the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import Screen

from ..exporting import Sheet
from ..subjects import SUBJECTS
from ..widgets.filter_field import FilterField
from ..widgets.keys_line import KeysLine
from ..widgets.lines import TabLine, TitleBar
from ..widgets.pick_table import PickTable
from ..widgets.row_table import RowTable
from ..words import BAG_LEGEND, SYMBOLS
from .registry import ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.events import ScreenResume
    from textual.geometry import Size
    from textual.widget import Widget

    from ..app import TopApp
    from ..state import ClusterState, LeaseRow
    from ..subjects import Subject

LEASES: Final = "Leases", "  ".join(f"{symbol} {condition}" for condition, symbol in SYMBOLS.items())


class TopScreen(Screen[None], inherit_bindings=False):
    """One of the screens behind a number, or what is opened from one. It shows states; it asks nothing by itself."""

    NAME: ClassVar[str] = ""
    """As in registry.py; empty for what is opened from others."""
    FILTERS: ClassVar[bool] = False
    """Whether it has rows that ``/`` narrows: then ``filter_words`` is called with what is typed."""
    REVOKES: ClassVar[bool] = False
    """Whether its cursor may stand on a lease: then ``lease`` says on which."""
    LEGENDS: ClassVar[tuple[tuple[str, str], ...]] = (LEASES, ("Bags", BAG_LEGEND))
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
    """The newest that it was given."""
    _theme = ""
    _seen: tuple[int, bool, Size] | None = None
    """What is drawn: going to and fro draws nothing anew."""

    def compose(self) -> ComposeResult:
        """Put the parts under each other."""
        yield TitleBar()
        yield TabLine(self.top.main.NAME if not self.NAME else self.NAME, ENTRIES, writable=self.top.writable)
        with Vertical(id="body"):
            yield from self.parts()
            if self.FILTERS:
                yield FilterField()
        yield KeysLine()

    def parts(self) -> Iterable[Widget]:
        """Return what stands between title and footer."""
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
        """Show a state in the screen's own parts."""
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
    def top(self) -> TopApp:
        """The program."""
        from ..app import TopApp  # noqa: PLC0415 - the program imports its screens

        assert isinstance(self.app, TopApp)
        return self.app

    # Filter.

    def filter_words(self, words: str) -> None:
        """Narrow the rows to those that match."""
        raise NotImplementedError

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In the filter a slash is a slash; where nothing can be narrowed, or revoked, there is none."""
        del parameters
        if action == "revoke":
            return self.REVOKES and self.top.writable
        return not (action == "filter" and (not self.FILTERS or isinstance(self.focused, FilterField)))

    def action_filter(self) -> None:
        """Open the filter."""
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
        """Show all rows again."""
        self.query_one(FilterField).value = ""
        self._leave_filter()

    def on_input_changed(self, event: FilterField.Changed) -> None:
        """Filter while it is typed."""
        if isinstance(event.input, FilterField):
            self.filter_words(event.value)

    def on_input_submitted(self, event: FilterField.Submitted) -> None:
        """Keep the filter, and go back to the rows."""
        if isinstance(event.input, FilterField):
            self._leave_filter()

    def _leave_filter(self) -> None:
        self.query_one(FilterField).display = False
        if isinstance(self.AUTO_FOCUS, str):
            self.set_focus(self.query_one(self.AUTO_FOCUS))

    # What the cursor is on.

    def subject(self) -> Subject | None:
        """Return what the cursor is on: what ``enter`` opens and ``y`` copies."""
        table = self.focused
        found = table.key if isinstance(table, PickTable) else None
        return found if isinstance(found, SUBJECTS) else None

    def on_pick_table_chosen(self) -> None:
        """Open what the cursor is on."""
        subject = self.subject()
        if subject is not None:
            self.top.open(subject)

    def copied(self) -> str:
        """Return what ``y`` copies."""
        subject = self.subject()
        return "" if subject is None else subject.identifier

    def lease(self) -> LeaseRow | None:
        """Return the lease that the cursor is on."""
        return None

    def action_revoke(self) -> None:
        """Revoke the lease that the cursor is on, once its name and a reason are typed."""
        row = self.lease()
        if row is None:
            self.notify("no lease is under the cursor", timeout=2)
        else:
            self.top.revoke(row)

    # Export.

    def exported(self) -> Sheet | None:
        """Return the rows that are seen, as they are written to a file; None where there are none."""
        table = self.focused
        return Sheet(self.NAME or "details", table.rows_shown()) if isinstance(table, RowTable) else None

    def action_export(self) -> None:
        """Ask in which form, and write it down."""
        self.top.export(self.exported())
