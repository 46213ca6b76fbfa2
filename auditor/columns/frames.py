"""Data files cut into frames, and the frames of some files, all at once: which of them are clean.

A frame is clean if no rule about frames finds anything and readers accept all of its messages: every condition of
``auditor.rules.timestamps`` and ``auditor.rules.records``, asked of columns. Whatever is not clean by these columns,
or of a sort that they do not know (several witnesses of one lease), is left to be judged one by one. Witnesses are
opened once each, and the paths of a batch are checked together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from operator import lt
from typing import Final, NamedTuple

import numpy as np

from appliance.formats.closed import LockFile
from appliance.formats.framing import (
    CHECKSUM_BYTES,
    FRAME_MESSAGES_MAX,
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    WITNESSES_MAX,
    Kind,
    pack,
)
from appliance.formats.lease import Phase
from appliance.formats.merkle import KnownPaths
from appliance.formats.paths import Bag, DataName
from appliance.formats.policy import Policy
from appliance.formats.witness import Half, SessionWitness, SignedWitness, Witness
from auditor.evidence.finding import Evidence, breaks
from auditor.evidence.signatures import FrameReader, KnownHead
from timeagent import core
from timeagent.canonical import decode
from timeagent.signedtime import STALENESS_NS, SignedTime, r2_holds
from timeagent.trust import Keyring

from .events import FRAME, ClockReading, FrameColumns, FrameFile
from .layout import NUMBER_MAX, Column, Flags, NotPlain, bytes_of, numbers, small, time_columns, used_of
from .records import Records, Shapes

_START: Final = pack(Kind.FRAME, b"")[:8]
_ROW: Final = struct.Struct("=5q")
NO_CHECK: Final = bytes(16)
"""Behind a checksum, where that stands for a digest."""


class CutFile(NamedTuple):
    """The frames of a file, in order, as bytes that stand end to end."""

    rows: bytes
    """Of each frame five int64: where its piece begins, how long that is, messages, first and last instant."""
    digests: bytes
    """32 bytes of each."""
    heads: list[bytes]


class Cut:
    """The frames of some files, in order. Raises NotPlain where one of them was not cut."""

    def __init__(self, files: Sequence[CutFile | None]) -> None:
        whole = [each for each in files if each is not None]
        if len(whole) != len(files):
            raise NotPlain
        self.file: Column = np.repeat(np.arange(len(whole)), [len(each.heads) for each in whole])
        """Which of the files each is in."""
        rows = np.frombuffer(b"".join([each.rows for each in whole]), np.int64).reshape(-1, 5)
        self.offset, self.length, self.counts, self.first, self.last = np.ascontiguousarray(rows.T)
        """Each piece, how many messages are in it, and the instants of the first and the last."""
        self.digests = numbers(b"".join([each.digests for each in whole]), 4)
        """Shape (frames, 4)."""
        self.raw_heads = [head for each in whole for head in each.heads]


def cut(data: bytes, *, hashed: bool = True) -> CutFile | None:
    """Cut a file into frames, check their checksums, and that they are made as frames are, but for their heads.

    ``hashed``: else no checksum is checked, and stands for the digest of its frame. None where it is empty, or holds
    anything else than whole frames.
    """
    if core.native is not None:
        found = core.native.cut(data, hashed, FRAME_MESSAGES_MAX, PAYLOAD_BYTES_MAX)
        return None if found is None else CutFile(*found)
    rows: list[bytes] = []
    digests: list[bytes] = []
    heads: list[bytes] = []
    at = 0
    while at < len(data):
        body = at + HEADER_BYTES
        end = body + int.from_bytes(data[at + 8 : body])
        after = end + CHECKSUM_BYTES
        if data[at : at + 8] != _START or end - body > PAYLOAD_BYTES_MAX:
            return None
        digest = sha256(data[at:end]).digest() if hashed else data[end:after] + NO_CHECK
        # Of a payload too short for it, some of the checksum is read, and the end is beyond the payload's all the same.
        head_end = body + 4 + _u32(data, body)
        columns = head_end + 4
        count = _u32(data, head_end)
        rest = columns + 12 * count
        if digest[:CHECKSUM_BYTES] != data[end:after] or not 0 < count <= FRAME_MESSAGES_MAX or rest > end:
            return None
        instants = struct.unpack_from(f"<{count}q", data, columns)
        lengths = struct.unpack_from(f"<{count}I", data, columns + 8 * count)
        if not all(map(lt, instants, instants[1:])) or sum(lengths) != end - rest:
            return None
        rows.append(_ROW.pack(at, after - at, count, instants[0], instants[-1]))
        digests.append(digest)
        heads.append(data[body + 4 : head_end])
        at = after
    return CutFile(b"".join(rows), b"".join(digests), heads) if rows else None


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


@dataclass(frozen=True, slots=True)
class BagRules:
    """What the frames of a bag are judged by, and what is known of them."""

    bag: Bag
    lock: LockFile
    where: Evidence
    """Of the lock file that counts."""
    closed: SignedTime | None
    """The lock file's signed time, if it holds."""
    keyring: Keyring | None
    policy: Policy | None
    policy_of: Callable[[int], Policy | None]
    """The policy by which a frame is judged that names one with this number."""
    counts: bool
    """Whether the bag's list is the last word on it. Else its rack's seal is missing, which may leave the bag out."""
    seen: set[bytes] = field(default_factory=set)
    """Digests of the frames of the bag that count."""
    after: dict[int, SignedTime] = field(default_factory=dict)
    """Signed times that are not after the lock file's."""


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """A file that a bag was closed with."""

    by: BagRules
    name: DataName | None
    data: bytes
    """As many bytes as are listed."""
    cut: CutFile | None
    """The same, cut; None: they are not whole frames alone."""
    where: Evidence
    """The file, or where in a pack it begins."""
    path: str
    """Of the file under the root, also where a pack holds its bytes."""


class FrameBatch(Cut):
    """The frames of some files, decoded. Raises NotPlain, Damaged, ValueError."""

    def __init__(self, files: Sequence[JudgedFile], shapes: Shapes) -> None:
        super().__init__([file.cut for file in files])
        self.files = files
        self.frames: Column = np.bincount(self.file, minlength=len(files))
        self.begins: Column = np.cumsum(self.frames) - self.frames
        """The first frame of each file."""
        self.heads = heads = shapes.read(self.raw_heads)
        self.places: Column = self.offset + np.array([file.where.offset for file in files], np.int64)[self.file]
        if not small(self.first).all() or not small(self.last).all():
            raise NotPlain
        self.names = bytes_of(self.digests)
        """The digest of each."""
        self.sequence = heads.number("sequence")
        self.trust_number = heads.number("trust_number")
        self._check_attempts()
        self._check_digests()
        self.writers = self._check_places()
        """Name and incarnation of the writer of each file."""

    def where(self, frame: int) -> Evidence:
        path = self.files[self.file[frame]].where.path
        return Evidence(path, int(self.places[frame]), int(self.length[frame]))

    def _check_attempts(self) -> None:
        """Check that attempts cover the messages of each frame, none of them without any."""
        most = max(len(each.attempts) for each in self.heads.kinds())  # type: ignore[attr-defined]
        covered = np.zeros(len(self.counts), np.int64)
        for place in range(most):
            name = f"attempts.{place}.messages"
            messages = self.heads.number(name)
            if (self.heads.there(name) & (messages == 0)).any() or (messages > self.counts - covered).any():
                raise NotPlain
            covered += messages
        if (covered != self.counts).any():
            raise NotPlain

    def _check_digests(self) -> None:
        """Check that no two frames of a bag are equal: those that are count once, the first of them."""
        ends = (self.begins + self.frames).tolist()
        new: dict[int, set[bytes]] = {}
        for file, begin, end in zip(self.files, self.begins.tolist(), ends, strict=True):
            mine = set(self.names[begin:end])
            seen, of_bag = file.by.seen, new.setdefault(id(file.by), set())
            if len(mine) != end - begin or not seen.isdisjoint(mine) or not of_bag.isdisjoint(mine):
                raise NotPlain
            of_bag |= mine

    def _check_places(self) -> list[tuple[str, bytes]]:
        """Check that all frames of each file are of one run of a writer, and belong there. Returns the writers."""
        heads, files, file = self.heads, self.files, self.file
        cluster = heads.identifiers("cluster_id", 2)
        writer, writers = heads.distinct("writer")
        log, logs = heads.distinct("log")
        self.incarnation = heads.identifiers("incarnation", 1)[:, 0]
        numbered = {each: n for n, each in enumerate(writers)}
        wanted = np.array([numbered.get(each.name.writer.encode(), -1) for each in files])  # type: ignore[union-attr]
        of_log = {each: n for n, each in enumerate(logs)}
        wanted_log = np.array([of_log.get(each.by.bag.log.encode(), -1) for each in files])
        locks = [each.by.lock for each in files]
        fine = (
            (cluster == numbers(b"".join([lock.cluster_id for lock in locks]), 2)[file]).all(axis=1)
            & (writer == wanted[file])
            & (log == wanted_log[file])
            & (self.incarnation == self.incarnation[self.begins][file])
            & (self.trust_number >= 1)
            & (self.trust_number <= np.array([lock.trust_number for lock in locks])[file])
            # Where it names another, each frame is judged by the policy that it names.
            & (heads.number("policy_number") == np.array([lock.policy_number for lock in locks])[file])
        )
        if not fine.all():
            raise NotPlain
        self.writer, self.writer_names = writer, [each.decode() for each in writers]
        runs = self.incarnation[self.begins]
        return [
            (self.writer_names[n], run.tobytes()) for n, run in zip(writer[self.begins].tolist(), runs, strict=True)
        ]

    def within_bags(self, tokens: FrameTokens) -> Flags:
        """Say which frames lie in their bag, and near their signed time."""
        policy = self.files[0].by.policy
        assert policy is not None
        if policy.r1_tolerance_ns >= NUMBER_MAX:
            return np.zeros(len(self.first), np.bool_)
        bags = [each.by.bag for each in self.files]
        start = np.array([bag.start_ns for bag in bags], np.int64)[self.file]
        end = np.array([bag.end_ns for bag in bags], np.int64)[self.file]
        allowed = tokens.radius + policy.r1_tolerance_ns
        near: Flags = (
            (self.first >= start)
            & (self.last < end)
            & ~breaks("radius-above-policy", tokens.radius, policy.radius_ns_max)
            & ~breaks("stale-time", tokens.staleness, STALENESS_NS)
            & (self.first >= tokens.midpoint - allowed)
            & (self.last <= tokens.midpoint + allowed)
        )
        return near


_STEP: Final = 34
"""A hash in a list of hashes: two bytes say that 32 follow."""


def check_paths(
    entries: list[bytes], paths: list[bytes], batch: Column, index: Column, counts: Sequence[int], roots: list[bytes]
) -> Flags:
    """Say of each entry whether its path leads to the root of its batch.

    ``paths``: lists of hashes as they are encoded, from the first hash on. ``counts``, ``roots``: of each batch, how
    many entries are signed, and the root over them.
    """
    order = np.lexsort((index, batch))  # neighbours share most of their paths
    found, of, at, several = np.zeros(len(entries), np.bool_), batch[order], index[order], order.tolist()
    if core.native is not None:
        entries, paths = [entries[n] for n in several], [paths[n] for n in several]
        widths, over = np.array(counts, "<i8")[of], numbers(b"".join(roots), 4)[of]
        good = core.native.check_paths(entries, paths, at.tobytes(), widths.tobytes(), over.tobytes())
        found[order] = np.frombuffer(good, np.bool_)
        return found
    known = [KnownPaths(count, root) for count, root in zip(counts, roots, strict=True)]
    for n, which, place in zip(several, of.tolist(), at.tolist(), strict=True):
        found[n] = known[which].holds(entries[n], place, _steps(paths[n]))
    return found


def _steps(path: bytes) -> tuple[bytes, ...]:
    return tuple([path[at : at + _STEP - 2] for at in range(0, len(path), _STEP)])


class Witnesses:
    """The different witnesses of some frames: of leases and of session leases. Raises NotPlain, Damaged, ValueError."""

    def __init__(
        self, heads: Records, frames: FrameReader, keyring: Keyring, of_signed: Shapes, of_entries: Shapes
    ) -> None:
        """Open those that the heads of frames carry."""
        if max(len(each.witnesses) for each in heads.kinds()) > WITNESSES_MAX:  # type: ignore[attr-defined]
            raise NotPlain
        carried_by, carried, raw = heads.distinct_items("witnesses")
        self.count = len(raw)
        if not raw:
            self.frame = self.which = self.session_frame = self.session_which = np.zeros(0, np.int64)
            return
        signed = of_signed.read(raw)
        self.entries = signed.raw("entry")
        told = of_entries.read(self.entries)
        if any(not isinstance(each, Witness | SessionWitness) for each in told.kinds()):
            raise NotPlain
        self.position = signed.number("index")
        self.batch, _ = signed.distinct("head", "signature")
        self.batches: list[tuple[KnownHead, bytes]] = []
        for each in np.unique(self.batch, return_index=True)[1].tolist():
            one = decode(SignedWitness, raw[each])
            self.batches.append((frames.head(one, keyring), one.head))
        signers = [known.head for known, _ in self.batches]
        signing = [head.count for head in signers], [head.root for head in signers]
        self._holds = check_paths(self.entries, signed.items("path"), self.batch, self.position, *signing)
        self._told = told
        self.correlation = told.identifiers("correlation_id", 2)
        self.settle_to = told.number("settle_to_ns")
        self.floor, self.expiry = told.number("floor_ns"), told.number("expiry_ns")
        self.domain, names = told.distinct("domain")
        self.domains = [each.decode() for each in names]
        self.holder, nodes = told.distinct("holder.node")
        self.nodes = [each.decode() for each in nodes]
        self.incarnation = told.identifiers("holder.incarnation", 1)[:, 0]
        of_session: Flags = told.of_each(lambda each: type(each) is SessionWitness)[carried]
        self.frame, self.which = carried_by[~of_session], carried[~of_session]
        """Of each witness of a lease that a frame carries: the frame, and the number of the witness."""
        self.session_frame, self.session_which = carried_by[of_session], carried[of_session]
        """The same of session leases."""

    def head_names(self) -> list[tuple[bytes, int, bytes]]:
        return [(known.head.incarnation, known.head.sequence, known.digest) for known, _ in self.batches]

    def with_sessions(self) -> tuple[Flags, Column]:
        """Say of each lease that a frame carries whether it stands as far as sessions go, and what says until when.

        A lease under a session lease stands with one witness of that in the frame, from the same run of its shard, of
        the same holder, which does not name the lease as ended. Then that one's expiry is the lease's.
        """
        under = self._told.there("session_id")[self.which]
        if not under.any():
            return ~under, self.which
        runs: dict[tuple[int, int, bytes], int] = {}
        run = [
            runs.setdefault((known.head.map_number, known.head.shard, known.head.incarnation), len(runs))
            for known, _ in self.batches
        ]
        session, names = self._told.distinct("session_id")
        name = np.array(run, np.int64)[self.batch] * len(names) + session
        """Of each witness: which session lease of which run."""
        most = len(runs) * len(names) + 1
        wanted = self.frame * most + name[self.which]
        there = self.session_frame * most + name[self.session_which]
        order = np.argsort(there)
        there, which = there[order], self.session_which[order]
        at, end = np.searchsorted(there, wanted), np.searchsorted(there, wanted, "right")
        stands = ~under | (end - at == 1)
        if not len(which):
            return stands, self.which
        of = which[np.minimum(at, len(which) - 1)]
        holder, _ = self._told.distinct("holder.node", "holder.purpose")
        stands &= ~under | (holder[of] == holder[self.which])
        lease = self.correlation[self.which]
        for place in range(max(len(getattr(each, "ended", ())) for each in self._told.kinds())):
            stands &= ~under | (self._told.identifiers(f"ended.{place}", 2)[of] != lease).any(axis=1)
        return stands, np.where(under, of, self.which)

    def good(self, policy: Policy) -> tuple[Flags, Column]:
        """Say of each whether it holds by itself, and for each the earliest instant at which it was signed.

        While a domain moves, leases count with their other halves: which of a frame's these are the rules say.
        """
        term_ns_max = policy.lease_term_max_ns
        sound = [
            known.refusal is None
            and known.head.half is Half.WHOLE
            and known.token.radius_ns <= policy.radius_ns_max
            and term_ns_max < NUMBER_MAX
            for known, _ in self.batches
        ]
        fine, times = time_columns(known.token for known, _ in self.batches)
        midpoint, radius, _ = times[:, self.batch]
        good = (
            self._holds
            & (np.array(sound, np.bool_) & fine)[self.batch]
            & self._told.of_each(usual)
            & ~breaks("term-above-policy", self.expiry, midpoint + term_ns_max + radius)
            & small(self.position)
            & small(self.settle_to)
        )
        return good, midpoint - radius

    def once_each(self, count: int) -> Flags:
        """Say which frames have witnesses of leases, one of each lease: which of several counts the rules say."""
        found = np.zeros(count, np.bool_)
        found[self.frame] = True
        if (self.frame[1:] != self.frame[:-1]).all():
            return found
        leases = self._told.distinct("correlation_id")[0] if self.count else self.which
        lease = self.frame * self.count + leases[self.which]
        found[self.frame[np.delete(np.arange(len(lease)), np.unique(lease, return_index=True)[1])]] = False
        return found


def usual(witness: Witness | SessionWitness) -> bool:
    """Whether frames may be written under what a witness states."""
    return isinstance(witness, SessionWitness) or (witness.mode.may_write and witness.phase is Phase.HELD)


class FrameTokens:
    """The signed times of frames as columns: each is checked once for each writer and bag. Raises Damaged."""

    def __init__(self, batch: FrameBatch, frames: FrameReader) -> None:
        of_frame, raw = batch.heads.distinct("time")
        bags: dict[int, int] = {}
        bag = np.array([bags.setdefault(id(file.by.lock), len(bags)) for file in batch.files])[batch.file]
        kinds = (of_frame * len(bags) + bag) * len(batch.writer_names) + batch.writer
        _, firsts, self.which = np.unique(kinds, return_index=True, return_inverse=True)
        self.known: list[SignedTime] = []
        good = []
        for first in firsts.tolist():
            by = batch.files[batch.file[first]].by
            known = frames.token(raw[of_frame[first]], batch.writer_names[batch.writer[first]], by.keyring)
            token, stamp = known.token, by.closed
            self.known.append(token)
            good.append(known.refusal is None and (stamp is None or r2_holds(token, stamp, effect_covers_cause=True)))
        fine, times = time_columns(self.known)
        self.clean: Flags = (fine & np.array(good, np.bool_))[self.which]
        self.midpoint, self.radius, self.staleness = times[:, self.which]
        self.latest: Column = self.midpoint + self.radius + self.staleness
        """Before this each was surely handed out."""

    def of(self, frames: Column) -> list[SignedTime]:
        """Return the signed times of some frames, each once, in order."""
        return [self.known[n] for n in dict.fromkeys(self.which[frames].tolist())]


def columns_of(batch: FrameBatch, witnesses: Witnesses, tokens: FrameTokens, chosen: Column, rank: int) -> FrameColumns:
    """Return some frames as a timeline is told of them. ``rank``: of the first of all frames."""
    rows = np.zeros(len(chosen), FRAME)
    used, rows["file"] = used_of(batch.file[chosen], len(batch.files))
    told, rows["clock"] = used_of(tokens.which[chosen], len(tokens.known))
    rows["rank"], rows["sequence"], rows["messages"] = rank + chosen, batch.sequence[chosen], batch.counts[chosen]
    rows["offset"], rows["length"] = batch.places[chosen], batch.length[chosen]
    rows["first"], rows["last"] = batch.first[chosen], batch.last[chosen]
    files = [(batch.files[n], batch.writers[n]) for n in used]
    writer = np.zeros(len(tokens.known), np.int64)
    writer[tokens.which] = batch.writer
    place = np.full(len(batch.file), -1)
    place[chosen] = np.arange(len(chosen))
    of_frame = place[witnesses.frame]
    kept = np.argsort(of_frame, kind="stable")[np.count_nonzero(of_frame < 0) :]
    rows["under"] = np.bincount(of_frame[kept], minlength=len(chosen))
    leases, under = used_of(witnesses.which[kept], witnesses.count)
    return FrameColumns(
        [FrameFile(f.by.bag.log, f.by.bag.start_ns, f.path, f.where.path, *maker) for f, maker in files],
        [ClockReading.of(batch.writer_names[writer[n]], tokens.known[n]) for n in told],
        [(witnesses.domains[witnesses.domain[n]], witnesses.correlation[n].tobytes()) for n in leases],
        rows.tobytes(),
        under.astype("<u4").tobytes(),
    )


def check_witnesses(batch: FrameBatch, witnesses: Witnesses, tokens: FrameTokens, clean: Flags) -> None:
    """Strike out the frames that have no witness of a lease, or one that may not be as it is."""
    clean &= witnesses.once_each(len(clean))
    if not witnesses.count:
        return
    policy = batch.files[0].by.policy
    assert policy is not None
    good, signed = witnesses.good(policy)
    numbered = {each: n for n, each in enumerate(batch.writer_names)}
    node = np.array([numbered.get(each, -1) for each in witnesses.nodes])[witnesses.holder]
    for frame, which in (
        (witnesses.frame, witnesses.which),
        (witnesses.session_frame, witnesses.session_which),
    ):
        fits = (
            good[which]
            & (node[which] == batch.writer[frame])
            & (witnesses.incarnation[which] == batch.incarnation[frame])
            & (tokens.latest[frame] >= signed[which])
        )
        clean[frame[~fits]] = False
    frame, (fits, saying) = witnesses.frame, witnesses.with_sessions()
    fits &= ~breaks("timestamp-below-floor", batch.first[frame], witnesses.floor[witnesses.which])
    fits &= ~breaks("timestamp-after-expiry", batch.last[frame], witnesses.expiry[saying])
    clean[frame[~fits]] = False
