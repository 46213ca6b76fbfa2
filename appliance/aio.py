"""The door for asyncio: the synchronous core in threads, so that nothing of it blocks the loop.

```python
async with await AsyncCluster.open("/srv/tenure") as cluster, cluster.session("billing") as session:
    async with await session.acquire("account/7") as leases:
        print(await session.publish("ledger", [b"credit 5"], under=leases))
```

Waits for leases have threads of their own, and so has what an application does by ``run``, which may wait for one:
those who wait must not stand in the way of those who give back. Cancelling an ``acquire`` ends the wait at the shard
and gives back what was granted meanwhile, before the task goes on: at most about one attempt's time-out. Everything
else that is cancelled runs to its end in its thread: a publication may be in the record, or become so, and
relinquishing waits for its outcome as ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from pathlib import Path
from threading import Event
from typing import Any, Concatenate, Final, Self, TypedDict, Unpack

from timeagent.errors import BadRequest, Environment, check_callable, check_type
from timeagent.units import Seconds

from .bag.ports import Storage
from .cluster import Cluster
from .formats.lease import Mode
from .lease.wire import Denied
from .recipes.exclusion import PATIENCE_S, Hold, Tool
from .recipes.mount_election import MountElection, MountLeadership
from .session.endings import Recall
from .session.held import Lease, Listener, Loss
from .session.session import Session

WAITS_MAX: Final = 64
"""How many ``acquire`` wait at once; more of them wait for one of these to end."""

CALLS_MAX: Final = 16
"""How many other calls are under way at once; and how many ``run``."""


class AcquireOptions(TypedDict, total=False):
    """What ``Session.acquire`` takes by name; cancelling stands in the place of ``given_up``."""

    mode: Mode | str | Mapping[str, Mode | str]
    timeout_s: Seconds
    term_s: Seconds | None
    record_only: bool
    hold_s_max: Seconds | None
    progress_within_s: Seconds | None
    recall: Recall | str | None
    sticky_s: Seconds | None
    session_lease: bool | None
    waiting: Callable[[Denied], object]


class _Threads:
    """Three pools: for waits that others must end, for what ends by itself, and for what an application does."""

    def __init__(self) -> None:
        """Start no thread yet."""
        self.waits = ThreadPoolExecutor(WAITS_MAX, "tenure-wait")
        self.calls = ThreadPoolExecutor(CALLS_MAX, "tenure-call")
        self.runs = ThreadPoolExecutor(CALLS_MAX, "tenure-run")
        self.closing = Event()

    async def call[R](self, do: Callable[[], R], pool: ThreadPoolExecutor) -> R:
        """Do it in a thread of a pool. Cancelled, it runs to its end. Raises as ``_submitted``."""
        return await asyncio.shield(_wrapped(_submitted(pool, do)))

    async def taken[R](self, take: Callable[[Callable[[], bool]], R], give_back: Callable[[R], object]) -> R:
        """Take something in a thread that waits. Cancelled, the wait is given up, and what came of it given back."""
        stop = Event()
        future = _submitted(self.waits, lambda: take(lambda: stop.is_set() or self.closing.is_set()))
        wrapped = _wrapped(future)
        try:
            return await asyncio.shield(wrapped)
        except asyncio.CancelledError:
            stop.set()
            if not future.cancel():
                await _ended(wrapped)
                if wrapped.exception() is None:
                    await self.finish(partial(give_back, wrapped.result()))
            raise

    async def finish[R](self, do: Callable[[], R]) -> R:
        """Do it, in a thread if one is to be had, and wait for its end also if cancelled meanwhile.

        Of a closed cluster too.
        """
        try:
            future = _wrapped(_submitted(self.calls, do))
        except BadRequest:  # it is closed, and what ended then ends at once
            future = asyncio.ensure_future(asyncio.to_thread(do))
        except Environment:  # no thread is to be had: what is given back now is held no longer
            return do()
        return await _to_its_end(future)

    def shut(self) -> None:
        """Wait for all threads to end."""
        for pool in (self.waits, self.runs, self.calls):
            pool.shutdown()


class AsyncLeases(tuple["Lease", ...]):  # noqa: SLOT001 - a tuple has no room for a slot
    """The leases of one ``acquire``. Relinquished at the end of an ``async with`` block, also of a cancelled one.

    In order of domain. ``check``, ``remaining_ns`` and ``progress`` of a lease do not block.
    """

    session: AsyncSession
    """Whose they are."""
    _lost: asyncio.Future[Loss] | None = None
    _recalled: asyncio.Future[Lease] | None = None

    async def lost(self) -> Loss:
        """Wait until one of them is lost, and say why: for a task beside the work."""
        self._lost = _first(self._lost, *(lease.on_lost for lease in self))
        return await asyncio.shield(self._lost)

    async def recalled(self) -> Lease:
        """Wait until another asks for one of them, and say which: for a task beside the work. See ``Recall``.

        Raises BadRequest for leases that are flushed.
        """
        if any(lease.recall is Recall.FLUSH for lease in self):
            what = (
                "a lease that is flushed is given back once its listeners return: a task that awaits this is too late"
            )
            raise BadRequest("bad-recall", what, hint="lease.on_recall(function) flushes it; or recall='finish'")
        self._recalled = _first(self._recalled, *(lease.on_recall for lease in self))
        return await asyncio.shield(self._recalled)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.session.relinquish(self)


class AsyncHold[H: Hold]:
    """What a tool has taken. Given back at the end of an ``async with`` block, also of a cancelled one."""

    def __init__(self, threads: _Threads, core: H) -> None:
        """Begin. ``core``: the hold itself, whose ``check``, ``fence`` and ``on_lost`` do not block."""
        self._threads = threads
        self.core = core
        self._lost: asyncio.Future[Loss] | None = None

    async def lost(self) -> Loss:
        """Wait until it is lost, and say why: for a task beside the work."""
        self._lost = _first(self._lost, self.core.on_lost)
        return await asyncio.shield(self._lost)

    async def relinquish(self) -> None:
        """Give it back. It is, also if this is cancelled."""
        await self._threads.finish(self.core.relinquish)

    async def __aenter__(self) -> H:
        return self.core

    async def __aexit__(self, *problem: object) -> None:
        await self.relinquish()


def _awaited[**P, R](
    verb: Callable[Concatenate[Session, P], R], *, waits: bool = False
) -> Callable[Concatenate[AsyncSession, P], Coroutine[Any, Any, R]]:
    """Return a session's verb to be awaited: the session is begun, then it is done in a thread. ``waits``: of those."""

    @wraps(verb)
    async def awaited(session: AsyncSession, /, *arguments: P.args, **options: P.kwargs) -> R:
        await session.begin()
        threads = session._threads  # noqa: SLF001 - a verb of it
        pool = threads.waits if waits else threads.calls
        return await threads.call(partial(verb, session.core, *arguments, **options), pool)

    return awaited


class AsyncSession:
    """A ``Session`` whose calls are awaited. What they do, take and raise stands there."""

    def __init__(self, make: Callable[[], Session], threads: _Threads) -> None:
        """Begin later, in a thread. Made by ``AsyncCluster.session``. ``make``: touches the mount."""
        self._make = make
        self._threads = threads
        self._beginning: asyncio.Future[Session] | None = None
        self._closed = False

    @property
    def core(self) -> Session:
        """The session itself, without asyncio. Raises BadRequest, code ``not-begun``, before it has begun."""
        if self._beginning is None or not self._beginning.done():
            raise BadRequest(
                "not-begun",
                "this session has not begun: nothing of it was awaited yet",
                hint="async with cluster.session(...) as session, or await session.begin()",
            )
        return self._beginning.result()

    async def begin(self) -> Self:
        """Begin it, as ``Cluster.session`` does: whatever else of it is awaited first does so too. Idempotent.

        Cancelled, it goes on in its thread. What refused or failed is tried anew by who asks next.
        """
        last = self._beginning
        if last is None or (last.done() and (last.cancelled() or last.exception() is not None)):
            if self._threads.closing.is_set():
                raise _closed()
            if self._closed:
                raise BadRequest("session-closed", "this session is closed", hint="begin another one")
            self._beginning = last = _wrapped(_submitted(self._threads.calls, self._make))
        await asyncio.shield(last)
        return self

    async def acquire(self, *domains: str, **options: Unpack[AcquireOptions]) -> AsyncLeases:
        """Take leases, all or none, with the options of ``Session.acquire``; ``waiting`` is called in a thread."""
        await self.begin()
        core = self.core
        taken = await self._threads.taken(
            lambda given_up: core.acquire(*domains, given_up=given_up, **options), core.relinquish
        )
        leases = AsyncLeases(taken)
        leases.session = self
        return leases

    async def take[H: Hold](
        self, tool: Callable[[Session], Tool[H]], *, timeout_s: Seconds = PATIENCE_S
    ) -> AsyncHold[H]:
        """Take a tool, which is made of the session: ``await session.take(lambda core: Mutex(core, "deploy"))``."""
        check_callable(tool=tool)
        await self.begin()
        made = tool(self.core)
        check_type(Tool, tool=made)
        hold = await self._threads.taken(
            lambda given_up: made.acquire(timeout_s=timeout_s, given_up=given_up), lambda hold: hold.relinquish()
        )
        return AsyncHold(self._threads, hold)

    @property
    def incarnation(self) -> bytes:
        """The 8 random bytes that name this writer. Raises BadRequest, code ``not-begun``."""
        return self.core.incarnation

    def check_held(self, leases: Sequence[Lease]) -> None:
        """Raise LeaseLost, by name, unless all of these are surely held now. Does not block."""
        self.core.check_held(leases)

    def on_lost(self, listener: Listener) -> None:
        """Have a function called, in a thread, for every lease that is lost from now on. Does not block."""
        self.core.on_lost(listener)

    async def relinquish(self, leases: Sequence[Lease], *, timeout_s: Seconds | None = None) -> bool:
        """Give leases back; return whether every shard has said so. They are, also if this is cancelled."""
        return await self._threads.finish(partial(self.core.relinquish, leases, timeout_s=timeout_s))

    def take_no_more(self) -> None:
        """Take no lease any more. Does not wait."""
        self.core.take_no_more()

    upgrade = _awaited(Session.upgrade, waits=True)  # cancelled, it waits and changes on in its thread
    publish = _awaited(Session.publish)  # cancelled, it is done all the same; asyncio.shield keeps its outcome
    resolve = _awaited(Session.resolve)
    read = _awaited(Session.read)
    read_domains = _awaited(Session.read_domains)
    horizon = _awaited(Session.horizon)
    renew_due = _awaited(Session.renew_due)

    async def run[R](self, do: Callable[..., R], *arguments: object) -> R:
        """Do anything else in a thread: ``await session.run(ledger.post, session.core)``."""
        check_callable(do=do)
        return await self._threads.call(partial(do, *arguments), self._threads.runs)

    async def close(self) -> None:
        """Give everything back and stop renewing. Idempotent. One that never began only begins no more.

        It is closed, also if this is cancelled.
        """
        self._closed = True
        beginning = self._beginning
        if beginning is None:
            return
        try:
            await asyncio.wait([beginning])
        finally:  # also of a task that was cancelled before it came here: that arrives with the first thing awaited
            await _ended(beginning)
            if not beginning.cancelled() and beginning.exception() is None:
                await self._threads.finish(beginning.result().close)

    async def __aenter__(self) -> Self:
        """Begin it, and use it in an ``async with`` block."""
        return await self.begin()

    async def __aexit__(self, *problem: object) -> None:
        await self.close()


class AsyncCluster:
    """A ``Cluster`` for asyncio. Use it in an ``async with`` block."""

    def __init__(self, core: Cluster) -> None:
        """Wrap an open one."""
        self.core = core
        self._threads = _Threads()

    @classmethod
    async def open(
        cls,
        root: str | Path | None = None,
        *,
        node_dir: str | Path | None = None,
        allow_root: bool = False,
        storage: Storage | None = None,
    ) -> Self:
        """Open a root, as ``Cluster.open`` does. Cancelled, what is opened all the same is closed, in its thread."""
        pool = ThreadPoolExecutor(2, "tenure-open")
        open_it = partial(Cluster.open, root, node_dir=node_dir, allow_root=allow_root, storage=storage)
        opening = _submitted(pool, open_it)
        try:
            return cls(await asyncio.shield(_wrapped(opening)))
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # no second thread: then the first does it, once it is open
                pool.submit(lambda: opening.result().close())  # the mount may hang, and nobody waits for that
            raise
        finally:
            pool.shutdown(wait=False)

    def session(self, purpose: str = "", *, session_leases: bool = False) -> AsyncSession:
        """Return a session, as ``Cluster.session``, that begins, in a thread, when anything of it is first awaited.

        ``async with`` included; what beginning raises is raised there. This does not block.
        """
        return AsyncSession(partial(self.core.session, purpose, session_leases=session_leases), self._threads)

    async def run[R](self, do: Callable[..., R], *arguments: object) -> R:
        """Do anything with the core in a thread: ``await cluster.run(cluster.core.settle, log, instant)``."""
        check_callable(do=do)
        return await self._threads.call(partial(do, *arguments), self._threads.runs)

    @contextlib.asynccontextmanager
    async def leading(
        self, election: MountElection, *, timeout_s: Seconds = PATIENCE_S
    ) -> AsyncIterator[MountLeadership]:
        """Campaign in an election on the mount, and lead for an ``async with`` block; resigned at its end.

        As ``MountElection.campaign``. Cancelled while it waits, it stands no more, and does not lead.
        """
        check_type(MountElection, election=election)
        leadership = await self._threads.taken(
            lambda given_up: election.campaign(timeout_s=timeout_s, given_up=given_up), lambda lead: lead.resign()
        )
        try:
            yield leadership
        finally:
            await self._threads.finish(leadership.resign)

    async def close(self) -> None:
        """End all waits, sessions and threads. Idempotent."""
        self._threads.closing.set()
        await _to_its_end(asyncio.ensure_future(asyncio.to_thread(self._close)))

    def _close(self) -> None:
        try:
            self.core.close()
        finally:
            self._threads.shut()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()


def _closed() -> BadRequest:
    """Return what is told to who asks something of a closed cluster."""
    return BadRequest("cluster-closed", "this cluster is closed", hint="open it again")


def _work[R](given: list[tuple[Future[R], Callable[[], R]]]) -> None:
    """Do the one job in a list, and empty that: no cycle of references keeps a failed call's frames alive."""
    future, do = given.pop()
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(do())
        except BaseException as problem:  # noqa: BLE001 - raised where it is awaited
            future.set_exception(problem)
            del future, do  # its traceback holds this frame, and the caller's


def _submitted[R](pool: ThreadPoolExecutor, do: Callable[[], R]) -> Future[R]:
    """Have a thread of a pool do it. Raises BadRequest where the cluster is closed, Environment for lack of a thread.

    A pool that cannot start a thread leaves the job queued for those it has: what is refused here is cancelled first.
    """
    future: Future[R] = Future()
    try:
        pool.submit(_work, [(future, do)])
    except RuntimeError as problem:
        if future.cancel():  # else one of those is doing it
            if str(problem) == "can't start new thread":
                raise Environment("no-threads", str(problem), hint="raise TasksMax, LimitNPROC or ulimit -u") from None
            raise _closed() from None
    return future


def _wrapped[R](future: Future[R]) -> asyncio.Future[R]:
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(_look_at)
    return wrapped


def _look_at[R](future: asyncio.Future[R]) -> None:
    """Retrieve what failed, perhaps with nobody waiting for it any more: else asyncio complains on stderr."""
    if not future.cancelled():
        future.exception()


def _first[T](known: asyncio.Future[T] | None, *listen: Callable[[Callable[[T], None]], None]) -> asyncio.Future[T]:
    """Return what a listener will hear first, of any of these and in whatever thread.

    ``known``: what an earlier call returned, and this one does too until something is heard: no listener is ever taken
    off, and a task that waits again and again would add one each time.
    """
    loop = asyncio.get_running_loop()
    if known is not None and not known.done() and known.get_loop() is loop:
        return known
    first: asyncio.Future[T] = loop.create_future()

    def arrive(heard: T) -> None:
        if not first.done():
            first.set_result(heard)

    def listener(heard: T) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(arrive, heard)

    for each in listen:
        each(listener)
    return first


async def _to_its_end[R](future: asyncio.Future[R]) -> R:
    """Return what comes of something. A task that is cancelled meanwhile waits for it all the same."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _ended(future)
        raise


async def _ended[R](future: asyncio.Future[R]) -> None:
    """Wait for the end of something, however often the task is cancelled meanwhile: the caller raises that."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])
