"""Evidence as Parquet files for analysis, written by DuckDB, which is an extra (docs/decisions/0002-duckdb.md).

One file per table: leases, frames, bags, clocks, events, findings. Every instant stands twice: as integer nanoseconds
(``*_ns``), which are exact, and as a timestamp in UTC, to work with. Rows go through a temporary file, so that memory
holds one at a time; the timeline that they come from is in memory.
"""

from __future__ import annotations

import importlib
from bisect import bisect_right
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from timeagent.console import printable
from timeagent.errors import BadConfiguration, Environment

from .timeline.events import BagClosed, FrameWritten, LeaseEnded, LeaseTold, RackSealed, event_words, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .timeline.timeline_reader import Timeline

type Row = dict[str, Any]

_INSTANT: Final = "BIGINT"
_TABLES: Final[dict[str, dict[str, str]]] = {
    "leases": {
        "domain": "VARCHAR",
        "correlation_id": "VARCHAR",
        "map": "BIGINT",
        "shard": "BIGINT",
        "run": "VARCHAR",
        "node": "VARCHAR",
        "process": "BIGINT",
        "purpose": "VARCHAR",
        "mode": "VARCHAR",
        "fence": "BIGINT",
        "granted_ns": _INSTANT,
        "expiry_ns": _INSTANT,
        "floor_ns": _INSTANT,
        "renewals": "BIGINT",
        "ended_ns": _INSTANT,
        "outcome": "VARCHAR",
        "watermark_ns": _INSTANT,
        "frames": "BIGINT",
        "messages": "BIGINT",
    },
    "frames": {
        "log": "VARCHAR",
        "bag_ns": _INSTANT,
        "file": "VARCHAR",
        "writer": "VARCHAR",
        "incarnation": "VARCHAR",
        "sequence": "BIGINT",
        "messages": "BIGINT",
        "accepted": "BIGINT",
        "first_ns": _INSTANT,
        "last_ns": _INSTANT,
        "signed_ns": _INSTANT,
        "radius_ns": "BIGINT",
        "listed": "BOOLEAN",
        "void_because": "VARCHAR",
        "domains": "VARCHAR[]",
    },
    "bags": {
        "log": "VARCHAR",
        "start_ns": _INSTANT,
        "end_ns": _INSTANT,
        "due_ns": _INSTANT,
        "path": "VARCHAR",
        "closed_ns": _INSTANT,
        "closer": "VARCHAR",
        "sealed_ns": _INSTANT,
        "sealer": "VARCHAR",
        "files": "BIGINT",
        "missing": "BIGINT",
        "void_files": "BIGINT",
        "accepted": "BIGINT",
        "rejected": "BIGINT",
    },
    "clocks": {
        "node": "VARCHAR",
        "instant_ns": _INSTANT,
        "radius_ns": "BIGINT",
        "status": "VARCHAR",
        "clock_epoch": "UBIGINT",
        "assumed": "BOOLEAN",
    },
    "events": {
        "instant_ns": _INSTANT,
        "event": "VARCHAR",
        "node": "VARCHAR",
        "what": "VARCHAR",
        "path": "VARCHAR",
        "offset": "BIGINT",
        "length": "BIGINT",
    },
    "findings": {
        "id": "VARCHAR",
        "code": "VARCHAR",
        "verdict": "VARCHAR",
        "severity": "VARCHAR",
        "subject": "VARCHAR",
        "explanation": "VARCHAR",
        "instant_ns": _INSTANT,
    },
}
TABLES: Final = tuple(_TABLES)


class _DuckDb(Protocol):
    """As much of the library as is used."""

    def connect(self) -> Any: ...  # noqa: ANN401 - it has no types of its own


def export(timeline: Timeline, directory: Path) -> dict[str, int]:
    """Write every table into a directory, which is made; return how many rows each has.

    Raises BadConfiguration where DuckDB is not installed, Environment for a directory that is there already.
    """
    duckdb = _duckdb()
    try:
        directory.mkdir(parents=True)
    except OSError as problem:
        raise Environment(
            "cannot-export", f"cannot make {directory}: {problem.strerror}", hint="name a directory that is not there"
        ) from None
    rows = {
        "leases": _leases(timeline),
        "frames": _frames(timeline),
        "bags": _bags(timeline),
        "clocks": _clocks(timeline),
        "events": _events(timeline),
        "findings": _findings(timeline),
    }
    with duckdb.connect() as connection:
        return {name: _write(connection, name, rows[name], directory) for name in TABLES}


def _duckdb() -> _DuckDb:
    try:
        return cast("_DuckDb", importlib.import_module("duckdb"))
    except ImportError:
        raise BadConfiguration(
            "no-duckdb", "Parquet is written by DuckDB, which is not installed", hint="pip install 'tenure[export]'"
        ) from None


def _write(connection: Any, name: str, rows: Iterable[Row], directory: Path) -> int:  # noqa: ANN401 - the library is an extra, its types too
    columns, count = _TABLES[name], 0
    with NamedTemporaryFile("wb", suffix=".jsonl") as file:
        for row in rows:
            assert row.keys() == columns.keys(), name
            file.write(msgspec.json.encode(row) + b"\n")
            count += 1
        file.flush()
        kinds = ", ".join(f"'{column}': '{kind}'" for column, kind in columns.items())
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


# Rows.


def _leases(timeline: Timeline) -> Iterator[Row]:
    rows: dict[tuple[str, bytes], Row] = {}
    for event in timeline.events:
        match event:
            case LeaseTold():
                _told(rows, event)
            case LeaseEnded() if (event.domain, event.ending.correlation_id) in rows:
                rows[event.domain, event.ending.correlation_id] |= {
                    "ended_ns": event.ending.ended_ns,
                    "outcome": event.ending.outcome.value,
                    "watermark_ns": event.ending.watermark_ns,
                }
            case FrameWritten():
                for name in event.leases:
                    if name in rows:
                        rows[name]["frames"] += 1
                        rows[name]["messages"] += event.messages
            case _:
                pass
    yield from rows.values()


def _told(rows: dict[tuple[str, bytes], Row], event: LeaseTold) -> None:
    witness = event.witness
    row = rows.get((witness.domain, witness.correlation_id))
    if row is not None:
        row["expiry_ns"] = max(row["expiry_ns"], witness.expiry_ns)
        row["mode"] = witness.mode.value
        row["renewals"] += witness.kind.value == "renewal"
        return
    rows[witness.domain, witness.correlation_id] = {
        "domain": printable(witness.domain),
        "correlation_id": witness.correlation_id.hex(),
        "map": event.shard[0],
        "shard": event.shard[1],
        "run": event.place[1].hex(),
        "node": witness.holder.node,
        "process": witness.holder.process,
        "purpose": printable(witness.holder.purpose),
        "mode": witness.mode.value,
        "fence": witness.fence,
        "granted_ns": event.instant_ns,
        "expiry_ns": witness.expiry_ns,
        "floor_ns": witness.floor_ns,
        "renewals": int(witness.kind.value == "renewal"),
        "ended_ns": None,
        "outcome": None,
        "watermark_ns": None,
        "frames": 0,
        "messages": 0,
    }


def _frames(timeline: Timeline) -> Iterator[Row]:
    for event in timeline.events:
        if isinstance(event, FrameWritten):
            yield {
                "log": event.log,
                "bag_ns": event.bag_ns,
                "file": printable(event.file),
                "writer": event.writer,
                "incarnation": event.incarnation.hex(),
                "sequence": event.sequence,
                "messages": event.messages,
                "accepted": event.accepted_count,
                "first_ns": event.first_ns,
                "last_ns": event.last_ns,
                "signed_ns": event.clock.midpoint_ns,
                "radius_ns": event.clock.radius_ns,
                "listed": event.listed,
                "void_because": event.void_because or None,
                "domains": [printable(name) for name, _ in event.leases],
            }


def _bags(timeline: Timeline) -> Iterator[Row]:
    seals: dict[str, list[RackSealed]] = {}
    for event in timeline.events:
        if isinstance(event, RackSealed):
            seals.setdefault(event.log, []).append(event)
    for each in seals.values():
        each.sort(key=lambda seal: seal.start_ns)
    for event in timeline.events:
        if isinstance(event, BagClosed):
            seal = _seal_of(seals.get(event.log, []), event.bag_ns)
            yield {
                "log": event.log,
                "start_ns": event.bag_ns,
                "end_ns": event.end_ns,
                "due_ns": event.due_ns,
                "path": printable(event.path),
                "closed_ns": event.instant_ns,
                "closer": event.closer,
                "sealed_ns": seal.instant_ns if seal else None,
                "sealer": seal.sealer if seal else None,
                "files": event.files,
                "missing": event.missing,
                "void_files": event.void_files,
                "accepted": event.accepted,
                "rejected": event.rejected,
            }


def _seal_of(seals: list[RackSealed], instant: int) -> RackSealed | None:
    place = bisect_right(seals, instant, key=lambda seal: seal.start_ns) - 1
    return seals[place] if place >= 0 and instant < seals[place].end_ns else None


def _clocks(timeline: Timeline) -> Iterator[Row]:
    seen = set()
    for event in timeline.events:
        clock = event.clock
        if clock is None or clock in seen:
            continue
        seen.add(clock)
        yield {
            "node": clock.node,
            "instant_ns": clock.midpoint_ns,
            "radius_ns": clock.radius_ns,
            "status": clock.status.name.lower().replace("_", "-"),
            "clock_epoch": clock.clock_epoch,
            "assumed": clock.assumed,
        }


def _events(timeline: Timeline) -> Iterator[Row]:
    for event in timeline.events:
        yield {
            "instant_ns": event.instant_ns,
            "event": kind_of(event),
            "node": event.clock.node if event.clock else None,
            "what": event_words(event),
            "path": printable(event.where.path),
            "offset": event.where.offset,
            "length": event.where.length,
        }


def _findings(timeline: Timeline) -> Iterator[Row]:
    for instant, finding in timeline.findings:
        yield {
            "id": finding.id,
            "code": finding.code,
            "verdict": finding.verdict.value,
            "severity": finding.severity.value,
            "subject": printable(finding.subject),
            "explanation": printable(finding.explanation),
            "instant_ns": instant,
        }
