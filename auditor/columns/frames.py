"""The frames of one data file, all at once: which of them are clean, and rows about those.

A frame is clean if no rule about frames finds anything and readers accept all of its messages: every condition of
``auditor.rules.time`` and ``auditor.rules.signatures``, asked of columns. Whatever is not clean by these columns, or of
a sort that they do not know (session leases, several witnesses of one lease), is left to be judged one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from appliance.formats.frame import FRAME_MESSAGES_MAX, WITNESSES_MAX, FrameHead, frame_digest
from appliance.formats.framing import Kind, pieces
from appliance.formats.lease import Phase
from appliance.formats.witness import SignedWitness, Witness, decode_entries
from auditor.finding import Evidence
from timeagent.canonical import decode_all
from timeagent.errors import Damaged
from timeagent.rules import r2_holds

from .layout import FRAME, FRAMES, NOTHING, NUMBER_MAX, USE, USES, ChunkMaker, numbers, small

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from appliance.formats.framing import Piece
    from appliance.formats.lockfile import LockFile
    from appliance.formats.paths import Bag, DataName
    from appliance.formats.policy import Policy
    from auditor.frames import FrameReader
    from auditor.index import Rows as IndexRows
    from timeagent.signedtime import SignedTime
    from timeagent.trust import Keyring

    from .layout import Chunk

type Flags = NDArray[np.bool_]
type Column = NDArray[np.int64]

_SHARED: Final = attrgetter("cluster_id", "log", "writer", "incarnation", "trust_number", "policy_number")
_KIND: Final = attrgetter("mode", "phase", "session_id", "holder.node", "holder.incarnation")


@dataclass(frozen=True, slots=True)
class BagRules:
    """What the frames of a bag are judged by."""

    bag: Bag
    lock: LockFile
    closed: SignedTime | None
    """The lock file's signed time, if it holds."""
    keyring: Keyring | None
    policy: Policy | None


@dataclass(frozen=True, slots=True)
class FileFrames:
    """What the columns of a file came to."""

    pieces: list[Piece]
    doubtful: list[int]
    """Numbers of the frames that are not clean by columns."""
    digests: list[bytes]
    messages: int
    """Of the clean frames."""
    tokens: list[SignedTime]
    """Signed times of clean frames, each once, in order."""
    trust_numbers: set[int]


class FrameColumns:
    """Gathers the columns of one rack."""

    def __init__(self, frames: FrameReader, index: IndexRows) -> None:
        """Take who checks signatures, and who is told of batch heads."""
        self._frames = frames
        self._index = index
        self._rows = ChunkMaker(FRAMES)
        self._uses = ChunkMaker(USES)

    def chunks(self) -> list[Chunk]:
        """Return everything that was gathered."""
        return [*self._rows.chunks(), *self._uses.chunks()]

    def read(
        self, data: bytes, where: Evidence, name: DataName | None, by: BagRules, seen: set[bytes], rank: int
    ) -> FileFrames | None:
        """Judge the frames of a file by columns, and keep rows about those that are clean.

        ``where``: the file, or where in a pack it begins. ``seen``: digests of frames of the bag, which count once;
        takes the new ones. ``rank``: of the first frame. None: the file is to be judged frame by frame.
        """
        if by.keyring is None or by.policy is None or name is None:
            return None
        whole, rest = pieces(data)
        if rest or not whole or any(piece.kind is not Kind.FRAME for piece in whole):
            return None
        try:
            file = _File([piece.payload for piece in whole])
            witnesses = _Witnesses(file.heads, self._frames, by.keyring)
        except (_OneByOne, Damaged):
            return None
        if not _placed(file.heads, name, by):
            return None
        digests = list(map(frame_digest, file.payloads))
        if len(set(digests)) != len(digests) or not seen.isdisjoint(digests):
            return None
        tokens = _Tokens(file.heads, self._frames, by)
        clean = tokens.clean & _within_bag(file, tokens, by)
        writer = (file.heads[0].writer, file.heads[0].incarnation)
        fits = witnesses.fit(file, tokens, by.policy.lease_term_max_ns, writer)
        clean[witnesses.frame[~fits]] = False
        clean[witnesses.doubtful_frames(len(clean))] = False
        chosen = np.flatnonzero(clean)
        offsets = np.fromiter((piece.offset for piece in whole), np.int64, len(whole)) + where.offset
        lengths = np.fromiter((piece.end - piece.offset for piece in whole), np.int64, len(whole))
        places = (self._index.shown(where.path), offsets, lengths, rank + np.arange(len(whole)))
        self._keep_frames(file, digests, chosen, writer, places)
        self._keep_uses(file, witnesses, tokens, clean, places)
        self._tell_heads(witnesses, clean, where, offsets, lengths, rank)
        kept = chosen.tolist()
        seen.update([digests[n] for n in kept])
        return FileFrames(
            pieces=whole,
            doubtful=np.flatnonzero(~clean).tolist(),
            digests=digests,
            messages=int(file.counts[chosen].sum()),
            tokens=tokens.of(kept),
            trust_numbers={file.heads[n].trust_number for n in kept},
        )

    def _keep_frames(
        self,
        file: _File,
        digests: list[bytes],
        chosen: Column,
        writer: tuple[str, bytes],
        places: tuple[str, Column, Column, Column],
    ) -> None:
        rows = np.zeros(len(chosen), FRAME)
        path, offsets, lengths, ranks = places
        rows["name"] = self._rows.names.of(writer)
        rows["path"] = self._rows.paths.of(path)
        rows["sequence"], rows["first"], rows["last"] = file.sequence[chosen], file.first[chosen], file.last[chosen]
        rows["digest"] = numbers(b"".join(digests), 4)[chosen]
        rows["committed"] = file.committed[chosen]
        rows["committed_digest"] = numbers(b"".join(file.committed_digests), 4)[chosen]
        rows["offset"], rows["length"], rows["rank"] = offsets[chosen], lengths[chosen], ranks[chosen]
        self._rows.add(rows)

    def _keep_uses(
        self,
        file: _File,
        witnesses: _Witnesses,
        tokens: _Tokens,
        clean: Flags,
        places: tuple[str, Column, Column, Column],
    ) -> None:
        chosen = np.flatnonzero(clean[witnesses.frame])
        frame, which = witnesses.frame[chosen], witnesses.which[chosen]
        uses, path, (_, offsets, lengths, ranks) = self._uses, places[0], places
        name = np.fromiter((uses.names.of(each.domain) for each in witnesses.told), np.uint32, len(witnesses.told))
        head = np.fromiter((uses.heads.of(each) for each in witnesses.heads), np.uint32, len(witnesses.heads))
        rows = np.zeros(len(chosen), USE)
        rows["path"] = uses.paths.of(path)
        rows["name"], rows["head"], rows["cid"] = name[which], head[which], witnesses.cids[which]
        rows["position"], rows["settle_to"] = witnesses.position[which], witnesses.settle_to[which]
        rows["messages"], rows["first"], rows["last"] = file.counts[frame], file.first[frame], file.last[frame]
        rows["signed"] = (tokens.latest + tokens.staleness)[frame]
        rows["offset"], rows["length"], rows["rank"] = offsets[frame], lengths[frame], ranks[frame]
        uses.add(rows, [witnesses.entries[n] for n in which.tolist()])

    def _tell_heads(
        self, witnesses: _Witnesses, clean: Flags, where: Evidence, offsets: Column, lengths: Column, rank: int
    ) -> None:
        """Tell the index of each batch head by the first clean frame that carries it."""
        told: set[int] = set()
        kept = np.flatnonzero(clean[witnesses.frame])
        for frame, which in zip(witnesses.frame[kept].tolist(), witnesses.which[kept].tolist(), strict=True):
            batch = witnesses.batch[which]
            if batch in told:
                continue
            told.add(batch)
            known, raw = witnesses.batches[batch]
            head = known.head
            self._index.add(
                "head",
                *(head.incarnation, head.sequence, known.digest, head.map_number, head.shard, head.ceiling_number),
                *(False, raw),
                where=Evidence(where.path, int(offsets[frame]), int(lengths[frame])),
                rank=rank + frame,
            )


class _OneByOne(Exception):
    """The file holds something that columns do not judge."""


class _File:
    """The frames of a file, decoded, with a column for each number. Raises _OneByOne, Damaged."""

    def __init__(self, payloads: list[bytes]) -> None:
        self.payloads = payloads
        raw_heads, counts, instants, lengths = [], [], [], []
        rests = np.zeros(len(payloads), np.int64)
        for number, payload in enumerate(payloads):
            head_end = 4 + int.from_bytes(payload[:4], "little")
            columns = head_end + 4
            count = int.from_bytes(payload[head_end:columns], "little")
            middle, end = columns + 8 * count, columns + 12 * count
            if not 0 < count <= FRAME_MESSAGES_MAX or end > len(payload):
                raise _OneByOne
            raw_heads.append(payload[4:head_end])
            counts.append(count)
            instants.append(payload[columns:middle])
            lengths.append(payload[middle:end])
            rests[number] = len(payload) - end
        self.heads = decode_all(FrameHead, raw_heads)
        self.counts: Column = np.array(counts, np.int64)
        ends = np.cumsum(self.counts)
        starts = ends - self.counts
        times = np.frombuffer(b"".join(instants), "<i8")
        rising = times[1:] > times[:-1]
        rising[starts[1:] - 1] = True
        totals = np.add.reduceat(np.frombuffer(b"".join(lengths), "<u4"), starts, dtype=np.int64)
        self.first: Column = times[starts]
        self.last: Column = times[ends - 1]
        if not rising.all() or not (totals == rests).all() or not small(self.first).all() or not small(self.last).all():
            raise _OneByOne
        self._check_attempts(counts)
        self.sequence: Column = np.fromiter((each.sequence for each in self.heads), np.int64, len(self.heads))
        named = [each.committed for each in self.heads]
        self.committed: Column = np.fromiter(
            (NOTHING if each is None else each.sequence for each in named), np.int64, len(named)
        )
        self.committed_digests = [bytes(32) if each is None else each.digest for each in named]

    def _check_attempts(self, counts: list[int]) -> None:
        for head, count in zip(self.heads, counts, strict=True):
            attempts = head.attempts
            if len(attempts) == 1:
                if attempts[0].messages != count:
                    raise _OneByOne
            elif sum(each.messages for each in attempts) != count or any(each.messages == 0 for each in attempts):
                raise _OneByOne


class _Tokens:
    """The signed times of frames as columns: each is checked once."""

    def __init__(self, heads: Sequence[FrameHead], frames: FrameReader, by: BagRules) -> None:
        raw = [head.time for head in heads]
        numbered = {each: number for number, each in enumerate(dict.fromkeys(raw))}
        self._known: list[SignedTime] = []
        good = []
        for each in numbered:
            known = frames.token(each, heads[0].writer, by.keyring)
            token, stamp = known.token, by.closed
            self._known.append(token)
            good.append(
                known.refusal is None
                and known.stranger is None
                and (stamp is None or r2_holds(token, stamp, effect_covers_cause=True))
                and max(token.midpoint_ns, token.radius_ns, token.staleness_ns) < NUMBER_MAX
            )
        self._which = np.fromiter(map(numbered.__getitem__, raw), np.int64, len(raw))
        clean = np.array(good)
        safe = [token if fine else None for token, fine in zip(self._known, good, strict=True)]
        self.clean: Flags = clean[self._which]
        self.midpoint: Column = _column((0 if t is None else t.midpoint_ns for t in safe), self._which)
        self.radius: Column = _column((0 if t is None else t.radius_ns for t in safe), self._which)
        self.staleness: Column = _column((0 if t is None else t.staleness_ns for t in safe), self._which)

    @property
    def latest(self) -> Column:
        return self.midpoint + self.radius

    def of(self, frames: list[int]) -> list[SignedTime]:
        """Return the signed times of some frames, each once, in order."""
        return [self._known[n] for n in dict.fromkeys(self._which[frames].tolist())]


def _column(values: Iterable[int], which: NDArray[np.int64]) -> Column:
    return np.array(list(values), np.int64)[which]


class _Witnesses:
    """The witnesses that frames carry: each is opened once. Raises Damaged."""

    def __init__(self, heads: Sequence[FrameHead], frames: FrameReader, keyring: Keyring) -> None:
        carried = [head.witnesses for head in heads]
        count = list(map(len, carried))
        if max(count) > WITNESSES_MAX:
            raise _OneByOne
        self.frame: NDArray[np.int64] = np.repeat(np.arange(len(heads)), count)
        self._several = [n for n, each in enumerate(count) if each > 1]
        raw = [each for several in carried for each in several]
        numbered = {each: number for number, each in enumerate(dict.fromkeys(raw))}
        self.which: NDArray[np.int64] = np.fromiter(map(numbered.__getitem__, raw), np.int64, len(raw))
        signed = decode_all(SignedWitness, list(numbered))
        self.entries = [each.entry for each in signed]
        told = decode_entries(self.entries)
        if any(type(each) is not Witness for each in told):
            raise _OneByOne
        self.told: list[Witness] = told  # type: ignore[assignment]
        self.batches: list[tuple[Any, bytes]] = []
        self.batch: list[int] = []
        known: dict[tuple[bytes, bytes], int] = {}
        holds = []
        for each in signed:
            name = (each.head, each.signature)
            batch = known.get(name)
            if batch is None:
                batch = known[name] = len(self.batches)
                self.batches.append((frames.head(each, keyring), each.head))
            self.batch.append(batch)
            holds.append(self.batches[batch][0].paths.holds(each.entry, each.index, each.path))
        self._holds: Flags = np.array(holds, np.bool_)
        self.heads = [self._name(batch) for batch in self.batch]
        self.position = np.fromiter((each.index for each in signed), np.int64, len(signed))
        self.cids = numbers(b"".join([each.correlation_id for each in self.told]), 2)
        self.settle_to = self._told("settle_to_ns")

    def _name(self, batch: int) -> tuple[bytes, int, bytes]:
        known = self.batches[batch][0]
        return known.head.incarnation, known.head.sequence, known.digest

    def _told(self, attribute: str) -> Column:
        return np.fromiter(map(attrgetter(attribute), self.told), np.int64, len(self.told))

    def fit(self, file: _File, tokens: _Tokens, term_ns_max: int, writer: tuple[str, bytes]) -> Flags:
        """Say of each witness of each frame whether its frame may be clean."""
        if not self.told:
            return np.zeros(0, np.bool_)
        tokens_of = [known.token for known, _ in self.batches]
        sound = [
            known.refusal is None
            and known.stranger is None
            and max(token.midpoint_ns, token.radius_ns, term_ns_max) < NUMBER_MAX
            for (known, _), token in zip(self.batches, tokens_of, strict=True)
        ]
        safe = [token if fine else None for token, fine in zip(tokens_of, sound, strict=True)]
        batch = np.array(self.batch, np.int64)
        midpoint = _column((0 if t is None else t.midpoint_ns for t in safe), batch)
        radius = _column((0 if t is None else t.radius_ns for t in safe), batch)
        floor, expiry = self._told("floor_ns"), self._told("expiry_ns")
        kinds = list(map(_KIND, self.told))
        fine = {kind: self._usual(kind, writer) for kind in set(kinds)}
        good = (
            self._holds
            & np.array(sound)[batch]
            & np.fromiter(map(fine.__getitem__, kinds), np.bool_, len(kinds))
            & (expiry <= midpoint + term_ns_max + radius)
            & small(self.position)
            & small(self.settle_to)
        )
        frame, which = self.frame, self.which
        fits: Flags = (
            good[which]
            & (floor[which] < file.first[frame])
            & (file.last[frame] < expiry[which])
            & ((tokens.latest + tokens.staleness)[frame] >= (midpoint - radius)[which])
        )
        return fits

    @staticmethod
    def _usual(kind: tuple[Any, ...], writer: tuple[str, bytes]) -> bool:
        mode, phase, session_id, *holder = kind
        return bool(mode.may_write and phase is Phase.HELD and session_id is None and tuple(holder) == writer)

    def doubtful_frames(self, count: int) -> Flags:
        """Say which frames carry several witnesses of one lease: which of them counts is left to the rules."""
        found = np.zeros(count, np.bool_)
        for frame in self._several:
            carried = self.which[self.frame == frame].tolist()
            found[frame] = len({self.told[n].correlation_id for n in carried}) != len(carried)
        return found


def _placed(heads: Sequence[FrameHead], name: DataName, by: BagRules) -> bool:
    """Whether all frames of the file are of one run of a writer, and belong here."""
    shared = set(map(_SHARED, heads))
    lock = by.lock
    return len({each[:4] for each in shared}) == 1 and all(
        (cluster_id, log, writer) == (lock.cluster_id, by.bag.log, name.writer)
        and trust_number <= lock.trust_number
        and policy_number == lock.policy_number  # else each frame is judged by the policy that it names
        for cluster_id, log, writer, _, trust_number, policy_number in shared
    )


def _within_bag(file: _File, tokens: _Tokens, by: BagRules) -> Flags:
    """Say which frames lie in their bag, and near their signed time."""
    assert by.policy is not None
    if by.policy.r1_tolerance_ns >= NUMBER_MAX:
        return np.zeros(len(file.first), np.bool_)
    allowed = tokens.radius + by.policy.r1_tolerance_ns
    return (
        (file.first >= by.bag.start_ns)
        & (file.last < by.bag.end_ns)
        & (file.first >= tokens.midpoint - allowed)
        & (file.last <= tokens.midpoint + allowed)
    )
