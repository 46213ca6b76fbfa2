"""Reading in bulk, following and views by the public door."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event

import pytest

from tenure import BadRequest, Fold, MessageBatch, MountElection
from tests.support.cluster import Site


def count(state: int, batch: MessageBatch) -> int:
    return state + len(batch)


COUNT = Fold(
    view="count",
    version=1,
    logs=("log",),
    initial=b"0",
    decode=int,
    step=count,
    encode=lambda state: b"%d" % state,
)


def test_batches_cursors_followers_and_views_by_the_public_door(site: Site) -> None:
    with site.open() as cluster, cluster.session() as session, session.acquire("a") as leases:
        session.publish("log", [b"0", b"1"], under=leases)
        cluster.settle("log", cluster.time.now().latest)
        reading = cluster.batches("log")
        assert [payload for batch in reading for payload in batch.payloads()] == [b"0", b"1"]
        session.publish("log", [b"2"], under=leases)
        horizon = cluster.settle("log", cluster.time.now().latest)
        later = cluster.batches("log", after=reading.cursor)
        assert [message.payload for batch in later for message in batch] == [b"2"]
        stale = cluster.batches("log", level="stale-ok", as_of_ns=horizon)
        assert sum(len(batch) for batch in stale) == 3
        assert stale.horizon_ns == horizon
        last = [m for batch in cluster.batches("log") for m in batch][-1].timestamp_ns
        assert list(cluster.batches("log", after=last)) == []
        assert sum(len(batch) for batch in cluster.batches("log", after=last - 1)) == 1
        follower = cluster.follow("log", after=reading.cursor)
        assert next(follower.batches()).payloads() == [b"2"]
        assert list(cluster.batches("log", after=follower.cursor)) == []
        view = cluster.view(COUNT)
        assert view.state(view.advance()) == 3
        with pytest.raises(BadRequest, match="no level"):
            cluster.batches("log", level="nonsense")
        session.publish("other", [b"x"], under=leases)
        with pytest.raises(BadRequest, match="not of"):
            cluster.batches("other", after=reading.cursor)


# A service that follows in a thread has to come to its end: tenure.aio waits for these threads when it closes.
def test_who_waits_in_a_thread_hears_that_the_cluster_is_closed(site: Site) -> None:
    settles = Event()
    with site.open() as cluster, ThreadPoolExecutor(3) as threads:
        cluster.create_log("log")
        elections = [MountElection.on(cluster, "e", candidate) for candidate in "ab"]
        with elections[0].campaign():
            hour = time.time_ns() + 3600 * 10**9
            waiting: list[Future[object]] = [
                threads.submit(next, cluster.follow("log").batches()),
                threads.submit(cluster.settle, "log", hour, lambda _: settles.set()),
                threads.submit(elections[1].campaign, timeout_s=3600),
            ]
            assert settles.wait(20)
            assert not wait(waiting, 0.5).done
            cluster.close()
            for each in waiting:
                with pytest.raises(BadRequest) as told:
                    each.result(20)
                assert told.value.code == "cluster-closed"
