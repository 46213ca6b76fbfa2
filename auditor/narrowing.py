"""Part of a tree on purpose: which racks are read, and which domains are judged.

What is not read may hold anything: a message that is missing from the rest is no finding. Records, ceiling chains and
ledgers are read whole in any case, because what may be written in one hour follows from what was granted before it.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from timeagent.console import printable
from timeagent.errors import BadRequest
from timeagent.units import INSTANT_MAX, rfc3339

if TYPE_CHECKING:
    from collections.abc import Collection

    from appliance.formats.paths import Rack
    from timeagent.units import Instant


_COMPARED_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What is asked for; by default everything."""

    since_ns: Instant = 0
    until_ns: Instant = INSTANT_MAX
    """Racks that hold an instant in [since, until) are read."""
    logs: tuple[str, ...] = ()
    """Names of logs; none: all."""
    domains: tuple[str, ...] = ()
    """Domains whose leases are judged, or beginnings of them that end in ``*``; none: all."""

    def reads_log(self, log: str) -> bool:
        """Whether a log is read."""
        return not self.logs or log in self.logs

    def reads_rack(self, rack: Rack) -> bool:
        """Whether a rack is read."""
        return rack.end_ns > self.since_ns and rack.start_ns < self.until_ns

    def judges(self, domain: str) -> bool:
        """Whether a domain's leases are judged."""
        return not self.domains or any(
            domain.startswith(each[:-1]) if each.endswith("*") else domain == each for each in self.domains
        )

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self == WHOLE

    def fields(self) -> dict[str, Any]:
        """Return what JSON shows; nothing where nothing is left out."""
        if self.whole:
            return {}
        return {
            "narrowed_to": {
                "since": rfc3339(self.since_ns) if self.since_ns else None,
                "until": rfc3339(self.until_ns) if self.until_ns < INSTANT_MAX else None,
                "logs": list(self.logs),
                "domains": list(self.domains),
            }
        }


def check_asked(narrowing: Narrowing, known: Collection[str]) -> None:
    """Raise BadRequest for a domain that was asked for and of which the tree tells nothing. ``known``: all domains.

    Silence about a name that was mistyped looks like an acquittal.
    """
    for asked in narrowing.domains:
        only = Narrowing(domains=(asked,))
        if not any(map(only.judges, known)):
            near = ", ".join(map(printable, _nearest(asked.removesuffix("*"), known)))
            hint = f"the nearest that are: {near}" if near else "the tree tells of no lease at all"
            raise BadRequest("no-such-domain", f"the tree tells of no lease on {printable(asked)!r}", hint=hint)


def _nearest(name: str, known: Collection[str]) -> list[str]:
    """Return the names that are most like one; of very many only those beside it are looked at."""
    names = sorted(known)
    if len(names) > _COMPARED_MAX:
        at = bisect_left(names, name)
        names = names[max(0, at - _COMPARED_MAX // 2) : at + _COMPARED_MAX // 2]
    return get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]


WHOLE: Final = Narrowing()
