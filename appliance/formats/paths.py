"""Names on the mount <-> what they mean. Paths are relative to the root, with forward slashes. No I/O.

```
logs/<log>/log                                the birth record
logs/<log>/store                              the birth record again, in the store that it names; there is the rest too
logs/<log>/tmp/<node>/                        files are prepared here before link(2)
logs/<log>/2026-11-20/22-10/                  a rack; 22-10-30 where racks are not whole minutes
logs/<log>/2026-11-20/22-10/22-10-07.000-1000-2000/    a bag: start, span and grace in milliseconds
        <writer>.<incarnation>.<sequence>.msg          a data file of a maildir bag
        <writer>.<incarnation>.<number>.log            a data file of a log bag
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

import msgspec

from timeagent.units import DAY, INSTANT_MAX, MINUTE, MS, SECOND, US, Instant

from .birth import LogBirth

MARKER: Final = "TENURE"
PRELOCK: Final = "prelock"
LOCK: Final = "lock"
SEAL: Final = "seal"
RETAINED: Final = "retained"
"""Retention says so in the rack before it deletes the pack: without it, what is gone was deleted by hand."""
BIRTH: Final = "log"
STORE: Final = "store"
TMP: Final = "tmp"
LOGS: Final = "logs"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WRITER: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_RUN: Final = r"[0-9a-f]{16}"
_SEQUENCE: Final = r"(?:[0-9]{8}|[1-9][0-9]{8,18})"
_DATA: Final = re.compile(rf"({_WRITER})\.({_RUN})\.({_SEQUENCE})\.(msg|log)")
_DATA_AMONG: Final = {
    suffix: re.compile(rf"(?<![^/]){_WRITER}\.{_RUN}\.{_SEQUENCE}\.{suffix}(?![^/])") for suffix in ("msg", "log")
}
"""Of names with slashes between them."""
_NUMBER: Final = re.compile(r"[0-9]{8,19}")
_LEDGER: Final = re.compile(r"(?P<run>[0-9a-f]{16})(\.(?P<number>[2-9]|[1-9][0-9]{1,7}))?\.ledger")
_REMEMBERED_MAX: Final = 4096
"""How many racks and bags, and names of such, a grid remembers: a bound on memory only."""


class DataName(msgspec.Struct, frozen=True, order=True):
    """The name of a data file: whose it is, and which of that writer's files (in a maildir bag: flushes)."""

    writer: str
    incarnation: bytes
    sequence: int
    suffix: str = "msg"

    def text(self) -> str:
        return f"{self.writer}.{self.incarnation.hex()}.{self.sequence:08d}.{self.suffix}"


@lru_cache(maxsize=4096)
def parse_data_name(name: str) -> DataName | None:
    """Read a data file's name; None for anything else (a foreign file)."""
    match = _DATA.fullmatch(name)
    if match is None:
        return None
    return DataName(match[1], bytes.fromhex(match[2]), int(match[3]), match[4])


class Rack(msgspec.Struct, frozen=True, order=True):
    """One aligned stretch of time of one log."""

    log: str
    start_ns: Instant
    end_ns: Instant
    path: str


class Bag(msgspec.Struct, frozen=True, order=True):
    """One aligned span of time of one log: timestamps in ``[start_ns, end_ns)``; closable surely past ``due_ns``."""

    log: str
    start_ns: Instant
    end_ns: Instant
    due_ns: Instant
    name: str
    rack: Rack
    path: str
    """The bag's directory."""


class Grid:
    """The racks and bags of one log. Every instant lies in exactly one of each."""

    def __init__(self, birth: LogBirth) -> None:
        """Take the numbers from the birth record, which has been checked (birth.check_grid)."""
        self.birth = birth
        self._suffix = birth.kind.suffix
        self.log_path = f"{LOGS}/{birth.log}"
        self.first_ns = birth.created_ns - birth.created_ns % birth.span_ns
        remembered = lru_cache(_REMEMBERED_MAX)
        self._rack, self._bag = remembered(self._made_rack), remembered(self._made_bag)
        self._parsed_rack, self._parsed_bag = remembered(self._read_rack), remembered(self._read_bag)

    def rack(self, instant: Instant) -> Rack:
        return self._rack(instant - instant % self.birth.rack_ns)

    def _made_rack(self, start: Instant) -> Rack:
        moment = _EPOCH + timedelta(seconds=start // SECOND)
        clock = f"{moment:%H-%M}" if self.birth.rack_ns % MINUTE == 0 else f"{moment:%H-%M-%S}"
        path = f"{self.log_path}/{moment:%Y-%m-%d}/{clock}"
        return Rack(self.birth.log, start, start + self.birth.rack_ns, path)

    def bag(self, instant: Instant) -> Bag:
        return self._bag(instant - instant % self.birth.span_ns)

    def _made_bag(self, start: Instant) -> Bag:
        birth, rack, end = self.birth, self.rack(start), start + self.birth.span_ns
        moment = _EPOCH + timedelta(seconds=start // SECOND)
        name = f"{moment:%H-%M-%S}.{start % SECOND // MS:03d}-{birth.span_ns // MS}-{birth.grace_ns // MS}"
        return Bag(birth.log, start, end, end + birth.grace_ns, name, rack, f"{rack.path}/{name}")

    def next_rack(self, rack: Rack) -> Rack:
        return self.rack(rack.end_ns)

    def bags(self, rack: Rack) -> list[Bag]:
        """Return every bag of a rack since the log was born, written to or not."""
        first = max(rack.start_ns, self.first_ns)
        return [self.bag(start) for start in range(first, rack.end_ns, self.birth.span_ns)]

    def parse_rack(self, day: str, name: str) -> Rack | None:
        """Read a rack's two directory names; None for names off the grid."""
        return self._parsed_rack(day, name)

    def _read_rack(self, day: str, name: str) -> Rack | None:
        form = "%Y-%m-%d/%H-%M" if self.birth.rack_ns % MINUTE == 0 else "%Y-%m-%d/%H-%M-%S"
        start = _instant(f"{day}/{name}", form)
        if start is None or start % self.birth.rack_ns or start + self.birth.rack_ns <= self.first_ns:
            return None
        rack = self.rack(start)
        return rack if rack.path == f"{self.log_path}/{day}/{name}" else None

    def parse_bag(self, rack: Rack, name: str) -> Bag | None:
        """Read a bag's directory name inside its rack; None for names off the grid: such a directory does not exist."""
        return self._parsed_bag(rack, name)

    def _read_bag(self, rack: Rack, name: str) -> Bag | None:
        in_day = _instant(f"1970-01-01/{name[:12]}", "%Y-%m-%d/%H-%M-%S.%f")
        if in_day is None:
            return None
        bag = self.bag(rack.start_ns - rack.start_ns % DAY + in_day)
        return bag if bag.name == name and bag.rack == rack and bag.start_ns >= self.first_ns else None

    def data_of(self, names: Sequence[str]) -> list[str]:
        """Return those of a directory's names that are data files of this log, in the order given."""
        # All at once, which takes half as long: a slash is in no file's name, so no match reaches into the next.
        found: list[str] = _DATA_AMONG[self._suffix].findall("/".join(names))
        return found

    def data_name(self, name: str) -> DataName | None:
        """Read the name of a data file of this log; None for anything else, also for a file of the other kind."""
        parsed = parse_data_name(name)
        return parsed if parsed is not None and parsed.suffix == self._suffix else None


def _instant(text: str, form: str) -> Instant | None:
    """Read a moment, also one that is not written as it should be; None for none, and for what is far ahead."""
    try:
        since = datetime.strptime(text, form).replace(tzinfo=UTC) - _EPOCH
    except ValueError:
        return None
    instant = since // timedelta(microseconds=1) * US
    return instant if 0 <= instant < INSTANT_MAX - DAY else None


def record_name(number: int) -> str:
    return f"{number:08d}"


@lru_cache(maxsize=4096)
def parse_record_name(name: str) -> int | None:
    """Read the name of a numbered record; None for anything else."""
    if not _NUMBER.fullmatch(name):
        return None
    number = int(name)
    return number if record_name(number) == name and number > 0 else None


def chain_path(map_number: int, shard: int) -> str:
    """Return the directory of a shard's ceiling chain under a map."""
    return f"shards/{record_name(map_number)}/{shard:04d}"


def ledger_path(map_number: int, shard: int, incarnation: bytes, number: int = 1) -> str:
    """Return a file that one run of a shard appends its ledger blocks to: its first, or one that goes on after that."""
    name = incarnation.hex() if number == 1 else f"{incarnation.hex()}.{number}"
    return f"ledger/{record_name(map_number)}/{shard:04d}/{name}.ledger"


def parse_ledger_name(name: str) -> tuple[bytes, int] | None:
    """Read the name of a ledger file: whose run, and which of its files; None for anything else."""
    parsed = _LEDGER.fullmatch(name)
    return None if parsed is None else (bytes.fromhex(parsed["run"]), int(parsed["number"] or 1))
