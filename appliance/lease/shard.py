"""One lease shard: a turn of requests in, replies with witnesses of one signed batch out (docs/protocol/lease.md).

A turn reads the clock once, decides every request on its domain's state, signs all witnesses and endings with one
signature, keeps the changed states all or none (``store.py``), hands one block to the ledger, and only then answers.
Endings alone wait for the next signature, or 20 ms.
The shard forgets everything when it stops, but for a restart on the same boot (``whole_shard.py``): what a successor
must know stands in the ceiling chain.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from timeagent.clock import NodeTime
from timeagent.errors import BadTime
from timeagent.keys import KeyInUse, Signer
from timeagent.signedtime import SignedTime
from timeagent.units import Instant, Span, TimeInterval, rfc3339

from ..formats.policy import PolicyNumbers
from ..formats.shardmap import ShardMap
from ..formats.witness import Batch, CeilingCopy, Half, Resumed, Stopped
from .ceiling import (
    NOTHING_BEFORE,
    UNDER_WAY,
    Beginning,
    CeilingChain,
    Deposed,
    Extended,
    Extension,
    InDoubt,
    NotYet,
    ShardIdentity,
    Stop,
    StoppedOrderly,
)
from .decisions import raised
from .domain import HINT_BYTES_MAX, Bounds, Break
from .fast_path import FastPath, replies
from .recall import Recalls, Waiter
from .request_handler import RequestHandler
from .sessions import Sessions
from .store import LeaseStore
from .turn import Draft, PlainLater, Turn
from .turn_log import TurnLog
from .waiting import Waited, WaitingRoom
from .whole_shard import Eviction, GoingBy, Suspension
from .wire import (
    NEWER_MAP,
    Acquire,
    AskClock,
    DropSession,
    Encoded,
    Hello,
    Inspect,
    Relinquish,
    Renew,
    Reply,
    Request,
    Revoke,
    Task,
    Upgrade,
    decode_reply,
)
from .witness_ledger import BatchSigner, LedgerSink

DOMAINS_MAX: Final = 1_000_000
"""How many domains a shard remembers: about three hundred bytes each."""

RAISED_MAX: Final = 4096
"""How many domains are raised at once: some ten milliseconds."""

SWEEP_MAX: Final = 256
"""How many leases one sweep breaks, and how many domains more than needed it forgets."""

_ABOUT_A_DOMAIN: Final = (Acquire, Relinquish, Renew, Upgrade, Revoke)
_GRANTS_NOTHING: Final = (Relinquish, DropSession, Inspect, AskClock, Hello)
_NOBODY: Final[Mapping[int, Waiter]] = MappingProxyType({})


class Shard:
    """A shard of one incarnation. Plain synchronous code for one thread; one call at a time.

    Blocks for tmpfs in every turn, and for the mount when the ceiling has to be extended.
    """

    def __init__(  # noqa: PLR0913 - the ports
        self,
        identity: ShardIdentity,
        shard_map: ShardMap,
        policy: PolicyNumbers,
        *,
        store: LeaseStore,
        chain: CeilingChain,
        time: NodeTime,
        signer: Signer | KeyInUse,
        ledger: LedgerSink,
        randomness: random.Random,
        domains_max: int = DOMAINS_MAX,
        hint_bytes_max: int = HINT_BYTES_MAX,
        follows: Beginning = NOTHING_BEFORE,
        waited: Waited = lambda *_: None,
        log: TurnLog | None = None,
    ) -> None:
        """Take the ports; ``store`` is empty, or has what a run left. Grants nothing before start(), or resume().

        ``shard_map``: the newest that is known, or that by which the run went. ``follows``: how the chains ended that
        this one follows; nothing while it is one that comes. ``log``: keeps each turn; taken over.
        """
        self._identity = identity
        self._store = store
        self._log = log
        if log is not None:
            store.noted = {}
        self._chain = chain
        self._time = time
        self._policy = policy
        self._hint_bytes_max = hint_bytes_max
        self._eviction = Eviction(store, policy, domains_max)
        self._signer = signer
        self._follows = follows
        self._going = GoingBy(shard_map, identity.number)
        self._batch_signer = BatchSigner(identity, self._going, signer, chain, ledger)
        self._waiting = WaitingRoom(time, Recalls(identity.incarnation, time.boot_ns), waited)
        self._sessions = Sessions(store, randomness)
        self._handler = RequestHandler(
            identity,
            self._going,
            randomness,
            store=store,
            eviction=self._eviction,
            sessions=self._sessions,
            waiting=self._waiting,
            chain=chain,
            batch_signer=self._batch_signer,
            time=time,
        )
        handler = self._handler
        recalls, eviction, going = self._waiting.recalls, self._eviction, self._going
        self._plain = FastPath(store, randomness, handler.holders, handler.refused_new, recalls, eviction, going)
        self._held_until_ns: Instant = 0
        self._to_raise: list[str] | None = None
        self._end: tuple[Instant, Instant] | None = None
        """Floor and settle_to of its last record, from the first try to link it on: nothing is answered after that."""
        self._stopped: StoppedOrderly | None = None
        self._end_is_told = False

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> Extension:
        """Link the first ceiling record; ``Extended``: the shard grants now. InDoubt: ask again. Raises BadTime."""
        began = self._linked(self._chain.begin())
        if isinstance(began, Extended):
            chain, follows = self._chain, self._follows
            self._eviction.begin(max(chain.floor_ns, follows.floor_ns), max(chain.settle_to_ns, follows.settle_to_ns))
            if self._going.half is Half.LEAVING:  # what ran before it granted leases that it knows nothing of
                self._going.alone_until_ns = self._eviction.settle_to_ns
            self._flush()
        return began

    def resume(self, said: Suspension) -> Extension:
        """Go on where a run of this incarnation stopped for a restart: ``store`` has what it left.

        As ``start``. InDoubt also while the clock is behind what that run signed; Deposed: nobody may go on with it.
        """
        if (behind := said.clock_difference(self._time.token().midpoint_ns)) is not None:
            return InDoubt(behind)
        self._batch_signer.resume(said)
        resumed = self._linked(self._chain.resume(said.ceiling, said.pending))
        if isinstance(resumed, Extended):
            self._eviction.begin(said.begun_floor_ns, said.begun_settle_to_ns)
            self._eviction.floor_ns, self._eviction.settle_to_ns = said.floor_ns, said.settle_to_ns
            self._going.alone_until_ns = said.alone_until_ns
            self._waiting.recalls.number = said.recalls
            self._handler.revocations.update({each.correlation_id: each for each in said.revoked})
            self._batch_signer.say(Resumed(since_ns=said.signed_ns))
            # Who did not stop in order leaves what is tentative: nobody would notice now that its holders are gone.
            self._flush(() if self._log is None else self._store.tentative())
        return resumed

    def suspend(self, boot: str) -> Suspension | Deposed | InDoubt:
        """Stop for a restart: sign what is left to sign, and return what whoever goes on must keep to.

        Nobody is to be served any more. Leases stay; what is tentative is withdrawn. Links nothing, and waits for
        nobody but, for a moment, an extension that is under way: InDoubt, ask again. Raises BadTime.
        """
        self._handler.stopping = True
        settled = self._chain.settle()
        if settled is not None:
            settled = self._linked(settled)
        if self._chain.deposed is not None:
            return self._chain.deposed
        if settled is UNDER_WAY:
            return settled
        turn = self._begin_turn()
        with self._store.transaction():
            self._break(turn, self._store.tentative(), Break(stopping=True))
            batch = self._batch_signer.sign(turn.entries, turn.token)
        self._publish(batch)
        said = self._said(boot, *self._chain.standing)
        return msgspec.structs.replace(said, signed_ns=max(said.signed_ns, turn.token.midpoint_ns))

    def _said(self, boot: str, linked: bytes, pending: bytes) -> Suspension:
        """Return how it stands now, for whoever goes on."""
        mine, signer, begun = self._identity, self._batch_signer, self._store.rows.defaults.memory
        return Suspension(
            cluster_id=mine.cluster_id,
            map_number=mine.map_number,
            shard=mine.shard,
            node=mine.node,
            boot=boot,
            incarnation=mine.incarnation,
            since_ns=mine.since_ns,
            signed_ns=signer.signed_ns,
            head=signer.head,
            batches=signer.batches,
            blocks_lost=signer.blocks_lost,
            block_bytes=signer.block_bytes,
            ceiling=linked,
            pending=pending,
            floor_ns=self._eviction.floor_ns,
            settle_to_ns=self._eviction.settle_to_ns,
            begun_floor_ns=begun.floor_ns,
            begun_settle_to_ns=begun.settle_to_ns,
            going_by=self._going.number,
            alone_until_ns=self._going.alone_until_ns,
            recalls=self._waiting.recalls.number,
            revoked=tuple(self._handler.revocations.values()),
        )

    def housekeeping(self) -> Extension | None:
        """Have the store write; extend the ceiling if a lease may be held and a period has passed.

        None: nothing to extend, or no usable time now.
        To be called several times in a ceiling period. Touches the mount when it extends.
        """
        self._store.write_some()
        if self._batch_signer.held_until_boot_ns is not None and self.due_in() == 0:
            self._flush()
        if self._handler.stopping or self._chain.number == 0 or self._chain.deposed is not None:
            return self._chain.deposed
        try:
            if self._store.leases == 0 or self._gain_ns(now := self._time.now()) < self._policy.ceiling_period_ns:
                return None
            if not self._may_be_held(now):
                return None
            extension = self._linked(self._chain.extend())
            if self._chain.deposed is None:  # else there is no right any more that a head could name
                self._flush()
        except BadTime:
            return None
        return extension

    def _may_be_held(self, now: TimeInterval) -> bool:
        """Whether a lease is out that may not be past: none lasts beyond the ceiling."""
        if now.surely_past(self._held_until_ns) and not now.surely_past(self._chain.ceiling_ns):
            self._held_until_ns = self._store.latest_expiry() or 0  # looks at all of them: once until that is past
        return not now.surely_past(self._held_until_ns)

    # -- from map to map -----------------------------------------------------------------------------------------------

    @property
    def going_by(self) -> int:
        """The newest map that it goes by. Read by other threads."""
        return self._going.number

    def is_held(self) -> bool:
        """Whether a lease is out that may not be past."""
        until = self._store.latest_expiry()
        try:
            return until is not None and not self._time.now().surely_past(until)
        except BadTime:
            return True

    def closes_if_free(self) -> bool:
        """Grant nothing more if no lease is out that may not be past; return whether. ``stop_orderly`` is to follow."""
        free = self._handler.stopping = self._handler.stopping or not self.is_held()
        if free:
            self._waiting.stop(*self._handler.stopping_reason())  # else the next turn grants to who waits
        return free

    @property
    def is_of_no_map(self) -> bool:
        """Whether the newest map that it knows does not have it any more: what it has is nothing worth."""
        return self._going.over

    def go_by(self, newest: ShardMap, follows: Beginning = NOTHING_BEFORE) -> bool:
        """Go by a newer map from the next turn on; False: there is more to do before that, ask again.

        ``follows``: how the chains ended that this one follows, where it comes no more. A shard that the map has not
        grants nothing more; stop_orderly() waits for no lease then: all that may be believed in are double.
        """
        going, half = self._going, newest.half_of(self._identity.number)
        if newest.number <= going.number:
            return True
        if going.half is Half.COMING and half is not Half.COMING and not self._risen(follows):
            return False
        self._publish(self._batch_signer.sign_held())
        if half in (Half.LEAVING, None) and going.half is not Half.LEAVING:
            until = self._store.latest_expiry() or 0, self._store.highest()[2], self._eviction.settle_to_ns
            going.alone_until_ns = max(until)  # the settle_to: leases that were revoked, or granted by a run before
        if half is not going.half:
            self._waiting.dismiss(NEWER_MAP, f"map {newest.number} came while this request waited")
        going.take(newest)
        return True

    def _risen(self, follows: Beginning) -> bool:
        """Raise what every domain states from now on, some thousand at a time; whether all is done."""
        if self._to_raise is None:
            self._eviction.rise(follows.floor_ns, follows.settle_to_ns)
            self._to_raise = self._store.remembered()
        part, self._to_raise = self._to_raise[:RAISED_MAX], self._to_raise[RAISED_MAX:]
        with self._store.transaction():
            for domain in part:
                if (state := self._store.read(domain)) is not None:
                    self._store.put(domain, raised(state, 0, follows.floor_ns, follows.settle_to_ns))
        return not self._to_raise

    # -- its end -------------------------------------------------------------------------------------------------------

    def stop_orderly(self) -> Stop:
        """Grant nothing more; link the orderly record once every lease has ended. Ask again on NotYet and InDoubt.

        Tentative leases are withdrawn at once, held ones broken when surely past. Raises BadTime, also where the record
        is linked and its ledger's end could not be signed: ask again.
        """
        if self._stopped is None:
            if not isinstance(stop := self._link_end(), StoppedOrderly):
                return stop
            self._stopped = stop
        if not self._end_is_told:
            # Its record stands, and only its ledger can say that nothing is missing: the caller asks again.
            turn = self._begin_turn()
            turn.entries.append(Stopped(floor_ns=self._stopped.floor_ns, settle_to_ns=self._stopped.settle_to_ns))
            self._publish(self._batch_signer.sign(turn.entries, turn.token))
            self._end_is_told = True
        return self._stopped

    def _link_end(self) -> Stop:
        assert self._chain.number or self._chain.deposed, "start() comes first"
        self._handler.stopping = True
        (self._waiting.close if self._going.over else self._waiting.stop)(*self._handler.stopping_reason())
        if self._chain.deposed is not None:
            return self._drop(self._chain.deposed)
        if self._end is None:
            turn = self._begin_turn()
            with self._store.transaction():
                self._break(turn, self._store.tentative(), Break(stopping=True))
                self._break(turn, self._store.past(turn.bounds.now.earliest, self._store.leases))
                self._sessions.sweep(turn, None)
                batch = self._batch_signer.sign(turn.entries, turn.token)
            self._publish(batch)
            until = self._store.latest_expiry()
            if until is not None and not self._going.over:
                return NotYet(until + turn.bounds.now.radius + 1, self._store.leases)
            fence, floor, settle_to = self._store.highest()
            alone = self._going.alone_until_ns
            self._end = (
                max(floor, fence, self._eviction.floor_ns, alone),
                max(settle_to, self._eviction.settle_to_ns, alone),
            )
        finished = self._linked(self._chain.finish(*self._end))
        if not isinstance(finished, Extended):
            return finished
        return StoppedOrderly(finished.record.floor_ns, finished.record.settle_to_ns)

    @property
    def waiting(self) -> int:
        """How many requests wait for a domain."""
        return self._waiting.count

    def over(self) -> str | None:
        """Return why this run will never grant again, or None: another owns its chain, or its turns are not kept."""
        if self._chain.deposed is not None:
            return self._chain.deposed.reason
        return None if self._log is None else self._log.lost

    # -- one turn ------------------------------------------------------------------------------------------------------

    def turn(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer all requests at once, in their order: as ``serve`` without anybody who waits."""
        return [reply for reply in self.serve(requests) if reply is not None]

    def serve(self, requests: Sequence[Task], waiters: Mapping[int, Waiter] = _NOBODY) -> list[Reply | None]:
        """As ``encoded``, with replies that nobody has to decode."""
        return [decode_reply(each) if isinstance(each, bytes) else each for each in self.encoded(requests, waiters)]

    def encoded(
        self, requests: Sequence[Task], waiters: Mapping[int, Waiter] = _NOBODY
    ) -> Sequence[Reply | Encoded | None]:
        """Answer all requests, in their order; relinquishing goes first, so that others can have what it frees.

        ``waiters``: who takes an answer that is held back, by the request's position; the others want theirs at once.
        An answer that is None comes to its waiter, in this turn or a later one. Without requests: let those have their
        turn who wait; to be called when ``due_in`` says so. Raises LogLost: nobody may be answered, now or later.
        """
        unavailable: tuple[str, str] | None = None
        turn = None
        try:
            turn = self._begin_turn(self._make_reach(requests))
        except BadTime as problem:
            unavailable = ("bad-time", f"no usable time at node {self._identity.node}: {problem.message}")
        if self._chain.deposed is not None:
            unavailable = ("deposed", self._chain.deposed.reason)
        elif self._end is not None or self._chain.number == 0:
            unavailable = ("not-running", f"shard {self._identity.shard} at node {self._identity.node} is not running")
        if turn is None or unavailable is not None:
            assert unavailable is not None
            self._publish(self._batch_signer.sign_held())
            self._waiting.dismiss_due(*unavailable)
            return self.unserved(requests, *unavailable)
        coming = () if self._handler.stopping else requests
        past = self._relieve(turn, coming)
        with self._waiting.waking():
            with self._store.transaction():
                self._break(turn, past)
                self._make_room(turn, coming)
                self._store.look_up([each.domain for each in requests if isinstance(each, _ABOUT_A_DOMAIN)])
                drafts = self._plain.answered(
                    turn,
                    requests,
                    functools.partial(self._handler.answer, turn),
                    waiters=waiters,
                    queues=None if self._handler.stopping else self._waiting.domains,
                )
                if self._waiting.count:
                    self._call_in(turn)
                batch = None
                if turn.answers or not self._held(turn):
                    batch = self._batch_signer.sign(turn.entries, turn.token)
            self._publish(batch)
        woken = self._waiting.take_woken()
        said = replies([*drafts, *(draft for *_, draft in woken)] if woken else drafts, batch)
        for (waiter, *_), reply in zip(woken, said[len(drafts) :], strict=True):
            assert reply is not None
            waiter.answer(reply)
        return said[: len(drafts)]

    def unserved(self, requests: Sequence[Task], code: str, message: str) -> list[Reply]:
        """Answer requests for which no turn can be had, and say why; who it is and what it has a shard says always."""
        return [self._handler.without_time(request, code, message) for request in requests]

    def due_in(self) -> Span | None:
        """Return how long until ``serve`` has to be called, for who waits or what is to be signed; None: neither."""
        until, waits = self._batch_signer.held_until_boot_ns, self._waiting.due_in()
        if until is None or waits == 0:
            return waits
        signs = max(0, until - self._time.boot_ns())
        return signs if waits is None else min(signs, waits)

    def abandon(self, waiters: Iterable[Waiter]) -> None:
        """Forget those who wait and are gone. Whoever is behind them is looked at in the next turn."""
        self._waiting.abandon(waiters)

    def _call_in(self, turn: Turn) -> None:
        changed = [*self._store.changed, *self._sessions.freed()]

        def again(request: Task, _: Waiter | None = None) -> Draft:
            assert isinstance(request, Acquire | Upgrade)
            return self._handler.decided(turn, request)

        def first(request: Acquire | Upgrade) -> Draft | PlainLater:
            self._store.look_up((request.domain,))
            (draft,) = self._plain.answered(turn, [request], again, waiters={}, queues=())
            assert draft is not None
            assert not isinstance(draft, bytes)
            return draft

        self._waiting.call_in(changed, first, again, turn.bounds.now)

    def _begin_turn(self, looked: tuple[TimeInterval, SignedTime] | None = None) -> Turn:
        """Look at the clock, if that was not done just now. Raises BadTime, also where the witness key has ended."""
        newest, going = self._chain.newest_map, self._going  # not taken from there: the chain's thread may set it now
        if newest is not None and newest.number > going.number and going.half is not Half.COMING:  # else it rises first
            self.go_by(newest)
        now, token = looked or self._time.now_and_token()
        self._signer.signer_at(token.midpoint_ns)
        if token.midpoint_ns < self._batch_signer.not_before_ns:
            raise BadTime(
                "clock-behind",
                f"the clock says {rfc3339(token.midpoint_ns)}; before its restart this shard signed at "
                f"{rfc3339(self._batch_signer.not_before_ns)}",
                hint="wait until the clock is there again, or mend its time service",
            )
        self._publish(self._batch_signer.sign_held(token))
        if not token.status.usable or max(now.radius, token.radius_ns) > self._policy.radius_ns_max:
            raise BadTime(
                "unusable-time",
                f"status {token.status.name.lower()}, radius {max(now.radius, token.radius_ns)} ns; "
                f"the policy allows {self._policy.radius_ns_max} ns",
                hint="wait for the clock to settle, or mend its time service",
            )
        bounds = Bounds(
            now=now,
            term_ns_max=self._policy.lease_term_max_ns,
            ceiling_ns=self._chain.ceiling_ns,
            signed_ns_max=token.midpoint_ns + self._policy.lease_term_max_ns + token.radius_ns,
            shard_floor_ns=self._eviction.floor_ns,
            r1_tolerance_ns=self._policy.r1_tolerance_ns,
            hint_bytes_left=max(0, self._hint_bytes_max - self._store.hint_bytes),
        )
        return Turn(bounds, token, self._batch_signer.waiting())

    # -- ceiling and room ----------------------------------------------------------------------------------------------

    def _flush(self, tentative: Sequence[str] = ()) -> None:
        """Sign what no request waits for, and withdraw some leases. Without usable time the next batch has it."""
        try:
            turn = self._begin_turn()
        except BadTime:
            return
        with self._store.transaction():
            self._break(turn, tentative, Break(stopping=True))
            batch = self._batch_signer.sign(turn.entries, turn.token)
        self._publish(batch)

    def _held(self, turn: Turn) -> bool:
        """Leave the ends of leases to the next turn's signature, if one comes soon. With a log each turn is kept.

        What is lost with a run that crashes before is not more than what its ledger's thread had not written yet.
        """
        return self._log is None and self._batch_signer.hold(turn.entries, turn.token, self._time.boot_ns())

    def _publish(self, batch: Batch | None) -> None:
        """Hand a batch out, once the log keeps what it rests on. Raises LogLost: neither it nor a later one is."""
        self._batch_signer.publish(batch, self._keep)

    def _keep(self, block: bytes) -> None:
        if self._log is not None:
            self._log.keep(self._store, self._said("", b"", b""), self._chain.number, block)

    def _linked(self, extension: Extension) -> Extension:
        if isinstance(extension, Extended):
            self._batch_signer.say(CeilingCopy(record=extension.data))
        elif isinstance(extension, Deposed):
            self._drop(extension)
        return extension

    def _drop(self, deposed: Deposed) -> Deposed:
        self._publish(self._batch_signer.sign_held())
        self._waiting.close("deposed", deposed.reason)
        self._store.clear()
        return deposed

    def _gain_ns(self, now: TimeInterval) -> int:
        """How much higher the ceiling of a record linked now would be."""
        return now.latest + self._policy.lease_term_max_ns + self._policy.ceiling_ahead_ns - self._chain.ceiling_ns

    def _make_reach(self, requests: Sequence[Task]) -> tuple[TimeInterval, SignedTime] | None:
        """Extend the ceiling before the turn if it would shorten a term, or lies at the shard floor. Raises BadTime.

        Returns what the clock said, where it was asked and no time has passed since.
        """
        nobody = not self._waiting.count and all(isinstance(each, _GRANTS_NOTHING) for each in requests)
        if nobody or self._handler.stopping or self._chain.number == 0 or self._chain.deposed is not None:
            return None
        # Twice, because the first may only take up what has come of an extension that was begun long ago.
        for _ in range(2):
            looked = self._time.now_and_token()
            gain = self._gain_ns(looked[0])
            low = gain > 0 and self._eviction.floor_ns >= self._chain.ceiling_ns
            if gain <= self._policy.ceiling_ahead_ns and not low:
                return looked
            if not isinstance(self._linked(self._chain.extend()), Extended):
                break
        return None

    def _relieve(self, turn: Turn, requests: Sequence[Task]) -> list[str]:
        """Where a full tmpfs has no room for who asks for more, evict neighbours that are long past, before the turn.

        By themselves: the turn can write there then. Return those of them with leases that are past.
        """
        if not self._store.full or not any(isinstance(each, Acquire) for each in requests):
            return []
        with self._store.transaction():
            return self._eviction.evict(self._store.neighbours(), turn.bounds.now.earliest)

    def _make_room(self, turn: Turn, requests: Sequence[Task]) -> None:
        """Evict what is long past before more domains come in than are remembered; the shard floor covers it.

        Leases are never evicted; those surely past are broken, and can be evicted later.
        """
        excess = self._store.domains + len(requests) - self._eviction.domains_max
        if excess <= 0 or (excess := excess - sum(not isinstance(each, Acquire) for each in requests)) <= 0:
            return
        earliest = turn.bounds.now.earliest
        idle = self._store.idle(self._eviction.long_past(earliest), excess + SWEEP_MAX)
        self._eviction.evict(idle, earliest)
        self._sessions.sweep(turn)
        self._break(turn, [*self._store.past(earliest, SWEEP_MAX), *self._sessions.dead()])

    def _break(self, turn: Turn, domains: Iterable[str], command: Break = Break()) -> None:  # noqa: B008 - a value
        for domain in domains:
            self._handler.apply(turn, domain, command)
