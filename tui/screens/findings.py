"""The findings of the audit: the table of all, and of the one under the cursor every link of its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget

from auditor.evidence.finding import Finding
from timeagent.console import printable
from timeagent.errors import TenureError
from timeagent.units import Instant

from ..app import EvidenceScreen
from ..model import findings as model
from ..model.findings import EVIDENCE_LEGEND, FINDING_OPTIONS, FINDINGS, FindingEvidence, LinkPath
from ..model.state import FindingSubject, Subject
from ..model.tables import ExportSheet, ListOptions
from ..widgets.lines import WordsLine
from ..widgets.row_table import DetailTable, ListTable, PickTable

if TYPE_CHECKING:
    from auditor.explain.archive import Archive
    from auditor.explain.lineage import Link


class FindingTable(ListTable[Finding, Mapping[str, Instant]]):
    LISTING = FINDINGS

    def show(
        self, findings: Sequence[Finding], times: Mapping[str, Instant], wanted: ListOptions, nothing: str
    ) -> None:
        """Show findings, worst first, as they are wanted. ``nothing``: why there are none."""

        def title(shown: int) -> str:
            part = f" of {len(findings)}" if shown != len(findings) else ""
            order = f"   {wanted.order}{' turned' if wanted.backwards else ''}"
            order += "" if wanted.group == "none" else f", by {wanted.group}"
            words = f"   filter: {wanted.words}" if wanted.words else ""
            return f"Findings {shown}{part}{order}{words}" if findings else "Findings"

        self.show_list(findings, wanted, times, title, nothing)

    @property
    def findings(self) -> list[Finding]:
        """Those that are shown."""
        return [row for row in map(self.at, range(self.count)) if isinstance(row, Finding)]

    @property
    def finding(self) -> Finding | None:
        """The one under the cursor; on a heading the first of its group."""
        rows = map(self.at, range(self.cursor, self.count))
        return next((row for row in rows if isinstance(row, Finding)), None)

    def next_finding(self, step: int) -> None:
        places = range(self.cursor + step, self.count if step > 0 else -1, step)
        self.cursor = next((place for place in places if isinstance(self.at(place), Finding)), self.cursor)


FRAME = 4
LEAD = 8
"""So many lines above what fails are seen at first."""


class ChainTable(DetailTable):
    """Links can be closed, so that only what fails is seen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "close_link", "Close", show=False),
        Binding("right,l", "open_link", "Open", show=False),
        Binding("f", "next_failing", "Next that fails"),
    ]

    def __init__(self) -> None:
        super().__init__(id="chain")
        self.show_title("Evidence")
        self._shown: tuple[Finding, Link | list[str]] | None = None
        self._shut: set[LinkPath] = set()
        self._ways: list[tuple[LinkPath, Link]] = []

    def show_nothing(self, why: str) -> None:
        self._shown, self._ways = None, []
        self.show_lines((), why)

    def show_evidence(self, finding: Finding, what: Link | list[str]) -> None:
        """Show a finding's chain, or its explanation, in the width there is."""
        before, self._shown = self._shown, (finding, what)
        fresh = before is None or before[0] != finding or type(before[1]) is not type(what)
        if fresh:
            self._shut = set()
        if isinstance(what, list):
            self._ways = []
            self.show_title(f"Explanation of {finding.id}; x: the evidence again")
            self.show_lines(model.wrapped_lines(what, self.size.width - FRAME), "")
        else:
            rows = list(model.chain_lines(what, self._shut))
            self._ways = [(path, link) for path, _, link in rows]
            self.show_title(f"Evidence of {finding.id}: every check with its value and its limit")
            self.show_lines([line for _, line, _ in rows], "")
        if fresh:
            self.cursor = next(iter(self._failing()), 0)
            self.call_after_refresh(self._lead_up)  # once there is a bar, which goes with it

    def _lead_up(self) -> None:
        lead = max(0, min(LEAD, self.size.height - 1))
        self.scroll_to(y=max(0, self.cursor - lead), animate=False, immediate=True, force=True)

    def _show_again(self) -> None:
        if self._shown is not None:
            self.show_evidence(*self._shown)

    def on_resize(self) -> None:
        self._show_again()

    @property
    def link(self) -> Link | None:
        return self._ways[self.cursor][1] if self._ways else None

    def action_close_link(self) -> None:
        """Hide what is inside the link; of one that is closed, go to the one that it is in."""
        if not self._ways:
            return
        path = self._ways[self.cursor][0]
        if path in self._shut and path:
            path = path[:-1]
        self._shut.add(path)
        self._show_again()
        self.cursor = next(place for place, (way, _) in enumerate(self._ways) if way == path)

    def action_open_link(self) -> None:
        if self._ways:
            self._shut.discard(self._ways[self.cursor][0])
            self._show_again()

    def action_next_failing(self) -> None:
        failing = self._failing()
        if failing:
            self.cursor = next((place for place in failing if place > self.cursor), failing[0])

    def _failing(self) -> list[int]:
        return [place for place in range(len(self._ways)) if self._lines[place].cells[1].text.startswith("✗ ")]


KEPT = 200
PERIOD = 0.25
"""Seconds between two looks at how far a reading is."""


class FindingsScreen(EvidenceScreen):
    """List, chain, explanation. Passes no judgement of its own."""

    NAME = "findings"
    FILTERS = True
    PARTS = ("finding-list", "link-whole")
    LEGENDS = (("Findings", model.FINDING_LEGEND), ("Evidence", EVIDENCE_LEGEND))
    AUTO_FOCUS = "#finding-list"
    LISTING = FINDINGS
    options = FINDING_OPTIONS
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
        super().__init__()
        self._looked: dict[str, FindingEvidence | TenureError] = {}
        self._asked: str | None = None
        self._archive: Archive | None = None
        self._explaining = False

    def parts(self) -> Iterable[Widget]:
        yield WordsLine(id="audit-line")
        with Container(id="finding-parts"):
            yield FindingTable(id="finding-list")
            yield ChainTable()
        yield WordsLine(id="link-whole")

    def on_mount(self) -> None:
        self.set_interval(PERIOD, self.look)

    def look(self) -> None:
        if not self.is_current or not self.whole:
            return
        archive, state = self.top.archives.archive, self.state
        if archive is None or self.top.archives.busy:
            words = self.top.archives.words(state)
            self._archive = None  # what was read before comes back where this reading fails
            self.query_one("#audit-line", WordsLine).say(words)
            self.query_one(FindingTable).show((), {}, self.options, words)
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
        self.query_one("#audit-line", WordsLine).say_lines([model.summary_cells(summary)])
        findings = archive.audit.findings
        nothing = "nothing matches the filter" if findings else "● nothing found: every promise was kept"
        times = {finding.id: instant for instant, finding in archive.timeline.findings}
        self.query_one(FindingTable).show(findings, times, self.options, nothing)
        self._about()

    # The finding under the cursor.

    def on_pick_table_moved(self, event: PickTable.Moved) -> None:
        if isinstance(event.table, FindingTable):
            self._about()
        else:
            self._show_whole()

    def _about(self) -> None:
        finding, archive, table = self.query_one(FindingTable).finding, self._archive, self.query_one(ChainTable)
        known = None if finding is None else self._looked.get(finding.id)
        if finding is None or archive is None:
            table.show_nothing("")
        elif isinstance(known, TenureError):
            table.show_nothing(f"no answer: {known.message}")
        elif known is not None:
            table.show_evidence(finding, known.explanation if self._explaining else known.link)
        elif self._asked != finding.id:
            self._asked = finding.id
            table.show_nothing("following the evidence …")
            self.top.work(partial(model.evidence_of, finding, archive), partial(self._take, finding, archive))
        self._show_whole()

    def _take(self, finding: Finding, archive: Archive, found: FindingEvidence | TenureError) -> None:
        if archive is not self._archive:
            return
        if len(self._looked) >= KEPT:
            self._looked.clear()
        self._looked[finding.id] = found
        self._asked = None
        if self.whole:
            self._about()

    def _show_whole(self) -> None:
        table, finding = self.query_one(ChainTable), self.query_one(FindingTable).finding
        text = table.text if table.has_focus else printable(finding.explanation) if finding else ""
        self.query_one("#link-whole", WordsLine).say(text)

    # Keys.

    def want(self, options: ListOptions) -> None:
        super().want(options)
        self._fill()

    def action_explain(self) -> None:
        self._explaining = not self._explaining
        self._about()

    def action_next_finding(self, rows: int) -> None:
        self.query_one(FindingTable).next_finding(rows)

    def action_replay(self) -> None:
        """Go to the replay, at the instant of the link under the cursor; else when the evidence was complete."""
        archive, finding = self._archive, self.query_one(FindingTable).finding
        if archive is None or finding is None:
            return
        link = self.query_one(ChainTable).link if self.query_one(ChainTable).has_focus else None
        placed = [instant for instant, each in archive.timeline.findings if each.id == finding.id]
        instant = link.instant_ns if link is not None and link.instant_ns is not None else placed[0] if placed else None
        known = self._looked.get(finding.id)
        links = known.link.walk() if isinstance(known, FindingEvidence) else ()
        domain = next((each.domain for each in links if each.domain), None)
        from .replay import ReplayScreen  # noqa: PLC0415 - like every screen, when it is first seen

        self.top.action_go("replay")
        self.app.get_screen("replay", ReplayScreen).begin_at(instant, domain)

    def chosen(self) -> None:
        if self.query_one(ChainTable).has_focus:
            super().chosen()
        else:
            self.set_focus(self.query_one(ChainTable))
            self._show_whole()

    def action_back(self) -> None:
        if self.query_one(ChainTable).has_focus:
            self.set_focus(self.query_one(FindingTable))
            self._show_whole()
            return
        super().action_back()

    def subject(self) -> Subject | None:
        chain = self.query_one(ChainTable)
        if chain.has_focus:
            return chain.subject
        finding = self.query_one(FindingTable).finding
        return None if finding is None else FindingSubject(finding.id)

    def exported(self) -> ExportSheet:
        return ExportSheet("findings", [finding.fields() for finding in self.query_one(FindingTable).findings])
