"""Takes what columns judge, and puts what they do not find clean into the index, row by row, for the rules."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from auditor.pool import in_order
from timeagent.canonical import DIGEST_BYTES

from . import domains
from .domains import Writer
from .heads import Heads
from .layout import ENDED, ENTRIES, FRAMES, NOTHING, USES, Bucket, bucket_of
from .sessions import SessionColumns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from auditor.chains import HeadFact
    from auditor.history import SessionHistory, SessionName
    from auditor.index import Index
    from auditor.rows import Value
    from auditor.rules.agreement import ClusterFacts

    from .layout import Rows

_WORTH_IT: Final = 2_000_000
"""With fewer bytes of columns than this, other processes are not asked."""
_decoder: Final = msgspec.msgpack.Decoder(tuple[list[str], int, list[Writer]])


@dataclass(slots=True)
class ColumnJudge:
    """Judges one bucket after another. Each process reads the index by a connection of its own."""

    index: Index
    heads: Heads
    sessions: SessionColumns
    cluster: ClusterFacts
    domains_in_rows: AbstractSet[str]
    writers_in_rows: AbstractSet[Writer]
    """Of which something is known by rows: judged by the rules in any case."""
    process: int = field(default_factory=os.getpid)

    def judge(self, bucket: int) -> bytes:
        """Return suspect domains, witnesses of clean ones, and suspect writers, encoded."""
        if self.process != os.getpid():
            self.process, self.index = os.getpid(), self.index.view()
        entries, uses = self.index.bucket(ENTRIES, bucket), self.index.bucket(USES, bucket)
        seen = domains.judge_domains(entries, uses, self.heads, self.sessions, self.cluster, self.domains_in_rows)
        del entries, uses
        suspects = domains.judge_writers(self.index.bucket(FRAMES, bucket), self.writers_in_rows)
        return msgspec.msgpack.encode((seen.suspects, seen.witnesses, suspects))


def spread_suspects(
    index: Index,
    facts: Iterable[HeadFact],
    sessions: Mapping[SessionName, SessionHistory],
    cluster: ClusterFacts,
    jobs: int,
) -> int:
    """Put what is known of suspect domains and writers into the index as rows; return how many witnesses remain.

    Those are the witnesses of clean domains: in columns only. ``facts``, ``sessions``: all heads and session leases
    that are known; ``jobs``: as of an audit.
    """
    size, filled = index.column_bytes(), index.buckets()
    if not filled:
        return 0
    heads = Heads(facts, cluster)
    known = SessionColumns(sessions, heads)
    judge = ColumnJudge(index, heads, known, cluster, index.domains_in_rows(), index.writers_in_rows())
    if jobs == 1 or not index.shared or size < _WORTH_IT:
        answers: Iterator[bytes] = map(judge.judge, filled)
    else:
        index.publish()
        answers = in_order(judge.judge, filled, jobs or (os.cpu_count() or 1))
    witnesses = 0
    suspect_domains: set[str] = set()
    suspect_writers: set[Writer] = set()
    for answer in answers:
        suspects, clean, runs = _decoder.decode(answer)
        witnesses += clean
        suspect_domains.update(suspects)
        suspect_writers.update(runs)
    for bucket in sorted({bucket_of(name) for name in suspect_domains}):
        _spread_domains(index, bucket, suspect_domains)
    for bucket in sorted({bucket_of(name) for name, _ in suspect_writers}):
        _spread_writers(index, bucket, suspect_writers)
    return witnesses


def _chosen(bucket: Bucket, wanted: AbstractSet[object]) -> Rows:
    """Return the rows of some names, in the order in which they were read."""
    rows = bucket.rows()
    if not len(rows):
        return rows
    known = np.fromiter((name in wanted for name in bucket.names.values), np.bool_, len(bucket.names.values))
    chosen: Rows = rows[known[rows["name"]]]
    order = np.argsort(chosen["rank"], kind="stable")
    return chosen[order]


def _spread_domains(index: Index, number: int, wanted: AbstractSet[str]) -> None:
    for kind in (ENTRIES, USES):
        bucket = index.bucket(kind, number, raw=True)
        rows = _chosen(bucket, wanted)
        index.insert("entry", _entry_rows(bucket, rows))
        if kind == USES:
            index.insert("use", _use_rows(bucket, rows))


def _entry_rows(bucket: Bucket, rows: Rows) -> Iterator[Sequence[Value]]:
    names, paths, heads, raw = (
        list(bucket.names.values),
        list(bucket.paths.values),
        list(bucket.heads.values),
        bucket.raw(),
    )
    columns = ("name", "head", "position", "path", "offset", "length", "rank", "at", "size")
    endings = (rows["kind"] == ENDED).tolist() if bucket.kind == ENTRIES else [False] * len(rows)
    numbers = zip(*(rows[column].tolist() for column in columns), strict=True)
    for cid, ending, (name, head, position, path, offset, length, rank, at, size) in zip(
        _cids(rows), endings, numbers, strict=True
    ):
        entry, where = raw[at : at + size], (paths[path], offset, length)
        incarnation, sequence, digest = heads[head]
        yield names[name], cid, incarnation, sequence, position, digest, entry, *where, int(ending), rank


def _use_rows(bucket: Bucket, rows: Rows) -> Iterator[Sequence[Value]]:
    names, paths = list(bucket.names.values), list(bucket.paths.values)
    columns = ("name", "path", "offset", "length", "messages", "first", "last", "settle_to", "signed")
    numbers = zip(*(rows[column].tolist() for column in columns), strict=True)
    frames = zip(rows["sequence"].tolist(), _digests(rows, "digest"), strict=True)
    for cid, frame, (name, path, offset, length, messages, first, last, settle_to, signed) in zip(
        _cids(rows), frames, numbers, strict=True
    ):
        told = (messages, messages, first, last, 1, settle_to, signed)
        sequence, digest = frame
        yield names[name], cid, paths[path], offset, length, *told, sequence, digest if any(digest) else None


def _cids(rows: Rows) -> list[bytes]:
    whole = np.ascontiguousarray(rows["cid"]).tobytes()
    return [whole[at : at + 16] for at in range(0, len(whole), 16)]


def _digests(rows: Rows, column: str) -> list[bytes]:
    whole = np.ascontiguousarray(rows[column]).tobytes()
    return [whole[at : at + DIGEST_BYTES] for at in range(0, len(whole), DIGEST_BYTES)]


def _spread_writers(index: Index, number: int, wanted: AbstractSet[Writer]) -> None:
    bucket = index.bucket(FRAMES, number)
    rows = _chosen(bucket, wanted)
    names, paths = list(bucket.names.values), list(bucket.paths.values)
    digests, committed = _digests(rows, "digest"), _digests(rows, "committed_digest")
    columns = ("name", "path", "offset", "length", "sequence", "committed", "first", "last")
    signed = ("earliest", "latest", "staleness")
    frames: list[Sequence[Value]] = []
    named: list[Sequence[Value]] = []
    for at, (name, path, offset, length, sequence, names_one, first, last, *time) in enumerate(
        zip(*(rows[column].tolist() for column in (*columns, *signed)), strict=True)
    ):
        writer, where, (*interval, staleness) = names[name], (paths[path], offset, length), time
        frames.append((*writer, sequence, digests[at], *where, first, last, *interval))
        if names_one != NOTHING:
            named.append((*writer, names_one, committed[at], *where, last, sequence, *interval, staleness))
    index.insert("frame", frames)
    index.insert("committed", named)
