"""An audit as JUnit XML, for build servers: one test case per finding, and one that passes per rule without any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape, quoteattr

from timeagent.console import printable

from .finding import Severity, Verdict
from .opening import where_words
from .rules.registry import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .audit import Audit
    from .finding import Finding

_ELEMENTS: Final = {
    Verdict.VIOLATION: "failure",
    Verdict.UNVERIFIABLE: "error",
    Verdict.INDETERMINATE: "skipped",
    Verdict.PROVISIONAL: "skipped",
    Verdict.OK: "system-out",
}
"""An unknown outcome is not a crime: what is indeterminate is skipped, not failed."""


def _element(finding: Finding) -> str:
    """Return the element of a finding; a warning makes the exit code 1, and does not pass."""
    warning = finding.verdict is Verdict.OK and finding.severity is not Severity.INFO
    return "skipped" if warning else _ELEMENTS[finding.verdict]


def junit_lines(audit: Audit, about: dict[str, Any]) -> Iterator[str]:
    """Yield the document's lines. Byte-identical for identical input: no host, no time of the run.

    ``about``: what was judged, and the exit code.
    """
    found = {finding.code for finding in audit.findings}
    passed = [code for code in RULES if code not in found]
    counts = {
        element: sum(_element(finding) == element for finding in audit.findings)
        for element in ("failure", "error", "skipped")
    }
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield (
        f'<testsuites><testsuite name="tenure audit" tests="{len(audit.findings) + len(passed)}" '
        f'failures="{counts["failure"]}" errors="{counts["error"]}" skipped="{counts["skipped"]}">'
    )
    yield "  <properties>"
    for name, value in (("tree", where_words(about["tree"])), ("exit-code", str(about["exit_code"]))):
        yield f'    <property name="{name}" value={quoteattr(_xml(value))}/>'
    yield "  </properties>"
    for finding in audit.findings:
        yield from _case(finding)
    for code in passed:
        yield f'  <testcase classname="tenure.audit" name={quoteattr(code)}/>'
    yield "</testsuite></testsuites>"


def _case(finding: Finding) -> Iterator[str]:
    name = quoteattr(f"{finding.code} {finding.id}")
    yield f'  <testcase classname="tenure.audit" name={name} file={quoteattr(_path(finding))}>'
    element = _element(finding)
    places = "".join(f"\n{place.path} {place.offset}+{place.length}" for place in finding.evidence)
    text = escape(_xml(f"{finding.explanation}{places}"))
    message = "" if element == "system-out" else f" message={quoteattr(_xml(finding.title))}"
    kind = f' type="{finding.verdict.value}"' if element in ("failure", "error") else ""
    yield f"    <{element}{message}{kind}>{text}</{element}>"
    yield "  </testcase>"


def _path(finding: Finding) -> str:
    return printable(finding.evidence[0].path) if finding.evidence else ""


def _xml(text: str) -> str:
    """Return text that XML can hold: its line breaks, and else what can be printed."""
    return "\n".join(printable(line) for line in text.split("\n"))
