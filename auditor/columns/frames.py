"""The frames of some data files, all at once: which of them are clean; and rows about all that were read.

A frame is clean if no rule about frames finds anything and readers accept all of its messages: every condition of
``auditor.rules.time`` and ``auditor.rules.records``, asked of columns. Whatever is not clean by these columns, or of
a sort that they do not know (several witnesses of one lease), is left to be judged one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.formats.framing import FrameHead
from appliance.formats.lockfile import LockFile
from appliance.formats.paths import Bag, DataName
from appliance.formats.policy import Policy
from appliance.formats.witness import Half
from auditor.evidence.signatures import FrameEvidence, FrameReader, HeldWitness
from auditor.parts import EvidenceSource, PartMaker
from auditor.rules.finding import Evidence
from auditor.timeline.events import FRAME as WRITTEN
from auditor.timeline.events import ClockReading, FrameColumns, FrameFile
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.signedtime import STALENESS_NS, SignedTime, r2_holds
from timeagent.trust import Keyring
from timeagent.units import INSTANT_MAX

from .cutting import Cut, CutFile, NotPlain, together
from .layout import (
    FRAME,
    FRAMES,
    NOTHING,
    NUMBER_MAX,
    STATED,
    USE,
    USES,
    Chunk,
    ChunkMaker,
    bytes_of,
    numbers,
    small,
    used_of,
)
from .records import Shapes
from .witnesses import Witnesses, WitnessShapes

type Flags = NDArray[np.bool_]
type Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BagRules:
    """What the frames of a bag are judged by."""

    bag: Bag
    lock: LockFile
    closed: SignedTime | None
    """The lock file's signed time, if it holds."""
    keyring: Keyring | None
    policy: Policy | None
    counts: bool
    """Whether the bag's list is the last word on it. Else its rack's seal is missing, which may leave the bag out."""


@dataclass(frozen=True, slots=True)
class JudgedFile:
    """A file that a bag was closed with, and what its frames are judged by."""

    by: BagRules
    name: DataName | None
    lock_where: Evidence
    seen: set[bytes]
    """Digests of the frames of the bag that count."""
    after: dict[int, SignedTime]
    """Signed times that are not after the lock file's."""
    data: bytes
    """As many bytes as are listed."""
    cut: CutFile | None
    """The same, cut; None: they are not whole frames alone."""
    where: Evidence
    """The file, or where in a pack it begins."""
    policy_of: Callable[[int], Policy | None]
    """The policy by which a frame is judged that names one with this number."""
    path: str
    """Of the file under the root, also where a pack holds its bytes."""


@dataclass(frozen=True, slots=True)
class FramesRead:
    """What the columns of some files came to."""

    frames: list[int]
    """How many there are, by file."""
    doubtful: list[tuple[int, int, int]]
    """File, number in the file, and offset in it, of each frame that is not clean by columns."""
    messages: int
    """Of the clean frames."""
    tokens: list[SignedTime]
    """Signed times of clean frames, each once, in order."""
    trust_numbers: set[int]
    written: FrameColumns | None
    """The clean frames, where they are asked for."""


class RackColumns:
    """Gathers the columns of one rack."""

    def __init__(self, reading: EvidenceSource, told: PartMaker, *, listing: bool) -> None:
        """Take what is read, and who is told of batch heads. ``listing``: each clean frame is returned too."""
        self._listing = listing
        self._frames = reading.frames
        self._told = told
        self._hashed = reading.hashed
        self._rows = ChunkMaker(FRAMES, reading.keep)
        self._uses = ChunkMaker(USES, reading.keep)
        self._stated = ChunkMaker(STATED, reading.keep)
        self._heads = Shapes(lambda raw: decode(FrameHead, raw))
        self._shapes = WitnessShapes()

    def chunks(self) -> list[Chunk]:
        """Return everything that was gathered."""
        return [*self._rows.chunks(), *self._uses.chunks(), *self._stated.chunks()]

    def keep(
        self, frame: FrameEvidence, digest: bytes, accepted: int, span: tuple[int, int], rank: int, *, counts: bool
    ) -> None:
        """Keep rows about a frame that was judged by itself. ``accepted``: how many of its messages are in the record.

        ``span``: their first and last; ``rank``: how many frames were read before it; ``counts``: whether it is known
        that its list counts.
        """
        head, token, stamps = frame.frame.head, frame.token, frame.frame.timestamps
        place, named = self._told.place(frame.where), head.committed
        # An end of an interval above what a column holds is kept as that: nothing lies above either.
        latest, signed = (min(token.interval.latest + each, INSTANT_MAX) for each in (0, token.staleness_ns))
        self._rows.add_one(
            (head.writer, head.incarnation),
            place,
            rank,
            proven=frame.refusal is None,
            sequence=head.sequence,
            digest=digest,
            first=stamps[0],
            last=stamps[-1],
            committed=NOTHING if named is None else named.sequence,
            committed_digest=bytes(32) if named is None or not self._hashed else named.digest,
            earliest=token.interval.earliest,
            latest=latest,
            staleness=token.staleness_ns,
        )
        for held in frame.carried:
            if held.refusal is None:
                self._told.add_head(held.head, held.head_digest, held.signed.head, frame.where, rank)
                domain = held.witness.domain if isinstance(held, HeldWitness) else ""
                name = (held.head.incarnation, held.head.sequence, held.head_digest)
                self._stated.add_one(domain, place, rank, name, held.signed.entry, position=held.signed.index)
        # Under a lease of which it carries several witnesses it is written once.
        for held in {each.witness.correlation_id: each for each in reversed(frame.witnesses)}.values():
            self._uses.add_one(
                held.witness.domain,
                place,
                rank,
                cid=held.witness.correlation_id,
                proven=counts and held.refusal is None,
                messages=len(stamps),
                accepted=accepted,
                first=span[0],
                last=span[1],
                settle_to=held.witness.settle_to_ns,
                signed=signed,
                sequence=head.sequence,
                digest=digest if self._hashed else bytes(32),
                staying=frame.part_of(held)[1] is not Half.LEAVING,
            )

    def read(self, files: Sequence[JudgedFile], rank: int) -> FramesRead | None:
        """Judge the frames of some files by columns, and keep rows about those that are clean.

        ``rank``: of the first frame. Takes the digests of clean frames as seen. None: nothing was judged, because
        something in some of the files is not for columns.
        """
        by = files[0].by
        if by.keyring is None or by.policy is None or any(file.name is None or not file.by.counts for file in files):
            return None
        if any(file.by.keyring is not by.keyring or file.by.policy is not by.policy for file in files):
            return None
        try:
            batch = _Batch(files, together([file.cut for file in files]), self._heads)
            witnesses = Witnesses(batch.heads, self._frames, by.keyring, self._shapes)
            tokens = _Tokens(batch, self._frames)
        except (NotPlain, Damaged, ValueError):
            return None
        clean = tokens.clean & batch.within_bags(tokens)
        staying = _check_witnesses(batch, witnesses, tokens, clean)
        chosen = np.flatnonzero(clean)
        self._keep_frames(batch, tokens, chosen, rank)
        self._keep_uses(batch, witnesses, tokens, clean, staying, rank)
        self._tell_heads(batch, witnesses, clean, rank)
        file, begins = batch.cut.file.tolist(), batch.begins.tolist()
        ends = np.searchsorted(batch.cut.file[chosen], np.arange(len(files) + 1)).tolist()
        counting = [batch.names[n] for n in chosen.tolist()]
        for each, first, end in zip(files, ends, ends[1:], strict=False):
            each.seen.update(counting[first:end])
        return FramesRead(
            frames=batch.frames.tolist(),
            doubtful=[
                (file[n], n - begins[file[n]], int(batch.cut.offset[n])) for n in np.flatnonzero(~clean).tolist()
            ],
            messages=int(batch.cut.counts[chosen].sum()),
            tokens=tokens.of(chosen),
            trust_numbers=set(np.unique(batch.trust_number[chosen]).tolist()),
            written=_written(batch, witnesses, tokens, chosen, rank) if self._listing else None,
        )

    def _keep_frames(self, batch: _Batch, tokens: _Tokens, chosen: Column, rank: int) -> None:
        rows = np.zeros(len(chosen), FRAME)
        cut, file = batch.cut, batch.cut.file[chosen]
        rows["name"] = self._rows.names.all_of(batch.writers)[file]
        rows["path"] = self._paths(self._rows, batch)[file]
        rows["plain"], rows["proven"] = True, True
        rows["sequence"], rows["first"], rows["last"] = batch.sequence[chosen], cut.first[chosen], cut.last[chosen]
        rows["digest"] = cut.digests[chosen]
        rows["committed"] = batch.heads.number("committed.sequence", NOTHING)[chosen]
        if self._hashed:  # else no frame's digest is known
            rows["committed_digest"] = batch.heads.identifiers("committed.digest", 4)[chosen]
        midpoint, radius = tokens.midpoint[chosen], tokens.radius[chosen]
        rows["earliest"], rows["latest"] = midpoint - radius, midpoint + radius
        rows["staleness"] = tokens.staleness[chosen]
        rows["offset"], rows["length"], rows["rank"] = batch.places[chosen], cut.length[chosen], rank + chosen
        self._rows.add(rows)

    def _keep_uses(
        self,
        batch: _Batch,
        witnesses: Witnesses,
        tokens: _Tokens,
        clean: Flags,
        staying: Flags,
        rank: int,
    ) -> None:
        chosen = np.flatnonzero(clean[witnesses.frame])
        if not len(chosen):
            return
        frame, which = witnesses.frame[chosen], witnesses.which[chosen]
        uses, cut = self._uses, batch.cut
        rows = np.zeros(len(chosen), USE)
        rows["path"] = self._paths(uses, batch)[cut.file[frame]]
        rows["name"] = uses.names.all_of(witnesses.domains)[witnesses.domain[which]]
        rows["head"] = uses.heads.all_of(witnesses.head_names())[witnesses.batch[which]]
        rows["cid"] = witnesses.correlation[which]
        rows["position"], rows["settle_to"] = witnesses.position[which], witnesses.settle_to[which]
        rows["plain"], rows["proven"], rows["accepted"] = True, True, cut.counts[frame]
        rows["messages"], rows["first"], rows["last"] = cut.counts[frame], cut.first[frame], cut.last[frame]
        rows["signed"], rows["sequence"] = tokens.latest[frame], batch.sequence[frame]
        rows["staying"] = staying[chosen]
        if self._hashed:
            rows["digest"] = cut.digests[frame]
        rows["offset"], rows["length"], rows["rank"] = batch.places[frame], cut.length[frame], rank + frame
        used, rows["at"] = used_of(which, witnesses.count)
        uses.add(rows, [witnesses.entries[n] for n in used])

    def _paths(self, maker: ChunkMaker, batch: _Batch) -> NDArray[np.uint32]:
        return maker.paths.all_of(self._told.shown(file.where.path) for file in batch.files)

    def _tell_heads(self, batch: _Batch, witnesses: Witnesses, clean: Flags, rank: int) -> None:
        """Tell the index of each batch head, and of each session lease, by the first clean frame that carries it."""
        kept, of_session = (np.flatnonzero(clean[each]) for each in (witnesses.frame, witnesses.session_frame))
        frame = np.concatenate((witnesses.frame[kept], witnesses.session_frame[of_session]))
        if not len(frame):
            return
        which = np.concatenate((witnesses.which[kept], witnesses.session_which[of_session]))
        order = np.argsort(frame, kind="stable")
        told, firsts = np.unique(witnesses.batch[which[order]], return_index=True)
        for number, first in zip(told.tolist(), frame[order][firsts].tolist(), strict=True):
            known, raw = witnesses.batches[number]
            self._told.add_head(known.head, known.digest, raw, batch.where(first), rank + first)
        told, firsts = np.unique(witnesses.session_which[of_session], return_index=True)
        names = witnesses.head_names()
        for number, first in zip(told.tolist(), witnesses.session_frame[of_session[firsts]].tolist(), strict=True):
            place, name = self._told.place(batch.where(first)), names[witnesses.batch[number]]
            entry, position = witnesses.entries[number], witnesses.position[number]
            self._stated.add_one("", place, rank + first, name, entry, position=position)


class _Batch:
    """The frames of some files, decoded. Raises NotPlain, Damaged, ValueError."""

    def __init__(self, files: Sequence[JudgedFile], found: Cut, shapes: Shapes) -> None:
        self.files = files
        self.cut = found
        self.frames: Column = np.bincount(found.file, minlength=len(files))
        self.begins: Column = np.cumsum(self.frames) - self.frames
        """The first frame of each file."""
        self.heads = heads = shapes.read(found.heads)
        self.places: Column = found.offset + np.array([file.where.offset for file in files], np.int64)[found.file]
        if not small(found.first).all() or not small(found.last).all():
            raise NotPlain
        self.names = bytes_of(found.digests)
        """The digest of each."""
        self.sequence = heads.number("sequence")
        self.trust_number = heads.number("trust_number")
        self._check_attempts()
        self._check_digests()
        self.writers = self._check_places()
        """Name and incarnation of the writer of each file."""

    def where(self, frame: int) -> Evidence:
        path = self.files[self.cut.file[frame]].where.path
        return Evidence(path, int(self.places[frame]), int(self.cut.length[frame]))

    def _check_attempts(self) -> None:
        """Check that attempts cover the messages of each frame, none of them without any."""
        most = max(len(each.attempts) for each in self.heads.kinds())  # type: ignore[attr-defined]
        covered = np.zeros(len(self.cut.counts), np.int64)
        for place in range(most):
            name = f"attempts.{place}.messages"
            messages = self.heads.number(name)
            if (self.heads.there(name) & (messages == 0)).any() or (messages > self.cut.counts).any():
                raise NotPlain
            covered += messages
        if (covered != self.cut.counts).any():
            raise NotPlain

    def _check_digests(self) -> None:
        """Check that no two frames of a bag are equal: those that are count once, the first of them."""
        ends = (self.begins + self.frames).tolist()
        new: dict[int, set[bytes]] = {}
        for file, begin, end in zip(self.files, self.begins.tolist(), ends, strict=True):
            mine = set(self.names[begin:end])
            of_bag = new.setdefault(id(file.seen), set())
            if len(mine) != end - begin or not file.seen.isdisjoint(mine) or not of_bag.isdisjoint(mine):
                raise NotPlain
            of_bag |= mine

    def _check_places(self) -> list[tuple[str, bytes]]:
        """Check that all frames of each file are of one run of a writer, and belong there. Returns the writers."""
        heads, files, file = self.heads, self.files, self.cut.file
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

    def within_bags(self, tokens: _Tokens) -> Flags:
        """Say which frames lie in their bag, and near their signed time."""
        cut, policy = self.cut, self.files[0].by.policy
        assert policy is not None
        if policy.r1_tolerance_ns >= NUMBER_MAX:
            return np.zeros(len(cut.first), np.bool_)
        bags = [each.by.bag for each in self.files]
        start = np.array([bag.start_ns for bag in bags], np.int64)[cut.file]
        end = np.array([bag.end_ns for bag in bags], np.int64)[cut.file]
        allowed = tokens.radius + policy.r1_tolerance_ns
        return (
            (cut.first >= start)
            & (cut.last < end)
            & (tokens.radius <= policy.radius_ns_max)
            & (tokens.staleness <= STALENESS_NS)
            & (cut.first >= tokens.midpoint - allowed)
            & (cut.last <= tokens.midpoint + allowed)
        )


class _Tokens:
    """The signed times of frames as columns: each is checked once for each writer and bag. Raises Damaged."""

    def __init__(self, batch: _Batch, frames: FrameReader) -> None:
        of_frame, raw = batch.heads.distinct("time")
        bags: dict[int, int] = {}
        bag = np.array([bags.setdefault(id(file.by.lock), len(bags)) for file in batch.files])[batch.cut.file]
        kinds = (of_frame * len(bags) + bag) * len(batch.writer_names) + batch.writer
        _, firsts, self.which = np.unique(kinds, return_index=True, return_inverse=True)
        order = np.argsort(firsts)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self.which, firsts = place[self.which], firsts[order]
        self.known: list[SignedTime] = []
        good = []
        for first in firsts.tolist():
            by = batch.files[batch.cut.file[first]].by
            known = frames.token(raw[of_frame[first]], batch.writer_names[batch.writer[first]], by.keyring)
            token, stamp = known.token, by.closed
            self.known.append(token)
            good.append(
                known.refusal is None
                and (stamp is None or r2_holds(token, stamp, effect_covers_cause=True))
                and max(token.midpoint_ns, token.radius_ns, token.staleness_ns) < NUMBER_MAX
            )
        safe = [token if fine else None for token, fine in zip(self.known, good, strict=True)]
        self.clean: Flags = np.array(good, np.bool_)[self.which]
        self.midpoint: Column = np.array([0 if t is None else t.midpoint_ns for t in safe], np.int64)[self.which]
        self.radius: Column = np.array([0 if t is None else t.radius_ns for t in safe], np.int64)[self.which]
        self.staleness: Column = np.array([0 if t is None else t.staleness_ns for t in safe], np.int64)[self.which]
        self.latest: Column = self.midpoint + self.radius + self.staleness
        """Before this each was surely handed out."""

    def of(self, frames: Column) -> list[SignedTime]:
        """Return the signed times of some frames, each once, in order."""
        return [self.known[n] for n in dict.fromkeys(self.which[frames].tolist())]


def _written(batch: _Batch, witnesses: Witnesses, tokens: _Tokens, chosen: Column, rank: int) -> FrameColumns:
    cut, rows = batch.cut, np.zeros(len(chosen), WRITTEN)
    used, rows["file"] = used_of(cut.file[chosen], len(batch.files))
    told, rows["clock"] = used_of(tokens.which[chosen], len(tokens.known))
    rows["rank"], rows["sequence"], rows["messages"] = rank + chosen, batch.sequence[chosen], cut.counts[chosen]
    rows["offset"], rows["length"] = batch.places[chosen], cut.length[chosen]
    rows["first"], rows["last"] = cut.first[chosen], cut.last[chosen]
    files = [(batch.files[n], batch.writers[n]) for n in used]
    writer = np.zeros(len(tokens.known), np.int64)
    writer[tokens.which] = batch.writer
    place = np.full(len(cut.file), -1)
    place[chosen] = np.arange(len(chosen))
    of_frame = place[witnesses.frame]
    kept = np.argsort(of_frame, kind="stable")[np.count_nonzero(of_frame < 0) :]
    rows["under"] = np.bincount(of_frame[kept], minlength=len(chosen))
    leases, under = used_of(witnesses.which[kept], witnesses.count)
    return FrameColumns(
        [FrameFile(f.by.bag.log, f.by.bag.start_ns, f.path, f.where.path, *maker) for f, maker in files],
        [],
        [ClockReading.of(batch.writer_names[writer[n]], tokens.known[n]) for n in told],
        [(witnesses.domains[witnesses.domain[n]], witnesses.correlation[n].tobytes()) for n in leases],
        rows.tobytes(),
        under.astype("<u4").tobytes(),
    )


def _check_witnesses(batch: _Batch, witnesses: Witnesses, tokens: _Tokens, clean: Flags) -> Flags:
    """Strike out the frames that have no witness of a lease, or one that may not be as it is.

    Returns of each lease that a frame carries whether it counts without a half from a chain that comes later.
    """
    clean &= witnesses.once_each(len(clean))
    if not witnesses.count:
        return np.zeros(0, np.bool_)
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
    staying, together = witnesses.with_other_halves(saying)
    fits &= together
    fits &= witnesses.floor[witnesses.which] < batch.cut.first[frame]
    fits &= batch.cut.last[frame] < witnesses.expiry[saying]
    clean[frame[~fits]] = False
    return staying
