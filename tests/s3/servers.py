"""S3 servers on this machine, installed below ``dist/s3`` when they are first wanted: one good, one that lies, Azure's.

Each says why it is not there, for the test that is skipped by it.
"""

from __future__ import annotations

import base64
import hmac
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PLACE = Path(__file__).parents[2] / "dist" / "s3"
MOTO = ("moto[s3]==5.2.5", "flask", "flask-cors")
"""Not its extra ``server``, which brings what only its other services need."""
ONE_AT_A_TIME = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def one_at_a_time(environ, start_response):
    with lock:
        return list(app(environ, start_response))

run_simple("127.0.0.1", int(sys.argv[1]), one_at_a_time, threaded=True)
"""
"""Its own command answers in threads, and looks for a name before it puts: on a busy machine two puts of one win."""
S3RVER = "s3rver@3.7.1"
AZURITE = "azurite@3"
PATIENCE_S = 60
BUCKET = "bags"


@dataclass(frozen=True)
class Store:
    """A server that runs, with an empty bucket; what a process has in its environment that uses it."""

    environment: dict[str, str]


def s3_store(url: str, key: str, secret: str) -> Store:
    """Return a store that speaks S3."""
    return Store(
        {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
        }
    )


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


@contextmanager
def _serving(command: list[str], place: Path, request: Callable[[], urllib.request.Request]) -> Iterator[None]:
    """Run a server until it has done a request, which makes its bucket; and until the end."""
    with (place / "server.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.urlopen(request()).close()
                break
            except (urllib.error.URLError, OSError) as problem:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NotInstalledError(f"{command[0]} does not answer: {problem}") from None
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def _bucket_at(url: str) -> Callable[[], urllib.request.Request]:
    return lambda: urllib.request.Request(f"{url}/{BUCKET}", method="PUT")


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
    words = [str(place / "bin/python"), "-c", ONE_AT_A_TIME, str(port)]
    url = f"http://127.0.0.1:{port}"
    with _serving(words, place, _bucket_at(url)):
        yield s3_store(url, "key", "key")


@contextmanager
def s3rver() -> Iterator[Store]:
    """Run a store that ignores the condition of a put."""
    place = PLACE / "s3rver"
    installed(place, ["npm", "install", "--silent", "--prefix", ".", S3RVER])
    shutil.rmtree(place / "data", ignore_errors=True)
    port = free_port()
    words = ["node_modules/.bin/s3rver", "-d", "data", "-a", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with _serving(words, place, _bucket_at(url)):
        yield s3_store(url, "S3RVER", "S3RVER")


_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of every Azurite in the world."""


@contextmanager
def azurite() -> Iterator[Store]:
    """Run Azure's own stand-in for its store."""
    place = PLACE / "azurite"
    installed(place, ["npm", "install", "--silent", "--prefix", ".", AZURITE])
    port = free_port()
    words = ["node_modules/.bin/azurite-blob", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    words += ["--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    url = f"http://127.0.0.1:{port}"

    def container() -> urllib.request.Request:
        about = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        said = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in about.items())
        said += f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(_ACCOUNT_KEY), said.encode(), "sha256")).decode()
        about |= {"Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Length": "0"}
        return urllib.request.Request(f"{url}/{_ACCOUNT}/{BUCKET}?restype=container", method="PUT", headers=about)

    with _serving(words, place, container):
        yield Store(
            {
                "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
                "AZURE_STORAGE_ACCOUNT_KEY": _ACCOUNT_KEY,
                "AZURE_STORAGE_USE_EMULATOR": "true",
                "AZURITE_BLOB_STORAGE_URL": url,
            }
        )


if __name__ == "__main__":  # before tests run: several processes of them would install it at once
    with suppress(NotInstalledError):
        install_moto()
