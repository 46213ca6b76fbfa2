"""The commands ``audit`` and ``explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from timeagent.console import Command, Progress, note, print_json, say
from timeagent.errors import BadRequest
from timeagent.keys import parse_public_line

from .audit import audit
from .explain import explain_lines
from .load import Tree, find_root
from .report import SCHEMA, VERSION, json_fields, text_lines

if TYPE_CHECKING:
    import argparse

    from .audit import Audit


def _path_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", type=Path, help="a copy of a root, or a directory with one in it")
    parser.add_argument(
        "--root-key",
        metavar="FILE",
        type=Path,
        help="the cluster's public root key, one ssh-ed25519 line; without it the tree's own is taken",
    )
    parser.add_argument(
        "--index", metavar="FILE", type=Path, help="keep the index in this new file, for trees larger than memory"
    )


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    _path_arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("finding", metavar="FINDING", help="the id of a finding, or how it begins")
    _path_arguments(parser)


def _run(arguments: argparse.Namespace) -> tuple[Tree, Audit]:
    tree = Tree(find_root(arguments.path))
    index: Path | None = arguments.index
    if index is not None and index.exists():
        raise BadRequest("index-exists", f"{index} exists already", hint="name a new file, or remove it")
    progress = Progress("audit")
    try:
        result = audit(tree, root_key=_pinned(arguments.root_key), index_file=index, progress=progress.show)
    finally:
        progress.done()
    return tree, result


def _pinned(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as problem:
        raise BadRequest(
            "root-key-unreadable",
            f"cannot read {path}: {problem.strerror}",
            hint="name a file with one ssh-ed25519 line",
        ) from None
    line = next((line for line in text.splitlines() if line.startswith("ssh-ed25519 ")), text.strip())
    return parse_public_line(line, str(path))


def _audit(arguments: argparse.Namespace) -> int:
    _, result = _run(arguments)
    if arguments.json:
        print_json(SCHEMA, json_fields(result), version=VERSION)
    else:
        for line in text_lines(result):
            say(line)
    return result.exit_status


def _explain(arguments: argparse.Namespace) -> int:
    tree, result = _run(arguments)
    wanted = arguments.finding.lower()
    chosen = [finding for finding in result.findings if finding.id.startswith(wanted)]
    if not chosen or not wanted:
        raise BadRequest(
            "no-such-finding",
            f"the audit of {arguments.path} has no finding {arguments.finding}; it has {len(result.findings)}",
            hint="leasehold audit PATH lists them with their ids",
        )
    if len(chosen) > 1:
        note(f"{arguments.finding} is the beginning of {len(chosen)} findings")
    for position, finding in enumerate(chosen):
        if position:
            say()
        for line in explain_lines(finding, tree):
            say(line)
    return 1


COMMANDS: Final[dict[str, Command]] = {
    "audit": Command(
        "judge a copy of a tree: what was violated, when and by whom, or that nothing was", _audit_arguments, _audit
    ),
    "explain": Command("show one finding's evidence in words", _explain_arguments, _explain),
}
