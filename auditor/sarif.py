"""An audit as SARIF 2.1.0, for tools that show findings of other tools."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from timeagent.console import printable

from .finding import Severity, Verdict
from .opening import where_words
from .rules.registry import RULES

if TYPE_CHECKING:
    from .audit import Audit
    from .finding import Evidence, Finding

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_BASE: Final = "TREE"
_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_KINDS: Final = {
    Verdict.VIOLATION: "fail",
    Verdict.INDETERMINATE: "open",
    Verdict.UNVERIFIABLE: "review",
    Verdict.PROVISIONAL: "open",
    Verdict.OK: "informational",
}


def sarif_fields(audit: Audit, about: dict[str, Any]) -> dict[str, Any]:
    """Return the document. Byte-identical for identical input; paths are relative to the tree.

    ``about``: what was judged, and the exit code.
    """
    codes = sorted({finding.code for finding in audit.findings})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "tenure audit",
                        "version": _version(),
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "originalUriBaseIds": {
                    _BASE: {"description": {"text": f"the root of the audited tree: {where_words(about['tree'])}"}}
                },
                "invocations": [{"executionSuccessful": True, "exitCode": about["exit_code"]}],
                "properties": about,
                "results": [_result(finding, codes.index(finding.code)) for finding in audit.findings],
            }
        ],
    }


def _version() -> str:
    try:
        return version("tenure")
    except PackageNotFoundError:
        return "0"


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
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(printable(place.path)), "uriBaseId": _BASE}}
    if place.length:
        physical["region"] = {"byteOffset": place.offset, "byteLength": place.length}
    return {"physicalLocation": physical}
