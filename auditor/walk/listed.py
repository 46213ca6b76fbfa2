"""The frames of the files that a bag was closed with: judged, counted, and told to the index.

By columns where they are clean, all of some files at once; whatever columns do not find clean is judged one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.formats.closed import LockFile
from appliance.formats.framing import CHECKSUM_BYTES, FrameHead, Kind, piece_at
from appliance.formats.witness import SignedWitness, decode_entry
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.units import INSTANT_MAX

from ..columns import frames, layout
from ..columns.events import FrameColumns
from ..columns.frames import FrameBatch, FrameTokens, JudgedFile, Witnesses
from ..columns.layout import ENTRIES, FRAME, FRAMES, NOTHING, OTHER, USE, USES, Chunk, ChunkMaker, NotPlain, used_of
from ..columns.parts import EvidenceSource, Part
from ..columns.records import Shapes
from ..evidence.finding import Evidence
from ..evidence.records import Stranger
from ..evidence.signatures import FrameEvidence, HeldWitness
from ..rules import bags as bag_rules
from ..rules.timestamps import judge_frame, stamp_after_frame
from .facts import Facts

NO_FRAME: Final = "a listed file holds a frame that is none"
BATCH_BYTES: Final = 16 * 1024 * 1024
"""So much is read before it is judged: columns are worth the more, the longer they are."""


class FrameJudge:
    """Judges the frames of one file after another, and gathers the columns of one rack."""

    def __init__(self, reading: EvidenceSource, told: Part, timeline: Facts | None) -> None:
        """Take what is read. ``told``: takes all that is found; ``timeline``: told of frames, too."""
        self._timeline = timeline
        self._reading = reading
        self._records = reading.records
        self._told = told
        self._doubts = {Kind.TRUST: told.unknown_keys, Kind.POLICY: told.beyond_policy}
        """Frames that name a record beyond the newest of the copy, which may have come too early for it."""
        self._rows, self._uses, self._entries = (ChunkMaker(kind, reading.keep) for kind in (FRAMES, USES, ENTRIES))
        self._heads = Shapes(lambda raw: decode(FrameHead, raw))
        self._signed, self._entry_shapes = Shapes(lambda raw: decode(SignedWitness, raw)), Shapes(decode_entry)
        self._rank = 0
        """How many frames were read."""
        self._waiting: list[JudgedFile] = []
        self._bytes = 0
        self._newest_of_frames: SignedTime | None = None

    def chunks(self) -> list[Chunk]:
        return [*self._rows.chunks(), *self._uses.chunks(), *self._entries.chunks()]

    def file(self, file: JudgedFile) -> None:
        """Audit the frames of a listed file, now or with those after it: ``flush`` says that there are none."""
        self._waiting.append(file)
        self._bytes += len(file.data)
        if self._bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Audit what waits: by columns where frames are clean, else one by one."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting:
            self._files(waiting)

    def _files(self, files: list[JudgedFile]) -> None:
        read = None if self._reading.one_by_one else self.by_columns(files)
        if read is None and len(files) > 1:  # something in some of them is not for columns
            for file in files:
                self._files([file])
            return
        if read is None:
            self._one_by_one(files[0])
            return
        batch, clean, written = read
        for number in np.flatnonzero(~clean).tolist():
            file, offset = files[batch.file[number]], int(batch.offset[number])
            piece = piece_at(file.data, offset)
            if isinstance(piece, str):  # nobody looked at its checksum before
                where = Evidence(file.where.path, file.where.offset + offset, len(file.data) - offset)
                reason = f"{where.path}, offset {where.offset}: {piece}"
                self._told.found("damaged-frame", where.path, reason, [where], title=NO_FRAME)
                continue
            self._frame(self._reading.frames.frame(piece, file.where, file.by.keyring), file, self._rank + number)
        if self._timeline and written:
            self._timeline.clean_frames(written)
        self._rank += len(clean)

    def _one_by_one(self, file: JudgedFile) -> None:
        several, damage = self._reading.frames.frames(file.data, file.where.path, file.by.keyring, file.where.offset)
        for where, reason in damage:
            self._told.found("damaged-frame", file.where.path, reason, [where], title=NO_FRAME)
        for number, frame in enumerate(several):
            self._frame(frame, file, self._rank + number)
        self._rank += len(several)

    def _frame(self, frame: FrameEvidence, file: JudgedFile, rank: int) -> None:
        by, seen, after = file.by, file.by.seen, file.by.after
        misplaced = list(bag_rules.frame_place(frame, file.name, by.bag, by.lock))
        self._told.report(*misplaced)
        self._check_records(frame, by.lock, by.where)
        if after.get(id(frame.token)) is not frame.token:  # many frames share one, and the answer
            broken = list(stamp_after_frame(frame, by.closed))
            self._told.report(*broken)
            if not broken and frame.refusal is None:
                after[id(frame.token)] = frame.token
        judgement = judge_frame(
            frame,
            by.bag,
            by.policy_of(frame.frame.head.policy_number),
            misplaced=bool(misplaced),
            widest=self._records.widest,
        )
        self._told.report(*judgement.findings)
        # An attempt that was repeated: equal frames within a bag count once.
        digest = frame.frame.digest
        if not self._reading.hashed:
            digest = digest[:CHECKSUM_BYTES] + frames.NO_CHECK
        if self._timeline:
            twice = digest in seen
            self._timeline.frame(frame, file, twice=twice, misplaced=bool(misplaced), rank=rank)
        if digest in seen:
            return
        accepted, first, last = judgement.span(frame.frame.timestamps)
        if accepted:
            seen.add(digest)
        self._told.counts.messages += accepted
        self._told.counts.rejected += len(judgement.accepted) - accepted
        self._told.trust_named.add(min(frame.frame.head.trust_number, by.lock.trust_number))
        self._keep(frame, digest, accepted, (first, last), rank, counts=by.counts)

    def _check_records(self, frame: FrameEvidence, lock: LockFile, lock_where: Evidence) -> None:
        """stale-lock, or unknown-record, of a frame that names a newer record than the list that it is in."""
        head = frame.frame.head
        named = {
            Kind.TRUST: (head.trust_number, lock.trust_number),
            Kind.POLICY: (head.policy_number, lock.policy_number),
        }
        for kind, (number, limit) in named.items():
            if 1 <= number <= limit:
                continue
            if not self._records.unknown(kind, number):
                self._told.report(bag_rules.stale_lock(frame, kind, number, limit, lock_where))
            elif number < 1:
                self._told.report(bag_rules.unknown_record(frame, kind, number))
            else:
                unknown = bag_rules.unknown_record(frame, kind, number)
                self._doubts[kind].append(Stranger(unknown, frame.token.interval.latest))

    def take_open(self, frame: FrameEvidence, digest: bytes) -> None:
        """Remember a frame of a bag that is still open, as evidence only."""
        self.flush()
        timestamps = frame.frame.timestamps
        self._told.trust_named.add(frame.frame.head.trust_number)
        self._keep(frame, digest, 0, (int(timestamps[0]), int(timestamps[-1])), self._rank, counts=True)
        self._rank += 1

    def _keep(
        self, frame: FrameEvidence, digest: bytes, accepted: int, span: tuple[int, int], rank: int, *, counts: bool
    ) -> None:
        """Keep rows about a frame that was judged by itself. ``accepted``: how many of its messages are in the record.

        ``span``: their first and last; ``rank``: how many frames were read before it; ``counts``: whether it is known
        that its list counts.
        """
        if frame.refusal is None and frame.token is not self._newest_of_frames:
            self._newest_of_frames = frame.token
            self._told.saw(frame.token)
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
            committed_digest=bytes(32) if named is None or not self._reading.hashed else named.digest,
            earliest=token.interval.earliest,
            latest=latest,
            staleness=token.staleness_ns,
        )
        for held in frame.carried:
            if held.refusal is None:
                self._told.add_head(held.head, held.head_digest, held.signed.head, frame.where, rank)
                domain = held.witness.domain if isinstance(held, HeldWitness) else ""
                name = (held.head.incarnation, held.head.sequence, held.head_digest)
                entry, position = held.signed.entry, held.signed.index
                self._entries.add_one(domain, place, rank, name, entry, position=position, kind=OTHER)
        for held, staying in frame.leases():
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
                digest=digest if self._reading.hashed else bytes(32),
                staying=staying,
            )

    # By columns.

    def by_columns(self, files: Sequence[JudgedFile]) -> tuple[FrameBatch, layout.Flags, FrameColumns | None] | None:
        """Judge the frames of some files by columns; count those that are clean, and keep rows about them.

        Returns the frames, which of them are clean, and these as a timeline is told of them, where one is.
        None: nothing was judged, because something in some of the files is not for columns.
        """
        by, rank = files[0].by, self._rank
        if by.keyring is None or by.policy is None or any(file.name is None or not file.by.counts for file in files):
            return None
        if any(file.by.keyring is not by.keyring or file.by.policy is not by.policy for file in files):
            return None
        try:
            batch = FrameBatch(files, self._heads)
            witnesses = Witnesses(batch.heads, self._reading.frames, by.keyring, self._signed, self._entry_shapes)
            tokens = FrameTokens(batch, self._reading.frames)
        except (NotPlain, Damaged, ValueError):
            return None
        clean = tokens.clean & batch.within_bags(tokens)
        frames.check_witnesses(batch, witnesses, tokens, clean)
        chosen = np.flatnonzero(clean)
        self._keep_frames(batch, tokens, chosen, rank)
        self._keep_uses(batch, witnesses, tokens, clean, rank)
        self._tell_heads(batch, witnesses, clean, rank)
        self._told.counts.messages += int(batch.counts[chosen].sum())
        self._told.trust_named.update(np.unique(batch.trust_number[chosen]).tolist())
        for token in tokens.of(chosen):
            self._told.saw(token)
        for number, file in zip(chosen.tolist(), batch.file[chosen].tolist(), strict=True):
            files[file].by.seen.add(batch.names[number])
        return batch, clean, frames.columns_of(batch, witnesses, tokens, chosen, rank) if self._timeline else None

    def _keep_frames(self, batch: FrameBatch, tokens: FrameTokens, chosen: layout.Column, rank: int) -> None:
        rows = np.zeros(len(chosen), FRAME)
        file = batch.file[chosen]
        rows["name"] = self._rows.names.all_of(batch.writers)[file]
        rows["path"] = self._paths(self._rows, batch)[file]
        rows["plain"], rows["proven"] = True, True
        rows["sequence"], rows["first"], rows["last"] = batch.sequence[chosen], batch.first[chosen], batch.last[chosen]
        rows["digest"] = batch.digests[chosen]
        rows["committed"] = batch.heads.number("committed.sequence", NOTHING)[chosen]
        if self._reading.hashed:  # else no frame's digest is known
            rows["committed_digest"] = batch.heads.identifiers("committed.digest", 4)[chosen]
        midpoint, radius = tokens.midpoint[chosen], tokens.radius[chosen]
        rows["earliest"], rows["latest"] = midpoint - radius, midpoint + radius
        rows["staleness"] = tokens.staleness[chosen]
        rows["offset"], rows["length"], rows["rank"] = batch.places[chosen], batch.length[chosen], rank + chosen
        self._rows.add(rows)

    def _keep_uses(
        self, batch: FrameBatch, witnesses: Witnesses, tokens: FrameTokens, clean: layout.Flags, rank: int
    ) -> None:
        chosen = np.flatnonzero(clean[witnesses.frame])
        if not len(chosen):
            return
        frame, which = witnesses.frame[chosen], witnesses.which[chosen]
        uses = self._uses
        rows = np.zeros(len(chosen), USE)
        rows["path"] = self._paths(uses, batch)[batch.file[frame]]
        rows["name"] = uses.names.all_of(witnesses.domains)[witnesses.domain[which]]
        told, rows["head"] = used_of(witnesses.batch[which], len(witnesses.batches))
        heads = witnesses.head_names()  # of which only those of clean frames are told of
        rows["head"] = uses.heads.all_of([heads[n] for n in told])[rows["head"]]
        rows["cid"] = witnesses.correlation[which]
        rows["position"], rows["settle_to"] = witnesses.position[which], witnesses.settle_to[which]
        rows["plain"], rows["proven"], rows["staying"], rows["accepted"] = True, True, True, batch.counts[frame]
        rows["messages"], rows["first"], rows["last"] = batch.counts[frame], batch.first[frame], batch.last[frame]
        rows["signed"], rows["sequence"] = tokens.latest[frame], batch.sequence[frame]
        if self._reading.hashed:
            rows["digest"] = batch.digests[frame]
        rows["offset"], rows["length"], rows["rank"] = batch.places[frame], batch.length[frame], rank + frame
        used, rows["at"] = used_of(which, witnesses.count)
        uses.add(rows, [witnesses.entries[n] for n in used])

    def _paths(self, maker: ChunkMaker, batch: FrameBatch) -> NDArray[np.uint32]:
        return maker.paths.all_of(self._told.shown(file.where.path) for file in batch.files)

    def _tell_heads(self, batch: FrameBatch, witnesses: Witnesses, clean: layout.Flags, rank: int) -> None:
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
            self._entries.add_one("", place, rank + first, name, entry, position=position, kind=OTHER)
