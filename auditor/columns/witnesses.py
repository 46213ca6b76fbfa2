"""What shards signed, as columns: the entries of ledger blocks, and the witnesses that frames carry.

Only blocks that hold come here. Entries that columns do not judge (the ends of leases that were ended alone, or with
their session lease) become rows as well, which are not *plain*: their domains are judged one by one. Witnesses in
frames are opened once each, and the paths of a batch are checked together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from appliance.formats.framing import WITNESSES_MAX
from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.merkle import KnownPaths
from appliance.formats.policy import Policy
from appliance.formats.witness import (
    Ended,
    Entry,
    Half,
    SessionWitness,
    SignedWitness,
    Witness,
    WitnessKind,
)
from auditor.evidence.finding import breaks
from auditor.evidence.signatures import FrameReader, KnownHead
from timeagent import core
from timeagent.canonical import decode
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime
from timeagent.trust import Keyring

from .layout import (
    ENDED,
    ENTRY,
    GRANT,
    NOTHING,
    NUMBER_MAX,
    OTHER,
    RENEWAL,
    UPGRADE,
    Column,
    Flags,
    NotPlain,
    Rows,
    numbers,
    small,
    time_columns,
)
from .records import Records, Shapes

_KINDS: Final = {WitnessKind.GRANT: GRANT, WitnessKind.RENEWAL: RENEWAL, WitnessKind.UPGRADE: UPGRADE}
MODES: Final = tuple(Mode)
OUTCOMES: Final = tuple(LeaseOutcome)
_PLAIN: Final = frozenset({LeaseOutcome.RELINQUISHED, LeaseOutcome.EXPIRED, LeaseOutcome.WITHDRAWN})
"""How leases end, mostly; nobody ended these alone, or with others."""


def _kind(entry: Entry) -> int:
    return _KINDS[entry.kind] if isinstance(entry, Witness) else ENDED if isinstance(entry, Ended) else OTHER


def _plain(entry: Entry) -> bool:
    """Whether an entry is of the sort that columns judge, by what all of its shape share."""
    return isinstance(entry, Witness) or (isinstance(entry, Ended) and entry.ending.outcome in _PLAIN)


def entry_rows(records: Records, chosen: Column) -> Rows:
    """Return a row for each of some entries, without its domain and its place; ``kind`` is OTHER of some."""
    rows = np.zeros(len(chosen), ENTRY)
    rows["kind"] = records.of_each(_kind, np.uint8)[chosen]
    plain = records.of_each(_plain)[chosen]
    rows["cid"] = (records.identifiers("correlation_id", 2) | records.identifiers("ending.correlation_id", 2))[chosen]
    modes = records.of_each(lambda each: MODES.index(each.mode) if isinstance(each, Witness) else 0, np.uint8)
    rows["mode"] = modes[chosen]
    rows["held"] = records.of_each(lambda each: isinstance(each, Witness) and each.phase is Phase.HELD)[chosen]
    for column, told, name in (("previous", "follows", "previous_id"), ("session", "under", "session_id")):
        rows[column], rows[told] = records.identifiers(name, 2)[chosen], records.there(name)[chosen]
    for name in ("fence", "expiry_ns", "floor_ns", "settle_to_ns"):
        column = name.removesuffix("_ns")
        rows[column] = records.number(name)[chosen]
        plain &= small(rows[column])
    for who, places in (("last", ("ending", "last_ended")), ("set_by", ("floor_set_by",))):
        plain &= _take_ending(records, chosen, rows, who, places)
    which, raw = records.distinct("holder.node", "holder.purpose")
    digests = b"".join([bytes(16), *(hashlib.blake2b(each, digest_size=16).digest() for each in raw)])
    rows["holder"] = numbers(digests, 2)[which[chosen] + 1]
    rows["timed"] = records.there("ending.watermark_time")[chosen]
    which, raw = records.distinct("ending.watermark_time")
    which = which[chosen]
    fine, times = time_columns([*map(_token, raw), None])  # the last is that of those that have none
    rows["midpoint"], rows["radius"], rows["staleness"] = times[:, which]
    rows["plain"] = plain & (fine[which] | ~rows["timed"])
    return rows


def _take_ending(records: Records, chosen: Column, rows: Rows, who: str, places: tuple[str, ...]) -> Flags:
    """Take what entries tell of the end of a lease, in one of some places; say of each whether it can be compared."""

    def outcome(entry: Entry) -> int:
        told = next((each for each in (getattr(entry, place, None) for place in places) if each is not None), None)
        return 0 if told is None else OUTCOMES.index(told.outcome)

    rows[f"{who}_outcome"] = records.of_each(outcome, np.uint8)[chosen]
    fine = np.ones(len(chosen), np.bool_)
    watermark = np.full(len(chosen), NOTHING)
    for place in places:
        told = records.there(f"{place}.correlation_id")[chosen]
        if not told.any():
            continue
        rows[f"{who}_told"] |= told
        rows[f"{who}_cid"] |= records.identifiers(f"{place}.correlation_id", 2)[chosen]
        rows[f"{who}_ended"] |= records.number(f"{place}.ended_ns")[chosen]
        rows[f"{who}_messages"] |= records.number(f"{place}.messages")[chosen]
        watermark = np.maximum(watermark, records.number(f"{place}.watermark_ns", NOTHING)[chosen])
        rows[f"{who}_chained"] |= records.there(f"{place}.chain_head")[chosen]
        rows[f"{who}_head"] |= records.identifiers(f"{place}.chain_head", 4)[chosen]
    rows[f"{who}_watermark"] = watermark
    for column in ("ended", "messages"):
        fine &= small(rows[f"{who}_{column}"])
    return fine & (watermark < NUMBER_MAX)


def _token(raw: bytes) -> SignedTime | None:
    try:
        return SignedTime.decode(raw)
    except Damaged:
        return None


_STEP: Final = 34
"""A hash in a list of hashes: two bytes say that 32 follow."""


def check_paths(
    entries: list[bytes], paths: list[bytes], batch: Column, index: Column, counts: Sequence[int], roots: list[bytes]
) -> Flags:
    """Say of each entry whether its path leads to the root of its batch.

    ``paths``: lists of hashes as they are encoded, from the first hash on. ``counts``, ``roots``: of each batch, how
    many entries are signed, and the root over them.
    """
    order = np.lexsort((index, batch))  # neighbours share most of their paths
    found, of, at, several = np.zeros(len(entries), np.bool_), batch[order], index[order], order.tolist()
    if core.native is not None:
        entries, paths = [entries[n] for n in several], [paths[n] for n in several]
        widths, over = np.array(counts, "<i8")[of], numbers(b"".join(roots), 4)[of]
        good = core.native.check_paths(entries, paths, at.tobytes(), widths.tobytes(), over.tobytes())
        found[order] = np.frombuffer(good, np.bool_)
        return found
    known = [KnownPaths(count, root) for count, root in zip(counts, roots, strict=True)]
    for n, which, place in zip(several, of.tolist(), at.tolist(), strict=True):
        found[n] = known[which].holds(entries[n], place, _steps(paths[n]))
    return found


def _steps(path: bytes) -> tuple[bytes, ...]:
    return tuple([path[at : at + _STEP - 2] for at in range(0, len(path), _STEP)])


class Witnesses:
    """The different witnesses of some frames: of leases and of session leases. Raises NotPlain, Damaged, ValueError."""

    def __init__(
        self, heads: Records, frames: FrameReader, keyring: Keyring, of_signed: Shapes, of_entries: Shapes
    ) -> None:
        """Open those that the heads of frames carry."""
        if max(len(each.witnesses) for each in heads.kinds()) > WITNESSES_MAX:  # type: ignore[attr-defined]
            raise NotPlain
        carried_by, carried, raw = heads.distinct_items("witnesses")
        self.count = len(raw)
        if not raw:
            self.frame = self.which = self.session_frame = self.session_which = np.zeros(0, np.int64)
            return
        signed = of_signed.read(raw)
        self.entries = signed.raw("entry")
        told = of_entries.read(self.entries)
        if any(not isinstance(each, Witness | SessionWitness) for each in told.kinds()):
            raise NotPlain
        self.position = signed.number("index")
        self.batch, _ = signed.distinct("head", "signature")
        self.batches: list[tuple[KnownHead, bytes]] = []
        for each in np.unique(self.batch, return_index=True)[1].tolist():
            one = decode(SignedWitness, raw[each])
            self.batches.append((frames.head(one, keyring), one.head))
        signers = [known.head for known, _ in self.batches]
        signing = [head.count for head in signers], [head.root for head in signers]
        self._holds = check_paths(self.entries, signed.items("path"), self.batch, self.position, *signing)
        self._told = told
        self.correlation = told.identifiers("correlation_id", 2)
        self.settle_to = told.number("settle_to_ns")
        self.floor, self.expiry = told.number("floor_ns"), told.number("expiry_ns")
        self.domain, names = told.distinct("domain")
        self.domains = [each.decode() for each in names]
        self.holder, nodes = told.distinct("holder.node")
        self.nodes = [each.decode() for each in nodes]
        self.incarnation = told.identifiers("holder.incarnation", 1)[:, 0]
        of_session: Flags = told.of_each(lambda each: type(each) is SessionWitness)[carried]
        self.frame, self.which = carried_by[~of_session], carried[~of_session]
        """Of each witness of a lease that a frame carries: the frame, and the number of the witness."""
        self.session_frame, self.session_which = carried_by[of_session], carried[of_session]
        """The same of session leases."""

    def head_names(self) -> list[tuple[bytes, int, bytes]]:
        return [(known.head.incarnation, known.head.sequence, known.digest) for known, _ in self.batches]

    def with_sessions(self) -> tuple[Flags, Column]:
        """Say of each lease that a frame carries whether it stands as far as sessions go, and what says until when.

        A lease under a session lease stands with one witness of that in the frame, from the same run of its shard, of
        the same holder, which does not name the lease as ended. Then that one's expiry is the lease's.
        """
        under = self._told.there("session_id")[self.which]
        if not under.any():
            return ~under, self.which
        runs: dict[tuple[int, int, bytes], int] = {}
        run = [
            runs.setdefault((known.head.map_number, known.head.shard, known.head.incarnation), len(runs))
            for known, _ in self.batches
        ]
        session, names = self._told.distinct("session_id")
        name = np.array(run, np.int64)[self.batch] * len(names) + session
        """Of each witness: which session lease of which run."""
        most = len(runs) * len(names) + 1
        wanted = self.frame * most + name[self.which]
        there = self.session_frame * most + name[self.session_which]
        order = np.argsort(there)
        there, which = there[order], self.session_which[order]
        at, end = np.searchsorted(there, wanted), np.searchsorted(there, wanted, "right")
        stands = ~under | (end - at == 1)
        if not len(which):
            return stands, self.which
        of = which[np.minimum(at, len(which) - 1)]
        holder, _ = self._told.distinct("holder.node", "holder.purpose")
        stands &= ~under | (holder[of] == holder[self.which])
        lease = self.correlation[self.which]
        for place in range(max(len(getattr(each, "ended", ())) for each in self._told.kinds())):
            stands &= ~under | (self._told.identifiers(f"ended.{place}", 2)[of] != lease).any(axis=1)
        return stands, np.where(under, of, self.which)

    def good(self, policy: Policy) -> tuple[Flags, Column]:
        """Say of each whether it holds by itself, and for each the earliest instant at which it was signed.

        While a domain moves, leases count with their other halves: which of a frame's these are the rules say.
        """
        term_ns_max = policy.lease_term_max_ns
        sound = [
            known.refusal is None
            and known.head.half is Half.WHOLE
            and known.token.radius_ns <= policy.radius_ns_max
            and term_ns_max < NUMBER_MAX
            for known, _ in self.batches
        ]
        fine, times = time_columns(known.token for known, _ in self.batches)
        midpoint, radius, _ = times[:, self.batch]
        good = (
            self._holds
            & (np.array(sound, np.bool_) & fine)[self.batch]
            & self._told.of_each(usual)
            & ~breaks("term-above-policy", self.expiry, midpoint + term_ns_max + radius)
            & small(self.position)
            & small(self.settle_to)
        )
        return good, midpoint - radius

    def once_each(self, count: int) -> Flags:
        """Say which frames have witnesses of leases, one of each lease: which of several counts the rules say."""
        found = np.zeros(count, np.bool_)
        found[self.frame] = True
        if (self.frame[1:] != self.frame[:-1]).all():
            return found
        leases = self._told.distinct("correlation_id")[0] if self.count else self.which
        lease = self.frame * self.count + leases[self.which]
        found[self.frame[np.delete(np.arange(len(lease)), np.unique(lease, return_index=True)[1])]] = False
        return found


def usual(witness: Witness | SessionWitness) -> bool:
    """Whether frames may be written under what a witness states."""
    return isinstance(witness, SessionWitness) or (witness.mode.may_write and witness.phase is Phase.HELD)
