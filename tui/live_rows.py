"""The rows of a live cluster's leases: from what shards and ledgers said. Made anew only where something is new.

Ten thousand rows are not made four times a second: what changes with the clock alone is told by columns (book.py).
"""

from __future__ import annotations

import os
from operator import is_
from typing import TYPE_CHECKING

from appliance.lease.wire import LeaseView
from timeagent.clock import boot_id
from timeagent.units import SECOND

from .book import Leases
from .state import LeaseRow, Origin, Reach, ShardView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from timeagent.interval import TimeInterval
    from timeagent.units import Instant

    from .ledger import LedgerLease
    from .live import ShardAnswer
    from .mount import MountAnswer


class LiveRows:
    """Makes rows, and keeps the newest. One thread."""

    def __init__(self, present: Callable[[int], bool] | None = None) -> None:
        """Know nothing yet. ``present`` says whether a process runs on this machine."""
        self._present = present or process_is_present
        self._boot = bytes.fromhex(boot_id().replace("-", ""))
        self._processes: dict[int, bool] = {}
        self._made_from: tuple[list[object], list[object]] = ([], [])
        self._rows = Leases()
        self._fading = False
        """Whether there are rows that end with time alone, whatever anybody says."""

    def rows(
        self, answer: MountAnswer, shards: list[ShardView], said: Sequence[ShardAnswer | None], now: TimeInterval
    ) -> Leases:
        """Return the leases in order of domain; the same value as before where nothing is new."""
        self._processes = {process: self._present(process) for process in self._processes}
        things, values = self._told(answer, shards, said, now)
        if values != self._made_from[1] or not _same(things, self._made_from[0]):
            self._processes = {}
            found = sorted(self._leases(answer, shards, said, now), key=lambda row: (row.domain, -row.fence))
            self._rows = Leases(found)
            self._fading = any(row.origin in (Origin.LEDGER, Origin.EARLIER_RUN) for row in found)
            self._made_from = self._told(answer, shards, said, now)
        return self._rows

    def _told(
        self, answer: MountAnswer, shards: list[ShardView], said: Sequence[ShardAnswer | None], now: TimeInterval
    ) -> tuple[list[object], list[object]]:
        """Return all that rows are made from: what is large, to be compared by identity, and small values."""
        things: list[object] = [answer.leases, answer.fences, answer.previous]
        for each in said:
            things += [None, None] if each is None else [each.leases, each if each.earlier else None]
        values: list[object] = [answer.policy.takeover_ns() - answer.policy.lease_term_max_ns]
        values += [(shard.freshness.reach, shard.resumes_ns, shard.incarnation) for shard in shards]
        values += [list(self._processes.items()), now.earliest // SECOND if self._fading else None]
        return things, values

    def _leases(
        self, answer: MountAnswer, shards: list[ShardView], answers_of: Sequence[ShardAnswer | None], now: TimeInterval
    ) -> Iterator[LeaseRow]:
        known: set[str] = set()
        after_expiry = answer.policy.takeover_ns() - answer.policy.lease_term_max_ns
        for view in shards:
            said = answers_of[view.shard]
            if said is None:
                continue
            answers = view.freshness.reach is Reach.ANSWERS
            origin = Origin.SHARD if answers else Origin.LAST_ANSWER
            for each in said.leases:
                known.add(each.domain)
                # Without its shard a domain waits for the shard's ceiling, which lies behind every expiry.
                resumes = each.expiry_ns + after_expiry if answers else view.resumes_ns or each.expiry_ns + after_expiry
                as_of = None if answers else said.asked_ns
                yield self._row(each, view.shard, origin, resumes, answer, as_of)
            if answers and view.resumes_ns is not None and not now.surely_past(view.resumes_ns):
                for each in said.earlier:
                    known.add(each.domain)
                    if answer.fences.get(each.domain, 0) > each.fence:
                        continue  # the present run has granted it since, and the lease before it is no matter any more
                    yield self._row(each, view.shard, Origin.EARLIER_RUN, view.resumes_ns, answer, said.asked_ns)
        for ledger in answer.leases:
            shard = shards[ledger.shard] if ledger.shard < len(shards) else None
            if shard is None or ledger.witness.domain in known:
                continue
            row = self._from_ledger(ledger, shard, answer)
            if row is not None and not (shard.freshness.reach is Reach.ANSWERS and now.surely_past(row.resumes_ns)):
                yield row

    def _from_ledger(self, ledger: LedgerLease, shard: ShardView, answer: MountAnswer) -> LeaseRow | None:
        """Return what a ledger last said, unless the shard that wrote it answers and knows better."""
        origin = Origin.LEDGER
        resumes = ledger.witness.expiry_ns + answer.policy.takeover_ns() - answer.policy.lease_term_max_ns
        if shard.incarnation != ledger.incarnation.hex():
            if shard.resumes_ns is None:
                return None
            origin, resumes = Origin.EARLIER_RUN, shard.resumes_ns
        elif shard.freshness.reach is Reach.ANSWERS:
            return None
        witness = ledger.witness
        view = LeaseView(
            domain=witness.domain,
            mode=witness.mode,
            phase=witness.phase,
            holder=witness.holder,
            correlation_id=witness.correlation_id,
            fence=witness.fence,
            granted_ns=ledger.signed_ns,
            expiry_ns=witness.expiry_ns,
            floor_ns=witness.floor_ns,
            settle_to_ns=witness.settle_to_ns,
            waiting=0,
        )
        return self._row(view, shard.shard, origin, resumes, answer, ledger.signed_ns)

    def _row(
        self,
        view: LeaseView,
        shard: int,
        origin: Origin,
        resumes_ns: Instant,
        answer: MountAnswer,
        as_of_ns: Instant | None,
    ) -> LeaseRow:
        holder = view.holder
        there: bool | None = None
        if holder.boot == self._boot and holder.process > 0:
            if holder.process not in self._processes:
                self._processes[holder.process] = self._present(holder.process)
            there = self._processes[holder.process]
        return LeaseRow(
            view.domain,
            view.mode,
            view.phase,
            holder.node,
            holder.process,
            holder.purpose,
            view.correlation_id.hex(),
            view.fence,
            view.expiry_ns,
            shard,
            origin,
            resumes_ns,
            as_of_ns,
            there,
            answer.previous.get(view.correlation_id),
            view.granted_ns,
            view.floor_ns,
            view.settle_to_ns,
            None if origin is Origin.LEDGER else view.waiting,
            session=None if view.session_id is None else view.session_id.hex(),
        )


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether they are the very same, one by one: answers are not compared row by row."""
    return len(some) == len(others) and all(map(is_, some, others))


def process_is_present(process: int) -> bool:
    """Whether a process of this number runs on this machine, as far as this program's container shows. Local."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
