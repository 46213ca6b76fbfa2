"""Evidence as Parquet files for analysis, written by DuckDB, which is an extra (docs/decisions/0002-duckdb.md).

One file per table: leases, frames, bags, clocks, events, findings. Every instant stands twice: as integer nanoseconds
(``*_ns``), which are exact, and as a timestamp in UTC, to work with. Rows go through a temporary file, so that memory
holds one at a time; the timeline that they come from is in memory.
"""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import msgspec

from appliance.formats.witness import WitnessKind
from auditor.columns.events import BagClosed, ClockReading, Event, FrameWritten, RackSealed, event_words, kind_of
from auditor.evidence.finding import Finding
from auditor.explain.context import LeaseTrace, all_leases
from auditor.timeline.timeline_reader import Timeline
from timeagent.console import printable
from timeagent.errors import BadConfiguration, Environment
from timeagent.units import Instant

type Row = dict[str, Any]
type Columns[T] = dict[str, tuple[str, Callable[[T], Any]]]
"""By name, the type of a column and its value for what the row is about."""

_NUMBER: Final = "BIGINT"
_TEXT: Final = "VARCHAR"


def _ending(name: str) -> Callable[[LeaseTrace], Any]:
    return lambda lease: None if lease.end is None else getattr(lease.end, name)


_LEASES: Final[Columns[LeaseTrace]] = {
    "domain": (_TEXT, lambda lease: printable(lease.witness.domain)),
    "correlation_id": (_TEXT, lambda lease: lease.witness.correlation_id.hex()),
    "map": (_NUMBER, lambda lease: lease.told[0].shard[0]),
    "shard": (_NUMBER, lambda lease: lease.told[0].shard[1]),
    "run": (_TEXT, lambda lease: lease.told[0].place[1].hex()),
    "node": (_TEXT, lambda lease: lease.witness.holder.node),
    "process": (_NUMBER, lambda lease: lease.witness.holder.process),
    "purpose": (_TEXT, lambda lease: printable(lease.witness.holder.purpose)),
    "mode": (_TEXT, lambda lease: lease.mode.value),
    "fence": (_NUMBER, lambda lease: lease.witness.fence),
    "granted_ns": (_NUMBER, lambda lease: lease.granted_ns),
    "expiry_ns": (_NUMBER, lambda lease: lease.expiry_ns),
    "floor_ns": (_NUMBER, lambda lease: lease.witness.floor_ns),
    "renewals": (_NUMBER, lambda lease: sum(each.witness.kind is WitnessKind.RENEWAL for each in lease.told)),
    "ended_ns": (_NUMBER, _ending("ended_ns")),
    "outcome": (_TEXT, _ending("outcome")),
    "watermark_ns": (_NUMBER, _ending("watermark_ns")),
    "frames": (_NUMBER, lambda lease: len(lease.frames)),
    "messages": (_NUMBER, lambda lease: sum(frame.messages for frame in lease.frames)),
}
_FRAMES: Final[Columns[FrameWritten]] = {
    "log": (_TEXT, lambda frame: frame.log),
    "bag_ns": (_NUMBER, lambda frame: frame.bag_ns),
    "file": (_TEXT, lambda frame: printable(frame.file)),
    "writer": (_TEXT, lambda frame: frame.writer),
    "incarnation": (_TEXT, lambda frame: frame.incarnation.hex()),
    "sequence": (_NUMBER, lambda frame: frame.sequence),
    "messages": (_NUMBER, lambda frame: frame.messages),
    "accepted": (_NUMBER, lambda frame: frame.accepted_count),
    "first_ns": (_NUMBER, lambda frame: frame.first_ns),
    "last_ns": (_NUMBER, lambda frame: frame.last_ns),
    "signed_ns": (_NUMBER, lambda frame: frame.clock.midpoint_ns),
    "radius_ns": (_NUMBER, lambda frame: frame.clock.radius_ns),
    "listed": ("BOOLEAN", lambda frame: frame.listed),
    "void_because": (_TEXT, lambda frame: frame.void_because or None),
    "domains": ("VARCHAR[]", lambda frame: [printable(name) for name, _ in frame.leases]),
}
_BAGS: Final[Columns[tuple[BagClosed, RackSealed | None]]] = {
    "log": (_TEXT, lambda each: each[0].log),
    "start_ns": (_NUMBER, lambda each: each[0].bag_ns),
    "end_ns": (_NUMBER, lambda each: each[0].end_ns),
    "due_ns": (_NUMBER, lambda each: each[0].due_ns),
    "path": (_TEXT, lambda each: printable(each[0].path)),
    "closed_ns": (_NUMBER, lambda each: each[0].instant_ns),
    "closer": (_TEXT, lambda each: each[0].closer),
    "sealed_ns": (_NUMBER, lambda each: each[1] and each[1].instant_ns),
    "sealer": (_TEXT, lambda each: each[1] and each[1].sealer),
    "files": (_NUMBER, lambda each: each[0].files),
    "missing": (_NUMBER, lambda each: each[0].missing),
    "void_files": (_NUMBER, lambda each: each[0].void_files),
    "accepted": (_NUMBER, lambda each: each[0].accepted),
    "rejected": (_NUMBER, lambda each: each[0].rejected),
}
_CLOCKS: Final[Columns[ClockReading]] = {
    "node": (_TEXT, lambda clock: clock.node),
    "instant_ns": (_NUMBER, lambda clock: clock.midpoint_ns),
    "radius_ns": (_NUMBER, lambda clock: clock.radius_ns),
    "status": (_TEXT, lambda clock: clock.state),
    "clock_epoch": ("UBIGINT", lambda clock: clock.clock_epoch),
    "assumed": ("BOOLEAN", lambda clock: clock.assumed),
}
_EVENTS: Final[Columns[Event]] = {
    "instant_ns": (_NUMBER, lambda event: event.instant_ns),
    "event": (_TEXT, kind_of),
    "node": (_TEXT, lambda event: event.clock.node if event.clock else None),
    "what": (_TEXT, event_words),
    "path": (_TEXT, lambda event: printable(event.where.path)),
    "offset": (_NUMBER, lambda event: event.where.offset),
    "length": (_NUMBER, lambda event: event.where.length),
}
_FINDINGS: Final[Columns[tuple[Instant, Finding]]] = {
    "id": (_TEXT, lambda each: each[1].id),
    "code": (_TEXT, lambda each: each[1].code),
    "verdict": (_TEXT, lambda each: each[1].verdict.value),
    "severity": (_TEXT, lambda each: each[1].severity.value),
    "subject": (_TEXT, lambda each: printable(each[1].subject)),
    "explanation": (_TEXT, lambda each: printable(each[1].explanation)),
    "instant_ns": (_NUMBER, lambda each: each[0]),
}


def _bags(timeline: Timeline) -> Iterator[tuple[BagClosed, RackSealed | None]]:
    """Yield every closed bag with the seal of its rack."""
    seals: dict[str, list[RackSealed]] = {}
    for event in sorted(timeline.kinds(RackSealed), key=lambda seal: seal.start_ns):
        seals.setdefault(event.log, []).append(event)
    for bag in timeline.kinds(BagClosed):
        of_log = seals.get(bag.log, [])
        place = bisect_right(of_log, bag.bag_ns, key=lambda seal: seal.start_ns)
        seal = of_log[place - 1] if place else None
        yield bag, seal if seal is not None and bag.bag_ns < seal.end_ns else None


_TABLES: Final[dict[str, tuple[Columns[Any], Callable[[Timeline], Iterable[Any]]]]] = {
    "leases": (_LEASES, all_leases),
    "frames": (_FRAMES, lambda timeline: timeline.kinds(FrameWritten)),
    "bags": (_BAGS, _bags),
    "clocks": (_CLOCKS, lambda timeline: dict.fromkeys(each.clock for each in timeline.events if each.clock)),
    "events": (_EVENTS, lambda timeline: timeline.events),
    "findings": (_FINDINGS, lambda timeline: timeline.findings),
}
TABLES: Final = tuple(_TABLES)


def export(timeline: Timeline, directory: Path) -> dict[str, int]:
    """Write every table into a directory, which is made; return how many rows each has.

    Raises BadConfiguration where DuckDB is not installed, Environment for a directory that is there already.
    """
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError:
        hint = "pip install 'tenure[export]'"
        raise BadConfiguration("no-duckdb", "Parquet is written by DuckDB, which is not installed", hint=hint) from None
    try:
        directory.mkdir(parents=True)
    except OSError as problem:
        hint = "name a directory that is not there"
        raise Environment("cannot-export", f"cannot make {directory}: {problem.strerror}", hint=hint) from None
    with duckdb.connect() as connection:
        return {name: _write(connection, name, timeline, directory) for name in TABLES}


def rows_of(name: str, timeline: Timeline) -> Iterator[Row]:
    columns, subjects = _TABLES[name]
    for subject in subjects(timeline):
        yield {column: value(subject) for column, (_, value) in columns.items()}


def _write(connection: Any, name: str, timeline: Timeline, directory: Path) -> int:  # noqa: ANN401 - the library is an extra, its types too
    columns, count = _TABLES[name][0], 0
    with NamedTemporaryFile("wb", suffix=".jsonl") as file:
        for row in rows_of(name, timeline):
            file.write(msgspec.json.encode(row) + b"\n")
            count += 1
        file.flush()
        kinds = ", ".join(f"'{column}': '{kind}'" for column, (kind, _) in columns.items())
        source = f"read_json('{_quoted(file.name)}', format='newline_delimited', columns={{{kinds}}})"
        shown = ", ".join(_shown(column) for column in columns)
        target = _quoted(str(directory / f"{name}.parquet"))
        connection.execute(f"COPY (SELECT {shown} FROM {source}) TO '{target}' (FORMAT parquet)")  # noqa: S608 - the names are ours, the path is quoted
    return count


def _shown(column: str) -> str:
    if not column.endswith("_ns") or column == "radius_ns":
        return f'"{column}"'
    return f'make_timestamp_ns("{column}") AS "{column.removesuffix("_ns")}", "{column}"'


def _quoted(path: str) -> str:
    return path.replace("'", "''")
