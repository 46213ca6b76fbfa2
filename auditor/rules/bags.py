"""Rules about bags, racks and packs: what their lock files and seals say, against what is there.

Every rack from a log's birth on is sealed, in order, whether anybody wrote to it or not. A rack without a seal that is
older than a sealed one has therefore lost it; so has one without a directory. Where everything stands in a pack follows
from the seal alone, so that a damaged head or index costs no message: each file is judged by its own digest, and head
and index are made again from the files and compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from appliance.formats.closed import (
    HEAD_BYTES_MAX,
    PACK,
    LockEntry,
    LockFile,
    PackHead,
    PackMaker,
    RackSeal,
    open_lock,
    open_pack,
)
from appliance.formats.framing import PIECE_BYTES_MAX, Kind, Piece, measure, piece_at, pieces
from appliance.formats.paths import LOCK, SEAL, Bag, DataName, Grid, Rack, parse_data_name, record_name
from appliance.formats.stamped import Stamped
from auditor.evidence.signatures import FrameEvidence
from auditor.evidence.tree import RackListing, Tree
from timeagent.canonical import decode
from timeagent.console import counted
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime, r2_holds
from timeagent.units import rfc3339

from ..evidence.finding import Check, Evidence, Finding, Times, Verdict, asked, found

CLOSED: Final = {"bag": "closed", "rack": "sealed"}
NO_PACK: Final = "nor in a pack of its rack"
"""Said of what is missing: a copy that lists a rack before it is packed, and reads it afterwards, has neither."""


def misplaced(record: LockFile | RackSeal, place: Bag | Rack, cluster_id: bytes) -> str | None:
    """Return why a lock file, or a seal, is not that of this bag, or rack; None where it is."""
    what, own = ("lock file", record.bag) if isinstance(record, LockFile) else ("seal", record.rack)
    if record.cluster_id != cluster_id:
        return f"it is of another cluster, {record.cluster_id.hex()}"
    if (own, record.log) != (place.path, place.log):
        return f"it is the {what} of {own} of log {record.log}"
    names = [entry.name for entry in record.entries] if isinstance(record, LockFile) else []
    foreign = next((name for name in names if "/" in name or name in ("", ".", "..")), None)
    return None if foreign is None else f"it lists {foreign!r}, which is no file name"


def lock_of(raw: bytes, path: str, bag: Bag, cluster_id: bytes) -> tuple[LockFile, Stamped]:
    """Open the lock file of a bag. Raises Damaged for bytes that are none, or another bag's."""
    lock, stamped = open_lock(raw, path)
    if wrong := misplaced(lock, bag, cluster_id):
        raise Damaged("record-misplaced", wrong)
    return lock, stamped


def closing_time(
    what: str, stamp: SignedTime | None, end_ns: int, where: Evidence, late: Iterable[Evidence]
) -> Iterator[Finding]:
    """premature-lock: closed when its span was surely not over. ``late``: files that came after, and are void."""
    if stamp is not None and stamp.interval.latest < end_ns:
        lost = sorted(late)
        reason = f"the {what} was closed at {rfc3339(stamp.midpoint_ns)}, before its end at {rfc3339(end_ns)}"
        reason += f"; that made {counted(len(lost), 'file')} void" if lost else ""
        times: Times = {"the stamp": stamp, "the end": end_ns}
        verdict = Verdict.VIOLATION if lost else None
        title = f"a {what} was {CLOSED[what]} before its time"
        yield found("premature-lock", where.path, reason, [where, *lost], times, verdict=verdict, title=title)


def seal_after_lock(lock: SignedTime | None, seal: SignedTime | None, bag: Bag, where: Evidence) -> Iterator[Finding]:
    """r2-breach: a seal's signed time covers the lock files in it."""
    if lock is None or seal is None or r2_holds(lock, seal, effect_covers_cause=True):
        return
    reason = (
        f"the rack was sealed, by its seal's signed time, surely before the lock file of {bag.path} in it was signed"
    )
    title = "a rack was sealed before a bag in it was closed"
    yield found("r2-breach", bag.path, reason, [where], {"the lock file": lock, "the seal": seal}, title=title)


def file_checks(
    entry: LockEntry, data: bytes | None, *, readable: bool = True, digest: bytes | None = None
) -> Iterator[Check]:
    """Yield the checks of a data file against the list: there, whole, unchanged. ``data``: None if it is not there.

    ``readable``: whether it would be known if it were; ``digest``: of the listed bytes, from who knows it already.
    """
    if data is None:
        value, holds = ("not there", False) if readable else ("cannot be read", None)
        yield Check("lost-file", "file is there", value, f"{entry.size} bytes", holds)
        return
    yield Check("lost-file", "file is there", "there", f"{entry.size} bytes", holds=True)
    yield asked("altered-file", len(data), entry.size, str)
    now = digest or _digest(data, entry.size)
    yield Check("altered-file", "digest", now, entry.digest, now == entry.digest, words=_shortened)


def _digest(data: bytes, size: int) -> bytes | None:
    """Return the digest of so many bytes of a file; None where they are not whole pieces."""
    _, effective, digest = measure(data[:size])
    return digest if effective == size else None


def _shortened(digest: bytes | None) -> str:
    return "no whole frames" if digest is None else f"{digest.hex()[:16]}…"


def same_lock(data: bytes, sealed: bytes) -> Check:
    """overwritten-lock: the lock file of a bag is the one that its rack was sealed with, which counts."""
    value = "the same" if data == sealed else "other bytes"
    return Check("overwritten-lock", "as the rack was sealed with", value, "the same bytes", data == sealed)


def in_list(*, listed: bool) -> Check:
    """late-writer: what was not there when its bag was closed is void."""
    return Check("late-writer", "in the bag's list", "listed" if listed else "not listed", "listed", listed)


def listed_file(
    entry: LockEntry,
    path: str,
    data: bytes | None,
    size: int,
    lock: Evidence,
    closed: SignedTime | None,
    packed_at: tuple[str, int] | None = None,
    *,
    digest: bytes | None = None,
) -> Iterator[Finding]:
    """lost-file, altered-file, and late-writer for bytes beyond the listed size. ``lock``: where it is listed.

    ``size``: of the whole file, of which ``data`` is what was read. ``packed_at``: pack and offset, where it stands in
    one. ``digest``: of the listed bytes, from who knows it already.
    """
    times: Times = {} if closed is None else {"the closing": closed}
    broken = next((check for check in file_checks(entry, data, digest=digest) if not check.holds), None)
    if data is None:
        assert broken is not None
        reason = f"the bag was closed with {path} ({entry.size} bytes); it is not there, {NO_PACK}"
        title = "a file that its bag was closed with is missing"
        yield broken.finding(path, reason, [Evidence(path), lock], times, title=title)
        return
    where = [Evidence(path, 0, size) if packed_at is None else Evidence(*packed_at, size)]
    if packed_at is not None:
        path = f"{packed_at[0]}, offset {packed_at[1]}, {path}"
    if broken is not None and len(data) < entry.size:
        reason = f"{path} has {len(data)} bytes; its bag was closed with {entry.size}"
        yield broken.finding(path, reason, [*where, lock], times)
    elif broken is not None:
        now = broken.found
        reason = (
            f"the first {entry.size} bytes of {path} are not those that its bag was closed with: "
            f"{'they are no whole frames' if now is None else f'their digest is {now.hex()}'}, "
            f"and the list has {entry.digest.hex()}"
        )
        yield broken.finding(path, reason, [*where, lock], times)
    elif len(data) > entry.size and not _torn_append(path, data[entry.size :], size - entry.size):
        extra = max(size, len(data)) - entry.size
        reason = f"{path} has {extra} bytes beyond the {entry.size} that its bag was closed with: they are void"
        title = "the end of a file came too late for its bag, and is void"
        yield found("late-writer", path, reason, [Evidence(path, entry.size, extra), lock], times, title=title)


def _torn_append(path: str, rest: bytes, extra: int) -> bool:
    """Whether this is what a writer leaves that died in an append: less than a frame, in a file that is appended to.

    ``extra``: how many bytes follow what was listed, of which ``rest`` was read.
    """
    name = parse_data_name(path.rpartition("/")[2])
    return name is not None and name.suffix == "log" and extra < PIECE_BYTES_MAX and not pieces(rest)[0]


def unlisted_files(files: Iterable[Evidence], lock: Evidence, closed: SignedTime | None) -> Iterator[Finding]:
    """late-writer: data files that the bag was not closed with."""
    times: Times = {} if closed is None else {"the closing": closed}
    for file in files:
        reason = f"{file.path} is not among the files that its bag was closed with: it is void"
        title = "a file came too late for its bag, and is void"
        yield in_list(listed=False).finding(file.path, reason, [file, lock], times, title=title)


def ghost_bag(path: str, files: Iterable[Evidence], seal: Evidence) -> Iterator[Finding]:
    """ghost-bag: a directory that the rack's seal does not know, with files in it."""
    if evidence := list(files):
        reason = f"{path} is not among the bags that its rack was sealed with; its {len(evidence)} files are void"
        yield found("ghost-bag", path, reason, [*evidence, seal])


def hidden_bag(
    bag: Bag,
    lock: LockFile,
    stamps: tuple[SignedTime | None, SignedTime | None],
    sealable_ns: int,
    where: list[Evidence],
) -> Iterator[Finding]:
    """hidden-bag: it had been closed before its rack could be sealed, and whoever sealed the rack left it out.

    ``sealable_ns``: before which nobody begins to seal. Who closes a bag lists it before its lock file is signed, so
    that the directory was there when the rack was listed. ``stamps``: of lock file and seal. A seal that is itself of
    an earlier time says nothing here: its rack was sealed too early, and what came later is void.
    """
    stamp, sealed = stamps
    if stamp is None or sealed is None or not lock.entries:
        return
    if stamp.interval.latest >= sealable_ns or sealed.interval.latest < sealable_ns:
        return
    reason = (
        f"{bag.path} was closed at {rfc3339(stamp.midpoint_ns)} with {len(lock.entries)} files, and its rack was "
        f"sealed without it; nobody lists a rack to seal it before {rfc3339(sealable_ns)}"
    )
    yield found("hidden-bag", bag.path, reason, where, {"the lock file": stamp, "the seal": sealed})


def pack_without_seal(rack: Rack) -> Iterator[Finding]:
    """lost-file: a pack is made from its rack's seal, minutes after it. A copy that was broken off may lack it."""
    pack, seal = Evidence(f"{rack.path}/{PACK}"), Evidence(f"{rack.path}/{SEAL}")
    reason = f"{pack.path} was made from a seal, and {seal.path} is not there: nobody can say what the pack has to hold"
    yield found("lost-file", seal.path, reason, [seal, pack], title="the seal of a packed rack is missing")


def missing_prelock(path: str, what: str) -> Iterator[Finding]:
    """missing-prelock: by it a late writer learns that closing has begun."""
    reason = f"{path} is not there, and the {what}: whoever closes makes it first, and nobody deletes it before that"
    closed = what.partition(" ")[0]
    title = f"a {closed} was {CLOSED[closed]}, and its prelock is missing"
    yield found("missing-prelock", path, reason, [Evidence(path)], title=title)


def filled_prelock(path: str, size: int) -> Iterator[Finding]:
    """damaged-record: a prelock is a name, and holds nothing."""
    if size:
        reason = f"{path} holds {size} bytes; a prelock is empty"
        yield found("damaged-record", path, reason, [Evidence(path, 0, size)], title="a prelock is not empty")


def foreign_files(directory: str, names: Iterable[str]) -> Iterator[Finding]:
    """foreign-file: files under names that mean nothing here, all of a directory at once."""
    places = [Evidence(f"{directory}/{name}".removeprefix("/")) for name in names]
    if places:
        what = "a file that is" if len(places) == 1 else f"{len(places)} files that are"
        reason = f"{directory or 'the root'} holds {what} nobody's, {places[0].path}: nothing reads it"
        title = "a file is nobody's: nothing reads it" if len(places) == 1 else ""
        yield found("foreign-file", directory or ".", reason, places, title=title)


def gone(rack: Rack, files: int, *, by_retention: bool) -> str:
    said = (
        "Retention says that it deleted the pack: what it held is not audited"
        if by_retention
        else "retention, which deletes old packs, did not say that it was here before the rack was copied"
    )
    return (
        f"{rack.path} was sealed with {files} files, for timestamps from {rfc3339(rack.start_ns)} until "
        f"{rfc3339(rack.end_ns)}; neither its bags nor a pack are there. {said}"
    )


def frame_place(evidence: FrameEvidence, name: DataName | None, bag: Bag, lock: LockFile) -> Iterator[Finding]:
    """damaged-frame: a frame says where it belongs."""
    head, path = evidence.frame.head, evidence.where.path
    if name is None:
        reason = f"{path} holds a frame under a name that is no data file's"
        title = "a listed file with a frame has no data file's name"
        yield found("damaged-frame", path, reason, [evidence.where], title=title)
    elif (head.cluster_id, head.log, head.writer) != (lock.cluster_id, bag.log, name.writer):
        reason = (
            f"{path} holds frame {head.sequence} of {head.writer} ({head.incarnation.hex()}) "
            f"for log {head.log} of cluster {head.cluster_id.hex()}"
        )
        title = "a listed file holds a frame of another place"
        yield found("damaged-frame", path, reason, [evidence.where], title=title)


def stale_lock(evidence: FrameEvidence, kind: Kind, number: int, limit: int, lock_where: Evidence) -> Finding:
    """stale-lock: the closer has not looked for the newest record after it had listed the bag."""
    word, path = kind.name.lower(), evidence.where.path
    reason = f"the lock file names {word} record {limit}; a frame that it lists was written under {number}"
    return found("stale-lock", f"{path}, {word} record {limit}", reason, [lock_where, evidence.where])


def unknown_record(evidence: FrameEvidence, kind: Kind, number: int) -> Finding:
    """unknown-record: a frame was written under a record that nobody had published."""
    word, path, head = kind.name.lower(), evidence.where.path, evidence.frame.head
    reason = f"frame {head.sequence} of {head.writer} names {word} record {number}, which there was not"
    return found("unknown-record", f"{path}, {word} record {number}", reason, [evidence.where])


def missing_record(kind: Kind, number: int) -> Finding:
    """unverifiable-trust and unverifiable-policy: a bag or a frame is judged by a record that is not in the copy."""
    word, path = kind.name.lower(), f"{kind.name.lower()}/{record_name(number)}"
    instead = "others were used instead" if kind is Kind.TRUST else "what it allows is not checked"
    reason = f"messages are judged by {word} record {number}, which is not there; {instead}"
    return found(f"unverifiable-{word}", path, reason, [Evidence(path)])


@dataclass(frozen=True, slots=True)
class SealFacts:
    """A rack's seal, read."""

    record: RackSeal
    locks: dict[str, bytes]
    """Of each of its bags by name the lock file."""
    where: Evidence
    token: SignedTime | None
    raw: bytes
    """All bytes of its file."""


class SealOrder:
    """The racks of one log as they are walked, oldest first."""

    def __init__(self, tree: Tree, grid: Grid) -> None:
        """Expect the rack that the log was born in."""
        self._tree = tree
        self._grid = grid
        self._expected = grid.rack(grid.first_ns)
        self._open: list[tuple[Rack, Rack | None]] = []
        """Since the last sealed rack: one without a seal, or the first of a stretch that is not there and its end."""

    def take(self, rack: Rack, seal: Evidence | None, *, has_seal: bool) -> Iterator[Finding]:
        """Take the next rack. ``seal``: where its seal is, if it holds; ``has_seal``: whether there is a file."""
        if rack.start_ns < self._expected.start_ns:
            return
        if rack.start_ns > self._expected.start_ns:
            self._open.append((self._expected, rack))
        if not has_seal and rack.path not in self._tree.unreadable:
            self._open.append((rack, None))
        self._expected = self._grid.next_rack(rack)
        if seal is None:
            return
        for first, end in self._open:
            # Looked at again: in a tree that is still written to it may have been sealed meanwhile.
            sealed = any(name == SEAL for name, _ in self._tree.names(first.path))
            if not sealed and not self._tree.hides(first.path):
                yield _missing(first, end, rack, seal)
        self._open.clear()


def _missing(first: Rack, end: Rack | None, sealed: Rack, seal: Evidence) -> Finding:
    """lost-file: indeterminate, because a copy may have passed by before the racks were sealed."""
    path = f"{first.path}/{SEAL}"
    what = f"{first.path} has no seal" if end is None else f"the racks from {first.path} up to {end.path} are not there"
    reason = (
        f"{what}, and {sealed.path} has one; racks are sealed in order. It was taken out, or the copy was made while "
        "they were being sealed"
    )
    title = "the seal of a rack is missing" if end is None else "sealed racks are missing"
    return found("lost-file", path, reason, [Evidence(path), seal], verdict=Verdict.INDETERMINATE, title=title)


def wrong_inside(seal: RackSeal) -> str | None:
    """Return which name in a seal is a path, which could lead out of the tree by somebody's link; None if none is.

    Raises Damaged for a lock file in it that is none.
    """
    locks = [open_lock(entry.lock, f"the lock file of {entry.bag} in the seal")[0] for entry in seal.entries]
    names = (name for entry, lock in zip(seal.entries, locks, strict=True) for name in (entry.bag, *lock.by_name()))
    path = next((name for name in names if "/" in name), None)
    return None if path is None else f"it lists {path!r}, which is no file name"


def first_unlisted(grid: Grid, rack: Rack, locks: Mapping[str, bytes]) -> int | None:
    """Return where the first bag of a sealed rack begins that its seal does not list; None where it lists all."""
    start = max(rack.start_ns, grid.first_ns)
    while start < rack.end_ns:
        bag = grid.bag(start)
        if bag.name not in locks:
            return start
        start = bag.end_ns
    return None


class RackPack:
    def __init__(self, tree: Tree, listing: RackListing, seal_raw: bytes, *, hashed: bool) -> None:
        """Take the bytes of a seal that holds. Touches nothing yet. ``hashed``: hash all files, and check the index."""
        self._tree = tree
        self.path = f"{listing.rack.path}/{PACK}"
        self._maker = PackMaker(seal_raw, f"{listing.rack.path}/{SEAL}")
        self._at: dict[tuple[str, str], tuple[int, int]] = {}
        offset = len(self._maker.head)
        for number, each in enumerate(self._maker.listed):
            self._at[each.bag, each.entry.name] = (number, offset)
            offset += each.entry.size
        self._index_at = offset
        self._taken = 0
        self._whole = hashed

    def misplaced(self) -> str | None:
        """Return why the pack is not that of the rack's seal, or None: it is, or its head cannot be read."""
        piece = piece_at(self._tree.read(self.path, HEAD_BYTES_MAX) or b"", 0)
        if not isinstance(piece, Piece):
            return None
        own = piece_at(self._maker.head, 0)
        assert isinstance(own, Piece)
        try:
            head, wanted = decode(PackHead, piece.payload, self.path), decode(PackHead, own.payload, self.path)
        except Damaged:
            return None
        if head == wanted:
            return None
        if (head.cluster_id, head.log, head.rack) != (wanted.cluster_id, wanted.log, wanted.rack):
            return f"{self.path} is the pack of {head.rack} of cluster {head.cluster_id.hex()}"
        return (
            f"{self.path} was made from the seal with SHA-256 {head.seal_digest.hex()}; "
            f"the rack's seal has {wanted.seal_digest.hex()}"
        )

    def file(self, bag: str, entry: LockEntry) -> tuple[int, bytes | None]:
        """Return where a listed file stands and its bytes, fewer where the pack ends. Ask in the order of the seal.

        None: the pack is not there any more; retention deletes those of a live tree.
        """
        number, offset = self._at[bag, entry.name]
        data = self._tree.read_range(self.path, offset, entry.size)
        if data is None:
            self._whole = False
            return offset, None
        try:
            if number == self._taken and self._whole:
                self._maker.add(data)
                self._taken += 1
            else:
                self._whole = False
        except Damaged:
            self._whole = False
        return offset, data

    def findings(self, seal: Evidence) -> Iterator[Finding]:
        """damaged-pack: head, index or end are not what the files make. Call it when all files were asked for."""
        size = self._tree.size(self.path)
        parts = [(0, self._maker.head)]
        complete = self._whole and self._taken == len(self._maker.listed)
        if complete:
            parts.append((self._index_at, self._maker.tail()))
        for at, wanted in parts:
            data = self._tree.read_range(self.path, at, len(wanted))
            if data is None:  # it is gone: that is said of its files
                return
            if data != wanted:
                differs = next((n for n, (a, b) in enumerate(zip(data, wanted, strict=False)) if a != b), len(data))
                what = "head" if at == 0 else "index"
                reason = f"{self.path}, offset {at + differs}: the {what} is not what its seal and files make"
                yield found("damaged-pack", self.path, reason, [Evidence(self.path, at, len(data)), seal])
                return
        end = parts[-1][0] + len(parts[-1][1])
        if complete and size > end:
            reason = f"{self.path}, offset {end}: {size - end} bytes too many"
            yield found("damaged-pack", self.path, reason, [Evidence(self.path, end, size - end), seal])


def retained_files(tree: Tree, listing: RackListing, locks: Mapping[str, bytes]) -> list[str] | None:
    """Return the paths of all that a sealed rack listed, if all of it is gone as retention leaves it; else None.

    Retention deletes a pack, after the bags' directories went. A directory that somebody made again is void: its lock
    file is not the one that the seal holds. Deletion by hand leaves the same behind.
    """
    there = {each.bag.name: each for each in listing.bags if each.bag.name in locks}
    opened = {name: open_lock(raw, name)[0] for name, raw in locks.items()}
    files = [f"{listing.rack.path}/{name}/{entry.name}" for name, lock in opened.items() for entry in lock.entries]
    # With the mark all of them may have come back: each of several stalled writers makes its own directory again.
    if not files or (len(there) == len(locks) and not listing.retained):
        return None
    for name, each in there.items():
        path = f"{each.bag.path}/{LOCK}"
        if each.locked and tree.read(path, PIECE_BYTES_MAX + 1) == locks[name]:
            return None
    return files


def packed_names(tree: Tree, path: str) -> tuple[str, ...]:
    """Return the names of the files in a pack by its own index; none where it cannot be read."""
    try:
        return open_pack(lambda at, length: tree.read_range(path, at, length), tree.size(path), path).names
    except Damaged:
        return ()
