"""One finding's signed objects and keys in a tar file that somebody else can audit.

What is needed is found by trial: a few files first, then what lies around them, until the audit of the bundle itself
comes to the same finding, by the same id. So a bundle that is handed out has been audited as it is.

A bundle shows what is in it. That something is *not* in a tree cannot be shown by one: who makes a bundle chooses its
files. A finding about what is missing rests on the word of whoever made the copy.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Final

from appliance.formats.paths import BIRTH, LOCK, LOGS, MARKER, PRELOCK, SEAL, STORE
from auditor.audit import audit
from auditor.columns.events import CeilingLinked, LeaseEnded, LeaseTold
from auditor.evidence.finding import Finding
from auditor.evidence.opening import TarTree
from auditor.evidence.records import REGISTERS
from auditor.evidence.tree import Tree, name_of
from auditor.rules.result import Audit
from timeagent.console import printable
from timeagent.errors import Damaged

from .context import Context

MANIFEST: Final = "BUNDLE"
SCHEMA: Final = "tenure.bundle"
VERSION: Final = 1
MANIFEST_BYTES_MAX: Final = 1024 * 1024
_DEPTH_MAX: Final = 8
_RACK_PARTS: Final = 4
_BAG_PARTS: Final = 5


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was made, in a file that is to be read once."""

    file: IO[bytes]
    paths: tuple[str, ...]
    confirmed: bool
    """Whether its own audit comes to the finding. False: not even the whole tree in a tar file does."""
    absent: tuple[str, ...]
    """What the finding says is not there: a bundle cannot show that."""


def make_bundle(finding: Finding, tree: Tree, context: Context, root_key: bytes | None) -> Bundle:
    """Return the smallest bundle of those tried that shows the finding. Reads the tree, writes a temporary file."""
    absent = tuple(each.path for each in finding.evidence if _kind(tree, each.path) is None)
    tried: set[str] = set()
    for paths in _choices(finding, tree, context):
        chosen = sorted(path for path in paths if _kind(tree, path) is not None)
        if tried and tried.issuperset(chosen):
            continue
        tried.update(chosen)
        file = NamedTemporaryFile(suffix=".tar")  # noqa: SIM115 - handed to the caller
        try:
            _write(file, finding, tree, chosen)
            if _shows(Path(file.name), finding, root_key):
                return Bundle(file, tuple(chosen), confirmed=True, absent=absent)
        except BaseException:
            with suppress(OSError):  # of a full disk, which has been told of: what is buffered finds no room either
                file.close()
            raise
        last = file
    return Bundle(last, tuple(sorted(tried)), confirmed=False, absent=absent)


def manifest_of(tree: Tree) -> dict[str, Any] | None:
    """Return what a tree says of itself, if it is a bundle, which is a tar file. Raises Damaged for a bad manifest.

    A name that is put into somebody's copy must not make the audit silent about all the rest.
    """
    if not isinstance(tree, TarTree) or not any(name == MANIFEST for name, _ in tree.names("")):
        return None
    data = tree.read(MANIFEST, MANIFEST_BYTES_MAX) or b""
    try:
        document: dict[str, Any] = json.loads(data)
        if (document["schema"], document["version"]) == (SCHEMA, VERSION) and isinstance(document["finding"], str):
            return document
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise Damaged("bad-bundle", f"{MANIFEST} is no manifest of version {VERSION}", hint="have the bundle made again")


def shows(result: Audit, identifier: str) -> bool:
    """Whether the audit of a bundle comes to its finding, by keys that the root key vouches for."""
    # Where a trust record may be missing, what unknown keys signed counts too: then anybody makes the evidence.
    doubted = any(
        each.code == "unverifiable-trust" or (each.code == "forged-record" and each.subject.startswith("trust/"))
        for each in result.findings
    )
    found = [each for each in result.findings if each.id == identifier]
    return bool(found) and (not doubted or found[0].code in ("forged-record", "unverifiable-trust"))


def _shows(path: Path, finding: Finding, root_key: bytes | None) -> bool:
    try:
        result = audit(TarTree(path), root_key=root_key)
    except Damaged:  # nothing of what it rests on is a file that can be read
        return False
    same = any(each.id == finding.id and each.verdict is finding.verdict for each in result.findings)
    return same and shows(result, finding.id)


def _kind(tree: Tree, path: str) -> bool | None:
    """Whether a path is a directory's; None where nothing is there."""
    parent, _, name = path.rpartition("/")
    return dict(tree.names(parent)).get(name)


# What goes in.


def _choices(finding: Finding, tree: Tree, context: Context) -> Iterator[set[str]]:
    paths = {MARKER, *(path for _, register, _ in REGISTERS for _, path in tree.numbered(register))}
    for each in finding.evidence:
        paths |= {each.path, *_companions(each.path)}
    shards = {event.shard for event in context.events if isinstance(event, LeaseTold | LeaseEnded | CeilingLinked)}
    paths |= {file.path for file in tree.chains() if (file.map_number, file.shard) in shards}
    yield set(paths)
    paths |= {file.path for file in tree.ledgers() if (file.map_number, file.shard) in shards}
    for path in {path for frame in context.frames for path in (frame.file, frame.where.path)}:
        paths |= {path, *_companions(path)}
    yield set(paths)
    paths |= {file.path for file in tree.ledgers()} | {file.path for file in tree.chains()}
    yield set(paths)
    of_logs = [path.split("/") for path in paths if path.startswith(f"{LOGS}/")]
    for rack in sorted({"/".join(parts[:_RACK_PARTS]) for parts in of_logs}):
        paths |= set(tree.files_below(rack))
    yield set(paths)
    for log in {frame.log for frame in context.frames} | {parts[1] for parts in of_logs}:
        paths |= set(_everything(tree, f"{LOGS}/{log}"))
    yield set(paths)
    yield set(_everything(tree, "")) - {MANIFEST}  # a bundle that is made out of one has a manifest of its own


def _companions(path: str) -> Iterator[str]:
    """Yield what says what counts of a path in a log: birth record, the bag's lock file, the rack's seal."""
    parts = path.split("/")
    if parts[0] != LOGS or len(parts) < 2:  # noqa: PLR2004 - logs, and the name of one
        return
    yield from ("/".join([*parts[:2], name]) for name in (BIRTH, STORE))
    if len(parts) > _RACK_PARTS:
        rack = "/".join(parts[:_RACK_PARTS])
        yield from (f"{rack}/{PRELOCK}", f"{rack}/{SEAL}")
    if len(parts) > _BAG_PARTS:
        bag = "/".join(parts[:_BAG_PARTS])
        yield from (f"{bag}/{PRELOCK}", f"{bag}/{LOCK}")


def _everything(tree: Tree, directory: str, depth: int = 0) -> Iterator[str]:
    """Yield every file below a directory, and what is empty there."""
    for name, is_directory in tree.names(directory):
        path = f"{directory}/{name}" if directory else name
        if is_directory and depth < _DEPTH_MAX and tree.names(path):
            yield from _everything(tree, path, depth + 1)
        else:
            yield path


# The file.


def _write(file: IO[bytes], finding: Finding, tree: Tree, paths: list[str]) -> None:
    """Write the tar file: the same finding of the same tree gives the same bytes."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "finding": finding.id,
        "code": finding.code,
        "verdict": finding.verdict.value,
        "subject": printable(finding.subject),
        "files": len(paths),
    }
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, MANIFEST, json.dumps(document, indent=1).encode() + b"\n")
        for path in paths:
            is_directory = bool(_kind(tree, path))
            data = None if is_directory else tree.read(path)
            if is_directory or data is not None:  # what cannot be read cannot be shown either
                _add(archive, path, data)
    file.flush()


def _add(archive: tarfile.TarFile, path: str, data: bytes | None) -> None:
    """Add a file, or a directory where there are no bytes; owner, mode and time say nothing."""
    member = tarfile.TarInfo(name_of(path))
    if data is None:
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    else:
        member.size = len(data)
    archive.addfile(member, io.BytesIO(data or b""))
