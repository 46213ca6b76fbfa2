"""What every command that audits a tree shares: its arguments, and the run with its progress."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from auditor.audit import Options, audit, audit_with_timeline
from auditor.evidence.opening import open_tree
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.rules.result import Audit
from timeagent.clock import SystemClock
from timeagent.console import Argument, Progress, argument, printable, together
from timeagent.errors import BadRequest
from timeagent.keys import parse_public_line
from timeagent.units import INSTANT_MAX, SECOND, parse_instant, rfc3339

from ..columns.parts import JOBS_MAX, Narrowing

if TYPE_CHECKING:
    from auditor.explain.archive import Archive


def _jobs(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= JOBS_MAX):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of processes from 1 to {JOBS_MAX}")
    return int(text)


_READ: Final = together(
    argument(
        "--root-key FILE",
        "the cluster's public root key, one ssh-ed25519 line; without it the tree's own is taken",
        type=Path,
    ),
    argument(
        "--store COPY",
        "a store that logs of the tree are in, or a copy of it, named as PATH; repeatable",
        type=Path,
        action="append",
        default=[],
    ),
)
_KEPT: Final = together(
    argument(
        "--db FILE",
        "keep what was read in this file: an interrupted audit goes on, and a second one reads only what changed",
        type=Path,
    ),
    argument("--reread", "with --db: read everything again"),
    argument(
        "--no-payload-hash",
        "hash no data files: a tenth faster, blind to what was altered in them; exits with 3 if nothing is found",
    ),
    argument("--jobs N", "how many processes read (default: as many as are worth it)", type=_jobs, default=0),
    argument("--since TIME", "read no rack that ends before this (RFC 3339)"),
    argument("--until TIME", "read no rack that begins after this"),
    argument("--log NAME", "read this log only; repeatable", action="append", default=[]),
    argument(
        "--domain NAME",
        "judge the leases of this domain only; NAME* for all that begin so; repeatable",
        action="append",
        default=[],
    ),
)


def path_arguments(*, index: bool = True, needed: bool = True) -> Argument:
    """Return what adds PATH, and how it is read. ``index``: whether that is kept; ``needed``: PATH must be there."""
    what = "a root, a copy or a part of one, or an uncompressed tar file of any of them"
    path = argument("path PATH", what, type=Path, nargs=None if needed else "?")
    return together(path, _READ, _KEPT) if index else together(path, _READ)


def narrowing(arguments: argparse.Namespace) -> Narrowing:
    """Return what the arguments leave of the tree. Raises BadRequest where that is nothing: it looks like acquittal."""
    since = 0 if arguments.since is None else parse_instant(arguments.since)
    until = INSTANT_MAX if arguments.until is None else parse_instant(arguments.until)
    if since >= until:
        what = f"--since {rfc3339(since)} is not before --until {rfc3339(until)}: nothing would be read"
        raise BadRequest("empty-range", what, hint="exchange the two")
    return Narrowing(
        since_ns=since,
        until_ns=until,
        logs=tuple(sorted(arguments.log)),
        domains=tuple(sorted(arguments.domain)),
    )


def run_audit(arguments: argparse.Namespace) -> tuple[Tree, Audit]:
    """Audit the tree that the arguments name. Raises BadRequest, Damaged where there is no tree."""
    tree = _opened(arguments)
    return tree, _audited(arguments, tree)


def read_archive_of(arguments: argparse.Namespace) -> Archive:
    """Audit the tree that the arguments name, and return it with the timeline of all of it. Raises as ``run_audit``.

    Reads the tree once, and once more where only a part of it is to be audited.
    """
    from auditor.explain.archive import Archive
    from auditor.timeline.timeline_reader import open_audited

    tree, asked, root_key = _opened(arguments), narrowing(arguments), pinned(arguments.root_key)
    if arguments.db is not None and asked.whole:
        return Archive(tree, _audited(arguments, tree), open_audited(arguments.db).timeline, root_key=root_key)
    part, signatures = None if asked.whole else _audited(arguments, tree), Signatures()
    with AuditProgress() as progress:
        result, timeline = audit_with_timeline(
            tree,
            root_key=root_key,
            signatures=signatures,
            options=Options(jobs=arguments.jobs, hashed=not arguments.no_payload_hash),
            findings=part.findings if part else None,
            progress=progress.show_part,
        )
    return Archive(tree, part or result, timeline, signatures, root_key)


def _opened(arguments: argparse.Namespace) -> Tree:
    if arguments.reread and arguments.db is None:
        what = "--reread is of --db: without one nothing was kept that could be believed, and everything is read anyway"
        raise BadRequest("no-db", what, hint="leave out --reread, or name the index with --db FILE")
    narrowing(arguments)  # what cannot be asked for is refused before anything is read
    tree = open_tree(arguments.path, arguments.store)
    there = tree.logs()
    absent = next((log for log in arguments.log if log not in there), None)
    if absent is not None:
        hint = f"it holds {', '.join(there) or 'none'}"
        raise BadRequest("no-such-log", f"{arguments.path} holds no log {absent!r}", hint=hint)
    return tree


def _audited(arguments: argparse.Namespace, tree: Tree) -> Audit:
    options = Options(
        jobs=arguments.jobs,
        index_file=arguments.db,
        reread=arguments.reread,
        narrowing=narrowing(arguments),
        hashed=not arguments.no_payload_hash,
        timeline=arguments.db is not None,
    )
    with AuditProgress() as progress:
        return audit(tree, root_key=pinned(arguments.root_key), options=options, progress=progress.show_part)


def pinned(path: Path | None) -> bytes | None:
    """Return the raw root key in a file; None where none is named. Raises BadRequest."""
    if path is None:
        return None
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as problem:
        hint = "name a file with one ssh-ed25519 line"
        raise BadRequest("root-key-unreadable", f"cannot read {path}: {problem.strerror}", hint=hint) from None
    line = next((line for line in text.splitlines() if line.startswith("ssh-ed25519 ")), text.strip())
    return parse_public_line(line, str(path))


_WIDTH: Final = 20


class AuditProgress(Progress):
    """The progress of one audit. Time left is reckoned from the parts that are done."""

    def __init__(self) -> None:
        super().__init__("audit")
        self._clock = SystemClock()
        self._begun_ns = self._clock.monotonic_ns()

    def show_part(self, done: int, total: int, messages: int, part: str) -> None:
        spent_ns = max(1, self._clock.monotonic_ns() - self._begun_ns)
        self.show(done, progress_text(done, total, messages, spent_ns, part))


def progress_text(done: int, total: int, messages: int, spent_ns: int, part: str) -> str:
    """Return what follows the number of parts that are done."""
    filled = _WIDTH * done // max(1, total)
    left = spent_ns * (total - done) // max(1, done) // SECOND
    minutes, seconds = divmod(left, 60)
    bar = "#" * filled + "." * (_WIDTH - filled)
    rate = messages * SECOND // spent_ns
    return (
        f"of {total} parts [{bar}] {messages:,} messages, {rate:,}/s, {minutes}:{seconds:02d} left, {printable(part)}"
    )
