"""The frames of the files that a bag was closed with: judged, counted, and told to the index."""

from __future__ import annotations

import itertools
from typing import Final

from appliance.formats.framing import CHECKSUM_BYTES, Kind, piece_at
from appliance.formats.lockfile import LockFile
from timeagent.signedtime import SignedTime

from .columns.cutting import NO_CHECK
from .columns.frames import JudgedFile, RackColumns
from .evidence.records import Stranger
from .evidence.signatures import FrameEvidence
from .parts import EvidenceSource, PartMaker
from .rules import bags as bag_rules
from .rules.finding import Evidence, found
from .rules.records import frame_findings
from .rules.time import judge_frame, stamp_after_frame
from .timeline.facts import RackFacts

NO_FRAME: Final = "a listed file holds a frame that is none"
BATCH_BYTES: Final = 16 * 1024 * 1024
"""So much is read before it is judged: columns are worth the more, the longer they are."""


class FrameJudge:
    """Judges the frames of one file after another."""

    def __init__(
        self, reading: EvidenceSource, told: PartMaker, columns: RackColumns, timeline: RackFacts | None = None
    ) -> None:
        """Take what is read. ``told``: takes all that is found; ``timeline``: told of frames, too."""
        self._timeline = timeline
        self._reading = reading
        self._records = reading.records
        self._told = told
        self._part = told.part
        self._doubts = {Kind.TRUST: told.part.unknown_keys, Kind.POLICY: told.part.beyond_policy}
        """Frames that name a record beyond the newest of the copy, which may have come too early for it."""
        self._columns = columns
        self._rank = 0
        """How many frames were read."""
        self._waiting: list[JudgedFile] = []
        self._bytes = 0
        self._newest_of_frames: SignedTime | None = None

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
        read = None if self._reading.one_by_one else self._columns.read(files, self._rank)
        if read is None and len(files) > 1:  # something in some of them is not for columns
            for file in files:
                self._files([file])
            return
        if read is None:
            self._one_by_one(files[0])
            return
        first = self._rank
        self._part.counts.messages += read.messages
        self._part.trust_named |= read.trust_numbers
        for token in read.tokens:
            self._told.saw(token)
        begins = list(itertools.accumulate(read.frames, initial=first))
        if self._timeline and read.written:
            self._timeline.clean_from(read.written)
        for number, place, offset in read.doubtful:
            file = files[number]
            piece = piece_at(file.data, offset)
            if isinstance(piece, str):  # nobody looked at its checksum before
                where = Evidence(file.where.path, file.where.offset + offset, len(file.data) - offset)
                reason = f"{where.path}, offset {where.offset}: {piece}"
                self._told.report(found("damaged-frame", where.path, reason, [where], title=NO_FRAME))
                continue
            self._frame(self._reading.frames.frame(piece, file.where, file.by.keyring), file, begins[number] + place)
        if self._timeline and read.written:
            self._timeline.clean_frames(read.written)
        self._rank = begins[-1]

    def _one_by_one(self, file: JudgedFile) -> None:
        frames, damage = self._reading.frames.frames(file.data, file.where.path, file.by.keyring, file.where.offset)
        for where, reason in damage:
            self._told.report(found("damaged-frame", file.where.path, reason, [where], title=NO_FRAME))
        for number, frame in enumerate(frames):
            self._frame(frame, file, self._rank + number)
        self._rank += len(frames)

    def _frame(self, frame: FrameEvidence, file: JudgedFile, rank: int) -> None:
        """Audit one frame of a listed file."""
        by, seen, after = file.by, file.seen, file.after
        misplaced = list(bag_rules.frame_place(frame, file.name, by.bag, by.lock))
        self._told.report(*misplaced)
        self._check_records(frame, by.lock, file.lock_where)
        if not frame.proven:
            self._told.report(*frame_findings(frame))
        if after.get(id(frame.token)) is not frame.token:  # many frames share one, and the answer
            broken = list(stamp_after_frame(frame, by.closed))
            self._told.report(*broken)
            if not broken and frame.refusal is None:
                after[id(frame.token)] = frame.token
        judgement = judge_frame(
            frame,
            by.bag,
            file.policy_of(frame.frame.head.policy_number),
            misplaced=bool(misplaced),
            widest=self._records.widest,
        )
        self._told.report(*judgement.findings)
        # An attempt that was repeated: equal frames within a bag count once.
        digest = frame.frame.digest
        if not self._reading.hashed:
            digest = digest[:CHECKSUM_BYTES] + NO_CHECK
        if self._timeline:
            twice = digest in seen
            self._timeline.frame(frame, file, judgement, twice=twice, misplaced=bool(misplaced), rank=rank)
        if digest in seen:
            return
        accepted, first, last = judgement.span(frame.frame.timestamps)
        if accepted:
            seen.add(digest)
        self._part.counts.messages += accepted
        self._part.counts.rejected += len(judgement.accepted) - accepted
        self._part.trust_named.add(min(frame.frame.head.trust_number, by.lock.trust_number))
        self._remember(frame, digest, accepted, (first, last), rank, counts=by.counts)

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
        self._part.trust_named.add(frame.frame.head.trust_number)
        self._remember(frame, digest, 0, (int(timestamps[0]), int(timestamps[-1])), self._rank, counts=True)
        self._rank += 1

    def _remember(
        self, frame: FrameEvidence, digest: bytes, accepted: int, span: tuple[int, int], rank: int, *, counts: bool
    ) -> None:
        """Remember a frame. ``accepted``: how many of its messages are in the record; ``span``: their first and last.

        ``rank``: how many frames were read before it. ``counts``: whether it is known that its list counts.
        """
        if frame.refusal is None and frame.token is not self._newest_of_frames:
            self._newest_of_frames = frame.token
            self._told.saw(frame.token)
        self._columns.keep(frame, digest, accepted, span, rank, counts=counts)
