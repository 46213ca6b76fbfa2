"""``audit export``: the evidence as Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditor.export import export
from auditor.replay.reading import read_timeline
from timeagent.console import print_json, say
from timeagent.errors import BadRequest

from .running import pinned, run_audit

if TYPE_CHECKING:
    import argparse


def run_export(arguments: argparse.Namespace) -> int:
    """Audit and write the tables. Returns 0 whatever is found: the findings are one of them."""
    if len(arguments.reports) != 1 or arguments.parquet is None or arguments.format not in ("text", "json"):
        raise BadRequest(
            "bad-export",
            "audit export takes one PATH and --parquet DIR, and reports in text or JSON",
            hint="tenure audit export PATH --parquet DIR",
        )
    (arguments.path,) = arguments.reports
    tree, result = run_audit(arguments)
    timeline = read_timeline(tree, root_key=pinned(arguments.root_key), findings=result.findings)
    rows = export(timeline, arguments.parquet)
    if arguments.format == "json":
        print_json("tenure.audit.export", {"directory": str(arguments.parquet), "rows": rows})
    else:
        for name, count in rows.items():
            say(f"{arguments.parquet / name}.parquet  {count:,} rows")
    return 0
