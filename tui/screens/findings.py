"""The findings of the audit: what, when, about what; and of the one under the cursor every link of its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Container

from auditor.rules.finding import Finding
from timeagent.console import printable
from timeagent.errors import TenureError

from ..evidence import LEGEND as EVIDENCE_LEGEND
from ..exporting import Sheet
from ..finding_loader import Looked, look_at
from ..findinglist import LEGEND, Group, Order, Wanted, exported, summary_cells
from ..subjects import FindingSubject
from ..widgets.findings import ChainTable, FindingTable
from ..widgets.pick_table import PickTable
from ..widgets.words_line import WordsLine
from .base import TopScreen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.widget import Widget

    from auditor.explain.archive import Archive

    from ..state import ClusterState
    from ..subjects import Subject

BESIDE_WIDTH_MIN = 110
"""From this width on the chain stands beside the list."""
KEPT = 200
PERIOD = 0.25
"""Seconds between two looks at how far a reading is."""


class FindingsScreen(TopScreen):
    """List, chain, explanation. Passes no judgement of its own."""

    NAME = "findings"
    FILTERS = True
    LEGENDS = (("Findings", LEGEND), ("Evidence", EVIDENCE_LEGEND))
    AUTO_FOCUS = "#finding-list"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "explain", "Explain"),
        Binding("t,R", "replay", "Replay", key_display="t"),
        Binding("n", "next_finding(1)", "Next", show=False),
        Binding("N", "next_finding(-1)", "Previous", show=False),
        Binding("s", "sort", "Sort"),
        Binding("S", "turn", "Other way round", show=False),
        Binding("b", "group", "Group"),
        Binding("a", "audit", "Audit now", show=False),
    ]

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__()
        self._wanted = Wanted()
        self._looked: dict[str, Looked | TenureError] = {}
        self._asked: str | None = None
        self._archive: Archive | None = None
        self._explaining = False

    def parts(self) -> Iterable[Widget]:
        """Return what the audit came to, the list, and the chain of one finding."""
        yield WordsLine(id="audit-line")
        with Container(id="finding-parts"):
            yield FindingTable()
            yield ChainTable()
        yield WordsLine(id="link-whole")

    def on_mount(self) -> None:
        """Look now and then how far a reading is."""
        self.set_interval(PERIOD, self._look)

    def on_resize(self) -> None:
        """Put the chain beside the list, or beneath it."""
        self.set_class(self.size.width >= BESIDE_WIDTH_MIN, "beside")

    @property
    def _there(self) -> bool:
        """Whether its parts are there: answers also come while the program ends."""
        return self.is_mounted and bool(self.query(FindingTable)) and bool(self.query("#link-whole"))

    def draw(self, state: ClusterState) -> None:
        """Show what the audit found."""
        del state
        self.top.shelf.take_record(self.top.feed.record)
        self._look()

    def _look(self) -> None:
        if not self.is_current or not self._there:
            return
        archive, state = self.top.shelf.archive, self.state
        if archive is None or self.top.shelf.busy:
            words = self.top.shelf.words(state)
            self._archive = None  # what was read before comes back where this reading fails
            self.query_one("#audit-line", WordsLine).say(words)
            self.query_one(FindingTable).show((), {}, self._wanted, words)
            self.query_one(ChainTable).show_nothing("")
            return
        if archive is not self._archive:
            self._archive, self._asked = archive, None
            self._looked.clear()
            self._fill()

    def _fill(self) -> None:
        archive = self._archive
        if archive is None:
            return
        summary = archive.audit.summary
        self.query_one("#audit-line", WordsLine).say_cells([summary_cells(summary)])
        findings = archive.audit.findings
        nothing = "nothing matches the filter" if findings else "● nothing found: every promise was kept"
        times = {finding.id: instant for instant, finding in archive.timeline.findings}
        self.query_one(FindingTable).show(findings, times, self._wanted, nothing)
        self._about()

    # The finding under the cursor.

    def on_pick_table_moved(self, event: PickTable.Moved) -> None:
        """Show the chain of the finding, or the whole of the link, that the cursor is on."""
        if isinstance(event.table, FindingTable):
            self._about()
        else:
            self._whole()

    def _about(self) -> None:
        finding, archive = self.query_one(FindingTable).finding, self._archive
        if finding is None or archive is None:
            self.query_one(ChainTable).show_nothing("")
            self._whole()
            return
        known = self._looked.get(finding.id)
        if known is not None:
            self._show_chain(finding, known)
        elif self._asked != finding.id:
            self._asked = finding.id
            self.query_one(ChainTable).show_nothing("following the evidence …")
            self.top.work(lambda: look_at(finding, archive), lambda found: self._take(finding, archive, found))
        self._whole()

    def _take(self, finding: Finding, archive: Archive, found: Looked | TenureError) -> None:
        if archive is not self._archive:
            return
        if len(self._looked) >= KEPT:
            self._looked.clear()
        self._looked[finding.id] = found
        self._asked = None
        if self._there:
            self._about()

    def _show_chain(self, finding: Finding, known: Looked | TenureError) -> None:
        table = self.query_one(ChainTable)
        if isinstance(known, TenureError):
            table.show_nothing(f"no answer: {known.message}")
        elif self._explaining:
            table.show_text(finding, known.explanation)
        else:
            table.show_chain(finding, known.link)
        self._whole()

    def _whole(self) -> None:
        """Show what the cursor is on without a cut."""
        table, finding = self.query_one(ChainTable), self.query_one(FindingTable).finding
        text = table.whole if table.has_focus else printable(finding.explanation) if finding else ""
        self.query_one("#link-whole", WordsLine).say(text)

    # Keys.

    def filter_words(self, words: str) -> None:
        """Narrow the findings."""
        self._want(replace(self._wanted, words=words.strip()))

    def _want(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._fill()

    def action_sort(self) -> None:
        """Sort by the next thing."""
        orders = list(Order)
        after = orders[(orders.index(self._wanted.order) + 1) % len(orders)]
        self._want(replace(self._wanted, order=after, backwards=False))

    def action_turn(self) -> None:
        """Sort the other way round."""
        self._want(replace(self._wanted, backwards=not self._wanted.backwards))

    def action_group(self) -> None:
        """Group by the next thing."""
        groups = list(Group)
        self._want(replace(self._wanted, group=groups[(groups.index(self._wanted.group) + 1) % len(groups)]))

    def action_explain(self) -> None:
        """Show the explanation instead of the chain, or the chain again."""
        self._explaining = not self._explaining
        self._about()

    def action_next_finding(self, rows: int) -> None:
        """Go to the next finding, wherever the cursor is."""
        self.query_one(FindingTable).next_finding(rows)

    def action_audit(self) -> None:
        """Audit the whole tree now."""
        if self.state is not None:
            self.top.shelf.audit_now(self.state)
            self._look()

    def action_replay(self) -> None:
        """Go to the replay, at the instant of the link under the cursor; else when the evidence was complete."""
        archive, finding = self._archive, self.query_one(FindingTable).finding
        if archive is None or finding is None:
            return
        link = self.query_one(ChainTable).link if self.query_one(ChainTable).has_focus else None
        placed = [instant for instant, each in archive.timeline.findings if each.id == finding.id]
        instant = link.instant_ns if link is not None and link.instant_ns is not None else placed[0] if placed else None
        known = self._looked.get(finding.id)
        domains = [] if not isinstance(known, Looked) else [each.domain for each in known.link.walk() if each.domain]
        self.top.replay_at(instant, domains[0] if domains else None)

    def on_finding_table_entered(self) -> None:
        """From the list go on to the chain."""
        self.set_focus(self.query_one(ChainTable))
        self._whole()

    def action_back(self) -> None:
        """From the chain go back to the list."""
        if self.query_one(ChainTable).has_focus:
            self.set_focus(self.query_one(FindingTable))
            self._whole()
            return
        super().action_back()

    def subject(self) -> Subject | None:
        """Return what the cursor is on."""
        chain = self.query_one(ChainTable)
        if chain.has_focus:
            return chain.subject
        finding = self.query_one(FindingTable).finding
        return None if finding is None else FindingSubject(finding.id)

    def choose(self, name: str) -> None:
        """Put the cursor on a finding."""
        self.query_one(FindingTable).choose(name)

    def exported(self) -> Sheet:
        """Return the findings that are seen."""
        return Sheet("findings", exported(self.query_one(FindingTable).findings))
