"""What ``audit`` does beside auditing one tree: hold it against another copy, and try itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from auditor import selftest
from auditor.against import compared
from auditor.audit import Options, audit
from timeagent.console import Progress, note, print_json, say
from timeagent.errors import BadRequest

from .running import pinned

if TYPE_CHECKING:
    import argparse

    from auditor.audit import Audit
    from auditor.load import Tree
    from auditor.selftest import Case


def against(arguments: argparse.Namespace, tree: Tree, twin: Tree, result: Audit) -> Audit:
    """Return the audit of a tree with what another copy contradicts it in. Raises as an audit does."""
    other = audit(twin, root_key=pinned(arguments.root_key), options=Options(jobs=arguments.jobs))
    if other.findings:
        note(f"{arguments.against} has {len(other.findings)} findings of its own: audit it too")
    return compared(result, other, tree, twin)


def run_selftest(form: str) -> int:
    """Audit the packed trees, report in text or JSON. Returns 0 where exactly what is planted was found, else 1."""
    if form not in ("text", "json"):
        raise BadRequest("bad-format", f"the selftest has no report in {form}", hint="audit --selftest [--json]")
    progress = Progress("selftest")
    tried: list[Case] = []
    for case in selftest.cases():
        tried.append(case)
        progress.show(len(tried), case.planted)
    progress.done()
    if form == "json":
        print_json(selftest.SCHEMA, selftest.json_fields(tried), version=selftest.VERSION)
    else:
        for line in selftest.text_lines(tried):
            say(line)
    return 0 if all(case.passed for case in tried) and not selftest.untried(tried) else 1
