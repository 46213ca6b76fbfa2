"""Who is trusted now: the newest record that could be read, and no clock makes a revocation undone."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

import pytest

from appliance.admin import moving
from appliance.admin.trust import move_node, revoke_node
from appliance.formats.names import Address
from appliance.node.record_watch import MapWatch, TrustWatch
from appliance.node.records import Registers
from tests.support.clocks import HandTime
from tests.support.cluster import Site, sites, wait_until
from tests.support.storage import WrappedStorage
from tests.support.values import TIME_KEY
from timeagent.clock import SystemClock
from timeagent.errors import BadTime, Environment
from timeagent.keys import Purpose
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


class Mount(WrappedStorage):
    away = False
    asked: tuple[tuple[str, str], ...] = ()

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        self.asked += ((verb, path),)
        if self.away:
            raise Environment("planted", f"{verb} {path}: Input/output error")
        return call()


class Watched:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.mount = Mount(site.storage)
        self.time = HandTime(TIME_KEY, SystemClock().realtime_ns())
        registers = Registers(self.mount, site.cluster_id, site.root_key.verifier())
        self.watch = TrustWatch(registers, self.time)
        self.key = site.settings["node2"].key(Purpose.TLS).id


def test_newest_record_is_found_when_it_is_looked_for(site: Site) -> None:
    watched = Watched(site)
    watch = watched.watch
    assert watch.node_of(watched.key) == "node2"
    assert watch.node_of(site.settings["node2"].key(Purpose.WITNESS).id) is None
    assert watch.refuses(watched.key) is None
    assert watch.address_of("node2") is None
    move_node(site.registers, site.root_key, "node2", Address("alpha", 7))
    assert watch.address_of("node2") is None
    watch.refresh()
    assert watch.address_of("node2") == Address("alpha", 7)
    assert watch.number == 3
    assert "is for witness" in str(watch.refuses(site.settings["node2"].key(Purpose.WITNESS).id))
    assert "not in the trust record" in str(watch.refuses(bytes(16)))


def test_look_that_finds_nothing_new_lists_one_directory(site: Site) -> None:
    watched = Watched(site)
    before = len(watched.mount.asked)
    watched.watch.refresh()
    assert watched.mount.asked[before:] == (("list_afresh", "trust"),), "it comes from every process, every second"


def test_revocation_stays_one_whatever_the_clock_does(site: Site) -> None:
    watched = Watched(site)
    now = watched.time.now().midpoint
    revoke_node(site.registers, site.root_key, "node2", now + SECOND)
    watched.watch.refresh()
    assert watched.watch.refuses(watched.key) is None
    watched.time.advance(2 * SECOND)
    assert "revoked" in str(watched.watch.refuses(watched.key))
    watched.time.midpoint_ns -= 10 * SECOND
    assert "revoked" in str(watched.watch.refuses(watched.key))

    def no_time() -> object:
        raise BadTime("no-time", "no bound")

    watched.time.now = no_time  # type: ignore[method-assign, assignment]
    assert "revoked" in str(watched.watch.refuses(watched.key))


def test_what_was_known_counts_on_while_the_mount_is_away(site: Site) -> None:
    watched = Watched(site)
    watched.mount.away = True
    watched.watch.refresh()
    assert watched.watch.failures == 1
    assert watched.watch.refuses(watched.key) is None
    watched.mount.away = False
    revoke_node(site.registers, site.root_key, "node2", 0)
    watched.watch.refresh()
    assert watched.watch.refuses(watched.key) is not None


def test_thread_looks_by_itself_and_sooner_when_asked(site: Site) -> None:
    watched = Watched(site)
    watched.watch.start()
    watched.watch.start()
    revoke_node(site.registers, site.root_key, "node2", 0)
    watched.watch.look()
    wait_until(SystemClock(), lambda: watched.watch.refuses(watched.key) is not None)
    watched.watch.close()
    watched.watch.close()


def test_look_for_which_there_was_no_thread_is_made_when_somebody_asks_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    maps = MapWatch(site.registers, site.registers.newest_map())
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", no_thread)
        maps.look()
    moving.begin(site.registers, site.root_key, lambda newest: moving.moved(newest, {0: "node2"}))
    maps.look()
    wait_until(SystemClock(), lambda: maps.newest.number == 2)
    maps.close()
