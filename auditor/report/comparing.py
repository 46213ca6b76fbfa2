"""Two copies of one tree, held against each other, and two reports of ``audit --json``.

What is written once is the same in every copy. A copy may be older than the other, lack files, or end in the middle of
an append; it may not say something else. Where both hold, and differ, the tree has two histories: it was restored and
went on twice, or two servers took the same name. Of two reports it is told which findings came, went, or are judged
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from appliance.formats.chains import open_ceiling
from appliance.formats.closed import PACK, open_lock, open_seal
from appliance.formats.framing import PIECE_BYTES_MAX, Piece
from appliance.formats.paths import (
    BIRTH,
    LOCK,
    LOGS,
    MARKER,
    RETAINED,
    SEAL,
    STORE,
    TMP,
    parse_data_name,
    parse_record_name,
)
from auditor.evidence.finding import Evidence, Finding, Times, Verdict, found, in_order
from auditor.evidence.tree import SEAL_FILE_BYTES_MAX, TOPS, Rest, Tree
from timeagent.console import printable
from timeagent.errors import BadRequest, Damaged
from timeagent.signedtime import SignedTime
from timeagent.units import rfc3339

from ..rules.history import RECORDS_KEPT, SHARDS
from ..rules.result import Audit, with_findings
from .formats import SCHEMA

CHUNK_BYTES: Final = 1024 * 1024
DEPTH_MAX: Final = 5
"""Log, day, rack, bag, file."""
_ONCE: Final = frozenset({LOCK, SEAL, PACK, BIRTH, STORE})
_DAMAGED: Final = frozenset(
    {
        *("damaged-record", "damaged-lock", "damaged-seal", "damaged-ledger", "damaged-frame", "damaged-pack"),
        *("forged-record", "forged-time", "forged-witness", "altered-file", "misplaced-pack", "overwritten-lock"),
        *("ended-key", "unreadable"),
    }
)
"""Findings that say of a file itself that it is not what was written."""


def compared(one: Audit, other: Audit, tree: Tree, twin: Tree) -> Audit:
    """Return the audit of a copy with what it and another copy contradict each other in.

    A file that either audit calls damaged is told there, and is no fork. Raises BadRequest for another cluster's tree.
    """
    if one.cluster_id != other.cluster_id:
        raise BadRequest(
            "another-cluster",
            f"the two trees are of cluster {one.cluster_id.hex()} and {other.cluster_id.hex()}",
            hint="compare two copies of one tree",
        )
    damaged = [each for audit in (one, other) for each in audit.findings if each.code in _DAMAGED]
    told = {place.path for each in damaged for place in each.evidence[:1]}
    forks = [each for each in contradictions(tree, twin) if each.subject not in told]
    return with_findings(one, in_order([*one.findings, *forks]))


def contradictions(tree: Tree, twin: Tree) -> Iterator[Finding]:
    """forked-history: yield whatever is written once, or only appended to, and differs."""
    yield from _file(tree, twin, MARKER)
    for top in sorted(TOPS):
        yield from _directory(tree, twin, top, 0)


def _directory(tree: Tree, twin: Tree, directory: str, depth: int) -> Iterator[Finding]:
    theirs = dict(twin.names(directory))
    mine = dict(tree.names(directory))
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name] != theirs[name] or (depth == 1 and name == TMP):
            continue
        path = f"{directory}/{name}"
        if not mine[name]:
            yield from _file(tree, twin, path)
        elif depth < DEPTH_MAX:
            yield from _directory(tree, twin, path, depth + 1)
    yield from _sealed_elsewhere(tree, twin, directory, mine, theirs, "the other copy")
    yield from _sealed_elsewhere(twin, tree, directory, theirs, mine, "this copy")


def _file(tree: Tree, twin: Tree, path: str) -> Iterator[Finding]:
    name = path.rpartition("/")[2]
    data = parse_data_name(name)
    grows = path.startswith("ledger/") or (data is not None and data.suffix == "log")
    numbered = not path.startswith((LOGS, "ledger")) and parse_record_name(name) is not None
    once = name in _ONCE or data is not None or numbered or path == MARKER  # of nobody's files nobody says that
    if not grows and not once:
        return
    sizes = tree.size(path), twin.size(path)
    at = _differs_at(tree, twin, path, min(sizes))
    if at is None:  # the one is how the other begins: it is not there, was cut short, or had not grown yet
        return
    if path != MARKER and not all(_whole_at(copy, path, at) for copy in (tree, twin)):
        return
    if path.count("/") == DEPTH_MAX and any(_swept(copy, path.rsplit("/", 2)[0]) for copy in (tree, twin)):
        return
    what = "they are only appended to" if grows else "it is written once"
    reason = f"the two copies of {path} ({sizes[0]} and {sizes[1]} bytes) differ from offset {at} on; {what}"
    verdict = Verdict.INDETERMINATE if _pruned(tree, twin, path) else None
    where = [Evidence(path, 0, sizes[0])]
    yield found("forked-history", path, reason, where, _times(tree, twin, path), verdict=verdict)


def _swept(copy: Tree, rack: str) -> bool:
    """Whether the directories of a rack's bags are void: swept, and perhaps made again. Its seal says what counts."""
    if {PACK, RETAINED} & {name for name, _ in copy.names(rack)}:
        return True
    try:
        seal, _ = open_seal(copy.read(f"{rack}/{SEAL}", SEAL_FILE_BYTES_MAX + 1) or b"", rack)
        return not seal.lists_files()
    except Damaged:
        return False


def _pruned(tree: Tree, twin: Tree, path: str) -> bool:
    """Whether a record's slot in its chain may have been free, and taken again, by the time of one of the copies."""
    if not path.startswith(SHARDS):
        return False
    chain, _, name = path.rpartition("/")
    newest = max(number for copy in (tree, twin) for number, _ in copy.numbered(chain))
    return (parse_record_name(name) or newest) <= newest - RECORDS_KEPT


def _whole_at(copy: Tree, path: str, at: int) -> bool:
    """Whether the record that holds an offset is as it was written: what no audit read may be damaged too."""
    each = next((each for each in copy.pieces(path) if isinstance(each, Rest) or each.end > at), None)
    return isinstance(each, Piece)


def _differs_at(tree: Tree, twin: Tree, path: str, size: int) -> int | None:
    for start in range(0, size, CHUNK_BYTES):
        length = min(CHUNK_BYTES, size - start)
        mine, theirs = tree.read_range(path, start, length), twin.read_range(path, start, length)
        if mine is None or theirs is None:
            return None  # said to be unreadable by its own audit
        if mine != theirs:
            at = next((n for n, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
            return None if at is None else start + at  # None: one was cut short while it was read
    return None


def _sealed_elsewhere(
    open_one: Tree, sealed_one: Tree, rack: str, names: dict[str, bool], sealed: dict[str, bool], which: str
) -> Iterator[Finding]:
    """forked-history: a bag was closed otherwise than its rack was sealed with in the copy that went on longer."""
    if SEAL not in sealed or SEAL in names:
        return
    try:
        seal, _ = open_seal(sealed_one.read(f"{rack}/{SEAL}", SEAL_FILE_BYTES_MAX + 1) or b"", rack)
    except Damaged:
        return
    for entry in seal.entries:
        path = f"{rack}/{entry.bag}/{LOCK}"
        lock = open_one.read(path, PIECE_BYTES_MAX + 1) if names.get(entry.bag) else None
        if lock is not None and lock != entry.lock:
            reason = f"{path} is another lock file than the one that {which} sealed its rack with"
            yield found("forked-history", path, reason, [Evidence(path, 0, len(lock)), Evidence(f"{rack}/{SEAL}")])


def _times(tree: Tree, twin: Tree, path: str) -> Times:
    """Return when each copy's file was signed, where it says so."""
    times = {}
    for copy, which in ((tree, "this copy's"), (twin, "the other copy's")):
        token = _token(path, copy.read(path, PIECE_BYTES_MAX) or b"")
        if token is not None:
            said = token.interval.earliest, token.interval.latest
            times[f"{which} file, {rfc3339(token.midpoint_ns)}"] = said
    return times


def _token(path: str, data: bytes) -> SignedTime | None:
    name = path.rpartition("/")[2]
    try:
        if name == LOCK:
            return open_lock(data, path)[1].signed_time(path)
        if name == SEAL:
            return open_seal(data, path)[1].signed_time(path)
        if path.startswith("shards/"):
            return SignedTime.decode(open_ceiling(data, path)[0].time, path)
    except Damaged:
        pass
    return None


# Two reports.


DIFF_SCHEMA: Final = "tenure.audit.diff"
REPORT_BYTES_MAX: Final = 1024 * 1024 * 1024
_COMPARED: Final = {"verdict", "severity", "explanation", "times"}
_WORDS: Final = ("id", "code", "subject", "verdict", "explanation")


def read_report(path: Path) -> dict[str, Any]:
    """Read a report. Raises BadRequest that names the file for what is none."""
    hint = "name what audit --json wrote"
    try:
        if path.stat().st_size > REPORT_BYTES_MAX:
            raise BadRequest("not-a-report", f"{path} is larger than any report", hint=hint)
        document = msgspec.json.decode(path.read_bytes())
    except OSError as problem:
        raise BadRequest("report-unreadable", f"cannot read {path}: {problem.strerror}", hint=hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise BadRequest("not-a-report", f"{path} is no JSON: {problem}", hint=hint) from None
    if not isinstance(document, dict) or not _is_report(document):
        raise BadRequest("not-a-report", f"{path} is no {SCHEMA} of version 1", hint=hint)
    return document


def _is_report(document: dict[str, Any]) -> bool:
    findings, summary = document.get("findings"), document.get("summary")
    return (
        (document.get("schema"), document.get("version")) == (SCHEMA, 1)
        and isinstance(summary, dict)
        and isinstance(findings, list)
        and all(
            isinstance(each, dict)
            and each.keys() >= _COMPARED
            and all(isinstance(each.get(key), str) for key in _WORDS)
            for each in findings
        )
    )


def compare(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Compare two reports by the ids of their findings, which depend on code, subject and evidence only.

    Returns what JSON shows: which findings ``came`` and ``went``, and which are judged or explained otherwise.
    """
    old = {each["id"]: each for each in before["findings"]}
    new = {each["id"]: each for each in after["findings"]}
    one, other = before["summary"], after["summary"]
    found = {
        "came": [each for name, each in new.items() if name not in old],
        "went": [each for name, each in old.items() if name not in new],
        "changed": [
            {"before": old[name], "after": each}
            for name, each in new.items()
            if name in old and any(old[name][key] != each[key] for key in _COMPARED)
        ],
        "summary": {
            name: {"before": one.get(name), "after": other.get(name)}
            for name in sorted(one.keys() | other.keys())
            if one.get(name) != other.get(name)
        },
    }
    same_cluster = before.get("cluster_id") == after.get("cluster_id")
    return {"same": same_cluster and not any(found.values()), "same_cluster": same_cluster, **found}


def diff_lines(diff: dict[str, Any]) -> Iterator[str]:
    """Yield the difference in words; last a line that counts it."""
    return map(printable, _lines(diff))


def _lines(diff: dict[str, Any]) -> Iterator[str]:
    if not diff["same_cluster"]:
        yield "the reports are of two clusters"
    for sign, findings in (("+", diff["came"]), ("-", diff["went"])):
        for each in findings:
            verdict, what = str(each["verdict"]).upper(), f"{each['code']}: {each['subject']}"
            yield f"{sign} {each['id']}  {verdict:<13}  {what}"
    for pair in diff["changed"]:
        before, after = pair["before"], pair["after"]
        what = f"{after['code']}: {after['subject']}"
        yield f"~ {after['id']}  {before['verdict']} -> {after['verdict']}  {what}"
        if before["explanation"] != after["explanation"]:
            yield f"    was: {before['explanation']}"
            yield f"    is:  {after['explanation']}"
    for name, counts in diff["summary"].items():
        yield f"  {name}: {counts['before']} -> {counts['after']}"
    yield f"{len(diff['came'])} findings came, {len(diff['went'])} went, {len(diff['changed'])} changed"
