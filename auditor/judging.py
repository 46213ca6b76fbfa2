"""What needs more than one file: the rules over domains, session leases, writers and shards.

Columns judge first, a bucket of domains or writers at once; what they do not find clean is put into the index, row by
row, and judged there by the rules, one domain or writer after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from .columns import domains
from .columns.domains import Writer
from .columns.heads import Heads, SessionColumns
from .columns.layout import ENDED, ENTRIES, FRAMES, NOTHING, USES, RowBucket, Rows, bucket_of, bytes_of
from .evidence.records import ClusterRecords, known_until
from .evidence.tree import Tree
from .index import Coverage, Index
from .parts import Narrowing, Part, Value, check_asked, later
from .pool import default_jobs, in_order
from .rules.chains import (
    check_ceilings,
    check_heads,
    check_ledgers,
    check_records_there,
    check_sequences,
)
from .rules.endings import SessionNote, check_sessions, notes_of
from .rules.finding import Finding
from .rules.history import (
    Closings,
    ClusterFacts,
    HeadFact,
    SessionHistory,
    SessionName,
    ShardRun,
    ceiling_chains,
    domain_history,
    head_facts,
    session_histories,
)
from .rules.leases import check_domain
from .rules.moves import check_maps, check_phases, counting, followed
from .rules.records import Policies

_WORTH_IT: Final = 2_000_000
"""With fewer bytes of columns than this, other processes are not asked."""
_CHUNK: Final = 64
"""So many domains are judged at once."""
_of_columns: Final = msgspec.msgpack.Decoder(tuple[list[str], int, list[Writer]])
_of_domains: Final = msgspec.msgpack.Decoder(tuple[list[Finding], list[SessionNote]])


def judge(
    index: Index,
    records: ClusterRecords,
    known_runs: dict[bytes, ShardRun],
    whole: Part,
    tree: Tree,
    narrowing: Narrowing,
    jobs: int,
) -> tuple[list[Finding], int]:
    """Apply the rules that need more than one file. Returns what they find, and how many witnesses are known.

    ``tree``: where a name is looked for once more.
    """
    newest, ledgers = whole.newest_time(), whole.ledgers
    ceilings = ceiling_chains(index)
    policy = records.newest_policy
    facts = list(head_facts(index))
    for fact in facts:
        newest = later(newest, fact.token)
    for chain in ceilings.values():
        for each in chain.facts:
            newest = later(newest, each.token)
    coverage = Coverage.of(index, policy, newest)
    policies = Policies(records.widest)
    if policy:
        policies = Policies(records.widest, policy.number, known_until(whole.policy_closed, policy.number))
    cluster = ClusterFacts(
        runs=known_runs,
        ceilings=ceilings,
        finished=frozenset(ledgers.stopped),
        maps=records.maps,
        follows=followed(ceilings, records.maps),
        counts=counting(facts),
        policies=policies,
        coverage=coverage,
        closings=Closings(index.closings()),
    )
    if narrowing.domains:
        check_asked(narrowing, index.all_domains())
    judges, notes = IndexJudge(index, cluster, session_histories(index, known_runs), jobs), list[SessionNote]()
    in_columns = judges.spread_suspects(facts)
    findings = [policies.judged(each.finding, each.signed_ns) for each in whole.beyond_policy]
    findings += check_heads(facts, ceilings, policies)
    findings += check_ceilings(ceilings, policies)
    findings += check_phases(facts, ceilings, records)
    findings += check_maps(records.maps)
    if tree.names("shards"):
        findings += check_records_there(ceilings, lambda path: tree.hides(path) or tree.size(path) > 0)
    findings += (
        each for each in check_ledgers(facts, ceilings, ledgers, newest, known_runs) if not tree.hides(each.subject)
    )
    findings += check_sequences(index, coverage)
    findings += judges.domains(list(filter(narrowing.judges, index.domains())), notes)
    if narrowing.whole:  # of a session lease some leases alone say too little
        findings += check_sessions(judges.sessions, notes, cluster)
    return findings, index.witnesses() + in_columns


@dataclass(slots=True)
class IndexJudge:
    """Judges buckets and domains. Each process reads the index by a connection of its own."""

    index: Index
    cluster: ClusterFacts
    sessions: Mapping[SessionName, SessionHistory]
    """All that are known."""
    jobs: int
    """How many processes judge; 0: as many as are worth it."""
    process: int = field(default_factory=os.getpid)
    heads: Heads = field(init=False)
    session_columns: SessionColumns = field(init=False)
    domains_in_rows: AbstractSet[str] = frozenset()
    writers_in_rows: AbstractSet[Writer] = frozenset()
    """Of which something is known by rows: judged by the rules in any case."""

    def _here(self) -> None:
        """Make sure that the index is read by a connection of this process."""
        if self.process != os.getpid():
            self.process, self.index = os.getpid(), self.index.view()
            self.cluster = replace(self.cluster, coverage=replace(self.cluster.coverage, index=self.index))

    def _answers[T](self, work: Callable[[T], bytes], units: Sequence[T], jobs: int) -> Iterator[bytes]:
        """Yield what comes of each unit, in order, from so many processes that read the index together."""
        if jobs == 1 or not self.index.shared:
            return map(work, units)
        self.index.publish()
        return in_order(work, units, jobs)

    def _bucket(self, number: int) -> bytes:
        """Return suspect domains, witnesses of clean ones, and suspect writers, encoded."""
        self._here()
        entries, uses = self.index.bucket(ENTRIES, number), self.index.bucket(USES, number)
        seen = domains.judge_domains(
            entries, uses, self.heads, self.session_columns, self.cluster, self.domains_in_rows
        )
        del entries, uses
        suspects = domains.judge_writers(self.index.bucket(FRAMES, number), self.writers_in_rows)
        return msgspec.msgpack.encode((seen.suspects, seen.witnesses, suspects))

    def spread_suspects(self, facts: Iterable[HeadFact]) -> int:
        """Put what is known of suspect domains and writers into the index as rows; return how many witnesses remain.

        Those are the witnesses of clean domains: in columns only. ``facts``: all heads that are known.
        """
        index, size, filled = self.index, self.index.column_bytes(), self.index.buckets()
        if not filled:
            return 0
        self.heads = Heads(facts, self.cluster)
        self.session_columns = SessionColumns(self.sessions, self.heads)
        self.domains_in_rows, self.writers_in_rows = index.domains_in_rows(), index.writers_in_rows()
        witnesses = 0
        suspect_domains: set[str] = set()
        suspect_writers: set[Writer] = set()
        jobs = 1 if size < _WORTH_IT else self.jobs or (os.cpu_count() or 1)
        for answer in self._answers(self._bucket, filled, jobs):
            suspects, clean, runs = _of_columns.decode(answer)
            witnesses += clean
            suspect_domains.update(suspects)
            suspect_writers.update(runs)
        for bucket in sorted({bucket_of(name) for name in suspect_domains}):
            _spread_domains(index, bucket, suspect_domains)
        for bucket in sorted({bucket_of(name) for name, _ in suspect_writers}):
            _spread_writers(index, bucket, suspect_writers)
        return witnesses

    def _domains(self, names: Sequence[str]) -> bytes:
        """Return what is wrong with the leases of domains, and what they show of session leases, encoded."""
        self._here()
        notes, findings = list[SessionNote](), list[Finding]()
        for name in names:
            history = domain_history(self.index, self.cluster.runs, name, self.sessions)
            notes += notes_of(history)
            findings += check_domain(history, self.cluster)
        return msgspec.msgpack.encode((findings, notes))

    def domains(self, names: Sequence[str], notes: list[SessionNote]) -> Iterator[Finding]:
        """Apply every rule about leases to these domains. ``notes``: takes what they show of session leases."""
        chunks = [names[start : start + _CHUNK] for start in range(0, len(names), _CHUNK)]
        for answer in self._answers(self._domains, chunks, self.jobs or default_jobs(len(chunks))):
            findings, noted = _of_domains.decode(answer)
            notes += noted
            yield from findings


def _chosen(bucket: RowBucket, wanted: AbstractSet[object]) -> Rows:
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


def _entry_rows(bucket: RowBucket, rows: Rows) -> Iterator[Sequence[Value]]:
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
        bytes_of(rows["cid"]), endings, numbers, strict=True
    ):
        entry, where = raw[at : at + size], (paths[path], offset, length)
        incarnation, sequence, digest = heads[head]
        yield names[name], cid, incarnation, sequence, position, digest, entry, *where, int(ending), rank


def _use_rows(bucket: RowBucket, rows: Rows) -> Iterator[Sequence[Value]]:
    names, paths = list(bucket.names.values), list(bucket.paths.values)
    columns = ("name", "path", "offset", "length", "messages", "first", "last", "settle_to", "signed")
    numbers = zip(*(rows[column].tolist() for column in columns), strict=True)
    frames = zip(rows["sequence"].tolist(), bytes_of(rows["digest"]), rows["staying"].tolist(), strict=True)
    for cid, frame, (name, path, offset, length, messages, first, last, settle_to, signed) in zip(
        bytes_of(rows["cid"]), frames, numbers, strict=True
    ):
        told = (messages, messages, first, last, 1, settle_to, signed)
        sequence, digest, staying = frame
        yield names[name], cid, paths[path], offset, length, *told, sequence, digest if any(digest) else None, staying


def _spread_writers(index: Index, number: int, wanted: AbstractSet[Writer]) -> None:
    bucket = index.bucket(FRAMES, number)
    rows = _chosen(bucket, wanted)
    names, paths = list(bucket.names.values), list(bucket.paths.values)
    digests, committed = bytes_of(rows["digest"]), bytes_of(rows["committed_digest"])
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
