"""The live source: the mount and, where this machine has node settings, the shards themselves.

The mount is one question and each shard another, so that one that hangs holds up nothing else. Without node settings
no shard is asked: leases are then what the ledgers last said.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from appliance.formats.ceiling import CeilingKind
from appliance.lease.wire import LeaseView, ShardNumbers
from timeagent.clock import boot_id
from timeagent.errors import BadTime, ShardUnavailable
from timeagent.interval import TimeInterval
from timeagent.units import MS

from .mount import MountAnswer, OpenMount, Where
from .question import AskedQuestion
from .state import (
    NOT_ASKED,
    ClockView,
    ClusterState,
    Freshness,
    LeaseRow,
    NodeView,
    Origin,
    Reach,
    ShardView,
    Spans,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from appliance.formats.policy import Policy
    from timeagent.clock import MachineClock
    from timeagent.units import Instant

    from .ledger import LedgerLease

SHARD_PERIOD_NS: Final = 250 * MS
MOUNT_PERIOD_NS: Final = 500 * MS
NO_ADDRESS: Final = "no-address"
"""The code of the error for a shard that cannot be asked from this machine, whatever its health."""


@dataclass(frozen=True, slots=True)
class ShardAnswer:
    """What a shard said of itself, and what an earlier run of it had out when this program last heard of it."""

    numbers: ShardNumbers
    leases: tuple[LeaseView, ...]
    asked_ns: Instant
    """CLOCK_REALTIME when it was asked."""
    earlier: tuple[LeaseView, ...] = ()


class LiveSource:
    """A StateSource over a mount or a copy. Made without touching either."""

    def __init__(self, where: Where, machine: MachineClock, present: Callable[[int], bool] | None = None) -> None:
        """Ask nothing yet. ``present`` says whether a process runs on this machine."""
        self._where = where
        self._present = present or process_is_present
        self._machine = machine
        self._open: OpenMount | None = None
        self._boot = bytes.fromhex(boot_id().replace("-", ""))
        self.mount = AskedQuestion("mount", MOUNT_PERIOD_NS, machine, self._ask_mount)
        self._shards: list[AskedQuestion[ShardAnswer]] = []

    def questions(self) -> Sequence[AskedQuestion[MountAnswer] | AskedQuestion[ShardAnswer]]:
        """Return the mount, and the shards once the mount has said how many there are."""
        return [self.mount, *self._shards]

    # -- asking: in the threads of the feed ----------------------------------------------------------------------------

    def _ask_mount(self) -> MountAnswer:
        if self._open is None:
            self._open = OpenMount(self._where, self._machine)
        answer = self._open.read()
        if self._open.cluster is not None:
            for shard in range(len(self._shards), len(answer.shard_map.owners)):
                self._shards.append(
                    AskedQuestion(f"shard {shard}", SHARD_PERIOD_NS, self._machine, self._asking(shard))
                )
        return answer

    def _asking(self, shard: int) -> Callable[[], ShardAnswer]:
        return lambda: self._ask_shard(shard)

    def _ask_shard(self, shard: int) -> ShardAnswer:
        assert self._open is not None
        assert self._open.cluster is not None
        asked_ns = self._machine.realtime_ns()
        numbers, leases = self._open.cluster.inspect(shard)
        if not numbers.ceiling_ns:
            raise ShardUnavailable("starting", f"shard {shard} is starting: it may not grant yet")
        before = self._shards[shard].answer
        earlier: tuple[LeaseView, ...] = ()
        if before is not None:
            earlier = before.earlier
            if before.numbers.incarnation != numbers.incarnation:
                earlier = before.leases
        taken = {view.domain for view in leases}
        return ShardAnswer(numbers, tuple(leases), asked_ns, tuple(v for v in earlier if v.domain not in taken))

    # -- telling: any thread, never blocks -----------------------------------------------------------------------------

    def state_at(self, instant: Instant | None = None) -> ClusterState:
        """Return what is known now. A live source knows of no other instant."""
        assert instant is None, "a live source knows only what is now"
        clock = self._clock()
        answer = self.mount.answer
        mount = self.mount.freshness()
        if answer is None:
            return ClusterState(str(self._where.path), clock, mount)
        shards = [self._shard_view(answer, shard) for shard in range(len(answer.shard_map.owners))]
        rows = sorted(self._leases(answer, shards, clock.now), key=lambda row: (row.domain, -row.fence))
        return ClusterState(
            str(answer.root),
            clock,
            mount,
            answer.cluster_id.hex(),
            answer.offline,
            _spans(answer.policy),
            tuple(
                NodeView(name, name == answer.own_node, tuple(s for s in shards if s.node == name))
                for name in sorted({*answer.nodes, *answer.shard_map.owners})
            ),
            tuple(rows),
            answer.logs,
        )

    def _clock(self) -> ClockView:
        problem = "the policy is not read yet"
        if self._open is not None:
            try:
                look = self._open.time.look()
            except BadTime as refused:
                problem = refused.message
            else:
                sample = look.sample
                status = sample.status.name.lower().replace("_", "-")
                return ClockView(look.now, bounded=True, source=sample.source, status=status, assumed=sample.assumed)
        now = TimeInterval.around(self._machine.realtime_ns(), 0)
        return ClockView(now, bounded=False, source="none", status="unknown", assumed=False, problem=problem)

    def _shard_view(self, answer: MountAnswer, shard: int) -> ShardView:
        chain = answer.chains.get(shard)
        question = self._shards[shard] if shard < len(self._shards) else None
        freshness = NOT_ASKED if answer.offline else Freshness(Reach.WAITING)
        if question is not None:
            freshness = question.freshness()
            if question.error is not None and question.error.code == NO_ADDRESS:
                freshness = Freshness(Reach.NOT_ASKED, problem="this node's settings have no address of it")
        view = ShardView(shard, answer.shard_map.owners[shard], freshness)
        after_ceiling = answer.policy.restart_ns() - answer.policy.lease_term_max_ns - answer.policy.ceiling_ahead_ns
        if chain is not None:
            record = chain.record
            # A silent shard has to be taken for dead; of one that is not asked, only the runs before are surely over.
            dead = record.kind is CeilingKind.RUNNING and view.freshness.reach is Reach.SILENT
            view = replace(
                view,
                incarnation=record.incarnation.hex(),
                ceiling_ns=record.ceiling_ns,
                ceiling_kind=record.kind,
                ledger_bytes=chain.ledger_bytes,
                resumes_ns=(record.ceiling_ns if dead else record.settle_to_ns) + after_ceiling,
            )
        said = question.answer if question else None
        if said is None or view.freshness.reach is not Reach.ANSWERS:
            return view
        numbers = said.numbers
        return replace(
            view,
            incarnation=numbers.incarnation.hex(),
            leases=numbers.leases,
            domains=numbers.domains,
            ceiling_ns=numbers.ceiling_ns,
            blocks_lost=numbers.blocks_lost,
            resumes_ns=numbers.settle_to_ns + after_ceiling if numbers.settle_to_ns else None,
        )

    def _leases(self, answer: MountAnswer, shards: list[ShardView], now: TimeInterval) -> Iterator[LeaseRow]:
        present: dict[int, bool] = {}
        known: set[str] = set()
        after_expiry = answer.policy.takeover_ns() - answer.policy.lease_term_max_ns
        for view in shards:
            said = self._shards[view.shard].answer if view.shard < len(self._shards) else None
            if said is None:
                continue
            answers = view.freshness.reach is Reach.ANSWERS
            origin = Origin.SHARD if answers else Origin.LAST_ANSWER
            for each in said.leases:
                known.add(each.domain)
                # Without its shard a domain waits for the shard's ceiling, which lies behind every expiry.
                resumes = each.expiry_ns + after_expiry if answers else view.resumes_ns or each.expiry_ns + after_expiry
                as_of = None if answers else said.asked_ns
                yield self._row(each, view.shard, origin, resumes, present, answer, as_of)
            if answers and view.resumes_ns is not None and not now.surely_past(view.resumes_ns):
                for each in said.earlier:
                    known.add(each.domain)
                    if answer.fences.get(each.domain, 0) > each.fence:
                        continue  # the present run has granted it since, and the lease before it is no matter any more
                    yield self._row(
                        each, view.shard, Origin.EARLIER_RUN, view.resumes_ns, present, answer, said.asked_ns
                    )
        for ledger in answer.leases:
            shard = shards[ledger.shard] if ledger.shard < len(shards) else None
            if shard is None or ledger.witness.domain in known:
                continue
            row = self._from_ledger(ledger, shard, answer, present)
            if row is not None and not (shard.freshness.reach is Reach.ANSWERS and now.surely_past(row.resumes_ns)):
                yield row

    def _from_ledger(
        self, ledger: LedgerLease, shard: ShardView, answer: MountAnswer, present: dict[int, bool]
    ) -> LeaseRow | None:
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
        return self._row(view, shard.shard, origin, resumes, present, answer, ledger.signed_ns)

    def _row(
        self,
        view: LeaseView,
        shard: int,
        origin: Origin,
        resumes_ns: Instant,
        present: dict[int, bool],
        answer: MountAnswer,
        as_of_ns: Instant | None,
    ) -> LeaseRow:
        holder = view.holder
        there: bool | None = None
        if holder.boot == self._boot and holder.process > 0:
            if holder.process not in present:
                present[holder.process] = self._present(holder.process)
            there = present[holder.process]
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
        )


def _spans(policy: Policy) -> Spans:
    return Spans(
        policy.lease_term_max_ns,
        policy.span_ns,
        policy.grace_ns,
        policy.radius_ns_max,
        policy.takeover_ns(),
        policy.restart_ns(),
    )


def process_is_present(process: int) -> bool:
    """Whether a process of this number runs on this machine, as far as this program's container shows. Local."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
