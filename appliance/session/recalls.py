"""Recalls on the holder's side (docs/protocol/lease.md, "Recall"): a session hears that others ask for its leases.

For each shard from which a session has leases that may be recalled, a thread waits in a call that the shard answers
when there is something to tell. Hearing nothing breaks nothing: the lease is kept until its user gives it back.

Sticky leases stay with the session between uses. One that is unused is held and renewed as every other: what its last
user had in hand is over, and no attempt under it is undecided.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event, Thread, current_thread
from typing import Final

from appliance.formats.lease import Mode, covers
from appliance.lease.client import ClockLook
from appliance.lease.wire import Age, Attend, Recalled, WantedLease
from timeagent.errors import ShardUnavailable, TenureError, TryAgain
from timeagent.units import SECOND, Span

from .endings import KEPT, LossReason, Recall
from .held import Keeper, Lease

_log = logging.getLogger(__name__)

HEAR_NS: Final = 10 * SECOND
"""How long one call waits: after this a shard that has died, or a lost connection, is noticed at the latest."""

_EARLY_MAX: Final = 1024
"""How many recalls of leases that this session does not know (yet) are remembered."""


@dataclass(slots=True)
class _Ear:
    """What was heard of one shard."""

    run: bytes = bytes(8)
    heard: int = 0
    thread: Thread | None = None


@dataclass(eq=False)
class RecallListener:
    """The recalls of one session."""

    _keeper: Keeper
    _give_back: Callable[[Sequence[Lease]], None]
    """Ends leases, once what was written under them is decided."""

    def __post_init__(self) -> None:
        self._policy = self._keeper.policy
        self._ears: dict[int, _Ear] = {}
        self._early: dict[bytes, WantedLease] = {}
        self._stop = Event()

    def attend(self, leases: Iterable[Lease]) -> None:
        """Listen for these, from now on and as long as there are leases of their shards that may be recalled."""
        early: list[Lease] = []
        with self._keeper.lock:
            for lease in leases:
                if lease.recall in KEPT or self._stop.is_set():
                    continue
                ear = self._ears.setdefault(lease.shard, _Ear())
                if self._keeper.background and ear.thread is None:
                    name = f"tenure-recalls-{lease.shard}"
                    thread = Thread(target=self._listen, args=(lease.shard, ear), name=name, daemon=True)
                    thread.start()  # before it is kept: there may be none to be had
                    ear.thread = thread
                if self._early.pop(lease.correlation_id, None) is not None:
                    early.append(lease)
        self._answer(early)

    def poll(self) -> None:
        """Hear what there is to hear, without waiting: for sessions that have no threads."""
        for shard, ear in list(self._ears.items()):
            if not self._keeper.background and self._listening_for(shard):
                self._hear(shard, ear, 0)

    @contextlib.contextmanager
    def in_no_circle(self) -> Iterator[Callable[[Age | None], bool]]:
        """Wait, in the block, with leases in hand: what is handed on looks, now and then, whether that has to end.

        It is asked with the age of the request that waits. It has to end where an older request waits for one of these
        leases, and still does an attempt's time-out later: then they may be in a circle of waiters, and this is the one
        to leave it. In every circle the oldest waits for somebody younger, who finds it out so, over whichever shards
        the circle goes. Who waits for a holder that is only slow is told too: it is not known whom that one waits for.

        Then TryAgain becomes that of code ``deadlock``, and what was taken with ``Recall.YIELD`` is given up first.
        """
        time = self._keeper.time
        looked_boot_ns = time.boot_ns()
        seen: dict[bytes, Age] = {}
        closed: set[bytes] = set()

        def is_closed(age: Age | None) -> bool:
            nonlocal seen, looked_boot_ns
            if age is not None and not closed and time.boot_ns() - looked_boot_ns >= self._policy.attempt_timeout_ns:
                now = self.waited_for(age)
                closed.update(name for name, oldest in now.items() if seen.get(name) == oldest)
                seen, looked_boot_ns = now, time.boot_ns()
            return bool(closed)

        try:
            yield is_closed
        except TryAgain:
            if closed and (leases := self.give_up(closed)):
                names = ", ".join(repr(each.domain) for each in leases)
                raise TryAgain(
                    "deadlock",
                    f"an older request waits for {names}, held here, while this one waits: "
                    "they may wait for each other",
                    hint="give back what is held and begin anew; who acquires all of a set at once never waits so",
                ) from None
            raise

    def waited_for(self, age: Age) -> dict[bytes, Age]:
        """Ask the shards which leases in use here an older request waits for, by correlation id. Blocks for each."""
        with self._keeper.lock:
            used = [each for each in self._keeper.held if each.ended is None and each not in self._keeper.unused]
            shards = sorted({each.shard for each in used if each.outlook().state == "held"})
        ours = {each.correlation_id for each in used}
        answers = [self.ask(shard) for shard in shards]
        wanted = [each for answer in answers if answer is not None for each in answer.wanted]
        return {
            each.correlation_id: each.oldest
            for each in wanted
            if each.correlation_id in ours and each.oldest is not None and each.oldest < age
        }

    def give_up(self, names: Iterable[bytes]) -> list[Lease]:
        """Give back those of these leases of which that was chosen, ``Recall.YIELD``; return all that are held."""
        with self._keeper.lock:
            mine = [each for each in self._keeper.held if each.correlation_id in names and each.ended is None]
            back = [each for each in mine if each.recall is Recall.YIELD]
            for lease in back:
                lease.lose("recalled", LossReason.RECALLED)
        self._keeper.losses.tell()
        self._give_back(back)
        return mine

    def stop(self) -> None:
        """Listen no more. A call that is held back is ended; who does not end by that ends by itself, and later."""
        self._stop.set()
        with self._keeper.lock:
            threads = [(shard, ear.thread) for shard, ear in self._ears.items() if ear.thread is not None]
        for shard, thread in threads:
            if thread is not current_thread():
                self.ask(shard)
                thread.join(self._policy.attempt_timeout_ns / SECOND)

    def ask(self, shard: int, run: bytes = bytes(8), heard: int = 0, wait_ns: Span = 0) -> Recalled | None:
        """Ask a shard whether others ask for leases of this holder; None where no answer came. Blocks so long."""
        keeper = self._keeper
        name = keeper.randomness.randbytes(16)
        request = Attend(request_id=name, holder=keeper.holder, run=run, heard=heard, wait_ns=wait_ns)
        try:
            (reply,) = keeper.routes.transport(shard).call([request], self._policy.attempt_timeout_ns + wait_ns)
        except ShardUnavailable:
            return None
        return reply if isinstance(reply, Recalled) else None

    # -- listening -----------------------------------------------------------------------------------------------------

    def _listening_for(self, shard: int) -> bool:
        with self._keeper.lock:
            return any(lease.shard == shard and lease.recall not in KEPT for lease in self._keeper.held)

    def _listen(self, shard: int, ear: _Ear) -> None:
        while True:
            with self._keeper.lock:
                if self._stop.is_set() or not self._listening_for(shard):
                    ear.thread = None
                    return
            try:
                pause = not self._hear(shard, ear, HEAR_NS)
            except TenureError as problem:
                _log.warning("recall-failed shard=%d code=%s reason=%s", shard, problem.code, problem.message)
                pause = True
            if pause:
                self._stop.wait(self._policy.attempt_timeout_ns / SECOND)

    def _hear(self, shard: int, ear: _Ear, wait_ns: Span) -> bool:
        """Ask once; whether it is of use to ask again at once."""
        recalled = self.ask(shard, ear.run, ear.heard, wait_ns)
        if recalled is None or self._stop.is_set():
            return False
        ear.run, ear.heard = recalled.run, recalled.heard
        self._answer(self._recalled(shard, recalled))
        return not recalled.stopping

    def _recalled(self, shard: int, recalled: Recalled) -> list[Lease]:
        """Return which leases are asked for. One that was granted and is not known yet is remembered."""
        wanted = {each.correlation_id: each for each in recalled.wanted}
        with self._keeper.lock:
            mine = [
                lease
                for lease in self._keeper.held
                if lease.shard == shard and (recalled.stopping or lease.correlation_id in wanted)
            ]
            for lease in mine:
                wanted.pop(lease.correlation_id, None)
            self._early |= wanted
            while len(self._early) > _EARLY_MAX:
                del self._early[next(iter(self._early))]
        return mine

    # -- answering -----------------------------------------------------------------------------------------------------

    def _answer(self, leases: Iterable[Lease]) -> None:
        """Do with leases that are asked for what was chosen for them, once."""
        back: list[Lease] = []
        tell: list[Lease] = []
        with self._keeper.lock:
            for lease in leases:
                if lease.recall in KEPT or lease.ended is not None or lease.recalled:
                    continue
                lease.recalled = True
                if self._keeper.unused.pop(lease, None) is not None:
                    back.append(lease)
                elif lease.recall is Recall.RELINQUISH:
                    lease.lose("recalled", LossReason.RECALLED)
                    back.append(lease)
                else:
                    tell.append(lease)
        self._keeper.losses.tell()
        if back:
            self._give_back(back)
        for lease in tell:
            if lease.recall is Recall.FINISH:
                _tell(lease)
            elif not (self._keeper.background and self._flushes_apart(lease)):
                self._flush(lease)

    def _flushes_apart(self, lease: Lease) -> bool:
        """Flush a lease in a thread of its own; whether there is one to be had."""
        with contextlib.suppress(RuntimeError):
            Thread(target=self._flush, args=(lease,), name="tenure-flush", daemon=True).start()
            return True
        return False

    def _flush(self, lease: Lease) -> None:
        _tell(lease)
        with self._keeper.lock:
            if lease.ended is not None:
                return
            lease.lose("recalled", LossReason.RECALLED)
        self._keeper.losses.tell()
        self._give_back([lease])


def _tell(lease: Lease) -> None:
    for listener in lease.recall_listeners:
        try:
            listener(lease)
        except Exception:  # noqa: BLE001 - whatever an application's function raises
            # Another waits for the lease, and the other functions want to be called: as if this one had returned.
            _log.exception("recall-listener-failed domain=%s", lease.domain)


def keep_unused(keeper: Keeper, lease: Lease) -> bool:
    """Keep a lease whose use is over, if it is one to be kept: it goes on as another object, its user's is over."""
    if lease.sticky_ns is None or lease.ended is not None or lease.recalled:
        return False
    with keeper.lock:
        # Nobody has to get on with what nobody uses; and what is being asked for is given back by whoever asks.
        kept = replace(lease, recall_listeners=(), loss_listeners=(), progress_within_ns=None, asking=None)
        lease.ended = "relinquished"
        keeper.forget([lease])
        keeper.hold(kept)
        keeper.moved = [kept if each is lease else each for each in keeper.moved]
        if kept.second is not None:
            kept.second.first = kept
        if kept.session_lease is not None and kept.session_lease.leases.get(kept.correlation_id) is lease:
            kept.session_lease.leases[kept.correlation_id] = kept
        keeper.unused[kept] = keeper.time.boot_ns()
    return True


def use_again(
    keeper: Keeper, wanted: Mapping[str, Mode], *, together: bool
) -> tuple[list[Lease], list[Lease], ClockLook | None]:
    """Return unused leases for all of these domains, or none; those that have to be given back first; and the time.

    Whoever asks for a set that is here in part gives that part back first, so that all sets are taken in one order.
    ``together``: false where they must not be under a session lease, which knows no caps of theirs. Raises BadTime.
    """
    with keeper.lock:
        here = [lease for lease in keeper.unused if lease.domain in wanted]
        if not here:
            return [], [], None
        came = ClockLook.of(keeper.time)  # before any of them is taken
        now = came.now
        found: dict[str, Lease] = {}
        for lease in here:
            del keeper.unused[lease]
            usable = now.surely_before(lease.usable_until_ns(keeper.policy.holder_margin_ns))
            usable = usable and (together or lease.session_lease is None)
            if usable and lease.ended is None and not lease.recalled and covers(lease.mode, wanted[lease.domain]):
                found.setdefault(lease.domain, lease)
        if len(found) < len(wanted):
            return [], here, None
        taken = [found[domain] for domain in sorted(found)]
        return taken, [lease for lease in here if lease not in taken], came


def unused_for_long(keeper: Keeper) -> list[Lease]:
    """Return the unused leases whose time is over, or that are lost; they have to be given back."""
    boot = keeper.time.boot_ns()
    with keeper.lock:
        over = [
            lease
            for lease, since in keeper.unused.items()
            if lease.ended is not None or (lease.sticky_ns is not None and boot - since >= lease.sticky_ns)
        ]
        for lease in over:
            del keeper.unused[lease]
    return over
