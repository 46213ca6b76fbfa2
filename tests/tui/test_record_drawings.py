"""What is drawn of a record, without a screen: scrubber, bars, steps, switches, chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from rich.cells import cell_len

from appliance.formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from appliance.formats.witness import Witness, WitnessKind
from auditor.columns.events import ClockReading, LeaseEnded, LeaseTold, WhatIf, about_domain
from auditor.evidence.finding import Evidence, Finding, Severity, Verdict
from auditor.evidence.tree import Tree
from auditor.explain import context
from auditor.explain.archive import Archive, read_archive
from auditor.explain.context import LeaseTrace, Traces
from auditor.explain.lineage import lineage
from auditor.timeline.timeline_reader import Timeline
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import eventful_tree
from tests.support.mutants import plant, plant_in_text
from tests.support.timelines import empty_timeline
from timeagent.console import counted
from timeagent.signedtime import ClockStatus
from timeagent.units import SECOND
from tui.model import findings, replaying, tables
from tui.model.findings import (
    FINDING_OPTIONS,
    FINDINGS,
    chain_lines,
    evidence_of,
    finding_row,
    wrapped_lines,
)
from tui.model.replaying import (
    CLASH,
    GRACES,
    SHIFTS,
    BarWindow,
    MomentRequest,
    ReplayPlace,
    Step,
    accused,
    at_instant,
    at_position,
    lens_words,
    moment_of,
    stepped,
    switch_rows,
    turned,
    window_of,
)
from tui.model.state import Cell
from tui.model.tables import GroupHeading, arrange, fitted, width_of


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return read_archive(Tree(eventful_tree(tmp_path_factory.mktemp("copy") / "tree").root))


@pytest.fixture(scope="module")
def overlap(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return read_archive(Tree(granted_while_held(tmp_path_factory.mktemp("bad") / "tree").root))


def text(line: list[Cell]) -> str:
    return "".join(cell.text for cell in line)


def finding(code: str = "early-grant", verdict: Verdict = Verdict.VIOLATION, about: str = "alice") -> Finding:
    severity = Severity.INFO if verdict is Verdict.OK else Severity.ERROR
    return Finding(code, verdict, severity, "a title", about, "an explanation", (Evidence(f"{code}/{about}"),))


# -- widths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alice", "帳戶/零一", "a" * 60, "e\u0301" * 20, "混合 mixed 名前"])
@pytest.mark.parametrize("width", [1, 2, 7, 8, 24])
def test_text_takes_exactly_its_cells_also_where_characters_are_wide(name: str, width: int) -> None:
    assert cell_len(fitted(name, width)) == width


def test_cut_is_shown() -> None:
    assert fitted("account/0001", 8) == "account…"


# -- scrubber ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_scrubber_has_exactly_its_width_wherever_one_is(eventful: Archive, width: int) -> None:
    timeline = eventful.timeline
    for instant in (timeline.start_ns, timeline.start_ns + 7 * SECOND, timeline.end_ns):
        axis, density, _ = replaying.Scrubber(timeline, timeline.start_ns, timeline.end_ns, width).drawn(instant)
        assert width_of(axis) == width_of(density) == width
        assert text(axis).count(replaying.CURSOR) == 1


def test_scrubber_shows_how_much_happened_when(eventful: Archive) -> None:
    timeline = eventful.timeline
    _, density, _ = replaying.Scrubber(timeline, timeline.start_ns, timeline.end_ns, 100).drawn(timeline.start_ns)
    bars = text(density).removeprefix("  events ")
    counts = timeline.density(timeline.start_ns, timeline.end_ns, 100 - 18)
    assert [bar == " " for bar in bars[: len(counts)]] == [not count for count in counts]
    assert bars[counts.index(max(counts))] == replaying.HEIGHTS[-1]


def test_finding_has_a_mark_by_its_worst_verdict_and_the_cursor_on_it_another() -> None:
    stamps = [0, 50 * SECOND, 100 * SECOND]
    timeline = empty_timeline()
    timeline.findings = [
        (stamps[1], finding(verdict=Verdict.OK)),
        (stamps[1], finding(about="bob")),
        (stamps[2], finding(verdict=Verdict.INDETERMINATE)),
    ]
    scrubber = replaying.Scrubber(timeline, stamps[0], stamps[2], 80)
    assert [mark for mark in text(scrubber.drawn(stamps[0])[0]) if mark in "▲△▵"] == ["▲", "△"]
    axis, _, findings_here = scrubber.drawn(stamps[1])
    assert replaying.ON_FINDING in text(axis)
    assert findings_here == 2


def test_one_event_among_thousands_is_still_seen() -> None:
    assert replaying._height(0, 9_000) == 0
    assert replaying._height(1, 9_000) == 1
    assert replaying._height(9_000, 9_000) == len(replaying.HEIGHTS) - 1
    assert replaying._height(1, 1) == 1


# -- bars --------------------------------------------------------------------------------------------------------------


def bar(
    start: int,
    end: int,
    expiry: int | None = None,
    *,
    outcome: LeaseOutcome = LeaseOutcome.RELINQUISHED,
    **fields: object,
) -> LeaseTrace:
    name, shard, where = bytes(15) + bytes([start % 256]), (1, 1), Evidence("a ledger")
    values = {
        "kind": WitnessKind.GRANT,
        "domain": "alice",
        "mode": Mode.X,
        "phase": Phase.HELD,
        "holder": Holder("n1", 1, bytes(16), bytes(8)),
        "correlation_id": name,
        "fence": 1,
        "expiry_ns": (end if expiry is None else expiry) * SECOND,
        "floor_ns": -SECOND,
        "settle_to_ns": -SECOND,
    }
    others = dict.fromkeys(set(Witness.__struct_fields__) - values.keys())
    witness = Witness(**(others | values | fields))  # type: ignore[arg-type]
    ending = Ending(name, outcome, end * SECOND, None, None, 0, None)
    reading = ClockReading("n1", 0, 0, ClockStatus.SYNCHRONIZED, 0, 0, assumed=False)
    signed = (("shard", bytes(8), 1, 0), reading, where, shard)
    told = LeaseTold(start * SECOND, *signed, witness)
    return LeaseTrace([told], LeaseEnded(end * SECOND, *signed, "alice", ending, None, None))


def drawn(*bars: LeaseTrace, accused: frozenset[bytes] = frozenset(), cursor: int = 99) -> str:
    window = BarWindow(0, 100 * SECOND, cursor * SECOND)
    line = replaying._row(bars, window, 100, accused)
    assert width_of(line) == 100
    return text(line)


def test_bar_lies_where_its_lease_was_and_says_who_had_it() -> None:
    line = drawn(bar(10, 30))
    assert line[:10].strip() == ""
    assert line[10] == line[30] == "█"
    assert " n1 " in line[10:31]
    assert line[31:99].strip() == ""
    assert line[99] == replaying.HERE


def test_mode_and_phase_are_told_by_shape() -> None:
    for mode, mark in replaying.BARS.items():
        assert mark in drawn(bar(10, 12, mode=mode))
    assert drawn(bar(10, 12, phase=Phase.TENTATIVE))[10:13] == "···"


def test_broken_lease_is_shown_until_its_expiry_and_one_that_was_given_back_is_not() -> None:
    line = drawn(bar(10, 12, 20, outcome=LeaseOutcome.EXPIRED))
    assert line[13:21] == replaying.OVER * 8
    assert drawn(bar(10, 12, 20))[13:21].strip() == ""


def test_floor_and_settle_to_are_marked_in_the_gap() -> None:
    line = drawn(bar(50, 60, floor_ns=40 * SECOND, settle_to_ns=45 * SECOND))
    assert (line[40], line[45]) == (replaying.FLOOR, replaying.SETTLE)


def test_only_leases_that_the_audit_accuses_are_drawn_as_a_clash() -> None:
    first, second = bar(10, 40), bar(30, 60)
    assert CLASH not in drawn(first, second)
    line = drawn(first, second, accused=frozenset({first.witness.correlation_id, second.witness.correlation_id}))
    assert line[30:41] == CLASH * 11
    assert line[45] != CLASH


def test_domain_with_wide_characters_keeps_the_bars_in_line() -> None:
    window = BarWindow(0, 10 * SECOND, 0)
    for width in (80, 120):
        lines = replaying.gantt(["帳戶/零一", "alice", "x" * 70], lambda *_: [], window, width)
        assert {width_of(line) for line in lines} == {width}
        assert width_of(replaying.axis(window, width, "22:00:00", "22:00:10")) == width


def test_bars_of_a_copy_are_the_leases_of_its_ledger(overlap: Archive) -> None:
    found = overlap.leases.within("alice", overlap.timeline.start_ns, overlap.timeline.end_ns)
    assert len(found) == 2
    assert {each.witness.correlation_id for each in found} == accused(overlap.timeline)
    assert overlap.leases.within("alice", 0, overlap.timeline.start_ns - SECOND) == []


def test_leases_that_are_at_hand_are_those_that_touch_a_stretch(
    eventful: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline, leases = eventful.timeline, Traces(eventful.timeline)
    start, end = timeline.start_ns, timeline.end_ns
    asked: list[str] = []
    lease_events = timeline.lease_events

    def counted_events(domain: str, first: int, last: int) -> Iterator[LeaseTold | LeaseEnded]:
        asked.append(domain)
        return lease_events(domain, first, last)

    monkeypatch.setattr(timeline, "lease_events", counted_events)
    domains = list(timeline.state_at().domains)
    stretches = [
        (first, first + span)
        for span in (1, SECOND // 3, SECOND, 5 * SECOND, 60 * SECOND)
        for first in range(start - SECOND, end + SECOND, max(span // 3, SECOND // 4))
    ]
    for domain in domains:
        whole = sorted(leases.of(domain).values(), key=lambda each: (each.granted_ns, each.witness.correlation_id))
        assert whole
        for stretch in stretches:
            expected = [replace(each, frames=[]) for each in whole if each.touches(*stretch)]
            assert leases.within(domain, *stretch) == expected
    asked.clear()
    for by in range(20):
        for domain in domains:
            leases.within(domain, start + by, start + 10 * SECOND + by)
    assert len(asked) <= 2 * len(domains)


@pytest.mark.verify
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("Traces.within", "last - last % step + step", "last - last % step"),
        ("Traces.within", "first - first % step", "first - first % step + step"),
        ("Traces.__init__", "lru_cache(STRETCHES_AT_HAND)(partial(_within, timeline))", "partial(_within, timeline)"),
        ("Traces.within", "trace.touches(first, last)", "trace.touches(0, last + 10**9)"),
    ],
)
def test_leases_of_another_stretch_are_caught(
    name: str, old: str, new: str, eventful: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_in_text(monkeypatch, context, name, old, new)
    with pytest.raises(AssertionError):
        test_leases_that_are_at_hand_are_those_that_touch_a_stretch(eventful, monkeypatch)


# -- steps -------------------------------------------------------------------------------------------------------------


def steps(
    timeline: Timeline, place: ReplayPlace, *, back: bool = False, follow: str | None = None
) -> list[ReplayPlace]:
    """Every place that one comes to, event by event."""
    found: list[ReplayPlace] = []
    here: ReplayPlace | None = place
    while here is not None and len(found) <= 2 * len(timeline.events):
        here = stepped(timeline, here, Step.EVENT, back=back, follow=follow)
        found += [here] if here is not None else []
    return found


def test_events_are_gone_through_one_by_one_though_many_share_an_instant(eventful: Archive) -> None:
    timeline = eventful.timeline
    positions = [place.position for place in steps(timeline, ReplayPlace(0, timeline.start_ns))]
    assert positions == list(range(1, len(timeline.events) + 1))
    back = [place.position for place in steps(timeline, at_position(timeline, len(timeline.events)), back=True)]
    assert back == positions[-2::-1]


def test_steps_of_a_followed_domain_are_its_own(eventful: Archive) -> None:
    timeline = eventful.timeline
    places = steps(timeline, ReplayPlace(0, timeline.start_ns), follow="carol")
    assert all(about_domain(timeline.events[place.position - 1], "carol") for place in places)
    assert len(places) == len(list(timeline.between(timeline.start_ns, timeline.end_ns, domain="carol")))


def test_bags_and_findings_are_steps_too(overlap: Archive, eventful: Archive) -> None:
    timeline = eventful.timeline
    bag = stepped(timeline, ReplayPlace(0, timeline.start_ns), Step.BAG, back=False)
    assert bag is not None
    assert bag.instant_ns == timeline.closing(timeline.start_ns, back=False)
    bad = overlap.timeline
    found = stepped(bad, at_instant(bad, bad.start_ns), Step.FINDING, back=False)
    assert found is not None
    assert found.instant_ns == bad.findings[0][0]
    assert stepped(bad, at_instant(bad, bad.end_ns), Step.FINDING, back=False) is None


def test_instant_outside_the_record_is_its_nearest_end(eventful: Archive) -> None:
    timeline = eventful.timeline
    assert at_instant(timeline, 0).instant_ns == timeline.start_ns
    assert at_instant(timeline, 2**62) == ReplayPlace(len(timeline.events), timeline.end_ns)


def test_window_stays_in_the_record(eventful: Archive) -> None:
    timeline = eventful.timeline
    for place in (ReplayPlace(0, timeline.start_ns), at_instant(timeline, timeline.end_ns)):
        window = window_of(timeline, place, 10 * SECOND)
        assert timeline.start_ns <= window.first_ns <= place.instant_ns <= window.last_ns <= timeline.end_ns


def test_moment_shows_bars_bags_and_what_readers_had(eventful: Archive) -> None:
    timeline = eventful.timeline
    wish = MomentRequest(at_instant(timeline, timeline.end_ns), 86_400 * SECOND, 90, 5, None, 3)
    moment = moment_of(timeline, eventful.leases, eventful.tree, wish)
    assert len(moment.bars) == 5
    assert len(moment.bags) == 2
    assert any("delivered" in text(line) for line in moment.bags)
    assert len(moment.delivered) == 3
    assert moment.delivered == sorted(moment.delivered)
    early = moment_of(
        timeline,
        eventful.leases,
        eventful.tree,
        MomentRequest(ReplayPlace(0, timeline.start_ns), SECOND, 90, 5),
    )
    assert early.delivered == []


def test_followed_domain_comes_first(eventful: Archive) -> None:
    timeline = eventful.timeline
    wish = MomentRequest(at_instant(timeline, timeline.end_ns), 86_400 * SECOND, 90, 3, "erin")
    moment = moment_of(timeline, eventful.leases, eventful.tree, wish)
    assert text(moment.bars[0]).startswith("erin ")
    assert all("under erin" in line for line in moment.delivered)


# -- findings ----------------------------------------------------------------------------------------------------------

SEVERAL = [
    finding("early-grant", about="alice"),
    finding("r1-breach", about="bob"),
    finding("ledger-gap", Verdict.INDETERMINATE, "shard 0"),
    finding("late-writer", Verdict.OK, "a file"),
]
TIMES = {each.id: number for number, each in enumerate(reversed(SEVERAL))}


def codes(**wanted: Any) -> list[str]:  # noqa: ANN401
    made = arrange(FINDINGS, SEVERAL, replace(FINDING_OPTIONS, **wanted), TIMES)
    rows = map(made.at, range(len(made.places)))
    return [each.name if isinstance(each, GroupHeading) else each.code for each in rows]


def test_findings_are_worst_first_and_sorted_as_wanted() -> None:
    worst = ["early-grant", "r1-breach", "ledger-gap", "late-writer"]
    assert codes() == worst
    assert codes(order="time") == worst[::-1]
    assert codes(order="time", backwards=True) == worst
    assert codes(order="code") == sorted(worst)
    assert codes(order="about") == ["late-writer", "early-grant", "r1-breach", "ledger-gap"]


def test_findings_are_narrowed_and_grouped() -> None:
    assert codes(words="violation") == ["early-grant", "r1-breach"]
    assert codes(words="violation !bob") == ["early-grant"]
    grouped = codes(group="verdict")
    assert grouped == ["violation", "early-grant", "r1-breach", "indeterminate", "ledger-gap", "to know", "late-writer"]


def test_no_verdict_is_told_by_colour_alone() -> None:
    rows = [finding_row(each, None) for each in SEVERAL]
    assert len({row[0].text for row in rows}) == 3
    assert [row[1].text for row in rows] == ["violation", "violation", "indeterminate", "to know"]
    assert set(findings.FINDING_MARKS) == set(Verdict) == set(replaying.SCRUBBER_MARKS)


# -- chains ------------------------------------------------------------------------------------------------------------


def test_chain_shows_every_check_with_its_limit_and_leads_to_the_bytes(overlap: Archive) -> None:
    link = lineage(overlap.audit.findings[0], overlap)
    rows = list(chain_lines(link))
    lines = [text(list(line.cells)) for _, line, _ in rows]
    (bad,) = [line for line in lines if "✗" in line and "the lease before was over" in line]
    assert "but must be after its expiry" in bad
    assert sum("✓" in line for line in lines) == sum(check.holds is True for check in link.chain())
    assert all(
        line.subject is not None
        for _, line, each in rows
        if each.where is not None and "✓" not in text(list(line.cells)) and "✗" not in text(list(line.cells))
    )


def test_closed_link_still_says_how_much_fails_inside(overlap: Archive) -> None:
    link = lineage(overlap.audit.findings[0], overlap)
    rows = list(chain_lines(link, {()}))
    assert len(rows) == 1
    failing = sum(check.holds is False for check in link.chain())
    assert failing
    assert f"✗ {failing} inside" in text(list(rows[0][1].cells))


def test_explanation_is_what_explain_prints_in_the_width_there_is(overlap: Archive) -> None:
    lines = evidence_of(overlap.audit.findings[0], overlap).explanation
    assert any(line.startswith("The leases around it") for line in lines)
    for each in wrapped_lines(lines, 60):
        assert width_of(each.cells) <= 60 or " " not in each.cells[0].text.strip()
    assert (
        " ".join("".join(c.text for c in each.cells).strip() for each in wrapped_lines(lines, 60)).split()
        == " ".join(lines).split()
    )


# -- what if -----------------------------------------------------------------------------------------------------------


def test_switches_turn_step_by_step_and_stay_at_their_ends() -> None:
    nodes, lens = ["n1", "n2"], WhatIf()
    assert turned(lens, nodes, 0, 1) == WhatIf(drop_late=True)
    assert not turned(turned(lens, nodes, 0, 1), nodes, 0, 1).any
    assert turned(lens, nodes, 1, 2) == WhatIf(grace_ns=GRACES[2])
    assert turned(turned(lens, nodes, 1, 99), nodes, 1, 1).grace_ns == GRACES[-1]
    moved = turned(lens, nodes, 3, 1)
    assert moved == WhatIf({"n2": SHIFTS[SHIFTS.index(0) + 1]})
    assert turned(moved, nodes, 3, -1) == WhatIf()


def test_switches_say_in_words_where_they_stand() -> None:
    rows = switch_rows(WhatIf({"n1": -SECOND}, drop_late=True), ["n1"])
    assert [[cell.text for cell in row] for row in rows] == [
        ["[x]", "drop late messages", "yes"],
        ["[ ]", "grace of every log", "as it was"],
        ["[x]", "clock of n1", "−1 s"],
    ]


def test_what_a_lens_changes_is_counted_and_named(overlap: Archive) -> None:
    lens = WhatIf({"n1": 60 * SECOND})
    _, changed = overlap.changed(lens)
    words = lens_words(lens, changed)
    assert words.startswith("WHAT IF clock of n1 +1 min: ")
    assert f"{counted(len(changed.appear), 'finding')} more" in words
    assert f"{counted(len(changed.vanish), 'finding')} fewer" in words
    assert "reading the copy" in lens_words(lens, None)


# -- mutants -----------------------------------------------------------------------------------------------------------

MUTANTS = [
    (
        "scrubber",
        "cell_of",
        "min(cells - 1, (instant - first) * cells // (last - first))",
        "(instant - first) * cells // (last - first)",
    ),
    (
        "scrubber",
        "_height",
        "1 + (count - 1) * (len(HEIGHTS) - 2) // max(1, highest - 1)",
        "count * (len(HEIGHTS) - 1) // highest",
    ),
    (
        "scrubber",
        "Scrubber.__init__",
        "min(worst.get(cell, finding.verdict), finding.verdict, key=_WORST.index)",
        "max(worst.get(cell, finding.verdict), finding.verdict, key=_WORST.index)",
    ),
    ("gantt", "_filled", "CLASH, Tone.BAD", "BARS[bar.mode], Tone.BAD"),
    ("gantt", "_row", "not bar.given_back and bar.expiry_ns > bar.end_ns", "bar.expiry_ns > bar.end_ns"),
    ("leases", "LeaseTrace.touches", "self.granted_ns <= last", "True"),
    ("cell width", "fitted", "head_of(text, width - 1) + ELLIPSIS", "text[: width - 1] + ELLIPSIS"),
    (
        "steps",
        "_event",
        "at_position(timeline, number + 1)",
        "at_instant(timeline, timeline.events[number].instant_ns)",
    ),
    ("steps", "_event", "follow is not None", "False"),
    ("list", "arrange", "matching(listing.texts(rows), wanted.words)", "range(len(rows))"),
    ("switches", "switch_rows", "bool(shift)", "False"),
]


DRAWINGS: dict[str, tuple[ModuleType, list[str]]] = {
    "scrubber": (replaying, ["scrubber_has_exactly", "one_event_among", "finding_has_a_mark"]),
    "gantt": (replaying, ["only_leases_that", "broken_lease_is"]),
    "leases": (context, ["bars_of_a_copy"]),
    "cell width": (tables, ["text_takes_exactly"]),
    "steps": (replaying, ["events_are_gone", "steps_of_a_followed"]),
    "list": (tables, ["findings_are_narrowed"]),
    "switches": (replaying, ["switches_say"]),
}
"""Where each is drawn, and the tests here that look at it without a copy of their own."""


@pytest.mark.parametrize(("drawing", "name", "old", "new"), MUTANTS)
def test_fault_in_a_drawing_is_caught(
    drawing: str, name: str, old: str, new: str, eventful: Archive, overlap: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _ = DRAWINGS[drawing]
    plant(monkeypatch, module, name, old, new)
    if name in globals():
        monkeypatch.setitem(globals(), name, getattr(module, name))
    arguments = {"eventful": eventful, "overlap": overlap, "width": 60, "name": "帳戶/零一/帳戶"}
    with pytest.raises((AssertionError, IndexError)):
        look_again(drawing, arguments)


def look_again(drawing: str, arguments: dict[str, object]) -> None:
    """Run the tests of a drawing once more."""
    module, checks = DRAWINGS[drawing]
    for wanted in checks:
        for test, body in list(globals().items()):
            if test.startswith(f"test_{wanted}"):
                names = body.__code__.co_varnames[: body.__code__.co_argcount]
                narrow = {"width": 7} if module is tables else {}
                body(**{each: (arguments | narrow)[each] for each in names})
