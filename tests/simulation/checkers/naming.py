"""Names of racks, bags and data files, read once more: docs/protocol/formats.md, section "Logs, bags and racks"."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.checkers.forms import LogBirth

_SECOND: Final = 10**9
_MS: Final = 10**6
_MINUTE: Final = 60 * _SECOND
_BAG: Final = re.compile(r"(\d\d)-(\d\d)-(\d\d)\.(\d{3})-(\d+)-(\d+)")
_FILE: Final = re.compile(r"(.+)\.([0-9a-f]{16})\.(\d{8,})\.(msg|log)")


class Stretch(NamedTuple):
    """A rack or a bag: its path, and from when until when."""

    path: str
    start_ns: int
    end_ns: int


class Author(NamedTuple):
    """What the name of a data file says."""

    writer: str
    incarnation: bytes


def _instant(day: str, clock: str, form: str) -> int | None:
    text = f"{day} {clock}"
    try:
        found = datetime.strptime(text, f"%Y-%m-%d {form}").replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(found.timestamp()) * _SECOND if found.strftime(f"%Y-%m-%d {form}") == text else None


@lru_cache(maxsize=1_024)
def rack_of(birth: LogBirth, day: str, clock: str) -> Stretch | None:
    """Return a rack by its two names; None if the log has none of that name."""
    start = _instant(day, clock, "%H-%M-%S" if birth.rack_ns % _MINUTE else "%H-%M")
    if start is None or start % birth.rack_ns or start + birth.rack_ns <= birth.created_ns:
        return None
    return Stretch(f"logs/{birth.log}/{day}/{clock}", start, start + birth.rack_ns)


@lru_cache(maxsize=4_096)
def bag_of(birth: LogBirth, rack: Stretch, name: str) -> Stretch | None:
    """Return a bag by its name in a rack; None if the log has none of that name."""
    parsed = _BAG.fullmatch(name)
    if parsed is None:
        return None
    hours, minutes, seconds, milliseconds, span, grace = map(int, parsed.groups())
    of_day = ((hours * 60 + minutes) * 60 + seconds) * _SECOND + milliseconds * _MS
    start = rack.start_ns - rack.start_ns % (86_400 * _SECOND) + of_day
    named = name.endswith(f"-{birth.span_ns // _MS}-{birth.grace_ns // _MS}")
    fits = (span * _MS, grace * _MS) == (birth.span_ns, birth.grace_ns) and not start % birth.span_ns
    if not named or not fits or start < birth.created_ns or not rack.start_ns <= start < rack.end_ns:
        return None
    return Stretch(f"{rack.path}/{name}", start, start + birth.span_ns)


def author_of(birth: LogBirth, name: str) -> Author | None:
    """Return who wrote a data file; None if it is none."""
    parsed = _FILE.fullmatch(name)
    if parsed is None or parsed[4] != {"maildir": "msg", "log": "log"}[birth.kind]:
        return None
    return Author(parsed[1], bytes.fromhex(parsed[2]))
