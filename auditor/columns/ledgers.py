"""The entries of ledger blocks as columns: what a shard said of leases, a row each.

Only blocks that hold come here. Entries that columns do not judge (the ends of leases that were ended alone, or with
their session lease) become rows as well, which are not *plain*: their domains are judged one by one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.formats.witness import Ended, Witness, WitnessKind, decode_entry
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime

from .layout import ENDED, ENTRIES, ENTRY, GRANT, NOTHING, NUMBER_MAX, RENEWAL, UPGRADE, ChunkMaker, numbers, small
from .records import Shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from appliance.formats.witness import Entry
    from auditor.rules.finding import Evidence

    from .layout import Chunk
    from .records import Records

_OTHER: Final = 255
"""An entry about no lease of a domain."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block that holds, and where it stands."""

    head: tuple[bytes, int, bytes]
    """Incarnation, sequence and digest of its head."""
    entries: tuple[bytes, ...]
    path: str
    """As it is shown."""
    where: Evidence
    rank: int


class LedgerColumns:
    """Gathers the columns of one ledger file."""

    def __init__(self, keep: Callable[[list[Chunk]], list[Chunk]] = list) -> None:
        """Hold nothing. ``keep``: puts finished chunks where they take no memory."""
        self._maker = ChunkMaker(ENTRIES, keep)
        self._shapes = Shapes(decode_entry)

    def read(self, entries: Sequence[bytes]) -> Records:
        """Decode entries. Raises Damaged or ValueError where one of them is none, or has no shape."""
        return self._shapes.read(entries)

    def take(self, records: Records, chosen: Sequence[int], blocks: Sequence[BlockPlace]) -> list[tuple[int, int]]:
        """Keep what blocks say of leases. ``chosen``: which of the records are theirs, in order.

        Returns block and position of the other entries.
        """
        counts = [len(each.entries) for each in blocks]
        block = np.repeat(np.arange(len(blocks)), counts)
        position = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
        kind = records.of_each(_kind, np.uint8)[chosen]
        rows = _rows(records, np.asarray(chosen))
        maker = self._maker
        which, domains = records.distinct("domain")
        names = maker.names.all_of(each.decode() for each in domains)
        kept = np.flatnonzero(kind != _OTHER)
        rows["kind"] = kind
        rows = rows[kept]
        rows["name"] = names[which[np.asarray(chosen)[kept]]] if len(kept) else 0
        rows["position"] = position[kept]
        rows["plain"] &= small(rows["position"])
        rows["head"] = maker.heads.all_of(each.head for each in blocks)[block[kept]]
        rows["path"] = maker.paths.all_of(each.path for each in blocks)[block[kept]]
        for column, values in (
            ("offset", [each.where.offset for each in blocks]),
            ("length", [each.where.length for each in blocks]),
            ("rank", [each.rank for each in blocks]),
        ):
            rows[column] = np.array(values, np.int64)[block[kept]]
        rows["at"] = kept
        maker.add(rows, [entry for each in blocks for entry in each.entries])
        others = np.flatnonzero(kind == _OTHER)
        return list(zip(block[others].tolist(), position[others].tolist(), strict=True))

    def chunks(self) -> list[Chunk]:
        """Return everything that was gathered."""
        return self._maker.chunks()


_KINDS: Final = {WitnessKind.GRANT: GRANT, WitnessKind.RENEWAL: RENEWAL, WitnessKind.UPGRADE: UPGRADE}
MODES: Final = tuple(Mode)
OUTCOMES: Final = tuple(LeaseOutcome)
_PLAIN: Final = frozenset({LeaseOutcome.RELINQUISHED, LeaseOutcome.EXPIRED, LeaseOutcome.WITHDRAWN})
"""How leases end, mostly; nobody ended these alone, or with others."""


def _kind(entry: Entry) -> int:
    if isinstance(entry, Witness):
        return _KINDS[entry.kind]
    return ENDED if isinstance(entry, Ended) else _OTHER


def _plain(entry: Entry) -> bool:
    """Whether an entry is of the sort that columns judge, by what all of its shape share."""
    return isinstance(entry, Witness) or (isinstance(entry, Ended) and entry.ending.outcome in _PLAIN)


def _rows(records: Records, chosen: NDArray[np.int64]) -> NDArray[np.void]:
    """Return a row for each of some entries, without its place."""
    rows = np.zeros(len(chosen), ENTRY)
    plain = records.of_each(_plain)[chosen]
    rows["cid"] = (records.identifiers("correlation_id", 2) | records.identifiers("ending.correlation_id", 2))[chosen]
    rows["mode"] = records.of_each(lambda each: MODES.index(each.mode) if isinstance(each, Witness) else 0, np.uint8)[
        chosen
    ]
    rows["held"] = records.of_each(lambda each: isinstance(each, Witness) and each.phase is Phase.HELD)[chosen]
    for column, told, name in (("previous", "follows", "previous_id"), ("session", "under", "session_id")):
        rows[column], rows[told] = records.identifiers(name, 2)[chosen], records.there(name)[chosen]
    for column, name in (
        ("fence", "fence"),
        ("expiry", "expiry_ns"),
        ("floor", "floor_ns"),
        ("settle_to", "settle_to_ns"),
    ):
        rows[column] = records.number(name)[chosen]
        plain &= small(rows[column])
    for who, places in (("last", ("ending", "last_ended")), ("set_by", ("floor_set_by",))):
        plain &= _take_ending(records, chosen, rows, who, places)
    which, raw = records.distinct("holder.node", "holder.purpose")
    digests = b"".join([bytes(16), *(hashlib.blake2b(each, digest_size=16).digest() for each in raw)])
    rows["holder"] = numbers(digests, 2)[which[chosen] + 1]
    rows["timed"] = records.there("ending.watermark_time")[chosen]
    which, raw = records.distinct("ending.watermark_time")
    tokens = [_token(each) for each in raw]
    which = which[chosen]
    for column in ("midpoint", "radius", "staleness"):
        values = np.array([0, *(0 if t is None else getattr(t, f"{column}_ns") for t in tokens)], np.uint64)
        plain &= (values < NUMBER_MAX)[which + 1]
        rows[column] = np.where(values < NUMBER_MAX, values, 0)[which + 1]
    plain &= np.array([True, *(token is not None for token in tokens)])[which + 1]
    rows["plain"] = plain
    return rows


def _take_ending(
    records: Records, chosen: NDArray[np.int64], rows: NDArray[np.void], who: str, places: tuple[str, ...]
) -> NDArray[np.bool_]:
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
    """Return the signed time of a watermark, if it is one."""
    try:
        return SignedTime.decode(raw)
    except Damaged:
        return None
