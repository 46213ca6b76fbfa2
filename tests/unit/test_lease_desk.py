"""Sub-leases of a node's daemon: who gets one when, what is told of its end, and who gives none back."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Self

import pytest

from appliance.daemon import lease_desk as module
from appliance.daemon.lease_desk import DeskConnection, LeaseDesk, _Place
from appliance.formats.lease import Mode
from appliance.node import desk_wire as wire
from tests.support.cluster import Site, sites, wait_until
from tests.support.mutants import Mutant, check_noticed
from timeagent.clock import SystemClock
from timeagent.errors import TenureError
from timeagent.units import SECOND, TimeInterval

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.cluster import Cluster
    from timeagent.units import Instant, Span


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path)


@pytest.fixture
def cluster(site: Site) -> Iterator[Cluster]:
    with site.daemon() as cluster:
        yield cluster


def test_who_sends_a_word_byte_by_byte_is_not_waited_for() -> None:
    here, there = socket.socketpair()
    with here, there:
        line = DeskConnection(here)
        heard: list[str | None] = []
        waits = Thread(target=lambda: heard.append(line.hear(SECOND // 2)))
        waits.start()
        word = iter(wire.packed("keep" * 50))
        for byte in word:
            there.sendall(bytes([byte]))
            waits.join(0.01)
            if not waits.is_alive():
                break
        waits.join()
        assert heard == [None]
        assert next(word, None) is not None


class DeskTime:
    """The time of a desk: the cluster's, but for a clock that may be far behind."""

    def __init__(self, cluster: Cluster) -> None:
        self._time = cluster.time
        self.behind: Span = 0

    def now(self) -> TimeInterval:
        now = self._time.now()
        return TimeInterval(now.earliest - self.behind, now.latest)

    def boot_ns(self) -> int:
        return self._time.boot_ns()

    def sleep(self, span: Span) -> None:
        self._time.sleep(span)


class Desk:
    """A desk, and processes that are threads of this one. Close it."""

    def __init__(self, cluster: Cluster) -> None:
        self.time = DeskTime(cluster)
        self.desk = LeaseDesk(cluster.session, self.time, cluster.policy)  # type: ignore[arg-type]
        self.threads: list[Thread] = []
        self.processes: list[Process] = []
        self.lines: list[DeskConnection] = []

    def ask(
        self, domain: str = "d", wait: str = "30s", mode: str = "X", line: type[DeskConnection] = DeskConnection
    ) -> Process:
        ours, its = socket.socketpair()
        self.lines.append(line(its))
        connection = self.lines[-1]

        def serve() -> None:
            with its, contextlib.suppress(OSError):
                self.desk.serve(connection, [wire.LEASE, wire.VERSION, domain, mode, wait, "a test"])

        self.threads.append(Thread(target=serve, daemon=True))
        self.threads[-1].start()
        self.processes.append(Process(ours, self.time))
        return self.processes[-1]

    def place(self, domain: str, mode: Mode = Mode.X) -> _Place:
        return self.desk._places[domain, mode]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.close()
        self.desk.stop()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


class Process:
    """What asked for a sub-lease."""

    def __init__(self, connection: socket.socket, time: DeskTime) -> None:
        self._socket = connection
        self._socket.settimeout(60)
        self._time = time
        self._data = bytearray()
        self.fence = 0
        self.until: Instant = 0
        """Until when it may believe in its sub-lease, by the boot clock."""

    def say(self, word: str) -> None:
        self._socket.sendall(wire.packed(word))

    def hear(self) -> list[str]:
        while (words := wire.unpacked(self._data)) is None or words[0] == wire.WAITS:
            if words is None:
                data = self._socket.recv(4096)
                if not data:
                    return [""]
                self._data += data
        return words

    def held(self) -> Self:
        word, fence, *_ = self.hear()
        assert word == wire.HELD
        self.fence = int(fence)
        assert self.keep() == wire.GOOD
        return self

    def keep(self) -> str:
        asked = self._time.boot_ns()
        self.say(wire.KEEP)
        words = self.hear()
        if words[0] == wire.GOOD:
            self.until = asked + int(words[1])
        return words[0]

    def back(self) -> None:
        self.say(wire.BACK)
        assert self.hear() == [wire.DONE]
        self.close()

    def close(self) -> None:
        self._socket.close()


def test_one_lease_serves_who_waits_here_one_after_the_other(cluster: Cluster) -> None:
    inside: list[int] = []
    fences: list[int] = []

    def work(process: Process) -> None:
        process.held()
        inside.append(process.fence)
        alone = len(inside) == 1
        fences.append(process.fence)
        assert process.keep() == wire.GOOD
        inside.remove(process.fence)
        assert alone
        process.back()
        done.append(process)

    done: list[Process] = []
    with Desk(cluster) as desk:
        threads = [Thread(target=work, args=(desk.ask(),)) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == len(threads)
        assert sorted(set(fences)) == fences
        assert desk.desk.handed_out == len(threads)
        assert desk.desk.leases <= 3, "the last one is not worth the wait for a fence that is past"
    with cluster.session() as session, session.acquire("d", timeout_s=0) as (lease,):
        assert lease.fence > fences[-1]


def test_who_is_gone_has_it_until_it_cannot_believe_in_it_any_more(cluster: Cluster) -> None:
    with Desk(cluster) as desk:
        first = desk.ask().held()
        second = desk.ask()
        first.close()
        second.held()
        assert desk.time.boot_ns() >= first.until
        assert second.fence > first.fence
        second.back()


def test_who_stands_still_has_it_no_longer_than_it_was_told(cluster: Cluster) -> None:
    with Desk(cluster) as desk:
        first = desk.ask().held()
        second = desk.ask().held()
        assert desk.time.boot_ns() >= first.until
        assert first.hear() == [""]
        second.back()


def test_who_was_told_nothing_holds_up_nobody(cluster: Cluster) -> None:
    with Desk(cluster) as desk:
        first = desk.ask()
        assert first.hear()[0] == wire.HELD
        first.close()
        desk.ask().held().back()


def test_lease_goes_to_the_session_that_asks_the_shard_for_it_though_others_wait_here(cluster: Cluster) -> None:
    with Desk(cluster) as desk, cluster.session() as rival:
        first = desk.ask().held()
        lease = desk.place("d").lease
        assert lease is not None
        second = desk.ask()
        wait_until(SystemClock(), lambda: len(desk.place("d").queue) == 1)
        third = desk.ask()
        taken: list[int] = []

        def acquire() -> None:
            with contextlib.suppress(TenureError), rival.acquire("d", timeout_s=60) as (lease,):
                taken.append(lease.fence)

        thread = Thread(target=acquire)
        thread.start()

        def asked_for() -> bool:
            assert first.keep() == wire.GOOD
            return lease.recalled

        wait_until(SystemClock(), asked_for)
        first.back()
        second.held()
        assert taken, "it was given back, and came again behind the other"
        assert first.fence < taken[0] < second.fence
        second.back()
        third.held().back()
        thread.join()


@pytest.mark.parametrize(
    ("domain", "wait", "kind", "code"),
    [
        ("taken", "0", "TryAgain", "busy"),
        ("", "1s", "BadRequest", "bad-domain"),
        ("d", "soon", "BadRequest", "bad-span"),
    ],
)
def test_what_is_not_to_be_had_is_refused_as_an_error(
    cluster: Cluster, domain: str, wait: str, kind: str, code: str
) -> None:
    with Desk(cluster) as desk:
        holder = desk.ask("taken").held()
        refused, named, said, message, _ = desk.ask(domain, wait).hear()
        assert (refused, named, said) == (wire.REFUSED, kind, code)
        assert message
        holder.back()


def test_those_who_share_have_one_lease_beside_each_other_and_nobody_has_it_alone_meanwhile(cluster: Cluster) -> None:
    with Desk(cluster) as desk:
        first, second = desk.ask(mode="S").held(), desk.ask(mode="S").held()
        assert (first.fence, desk.desk.leases) == (second.fence, 1)
        first.back()
        assert second.keep() == wire.GOOD
        alone = desk.ask()
        lease = desk.place("d", Mode.S).lease
        assert lease is not None

        def asked_for() -> bool:
            assert second.keep() == wire.GOOD
            return lease.recalled

        wait_until(SystemClock(), asked_for)
        late = desk.ask(mode="S")
        assert second.keep() == wire.GOOD
        second.back()
        assert alone.held().fence > second.fence
        alone.back()
        assert late.held().fence > alone.fence
        late.back()


def test_mode_that_is_not_lent_is_left_to_a_lease_of_its_own(cluster: Cluster) -> None:
    with Desk(cluster) as desk:
        assert desk.ask(mode="IX").hear() == [wire.NOT_HERE]


def test_desk_that_stops_extends_nothing_and_waits_until_all_is_over(cluster: Cluster) -> None:
    with Desk(cluster) as desk:
        holder, waits = desk.ask().held(), desk.ask()
        until = holder.until
        stopping = Thread(target=desk.desk.stop)
        stopping.start()
        assert waits.hear() == [wire.NOT_HERE]
        assert holder.keep() == wire.OVER
        stopping.join()
        assert desk.time.boot_ns() >= until
        assert desk.ask().hear() == [wire.NOT_HERE]


class Insistent(DeskConnection):
    """Of a process that asks for more time without a pause: there is always a word of it."""

    heard_late = 0

    def hear(self, span: Span) -> str | None:
        self.heard_late += span <= 0
        time.sleep(0.001)
        return wire.KEEP if self.heard_late < 100 else None


def test_desk_that_stops_hears_who_asks_without_a_pause_no_longer_than_its_sub_lease_is_good(cluster: Cluster) -> None:
    with Desk(cluster) as desk:
        process = desk.ask(line=Insistent)
        assert process.hear()[0] == wire.HELD
        stops = Thread(target=desk.desk.stop)
        stops.start()
        while process.hear() != [""]:  # what nobody takes would fill the connection
            pass
        stops.join()
        (line,) = desk.lines
        assert isinstance(line, Insistent)
        assert line.heard_late <= 1


def test_lease_is_not_handed_on_while_its_next_fence_may_lie_ahead_of_a_clock(cluster: Cluster) -> None:
    with Desk(cluster) as desk:
        desk.time.behind = 3600 * SECOND
        first = desk.ask().held()
        second, third = desk.ask(), desk.ask()
        first.back()
        for each in (second, third):
            each.held().back()
        assert desk.desk.leases == desk.desk.handed_out == 3


MUTANTS = {
    "next-at-once-after-a-death": Mutant(
        module,
        "LeaseDesk._kept",
        "(left := told - self._time.boot_ns())",
        "(left := 0)",
        test_who_is_gone_has_it_until_it_cannot_believe_in_it_any_more,
    ),
    "keeps-it-from-other-nodes": Mutant(
        module,
        "LeaseDesk._goes_on",
        "lease is None or lease.recalled",
        "lease is None",
        test_lease_goes_to_the_session_that_asks_the_shard_for_it_though_others_wait_here,
    ),
    "extends-while-it-stops": Mutant(
        module,
        "LeaseDesk._good",
        "self._stopping",
        "False",
        test_desk_that_stops_extends_nothing_and_waits_until_all_is_over,
    ),
    "hears-who-asks-on-for-ever": Mutant(
        module,
        "LeaseDesk._kept",
        "patience > 0",
        "True",
        test_desk_that_stops_hears_who_asks_without_a_pause_no_longer_than_its_sub_lease_is_good,
    ),
    "any-fence": Mutant(
        module,
        "LeaseDesk._past",
        "fence + self._policy.radius_ns_max - self._time.now().earliest",
        "0",
        test_lease_is_not_handed_on_while_its_next_fence_may_lie_ahead_of_a_clock,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_step_is_noticed(name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, MUTANTS[name], {"cluster": cluster})
