"""Malfeasance: Roughtime answers in one chain that cannot all be true, reported as RFC 10049 does; the judge.

Each request's nonce is a hash of the answer before it, so the order of the answers is proven. True time only grows: an
answer that lies wholly *before* one that is earlier in the chain is a contradiction, and one of the two servers was
wrong. Which one, two answers do not say; ``accused`` counts. Answers that overlap, however coarse they are, contradict
nothing: the rule asks for ``MIDP_i - RADI_i <= MIDP_j + RADI_j`` for each i before j, and for nothing else.

Pure: no clock, no network, no trust record. A report is evidence against the keys that it names.

Exit codes: 0 the report proves that at least one of its servers was wrong; 1 all of it verifies and can be true; 3 part
of it does not verify, so it proves nothing; 65 it is no report.
"""

from __future__ import annotations

import base64
import logging
import random
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Annotated, Final, Protocol

import msgspec
from msgspec.structs import replace

from ..agent.evidence import keep_numbered
from ..canonical import Bytes32
from ..console import instant_fields, note, present
from ..errors import Damaged
from ..keys import fingerprint
from ..sources.port import Exchange
from ..units import SECOND, rfc3339
from .wire import NONCE_BYTES, RoughtimeAnswer, chained_nonce, make_request, nonce_of, open_answer

RESPONSES_MAX: Final = 1024
"""More than any honest chain that proves something: two answers do."""


class Queried(msgspec.Struct, frozen=True, omit_defaults=True, rename={"public": "publicKey"}):
    """One request and its answer, as they went over the wire; in JSON a response of a report, all in base64."""

    public: Bytes32
    """The server's long-term key."""
    request: bytes
    response: bytes
    rand: Bytes32 | None = None
    """With the answer before it, this made the request's nonce. None: the first of its chain."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two answers of one chain: the later one lies wholly before the earlier one."""

    earlier: int
    later: int
    """Positions in the chain, from 0."""
    apart_s: int
    """By how many seconds, at the least."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a chain proves: that a server was wrong, nothing, or nothing because part of it does not verify."""

    answers: tuple[RoughtimeAnswer, ...]
    """None where part does not verify."""
    contradictions: tuple[Contradiction, ...] = ()
    position: int | None = None
    """What does not verify."""
    reason: str | None = None
    """Why not."""

    @property
    def word(self) -> str:
        return "unverified" if self.reason else "proven" if self.contradictions else "consistent"


def judge(chain: Sequence[Queried]) -> Verdict:
    """Return what a chain proves."""
    answers: list[RoughtimeAnswer] = []
    reason = None if chain else "there is no answer in it"
    for position, each in enumerate(chain):
        try:
            answers.append(open_answer(each.public, each.request, each.response))
        except Damaged as problem:
            reason = problem.message
        else:
            if position and each.rand is None:
                reason = "it does not say from what its nonce was made"
            elif position and nonce_of(each.request) != chained_nonce(chain[position - 1].response, each.rand or b""):
                reason = "its nonce was not made from the answer before it: the order is not proven"
        if reason:
            return Verdict((), (), position, reason)
    return Verdict((), (), 0, reason) if reason else Verdict(tuple(answers), contradictions(answers))


def contradictions(answers: Sequence[RoughtimeAnswer]) -> tuple[Contradiction, ...]:
    """Return every pair of verified answers, in the order of their chain, of which one must be wrong."""
    found = []
    for later, after in enumerate(answers):
        latest = after.midpoint_s + after.radius_s
        for earlier, before in enumerate(answers[:later]):
            apart = before.midpoint_s - before.radius_s - latest
            if apart > 0:
                found.append(Contradiction(earlier, later, apart))
    return tuple(found)


def accused(chain: Sequence[Queried], verdict: Verdict) -> list[tuple[bytes, int]]:
    """Return the servers of the contradictions, most often named first: with one liar among several, that one."""
    positions = [each for pair in verdict.contradictions for each in (pair.earlier, pair.later)]
    counts = Counter(chain[position].public for position in positions)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


# ---- the report ----


class _Report(msgspec.Struct):
    responses: Annotated[list[Queried], msgspec.Meta(max_length=RESPONSES_MAX)]


def encode_report(chain: Sequence[Queried]) -> bytes:
    """Return the JSON of a report, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(_Report(list(chain))), indent=2) + b"\n"


def encode_line(queried: Queried) -> bytes:
    """Return one exchange as a line of JSON, in the members of a report's response."""
    return msgspec.json.encode(queried) + b"\n"


def decode_report(data: bytes, where: str) -> tuple[Queried, ...]:
    """Read a report, or a chain of one exchange a line. Raises Damaged, naming ``where``. Verifies nothing."""
    try:
        try:
            report = msgspec.json.decode(data, type=_Report)
        except msgspec.DecodeError:
            lines = data.splitlines()
            if lines[1:] and not lines[-1].endswith(b"}"):
                lines.pop()  # a crash or a full disk cut it off
            if not 0 < len(lines) <= RESPONSES_MAX or not all(line.startswith(b'{"publicKey"') for line in lines):
                raise
            report = _Report([msgspec.json.decode(line, type=Queried) for line in lines])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise Damaged("report-damaged", f"{where} is no malfeasance report: {problem}") from None
    return tuple(report.responses)


LINES_MAX: Final = 256
CHAINS_MAX: Final = 16
REPORTS_MAX: Final = 64

_log = logging.getLogger(__name__)


class RoughEvidence(Protocol):
    """Where exchanges and reports are kept. Neither call raises: time goes on without evidence."""

    def keep(self, queried: Queried) -> None:
        """Keep one verified exchange; one without ``rand`` begins a chain."""

    def report(self, chain: Sequence[Queried]) -> None:
        """Keep a malfeasance report."""


class RoughEvidenceFiles:
    """A directory of evidence, made when there is something to keep. What fails is logged."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: Path | None = None
        self._lines = 0
        self._last: Queried | None = None

    def keep(self, queried: Queried) -> None:
        """Append one line; a new file begins with the one before, kept or not, so that the order of all is proven."""
        before, self._last = self._last, queried
        try:
            if self._file is None or queried.rand is None or self._lines >= LINES_MAX:
                before = before if queried.rand is not None else None
                first = encode_line(replace(before or queried, rand=None))
                self._file = keep_numbered(self._directory, "chain-", ".jsonl", first, CHAINS_MAX)
                self._lines = 1
                if before is None:
                    return
            with self._file.open("ab") as file:
                file.write(encode_line(queried))
            self._lines += 1
        except OSError as problem:
            self._file = None
            self._failed(problem)

    def report(self, chain: Sequence[Queried]) -> None:
        try:
            path = keep_numbered(self._directory, "report-", ".json", encode_report(chain), REPORTS_MAX)
        except OSError as problem:
            self._failed(problem)
        else:
            _log.error("roughtime-malfeasance report=%s", path)

    def _failed(self, problem: OSError) -> None:
        _log.warning("roughtime-evidence-not-kept directory=%s reason=%s", self._directory, problem.strerror)


WINDOW: Final = 128
"""How many exchanges are held against each new one."""


class RoughChain:
    """The chain of one process. Thread-safe: questions are asked one after the other."""

    def __init__(self, chance: random.Random, evidence: RoughEvidence) -> None:
        self._chance = chance
        self._evidence = evidence
        self._lock = Lock()
        self._links: list[tuple[Queried, RoughtimeAnswer]] = []
        self._reported: set[frozenset[bytes]] = set()

    def ask(self, public: bytes, exchange: Exchange) -> RoughtimeAnswer:
        """Ask one server, over one exchange, which may raise BadTime. Raises Damaged: it proves nothing.

        Blocks for the exchange, and for those of others that ask now.
        """
        with self._lock:
            rand = self._chance.randbytes(NONCE_BYTES)
            last = self._links[-1][0].response if self._links else b""
            nonce = chained_nonce(last, rand)
            request = make_request(public, nonce)
            response = exchange(request, lambda data: nonce_of(data) == nonce)
            answer = open_answer(public, request, response)
            queried = Queried(public, request, response, rand if self._links else None)
            self._links = [*self._links[1 - WINDOW :], (queried, answer)]
            self._evidence.keep(queried)
            for found in contradictions([answer for _, answer in self._links]):
                between = frozenset((self._links[found.earlier][0].public, public))
                if found.later == len(self._links) - 1 and between not in self._reported:
                    self._reported.add(between)
                    first, *rest = [queried for queried, _ in self._links[found.earlier :]]
                    self._evidence.report([replace(first, rand=None), *rest])
            return answer


_STATUS: Final = {"proven": 0, "consistent": 1, "unverified": 3}


def verify_report(data: bytes, where: str, options: Namespace) -> int:
    """Judge a report and say so; return the exit code. Raises Damaged, naming ``where``."""
    chain = decode_report(data, where)
    verdict = judge(chain)
    named = [(base64.b64encode(public).decode(), count) for public, count in accused(chain, verdict)]
    lines = [] if verdict.answers else [f"{len(chain)} responses; nothing is proven"]
    responses: list[dict[str, object]] = []
    contradicted = []
    for each, answer in zip(chain, verdict.answers, strict=False):
        public, shown = base64.b64encode(each.public).decode(), rfc3339(answer.midpoint_s * SECOND)
        lines.append(f"{len(responses):3}  {public}  {shown} ± {answer.radius_s} s")
        fields = {"public_key": public, "fingerprint": fingerprint(each.public), "roughtime_version": answer.version}
        fields |= instant_fields("earliest", max(0, answer.interval.earliest))
        responses.append(fields | instant_fields("latest", answer.interval.latest))
    for at, after, apart in ((pair.earlier, pair.later, pair.apart_s) for pair in verdict.contradictions):
        lines.append(f"response {after} came after response {at} and lies wholly before it, by {apart} s")
        contradicted.append({"earlier": at, "later": after, "apart_ns": apart * SECOND})
    if named:
        public, count = named[0]
        lines.append(f"proven: at least one of {len(named)} servers was wrong")
        lines.append(f"named in most of the contradictions ({count}): {public}")
    elif verdict.word == "consistent":
        lines.append("consistent")
    report = {
        "verdict": verdict.word,
        "responses": responses,
        "contradictions": contradicted,
        "accused": [{"public_key": public, "contradictions": count} for public, count in named],
        "position": verdict.position,
        "reason": verdict.reason,
    }
    present(options, "tenure.time.verify.report", report, *lines)
    if verdict.reason:
        note(f"tenure: response {verdict.position} does not verify: {verdict.reason}")
    elif not named:
        note("tenure: everything in it verifies, and all of it can be true: it accuses nobody")
    return _STATUS[verdict.word]
