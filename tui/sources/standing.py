"""Lines of details, and those that a state tells of a subject by itself: who holds what, live or in a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from timeagent.console import counted

from ..model.state import ClusterState, LeaseRow, Reach, ViewKind
from ..model.subjects import Cell, DetailLine, DomainSubject, HolderSubject, LeaseSubject, NodeSubject, Subject, Tone
from ..model.words import condition, lease_words

LEASES_SHOWN: Final = 1_000


def domain_rows(state: ClusterState, domain: DomainSubject) -> Iterator[DetailLine]:
    """Yield who holds a domain."""
    rows = [row for row in state.leases if row.domain == domain.name]
    yield BLANK
    yield heading("Holds it now" if rows else "Nobody is known to hold it")
    for row in rows:
        yield _row(state, row)
        yield words(f"  holder {row.node}/{row.process} {row.purpose}", HolderSubject(row.node, row.process))


def holder_details(state: ClusterState, subject: HolderSubject) -> Iterator[DetailLine]:
    """Yield where a holder runs, and its leases."""
    rows = [row for row in state.leases if (row.node, row.process) == (subject.node, subject.process)]
    yield fact("node", subject.node, NodeSubject(subject.node))
    yield fact("process", str(subject.process))
    if state.view is not ViewKind.RECORD:
        present = {row.holder_present for row in rows}
        there = "it runs" if True in present else "it is gone" if False in present else "cannot be told from here"
        yield fact("runs?", there)
    yield from _rows(state, rows, counted(len(rows), "lease"))


def held_on(state: ClusterState, node: str) -> Iterator[DetailLine]:
    """Yield the leases of a node's processes."""
    rows = [row for row in state.leases if row.node == node]
    known = state.view is ViewKind.RECORD or all(s.freshness.reach is Reach.ANSWERS for s in state.shards)
    yield from _rows(state, rows, f"Holds {counted(len(rows), 'lease')}" + ("" if known else ", as far as is known"))


def _rows(state: ClusterState, rows: Sequence[LeaseRow], title: str) -> Iterator[DetailLine]:
    yield BLANK
    yield heading(title)
    yield from (_row(state, row) for row in rows[:LEASES_SHOWN])


def _row(state: ClusterState, row: LeaseRow) -> DetailLine:
    now, holder = state.clock.now, f"{row.node}/{row.process}"
    text = f"{row.domain:32} {row.mode:3} {holder:16} {condition(row, now)}  {lease_words(row, now)}".rstrip()
    return words(text, LeaseSubject(row.domain, row.correlation_id))


LABEL: Final = 12


def fact(label: str, text: str, subject: Subject | None = None, tone: Tone = Tone.PLAIN) -> DetailLine:
    """Return a line: what, and how it is."""
    return DetailLine((Cell(f"{label:{LABEL}} ", Tone.DIM), Cell(text, tone)), subject)


def heading(text: str) -> DetailLine:
    return DetailLine((Cell(text, Tone.STRONG),))


def words(text: str, subject: Subject | None = None, tone: Tone = Tone.PLAIN) -> DetailLine:
    return DetailLine((Cell(f"  {text}", tone),), subject)


BLANK: Final = DetailLine((Cell(""),))
