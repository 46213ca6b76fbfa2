"""Recalls on the holder's side (docs/protocol/lease.md, "Recall"): a session hears that others ask for its leases.

For each shard from which a session has leases that may be recalled, a thread waits in a call that the shard answers
when there is something to tell. Hearing nothing breaks nothing: the lease is kept until its user gives it back.

Sticky leases stay with the session between uses (``LeaseCache``). One that is cached is held and renewed as every
other, and nobody uses it: what its last user had in hand is over, and no attempt under it is undecided.
``SessionStanding`` tells tools that are made of sessions which leases a session has in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event, RLock, Thread, Timer
from typing import Final

from appliance.formats.lease import Holder, Mode, covers
from appliance.lease.wire import Age, Recalled, WantedLease
from timeagent.errors import TenureError, TryAgain
from timeagent.units import SECOND, Span

from .held import KEPT, Keeper, Lease, LossReason, Recall
from .leasing import Leasing
from .renewal import LeaseRenewer


class LeaseCache:
    """The leases of one session that are held and not in use."""

    def __init__(self, keeper: Keeper, renewer: LeaseRenewer) -> None:
        self._keeper = keeper
        self._time, self._policy = keeper.time, keeper.policy
        self._renewer = renewer
        self._since: dict[Lease, int] = {}
        """What is here, and since when, by the boot clock."""

    def __contains__(self, lease: Lease) -> bool:
        return lease in self._since

    def put(self, lease: Lease) -> bool:
        """Keep a lease whose use is over, if it is one to be kept: it goes on as another object, its user's is over."""
        if lease.sticky_ns is None or lease.ended is not None or lease.recalled:
            return False
        with self._keeper.lock:
            kept = replace(lease, recall_listeners=(), loss_listeners=())
            lease.ended = "relinquished"
            self._renewer.exchange(lease, kept)
            self._since[kept] = self._time.boot_ns()
        return True

    def take(self, wanted: Mapping[str, Mode]) -> tuple[list[Lease], list[Lease]]:
        """Return leases for all of these domains, or none; and those that have to be given back first.

        Whoever asks for a set that is here in part gives that part back first, so that all sets are taken in one order.
        Raises BadTime.
        """
        with self._keeper.lock:
            here = [lease for lease in self._since if lease.domain in wanted]
            if not here:
                return [], []
            now = self._time.now()
            found: dict[str, Lease] = {}
            for lease in here:
                usable = now.surely_before(lease.usable_until_ns(self._policy.holder_margin_ns))
                if usable and lease.ended is None and not lease.recalled and covers(lease.mode, wanted[lease.domain]):
                    found.setdefault(lease.domain, lease)
            self.drop(here)
            if len(found) < len(wanted):
                return [], here
            taken = [found[domain] for domain in sorted(found)]
            return taken, [lease for lease in here if lease not in taken]

    def idle(self) -> list[Lease]:
        """Return those that nobody has used for long, or that are lost; they are not here any more."""
        boot = self._time.boot_ns()
        with self._keeper.lock:
            over = [
                lease
                for lease, since in self._since.items()
                if lease.ended is not None or (lease.sticky_ns is not None and boot - since >= lease.sticky_ns)
            ]
            if over:
                self.drop(over)
        return over

    def drop(self, leases: Sequence[Lease]) -> None:
        """Have these here no longer: whoever calls this gives them back, or to a user."""
        with self._keeper.lock:
            for lease in leases:
                self._since.pop(lease, None)


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


class Circle:
    """Whether who waits with leases in hand may be in a circle of waiters, and the one to leave it.

    It is when an older request waits for one of these leases, and still does an attempt's time-out later. In every
    circle of waiters the oldest waits for somebody younger, who finds it out so, over whichever shards the circle goes.
    Who waits for a holder that is only slow is told too: it is not known whom that one waits for.
    """

    def __init__(self, recalls: RecallListener, keeper: Keeper) -> None:
        self._recalls = recalls
        self._time = keeper.time
        self._every_ns = keeper.policy.attempt_timeout_ns
        self._looked_boot_ns = self._time.boot_ns()
        self._seen: dict[bytes, Age] = {}
        self._closed: set[bytes] = set()

    def closed(self, age: Age | None) -> bool:
        """Look, now and then, whether it is. ``age``: that of the request that waits. Raises BadTime."""
        boot = self._time.boot_ns()
        if age is not None and not self._closed and boot - self._looked_boot_ns >= self._every_ns:
            now = self._recalls.waited_for(age)
            self._closed = {name for name, oldest in now.items() if self._seen.get(name) == oldest}
            self._seen, self._looked_boot_ns = now, self._time.boot_ns()
        return bool(self._closed)

    def leave(self) -> None:
        """Raise TryAgain, code ``deadlock``, if it is; what was taken with ``Recall.YIELD`` is given up first."""
        if self._closed and (leases := self._recalls.give_up(self._closed)):
            names = ", ".join(repr(each.domain) for each in leases)
            raise TryAgain(
                "deadlock",
                f"an older request waits for {names}, held here, while this one waits: they may wait for each other",
                hint="give back what is held and begin anew; who acquires all of a set at once never waits so",
            )


@dataclass(eq=False)
class RecallListener:
    """The recalls of one session."""

    _keeper: Keeper
    _leasing: Leasing
    _cache: LeaseCache
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
                    ear.thread = Thread(target=self._listen, args=(lease.shard, ear), name=name, daemon=True)
                    ear.thread.start()
                if self._early.pop(lease.correlation_id, None) is not None:
                    early.append(lease)
        self._answer(early)

    def poll(self) -> None:
        """Hear what there is to hear, without waiting: for sessions that have no threads."""
        for shard, ear in list(self._ears.items()):
            if not self._keeper.background and self._listening_for(shard):
                self._hear(shard, ear, 0)

    def in_no_circle[R](self, ask: Callable[[Callable[[Age | None], bool]], R]) -> R:
        """Do what waits for leases; it is handed what says that it has to end: then raises TryAgain, ``deadlock``."""
        circle = Circle(self, self._keeper)
        try:
            return ask(circle.closed)
        except TryAgain:
            circle.leave()
            raise

    def waited_for(self, age: Age) -> dict[bytes, Age]:
        """Ask the shards which leases in use here an older request waits for, by correlation id. Blocks for each."""
        with self._keeper.lock:
            used = [each for each in self._keeper.held if each.ended is None and each not in self._cache]
            shards = sorted({each.shard for each in used if each.outlook().state == "held"})
        answers = [self._leasing.hear(shard, bytes(8), 0, 0) for shard in shards]
        ours = {each.correlation_id for each in used}
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
            self._leasing.hear(shard, bytes(8), 0, 0)
            thread.join(self._policy.attempt_timeout_ns / SECOND)

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
        recalled = self._leasing.hear(shard, ear.run, ear.heard, wait_ns)
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
                if lease in self._cache:
                    back.append(lease)
                elif lease.recall is Recall.RELINQUISH:
                    lease.lose("recalled", LossReason.RECALLED)
                    back.append(lease)
                else:
                    tell.append(lease)
            self._cache.drop(back)
        self._keeper.losses.tell()
        if back:
            self._give_back(back)
        for lease in tell:
            if lease.recall is Recall.FINISH:
                _tell(lease)
            elif self._keeper.background:
                Thread(target=self._flush, args=(lease,), name="tenure-flush", daemon=True).start()
            else:
                self._flush(lease)

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


class SessionStanding:
    """One session's, for the tools that are made of sessions. Safe to share between threads."""

    def __init__(self, keeper: Keeper, leasing: Leasing, cache: LeaseCache) -> None:
        self._keeper = keeper
        self.time, self.policy = keeper.time, keeper.policy
        self.leases_below = leasing.leases_below
        self._leasing = leasing
        self._cache = cache
        self._due: list[tuple[int, Callable[[], None]]] = []
        """What a session without threads has to do yet, and from when on, by the boot clock."""

    @property
    def holder(self) -> Holder:
        """How its leases name the session."""
        return self._leasing.holder

    @property
    def lock(self) -> RLock:
        """The session's."""
        return self._keeper.lock

    def later(self, span: Span, do: Callable[[], None]) -> None:
        """Call a function once so much time has passed: in a thread that does not outlive the process, if it has any.

        A session without threads calls it when it renews, as time passes.
        """
        if not self._keeper.background:
            self._due.append((self.time.boot_ns() + span, do))
            return
        timer = Timer(span / SECOND, do)
        timer.daemon = True
        timer.start()

    def do_due(self) -> None:
        """Call what was put off until now, in a session without threads."""
        boot = self.time.boot_ns()
        due = [each for each in self._due if each[0] <= boot]
        self._due = [each for each in self._due if each[0] > boot]
        for _, do in due:
            do()

    def in_use(self, domain: str) -> Lease | None:
        """Return a lease on a domain that the session has in use, or None. Asks nobody."""
        with self._keeper.lock:
            mine = [each for each in self._keeper.held if each.domain == domain and each not in self._cache]
        return next((each for each in mine if each.ended is None), None)
