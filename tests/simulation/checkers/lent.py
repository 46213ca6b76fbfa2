"""With honest clocks, who borrows a domain is alone with it: whoever has a higher fence has it after that is over.

So among the processes of one machine, of several, and those who have it from the shard. Those of mode S are alone
together.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.checkers.modes import excludes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History


class _Belief(NamedTuple):
    domain: str
    fence: int
    mode: str
    from_ns: int
    until_ns: int
    who: str
    borrowed: bool


def check(history: History, record: Record) -> Iterator[str]:
    if not history.lent:
        return
    lenders = {each.lender for each in history.lent}
    beliefs = [
        _Belief(each.domain, each.fence, each.mode, each.from_ns, each.until_ns, each.who, borrowed=True)
        for each in history.lent
    ] + [
        _Belief(each.domain, each.fence, each.mode, each.from_ns, until, each.who, borrowed=False)
        for each in history.holds
        if each.who not in lenders and (until := each.believed_until_ns(record.policy.holder_margin_ns)) > each.from_ns
    ]
    for first, second in combinations(sorted(beliefs), 2):
        if first.domain != second.domain or not (first.borrowed or second.borrowed):
            continue
        if not excludes(first.mode, second.mode):
            continue
        if first.fence == second.fence:
            yield f"{first.who} and {second.who} both had {first.domain} with the fence {first.fence}"
        elif second.from_ns < first.until_ns:
            yield (
                f"{second.who} had {first.domain} with the fence {second.fence} from {second.from_ns} on; {first.who}, "
                f"with the fence {first.fence}, believed to have it until {first.until_ns}"
            )
