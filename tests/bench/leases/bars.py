"""What the lease service is held to, in one table, and whether it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Bar:
    """One number and its bound.

    ``number``: "LINE: CPU of PEER / ours" for how many times as much processor time a peer takes for the same,
    "LINE: ours / PEER" for ratios of rates, or a number's own name.
    """

    number: str
    bound: float
    at_most: bool = False

    def holds(self, value: float) -> bool:
        """Whether a number keeps to the bound."""
        return value <= self.bound if self.at_most else value >= self.bound


BARS: Final = (
    Bar("64 connections: CPU of etcd / ours", 40),
    Bar("64 connections: CPU of etcd_txn / ours", 14),
    Bar("64 connections: CPU of zookeeper / ours", 3),
    Bar("64 connections: CPU of redis / ours", 0.7),
    Bar("64 connections: CPU of unsigned / ours", 0.75),
    Bar("100 a request: CPU of redis / ours", 1),
    Bar("sets of 10: CPU of redis-py / ours", 0.8),
    Bar("sets of 100: CPU of redis-py / ours", 1.5),
    Bar("sets of 1000: CPU of redis-py / ours", 1.3),
    Bar("one by one: CPU of kazoo / ours", 10),
    Bar("8 contend: ours / redis-py", 10),
    Bar("8 contend: CPU of kazoo / ours", 10),
    Bar("8 contend: CPU of etcd_mutex / ours", 10),
    Bar("8 contend: longest wait / mean", 3, at_most=True),
    Bar("64 contend: ours / redis-py", 10),
    Bar("64 contend: CPU of kazoo / ours", 10),
    Bar("64 contend: CPU of etcd_mutex / ours", 10),
    Bar("64 contend: longest wait / mean", 3, at_most=True),
    Bar("killed holder and waiter: wedges", 0, at_most=True),
    Bar("leases held: many / 1000", 0.8),
    Bar("leases held: bytes a lease", 150, at_most=True),
    Bar("session of 100000: round trips of a renewal", 1, at_most=True),
    Bar("session: CPU of a renewal, many leases / 1000", 1.3, at_most=True),
)


def judged(numbers: Mapping[str, float], skipped: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return a line for every bar, and whether all that was measured holds.

    ``skipped``: why a name that a bar's number mentions was not measured. A bar that has neither is a short one too.
    """
    lines: list[str] = []
    good = True
    for bar in BARS:
        sign = "<=" if bar.at_most else ">="
        wanted = f"{bar.number:46s} {sign} {bar.bound:<6g}"
        value = numbers.get(bar.number)
        if value is not None:
            good = good and bar.holds(value)
            lines.append(f"{wanted} {value:10.2f}  {'good' if bar.holds(value) else 'SHORT'}")
            continue
        why = next((f"{name}: {why}" for name, why in skipped.items() if name in bar.number), None)
        good = good and why is not None
        lines.append(f"{wanted} {'-':>10s}  {'SHORT (not measured)' if why is None else f'skipped, {why}'}")
    return lines, good
