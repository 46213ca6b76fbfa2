"""Checks, findings, and every rule there is: number, code, title, verdict, severity.

A rule asks something of a piece of evidence: the value that was found, the limit that it has, and whether it holds. A
finding about one piece is a check that fails. The same check is shown where everything is shown that was asked: in
``explain``, in the chain of evidence and on the screen. What several families of rules ask is stated here.

A code is for ever: scripts and people look for it. Each rule has its section in docs/findings.md. A rule module makes
findings with ``found`` only, or with a check, so that no code can be used that is not listed here.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from appliance.formats.policy import Policy
from timeagent.console import bound_fields, printable
from timeagent.signedtime import SignedTime, r2_holds
from timeagent.units import Instant, bound_text, rfc3339

ID_CHARACTERS: Final = 12
WORDS_MAX: Final = 5_000
"""More than a path has. What somebody makes longer is cut: whoever wraps it into lines would never end."""


class Verdict(StrEnum):
    """What a finding says about the cluster."""

    VIOLATION = "violation"
    """Somebody broke a rule, or changed bytes: the evidence proves it."""
    INDETERMINATE = "indeterminate"
    """The evidence has a gap where the answer would be. An unknown outcome is not a crime."""
    UNVERIFIABLE = "unverifiable"
    """Keys or records are missing, so that nothing can be said."""
    OK = "ok"
    """Worth knowing; the rules dealt with it as they should."""


class Severity(StrEnum):
    """How much it matters to who reads it."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, order=True)
class Evidence:
    """Bytes in the tree: a path under the root, where they begin, and how many they are (0: the name itself)."""

    path: str
    offset: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class NamedInterval:
    """What a clock said, and what about: shown with a finding."""

    what: str
    earliest_ns: int
    latest_ns: int
    node: str = ""
    """Whose clock it was."""
    key: str = ""
    """The id of the key that signed it; empty for what nobody signed, or nobody asks."""
    epoch: int = 0
    """Which epoch of that clock it was."""


type Times = Mapping[str, Instant | SignedTime | tuple[Instant, Instant] | tuple[Instant, Instant, str]]
"""By name: an instant that is exact by definition, such as an expiry; a signed time; an interval, and whose clock."""


def _named(times: Times) -> Iterator[NamedInterval]:
    for what, said in times.items():
        if isinstance(said, SignedTime):
            ends = said.interval.earliest, said.interval.latest
            yield NamedInterval(what, *ends, key=said.key_id.hex(), epoch=said.clock_epoch)
        else:
            yield NamedInterval(what, said, said) if isinstance(said, int) else NamedInterval(what, *said)


@dataclass(frozen=True, slots=True)
class Finding:
    """One result. Two findings of one code about the same subject with the same evidence are the same finding."""

    code: str
    verdict: Verdict
    severity: Severity
    title: str
    subject: str
    """What it is about: a file, a lease, a domain."""
    explanation: str
    """One or two sentences with the values that decide it."""
    evidence: tuple[Evidence, ...]
    times: tuple[NamedInterval, ...] = ()
    clocks: tuple[str, ...] = ()
    """The nodes whose clocks it rests on; of two that contradict each other only the wrong one, where that is told."""

    @property
    def id(self) -> str:
        """A short digest of code, subject and evidence: the same in every audit of the same bytes."""
        parts = [self.code, self.subject, *(f"{each.path}\0{each.offset}\0{each.length}" for each in self.evidence)]
        return hashlib.sha256("\0\0".join(parts).encode()).hexdigest()[:ID_CHARACTERS]

    def fields(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "code": self.code,
            "verdict": self.verdict.value,
            "severity": self.severity.value,
            "title": self.title,
            "subject": printable(self.subject),
            "explanation": printable(self.explanation),
            "docs": f"docs/findings.md#{self.code}",
            "evidence": [{"path": printable(e.path), "offset": e.offset, "length": e.length} for e in self.evidence],
            "times": [
                {
                    "what": each.what,
                    **bound_fields("earliest", each.earliest_ns),
                    **bound_fields("latest", each.latest_ns),
                }
                | ({"node": each.node} if each.node else {})
                for each in self.times
            ],
        } | ({"clocks": list(self.clocks)} if self.clocks else {})


_ORDER: Final = {verdict: position for position, verdict in enumerate(Verdict)}


def in_order(findings: list[Finding]) -> list[Finding]:
    """Return the findings once each, worst first, in an order that depends on nothing but them."""
    unique = {finding.id: finding for finding in findings}
    return sorted(unique.values(), key=lambda f: (_ORDER[f.verdict], f.code, f.subject, f.evidence))


@dataclass(frozen=True, slots=True)
class Rule:
    """What all findings of one code share."""

    number: int
    """For ever, like the code: hundreds by subject."""
    code: str
    title: str
    verdict: Verdict = Verdict.VIOLATION
    severity: Severity = Severity.ERROR


_DOUBT: Final = Verdict.INDETERMINATE, Severity.WARNING
_ODD: Final = Verdict.OK, Severity.WARNING
_KNOWN: Final = Verdict.OK, Severity.INFO

_ALL: Final = (
    # bytes and signatures
    Rule(101, "damaged-record", "a marker, a record or a prelock is damaged or misplaced"),
    Rule(102, "damaged-lock", "a lock file is damaged, or another bag's"),
    Rule(103, "damaged-seal", "a seal is damaged, or another rack's"),
    Rule(104, "damaged-ledger", "a witness ledger holds what no shard wrote there"),
    Rule(105, "missing-ledger", "the witness ledger of a run is not there", *_DOUBT),
    Rule(106, "truncated-ledger", "the witness ledger of a run lacks its end", *_DOUBT),
    Rule(107, "ledger-gap", "the witness ledger of a run lacks batches in its middle", *_DOUBT),
    Rule(108, "damaged-frame", "a listed file holds a frame that is no frame, or one of another place"),
    Rule(109, "forged-record", "a record's signature does not verify"),
    Rule(110, "forged-time", "a signed time does not verify, or is another node's"),
    Rule(111, "forged-witness", "a witness does not verify"),
    Rule(112, "key-moved", "a later trust record gives a key to another node, or to another purpose", *_ODD),
    Rule(113, "revocation-undone", "a later trust record takes a revocation back, or puts it off", *_ODD),
    Rule(114, "ledger-disorder", "the blocks of a witness ledger are not in the order in which they were signed"),
    Rule(115, "ended-key", "something is signed by a key of its node that had ended, or did not count yet"),
    # bags
    Rule(201, "altered-file", "a listed file does not hold the bytes that its bag was closed with"),
    Rule(202, "lost-file", "what was there for good is missing", Verdict.INDETERMINATE),
    Rule(203, "missing-prelock", "a bag or rack was closed, and its prelock is not there", *_DOUBT),
    Rule(204, "damaged-pack", "a pack is not what its seal and its files make"),
    Rule(205, "misplaced-pack", "a pack is not that of its rack's seal"),
    Rule(206, "overwritten-lock", "a lock file is not the one that the rack was sealed with"),
    Rule(207, "late-writer", "a file, or the end of one, came too late for its bag, and is void", *_KNOWN),
    Rule(208, "stale-lock", "a lock file names older records than a frame that it lists"),
    Rule(209, "ghost-bag", "a bag that its rack was not sealed with holds files, which are void", *_KNOWN),
    Rule(210, "off-grid", "a directory is not on its log's grid, and does not exist", *_ODD),
    Rule(211, "premature-lock", "a bag or rack was closed before its time", *_KNOWN),
    Rule(212, "foreign-file", "files are nobody's: nothing reads them", *_KNOWN),
    Rule(213, "hidden-bag", "a rack was sealed without a bag that had been closed before"),
    Rule(214, "unknown-record", "a frame names a policy or trust record that there was not"),
    # time
    Rule(301, "r1-breach", "a timestamp or a watermark is too far from its signed time"),
    Rule(302, "r2-breach", "what came after was signed before"),
    Rule(303, "timestamp-outside-bag", "a message lies in a bag of another time"),
    Rule(304, "timestamp-after-expiry", "a message has a timestamp at or after the expiry of its lease"),
    Rule(305, "timestamp-below-floor", "a message has a timestamp at or below the floor of its lease"),
    Rule(306, "unsettled-write", "a message was written before the log was settled as its lease asks"),
    Rule(307, "radius-above-policy", "something was signed by a clock that was known less well than the policy allows"),
    Rule(308, "stale-time", "a signed time says that it may be older than is allowed"),
    # leases
    Rule(401, "tentative-write", "a message was written under a lease that was not held"),
    Rule(402, "read-mode-write", "a message was written under a lease of a mode that may not write"),
    Rule(403, "foreign-lease", "a message was written under a lease of somebody else"),
    Rule(404, "watermark-below-message", "a holder relinquished with a watermark below what it wrote"),
    Rule(405, "watermark-beyond-expiry", "a holder relinquished with a watermark at or beyond its expiry"),
    Rule(406, "count-mismatch", "a holder relinquished with another number of messages than there are"),
    Rule(407, "early-grant", "a lease was granted while another holder had one that conflicts with it"),
    Rule(408, "broken-early", "a lease was broken before its expiry"),
    Rule(409, "renewed-after-end", "a lease was told of again after it had ended"),
    Rule(410, "grant-overlap", "what two holders wrote, or were allowed to write, overlaps"),
    Rule(411, "fence-not-growing", "a fence is not above what came before it"),
    Rule(412, "floor-fell", "a floor or settle_to is below what came before it"),
    Rule(413, "chain-gap", "a grant names one before it that is not known", *_DOUBT),
    Rule(414, "chain-fork", "a chain of records or batches does not go on from what came before"),
    Rule(415, "grant-above-ceiling", "a lease was granted beyond the ceiling"),
    Rule(416, "grant-without-right", "a shard granted under a ceiling record that gives no right to"),
    Rule(417, "ceiling-fell", "a ceiling is below the one before it"),
    Rule(418, "term-above-policy", "a lease was granted for longer than the policy allows"),
    Rule(419, "wrong-shard", "a lease was granted by a shard that does not own its domain"),
    Rule(420, "session-witness-missing", "a message was written under a lease without its session lease's witness"),
    Rule(
        421, "ended-lease-write", "a message was written under a lease that its session lease's witness names as ended"
    ),
    Rule(422, "ended-lease-forgotten", "a session lease was renewed without naming a lease that was ended alone"),
    Rule(423, "session-outlived", "a shard granted or renewed under a session lease that was over"),
    Rule(
        424, "policy-misnamed", "a message names a policy that allows no lease as long as the one it was written under"
    ),
    Rule(425, "lease-changed", "a shard said of one lease now one thing, now another"),
    Rule(426, "last-frame-mismatch", "a holder relinquished with another last frame than there is"),
    Rule(427, "leaseless-write", "a message was written under no lease"),
    Rule(428, "expiry-fell", "an expiry is below one that was stated before"),
    Rule(429, "misnamed-lease", "a correlation id does not begin with the fence of its grant"),
    Rule(430, "revocation-incomplete", "a lease was revoked, and its ledger does not say by whom, or the reverse"),
    Rule(431, "ungranted-lease", "a shard renewed or changed a lease that it had never granted"),
    Rule(432, "half-lease-write", "a message was written under half a lease, while its shard moved"),
    Rule(433, "whole-too-early", "a lease of a new shard counts by itself while one of the old shard alone still may"),
    Rule(434, "wrong-map", "a shard goes by an older map than before, or than its chain"),
    Rule(435, "wrong-half", "a shard says otherwise than its map how much of a lease it grants"),
    Rule(436, "map-out-of-step", "a shard map does not follow from the one before it"),
    Rule(437, "overtaken-lease", "a shard counts by itself while a lease of the old shard alone may be believed in"),
    # sequences
    Rule(501, "lost-frame", "a frame that its writer knew to be committed is not in the record", Verdict.INDETERMINATE),
    Rule(502, "sequence-reused", "a writer used one sequence number for two frames"),
    Rule(503, "sequence-disorder", "a writer's later frame has a timestamp that is not above that of an earlier one"),
    # copies
    Rule(601, "forked-history", "two copies of one tree tell different stories of the same thing"),
    # what cannot be verified
    Rule(701, "unverifiable-trust", "a trust record is missing", Verdict.UNVERIFIABLE),
    Rule(702, "unverifiable-policy", "a policy record is missing", Verdict.UNVERIFIABLE),
    Rule(703, "unverifiable-map", "a shard map is missing", Verdict.UNVERIFIABLE),
    Rule(704, "unverifiable-log", "a log has no birth record", Verdict.UNVERIFIABLE),
    Rule(705, "retained-rack", "what a sealed rack held is not there any more", Verdict.UNVERIFIABLE, Severity.WARNING),
    Rule(706, "unreadable", "a file or directory of the copy cannot be read", Verdict.UNVERIFIABLE),
)

RULES: Final[dict[str, Rule]] = {rule.code: rule for rule in _ALL}

_ASKED: Final = {
    "altered-file": ("bytes", "at least"),
    "r1-breach": ("timestamp − signed time", "at most"),
    "timestamp-after-expiry": ("timestamp before the expiry", "<"),
    "timestamp-below-floor": ("timestamp above the floor", ">"),
    "radius-above-policy": ("radius of the signed time", "at most"),
    "stale-time": ("staleness of the signed time", "at most"),
    "watermark-below-message": ("watermark above its messages", "≥"),
    "watermark-beyond-expiry": ("watermark before the expiry", "<"),
    "broken-early": ("broken after its expiry", ">"),
    "fence-not-growing": ("fence above that before", ">"),
    "grant-above-ceiling": ("expiry below the ceiling", "≤"),
    "term-above-policy": ("expiry within the longest term", "≤"),
    "leaseless-write": ("leases that it names", "at least"),
}
"""Of rules that compare two numbers: what is compared, and how the one has to stand to the other."""


FORGED: Final = frozenset({"forged-record", "forged-time", "forged-witness", "ended-key"})
"""What says that a signed time is nobody's, or may be."""


def _short(text: str) -> str:
    """Return a plain str, which is what a database takes, of a name that has been made long by whoever wrote it."""
    return str(text) if len(text) <= WORDS_MAX else f"{text[:WORDS_MAX]}… ({len(text):,} characters)"


def found(
    code: str,
    subject: str,
    explanation: str,
    evidence: Iterable[Evidence],
    times: Times = MappingProxyType({}),
    *,
    verdict: Verdict | None = None,
    title: str = "",
) -> Finding:
    """Make a finding of a registered code. ``verdict``: where the evidence decides it otherwise than usual.

    ``title``: what it is here, where the code has several subjects; the registry's is true of all of them.
    """
    rule = RULES[code]
    severity = rule.severity
    if verdict is Verdict.VIOLATION:
        severity = Severity.ERROR
    elif verdict is Verdict.INDETERMINATE:
        severity = Severity.WARNING
    about = title or rule.title, _short(subject), _short(explanation)
    return Finding(code, verdict or rule.verdict, severity, *about, tuple(evidence), tuple(_named(times)))


_RELATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "≤": operator.le,
    "at most": operator.le,
    "≥": operator.ge,
    "at least": operator.ge,
    ">": operator.gt,
}


class Check(msgspec.Struct, frozen=True):
    """One check. ``code``: of the finding that it is where it fails."""

    code: str
    what: str
    found: Any
    bound: Any
    holds: bool | None
    """None: what it takes to tell is not there."""
    relation: str = ""
    words: Callable[[Any], str] = str
    """How value and limit are shown: put into words only where somebody looks."""

    @property
    def value(self) -> str:
        return self.words(self.found)

    @property
    def limit(self) -> str:
        """What it has to be; empty where the value says it all."""
        return f"{self.relation} {self.words(self.bound)}".strip()

    def fields(self) -> dict[str, Any]:
        return {"code": self.code, "what": self.what, "value": self.value, "limit": self.limit, "holds": self.holds}

    def finding(
        self,
        subject: str,
        reason: str,
        evidence: Iterable[Evidence],
        times: Times = MappingProxyType({}),
        *,
        verdict: Verdict | None = None,
        title: str = "",
    ) -> Finding:
        """Return the finding that it is: indeterminate where nothing tells whether it holds, else as ``found``."""
        if self.holds is None and verdict is None:
            verdict = Verdict.INDETERMINATE
        return found(self.code, subject, reason, evidence, times, verdict=verdict, title=title)


def clock(instant: Instant) -> str:
    """Return the time of day of an instant in UTC, to the microsecond; ``none`` for 0, a floor that nothing moved."""
    return rfc3339(instant)[11:26] if instant else "none"


def phrase(parts: Iterable[str | Instant]) -> str:
    return " ".join(part if isinstance(part, str) else clock(part) for part in parts)


def compared(code: str, what: str, value: int, relation: str, bound: int, words: Callable[[int], str] = clock) -> Check:
    """Return the check that a number stands in a relation ("<", "≤", "at most", ...) to another."""
    return Check(code, what, value, bound, _RELATIONS[relation](value, bound), relation, words)


def asked(code: str, value: int, bound: int, words: Callable[[int], str] = clock) -> Check:
    """Return the check of a rule that compares two numbers."""
    what, relation = _ASKED[code]
    return compared(code, what, value, relation, bound, words)


def breaks(code: str, values: NDArray[np.int64], bounds: NDArray[np.int64] | int) -> NDArray[np.bool_]:
    """Return which of many numbers would fail that check."""
    mask: NDArray[np.bool_] = ~_RELATIONS[_ASKED[code][1]](values, bounds)
    return mask


def own_words(finding: Finding) -> Check:
    """Return what only the whole tree shows (a gap, an order, a count) as a check: the finding's own words."""
    holds = False if finding.verdict in (Verdict.VIOLATION, Verdict.OK) else None
    return Check(finding.code, finding.title, printable(finding.explanation), "", holds)


def latest_expiry_ns(token: SignedTime, policy: Policy) -> Instant:
    """Return how far a lease that was granted at a signed time may reach at most."""
    return token.midpoint_ns + policy.lease_term_max_ns + token.radius_ns


type Bounds = tuple[Instant, Instant]
"""Floor and settle_to: above which the next holder writes, and up to where it settles."""


def both(bounds: Bounds) -> str:
    return " and ".join(map(bound_text, bounds))


def stated(bounds: Bounds) -> str:
    return f"floor {bound_text(bounds[0])} and settle_to {bound_text(bounds[1])}"


def not_fallen(states: Bounds, asked: Bounds) -> Check:
    """floor-fell: neither floor nor settle_to is below what came before asks for."""
    holds = states[0] >= asked[0] and states[1] >= asked[1]
    return Check("floor-fell", "floor and settle_to", states, asked, holds, "at least", stated)


def signed_in_order(what: str, cause: SignedTime, effect: SignedTime, *, covers: bool = False) -> Check:
    """r2-breach: what came after cannot be signed wholly before. ``covers``: it is signed over what it closes."""
    latest = effect.midpoint_ns + effect.radius_ns + (0 if covers else effect.staleness_ns)
    value, limit = ("closed by" if covers else "written by", latest), ("≥", cause.midpoint_ns - cause.radius_ns)
    return Check("r2-breach", what, value, limit, r2_holds(cause, effect, effect_covers_cause=covers), words=phrase)
