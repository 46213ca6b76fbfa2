"""Writing down what is seen: rows as JSONL or CSV, the screen as SVG. Never over a file that is there."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import msgspec

from timeagent.errors import Environment
from timeagent.units import Instant, rfc3339

EXPORT_DIRECTORY: Final = Path()
"""The directory that this was started in."""


class ExportForm(StrEnum):
    """How it is written."""

    JSONL = "jsonl"
    CSV = "csv"
    SVG = "svg"


@dataclass(frozen=True, slots=True)
class ExportSheet:
    """What is seen, as rows."""

    name: str
    """Becomes part of the file's name."""
    rows: Sequence[dict[str, Any]]


def sheet_text(sheet: ExportSheet, form: ExportForm) -> str:
    """Return a sheet as text. In CSV what is no plain value is JSON in its field."""
    if form is ExportForm.JSONL:
        return "".join(msgspec.json.encode(row).decode() + "\n" for row in sheet.rows)
    names = list(dict.fromkeys(name for row in sheet.rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    for row in sheet.rows:
        writer.writerow([_field(row.get(name)) for name in names])
    return out.getvalue()


def _field(value: Any) -> str:  # noqa: ANN401 - whatever JSON can hold
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def write_export(directory: Path, name: str, instant: Instant, form: ExportForm, text: str) -> Path:
    """Write a file with a name of its own and return it. Blocks; raises Environment where that cannot be."""
    stem = f"tenure-{name}-{rfc3339(instant)[:19].replace(':', '')}"
    for number in range(1, 100):
        path = directory / (f"{stem}.{form}" if number == 1 else f"{stem}-{number}.{form}")
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        except OSError as problem:
            hint = "start it in a directory that you may write to"
            raise Environment("not-exported", f"cannot write {path}: {problem.strerror}", hint=hint) from None
        return path
    raise Environment("not-exported", f"{directory} has 99 files {stem}*.{form}", hint="remove some")
