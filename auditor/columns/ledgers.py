"""The entries of ledger blocks as columns: what a shard said of leases, a row each.

Only blocks that hold come here. Entries that columns do not judge (shared modes, upgrades, session leases, ends that
nobody asked for) become rows as well, which are not *plain*: their domains are judged one by one.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

import numpy as np

from appliance.formats.lease import LeaseOutcome, Mode
from appliance.formats.witness import Ended, Witness, WitnessKind
from timeagent.errors import Damaged
from timeagent.signedtime import SignedTime

from .layout import ENDED, ENTRIES, ENTRY, GRANT, NOTHING, RENEWAL, ChunkMaker, numbers, small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from appliance.formats.lease import Ending
    from appliance.formats.witness import Entry
    from auditor.finding import Evidence

    from .layout import Chunk, Rows

_FLUSH_ROWS: Final = 8192
_NONE: Final = bytes(16)


class LedgerColumns:
    """Gathers the columns of one ledger file."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._maker = ChunkMaker(ENTRIES)
        self._witnesses: list[Witness] = []
        self._ends: list[Ended] = []
        self._places: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
        self._raw: tuple[list[bytes], list[bytes]] = ([], [])

    def take(
        self,
        head: tuple[bytes, int, bytes],
        entries: Sequence[Entry],
        raw: Sequence[bytes],
        path: str,
        where: Evidence,
        rank: int,
    ) -> list[int]:
        """Keep what a block says of leases. Returns the positions of the other entries. ``path``: as it is shown."""
        others = []
        number = self._maker.heads.of(head)
        place = (number, self._maker.paths.of(path), where.offset, where.length, rank)
        for position, entry in enumerate(entries):
            kind = type(entry)
            if kind is Witness:
                self._witnesses.append(entry)  # type: ignore[arg-type]
                which = 0
            elif kind is Ended:
                self._ends.append(entry)  # type: ignore[arg-type]
                which = 1
            else:
                others.append(position)
                continue
            self._places[which].append((position, *place))
            self._raw[which].append(raw[position])
        if len(self._witnesses) + len(self._ends) >= _FLUSH_ROWS:
            self._flush()
        return others

    def chunks(self) -> list[Chunk]:
        """Return everything that was gathered."""
        self._flush()
        return self._maker.chunks()

    def _flush(self) -> None:
        if self._witnesses:
            self._maker.add(self._witness_rows(), self._raw[0])
        if self._ends:
            self._maker.add(self._end_rows(), self._raw[1])
        self._witnesses, self._ends = [], []
        self._places, self._raw = ([], []), ([], [])

    def _rows(self, which: int, told: Sequence[Witness] | Sequence[Ended]) -> Rows:
        """Return rows with what all entries have."""
        rows = np.zeros(len(told), ENTRY)
        names = self._maker.names
        rows["name"] = np.fromiter((names.of(each.domain) for each in told), np.uint32, len(told))
        places = np.array(self._places[which], np.int64)
        for column, name in enumerate(("position", "head", "path", "offset", "length", "rank")):
            rows[name] = places[:, column]
        return rows

    def _witness_rows(self) -> Rows:
        told = self._witnesses
        rows = self._rows(0, told)

        def ids(of: Callable[[Witness], bytes | None]) -> NDArray[np.uint64]:
            return numbers(b"".join([of(each) or _NONE for each in told]), 2)

        rows["cid"] = ids(attrgetter("correlation_id"))
        rows["previous"] = ids(attrgetter("previous_id"))
        rows["follows"] = [each.previous_id is not None for each in told]
        rows["last_ended"] = ids(lambda each: _id_of(each.last_ended))
        rows["tells"] = [each.last_ended is not None for each in told]
        rows["floor_set_by"] = ids(lambda each: _id_of(each.floor_set_by))
        rows["sets"] = [each.floor_set_by is not None for each in told]
        rows["kind"] = [GRANT if each.kind is WitnessKind.GRANT else RENEWAL for each in told]
        rows["watermark"] = NOTHING
        plain = np.fromiter(map(_plain, told), np.bool_, len(told))
        for column in ("fence", "expiry", "floor", "settle_to"):
            attribute = column if column == "fence" else f"{column}_ns"
            rows[column] = _column(told, attribute)
            plain &= small(rows[column])
        rows["plain"] = plain & small(rows["position"])
        return rows

    def _end_rows(self) -> Rows:
        told = self._ends
        rows = self._rows(1, told)
        endings = [each.ending for each in told]
        rows["cid"] = numbers(b"".join([each.correlation_id for each in endings]), 2)
        rows["kind"] = ENDED
        watermarks = [NOTHING if each.watermark_ns is None else each.watermark_ns for each in endings]
        rows["watermark"] = watermarks
        rows["messages"] = [each.messages for each in endings]
        rows["timed"] = [each.watermark_time is not None for each in endings]
        tokens = list(map(_token, endings))
        for column in ("midpoint", "radius", "staleness"):
            rows[column] = [0 if token is None else getattr(token, f"{column}_ns") for token in tokens]
        plain = np.fromiter((each.outcome is LeaseOutcome.RELINQUISHED for each in endings), np.bool_, len(endings))
        plain &= rows["timed"] == np.fromiter((token is not None for token in tokens), np.bool_, len(tokens))
        for column in ("messages", "midpoint", "radius", "staleness", "position"):
            plain &= small(rows[column])
        rows["plain"] = plain & (small(rows["watermark"]) | (rows["watermark"] == NOTHING))
        return rows


def _column(told: Iterable[Witness], attribute: str) -> NDArray[np.int64]:
    return np.fromiter(map(attrgetter(attribute), told), np.int64)


def _plain(witness: Witness) -> bool:
    return witness.mode is Mode.X and witness.session_id is None and witness.kind is not WitnessKind.UPGRADE


def _id_of(ending: Ending | None) -> bytes | None:
    return None if ending is None else ending.correlation_id


def _token(ending: Ending) -> SignedTime | None:
    """Return the signed time of a watermark, if there is one that is one."""
    if ending.watermark_time is None:
        return None
    try:
        return SignedTime.decode(ending.watermark_time)
    except Damaged:
        return None
