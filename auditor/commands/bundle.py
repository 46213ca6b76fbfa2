"""The command ``bundle``: one finding as a tar file for somebody else to verify."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from auditor.explain.bundle import make_bundle
from auditor.explain.context import context_of
from auditor.replay.reading import read_timeline
from timeagent.console import counted, note, printable
from timeagent.errors import BadRequest

from .explain import one_finding
from .running import path_arguments, pinned, run_audit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``bundle`` takes."""
    parser.add_argument("finding", metavar="FINDING", help="the id of a finding, or how it begins")
    path_arguments(parser)
    parser.add_argument("--output", metavar="FILE", type=Path, help="a new file (default: stdout)")


def run(arguments: argparse.Namespace) -> int:
    """Write a bundle. Returns the exit code (docs/exit-codes.md)."""
    output: Path | None = arguments.output
    if output is None and sys.stdout.isatty():
        raise BadRequest("terminal", "a bundle is no text", hint="redirect it: tenure bundle FINDING PATH > x.tar")
    if output is not None and output.exists():
        raise BadRequest("file-exists", f"{output} exists already", hint="name a new file, or remove it")
    tree, result = run_audit(arguments)
    finding = one_finding(result, arguments.finding, arguments.path)
    root_key = pinned(arguments.root_key)
    timeline = read_timeline(tree, root_key=root_key, findings=result.findings)
    bundle = make_bundle(finding, tree, context_of(finding, timeline), root_key)
    with bundle.file as file:
        file.seek(0)
        if output is None:
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            with output.open("xb") as target:
                shutil.copyfileobj(file, target)
        note(f"bundle: {counted(len(bundle.paths), 'file')}, {file.tell():,} bytes, for finding {finding.id}")
    for path in bundle.absent[:8]:
        note(f"bundle: {printable(path)} is not there, and that cannot be shown by a bundle")
    if not bundle.confirmed:
        note("bundle: its own audit does not come to this finding: it rests on what a tar file does not keep")
        return 3
    return 0
