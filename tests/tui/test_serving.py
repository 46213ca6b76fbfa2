"""``top --serve``: pages on loopback that show the screens, to pages of this machine and to nobody else."""

import asyncio
import http.client
import importlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tui.cli
from tenure.__main__ import main
from tests.support.mutants import plant
from tests.support.ports import free_port

PATIENCE_S = 120


@pytest.fixture(scope="module")
def aiohttp() -> Any:  # noqa: ANN401 - an extra
    pytest.importorskip("textual_serve", reason="textual-serve is not installed: NOTHING is known about top --serve")
    return importlib.import_module("aiohttp")


@pytest.fixture(scope="module")
def tree(repository: Path) -> Path:
    return min((repository / "tests/golden/trees").glob("*/tree"))


def answer(port: int, **headers: str) -> tuple[int, str]:
    """Ask for the page, as soon as somebody listens."""
    end = time.monotonic() + PATIENCE_S
    while True:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            asking.request("GET", "/", headers=headers)
            said = asking.getresponse()
            return said.status, said.read().decode()
        except ConnectionRefusedError:
            assert time.monotonic() < end, "nobody listens"
            time.sleep(0.05)
        finally:
            asking.close()


@contextmanager
def served(*words: str) -> Iterator[int]:
    port = free_port()
    program = subprocess.Popen(
        [sys.executable, "-m", "tenure", "top", *words, "--serve", str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield port
        program.send_signal(signal.SIGINT)
        out, _ = program.communicate(timeout=PATIENCE_S)
        assert f"http://127.0.0.1:{port} until Ctrl-C" in out
        assert program.returncode == 0
    finally:
        program.kill()
        program.wait()


def listening(port: int) -> set[str]:
    """The addresses, in hex, on which somebody listens at a port."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return {each[1].split(":")[0] for each in lines if each[1].endswith(f":{port:04X}") and each[3] == "0A"}


def test_page_shows_the_screens_on_loopback_alone(aiohttp: Any, tree: Path) -> None:  # noqa: ANN401
    with served("--offline", str(tree)) as port:
        status, page = answer(port)
        assert status == 200
        assert "tenure top" in page
        assert listening(port) == {"0100007F"}
        assert answer(port, Host="elsewhere.example")[0] == 403
        assert answer(port, Origin="http://elsewhere.example")[0] == 403
        assert answer(port, Origin=f"http://localhost:{port}")[0] == 200
        assert "[1 Overview]" in asyncio.run(looked(aiohttp, port))


async def looked(aiohttp: Any, port: int) -> str:  # noqa: ANN401
    """What the program behind the page writes, until the overview is there."""
    seen = b""
    place = f"ws://127.0.0.1:{port}/ws?width=100&height=30"
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session, session.ws_connect(place) as page:
        while b"[1 Overview]" not in seen:
            message = await page.receive()
            assert message.type in (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT), message
            seen += message.data if isinstance(message.data, bytes) else message.data.encode()
    return seen.decode("utf-8", "replace")


def test_without_the_library_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tree: Path
) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    assert main(["top", "--offline", str(tree), "--serve"]) == 78
    assert "tenure[serve]" in capsys.readouterr().err


def test_write_is_not_served(capsys: pytest.CaptureFixture[str], tree: Path) -> None:
    assert main(["top", str(tree), "--serve", "--write"]) == 2
    assert "[cannot-write]" in capsys.readouterr().err


@pytest.mark.parametrize("port", [-1, 0, 65_536])
def test_what_is_no_port_is_refused_by_name(capsys: pytest.CaptureFixture[str], tree: Path, port: int) -> None:
    assert main(["top", "--offline", str(tree), f"--serve={port}"]) == 2
    assert f"{port} is no port" in capsys.readouterr().err


def test_port_of_another_is_named_with_the_way_out(aiohttp: Any, tree: Path) -> None:  # noqa: ANN401
    del aiohttp
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "tenure", "top", "--offline", str(tree), "--serve", str(port)]
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 74
    assert f"another port than {port}" in done.stderr


def test_page_of_another_site_that_is_let_in_is_caught(
    aiohttp: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def status(origin: str) -> int:
        guard = tui.cli._only_our_pages(aiohttp.web, 80)
        request = aiohttp.test_utils.make_mocked_request("GET", "/", headers={"Host": "127.0.0.1:80", "Origin": origin})

        async def handler(_request: object) -> Any:  # noqa: ANN401
            return aiohttp.web.Response(status=200)

        found: int = (await guard(request, handler)).status
        return found

    importlib.import_module("aiohttp.test_utils")
    assert asyncio.run(status("http://elsewhere.example")) == 403
    plant(monkeypatch, tui.cli, "_only_our_pages", "origin.removeprefix('http://') not in hosts", "not hosts")
    assert asyncio.run(status("http://elsewhere.example")) == 200
