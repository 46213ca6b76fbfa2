"""The services that one would use instead, started on loopback with their data on tmpfs. Nothing is installed.

Taken from PATH, else unpacked from Debian packages into a cache outside the repository (``TENURE_BENCH_CACHE``, or
``~/.cache/tenure-bench``); Python clients come from PyPI into a virtual environment there. What cannot be had is
``Absent`` with its reason, and every line that needs it is skipped by that name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES: Final = {
    "etcd": ("etcd-server",),
    "redis": (
        "redis-server",
        "redis-tools",
        "libjemalloc2",
        "liblua5.1-0",
        "liblzf1",
        "lua-bitop",
        "lua-cjson",
    ),
    "zookeeper": (
        "libcommons-cli-java",
        "libdropwizard-metrics-java",
        "liblog4j1.2-java",
        "liblogback-java",
        "libnetty-java",
        "libslf4j-java",
        "libsnappy-java",
        "libsnappy-jni",
        "libzookeeper-java",
    ),
}
CLIENTS: Final = ("redis", "hiredis", "kazoo")
_DOWNLOAD_S: Final = 25
"""What is not there after that is absent in this run: a short one has to end in under 50 s."""

_STARTED_S: Final = 30
_QUICK: Final = ("-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=5", "-o", "Acquire::https::Timeout=5")


class Absent(Exception):
    """A peer that cannot be had, and why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that runs: where it is, by TCP or by a socket's path, and its process."""

    name: str
    version: str
    target: str
    pid: int


def cache() -> Path:
    """Return the directory where what was fetched stays."""
    named = os.environ.get("TENURE_BENCH_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "tenure-bench"


def _run(words: list[str], why: str, directory: Path | None = None) -> str:
    try:
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Absent(f"{why}: {problem}") from None
    if done.returncode:
        raise Absent(f"{why}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}")
    return done.stdout


def unpacked(name: str, command: str | None = None) -> Path:
    """Return the root under which a peer's packages lie; ``/`` where its command is installed. Raises Absent."""
    if command is not None and shutil.which(command):
        return Path("/")
    root = cache() / "root"
    done = cache() / f"unpacked-{name}"
    if not done.exists():
        packages = cache() / "packages" / name
        packages.mkdir(parents=True, exist_ok=True)
        _run(["apt-get", *_QUICK, "download", *PACKAGES[name]], "its Debian packages cannot be had", packages)
        for each in packages.glob("*.deb"):
            _run(["dpkg", "-x", str(each), str(root)], f"{each.name} cannot be unpacked")
        done.touch()
    return root


def clients_python() -> Path:
    """Return the interpreter that has the Python clients of the peers. Raises Absent."""
    place = cache() / f"venv-{sys.version_info.major}.{sys.version_info.minor}"
    python = place / "bin" / "python"
    if not (place / "complete").exists():
        _run([sys.executable, "-m", "venv", "--clear", str(place)], "no virtual environment can be made")
        quick = ["--disable-pip-version-check", "-q", "--retries", "0", "--timeout", "10"]
        _run([str(python), "-m", "pip", "install", *quick, *CLIENTS], "its client cannot be had from PyPI")
        (place / "complete").touch()
    return python


@contextlib.contextmanager
def _server(name: str, words: list[str], port: int, directory: Path, root: Path) -> Iterator[int]:
    libraries = [root / "usr/lib/jni", root / "usr/lib" / f"{os.uname().machine}-linux-gnu"]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))} if root != Path("/") else None
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(words, cwd=directory, env=environment, stdout=log, stderr=log)
    try:
        until = time.monotonic() + _STARTED_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > until:
                said = (directory / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
                raise Absent(f"{name} does not start: {said}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.kill()  # it has nothing to keep
        process.wait()


@contextlib.contextmanager
def redis(directory: Path) -> Iterator[Peer]:
    """Run Redis: nothing persists. Raises Absent."""
    root = unpacked("redis", "redis-server")
    command = shutil.which("redis-server") or str(root / "usr/bin/redis-server")
    port, path = free_port(), directory / "redis.sock"
    words = [command, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(path), "--save", ""]
    with _server("redis", [*words, "--appendonly", "no"], port, directory, root) as pid:
        version = (
            next(directory.glob("redis.log")).read_text(errors="replace").partition("version=")[2].partition(",")[0]
        )
        yield Peer("redis", version, str(path), pid)


@contextlib.contextmanager
def etcd(directory: Path) -> Iterator[Peer]:
    """Run one etcd, its log of changes on tmpfs. Raises Absent."""
    root = unpacked("etcd", "etcd")
    command = shutil.which("etcd") or str(root / "usr/bin/etcd")
    port, beside = free_port(), free_port()
    mine, others = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{beside}"
    words = [command, "--data-dir", str(directory / "etcd"), "--listen-client-urls", mine]
    words += ["--advertise-client-urls", mine, "--listen-peer-urls", others, "--initial-advertise-peer-urls", others]
    words += ["--initial-cluster", f"default={others}", "--log-level", "error"]
    version = _run([command, "--version"], "etcd does not run").split()[2]
    with _server("etcd", words, port, directory, root) as pid:
        yield Peer("etcd", version, f"127.0.0.1:{port}", pid)


@contextlib.contextmanager
def zookeeper(directory: Path) -> Iterator[Peer]:
    """Run one ZooKeeper without fsync. Raises Absent."""
    java = shutil.which("java")
    if java is None:
        raise Absent("no java on PATH")
    root = unpacked("zookeeper")
    port = free_port()
    settings = directory / "zoo.cfg"
    lines = ["tickTime=2000", f"dataDir={directory / 'zookeeper'}", f"clientPort={port}", "maxClientCnxns=0"]
    lines += ["clientPortAddress=127.0.0.1", "admin.enableServer=false"]
    settings.write_text("\n".join(lines) + "\n")
    (found,) = (root / "usr/share/java").glob("zookeeper-3*.jar")
    jars = ":".join(str(each) for each in sorted((root / "usr/share/java").glob("*.jar")))
    words = [java, "-Xmx1g", "-Dzookeeper.forceSync=no", "-cp", jars]
    words += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(settings)]
    with _server("zookeeper", words, port, directory, root) as pid:
        yield Peer("zookeeper", found.stem.partition("-")[2], f"127.0.0.1:{port}", pid)
