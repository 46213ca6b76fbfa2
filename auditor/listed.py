"""The frames of the files that a bag was closed with: judged, counted, and told to the index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .coverage import later
from .indexing import index_frame
from .rules import bags as bag_rules
from .rules.registry import found
from .rules.signatures import frame_findings
from .rules.time import judge_frame, stamp_after_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from appliance.formats.paths import DataName
    from appliance.formats.policy import Policy
    from timeagent.signedtime import SignedTime

    from .columns.frames import BagRules, FrameColumns
    from .finding import Evidence, Finding
    from .frames import FrameEvidence, FrameReader
    from .index import Rows
    from .seals import BagCounts


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that a bag was closed with, and what its frames are judged by."""

    by: BagRules
    name: DataName | None
    lock_where: Evidence
    seen: set[bytes]
    """Digests of the frames of the bag that count."""
    after: dict[int, SignedTime]
    """Signed times that are not after the lock file's."""
    policy_of: Callable[[int], Policy | None]
    """The policy by which a frame is judged that names one with this number."""
    term_ns_max: int | None
    """The longest term of any policy."""


class FrameJudge:
    """Judges the frames of one file after another."""

    def __init__(
        self,
        frames: FrameReader,
        index: Rows,
        report: Callable[[Finding], None],
        counts: BagCounts,
        trust_named: set[int],
        columns: FrameColumns | None,
    ) -> None:
        """Take who reads frames, and who is told what of them. ``counts``, ``trust_named``: are added to."""
        self._frames = frames
        self._index = index
        self._report = report
        self._counts = counts
        self._trust_named = trust_named
        self._columns = columns
        self._rank = 0
        """How many frames were read."""
        self._newest_of_frames: SignedTime | None = None
        self.newest: SignedTime | None = None
        """The latest signed time that holds."""

    def file(self, data: bytes, place: Evidence, file: ListedFile) -> None:
        """Audit the frames of a listed file: by columns where they are clean, else one by one."""
        rank, by = self._rank, file.by
        read = self._columns.read(data, place, file.name, by, file.seen, rank) if self._columns else None
        if read is None:
            frames, damage = self._frames.frames(data, place.path, by.keyring, place.offset)
            for where, reason in damage:
                self._report(found("damaged-frame", place.path, reason, [where]))
            for number, frame in enumerate(frames):
                self._frame(frame, file, rank + number)
            self._rank += len(frames)
            return
        self._rank += len(read.pieces)
        self._counts.messages += read.messages
        self._trust_named |= read.trust_numbers
        for token in read.tokens:
            self.newest = later(self.newest, token)
        for number in read.doubtful:
            self._frame(self._frames.frame(read.pieces[number], place, by.keyring), file, rank + number)

    def _frame(self, frame: FrameEvidence, file: ListedFile, rank: int) -> None:
        """Audit one frame of a listed file."""
        by, seen, after = file.by, file.seen, file.after
        misplaced = list(bag_rules.frame_place(frame, file.name, by.bag, by.lock, file.lock_where))
        self._report_all(misplaced)
        if not frame.sound:
            self._report_all(frame_findings(frame))
        if after.get(id(frame.token)) is not frame.token:  # many frames share one, and the answer
            broken = list(stamp_after_frame(frame, by.closed))
            self._report_all(broken)
            if not broken and frame.refusal is None:
                after[id(frame.token)] = frame.token
        judgement = judge_frame(
            frame,
            by.bag,
            file.policy_of(frame.frame.head.policy_number),
            misplaced=any(each.code == "damaged-frame" for each in misplaced),
            term_ns_max=file.term_ns_max,
        )
        self._report_all(judgement.findings)
        # An attempt that was repeated: equal frames within a bag count once.
        digest = frame.frame.digest
        if digest in seen:
            return
        accepted, first, last = judgement.span(frame.frame.timestamps)
        if accepted:
            seen.add(digest)
        self._counts.messages += accepted
        self._counts.rejected += len(judgement.accepted) - accepted
        self._remember(frame, digest, accepted, (first, last), rank)

    def take_open(self, frame: FrameEvidence, digest: bytes) -> None:
        """Remember a frame of a bag that is still open, as evidence only."""
        timestamps = frame.frame.timestamps
        self._remember(frame, digest, 0, (int(timestamps[0]), int(timestamps[-1])), self._rank)
        self._rank += 1

    def _remember(self, frame: FrameEvidence, digest: bytes, accepted: int, span: tuple[int, int], rank: int) -> None:
        if frame.refusal is None and frame.token is not self._newest_of_frames:
            self._newest_of_frames = frame.token
            self.newest = later(self.newest, frame.token)
        self._trust_named.add(frame.frame.head.trust_number)
        index_frame(self._index, frame, digest, accepted, span, rank)

    def _report_all(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._report(finding)
