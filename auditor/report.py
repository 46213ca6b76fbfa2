"""The report: text for people, JSON for programs. The same input gives the same bytes."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from timeagent.console import printable
from timeagent.keys import fingerprint
from timeagent.units import bound_text, rfc3339

from .finding import Verdict
from .opening import where_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .audit import Audit, Summary
    from .finding import Finding, NamedInterval

SCHEMA = "tenure.audit"
VERSION = 1
_WIDTH = 110


def json_fields(audit: Audit) -> dict[str, Any]:
    """Return what JSON shows, beside schema and version."""
    return {
        "cluster_id": audit.cluster_id.hex(),
        "root_key": None if audit.root_key is None else fingerprint(audit.root_key),
        "root_key_pinned": audit.pinned,
        "summary": asdict(audit.summary),
        "findings": [finding.fields() for finding in audit.findings],
    } | ({} if audit.hashed else {"payloads_hashed": False})


def json_bytes(audit: Audit) -> bytes:
    """Return the whole JSON document, on one line."""
    return msgspec.json.encode({"schema": SCHEMA, "version": VERSION} | json_fields(audit)) + b"\n"


def jsonl_lines(audit: Audit, about: dict[str, Any]) -> Iterator[bytes]:
    """Yield one JSON object per line: every finding (``type`` finding), and last what the audit says as a whole.

    ``about``: what was judged, and what was left out on purpose, for that last line.
    """
    for finding in audit.findings:
        yield msgspec.json.encode({"schema": SCHEMA, "version": VERSION, "type": "finding"} | finding.fields())
    rest = {name: value for name, value in json_fields(audit).items() if name != "findings"}
    yield msgspec.json.encode({"schema": SCHEMA, "version": VERSION, "type": "summary"} | about | rest)


def about_lines(about: dict[str, Any]) -> Iterator[str]:
    """Yield what was judged."""
    yield f"tree: {where_words(about['tree'])}"
    if "against" in about:
        yield f"held against: {where_words(about['against'])}"


def text_lines(audit: Audit) -> Iterator[str]:
    """Yield the report's lines: the root key, the findings, and last the verdict in one line."""
    yield _root_key(audit)
    for finding in audit.findings:
        yield ""
        yield from finding_lines(finding)
    yield ""
    if audit.findings:
        yield "To see the evidence in words: tenure explain FINDING PATH"
    if not audit.hashed:
        yield "Payloads were not hashed: what was altered inside data files may be missed"
    yield summary_line(audit.summary)


def finding_lines(finding: Finding) -> Iterator[str]:
    """Yield one finding: what, about what, why, and where the bytes are."""
    word = finding.verdict.value if finding.verdict is not Verdict.OK else finding.severity.value
    yield f"{finding.id}  {word.upper():<13}  {finding.code}: {finding.title}"
    yield from textwrap.wrap(printable(finding.explanation), _WIDTH, initial_indent="  ", subsequent_indent="  ")
    for place in finding.evidence:
        extent = f", offset {place.offset}, {place.length} bytes" if place.length else ""
        yield f"    {printable(place.path)}{extent}"


def time_line(named: NamedInterval) -> str:
    """Return one interval in words."""
    by = f", by the clock of {named.node}" if named.node else ""
    if named.earliest_ns == named.latest_ns:
        return f"{named.what}: {bound_text(named.earliest_ns)}{by}"
    return f"{named.what}: {rfc3339(named.earliest_ns)} to {rfc3339(named.latest_ns)}{by}"


def summary_line(summary: Summary) -> str:
    """Return the verdict in one line."""
    parts = [
        _plural(summary.violations, "violation"),
        f"{summary.indeterminate} indeterminate",
        f"{summary.unverifiable} unverifiable",
    ]
    if summary.informational:
        parts.append(f"{summary.informational} to know")
    parts.append(
        _plural(summary.messages, "message") + (f" ({summary.rejected:,} rejected)" if summary.rejected else "")
    )
    parts.append(
        _plural(summary.bags, "bag") + (f" ({summary.provisional:,} provisional)" if summary.provisional else "")
    )
    parts.append(_plural(summary.witnesses, "witness", "witnesses"))
    if summary.ledger_gaps:
        parts.append(_plural(summary.ledger_gaps, "ledger gap"))
    return ", ".join(parts)


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _root_key(audit: Audit) -> str:
    if audit.root_key is None:
        return "root key: none that can be read; the records of this tree are taken as they are"
    words = "pinned by --root-key" if audit.pinned else "taken from the tree itself; pin yours with --root-key FILE"
    return f"root key: {fingerprint(audit.root_key)} ({words})"
