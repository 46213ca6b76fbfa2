"""The door for asyncio: the loop is never blocked, and who is cancelled leaves neither lease nor waiter behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from appliance.aio import CALLS_MAX, WAITS_MAX, AcquireOptions, _submitted
from appliance.bag.writing import Committed
from appliance.cluster import Cluster
from appliance.recipes.election import Election
from appliance.recipes.exclusion import Mutex, Semaphore
from appliance.recipes.mount_election import MountElection
from appliance.session.endings import LossReason
from appliance.session.session import Session
from tenure.aio import AsyncCluster
from tests.support.cluster import Site, wait_until
from timeagent.clock import SystemClock
from timeagent.errors import BadRequest, LeaseLost, NotTrusted, TenureError, TryAgain
from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from appliance.aio import AsyncLeases


def run(site: Site, scene: Callable[[AsyncCluster], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with await AsyncCluster.open(site.root, node_dir=site.node_dir(), allow_root=True) as cluster:
            await scene(cluster)

    asyncio.run(asyncio.wait_for(whole(), 90))


def waiting(cluster: AsyncCluster, domain: str) -> int:
    _, views = cluster.core.inspect(cluster.core.map.shard_of(domain))
    return sum(view.waiting for view in views if view.domain == domain)


async def some_wait(cluster: AsyncCluster, domain: str, count: int) -> None:
    while await cluster.run(waiting, cluster, domain) < count:
        await cluster.run(cluster.core.time.sleep, 5 * MS)


def test_message_is_published_under_a_lease_and_read(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        async with cluster.session("test") as session:
            async with await session.acquire("a", "b") as leases:
                assert [lease.domain for lease in leases] == ["a", "b"]
                assert await session.publish("log", [b"1"], under=leases) == Committed()
                assert [each.payload for each in await session.read("log", under=leases)] == [b"1"]
            with pytest.raises(LeaseLost):
                leases[0].check()

    run(site, scene)


def test_session_leases_are_chosen_as_without_asyncio(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        for together in (True, False):
            async with (
                cluster.session("test", session_leases=together) as session,
                await session.acquire("a", "b"),
            ):
                _, views = await cluster.run(cluster.core.inspect, 0)
                assert [view.session_id is not None for view in views] == [together, together]

    run(site, scene)


def test_cancelled_wait_leaves_no_waiter_behind_and_gets_no_lease(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        first, second = cluster.session("first"), cluster.session("second")
        held = await first.acquire("d")
        waiter = asyncio.create_task(second.acquire("d", timeout_s=60))
        await some_wait(cluster, "d", 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert await cluster.run(waiting, cluster, "d") == 0
        await first.relinquish(held)
        async with await cluster.session("third").acquire("d", timeout_s=0):
            pass

    run(site, scene)


# The grant may come in the same moment: whoever is cancelled gives it back before it goes on.
def test_lease_that_is_granted_to_a_cancelled_task_is_given_back(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session = await cluster.session("cancelled").begin()
        granted = asyncio.Event()
        loop, acquire = asyncio.get_running_loop(), session.core.acquire

        def taken(*domains: str, **options: object) -> object:
            leases = acquire(*domains)
            loop.call_soon_threadsafe(granted.set)
            while not options["given_up"]():  # type: ignore[operator]
                pass
            return leases

        session.core.acquire = taken  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(session.acquire("d"))
        await granted.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # once more, while the first is being carried out
        with pytest.raises(asyncio.CancelledError):
            await task
        async with await cluster.session("other").acquire("d", timeout_s=0):
            pass

    run(site, scene)


def test_cancelled_block_gives_its_leases_back(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with await cluster.session("cancelled").acquire("d"):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with await cluster.session("other").acquire("d", timeout_s=0):
            pass

    run(site, scene)


# A task may be cancelled when its block is already over: what the session has goes back all the same.
def test_who_is_cancelled_while_it_gives_back_goes_on_when_that_is_done(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session = cluster.session("test")
        leases = await session.acquire("d")
        begun, go_on, relinquish = threading.Event(), threading.Event(), session.core.relinquish

        def slowly(*words: Any, **options: Any) -> bool:  # noqa: ANN401
            begun.set()
            assert go_on.wait(60)
            return relinquish(*words, **options)

        monkeypatch.setattr(session.core, "relinquish", slowly)
        giving = asyncio.create_task(session.relinquish(leases))
        assert await asyncio.to_thread(begun.wait, 60)
        for _ in range(2):
            giving.cancel()
            await asyncio.wait([giving], timeout=0.01)
        assert not giving.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await giving
        async with await cluster.session("next").acquire("d", timeout_s=0):
            pass

    run(site, scene)


def test_session_whose_closing_is_cancelled_gives_everything_back(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        async def work() -> None:
            async with cluster.session("cancelled") as session:
                await session.acquire("d")
                task.cancel()  # arrives with the next thing that is awaited: the closing

        task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError):
            await task
        async with await cluster.session("other").acquire("d", timeout_s=0):
            pass

    run(site, scene)


# Opening goes on in its thread when it is cancelled: nobody would be left to close what it opens.
def test_opening_that_is_cancelled_leaves_no_cluster_open(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Cluster] = []
    begun, go_on, open_ = threading.Event(), threading.Event(), Cluster.open

    def slowly(*places: object, **options: object) -> Cluster:
        begun.set()
        assert go_on.wait(60)
        opened.append(open_(*places, **options))  # type: ignore[arg-type]
        return opened[0]

    async def scene() -> None:
        task = asyncio.create_task(AsyncCluster.open(site.root, node_dir=site.node_dir(), allow_root=True))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(Cluster, "open", slowly)
    asyncio.run(asyncio.wait_for(scene(), 90))
    wait_until(SystemClock(), lambda: bool(opened) and opened[0]._closed)


# With one pool for both, those who wait for a lease would keep its holder from giving it back.
def test_as_many_waiters_as_there_are_threads_do_not_keep_the_holder_from_giving_back(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session = cluster.session("all")
        held = await session.acquire("d")
        others = cluster.session("others")
        waiters = [asyncio.create_task(others.acquire("d", mode="S", timeout_s=60)) for _ in range(WAITS_MAX + 1)]
        await some_wait(cluster, "d", WAITS_MAX // 2)
        await session.relinquish(held)
        assert len(await asyncio.gather(*waiters)) == WAITS_MAX + 1

    run(site, scene)


def test_as_many_upgrades_as_there_are_calls_do_not_keep_others_from_publishing(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session, blocking = cluster.session("shares"), cluster.session("blocks")
        names = [f"d{number}" for number in range(CALLS_MAX)]
        ours = await session.acquire(*names, mode="S")
        theirs = await blocking.acquire(*names, mode="S")
        own = await blocking.acquire("own")
        upgrades = [asyncio.create_task(session.upgrade(lease, "X", timeout_s=60)) for lease in ours]
        for name in names:
            await some_wait(cluster, name, 1)
        assert await asyncio.wait_for(blocking.publish("log", [b"1"], under=own), 30) == Committed()
        await blocking.relinquish(theirs)
        await asyncio.gather(*upgrades)
        assert {lease.mode for lease in ours} == {"X"}

    run(site, scene)


# Whatever an application does in a thread may wait for what another task is about to give back.
def test_as_many_runs_as_there_are_threads_do_not_keep_the_holder_from_giving_back(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session = await cluster.session("holder").begin()
        held = await session.acquire("d")
        given_back = threading.Event()
        waiters = [asyncio.create_task(session.run(given_back.wait, 60)) for _ in range(2 * CALLS_MAX)]
        await asyncio.sleep(0)
        await asyncio.wait_for(session.relinquish(held), 30)
        given_back.set()
        assert all(await asyncio.gather(*waiters))

    run(site, scene)


async def usable(waiter: asyncio.Task[AsyncLeases]) -> None:
    """Wait for leases; those that were given back while they were on their way are refused."""
    (await waiter)[0].check()


def test_closing_ends_what_waits(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        await cluster.session("first").acquire("d")
        waiter = asyncio.create_task(cluster.session("second").acquire("d", timeout_s=3600))
        await some_wait(cluster, "d", 1)
        await cluster.close()
        with pytest.raises(TenureError):
            await usable(waiter)

    run(site, scene)


def test_loss_wakes_who_waits_for_it(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session = cluster.session("hangs")
        leases = await session.acquire("d", progress_within_s=0)
        loss = await leases.lost()
        assert (loss.lease, loss.ended) == (leases[0], "expired")

    run(site, scene)


def test_what_fails_keeps_nothing_in_memory() -> None:
    class Much:
        pass

    seen: list[weakref.ref[Much]] = []

    def fail() -> None:
        much = Much()
        seen.append(weakref.ref(much))
        raise TryAgain("busy", "planted", hint="none")

    gc.disable()
    try:
        with ThreadPoolExecutor(1) as pool, contextlib.suppress(TryAgain):
            _submitted(pool, fail).result()
        assert [each() for each in seen] == [None]
    finally:
        gc.enable()


# Nothing takes a listener off: one for each look would be a leak of who waits for a moment at a time.
def test_who_waits_again_and_again_listens_once(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session = cluster.session("test")
        slot = await session.take(lambda core: Semaphore(core, "gpu", 2))
        async with await session.acquire("d", recall="finish") as leases:
            for _ in range(3):
                for wait in (leases.lost, leases.recalled, slot.lost):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(wait(), 0.01)
            assert len(leases[0].loss_listeners or ()) == len(leases[0].recall_listeners) == 1
            assert len(slot.core.lease.loss_listeners or ()) == 1
            leases[0].lose("broken", LossReason.BROKEN)
            session.core.keeper.losses.tell()
            assert (await leases.lost()).reason is LossReason.BROKEN
        await slot.relinquish()

    run(site, scene)


def test_recall_wakes_who_waits_for_it(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        async with await cluster.session("first").acquire("d", recall="finish") as leases:
            waiter = asyncio.create_task(cluster.session("second").acquire("d", timeout_s=60))
            assert await leases.recalled() is leases[0]
        assert (await waiter)[0].fence > leases[0].fence

    run(site, scene)


# It is given back once its listeners return, and the one that wakes the task returns at once.
def test_lease_that_is_flushed_is_not_waited_for(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        async with await cluster.session("first").acquire("d", recall="flush") as leases:
            with pytest.raises(BadRequest) as refused:
                await leases.recalled()
            assert refused.value.code == "bad-recall"
            assert not leases[0].recall_listeners

    run(site, scene)


def test_what_the_core_refuses_is_raised_as_it_is(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        await cluster.session("first").acquire("d")
        with pytest.raises(TryAgain) as busy:
            await cluster.session("second").acquire("d", timeout_s=0)
        assert busy.value.code == "busy"

    run(site, scene)


# Beginning looks at the mount, which may hang: then everything else of the loop goes on.
def test_mount_that_hangs_while_a_session_begins_holds_nothing_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        looked, answers, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
        asked_by: list[threading.Thread] = []

        def hang() -> None:
            asked_by.append(threading.current_thread())
            loop.call_soon_threadsafe(looked.set)
            if asked_by != [threading.main_thread()]:
                assert answers.wait(60)

        monkeypatch.setattr(cluster.core, "check_trusted_now", hang)
        session = cluster.session("patient")
        first, second = (asyncio.create_task(session.acquire(domain)) for domain in "ab")
        await looked.wait()
        with pytest.raises(BadRequest) as refused:
            assert session.core
        assert refused.value.code == "not-begun"
        answers.set()
        leases = [*(await first), *(await second)]
        assert {lease.domain for lease in leases} == {"a", "b"}
        assert len(asked_by) == 1
        assert asked_by != [threading.main_thread()]

    run(site, scene)


def test_session_that_could_not_begin_is_begun_anew(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        def refuse() -> None:
            raise NotTrusted("key-not-trusted", "planted", hint="rotate")

        session = cluster.session("refused")
        with monkeypatch.context() as planted:
            planted.setattr(cluster.core, "check_trusted_now", refuse)
            with pytest.raises(NotTrusted):
                async with session:
                    pytest.fail("it began")
        async with session, await session.acquire("d"):
            pass
        with pytest.raises(BadRequest) as over:
            await session.acquire("d")
        assert over.value.code == "session-closed"

    run(site, scene)


def test_session_that_never_began_ends_without_a_look_and_begins_no_more(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session, late = cluster.session("unused"), cluster.session("late")
        await session.close()
        with pytest.raises(BadRequest) as over:
            await session.acquire("d")
        assert over.value.code == "session-closed"
        await cluster.close()
        with pytest.raises(BadRequest) as closed:
            await late.acquire("d")
        assert closed.value.code == "cluster-closed"

    run(site, scene)


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tool_is_taken_for_a_block_and_a_cancelled_wait_for_it_leaves_no_waiter(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        first, second = cluster.session("first"), cluster.session("second")
        async with await first.take(lambda core: Mutex(core, "d")) as hold:
            hold.check()
            waiter = asyncio.create_task(second.take(lambda core: Mutex(core, "d"), timeout_s=60))
            await some_wait(cluster, "d", 1)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert await cluster.run(waiting, cluster, "d") == 0
        async with await second.take(lambda core: Mutex(core, "d"), timeout_s=0):
            pass

    run(site, scene)


def test_lead_on_the_mount_is_for_a_block_and_a_cancelled_candidate_never_leads(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        one, two = (MountElection.on(cluster.core, "e", name) for name in ("one", "two"))
        looked, look = threading.Event(), two.newest

        def looking() -> object:
            looked.set()
            return look()

        two.newest = looking  # type: ignore[method-assign, assignment]
        async with cluster.leading(one) as leadership:
            leadership.check()
            candidate = asyncio.create_task(contextlib.AsyncExitStack().enter_async_context(cluster.leading(two)))
            assert await cluster.run(looked.wait, 60)
            candidate.cancel()
            with pytest.raises(asyncio.CancelledError):
                await candidate
            looked.clear()
        with pytest.raises(LeaseLost):
            leadership.check()
        assert not await cluster.run(looked.wait, 1), "it stands no more"
        assert await cluster.run(one.leader) is None
        async with cluster.leading(two, timeout_s=5) as leadership:
            leadership.check()

    run(site, scene)


def test_what_outlives_its_cluster_is_given_back_without_a_word_and_takes_no_more(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session = await cluster.session("test").begin()
        hold = await session.take(lambda core: Mutex(core, "d"))
        leases = await session.acquire("e")
        await cluster.close()
        await hold.relinquish()
        await session.relinquish(leases)
        await session.close()
        refused: list[Awaitable[object]] = [session.acquire("d"), session.run(list), session.horizon("log")]
        for asked in refused:
            with pytest.raises(BadRequest) as told:
                await asked
            assert told.value.code == "cluster-closed"

    run(site, scene)


def test_call_for_which_there_is_no_thread_is_refused_as_that_and_never_done(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def scene(cluster: AsyncCluster) -> None:
        go_on, done = threading.Event(), list[int]()
        busy = asyncio.create_task(cluster.run(go_on.wait))
        await asyncio.sleep(0)
        with monkeypatch.context() as patched:
            patched.setattr(threading, "_start_joinable_thread", refuse)
            with pytest.raises(TenureError) as told:
                await cluster.run(done.append, 1)
        go_on.set()
        await busy
        await cluster.run(done.append, 2)
        assert (done, told.value.code) == ([2], "no-threads")

    run(site, scene)


def test_leases_are_given_back_where_there_is_no_thread_to_do_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def scene(cluster: AsyncCluster) -> None:
        go_on = threading.Event()
        async with cluster.session("first") as first, cluster.session("second") as second:
            leases = await first.acquire("d")
            busy = [asyncio.create_task(cluster._threads.call(go_on.wait, cluster._threads.calls)) for _ in range(2)]
            await asyncio.sleep(0)
            try:
                with monkeypatch.context() as patched:
                    patched.setattr(threading, "_start_joinable_thread", refuse)
                    assert await first.relinquish(leases)
            finally:
                go_on.set()
            await asyncio.gather(*busy)
            async with await second.acquire("d", timeout_s=0):
                pass

    run(site, scene)


def test_cluster_for_whose_opening_there_is_no_thread_is_refused_as_that(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def scene() -> None:
        monkeypatch.setattr(threading, "_start_joinable_thread", refuse)
        with pytest.raises(TenureError, match="no-threads"):
            await AsyncCluster.open(site.root, node_dir=site.node_dir(), allow_root=True)

    asyncio.run(scene())


def test_threads_end_with_a_cluster_whose_closing_failed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    close = Cluster.close

    def fails(cluster: Cluster) -> None:
        close(cluster)
        raise TryAgain("planted", "it was closed, and something failed")

    async def scene(cluster: AsyncCluster) -> None:
        await cluster.run(list)
        with monkeypatch.context() as patched:
            patched.setattr(Cluster, "close", fails)
            with pytest.raises(TryAgain):
                await cluster.close()
        assert not any(each.name.startswith("tenure-run") for each in threading.enumerate())

    run(site, scene)


@pytest.mark.parametrize("wrong", [None, 5, "text", object()])
def test_what_is_no_function_and_no_tool_is_a_bad_request(wrong: Any, site: Site) -> None:  # noqa: ANN401
    async def scene(cluster: AsyncCluster) -> None:
        async with cluster.session() as session:
            asked: tuple[Callable[[], Awaitable[object]], ...] = (
                lambda: session.take(wrong),
                lambda: session.take(lambda _: wrong),
                lambda: session.run(wrong),
                lambda: cluster.run(wrong),
                lambda: cluster.leading(wrong).__aenter__(),
            )
            for ask in asked:
                with pytest.raises(BadRequest, match="bad-type"):
                    await ask()
            with pytest.raises(TypeError, match="given_up"):  # cancelling does that here
                await session.acquire("a", given_up=wrong)  # type: ignore[call-arg]

    run(site, scene)


# The natural service publishes, and a task of it follows: what ends it must not wait for that for ever.
def test_follower_in_a_thread_ends_with_its_cluster(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        await cluster.run(cluster.core.create_log, "log")
        following = asyncio.create_task(cluster.run(next, cluster.core.follow("log").batches()))
        assert await asyncio.wait([following], timeout=0.3) == (set(), {following})
        await cluster.close()
        with pytest.raises(BadRequest, match="closed"):
            await following

    run(site, scene)


def test_semaphore_that_is_lost_is_told_to_who_waits_for_that(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        session = cluster.session("test")
        slot = await session.take(lambda core: Semaphore(core, "gpu", 2))
        slot.core.lease.lose("broken", LossReason.BROKEN)
        session.core.keeper.losses.tell()
        assert (await slot.lost()).reason is LossReason.BROKEN
        await slot.relinquish()
        async with (
            await session.take(lambda core: Semaphore(core, "gpu", 2)),
            await session.take(lambda core: Semaphore(core, "gpu", 2)),
        ):
            with pytest.raises(TryAgain):
                await cluster.session("other").take(lambda core: Semaphore(core, "gpu", 2), timeout_s=0.1)

    run(site, scene)


def test_acquire_takes_what_a_session_without_asyncio_takes() -> None:
    named = {
        name for name, each in inspect.signature(Session.acquire).parameters.items() if each.kind is each.KEYWORD_ONLY
    }
    assert set(AcquireOptions.__annotations__) == named - {"given_up"}


def test_who_waits_for_a_semaphore_is_served_in_order_of_coming(site: Site) -> None:
    """The first of them waits for a slot, the others in the queue of the turnstile, at the shard."""

    async def scene(cluster: AsyncCluster) -> None:
        served: list[int] = []

        async def comes(number: int) -> None:
            session = cluster.session(str(number))
            async with await session.take(lambda core: Semaphore(core, "gpu", 1), timeout_s=60):
                served.append(number)

        async with await cluster.session("first").take(lambda core: Semaphore(core, "gpu", 1)):
            waiters = [asyncio.create_task(comes(0))]
            await some_wait(cluster, "/semaphore:gpu/1/0", 1)
            for number in (1, 2, 3):
                waiters.append(asyncio.create_task(comes(number)))
                await some_wait(cluster, "/semaphore:gpu/turn", number)
        await asyncio.gather(*waiters)
        assert served == [0, 1, 2, 3]

    run(site, scene)


def test_lead_is_handed_over_past_those_who_wait_longer(site: Site) -> None:
    async def scene(cluster: AsyncCluster) -> None:
        led: list[str] = []

        async def campaigns(name: str) -> None:
            session = cluster.session(name)
            async with await session.take(lambda core: Election(core, "e"), timeout_s=60) as leadership:
                led.append(name)
                leadership.check()

        first = await cluster.session("first").take(lambda core: Election(core, "e"))
        waiters = []
        for place, name in enumerate(("early", "middle", "late"), 1):
            waiters.append(asyncio.create_task(campaigns(name)))
            await some_wait(cluster, "/election:e/leader", place)
        assert await cluster.run(lambda: first.core.resign(to="late", timeout_s=30))
        await asyncio.gather(*waiters)
        assert led[0] == "late"
        assert sorted(led) == ["early", "late", "middle"]

    run(site, scene)
