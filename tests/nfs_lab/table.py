"""The table of docs/verification.md: each scenario's promise as the code has it, beside what the newest run showed."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.nfs_lab.scenario import Promise

BEGIN: Final = "<!-- nfs lab: written by python -m tests.nfs_lab.run --write -->"
END: Final = "<!-- end of nfs lab -->"
COSTS_BEGIN: Final = "<!-- costs on nfs: written by python -m tests.nfs_lab.run --write -->"
COSTS_END: Final = "<!-- end of costs on nfs -->"
BARE: Final = "create + write + close"
"""What the others are multiples of, as inside/measure.py names it."""


def read_rows(results: Path) -> list[dict[str, Any]]:
    """Return what was kept, in its order."""
    return [json.loads(line) for line in results.read_text().splitlines()]


def shown(row: dict[str, Any] | None) -> str:
    """What one run of one scenario showed."""
    if row is None:
        return "not run"
    if row["objections"]:
        return "OBJECTION: " + "; ".join(row["objections"])
    codes = ", ".join(f"{code} {count}" for code, count in sorted(row["findings"].items()))
    return f"{row['shown']}. Audit: {codes or 'nothing'}"


def lines(rows: list[dict[str, Any]], scenarios: Sequence[Promise]) -> list[str]:
    """Return the table and its sum."""
    newest = {(row["scenario"], row["vers"]): row for row in rows}
    runs = Counter((row["scenario"], row["vers"]) for row in rows if not row["objections"])
    found = ["| scenario | promised | shown, v4.2 | shown, v3 |", "|---|---|---|---|"]
    for each in scenarios:
        cells = []
        for vers in ("4.2", "3"):
            times = runs[each.name, vers]
            cells.append(shown(newest.get((each.name, vers))) + (f" ({times} times)" if times > 1 else ""))
        found.append(f"| {each.title} | {each.promised} | {' | '.join(cells)} |")
    cuts, minutes = sum(row["cuts"] for row in rows), sum(row["seconds"] for row in rows) / 60
    bad = sum(bool(row["objections"]) for row in rows)
    played = f"{len(rows)} scenarios played, {cuts} power cuts, {minutes:.0f} minutes of load, {bad} with objections"
    found += ["", f"In all: {played}."]
    return found


def costs(measured: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table of what operations cost: multiples of the bare file, and requests, by version of NFS."""
    head = [f"v{vers}, ms (95 %) | x bare | requests" for vers in measured]
    found = [f"| operation | {' | '.join(head)} |", "|---" * (1 + 3 * len(measured)) + "|"]
    rows = {vers: {row["name"]: row for row in each["rows"]} for vers, each in measured.items()}
    for name in next(iter(rows.values())):
        cells = []
        for vers in measured:
            row = rows[vers][name]
            times = row["median_ms"] / rows[vers][BARE]["median_ms"]
            kinds = ", ".join(f"{op} {count:g}" for op, count in row["rpcs"].items())
            cells.append(
                f"{row['median_ms']:.1f} ({row['p95_ms']:.0f}) | {times:.2f} | {row['rpcs_in_all']:g}: {kinds}"
            )
        found.append(f"| {name} | {' | '.join(cells)} |")
    return found


def put(document: Path, begin: str, end: str, body: list[str]) -> None:
    """Put lines between two marks. Raises ValueError when they are not there."""
    text = document.read_text(encoding="utf-8")
    head, mark, rest = text.partition(begin)
    _, closing, tail = rest.partition(end)
    if not (mark and closing):
        raise ValueError(f"{document} lacks {begin} or {end}")
    lined = "\n".join(body)
    document.write_text(f"{head}{begin}\n{lined}\n{end}{tail}", encoding="utf-8")


def write_table(document: Path, results: Path, scenarios: Sequence[Promise]) -> None:
    """Put the scenarios into their document."""
    put(document, BEGIN, END, lines(read_rows(results), scenarios))


def write_costs(document: Path, measured: dict[str, Path]) -> None:
    """Put what was measured into its document. ``measured``: a file by version of NFS, as far as there are any."""
    found = {vers: json.loads(path.read_text()) for vers, path in measured.items() if path.exists()}
    if found:
        put(document, COSTS_BEGIN, COSTS_END, costs(found))
