"""Two reports of ``audit --json`` compared: which findings came, went, or are judged otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from timeagent.console import printable
from timeagent.errors import BadRequest

from .formats import SCHEMA

DIFF_SCHEMA: Final = "tenure.audit.diff"
REPORT_BYTES_MAX: Final = 1024 * 1024 * 1024
_COMPARED: Final = {"verdict", "severity", "explanation", "times"}
_WORDS: Final = ("id", "code", "subject", "verdict", "explanation")


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


def compare(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Compare two reports by the ids of their findings, which depend on code, subject and evidence only.

    Returns what JSON shows: which findings ``came`` and ``went``, and which are judged or explained otherwise.
    """
    old = {each["id"]: each for each in before["findings"]}
    new = {each["id"]: each for each in after["findings"]}
    one, other = before["summary"], after["summary"]
    found = {
        "came": [each for name, each in new.items() if name not in old],
        "went": [each for name, each in old.items() if name not in new],
        "changed": [
            {"before": old[name], "after": each}
            for name, each in new.items()
            if name in old and any(old[name][key] != each[key] for key in _COMPARED)
        ],
        "summary": {
            name: {"before": one.get(name), "after": other.get(name)}
            for name in sorted(one.keys() | other.keys())
            if one.get(name) != other.get(name)
        },
    }
    same_cluster = before.get("cluster_id") == after.get("cluster_id")
    return {"same": same_cluster and not any(found.values()), "same_cluster": same_cluster, **found}


def diff_lines(diff: dict[str, Any]) -> Iterator[str]:
    """Yield the difference in words; last a line that counts it."""
    if not diff["same_cluster"]:
        yield "the reports are of two clusters"
    for sign, findings in (("+", diff["came"]), ("-", diff["went"])):
        for each in findings:
            verdict, what = str(each["verdict"]).upper(), f"{each['code']}: {printable(each['subject'])}"
            yield f"{sign} {each['id']}  {verdict:<13}  {what}"
    for pair in diff["changed"]:
        before, after = pair["before"], pair["after"]
        what = f"{after['code']}: {printable(after['subject'])}"
        yield f"~ {after['id']}  {before['verdict']} -> {after['verdict']}  {what}"
        if before["explanation"] != after["explanation"]:
            yield f"    was: {printable(before['explanation'])}"
            yield f"    is:  {printable(after['explanation'])}"
    for name, counts in diff["summary"].items():
        yield f"  {name}: {counts['before']} -> {counts['after']}"
    yield f"{len(diff['came'])} findings came, {len(diff['went'])} went, {len(diff['changed'])} changed"
