"""Real agents: `tenure time run` as a process, over a root of its own, with the settings that a test wants."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

from appliance.node.runtime import default_directory
from appliance.node.settings import Settings, load_settings
from tests.support.spoken import spoken
from tests.support.warm import WarmProcess
from timeagent.agent.page import AgentTime
from timeagent.clock import SystemClock
from timeagent.errors import BadTime
from timeagent.keys import Purpose, public_line
from timeagent.sources.nonce import NonceClient
from timeagent.units import DAY

REPOSITORY = Path(__file__).parents[2]
AHEAD = """
import sys
from timeagent.clock import SystemClock
inner, ahead_ns = SystemClock.realtime_ns, int(sys.argv.pop(1))
SystemClock.realtime_ns = staticmethod(lambda: inner() + ahead_ns)
from tenure.__main__ import entry
sys.exit(entry())
"""
SILENT = 'chrony = ""\nclockbound = ""\nkernel = false\n'


def tenure(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command in this process; TENURE_ROOT is not passed on."""
    with patch.dict(os.environ):
        os.environ.pop("TENURE_ROOT", None)
        done = spoken(*words)
    assert not check or done.returncode == 0, done.stderr
    return done


def until(what: Callable[[], object], tries: int = 600) -> None:
    """Wait until something is so; give up after many looks."""
    for _ in range(tries):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("it never came to be so")


class Node:
    """One node: its directory, its settings, its agent's process."""

    def __init__(self, directory: Path, root: Path, settings: Settings, cluster_id: bytes) -> None:
        self.directory = directory
        self.root = root
        self.settings = settings
        self.runtime = default_directory(cluster_id, settings.node)
        self.process: subprocess.Popen[str] | None = None

    @property
    def words(self) -> list[str]:
        return ["--root", str(self.root), "--node-dir", str(self.directory)]

    def public_key(self) -> str:
        return public_line(self.settings.key(Purpose.TIME).public, self.settings.node)

    def start(self, toml: str = SILENT, *, ahead_ns: int = 0) -> Self:
        """Start the agent; return when it says that it runs. ``ahead_ns``: of a machine whose CLOCK_REALTIME is ahead.

        Not by libfaketime: under it Python's time.sleep fails with EINVAL.
        """
        (self.directory / "time.toml").write_text(toml)
        environment = {name: value for name, value in os.environ.items() if name != "TENURE_ROOT"}
        words = [AHEAD, str(ahead_ns), "time", "run", *self.words, "--allow-root", "--json"]
        nothing = subprocess.DEVNULL
        self.process = WarmProcess("-c", words, stdout=subprocess.PIPE, stderr=nothing, env=environment)
        assert self.process.stdout is not None
        assert '"tenure.time.run"' in self.process.stdout.readline()
        return self

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self.process is not None
        self.process.terminate()
        self.process.communicate(timeout=60)
        return self.process.returncode

    def end(self) -> None:
        """Whatever it does: it is over."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.communicate()
        shutil.rmtree(self.runtime, ignore_errors=True)

    def time(self, radius_ns_max: int = DAY) -> AgentTime:
        key = self.settings.key(Purpose.TIME).id
        return AgentTime(self.runtime, SystemClock(), key_id=key, radius_ns_max=radius_ns_max)

    def now(self, check: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002 - as tenure() has it
        fields: dict[str, Any] = json.loads(tenure("time", "now", *self.words, "--json", check=check).stdout)
        return fields

    def sources(self) -> dict[str, dict[str, Any]]:
        shown = json.loads(tenure("time", "sources", *self.words, "--json").stdout)
        return {each["source"]: each for each in shown["sources"]}

    def roles(self) -> dict[str, str]:
        """How each source counts, as the agent itself says; nothing while it does not answer."""
        try:
            report = json.loads(NonceClient(self.runtime).report())
        except BadTime:
            return {}
        return {"agent": report["status"]} | {each["source"]: each["role"] for each in report["sources"]}

    def evidence(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.directory / "evidence").glob("*.json"))]


def found(tmp_path: Path, *names: str, assume: str = "5ms") -> list[Node]:
    """Make a root and its nodes."""
    root = tmp_path / "root"
    root.mkdir()
    nodes = []
    for index, name in enumerate(names):
        directory = tmp_path / name
        if index == 0:
            words = ["init", str(root), "--assume-radius", assume]
        else:
            words = ["join", str(root), "--root-key", str(tmp_path / names[0] / "root.key")]
        tenure(*words, "--node", name, "--node-dir", str(directory), "--allow-root", "--json")
        nodes.append(directory)
    from appliance.admin.membership import read_marker
    from appliance.bag.posix import PosixStorage

    cluster_id = read_marker(PosixStorage(root), root).cluster_id
    return [Node(directory, root, load_settings(directory), cluster_id) for directory in nodes]
