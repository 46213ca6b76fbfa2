"""The read-only door: small answers to small questions, and a visitor who behaves badly costs nobody else anything."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from http.client import HTTPConnection
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from appliance.admin.moving import begin, ended, resharded
from appliance.daemon import http
from appliance.daemon import status as observed_module
from appliance.daemon.daemon import Node
from appliance.daemon.http import HttpAnswer, HttpServer
from appliance.daemon.status import Observed
from appliance.doctor.health import TMPFS_BYTES_MIN, Room, not_well
from appliance.formats.framing import Kind
from appliance.formats.names import Address
from appliance.formats.shardmap import ShardMap
from appliance.lease import listeners
from appliance.node.runtime import HTTP_SOCKET
from tests.support.cluster import Site, sites, wait_until
from tests.support.ports import free_port
from timeagent.clock import SystemClock
from timeagent.errors import BadRequest, BadTime, Environment, ShardUnavailable, TryAgain
from timeagent.units import MS, SECOND, TimeInterval

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CLOCK = SystemClock()


def answer(path: str, query: Mapping[str, str]) -> HttpAnswer | None:
    match path:
        case "/hello":
            return HttpAnswer(200, f"hello {dict(query)}\n".encode())
        case "/away":
            raise ShardUnavailable("away", "nobody is there")
        case "/bad":
            raise BadRequest("bad", "this cannot be asked")
        case "/bug":
            raise RuntimeError("planted")
    return None


@pytest.fixture
def door() -> Iterator[HttpServer]:
    each = HttpServer(Address("127.0.0.1", 0), answer, CLOCK)
    each.start()
    yield each
    each.close()


def connected(door: HttpServer) -> socket.socket:
    place = door.place
    assert isinstance(place, Address)
    return socket.create_connection((place.host, place.port), timeout=20)


def exchanged(visitor: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    with visitor:
        while part := visitor.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    return int(first.split(" ")[1]), dict(line.split(": ", 1) for line in rest), body


def asked(door: HttpServer, request: bytes) -> tuple[int, dict[str, str], bytes]:
    visitor = connected(door)
    visitor.sendall(request)
    return exchanged(visitor)


def test_get_has_an_answer_with_its_length_and_head_the_same_without_the_body(door: HttpServer) -> None:
    status, headers, body = asked(door, b"GET /hello?a=1&b= HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (status, body) == (200, b"hello {'a': '1', 'b': ''}\n")
    assert headers["Content-Length"] == str(len(body))
    assert headers["Connection"] == "close"
    assert asked(door, b"HEAD /hello?a=1&b= HTTP/1.0\r\n\r\n") == (200, headers, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
def test_nothing_but_get_and_head_is_allowed(door: HttpServer, method: str) -> None:
    status, headers, _ = asked(door, f"{method} /hello HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert status == 405
    assert headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", 404),
        (b"GET /away HTTP/1.1\r\n\r\n", 503),
        (b"GET /bad HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/2.0\r\n\r\n", 400),
        (b"GET http://x/hello HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello?a&b HTTP/1.1\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET /hello HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 431),
        (b"GET /hello HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(65)) + b"\r\n", 431),
        (b"GET /hello HTTP/1.1\r\nh: " + b"x" * http.REQUEST_BYTES_MAX + b"\r\n\r\n", 431),
        (b"x" * (http.REQUEST_BYTES_MAX + 1), 431),
        (b"\x16\x03\x01\r\n\r\n", 400),
    ],
)
def test_bad_request_is_refused_by_its_status(door: HttpServer, request_: bytes, status: int) -> None:
    assert asked(door, request_)[0] == status


def test_page_that_breaks_is_said_to_and_the_door_stays_open(
    door: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert asked(door, b"GET /bug HTTP/1.1\r\n\r\n")[0] == 500
    assert "page-failed path=/bug" in caplog.text
    assert asked(door, b"GET /hello HTTP/1.1\r\n\r\n")[0] == 200


# A page in a browser of this machine may have a name that its owner makes point to 127.0.0.1.
def test_loopback_door_answers_under_this_machines_names_only(door: HttpServer) -> None:
    assert isinstance(door.place, Address)
    for host in ("localhost", "127.0.0.1", f"localhost:{door.place.port}", "[::1]:80"):
        assert asked(door, f"GET /hello HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())[0] == 200
    assert asked(door, b"GET /hello HTTP/1.1\r\nHost: evil.example\r\n\r\n")[0] == 421
    assert asked(door, b"GET /hello HTTP/1.1\r\nHost: evil.example:80\r\n\r\n")[0] == 421


def test_who_asks_too_slowly_is_told_so(door: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "STAY_NS", SECOND // 5)
    slow = [connected(door) for _ in range(2)]
    for each in slow:
        each.sendall(b"GET /hel")
    assert [exchanged(each)[0] for each in slow] == [408, 408]
    assert asked(door, b"GET /hello HTTP/1.1\r\n\r\n")[0] == 200


# Who sees 503 there restarts the node: visitors must not be able to do that.
def test_health_is_answered_whatever_visitors_do(monkeypatch: pytest.MonkeyPatch) -> None:
    hold, held = Event(), Event()

    def page(path: str, _: Mapping[str, str]) -> HttpAnswer:
        if path == "/slow":
            held.set()
            hold.wait(60)
        return HttpAnswer(200, b"made\n")

    monkeypatch.setattr(http, "PAGES_MAX", 1)
    door = HttpServer(Address("127.0.0.1", 0), page, CLOCK, at_once={"/healthz"})
    door.start()
    reader = connected(door)
    reader.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
    assert held.wait(60)
    assert asked(door, b"GET /other HTTP/1.1\r\n\r\n")[0] == 503
    slow = [connected(door) for _ in range(2 * listeners.PLACES)]
    for each in slow[::2]:
        each.sendall(b"GET /hea")
    assert asked(door, b"GET /healthz HTTP/1.1\r\n\r\n")[0] == 200
    hold.set()
    assert exchanged(reader)[0] == 200
    for each in slow:
        each.close()
    wait_until(CLOCK, lambda: door._room._value == 1 and door.visitors == 0)
    door.close()


def test_visitor_who_leaves_is_forgotten(door: HttpServer) -> None:
    for _ in range(50):
        connected(door).close()
    wait_until(CLOCK, lambda: door.visitors == 0)
    assert asked(door, b"GET /hello HTTP/1.1\r\n\r\n")[0] == 200


def test_unix_socket_is_for_its_user_and_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(place))
    door = HttpServer(place, answer, CLOCK)
    door.start()
    assert place.stat().st_mode & 0o777 == 0o600
    visitor = socket.socket(socket.AF_UNIX)
    visitor.connect(str(place))
    visitor.sendall(b"GET /hello HTTP/1.1\r\nHost: anything\r\n\r\n")
    assert exchanged(visitor)[0] == 200
    door.close()
    door.close()
    assert not place.exists()


def test_place_that_is_taken_is_an_error_with_the_way_out(door: HttpServer) -> None:
    with pytest.raises(Environment) as refused:
        HttpServer(door.place, answer, CLOCK)
    assert refused.value.code == "no-http"
    assert "http" in refused.value.hint


# -- what a node shows -------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    yield from sites(tmp_path, "node1", "node2")


def shown(place: Path, path: str) -> tuple[int, bytes]:
    visitor = socket.socket(socket.AF_UNIX)
    visitor.settimeout(20)
    visitor.connect(str(place))
    visitor.sendall(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    status, _, body = exchanged(visitor)
    return status, body


def test_shard_that_the_map_has_no_more_is_no_shard_that_does_not_run() -> None:
    newest = ShardMap(number=2, cluster_id=bytes(16), owners=("node1", "node2"), chains=(2, 1))
    assert [observed_module._shard({"shard": str(shard)}, newest) for shard in (1, 1024)] == [1, 1024]
    with pytest.raises(BadRequest, match="map 2 has no shard 0; it has 1024, 1"):
        observed_module._shard({"shard": "0"}, newest)


# All that a page looked at is under session leases that are over: it shows none, and others follow.
def test_page_without_leases_is_not_asked_for_again_and_again() -> None:
    observed: Any = Observed.__new__(Observed)
    pages = {"": (0, "b"), "b": (2, "d"), "d": (0, "e"), "e": (1, "f")}

    def page(_: int, after: str, leases_max: int) -> object:
        assert leases_max == 3 - (after > "b") * 2
        shows, last = pages.pop(after)
        return SimpleNamespace(leases=[last] * shows, more=bool(pages), after_domain=last)

    observed.page = page
    assert observed.leases(0, "", 3) == (["d", "d", "f"], False)


def test_node_shows_its_leases_shards_and_numbers(site: Site) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        place = node.web_address
        assert isinstance(place, type(site.root))
        domains = [name for n in range(999) if cluster.map.shard_of(name := f"d{n:03d}") == 0][:300]
        with cluster.session("shown") as session, session.acquire(*domains):
            assert shown(place, "/healthz") == (200, b"ok\n")
            assert shown(place, "/readyz") == (200, b"ok\n")
            first = json.loads(shown(place, "/v1/leases?shard=0000&limit=280")[1])["shards"][0]
            assert [each["domain"] for each in first["leases"]] == domains[:280]
            assert first["more"] is True
            rest = json.loads(shown(place, f"/v1/leases?shard=0&after={domains[279]}")[1])["shards"][0]
            assert [each["domain"] for each in rest["leases"]] == domains[280:]
            assert rest["more"] is False
            shards = json.loads(shown(place, "/v1/shards")[1])
            assert shards["schema"] == "tenure.shards"
            assert [(each["node"], each["here"], each["answers"]) for each in shards["shards"]] == [
                ("node1", True, True),
                ("node2", False, False),
            ]
            assert shards["shards"][0]["leases"] == 300
            status, metrics = shown(place, "/metrics")
            assert status == 200
            for line in (
                b'tenure_shard_leases{shard="0"} 300.0',
                b'tenure_shard_up{shard="0"} 1.0',
                b"tenure_node_ready 1.0",
                b'tenure_lease_requests_waiting{shard="0"} 0.0',
                b'tenure_http_answers_total{status="200"}',
                b"tenure_sub_leases_total 0.0",
                b"tenure_sub_lease_grants_total 0.0",
            ):
                assert line in metrics
            with cluster.session() as rival, pytest.raises(TryAgain):
                rival.acquire(domains[0], timeout_s=0.2)
            in_vain = f'tenure_lease_queue_waits_total{{outcome="in-vain",part="{domains[0]}",shard="0"}} 1.0'.encode()
            wait_until(CLOCK, lambda: in_vain in shown(place, "/metrics")[1])
        for query in (
            "limit=10001",
            "limit=-1",
            "limit=x",
            "limit=00000000099999999",
            "shard=2",
            "shard=9999999999999",
            "after=a&shard=",
        ):
            assert shown(place, f"/v1/leases?{query}")[0] == 400, query
    node.close()


def test_node_says_how_it_is_also_while_no_page_can_be_made(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PAGES_MAX", 0)
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        place = node.web_address
        assert isinstance(place, type(site.root))
        assert shown(place, "/metrics")[0] == 503
        assert [shown(place, path) for path in ("/healthz", "/readyz")] == [(200, b"ok\n")] * 2
    node.close()


def test_node_whose_shard_is_gone_is_neither_healthy_nor_ready(site: Site) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        place = node.web_address
        assert isinstance(place, type(site.root))
        hosted = cluster.routes.host.hosted(0)
        assert hosted is not None
        hosted.server.stop()
        wait_until(CLOCK, lambda: hosted.ended() is not None)
        status, why = shown(place, "/healthz")
        assert status == 503
        assert why.startswith(
            b"FAIL  shard 0: has ended: its server has ended; the log says why\n  way out: start the daemon"
        )
        told = json.loads(shown(place, "/v1/checks")[1])
        assert ("shard 0", "FAIL") in [(each["check"], each["verdict"]) for each in told["checks"]]
        assert b'tenure_check{check="shard 0",verdict="FAIL"} 1.0' in shown(place, "/metrics")[1]
        assert shown(place, "/readyz")[0] == 503
        assert b'tenure_shard_up{shard="0"} 0.0' in shown(place, "/metrics")[1]
        assert b"tenure_node_healthy 0.0" in shown(place, "/metrics")[1]
        assert shown(place, "/v1/leases")[0] == 503
    node.close()


# Those of the others are what an operator looks for just then.
def test_leases_of_the_shards_that_answer_are_shown(site: Site) -> None:
    both = begin(site.registers, site.root_key, lambda before: resharded(before, 2, ["node1"]))
    site.registers.publish(Kind.MAP, ended(both), site.root_key)
    with site.open() as cluster:
        node = Node(cluster)
        assert len(node.start()) == 2
        place = node.web_address
        assert isinstance(place, type(site.root))
        gone, stays = cluster.map.shards
        hosted = cluster.routes.host.hosted(gone)
        assert hosted is not None
        hosted.server.stop()
        wait_until(CLOCK, lambda: hosted.ended() is not None)
        status, told = shown(place, "/v1/leases")
        assert (status, [(each["shard"], each["answers"]) for each in json.loads(told)["shards"]]) == (
            200,
            [(gone, False), (stays, True)],
        )
        assert shown(place, f"/v1/leases?shard={gone}")[0] == 503
    node.close()


def test_node_without_usable_time_says_why(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> TimeInterval:
        raise BadTime("page-stale", "the time page is 7 s old; 250 ms are allowed", hint="does the time agent run?")

    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        observed = node._observed
        with monkeypatch.context() as planted:
            planted.setattr(cluster.time, "now", refuse)
            (wrong,) = not_well(observed.checks())
            assert wrong.words == "clock: no bound: the time page is 7 s old; 250 ms are allowed"
            assert "tenure time sources" in wrong.way_out
            planted.setattr(cluster.time, "now", lambda: TimeInterval.around(SystemClock().realtime_ns(), 30 * MS))
            (wrong,) = not_well(observed.checks())
            assert wrong.words == "clock: known to 30 ms (as this node knows it); the policy allows 20 ms"
    node.close()


def test_loop_that_stands_still_is_ill_and_a_stopping_node_is_not_ready(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        observed = node._observed
        monkeypatch.setattr("appliance.daemon.status.STILL_NS", -SECOND)
        assert [each.words[:21] for each in not_well(observed.running())] == ["shard 0: stands still"]
        monkeypatch.undo()
        assert not_well(observed.checks()) == []
        node.stopping(drains=False)
        assert [each.words for each in not_well(observed.checks())] == ["node: it is stopping"]
        assert not_well(observed.running()) == []
    node.close()


def test_mount_that_is_full_or_does_not_answer_is_no_place_to_ask(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        place, observed = node.web_address, node._observed
        assert isinstance(place, type(site.root))
        monkeypatch.setattr(observed_module, "room_of", lambda _: Room(0, 0))
        observed.see_mount(site.root)
        status, why = shown(place, "/readyz")
        assert status == 503
        assert b"FAIL  room: 0.0 GiB left\n  way out: free space" in why
        assert b"FAIL  names: 0 names (inodes) left\n  way out: " in why
        assert b'tenure_check{check="room",verdict="FAIL"} 1.0' in shown(place, "/metrics")[1]
        assert b"tenure_node_ready 0.0" in shown(place, "/metrics")[1]
        monkeypatch.undo()
        observed.see_mount(site.root)
        assert shown(place, "/readyz") == (200, b"ok\n")
        monkeypatch.setattr(observed_module, "STILL_NS", -SECOND)
        assert b"FAIL  mount: no answer from the mount" in shown(place, "/readyz")[1]
    node.close()


# The daemon's main thread hangs with it, and never comes to ask for its room.
def test_node_whose_mount_has_not_answered_since_it_began_is_no_place_to_ask(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        place = node.web_address
        assert isinstance(place, type(site.root))
        assert shown(place, "/readyz") == (200, b"ok\n")
        monkeypatch.setattr(observed_module, "STILL_NS", SECOND // 2)
        wait_until(CLOCK, lambda: shown(place, "/readyz")[0] == 503)
        assert b"mount" in shown(place, "/readyz")[1]
        assert shown(place, "/healthz") == (200, b"ok\n")
        node.stop()
    node.close()


def test_door_on_tmpfs_is_there_wherever_else_the_settings_say(site: Site) -> None:
    with site.open() as cluster:
        runtime = cluster.routes.runtime
        cluster.settings = replace(cluster.settings, http=Address("127.0.0.1", 0))
        node = Node(cluster)
        node.start()
        elsewhere = node.web_address
        assert isinstance(elsewhere, Address)
        connection = HTTPConnection(elsewhere.host, elsewhere.port)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        connection.close()
        assert shown(runtime / HTTP_SOCKET, "/readyz") == (200, b"ok\n")
        assert b'tenure_http_answers_total{status="200"} 2.0' in shown(runtime / HTTP_SOCKET, "/metrics")[1]
    node.close()


def test_every_metric_is_in_the_operators_table(site: Site, repository: Path) -> None:
    with site.open() as cluster:
        cluster.settings = replace(cluster.settings, listen=Address("127.0.0.1", free_port()))
        node = Node(cluster)
        node.start()
        place = node.web_address
        assert isinstance(place, type(site.root))
        text = shown(place, "/metrics")[1].decode()
    node.close()
    names = {line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    table = (repository / "docs/operators.md").read_text(encoding="utf-8")
    assert {name for name in names if f"`{name}`" not in table} == set()


# Not with a mount of its own: any user can run this.
def test_full_tmpfs_is_told_by_readiness_and_metrics(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.open() as cluster:
        node = Node(cluster)
        node.start()
        place = node.web_address
        assert isinstance(place, type(site.root))
        monkeypatch.setattr("appliance.daemon.status.room_of", lambda _: Room(TMPFS_BYTES_MIN, None))
        assert shown(place, "/readyz") == (200, b"ok\n")
        monkeypatch.setattr("appliance.daemon.status.room_of", lambda _: Room(TMPFS_BYTES_MIN - 1, None))
        status, why = shown(place, "/readyz")
        assert (status, b"is full" in why) == (503, True)
        assert b"tenure_tmpfs_free_bytes 65535.0" in shown(place, "/metrics")[1]
    node.close()
