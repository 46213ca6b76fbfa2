"""What a tree says about itself: marker, root key, policies, keys and maps, each as far as it can be believed.

Keys that no trust record of the copy has are a forger's, or those of a record that the copy came too early for. Each
lock file names the newest trust record that its closer found. What was signed before the last bag was closed under a
record of the copy was signed with a key that was in no record then. What was signed later may be good: a copy that took
the trust records first, and the rest while a node joined or got new keys, lacks the record that says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from appliance.formats.birth import LogBirth, check_grid, decode_marker, open_birth
from appliance.formats.chains import open_ceiling
from appliance.formats.closed import RECORDS_LAG_NS
from appliance.formats.framing import Kind, Piece
from appliance.formats.names import check_log
from appliance.formats.paths import BIRTH, LOGS, MARKER, STORE, Rack, record_name
from appliance.formats.policy import Policy
from appliance.formats.shardmap import ShardMap
from appliance.formats.stamped import CONTEXTS, Stamped, open_signed
from appliance.formats.witness import open_block
from timeagent.canonical import decode
from timeagent.errors import Damaged, TenureError
from timeagent.keys import Verifier, fingerprint
from timeagent.trust import KeyEntry, Keyring, TrustRecord
from timeagent.units import INSTANT_MAX, Instant, rfc3339

from .finding import Evidence, Finding, found
from .signatures import PartialKeyring, Signatures
from .tree import Tree

_NAMING_BYTES_MAX = 64 * 1024
"""More than a birth or ceiling record is long."""


def named_clusters(tree: Tree) -> Iterator[bytes]:
    """Yield the clusters that birth records, ceiling records and ledgers name, whether or not signatures hold.

    Nothing is believed of it: without keys nothing in a copy can be verified, and all of it is judged as of the first.
    """
    for log in tree.logs():
        path = birth_path(tree, log)
        with suppress(Damaged):
            yield open_birth(_read(tree, path), path)[0].cluster_id
    for chained in tree.chains():
        with suppress(Damaged):
            yield open_ceiling(_read(tree, chained.path), chained.path)[0].cluster_id
    for file in tree.ledgers():
        first = next(tree.pieces(file.path), None)
        if isinstance(first, Piece):
            with suppress(Damaged):
                yield open_block(first, file.path).batch_head(file.path).cluster_id


def birth_path(tree: Tree, log: str) -> str:
    """Return where a log's birth record is; in a copy of the store that its bags are in, alone, where it is again."""
    there = {name for name, is_directory in tree.names(f"{LOGS}/{log}") if not is_directory}
    return f"{LOGS}/{log}/{STORE if STORE in there and BIRTH not in there else BIRTH}"


def _read(tree: Tree, path: str) -> bytes:
    return tree.read(path, _NAMING_BYTES_MAX) or b""


type Register = Policy | TrustRecord | ShardMap

REGISTERS: Final[tuple[tuple[Kind, str, type[Register]], ...]] = (
    (Kind.POLICY, "policy", Policy),
    (Kind.TRUST, "trust", TrustRecord),
    (Kind.MAP, "map", ShardMap),
)
RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""More than any record of ours: what is larger is none."""


NUMBERS_MAX: Final = 10_000
HOLES_MAX: Final = 100
"""A number that somebody made up is looked behind so far, and so many are told."""


@dataclass
class ClusterRecords:
    """The records that hold, and the numbers of those that do not."""

    cluster_id: bytes
    root: Verifier | None
    pinned: bool
    """Whether the root key was given, or taken from the tree that it is to vouch for."""
    policies: dict[int, Policy] = field(default_factory=dict)
    """Of one that is missing no other says what it allowed."""
    keyrings: dict[int, Keyring] = field(default_factory=dict)
    maps: dict[int, ShardMap] = field(default_factory=dict)
    keys: Keyring | None = None
    """Every key of every trust record, the newest entry of each; None where there is no trust record."""
    entries: dict[bytes, KeyEntry] = field(default_factory=dict)
    """The same keys, by their public half."""
    rejected: dict[Kind, set[int]] = field(default_factory=dict)
    """Records that are there and do not hold: each has its own finding."""

    def add(self, body: Register) -> None:
        """Take a record that holds; trust records in order."""
        match body:
            case Policy():
                self.policies[body.number] = body
            case TrustRecord():
                self.keyrings[body.number] = Keyring(body.keys)
                self.entries |= {entry.public: entry for entry in body.keys}
            case ShardMap():
                self.maps[body.number] = body

    @property
    def newest_policy(self) -> Policy | None:
        return self.policies[max(self.policies)] if self.policies else None

    @property
    def lacks_policy(self) -> bool:
        """Whether some policy before the newest is not there: what it allowed is not known."""
        return any(number not in self.policies for number in range(1, max(self.policies, default=1)))

    @cached_property
    def widest(self) -> Policy | None:
        """The newest policy with each limit as wide as in any policy; None where one that is missing may allow more.

        By it is judged what does not say which policy it goes by.
        """
        newest = self.newest_policy
        if newest is None or self.lacks_policy:
            return None
        limits = ("lease_term_max_ns", "r1_tolerance_ns", "radius_ns_max")
        wide = {name: max(getattr(each, name) for each in self.policies.values()) for name in limits}
        return msgspec.structs.replace(newest, **wide)

    def sealable_ns(self, rack: Rack, policy_number: int) -> Instant:
        """Return the instant before which nobody begins to seal a rack, by the shortest delay of any policy.

        ``policy_number``: the newest that the closer of a bag of it found, after whoever sealed it had listed the rack
        without that: beyond those of the copy, what it allows is not known.
        """
        unknown = self.lacks_policy or self.missing(Kind.POLICY, policy_number)
        delays = [0] if unknown else [each.seal_delay_ns for each in self.policies.values()]
        return rack.end_ns + min(delays, default=0)

    def there(self, kind: Kind) -> Mapping[int, Policy | Keyring | ShardMap]:
        """Return the records of a kind that hold, by number."""
        return self.keyrings if kind is Kind.TRUST else self.policies if kind is Kind.POLICY else self.maps

    def unknown(self, kind: Kind, number: int) -> bool:
        """Whether a number is none of a policy or trust record, as far as the copy goes: it lies beyond the newest."""
        return not 1 <= number <= self._newest[kind]

    @cached_property
    def _newest(self) -> dict[Kind, int]:
        """The highest number of each kind, of records that hold or not: anybody may put there any number of files."""
        every = {kind: self.there(kind).keys() | self.rejected.get(kind, set()) for kind, *_ in REGISTERS}
        return {kind: max(numbers, default=0) for kind, numbers in every.items()}

    def keyring(self, number: int) -> Keyring | None:
        """Return the keys of a trust record; where it is missing, all there are, from whenever until whenever.

        A later record may have revoked a key from an earlier instant: what was judged by the one before stands.
        """
        return self.keyrings.get(number, self._undated)

    @cached_property
    def _undated(self) -> Keyring | None:
        always = {"valid_from_ns": 0, "valid_until_ns": INSTANT_MAX, "revoked_from_ns": None}
        entries = [msgspec.structs.replace(entry, **always) for entry in self.entries.values()]
        return PartialKeyring(entries) if self.keyrings else None

    def doubt_keys(self) -> None:
        """Say that a trust record cannot be read: of a key that no other record names nothing is known."""
        if self.keys is not None:
            self.keys = PartialKeyring(self.entries.values())

    def judging(self, named: int, limit: int | None = None) -> Policy | None:
        """Return the policy by which readers judge a frame: the one that it names.

        ``limit``: the number in the bag's list; a frame that names a newer one is judged by that one.
        """
        newest = max(self.policies, default=0) if limit is None else limit
        return self.policies.get(named if 1 <= named <= newest else newest)

    def missing(self, kind: Kind, number: int) -> bool:
        """Whether a record that something names is simply not there."""
        return number not in self.there(kind) and number not in self.rejected.get(kind, ())


def load_records(tree: Tree, signatures: Signatures, pinned_key: bytes | None) -> tuple[ClusterRecords, list[Finding]]:
    """Read marker, policies, trust records and maps. ``pinned_key``: the raw root key, where the auditor knows it."""
    findings: list[Finding] = []

    def bad_marker(reason: str, length: int = 0) -> None:
        where = [Evidence(MARKER, 0, length)]
        findings.append(found("damaged-record", MARKER, reason, where, title="the marker is damaged"))

    data, marker, root = tree.read(MARKER, RECORD_BYTES_MAX), None, None
    try:
        marker = None if data is None else decode_marker(data, MARKER)
    except TenureError as problem:
        bad_marker(problem.message, len(data or b""))
    public = pinned_key or (marker.root_key if marker else None)
    try:
        root = None if public is None else Verifier(public)
    except TenureError as problem:
        bad_marker(problem.message)
    bodies: list[tuple[Kind, int, Evidence, Register]] = []
    rejected: defaultdict[Kind, set[int]] = defaultdict(set)
    for kind, directory, form in REGISTERS:
        for number, path in tree.numbered(directory):
            data = tree.read(path, RECORD_BYTES_MAX)
            if data is not None:
                where = Evidence(path, 0, len(data))
                read = _record(signatures, kind, form, data, where, root)
                if isinstance(read, Finding):
                    findings.append(read)
                    rejected[kind].add(number)
                else:
                    bodies.append((kind, number, where, read))
    # The marker's word, unless every record of the tree says otherwise; of a part without either, what is in it.
    told = {body.cluster_id for *_, body in bodies}
    cluster_id = marker.cluster_id if marker else min(told) if told else next(named_clusters(tree), bytes(16))
    if len(told) == 1 and cluster_id not in told:
        bad_marker(f"the marker names cluster {cluster_id.hex()}, every record names {min(told).hex()}")
        cluster_id = min(told)
    records = ClusterRecords(cluster_id, root, pinned_key is not None, rejected=rejected)
    trusted: list[tuple[TrustRecord, Evidence]] = []
    for kind, number, where, body in sorted(bodies, key=lambda each: each[:2]):
        if body.number == number and body.cluster_id == cluster_id:
            records.add(body)
            trusted += [(body, where)] if isinstance(body, TrustRecord) else []
        else:
            reason = f"{where.path} says that it is number {body.number} of cluster {body.cluster_id.hex()}"
            findings.append(found("damaged-record", where.path, reason, [where], title=_title(kind)))
            rejected[kind].add(number)
    if records.keyrings:
        records.keys = Keyring(records.entries.values())
        if rejected[Kind.TRUST] or len(records.keyrings) < max(records.keyrings):
            records.doubt_keys()
    findings += [*_nothing_there(records), *_holes(records), *check_trust(trusted)]
    return records, findings


class _Said(NamedTuple):
    """What a record said of a key."""

    entry: KeyEntry
    number: int
    where: Evidence


def check_trust(records: Iterable[tuple[TrustRecord, Evidence]]) -> Iterator[Finding]:
    """key-moved and revocation-undone. ``records``: those that hold, in order of number; some may be missing.

    Of a key that a record leaves out, what the last one before it said is compared with the next that has it.
    """
    named: dict[bytes, _Said] = {}
    revoked: dict[bytes, _Said] = {}
    for record, where in records:
        for entry in record.keys:
            now, until = _Said(entry, record.number, where), entry.revoked_from_ns
            before = named.get(entry.public)
            if before is not None and (before.entry.node, before.entry.purpose) != (entry.node, entry.purpose):
                yield _moved(before, now)
            named[entry.public] = now
            ended = revoked.pop(entry.public, None)  # told once, and not of every record from here on
            if ended is not None and (until is None or until > (ended.entry.revoked_from_ns or 0)):
                yield _undone(ended, now)
            if until is not None:
                revoked[entry.public] = now


def _moved(before: _Said, now: _Said) -> Finding:
    old, new = before.entry, now.entry
    name = f"key {fingerprint(new.public)}"
    reason = (
        f"trust record {before.number} has {name} as the {old.purpose} key of {old.node}, record {now.number} as the "
        f"{new.purpose} key of {new.node}"
    )
    title = f"a later trust record gives a key to another {'node' if old.node != new.node else 'purpose'}"
    return found("key-moved", f"{now.where.path}, {name}", reason, [before.where, now.where], title=title)


def _undone(before: _Said, now: _Said) -> Finding:
    old, new, name = before.entry.revoked_from_ns, now.entry.revoked_from_ns, f"key {fingerprint(now.entry.public)}"
    assert old is not None
    word = "does not revoke it" if new is None else f"revokes it from {rfc3339(new)}"
    reason = (
        f"trust record {before.number} revokes {name} of {before.entry.node} from {rfc3339(old)}, record {now.number} "
        f"{word}"
    )
    times = {f"revoked by record {before.number}": old}
    if new is not None:
        times[f"revoked by record {now.number}"] = new
    title = f"a later trust record {'takes a revocation back' if new is None else 'puts a revocation off'}"
    where = [before.where, now.where]
    return found("revocation-undone", f"{now.where.path}, {name}", reason, where, times, title=title)


def _title(kind: Kind) -> str:
    return f"a {kind.name.lower()} record is damaged or misplaced"


def _record(
    signatures: Signatures, kind: Kind, form: type[Register], data: bytes, where: Evidence, root: Verifier | None
) -> Register | Finding:
    """Return what a record says, or what is wrong with it."""
    path = where.path
    try:
        signed = open_signed(kind, data, path)
        body = decode(form, signed.body, path)
    except Damaged as problem:
        return found("damaged-record", path, problem.message, [where], title=_title(kind))
    if root is None or (
        signed.key_id == root.id and signatures.verifies(root, CONTEXTS[kind], signed.body, signed.signature)
    ):
        return body
    reason = f"{path} is not signed by the root key {root.id.hex()}; it names key {signed.key_id.hex()}"
    title = f"the signature of a {kind.name.lower()} record does not verify"
    return found("forged-record", path, reason, [where, Evidence(MARKER)], title=title)


def _holes(records: ClusterRecords) -> Iterator[Finding]:
    """A record with a higher number is there: the registers are never pruned, so that this one was there before it.

    What is no record, and stands behind a gap, nobody published: it says nothing of those before it.
    """
    for kind, word, _ in REGISTERS:
        there = records.there(kind)
        known = there.keys() | records.rejected.get(kind, set())
        listed = sorted(known)
        while listed and listed[-1] not in there and listed[-1] - 1 not in known:
            listed.pop()
        missing = [number for number in range(1, min(max(listed, default=0), NUMBERS_MAX)) if number not in known]
        for number in missing[:HOLES_MAX]:
            path = f"{word}/{record_name(number)}"
            reason = (
                f"{word} record {listed[-1]} is there, and record {number} before it is not: they are never deleted"
            )
            yield found(f"unverifiable-{word}", path, reason, [Evidence(path)])


def _nothing_there(records: ClusterRecords) -> Iterator[Finding]:
    for kind, word in ((Kind.TRUST, "trust"), (Kind.POLICY, "policy")):
        if not records.there(kind) and not records.rejected.get(kind):
            reason = f"the directory {word}/ holds no record: what depends on it is not checked"
            yield found(f"unverifiable-{word}", f"{word}/{record_name(1)}", reason, [Evidence(word)])


def checked_birth(data: bytes, path: str, log: str, cluster_id: bytes) -> tuple[LogBirth, Stamped]:
    """Read the birth record of a log. Raises TenureError for one that is damaged, of another log, or of no grid."""
    birth, stamped = open_birth(data, path)
    check_log(birth.log)
    if birth.log != log or birth.cluster_id != cluster_id:
        says = f"{path} is the birth record of log {birth.log} of cluster {birth.cluster_id.hex()}"
        raise Damaged("misplaced", says)
    try:
        check_grid(birth.span_ns, birth.grace_ns, birth.rack_ns)
    except ArithmeticError:
        raise Damaged("no-grid", f"{path} states no grid") from None
    return birth, stamped


@dataclass(frozen=True, slots=True)
class Stranger:
    """What goes by a record beyond those of the copy, by its key or its word, and when it was signed at the latest."""

    finding: Finding
    """What is to be said if there was no such record then."""
    signed_ns: int


def known_until(closed: Mapping[int, Instant], newest: int) -> Instant:
    """Return until when there surely was no record after the newest one of the copy; 0: nobody says.

    ``closed``: by record, when the last bag was closed, at the earliest, whose lock file names it. Who found one before
    the newest of the copy found none after that either: they are published in the order of their numbers.
    """
    return max((instant - RECORDS_LAG_NS for number, instant in closed.items() if number <= newest), default=0)


def take_latest[K](closed: dict[K, Instant], other: Mapping[K, Instant]) -> None:
    """Take what another rack tells of when something was closed: of each the latest instant counts."""
    for each, instant in other.items():
        closed[each] = max(instant, closed.get(each, 0))


def judge_strangers(
    records: ClusterRecords, strangers: Iterable[Stranger], closed: Mapping[int, Instant], named: Iterable[int]
) -> Iterator[Finding]:
    """Yield each as a forger's, or one for each file as of a record that is missing from the copy.

    Asked when all bags were seen: a birth or a seal does not say which trust record it goes by. ``closed``: see
    ``known_until``; ``named``: the trust records that lock files and frames name.
    """
    missing = sorted(number for number in named if records.missing(Kind.TRUST, number))
    newest = max(records.keyrings, default=0)
    until, partial, told = known_until(closed, newest), isinstance(records.keys, PartialKeyring), set[str]()
    if missing:
        which = f"trust record {missing[0]}, which is not there"
    elif partial:
        which = "a trust record that is not there"
    else:
        which = f"a trust record after {newest}, published when the copy had taken those before it"
    for each in strangers:
        path = each.finding.evidence[0].path
        if not missing and not partial and each.signed_ns < until:
            yield each.finding
        elif path not in told:
            told.add(path)
            reason = f"{path} may go by {which}: {each.finding.explanation}"
            yield replace(found("unverifiable-trust", path, reason, each.finding.evidence), times=each.finding.times)
