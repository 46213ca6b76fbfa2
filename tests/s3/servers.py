"""S3 servers on this machine, installed below ``dist/s3`` when they are first wanted: one good, one that lies.

Each says why it is not there, for the test that is skipped by it.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PLACE = Path(__file__).parents[2] / "dist" / "s3"
MOTO = ("moto[s3]==5.2.5", "flask", "flask-cors")
"""Not its extra ``server``, which brings what only its other services need."""
S3RVER = "s3rver@3.7.1"
PATIENCE_S = 60
BUCKET = "bags"


@dataclass(frozen=True)
class Store:
    """A server that runs, with an empty bucket."""

    url: str
    key: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }


class NotInstalledError(Exception):
    """The server cannot be had here, and why."""


def installed(place: Path, *commands: list[str]) -> None:
    """Carry out the commands once; what is half done is begun anew."""
    if (place / ".installed").exists():
        return
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for command in commands:
        if shutil.which(command[0]) is None:
            raise NotInstalledError(f"{command[0]} is not on this machine")
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotInstalledError(f"{' '.join(command)}: {(done.stderr.strip() or done.stdout.strip())[-300:]}")
    (place / ".installed").touch()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def _serving(command: list[str], port: int, place: Path, key: str) -> Iterator[Store]:
    url = f"http://127.0.0.1:{port}"
    with (place / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT")):
                    break
            except (urllib.error.URLError, OSError) as problem:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NotInstalledError(f"{command[0]} does not answer: {problem}") from None
                time.sleep(0.1)
        yield Store(url, key, key)
    finally:
        process.kill()
        process.wait()


def install_moto() -> Path:
    """Install it, if it is not there yet; return where."""
    place = PLACE / "moto"
    installed(
        place,
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin/python"), "-m", "pip", "install", "-q", "--no-compile", *MOTO],
    )
    return place


@contextmanager
def moto() -> Iterator[Store]:
    """Run a store that keeps what is asked of it."""
    place = install_moto()
    port = free_port()
    with _serving([str(place / "bin/moto_server"), "-H", "127.0.0.1", "-p", str(port)], port, place, "key") as store:
        yield store


@contextmanager
def s3rver() -> Iterator[Store]:
    """Run a store that ignores the condition of a put."""
    place = PLACE / "s3rver"
    installed(place, ["npm", "install", "--silent", S3RVER])
    port = free_port()
    words = ["node_modules/.bin/s3rver", "-d", "data", "-a", "127.0.0.1", "-p", str(port)]
    with _serving(words, port, place, "S3RVER") as store:
        yield store


if __name__ == "__main__":  # before tests run: several processes of them would install it at once
    with suppress(NotInstalledError):
        install_moto()
