"""OpenStack Swift with its S3 door: it looks first and puts afterwards. Five processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.s3.servers import BUCKET, PATIENCE_S, PLACE, NotInstalledError, Store, installed, s3_store
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("swift==2.38.3", "setuptools<81")
LIBRARIES = ("memcached", "libevent-2.1-7", "liberasurecode1")
"""Debian's: unpacked, not installed."""
_PARTS = ("object", "container", "account")
_SERVER = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
devices = {lab}/dev
mount_check = false
swift_dir = {lab}/etc
user = {user}
workers = 1
recon_cache_path = {lab}/run
[pipeline:main]
pipeline = {part}-server
[app:{part}-server]
use = egg:swift#{part}
"""
_PROXY = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {lab}/etc
user = {user}
workers = 1
[pipeline:main]
pipeline = catch_errors cache s3api tempauth copy slo dlo versioned_writes symlink proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{cache}
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_versioned_writes = true
allow_object_versioning = true
"""
_PLAIN = ("catch_errors", "copy", "slo", "dlo", "symlink")


@contextmanager
def swift(lab: Path) -> Iterator[Store]:
    """Run it with its data in a new directory."""
    place = PLACE / "swift"
    installed(
        place,
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin/python"), "-m", "pip", "install", "-q", *PACKAGES],
        ["apt-get", "download", *LIBRARIES],
        ["sh", "-c", "for each in *.deb; do dpkg -x $each unpacked || exit 1; done"],
    )
    lab.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{place}/bin:{place}/unpacked/usr/bin:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": f"{place}/unpacked/usr/lib/x86_64-linux-gnu",
        "SWIFT_DIR": f"{lab}/etc",
        "EVENTLET_NO_GREENDNS": "yes",
    }
    ports = {part: free_port() for part in (*_PARTS, "proxy", "cache")}
    _configure(lab, ports, environment)
    with ExitStack() as until_the_end, (lab / "log").open("wb") as log:

        def start(*words: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(words, cwd=lab, env=environment, stdout=log, stderr=log, start_new_session=True)
            until_the_end.callback(process.wait)
            until_the_end.callback(os.killpg, process.pid, signal.SIGKILL)  # its workers too
            return process

        started = [start("memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(ports["cache"]))]
        started += [start(f"swift-{part}-server", f"{lab}/etc/{part}-server.conf") for part in (*_PARTS, "proxy")]
        url = f"http://127.0.0.1:{ports['proxy']}"
        deadline = time.monotonic() + PATIENCE_S
        while True:
            ended = [process.args for process in started if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                raise NotInstalledError(f"Swift does not answer; ended: {ended}; {(lab / 'log').read_text()[-300:]}")
            try:
                urllib.request.urlopen(f"{url}/info").close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        who = {"X-Storage-User": "test:tester", "X-Storage-Pass": "testing"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/auth/v1.0", headers=who)) as said:
            token, account = said.headers["X-Auth-Token"], said.headers["X-Storage-Url"]
        made = urllib.request.Request(f"{account}/{BUCKET}", method="PUT", headers={"X-Auth-Token": token})
        urllib.request.urlopen(made).close()
        yield s3_store(url, "test:tester", "testing")


def _configure(lab: Path, ports: dict[str, int], environment: dict[str, str]) -> None:
    for name in ("etc", "dev/d1", "run"):
        (lab / name).mkdir(parents=True)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    hashes = "[swift-hash]\nswift_hash_path_prefix = a\nswift_hash_path_suffix = b\n"
    (lab / "etc/swift.conf").write_text(hashes + "[storage-policy:0]\nname = p0\ndefault = yes\n")
    for part in _PARTS:
        text = _SERVER.format(part=part, port=ports[part], lab=lab, user=user)
        (lab / f"etc/{part}-server.conf").write_text(text)
        steps = (("create", "4", "1", "1"), ("add", f"r1z1-127.0.0.1:{ports[part]}/d1", "1"), ("rebalance",))
        for step in steps:
            words = ["swift-ring-builder", f"{part}.builder", *step]
            done = subprocess.run(words, cwd=lab / "etc", env=environment, capture_output=True, text=True, check=False)
            if done.returncode > 1:  # 1: a warning
                raise NotInstalledError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
    plain = "".join(f"[filter:{each}]\nuse = egg:swift#{each}\n" for each in _PLAIN)
    proxy = _PROXY.format(port=ports["proxy"], cache=ports["cache"], lab=lab, user=user)
    (lab / "etc/proxy-server.conf").write_text(proxy + plain)
