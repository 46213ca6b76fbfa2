"""Two reports of ``audit --json`` compared: which findings came, went, or are judged otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from timeagent.console import printable
from timeagent.errors import BadRequest

from .formats import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIFF_SCHEMA: Final = "tenure.audit.diff"
REPORT_BYTES_MAX: Final = 1024 * 1024 * 1024
_COMPARED: Final = {"verdict", "severity", "explanation", "times"}
_WORDS: Final = ("id", "code", "subject", "verdict", "explanation")


@dataclass(frozen=True, slots=True)
class ReportDiff:
    """What is in the second report and not in the first, and the other way round. Findings are as JSON has them."""

    same_cluster: bool
    came: tuple[dict[str, Any], ...]
    went: tuple[dict[str, Any], ...]
    changed: tuple[tuple[dict[str, Any], dict[str, Any]], ...]
    """The same finding, before and after, where it is judged or explained otherwise."""
    summary: dict[str, tuple[int | None, int | None]]
    """The counts that differ."""

    @property
    def same(self) -> bool:
        """Whether both say the same."""
        return self.same_cluster and not (self.came or self.went or self.changed or self.summary)


def read_report(path: Path) -> dict[str, Any]:
    """Read a report. Raises BadRequest that names the file for what is none."""
    try:
        if path.stat().st_size > REPORT_BYTES_MAX:
            raise BadRequest("not-a-report", f"{path} is larger than any report", hint="name what audit --json wrote")
        document = msgspec.json.decode(path.read_bytes())
    except OSError as problem:
        raise BadRequest(
            "report-unreadable", f"cannot read {path}: {problem.strerror}", hint="name what audit --json wrote"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadRequest("not-a-report", f"{path} is no JSON: {problem}", hint="name what audit --json wrote") from None
    fits = isinstance(document, dict) and document.get("schema") == SCHEMA and document.get("version") == 1
    if not fits or not _well_formed(document):
        raise BadRequest("not-a-report", f"{path} is no {SCHEMA} of version 1", hint="name what audit --json wrote")
    assert isinstance(document, dict)
    return document


def _well_formed(document: dict[str, Any]) -> bool:
    findings, summary = document.get("findings"), document.get("summary")
    return (
        isinstance(summary, dict)
        and isinstance(findings, list)
        and all(
            isinstance(each, dict)
            and each.keys() >= _COMPARED
            and all(isinstance(each.get(key), str) for key in _WORDS)
            for each in findings
        )
    )


def compare(before: dict[str, Any], after: dict[str, Any]) -> ReportDiff:
    """Compare two reports by the ids of their findings, which depend on code, subject and evidence only."""
    old = {each["id"]: each for each in before["findings"]}
    new = {each["id"]: each for each in after["findings"]}
    changed = [
        (old[name], new[name])
        for name in new
        if name in old and any(old[name][key] != new[name][key] for key in _COMPARED)
    ]
    counts = sorted(before["summary"].keys() | after["summary"].keys())
    summary = {name: (before["summary"].get(name), after["summary"].get(name)) for name in counts}
    return ReportDiff(
        before.get("cluster_id") == after.get("cluster_id"),
        tuple(each for name, each in new.items() if name not in old),
        tuple(each for name, each in old.items() if name not in new),
        tuple(changed),
        {name: pair for name, pair in summary.items() if pair[0] != pair[1]},
    )


def diff_lines(diff: ReportDiff) -> Iterator[str]:
    """Yield the difference in words; last a line that counts it."""
    if not diff.same_cluster:
        yield "the reports are of two clusters"
    for sign, findings in (("+", diff.came), ("-", diff.went)):
        for each in findings:
            verdict, what = str(each["verdict"]).upper(), f"{each['code']}: {printable(each['subject'])}"
            yield f"{sign} {each['id']}  {verdict:<13}  {what}"
    for before, after in diff.changed:
        what = f"{after['code']}: {printable(after['subject'])}"
        yield f"~ {after['id']}  {before['verdict']} -> {after['verdict']}  {what}"
        if before["explanation"] != after["explanation"]:
            yield f"    was: {printable(before['explanation'])}"
            yield f"    is:  {printable(after['explanation'])}"
    for name, (was, now) in diff.summary.items():
        yield f"  {name}: {was} -> {now}"
    yield f"{len(diff.came)} findings came, {len(diff.went)} went, {len(diff.changed)} changed"


def diff_fields(diff: ReportDiff) -> dict[str, Any]:
    """Return what JSON shows."""
    return {
        "same": diff.same,
        "same_cluster": diff.same_cluster,
        "came": list(diff.came),
        "went": list(diff.went),
        "changed": [{"before": before, "after": after} for before, after in diff.changed],
        "summary": {name: {"before": was, "after": now} for name, (was, now) in diff.summary.items()},
    }
