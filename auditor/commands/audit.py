"""The command ``audit``: judge a tree, in one of five formats; ``audit diff`` and ``audit export`` go on from it."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.formats.birth import ROOT_VARIABLE
from auditor.audit import Options, audit
from auditor.evidence.opening import TarTree, open_tree, whereabouts
from auditor.evidence.tree import Tree
from auditor.report import formats
from auditor.rules.result import DEFAULT, Audit, FailOn, by_id, exit_status, only
from timeagent.console import Progress, argument, note, one_of, print_json, printable, say, say_all, together
from timeagent.errors import BadRequest

from .running import narrowing, path_arguments, pinned, read_archive_of, run_audit

UNCONFIRMED: Final = 3
FORMATS: Final = ("text", "json", "jsonl", "sarif", "junit")

add_arguments: Final = together(
    path_arguments(needed=False),
    argument(
        "reports REPORT",
        "only after a word in the place of PATH: diff and two reports of --json, or export and the PATH",
        type=Path,
        nargs="*",
    ),
    argument("--parquet DIR", "with export: where its files are written; new", type=Path),
    argument("--against COPY", "another copy of the tree: say where the two contradict each other", type=Path),
    argument("--selftest", "instead of PATH: audit trees with planted faults, and find exactly those"),
    one_of(
        argument("--format", "how it is reported (default: text)", choices=FORMATS, default="text"),
        argument("--json", "one JSON object: --format json", dest="format", action="store_const", const="json"),
        argument(
            "--jsonl", "one JSON object a line: --format jsonl", dest="format", action="store_const", const="jsonl"
        ),
    ),
    argument(
        "--only CODE",
        "report this code, these codes (r2-*) or this verdict only; repeatable, or with commas",
        action="append",
        default=[],
    ),
    argument(
        "--fail-on",
        "which findings make the exit code other than 0: of that verdict, or worse; warning (the default): all "
        "but what is only worth knowing; any: that too",
        choices=[each.value for each in FailOn],
        default=DEFAULT.value,
    ),
)


def run(arguments: argparse.Namespace) -> int:
    """Audit a tree and report. Returns the exit code (docs/exit-codes.md)."""
    if _is_word("diff", arguments):
        return _diff(arguments.reports, arguments.format)
    if _is_word("export", arguments):
        return run_export(arguments)
    if arguments.parquet is not None:
        raise BadRequest("no-export", "--parquet goes with export", hint="tenure audit export PATH --parquet DIR")
    if arguments.reports:
        hint = "audit one tree, or audit diff A.json B.json"
        raise BadRequest("two-paths", f"{arguments.reports[0]} is one path too many", hint=hint)
    if arguments.selftest:
        if arguments.path is not None:
            what = f"--selftest has trees of its own: {arguments.path} would not be looked at"
            raise BadRequest("two-paths", what, hint="leave out one of the two")
        return run_selftest(arguments.format)
    if arguments.path is None:
        named = os.environ.get(ROOT_VARIABLE)
        if not named:
            hint = f"name a root or a copy of one, or set {ROOT_VARIABLE}; or --selftest"
            raise BadRequest("no-path", "there is no PATH to audit", hint=hint)
        arguments.path = Path(named)
    tree, result = run_audit(arguments)
    about: dict[str, Any] = {"tree": whereabouts(tree)} | narrowing(arguments).fields()
    if isinstance(tree, TarTree):  # a bundle is one
        from auditor.explain.bundle import manifest_of

        manifest = manifest_of(tree)
        if manifest is not None:
            if arguments.against is not None or arguments.only:
                what = (
                    f"{arguments.path} is a bundle, which speaks of one finding: --against and --only say nothing of it"
                )
                raise BadRequest("bundle-alone", what, hint="leave them out, or audit the tree that it was made of")
            return _bundle(manifest, result, arguments, about)
    if arguments.against is not None:
        twin = open_tree(arguments.against)
        result = against(arguments, tree, twin, result)
        about |= {"against": whereabouts(twin)}
    patterns = [part for each in arguments.only for part in each.split(",") if part]
    result = only(result, patterns)
    about |= {"only": patterns} if patterns else {}
    return _report(result, arguments, about)


def _is_word(word: str, arguments: argparse.Namespace) -> bool:
    """Whether this word stands in the place of PATH: not where it is all that is named, and is a tree."""
    path: Path | None = arguments.path
    return path is not None and path == Path(word) and (bool(arguments.reports) or not path.exists())


def _bundle(manifest: dict[str, Any], result: Audit, arguments: argparse.Namespace, about: dict[str, Any]) -> int:
    """Report of a bundle whether its finding holds. What else is not there was left out by whoever made it."""
    from auditor.explain.bundle import shows

    finding = printable(manifest["finding"])  # whatever somebody wrote there
    confirmed = shows(result, finding)
    note(f"this is a bundle, of finding {finding}: of {len(result.findings)} findings no other is shown")
    result = by_id(result, [finding] if confirmed else [])
    about |= {"bundle": {"finding": finding, "confirmed": confirmed}}
    status = _report(result, arguments, about, None if confirmed else UNCONFIRMED)
    if not confirmed:
        note(f"the bundle is of finding {finding}, and what is in it does not show that")
    return status


def _diff(reports: list[Path], form: str) -> int:
    if len(reports) != 2 or form not in ("text", "json"):  # noqa: PLR2004 - two reports
        hint = "audit diff A.json B.json"
        raise BadRequest("bad-diff", "audit diff compares two reports, in text or JSON", hint=hint)
    from auditor.report.comparing import DIFF_SCHEMA, compare, diff_lines, read_report

    diff = compare(*map(read_report, reports))
    if form == "json":
        print_json(DIFF_SCHEMA, diff)
    else:
        say_all(diff_lines(diff))
    return 0 if diff["same"] else 1


def _report(result: Audit, arguments: argparse.Namespace, about: dict[str, Any], status: int | None = None) -> int:
    """Print the report, and return the exit code. ``about``: what was judged, and what was left out on purpose.

    ``status``: the exit code where the findings do not say it.
    """
    if status is None:
        status = exit_status(result, FailOn(arguments.fail_on))
    about |= {"exit_code": status}
    match arguments.format:
        case "json":
            print_json(formats.SCHEMA, about | formats.json_fields(result), version=formats.VERSION)
        case "jsonl":
            for line in formats.jsonl_lines(result, about):
                say(line.decode())
        case "sarif":
            say(msgspec.json.encode(formats.sarif_fields(result, about)).decode())
        case "junit":
            say_all(formats.junit_lines(result, about))
        case _:
            say_all((*formats.about_lines(about), *formats.text_lines(result)))
    return status


def run_export(arguments: argparse.Namespace) -> int:
    """Audit and write the tables. Returns 0 whatever is found: the findings are one of them."""
    if len(arguments.reports) != 1 or arguments.parquet is None or arguments.format not in ("text", "json"):
        what = "audit export takes one PATH and --parquet DIR, and reports in text or JSON"
        raise BadRequest("bad-export", what, hint="tenure audit export PATH --parquet DIR")
    (arguments.path,) = arguments.reports
    from auditor.timeline.timeline_reader import reading_index

    from .export import export

    with closing(read_archive_of(arguments).timeline) as timeline, reading_index(arguments.db):
        rows = export(timeline, arguments.parquet)
    if arguments.format == "json":
        print_json("tenure.audit.export", {"directory": str(arguments.parquet), "rows": rows})
    else:
        for name, count in rows.items():
            say(f"{printable(str(arguments.parquet / name))}.parquet  {count:,} rows")
    return 0


def against(arguments: argparse.Namespace, tree: Tree, twin: Tree, result: Audit) -> Audit:
    """Return the audit of a tree with what another copy contradicts it in. Raises as an audit does."""
    from auditor.report.comparing import compared

    other = audit(twin, root_key=pinned(arguments.root_key), options=Options(jobs=arguments.jobs))
    if other.findings:
        note(f"{printable(str(arguments.against))} has {len(other.findings)} findings of its own: audit it too")
    return compared(result, other, tree, twin)


def run_selftest(form: str) -> int:
    """Audit the packed trees, report in text or JSON. Returns 0 where exactly what is planted was found, else 1."""
    if form not in ("text", "json"):
        raise BadRequest("bad-format", f"the selftest has no report in {form}", hint="audit --selftest [--json]")
    from . import selftest

    tried: list[selftest.Case] = []
    with Progress("selftest") as progress:
        for case in selftest.cases():
            tried.append(case)
            progress.show(len(tried), case.planted)
    if form == "json":
        print_json(selftest.SCHEMA, selftest.json_fields(tried))
    else:
        say_all(selftest.text_lines(tried))
    return 0 if all(case.passed for case in tried) and not selftest.untried(tried) else 1
