"""The commands ``explain``, a finding in words, as JSON or as a picture, and ``bundle``, for others to verify."""

from __future__ import annotations

import argparse
import shutil
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from auditor.evidence.finding import Finding
from auditor.explain.archive import Archive
from auditor.explain.bundle import make_bundle
from auditor.explain.context import context_fields, context_of
from auditor.explain.lineage import lineage, lineage_lines
from auditor.explain.picture import draw
from auditor.explain.words import context_lines, evidence_fields, explain_lines
from auditor.rules.result import Audit, by_id, exit_status
from auditor.timeline.timeline_reader import reading_index
from timeagent.console import argument, counted, note, one_of, print_json, printable, say, say_all, together
from timeagent.errors import BadRequest

from .running import path_arguments, read_archive_of

SCHEMA: Final = "tenure.explain"

_FINDING: Final = argument("finding FINDING", "the id of a finding, or how it begins")
add_arguments: Final = together(
    _FINDING,
    path_arguments(),
    one_of(
        argument("--json", "one JSON object instead of text"),
        argument("--chain", "every link of the evidence with every check, also those good"),
        argument("--svg", "a picture of one finding on a time line, as SVG"),
    ),
)


def chosen_findings(result: Audit, name: str, path: object) -> list[Finding]:
    """Return the findings whose id begins so. Raises BadRequest where there is none."""
    wanted = name.lower()
    chosen = [finding for finding in result.findings if finding.id.startswith(wanted)]
    if not chosen or not wanted:
        what = f"the audit of {path} has no finding {name}; it has {len(result.findings)}"
        raise BadRequest("no-such-finding", what, hint="tenure audit PATH lists them with their ids")
    return chosen


def one_finding(result: Audit, name: str, path: object) -> Finding:
    """Return the only finding whose id begins so. Raises BadRequest where there is none, or several."""
    chosen = chosen_findings(result, name, path)
    if len(chosen) > 1:
        hint = "write more of the id"
        raise BadRequest("several-findings", f"{name} is the beginning of {len(chosen)} findings", hint=hint)
    return chosen[0]


def run(arguments: argparse.Namespace) -> int:
    """Show findings with their evidence. Returns the exit code (docs/exit-codes.md)."""
    archive = read_archive_of(arguments)
    with closing(archive.timeline) as timeline, reading_index(arguments.db):
        named = archive.audit, arguments.finding, arguments.path
        chosen = [one_finding(*named)] if arguments.svg else chosen_findings(*named)
        if arguments.chain:
            for finding in chosen:
                say_all(lineage_lines(lineage(finding, archive)))
        elif arguments.svg:
            say(draw(chosen[0], context_of(chosen[0], timeline)).rstrip())
        elif arguments.json:
            print_json(SCHEMA, {"findings": [_fields(finding, archive) for finding in chosen]})
        else:
            _text(arguments.finding, chosen, archive)
    return exit_status(by_id(archive.audit, [finding.id for finding in chosen]))


def _fields(finding: Finding, archive: Archive) -> dict[str, Any]:
    context = context_fields(context_of(finding, archive.timeline))
    contents = evidence_fields(finding, archive.tree)
    return finding.fields() | {"contents": contents, "context": context, "lineage": lineage(finding, archive).fields()}


def _text(name: str, chosen: list[Finding], archive: Archive) -> None:
    if len(chosen) > 1:
        note(f"{name} is the beginning of {len(chosen)} findings")
    for position, finding in enumerate(chosen):
        if position:
            say()
        say_all(explain_lines(finding, archive.tree))
        say_all(context_lines(context_of(finding, archive.timeline)))


add_bundle_arguments: Final = together(
    _FINDING, path_arguments(), argument("--output FILE", "a new file (default: stdout)", type=Path)
)


def run_bundle(arguments: argparse.Namespace) -> int:
    """Write a bundle. Returns the exit code (docs/exit-codes.md)."""
    output: Path | None = arguments.output
    if output is None and sys.stdout.isatty():
        raise BadRequest("terminal", "a bundle is no text", hint="redirect it: tenure bundle FINDING PATH > x.tar")
    if output is not None and output.exists():
        raise BadRequest("file-exists", f"{output} exists already", hint="name a new file, or remove it")
    archive = read_archive_of(arguments)
    with closing(archive.timeline) as timeline, reading_index(arguments.db):
        finding = one_finding(archive.audit, arguments.finding, arguments.path)
        bundle = make_bundle(finding, archive.tree, context_of(finding, timeline), archive.root_key)
    with bundle.file as file:
        file.seek(0)
        if output is None:
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            with output.open("xb") as target:
                try:
                    shutil.copyfileobj(file, target)
                    target.flush()
                except BaseException:
                    output.unlink()  # half a bundle shows nothing, and would be in the way of the next
                    raise
        note(f"bundle: {counted(len(bundle.paths), 'file')}, {file.tell():,} bytes, for finding {finding.id}")
    for path in bundle.absent[:8]:
        note(f"bundle: {printable(path)} is not there, and that cannot be shown by a bundle")
    if not bundle.confirmed:
        note("bundle: its own audit does not come to this finding: it rests on what a tar file does not keep")
        return 3
    return 0
