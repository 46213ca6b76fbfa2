"""Revoking from the screen: only with ``--write``, only with the name typed and a reason, and the ledger keeps that."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

import tui.cli
import tui.screens.cluster
import tui.widgets.dialogs
from appliance.cluster import Cluster
from appliance.demo.machines import DemoPlace, set_up_place
from appliance.formats.shardmap import ShardMap
from tenure.__main__ import main
from tests.support.cluster import as_daemon
from tests.support.mutants import plant
from tests.support.screens import HandFeed, RecordedSource, state
from timeagent.clock import SystemClock
from timeagent.errors import BadConfiguration, BadRequest
from timeagent.units import MS, SECOND
from tui.app import TopApp
from tui.cli import Revoker
from tui.feed import ask_once
from tui.sources.live import LiveSource
from tui.sources.mount import MountLocation
from tui.widgets.dialogs import RevokeScreen
from tui.widgets.lines import WordsLine

PATIENCE_NS = 60 * SECOND
ROUNDS_MAX = 6_000
DOMAIN = next(
    name
    for n in range(100)
    if ShardMap(number=1, cluster_id=bytes(16), owners=("node1", "node2")).shard_of(name := f"account/{n:02d}") == 0
)


class Heard:
    """A revoker that only listens."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str, str]] = []

    def revoke(self, domain: str, correlation_id: str, typed: str, reason: str) -> str:
        self.calls.append((domain, correlation_id, typed, reason))
        return f"{domain}: revoked"


def drive(course: Callable[[Pilot[None]], Awaitable[None]], heard: Heard | None) -> None:
    async def run() -> None:
        app = TopApp(HandFeed(RecordedSource(state())), revoke=None if heard is None else heard.revoke)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            await course(pilot)

    asyncio.run(run())


async def typed(pilot: Pilot[None], words: str) -> None:
    await pilot.press(*({" ": "space", "/": "slash"}.get(letter, letter) for letter in words), "enter")
    await pilot.pause()


async def heard_calls(pilot: Pilot[None], heard: Heard, count: int) -> None:
    for _ in range(ROUNDS_MAX):
        if len(heard.calls) == count:
            return
        await pilot.pause(0.01)
    raise AssertionError(f"{len(heard.calls)} of {count} were asked for")


def badge(pilot: Pilot[None]) -> str:
    return pilot.app.screen.query_one("#tabs", WordsLine).words.split()[-1]


def meanings(pilot: Pilot[None]) -> list[str]:
    assert isinstance(pilot.app, TopApp)
    return [what for _, what in list(pilot.app.keys())]


def test_nothing_can_be_revoked_without_write() -> None:
    async def course(pilot: Pilot[None]) -> None:
        for key in "12":
            await pilot.press(key, "R")
            await pilot.pause()
            assert badge(pilot) == "read-only"
            assert not isinstance(pilot.app.screen, RevokeScreen)
            assert "Revoke" not in meanings(pilot)

    drive(course, None)


@pytest.mark.parametrize("screen", ["1", "2"])
def test_lease_is_revoked_once_its_name_and_a_reason_are_typed(screen: str) -> None:
    heard = Heard()

    async def course(pilot: Pilot[None]) -> None:
        await pilot.press(screen)
        await pilot.pause()
        assert badge(pilot) == "WRITE"
        assert "Revoke" in meanings(pilot)
        await pilot.press("j", "R")
        await pilot.pause()
        assert pilot.app.screen.query_one("#which", WordsLine).words == "account/02"
        await typed(pilot, "account/01")
        assert "not its name" in pilot.app.screen.query_one("#dialog-keys", WordsLine).words
        pilot.app.screen.query_one("#typed", Input).value = ""
        await typed(pilot, "account/02")
        await typed(pilot, "  ")
        assert "say why" in pilot.app.screen.query_one("#dialog-keys", WordsLine).words
        await typed(pilot, "x" * 129)
        assert "at most 128 bytes" in pilot.app.screen.query_one("#dialog-keys", WordsLine).words
        pilot.app.screen.query_one("#reason", Input).value = ""
        assert not heard.calls
        await typed(pilot, "it hangs")
        await heard_calls(pilot, heard, 1)
        assert not isinstance(pilot.app.screen, RevokeScreen)

    drive(course, heard)
    assert heard.calls == [("account/02", "5f" * 16, "account/02", "it hangs")]


def test_dialog_that_is_left_changes_nothing() -> None:
    heard = Heard()

    async def course(pilot: Pilot[None]) -> None:
        await pilot.press("2", "R")
        await typed(pilot, "account/01")
        await pilot.press("escape")
        await pilot.pause()
        assert not isinstance(pilot.app.screen, RevokeScreen)

    drive(course, heard)
    assert not heard.calls


# -- a real shard ------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DemoPlace]:
    made = set_up_place(tmp_path / "demo", 2, SystemClock().realtime_ns(), random.Random(str(tmp_path)))
    yield made
    made.forget()


@contextmanager
def live(place: DemoPlace) -> Iterator[LiveSource]:
    source = LiveSource(MountLocation(place.mount, place.machines[0].directory, allow_root=True), SystemClock())
    ask_once(source, PATIENCE_NS)
    assert source.cluster is not None
    with source.cluster:
        yield source


def leases(place: DemoPlace) -> int:
    with live(place) as source:
        return len(source.state_at().leases)


def until_written(root: Path, words: bytes) -> None:
    for _ in range(ROUNDS_MAX):
        if any(words in ledger.read_bytes() for ledger in root.rglob("*.ledger")):
            return
        SystemClock().sleep(10 * MS)
    raise AssertionError(f"no ledger ever said {words!r}")


def test_real_lease_is_lost_to_its_holder_and_the_ledger_says_why(place: DemoPlace) -> None:
    with Cluster.open(place.mount, node_dir=place.machines[0].directory, allow_root=True) as cluster:
        assert as_daemon(cluster).routes.host.try_host(0, cluster.map)
        with cluster.session("counting") as session, live(place) as source:
            session.acquire(DOMAIN)
            ask_once(source, PATIENCE_NS)
            (row,) = source.state_at().leases
            revoker = Revoker(source, random.Random(1))
            with pytest.raises(BadRequest, match="nothing was revoked"):
                revoker.revoke(row.domain, row.correlation_id, "another", "it hangs")
            with pytest.raises(BadRequest, match="without a reason"):
                revoker.revoke(row.domain, row.correlation_id, row.domain, " ")
            assert "no such lease" in revoker.revoke(row.domain, "00" * 16, row.domain, "it hangs")
            assert leases(place) == 1
            assert "revoked" in revoker.revoke(row.domain, row.correlation_id, row.domain, "pulled from the screen")
            until_written(place.mount, b"pulled from the screen")
            assert leases(place) == 0


def test_screen_that_cannot_ask_shards_is_not_opened_for_writing(place: DemoPlace, tmp_path: Path) -> None:
    source = LiveSource(MountLocation(place.mount, None), SystemClock())
    (tmp_path / "demo/machines").rename(tmp_path / "elsewhere")
    ask_once(source, PATIENCE_NS)
    with pytest.raises(BadConfiguration, match="nothing can be revoked from here"):
        Revoker(source, random.Random(1)).check()


@pytest.mark.parametrize("words", [("--offline", "TREE"), ("TREE", "--once"), ("TREE", "--json")])
def test_write_is_for_the_live_screen(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *words, "--write"]) == 2
    assert "[cannot-write]" in capsys.readouterr().err


# -- mutants -----------------------------------------------------------------------------------------------------------


def test_revoking_without_write_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.screens.cluster, "LeaseScreen.check_action", "self.top.writable", "True")
    with pytest.raises(AssertionError):
        test_nothing_can_be_revoked_without_write()


def test_dialog_that_takes_any_name_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.widgets.dialogs, "RevokeScreen.on_input_submitted", "typed != self._row.domain", "not typed")
    with pytest.raises(AssertionError):
        test_lease_is_revoked_once_its_name_and_a_reason_are_typed("2")


def test_revoker_that_takes_any_name_is_caught(monkeypatch: pytest.MonkeyPatch, place: DemoPlace) -> None:
    plant(monkeypatch, tui.cli, "Revoker.revoke", "typed != domain", "False")
    with pytest.raises(pytest.fail.Exception):
        test_real_lease_is_lost_to_its_holder_and_the_ledger_says_why(place)
