"""The report: text for people, JSON, SARIF and JUnit for programs. The same input gives the same bytes."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import msgspec

from auditor.evidence.finding import RULES, Evidence, Finding, NamedInterval, Severity, Verdict
from auditor.evidence.opening import where_words
from timeagent import VERSION as RELEASE
from timeagent.console import counted, printable
from timeagent.keys import fingerprint
from timeagent.units import bound_text, rfc3339

from ..rules.result import Audit, Summary

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
    return msgspec.json.encode({"schema": SCHEMA, "version": VERSION} | json_fields(audit)) + b"\n"


def jsonl_lines(audit: Audit, about: dict[str, Any]) -> Iterator[bytes]:
    """Yield one JSON object per line: every finding (``type`` finding), and last what the audit says as a whole.

    ``about``: what was judged, and what was left out on purpose, for that last line.
    """
    rest = json_fields(audit)
    for fields in rest.pop("findings"):
        yield msgspec.json.encode({"schema": SCHEMA, "version": VERSION, "type": "finding"} | fields)
    yield msgspec.json.encode({"schema": SCHEMA, "version": VERSION, "type": "summary"} | about | rest)


def about_lines(about: dict[str, Any]) -> Iterator[str]:
    yield f"tree: {where_words(about['tree'])}"
    if "against" in about:
        yield f"held against: {where_words(about['against'])}"
    narrowed = about.get("narrowed_to", {}) | {"codes": about.get("only")}
    left = [
        f"{name} {', '.join([value] if isinstance(value, str) else value)}" for name, value in narrowed.items() if value
    ]
    if left:
        yield printable(f"narrowed to: {'; '.join(left)}")


def text_lines(audit: Audit) -> Iterator[str]:
    """Yield the report's lines: the root key, the findings, and last the verdict in one line."""
    yield _root_key(audit)
    for finding in audit.findings:
        yield ""
        yield from finding_lines(finding)
    yield ""
    if audit.findings:
        yield "To see the evidence in words: tenure explain FINDING PATH"
    yield from _unhashed(audit)
    yield summary_line(audit.summary)


def _unhashed(audit: Audit) -> Iterator[str]:
    if not audit.hashed:
        yield "Payloads were not hashed: what was altered inside data files may be missed"


def finding_lines(finding: Finding) -> Iterator[str]:
    """Yield one finding: what, about what, why, and where the bytes are."""
    word = finding.verdict.value if finding.verdict is not Verdict.OK else finding.severity.value
    yield f"{finding.id}  {word.upper():<13}  {finding.code}: {finding.title}"
    yield from textwrap.wrap(printable(finding.explanation), _WIDTH, initial_indent="  ", subsequent_indent="  ")
    for place in finding.evidence:
        extent = f", offset {place.offset}, {place.length} bytes" if place.length else ""
        yield f"    {printable(place.path)}{extent}"


def time_line(named: NamedInterval) -> str:
    said = bound_text(named.earliest_ns)
    if named.earliest_ns != named.latest_ns:
        said = f"{rfc3339(named.earliest_ns)} to {rfc3339(named.latest_ns)}"
    return printable(f"{named.what}: {said}" + (f", by the clock of {named.node}" if named.node else ""))


def summary_line(summary: Summary) -> str:
    parts = [
        counted(summary.violations, "violation"),
        f"{summary.indeterminate} indeterminate",
        f"{summary.unverifiable} unverifiable",
    ]
    if summary.informational:
        parts.append(f"{summary.informational} to know")
    rejected = f" ({summary.rejected:,} rejected)" if summary.rejected else ""
    parts.append(counted(summary.messages, "message") + rejected)
    still_open = f" ({summary.provisional:,} provisional: still open, not judged)" if summary.provisional else ""
    parts += [counted(summary.bags, "bag") + still_open, counted(summary.witnesses, "witness", "witnesses")]
    if summary.ledger_gaps:
        parts.append(counted(summary.ledger_gaps, "ledger gap"))
    return ", ".join(parts)


def _root_key(audit: Audit) -> str:
    if audit.root_key is None:
        return "root key: none that can be read; the records of this tree are taken as they are"
    words = "pinned by --root-key" if audit.pinned else "taken from the tree itself; pin yours with --root-key FILE"
    return f"root key: {fingerprint(audit.root_key)} ({words})"


SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_BASE: Final = "TREE"
_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_KINDS: Final = {
    Verdict.VIOLATION: "fail",
    Verdict.INDETERMINATE: "open",
    Verdict.UNVERIFIABLE: "review",
    Verdict.OK: "informational",
}


def sarif_fields(audit: Audit, about: dict[str, Any]) -> dict[str, Any]:
    """Return the document; paths are relative to the tree. ``about``: what was judged, and the exit code."""
    codes = sorted({finding.code for finding in audit.findings})
    return {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "tenure audit",
                        "version": RELEASE,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "originalUriBaseIds": {
                    _BASE: {"description": {"text": f"the root of the audited tree: {where_words(about['tree'])}"}}
                },
                "invocations": [{"executionSuccessful": True, "exitCode": about["exit_code"]}],
                "properties": about | ({} if audit.hashed else {"payloads_hashed": False}),
                "results": [_result(finding, codes.index(finding.code)) for finding in audit.findings],
            }
        ],
    }


def _rule(code: str) -> dict[str, Any]:
    rule = RULES[code]
    return {
        "id": code,
        "shortDescription": {"text": rule.title},
        "help": {"text": f"docs/findings.md#{code}"},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding, rule_index: int) -> dict[str, Any]:
    kind = _KINDS[finding.verdict]
    fields = finding.fields()
    return {
        "ruleId": finding.code,
        "ruleIndex": rule_index,
        "kind": kind,
        # The standard: a kind other than "fail" has level "none".
        "level": _LEVELS[finding.severity] if kind == "fail" else "none",
        "message": {"text": printable(finding.explanation)},
        "locations": [_location(place) for place in finding.evidence[:1]],
        "relatedLocations": [
            {"id": number, **_location(place)} for number, place in enumerate(finding.evidence[1:], 1)
        ],
        "partialFingerprints": {"tenureFindingId/v1": finding.id},
        "properties": {"verdict": finding.verdict.value, "subject": fields["subject"], "times": fields["times"]},
    }


def _location(place: Evidence) -> dict[str, Any]:
    from urllib.parse import quote

    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(printable(place.path)), "uriBaseId": _BASE}}
    if place.length:
        physical["region"] = {"byteOffset": place.offset, "byteLength": place.length}
    return {"physicalLocation": physical}


_ELEMENTS: Final = {
    Verdict.VIOLATION: "failure",
    Verdict.UNVERIFIABLE: "error",
    Verdict.INDETERMINATE: "skipped",
    Verdict.OK: "system-out",
}
"""An unknown outcome is not a crime: what is indeterminate is skipped, not failed."""


def _element(finding: Finding) -> str:
    """Return the element of a finding; a warning makes the exit code 1, and does not pass."""
    warning = finding.verdict is Verdict.OK and finding.severity is not Severity.INFO
    return "skipped" if warning else _ELEMENTS[finding.verdict]


def junit_lines(audit: Audit, about: dict[str, Any]) -> Iterator[str]:
    """Yield the document's lines, without host and time of the run. ``about``: what was judged, and the exit code."""
    from xml.sax.saxutils import quoteattr

    found = {finding.code for finding in audit.findings}
    # What was left out did not pass.
    passed = [code for code in RULES if code not in found] if not about.keys() & {"only", "bundle"} else []
    counts = Counter(map(_element, audit.findings))
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield (
        f'<testsuites><testsuite name="tenure audit" tests="{len(audit.findings) + len(passed)}" '
        f'failures="{counts["failure"]}" errors="{counts["error"]}" skipped="{counts["skipped"]}">'
    )
    yield "  <properties>"
    for name, value in (("tree", where_words(about["tree"])), ("exit-code", str(about["exit_code"]))):
        yield f'    <property name="{name}" value={quoteattr(printable(value))}/>'
    for line in (*itertools.islice(about_lines(about), 1, None), *_unhashed(audit)):
        yield f'    <property name="left-out" value={quoteattr(line)}/>'
    yield "  </properties>"
    for finding in audit.findings:
        yield from _case(finding)
    for code in passed:
        yield f'  <testcase classname="tenure.audit" name={quoteattr(code)}/>'
    yield "</testsuite></testsuites>"


def _case(finding: Finding) -> Iterator[str]:
    from xml.sax.saxutils import escape, quoteattr

    name = quoteattr(f"{finding.code} {finding.id}")
    path = printable(finding.evidence[0].path) if finding.evidence else ""
    yield f'  <testcase classname="tenure.audit" name={name} file={quoteattr(path)}>'
    element = _element(finding)
    places = [f"{place.path} {place.offset}+{place.length}" for place in finding.evidence]
    text = escape("\n".join(map(printable, [finding.explanation, *places])))
    message = "" if element == "system-out" else f" message={quoteattr(finding.title)}"
    kind = f' type="{finding.verdict.value}"' if element in ("failure", "error") else ""
    yield f"    <{element}{message}{kind}>{text}</{element}>"
    yield "  </testcase>"
