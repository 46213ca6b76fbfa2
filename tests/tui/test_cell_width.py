"""Columns stand below each other also where names are written in wide characters, or with marks upon letters."""

import asyncio

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

import tui.model.tables
from tests.support.mutants import plant
from tests.support.screens import HandFeed, RecordedSource, lease, state
from tests.tui.piloting import text_at
from tui.app import TopApp
from tui.model.state import Cell
from tui.model.tables import Column, ColumnWidths, cells_of, head_of, laid_out, tail_of
from tui.screens.cluster import LeaseList

NAMES = (
    "plain",
    "日本語の口座/東京",
    "🚀🚀 launch",
    "cafe\u0301/menu\u0308",
    "口",
    "x" * 40,
    "…●✗",
    "한국어 도메인",
    "",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [2, 3, 7, 8, 30])
def test_text_of_any_width_fills_its_column(name: str, width: int) -> None:
    for right in (False, True):
        columns = (Column("a", width, right=right), Column("b", 3))
        line = laid_out(columns, ColumnWidths((width, 3), ({}, {})), (Cell(name), Cell("end")))
        text = "".join(cell.text for cell in line)
        assert cell_len(text) == width + 1 + 3, (name, text)
        assert text.endswith(" end")
    assert cell_len(head_of(name, width)) == width
    assert cell_len(tail_of(name, width)) <= width


def test_cells_are_counted_as_the_library_counts_them() -> None:
    for code in (*range(0x20, 0x7F), *range(0x80, 0x3100), *range(0xAC00, 0xAC10), *range(0x1F300, 0x1F700)):
        text = f"a{chr(code)}"
        assert cells_of(text) == cell_len(text), hex(code)


def test_table_with_wide_names_is_aligned() -> None:
    rows = tuple(lease(name.replace(" ", "") or "none", purpose=name) for name in NAMES)

    async def run() -> list[str]:
        app = TopApp(HandFeed(RecordedSource(state(leases=rows))))
        async with app.run_test(size=(120, 36)) as pilot:
            return await _lines(pilot)

    lines = asyncio.run(run())
    assert len({cell_len(line[: line.index("node1/4242")]) for line in lines}) == 1, lines
    assert len(lines) == len(NAMES)


async def _lines(pilot: Pilot[None]) -> list[str]:
    await pilot.press("2")
    await pilot.pause()
    table = pilot.app.screen.query_one(LeaseList)
    return [line for y in range(1, 12) if "node1/4242" in (line := text_at(table, y))]


def test_columns_by_letters_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch,
        tui.model.tables,
        "cells_of",
        "len(text) if text.isascii() or _NARROW(text) else _len(text)",
        "len(text)",
    )
    monkeypatch.setattr(tui.model.tables, "cells_of", tui.model.tables.cells_of)
    with pytest.raises(AssertionError):
        test_text_of_any_width_fills_its_column("日本語の口座/東京", 7)
