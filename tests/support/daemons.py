"""Real node daemons that reach each other by TCP on loopback, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from appliance.admin.trust import move_node
from appliance.formats.names import Address
from appliance.node.settings import save_settings
from tests.support.cluster import Site, wait_until
from tests.support.ports import free_port
from tests.support.spoken import spoken
from tests.support.warm import WarmProcess
from timeagent.agent.page import PAGE_NAME, decode_page
from timeagent.clock import SystemClock
from timeagent.errors import BadTime

if TYPE_CHECKING:
    from appliance.formats.policy import Policy


class Daemons:
    """A site whose nodes know each other by address alone. Close it: it ends only what it started."""

    def __init__(self, path: Path, *nodes: str, policy: Policy | None = None) -> None:
        self.site = Site(path, nodes, policy)
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.said: dict[str, dict[str, Any]] = {}
        for node in nodes:
            address = Address("127.0.0.1", free_port())
            move_node(self.site.registers, self.site.root_key, node, address)
            self.site.settings[node] = replace(self.site.settings[node], peers={}, listen=address)
            save_settings(self.site.settings[node])

    def start(self, *nodes: str, environment: dict[str, str] | None = None, program: tuple[str, ...] = ()) -> None:
        """Start daemons, and wait until each says what it runs. ``program``: what the interpreter runs instead."""
        env = {**os.environ, **(environment or {})}
        for node in nodes:
            words = ["node", "run", "--json", *self.site.options(node)]
            with (self.site.node_dir(node) / "stderr.log").open("ab") as log:
                self.running[node] = (
                    subprocess.Popen(
                        [sys.executable, *program, *words], stdout=subprocess.PIPE, stderr=log, text=True, env=env
                    )
                    if program
                    else WarmProcess("tenure", words, stdout=subprocess.PIPE, stderr=log, env=env)
                )
        for node in nodes:
            out = self.running[node].stdout
            assert out is not None
            line = out.readline()
            assert line, (self.site.node_dir(node) / "stderr.log").read_text()
            self.said[node] = json.loads(line)

    def start_agent(self, node: str) -> None:
        """Start a node's time agent, which believes the radius that the policy states; wait until it has a bound."""
        place = self.site.node_dir(node)
        (place / "time.toml").write_text('chrony = ""\nclockbound = ""\nkernel = false\n')
        with (place / "agent.log").open("ab") as log:
            words = ["time", "run", *self.site.options(node)]
            self.running[f"{node} agent"] = WarmProcess("tenure", words, stdout=subprocess.PIPE, stderr=log)
        runtime = self.site.settings[node].runtime
        assert runtime is not None

        # Not `time wait`: until the agent has made its page, this process has a bound without it.
        def has_bound() -> bool:
            with contextlib.suppress(OSError, BadTime):
                page = decode_page((runtime / PAGE_NAME).read_bytes())
                return page is not None and page.status.usable
            return False

        wait_until(SystemClock(), has_bound)

    def start_with_release(self, node: str, release: str) -> None:
        """Start a daemon that calls itself another release."""
        program = (
            "import timeagent as told, sys\n"
            f"told.VERSION = {release!r}\n"
            "from tenure.__main__ import entry\n"
            "sys.exit(entry())\n"
        )
        self.start(node, program=("-c", program))

    def tenure(self, node: str, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run one command of a node to its end."""
        return self.command(*words, *self.site.options(node), stdin=stdin)

    def command(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run one command to its end, in this process."""
        return spoken(*words, stdin=stdin or "")

    def send(self, node: str, number: signal.Signals) -> None:
        self.running[node].send_signal(number)

    def stopped(self, node: str) -> bool:
        """Whether every thread of a daemon has stopped by now: the signal takes its time."""
        tasks = Path(f"/proc/{self.running[node].pid}/task").iterdir()
        return all(task.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def stop(self, node: str) -> int:
        """End one orderly; return its exit code."""
        process = self.running.pop(node)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def restart(self, node: str) -> None:
        """Have one stop for a restart, and start it again."""
        code = self.stop(node)
        assert code == 0, (self.site.node_dir(node) / "stderr.log").read_text()
        self.start(node)

    def kill(self, node: str) -> None:
        """Let one die, as with its machine."""
        process = self.running.pop(node)
        process.kill()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
        self.site.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
