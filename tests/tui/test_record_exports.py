"""What is exported of a record: rows as JSON lines and as CSV, in files that are never written over."""

from __future__ import annotations

import csv
import io
import json
import resource
from typing import TYPE_CHECKING

import pytest

from tests.tui.test_record_drawings import SEVERAL
from timeagent.errors import Environment
from tui.model.tables import ExportForm, ExportSheet, sheet_text, write_export

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_are_written_as_jsonl_and_csv() -> None:
    sheet = ExportSheet("findings", [each.fields() for each in SEVERAL])
    lines = [json.loads(line) for line in sheet_text(sheet, ExportForm.JSONL).splitlines()]
    assert lines == [each.fields() for each in SEVERAL]
    rows = list(csv.DictReader(io.StringIO(sheet_text(sheet, ExportForm.CSV))))
    assert [row["code"] for row in rows] == [each.code for each in SEVERAL]
    assert json.loads(rows[0]["evidence"]) == SEVERAL[0].fields()["evidence"]


def test_export_is_never_written_over_another(tmp_path: Path) -> None:
    paths = [write_export(tmp_path, "findings", 0, ExportForm.CSV, str(number)) for number in range(3)]
    assert [path.read_text() for path in paths] == ["0", "1", "2"]
    assert len({path.name for path in paths}) == 3


def test_export_that_cannot_be_written_says_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(Environment, match=r"cannot write .*findings.*: No such file or directory"):
        write_export(tmp_path / "gone", "findings", 0, ExportForm.CSV, "")


def test_export_that_ends_half_way_is_not_left_there(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(Environment, match="File too large"):
            write_export(tmp_path, "findings", 0, ExportForm.CSV, "x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
