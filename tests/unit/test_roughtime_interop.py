"""Other implementations of Roughtime, both ways, over loopback. A peer that is not installed is skipped by its name.

``roughly``'s own client and server are always there. Others are programs on PATH: ``roughtimed`` (C) with its
``roughtime-keytool``, and ``go-roughtime`` / ``go-roughtime-client`` (Go: what tannerryan/roughtime builds).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from roughly import client as roughly_client
from roughly import server as roughly_server
from roughly.shared import partial_sha512

from tests.support.ports import free_port
from tests.support.roughtime import ask_twice, signer
from timeagent.clock import SystemClock
from timeagent.roughtime.server import Delegations, RoughServer, rough_door
from timeagent.roughtime.wire import VERSIONS
from timeagent.units import MS, SECOND, TimeInterval

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

LONG_TERM = signer("interop")
CLOCK = SystemClock()


def installed(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@contextlib.contextmanager
def running(*command: str | Path, cwd: Path) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait(30)


# -- their server, our client ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def their_server(versions: Sequence[int]) -> Iterator[tuple[bytes, int]]:
    """The library's own server, as it comes, in a thread with its loop."""
    theirs = roughly_server.Server.create(b"\7" * 32, radius=3, versions=versions)
    port, loop = free_port(), asyncio.new_event_loop()
    started = threading.Event()

    async def serve() -> None:
        transport = await roughly_server._start_server(lambda: roughly_server.UDPHandler(theirs), "127.0.0.1", port)
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            transport.close()

    task = loop.create_task(serve())

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield roughly_server.public_key_bytes(theirs.long_term_key), port
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_client_understands_the_servers_of_roughly(version: int) -> None:
    with their_server([version]) as (public, port):
        ask_twice(public, port)


# roughtimed listens on every address of the machine, so it runs in a network of its own, and so does who asks it.
def test_our_client_understands_roughtimed(tmp_path: Path, repository: Path) -> None:
    daemon, tool, unshare = installed("roughtimed"), installed("roughtime-keytool"), installed("unshare")
    alone = [unshare, "--net", "sh", "-c", "ip link set lo up"]
    if subprocess.run(alone, capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("this user may not make a network of its own for roughtimed")
    made = subprocess.run([tool, "key"], capture_output=True, text=True, check=True, timeout=60).stdout.split()
    private, public = made[2], made[5]
    first, last = (f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}" for days in (-1, 2))
    words = f"{private}\n{first}\n{last}\n"
    told = subprocess.run([tool, "dele"], input=words, capture_output=True, text=True, check=True, timeout=60).stdout
    online, certificate = (line.split(": ")[-1].strip() for line in told.splitlines()[-2:])
    config = tmp_path / "roughtimed.conf"
    config.write_text(f"cert {certificate}\npriv {online}\npubl {public}\nport 5319\n")
    config.chmod(0o600)
    asking = (
        "import base64, pathlib, sys; import tests.unit.test_roughtime_interop as interop\n"
        "with interop.running(sys.argv[1], '-f', sys.argv[2], cwd=pathlib.Path(sys.argv[3])):\n"
        "    interop.ask_twice(base64.b64decode(sys.argv[4]), 5319)"
    )
    command = 'ip link set lo up && exec "$@"'
    subprocess.run(
        [unshare, "--net", "sh", "-c", command, "sh", sys.executable, "-c", asking, daemon, config, tmp_path, public],
        cwd=repository,
        check=True,
        timeout=100,
    )


def test_our_client_understands_the_go_server(tmp_path: Path) -> None:
    daemon = installed("go-roughtime")
    made = subprocess.run(
        [daemon, "-keygen", tmp_path / "seed"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    public = base64.b64decode(made[made.index("(base64):") :].split()[1])
    port = free_port()
    with running(daemon, "-port", str(port), "-root-key-file", tmp_path / "seed", "-grease-rate", "0", cwd=tmp_path):
        kept = ask_twice(public, port)
    assert len(kept.lines) == 2


# -- our server, their client ------------------------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    """The port of our server, which says this machine's time plus or minus 5 ms."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind(("127.0.0.1", 0))
    now = lambda: TimeInterval.around(CLOCK.realtime_ns(), 5 * MS)  # noqa: E731 - a port of one line
    door = rough_door(bound, RoughServer(now, Delegations([], LONG_TERM)))
    stopped = threading.Event()
    thread = threading.Thread(target=door.serve, args=(stopped.is_set,), daemon=True)
    thread.start()
    yield bound.getsockname()[1]
    stopped.set()
    door.wake()
    thread.join(30)
    door.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_client_of_roughly_understands_our_server(port: int, version: int) -> None:
    async def ask() -> roughly_client.VerifiableResponse:
        async with asyncio.timeout(30):
            return await roughly_client.send_request("127.0.0.1", port, LONG_TERM.public, versions=[version])

    answer = asyncio.run(ask())
    assert answer.version == version
    said = answer.signed_response
    assert abs(said.midpoint * SECOND - CLOCK.realtime_ns()) < (said.radius + 30) * SECOND
    assert said.radius == 1
    assert partial_sha512(b"\xff" + LONG_TERM.public) in answer.request


def test_go_client_understands_our_server(port: int, tmp_path: Path) -> None:
    client = installed("go-roughtime-client")
    (tmp_path / "one.json").write_text(
        json.dumps(
            {
                "servers": [
                    {
                        "name": "tenure",
                        "version": "IETF-Roughtime",
                        "publicKeyType": "ed25519",
                        "publicKey": base64.b64encode(LONG_TERM.public).decode(),
                        "addresses": [{"protocol": "udp", "address": f"127.0.0.1:{port}"}],
                    }
                ]
            }
        )
    )
    told = subprocess.run(
        [client, "-addr", f"127.0.0.1:{port}", "-pubkey", base64.b64encode(LONG_TERM.public).decode()],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "127.0.0.1" in told.stdout
