"""The rules over leases, applied to every domain: by this process, or by several that read the index together."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from auditor.pool import default_jobs, in_order

from .finding import Finding
from .history import domain_history
from .leases import check_domain
from .sessions import SessionNote, notes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from auditor.index import Index

    from .agreement import ClusterFacts
    from .history import SessionHistory, SessionName

_CHUNK: Final = 64
"""So many domains are judged at once."""
_decoder: Final = msgspec.msgpack.Decoder(tuple[list[Finding], list[SessionNote]])


@dataclass(slots=True)
class DomainJudge:
    """Judges one domain after another. Each process reads the index by a connection of its own."""

    index: Index
    cluster: ClusterFacts
    sessions: Mapping[SessionName, SessionHistory]
    process: int = field(default_factory=os.getpid)

    def judge(self, domain: str, notes: list[SessionNote]) -> Iterator[Finding]:
        """Yield what is wrong with the leases of a domain; note what they show of session leases."""
        history = domain_history(self.index, self.cluster.runs, domain, self.sessions)
        notes += notes_of(history)
        yield from check_domain(history, self.cluster)

    def judge_encoded(self, domains: Sequence[str]) -> bytes:
        """Return the findings of several domains as bytes. In a process that was forked."""
        if self.process != os.getpid():
            self.process, self.index = os.getpid(), self.index.view()
            self.cluster = replace(self.cluster, coverage=replace(self.cluster.coverage, index=self.index))
        notes: list[SessionNote] = []
        findings = [finding for domain in domains for finding in self.judge(domain, notes)]
        return msgspec.msgpack.encode((findings, notes))


def check_domains(judge: DomainJudge, domains: Sequence[str], jobs: int, notes: list[SessionNote]) -> Iterator[Finding]:
    """Apply every rule about leases to these domains, by so many processes (0: as many as are worth it).

    ``notes``: takes what the domains show of session leases.
    """
    index = judge.index
    chunks = [domains[start : start + _CHUNK] for start in range(0, len(domains), _CHUNK)]
    jobs = jobs or default_jobs(len(chunks))
    if jobs == 1 or not index.shared:
        for domain in domains:
            yield from judge.judge(domain, notes)
        return
    index.publish()
    for findings in in_order(judge.judge_encoded, chunks, jobs):
        found, noted = _decoder.decode(findings)
        notes += noted
        yield from found
