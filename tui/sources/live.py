"""The live source: the mount and, where this machine has node settings, the shards themselves.

The mount is one question and each shard another, so that one that hangs holds up nothing else. Without node settings
no shard is asked: leases are then what the ledgers last said.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from appliance.cli.service import daemon_check, time_agent_check
from appliance.cluster import Cluster, time_sources
from appliance.doctor.health import HealthCheck, unknown
from appliance.formats.chains import CeilingKind
from appliance.formats.shardmap import shard_text
from appliance.formats.witness import Half, Witness
from appliance.lease.wire import LeaseView, ShardNumbers
from appliance.node.releases import LOOK_NS, Releases
from appliance.node.routes import TimeThere
from appliance.node.runtime import runtime_of
from appliance.node.settings import root_path
from timeagent import VERSION
from timeagent.agent.bounded_clock import Look
from timeagent.clock import DRIFT_PPM, MachineClock, SystemClock, boot_id, drift_ns
from timeagent.errors import BadRequest, BadTime, Damaged, ShardUnavailable, TryAgain
from timeagent.showing import known_by_agent, sources_without_agent
from timeagent.signedtime import ClockStatus, SignedTime, TimeFlags
from timeagent.units import MS, SECOND, Instant, TimeInterval

from ..feed import AskedQuestion
from ..model import state as model
from ..model.state import NOT_ASKED, ClockView, ClusterState, LeaseOrigin, LeaseRow, NodeClock, Reach, TimeSources
from .details import LiveTeller
from .mount import MountAnswer, MountLocation, OpenMount

SHARD_PERIOD_NS: Final = 250 * MS
MOUNT_PERIOD_NS: Final = 500 * MS
TIME_PERIOD_NS: Final = SECOND
OWN_PERIOD_NS: Final = SECOND
CLOCK_PERIOD_NS: Final = SECOND
NO_SHARD: Final = "no-shard"
UNKNOWN_REQUEST: Final = "call-damaged"
"""The code by which a shard refuses a call that its release does not know."""


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

    def __init__(
        self, where: MountLocation, machine: MachineClock, present: Callable[[int], bool] | None = None
    ) -> None:
        """Ask nothing yet. ``present`` says whether a process runs on this machine."""
        self._where = where
        self._machine = machine
        self._open: OpenMount | None = None
        self._rows = LiveRows(present)
        self._lock = threading.Lock()
        self.times = AskedQuestion("time", TIME_PERIOD_NS, machine, self._ask_times)
        self.mount = AskedQuestion("mount", MOUNT_PERIOD_NS, machine, self._ask_mount)
        self._own: AskedQuestion[list[HealthCheck]] | None = None
        self._nodes: AskedQuestion[Mapping[str, str | None]] | None = None
        self._others: Releases | None = None
        self._shards: dict[int, AskedQuestion[ShardAnswer]] = {}
        self._clocks = NodeClocks(machine)

    def questions(self) -> Sequence[AskedQuestion[Any]]:
        times = None if self._open is None else self.times  # which are asked by the policy
        machines = [each for each in (times, self._own, self._nodes) if each is not None]
        return [self.mount, *machines, *self._shards.values(), *self._clocks.questions()]

    def close(self) -> None:
        """End what the cluster keeps up; to be called when nothing is asked any more. Idempotent."""
        if self.cluster is not None:
            self.cluster.close()

    @property
    def cluster(self) -> Cluster | None:
        """The cluster, where its shards can be asked from here and the mount has answered."""
        return None if self._open is None else self._open.cluster

    # -- asking: in the threads of the feed ----------------------------------------------------------------------------

    def _ask_mount(self) -> MountAnswer:
        if self._open is None:
            self._open = OpenMount(self._where, self._machine)
        answer = self._open.read()
        cluster = self._open.cluster
        if cluster is not None:
            if answer.shard_map.number > cluster.map.number:
                cluster.maps.refresh()  # shards are asked by that map, and nobody else here looks for a newer one
            if self._own is None:
                trust = cluster.watch_trust()
                others = Releases(
                    cluster.settings.node, cluster.keys.tls, answer.cluster_id, trust, cluster.time, VERSION
                )
                self._own = AskedQuestion("daemon", OWN_PERIOD_NS, self._machine, lambda: _ask_own(cluster, others))
                self._nodes = AskedQuestion("nodes", LOOK_NS, self._machine, others.look)
                self._others = others
            for shard, end in answer.chains.items():
                cluster.routes.expect(shard, end.record.node)
            asked: dict[int, AskedQuestion[ShardAnswer]] = {}
            for shard in answer.shard_map.shards:
                name, ask = f"shard {shard_text(shard)}", partial(self._ask_shard, cluster, shard)
                asked[shard] = self._shards.get(shard) or AskedQuestion(name, SHARD_PERIOD_NS, self._machine, ask)
            self._shards = asked  # nobody is asked about those that are of the map no more
            for node in sorted(set(answer.shard_map.owners)):
                self._clocks.question(node, cluster, partial(self._shard_at, node))
            if answer.own_node:
                self._clocks.own(answer.own_node, self._open.time.look)
        return answer

    def _shard_at(self, node: str) -> tuple[int, bytes] | None:
        """Return a shard that a node runs, or should run, and which incarnation of it answered last."""
        if self.mount.answer is None:
            return None  # it is being read for the first time
        shards = self.mount.answer.shard_map
        asked = [(shard, each.answer) for shard, each in self._shards.items()]
        running = [(n, said.numbers.incarnation) for n, said in asked if said and said.numbers.node == node]
        owned = [(shard, bytes(8)) for shard in shards.shards if shards.owner_of(shard) == node]
        return next(iter(running or owned), None)

    def _ask_shard(self, cluster: Cluster, shard: int) -> ShardAnswer:
        asked_ns = self._machine.realtime_ns()
        numbers, leases = cluster.inspect(shard)
        if not numbers.ceiling_ns:
            raise ShardUnavailable("starting", f"shard {shard_text(shard)} is starting: it may not grant yet")
        question = self._shards.get(shard)
        earlier: tuple[LeaseView, ...] = ()
        if question is not None and (before := question.answer) is not None:
            earlier = before.earlier if before.numbers.incarnation == numbers.incarnation else before.leases
        taken = {view.domain for view in leases} if earlier else set()
        return ShardAnswer(numbers, tuple(leases), asked_ns, tuple(v for v in earlier if v.domain not in taken))

    def _ask_times(self) -> TimeSources:
        opened = self._open
        assert opened is not None
        if opened.cluster is not None:
            directory = runtime_of(opened.cluster.settings, opened.registers.cluster_id)
            with contextlib.suppress(BadTime):
                known = known_by_agent(directory, self._machine)
                return TimeSources(NOT_ASKED, known.sources, known.together, agent=True)
        policy = opened.registers.newest_policy()
        measuring = [each for each in time_sources(self._machine, policy) if each.name != "assumed"]
        return TimeSources(NOT_ASKED, tuple(sources_without_agent(self._machine, measuring, policy.assumed_radius_ns)))

    # -- telling: any thread, never blocks -----------------------------------------------------------------------------

    def state_at(self, instant: Instant | None = None) -> ClusterState:
        assert instant is None, "a live source knows only what is now"
        clock = self._clock()
        answer, mount = self.mount.answer, self.mount.freshness()
        if answer is None:
            return ClusterState(str(self._where.path), clock, mount)
        asked = self._shards
        shards = [self._shard_view(answer, shard, asked.get(shard)) for shard in answer.shard_map.shards]
        said = [asked[view.shard].answer if view.shard in asked else None for view in shards]
        with self._lock:  # what is known of a subject is asked for by another thread
            leases = self._rows.rows(answer, list(zip(shards, said, strict=True)), clock.now)
        reached = (self._nodes and self._nodes.answer) or {}
        signed = _signed(answer)
        clocks = self._clocks.told(sorted({*answer.nodes, *answer.shard_map.owners}), signed, clock.now)
        if answer.offline:
            clocks = (signed_clock(node, token, clock.now) for node, token in sorted(signed.items()))
        return ClusterState(
            str(answer.root),
            clock,
            mount,
            answer.cluster_id.hex(),
            answer.offline,
            answer.policy.radius_ns_max,
            tuple(
                model.NodeView(
                    name,
                    name == answer.own_node,
                    tuple(shard for shard in shards if shard.node == name),
                    reached[name] is not None if name in reached else None,
                )
                for name in sorted({*answer.nodes, *(each.node for each in shards)})
            ),
            leases,
            answer.logs,
            tuple(clocks),
            replace(self.times.answer or TimeSources(NOT_ASKED), freshness=self.times.freshness()),
            model.ViewKind.OFFLINE if answer.offline else model.ViewKind.LIVE,
            tuple(self._checks(answer)),
        )

    def _checks(self, answer: MountAnswer) -> Iterator[HealthCheck]:
        """Yield what was judged where it was asked: each of these questions ends within seconds, whoever hangs."""
        yield from answer.checks
        if self._own is not None and self._others is not None:
            yield from self._own.answer or [unknown("daemon", "no answer yet", "wait a moment")]
            yield from self._others.checks()

    def details(self, subject: model.Subject, instant: Instant | None = None) -> Sequence[model.DetailLine]:
        del instant
        return LiveTeller(self.state_at(), self.mount.answer).told(subject)

    record = None

    def _clock(self) -> ClockView:
        problem = "the policy is not read yet"
        try:
            if self._open is not None:
                look = self._open.time.look()
                return ClockView(
                    look.now, bounded=True, source=look.source, status=look.status.word, assumed=look.assumed
                )
        except BadTime as refused:
            problem = refused.message
        return ClockView.of_nothing(self._machine.realtime_ns(), problem)

    @staticmethod
    def _shard_view(answer: MountAnswer, shard: int, question: AskedQuestion[ShardAnswer] | None) -> model.ShardView:
        chain, shards = answer.chains.get(shard), answer.shard_map
        unheard = NOT_ASKED if answer.offline else model.Freshness(Reach.WAITING)
        freshness = unheard if question is None else question.freshness()
        view = model.ShardView(shard, shards.owner_of(shard) or "", freshness, half=shards.half_of(shard) or Half.WHOLE)
        after_ceiling = answer.policy.after_expiry_ns() + answer.policy.radius_ns_max
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
                runner=record.node,
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
            runner=numbers.node,
        )


def live_source(path: str | None, node_dir: str | None, *, allow_root: bool, needs_node: bool = False) -> LiveSource:
    """Return the source that a command line names. Touches no mount. Raises BadRequest where no root is named."""
    settings = Path(node_dir).absolute() if node_dir else None
    root = root_path(path)
    if not isinstance(root, Path):
        raise BadRequest("no-screen", f"{root}: the screen shows a mount", hint=f"tenure audit {root}")
    return LiveSource(MountLocation(root, settings, allow_root, needs_node), SystemClock())


def _ask_own(cluster: Cluster, others: Releases) -> list[HealthCheck]:
    """Ask this machine's daemons how they are. Blocks for some seconds where one stands still."""
    settings, cluster_id = cluster.settings, cluster.registers.cluster_id
    check, release = daemon_check(settings, cluster_id)
    others.own = release or others.own
    return [check, *time_agent_check(settings, cluster_id)]


def _signed(answer: MountAnswer) -> dict[str, SignedTime]:
    """Return what each owner of a shard last signed of its clock: in the newest record of its ceiling chain."""
    newest: dict[str, SignedTime] = {}
    for end in answer.chains.values():
        with contextlib.suppress(Damaged):  # the audit's to say
            token = SignedTime.decode(end.record.time, "a ceiling record")
            known = newest.get(end.record.node)
            if known is None or known.midpoint_ns < token.midpoint_ns:
                newest[end.record.node] = token
    return newest


type SaidShards = Sequence[tuple[model.ShardView, ShardAnswer | None]]
"""Each shard of the map, with the newest answer of it."""


class LiveRows:
    """Makes rows, and keeps the newest. One thread at a time."""

    def __init__(self, present: Callable[[int], bool] | None = None) -> None:
        self._present = present or process_is_present
        self._boot = boot_id()
        self._processes: dict[int, bool] = {}
        self._made_from: list[object] = []
        self._rows = model.LeaseRows()
        self._fading = False
        """Whether there are rows that end with time alone, whatever anybody says."""

    def rows(self, answer: MountAnswer, shards: SaidShards, now: TimeInterval) -> model.LeaseRows:
        """Return the leases in order of domain; the same value as before where nothing is new."""
        self._processes = {process: self._present(process) for process in self._processes}
        made_from = self._told(answer, shards, now)
        if made_from != self._made_from:
            self._processes = {}
            found = sorted(self._leases(answer, shards, now), key=lambda row: (row.domain, -row.fence))
            self._rows = model.LeaseRows(found)
            self._fading = any(row.origin in (LeaseOrigin.LEDGER, LeaseOrigin.EARLIER_RUN) for row in found)
            made_from = self._told(answer, shards, now)
        self._made_from = made_from  # the newest of equal values: what is the very same is compared at once
        return self._rows

    def _told(self, answer: MountAnswer, shards: SaidShards, now: TimeInterval) -> list[object]:
        told: list[object] = [answer.ledgers, answer.policy.after_expiry_ns()]
        told += [each and (each.leases, each if each.earlier else None) for _, each in shards]
        told += [(shard.freshness.reach, shard.resumes_ns, shard.incarnation) for shard, _ in shards]
        return [*told, list(self._processes.items()), now.earliest // SECOND if self._fading else None]

    def _leases(self, answer: MountAnswer, shards: SaidShards, now: TimeInterval) -> Iterator[LeaseRow]:
        known, after = set[str](), answer.policy.after_expiry_ns()
        for view, said in shards:
            if said is None:
                continue
            answers = view.freshness.reach is Reach.ANSWERS
            origin = LeaseOrigin.SHARD if answers else LeaseOrigin.LAST_ANSWER
            for each in said.leases:
                known.add(each.domain)
                # Without its shard a domain waits for the shard's ceiling, which lies behind every expiry.
                resumes = (not answers and view.resumes_ns) or each.expiry_ns + after
                as_of = None if answers else said.asked_ns
                yield self._row(each, view.shard, origin, resumes, answer, as_of)
            if answers and view.resumes_ns is not None and view.waits(now):
                for each in said.earlier:
                    known.add(each.domain)
                    if answer.ledgers.fences.get(each.domain, 0) > each.fence:
                        continue  # the present run has granted it since, and the lease before it is no matter any more
                    yield self._row(each, view.shard, LeaseOrigin.EARLIER_RUN, view.resumes_ns, answer, said.asked_ns)
        views = {view.shard: view for view, _ in shards}
        for ledger in answer.ledgers.leases:
            shard = views.get(ledger.shard)
            if shard is None or ledger.witness.domain in known:
                continue
            answers = shard.freshness.reach is Reach.ANSWERS
            if shard.incarnation == ledger.incarnation.hex():
                origin = LeaseOrigin.LEDGER
                until = None if answers else ledger.witness.expiry_ns + after  # else it knows better
            else:
                origin, until = LeaseOrigin.EARLIER_RUN, shard.resumes_ns
            if until is not None and not (answers and now.surely_past(until)):
                yield self._row(ledger.witness, shard.shard, origin, until, answer, ledger.signed_ns)

    def _row(
        self,
        view: LeaseView | Witness,
        shard: int,
        origin: LeaseOrigin,
        resumes_ns: Instant,
        answer: MountAnswer,
        as_of_ns: Instant | None,
    ) -> LeaseRow:
        holder, said = view.holder, view if isinstance(view, LeaseView) else None
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
            answer.ledgers.previous.get(view.correlation_id),
            said.granted_ns if said else as_of_ns,
            view.floor_ns,
            view.settle_to_ns,
            said.waiting if said else None,
            session=said.session_id.hex() if said and said.session_id is not None else None,
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


# -- clocks of nodes ---------------------------------------------------------------------------------------------------
# A node's word is an interval of its now. This machine's CLOCK_BOOTTIME, read before the question and after the answer,
# makes an interval of true time minus that clock out of it; such intervals of several nodes belong on one axis. Each is
# widened by its round trip, and ages by how fast this machine's clock may run away.


def told_clock(there: TimeThere) -> NodeClock:
    """Return what a shard answered of its node's clock, as of that answer. Raises Damaged."""
    told, ahead = there.told, there.ahead
    token = None if told.token is None else SignedTime.decode(told.token, f"the clock of node {told.node}")
    trip = there.answered_ns - there.asked_ns
    return NodeClock(
        told.node,
        None,
        None if ahead is None else (ahead.latest - ahead.earliest - trip + 1) // 2,  # without the round trip
        (ClockStatus.UNKNOWN if token is None else token.status).word,
        token is not None and bool(token.flags & TimeFlags.ASSUMED),
        0,
        reach=Reach.ANSWERS,
        problem=told.problem if ahead is None else "",
        ahead=ahead,
        trip_ns=trip,
        read_ns=there.answered_ns,
    )


def own_clock(node: str, look: Look, answered_ns: int) -> NodeClock:
    ahead = TimeInterval(look.now.earliest - answered_ns, look.now.latest - look.boot_ns)
    return NodeClock(
        node,
        None,
        look.now.radius,
        look.status.word,
        look.assumed,
        0,
        reach=Reach.ANSWERS,
        ahead=ahead,
        trip_ns=answered_ns - look.boot_ns,
        read_ns=answered_ns,
    )


class NodeClocks:
    """A question for each node's clock, and what they said. Told from any thread."""

    def __init__(self, machine: MachineClock) -> None:
        self._machine = machine
        self._questions: dict[str, AskedQuestion[NodeClock]] = {}
        self._mute: set[tuple[str, bytes]] = set()
        """Nodes and incarnations that do not know the question: asked again once another release may run there."""

    def questions(self) -> list[AskedQuestion[NodeClock]]:
        return list(self._questions.values())

    def question(
        self, node: str, cluster: Cluster, at: Callable[[], tuple[int, bytes] | None]
    ) -> AskedQuestion[NodeClock]:
        """Return the question about a node that runs shards, made when it is first asked for.

        ``at``: which shard to ask there, and of which incarnation it last was.
        """

        def ask() -> NodeClock:
            shard = at()
            if shard is None:
                raise TryAgain(NO_SHARD, f"{node} runs no shard now that could be asked")
            if (node, shard[1]) in self._mute:
                raise ShardUnavailable(UNKNOWN_REQUEST, "its release does not tell what time it is there")
            try:
                return told_clock(cluster.clock_of(shard[0], node))
            except ShardUnavailable as problem:
                if problem.code == UNKNOWN_REQUEST:
                    self._mute.add((node, shard[1]))
                raise

        return self._asked(node, ask)

    def own(self, node: str, look: Callable[[], Look]) -> AskedQuestion[NodeClock]:
        """Return the question about this machine's own clock, unless a shard of it is asked."""
        return self._asked(node, lambda: own_clock(node, look(), self._machine.boot_ns()))

    def _asked(self, node: str, ask: Callable[[], NodeClock]) -> AskedQuestion[NodeClock]:
        question = AskedQuestion(f"clock of {node}", CLOCK_PERIOD_NS, self._machine, ask)
        return self._questions.setdefault(node, question)

    def told(self, nodes: Iterable[str], signed: Mapping[str, SignedTime], now: TimeInterval) -> Iterator[NodeClock]:
        """Yield a clock for each node: of those that answer, their interval at this instant; of others, why not.

        ``signed``: what each last signed where everybody can read it: its age is told where it is all there is.
        """
        for node in nodes:
            question = self._questions.get(node)
            last = signed_clock(node, signed.get(node), now)
            if question is None or (question.error is not None and question.error.code == NO_SHARD):
                yield replace(last, problem="runs no shard that could be asked")
                continue
            freshness, said = question.freshness(), question.answer
            if said is None or freshness.reach is not Reach.ANSWERS:
                yield replace(last, reach=freshness.reach, problem=freshness.problem, silent_ns=freshness.silent_ns)
            else:
                yield replace(self._by_now(said), node=node)

    def _by_now(self, said: NodeClock) -> NodeClock:
        """Return a clock as of this instant: its interval has grown by how fast this machine's clock may run away."""
        assert said.read_ns is not None
        boot = self._machine.boot_ns()
        age = max(0, boot - said.read_ns)
        ahead = None if said.ahead is None else said.ahead.widened(drift_ns(age, DRIFT_PPM))
        return replace(said, midpoint_ns=None if ahead is None else boot + ahead.midpoint, age_ns=age, ahead=ahead)


def signed_clock(node: str, token: SignedTime | None, now: TimeInterval) -> NodeClock:
    """Return a clock of which only is known what it signed; nothing where that was not seen."""
    if token is None:
        return NodeClock(node, None, None, ClockStatus.UNKNOWN.word, assumed=False, age_ns=None)
    age = max(0, now.midpoint - token.midpoint_ns)
    assumed = bool(token.flags & TimeFlags.ASSUMED)
    return NodeClock(node, token.midpoint_ns, token.radius_ns, token.status.word, assumed, age)
