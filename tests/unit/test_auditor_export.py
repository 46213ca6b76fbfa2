"""Evidence as Parquet: what is in the tables, the queries of the docs, and the extra that is not there."""

from __future__ import annotations

import json
import re
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from auditor.audit import audit, audit_with_timeline
from auditor.commands.export import TABLES, rows_of
from auditor.evidence.tree import Tree
from auditor.explain.context import all_leases
from tenure.__main__ import main
from tests.fault_injection.faults_leases import granted_while_held
from tests.fault_injection.fixtures import Story, eventful_tree, small_tree
from tests.support.timelines import read_timeline
from timeagent.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

Capture = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    return main(["audit", *map(str, arguments)])


@pytest.fixture
def duckdb() -> ModuleType:
    module: ModuleType = pytest.importorskip(
        "duckdb", reason="DuckDB is not installed: NOTHING is known about Parquet files"
    )
    return module


def test_tables_have_what_the_audit_counted(tmp_path: Path, capsys: Capture, duckdb: ModuleType) -> None:
    small_tree(tmp_path / "tree")
    assert run("export", tmp_path / "tree", "--parquet", tmp_path / "it's out", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert set(rows) == set(TABLES)
    summary = audit(Tree(tmp_path / "tree")).summary
    timeline = read_timeline(Tree(tmp_path / "tree"))

    def one(sql: str, table: str) -> tuple[object, ...]:
        place = str(tmp_path / "it's out" / table).replace("'", "''")
        (row,) = duckdb.sql(f"SELECT {sql} FROM '{place}.parquet'").fetchall()
        return tuple(row)

    assert one("sum(accepted)", "frames") == (summary.messages,)
    assert one("sum(accepted)", "bags") == (summary.messages,)
    assert one("count(*)", "bags") == (summary.bags,)
    assert one("count(*)", "events") == (len(timeline.events),)
    assert one("count(*)", "findings") == (0,)
    assert one("min(epoch_ns(instant)) = min(instant_ns)", "events") == (True,)
    assert one("count(*) >= 1", "leases") == (True,)


@pytest.mark.parametrize("clean", [True, False])
def test_every_query_of_the_docs_runs(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, duckdb: ModuleType, *, clean: bool
) -> None:
    (small_tree if clean else granted_while_held)(tmp_path / "tree")
    assert run("export", tmp_path / "tree", "--parquet", tmp_path / "out") == 0
    monkeypatch.chdir(tmp_path / "out")
    text = (repository / "docs/audit-queries.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    assert len(queries) >= 6
    found = {query: duckdb.sql(query).fetchall() for query in queries}
    overlaps = next(rows for query, rows in found.items() if "overlap_ms" in query)
    assert [row[:3] for row in overlaps] == ([] if clean else [("alice", "n2", "n1")])


def test_void_frame_is_found_by_query(tmp_path: Path, duckdb: ModuleType) -> None:
    story = Story(tmp_path / "tree")
    _, path = story.written()
    bag = story.grid.bag(story.tree.now_ns)
    story.tree.advance(4 * SECOND)
    story.tree.close(bag, omit=[path.rpartition("/")[2]])
    assert run("export", tmp_path / "tree", "--parquet", tmp_path / "out") == 0
    place = tmp_path / "out/frames.parquet"
    rows = duckdb.sql(f"SELECT file, accepted, listed FROM '{place}' WHERE accepted < messages").fetchall()
    assert rows == [(path, 0, False)]


# Of a lease under a session lease much is told by that alone.
def test_table_of_leases_says_of_each_what_explain_does(tmp_path: Path) -> None:
    result, timeline = audit_with_timeline(Tree(eventful_tree(tmp_path).root))
    del result
    with closing(timeline):
        told = [(row["expiry_ns"], row["outcome"], row["ended_ns"]) for row in rows_of("leases", timeline)]
        leases = [*all_leases(timeline)]
    ends = [(each.end.outcome.value, each.end.ended_ns) if each.end else (None, None) for each in leases]
    assert told == [(each.expiry_ns, *end) for each, end in zip(leases, ends, strict=True)]
    assert any(each.ended is None and each.end is not None for each in leases)


def test_without_the_library_it_says_which_extra_to_install(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted_while_held(tmp_path / "tree")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert run("export", tmp_path / "tree", "--parquet", tmp_path / "out") == 78
    assert "tenure[export]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_wrong_use_is_refused(tmp_path: Path, capsys: Capture) -> None:
    granted_while_held(tmp_path / "tree")
    assert run("export", tmp_path / "tree") == 2
    assert run(tmp_path / "tree", "--parquet", tmp_path / "out") == 2
    assert "[no-export]" in capsys.readouterr().err


def test_directory_that_is_there_is_left_alone(tmp_path: Path, capsys: Capture, duckdb: ModuleType) -> None:
    granted_while_held(tmp_path / "tree")
    (tmp_path / "out").mkdir()
    assert run("export", tmp_path / "tree", "--parquet", tmp_path / "out") == 74
    assert "[cannot-export]" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []
