#!/usr/bin/python3
"""Runs inside each machine of the lab: commands come and answers go as JSON lines over a virtual serial port.

Not over the network, so that they arrive while the machine is cut off. Needs nothing but the image's own Python.

Request  {"id", "sh": text | "py": source, "user": "", "seconds": 60}   one answer: {"id", "code", "out", "err"}
         {"id", "follow": text, "user": ""}                             {"id", "line"} as they come, then an answer
         {"id", "close": other id}                                      closes the standard input of what is followed
Each request has a thread, and takes the time it takes. ``py`` leaves its answer in ``result``: no new interpreter.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import threading
import time
import traceback
import tty
from pathlib import Path
from typing import IO, Any

PORTS = Path("/sys/class/virtio-ports")
NAME = "lab.agent"
SERIAL = "/dev/ttyS0"
"""The port of a machine that has no virtio."""


class Agent:
    """One per machine."""

    def __init__(self, port: IO[bytes]) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._followed: dict[int, subprocess.Popen[bytes]] = {}

    def say(self, **fields: object) -> None:
        """Send one line."""
        with self._lock:
            self._port.write(json.dumps(fields).encode() + b"\n")
            self._port.flush()

    def handle(self, request: dict[str, Any]) -> None:
        """Do what a request says."""
        number = request["id"]
        try:
            if "py" in request:
                answer = run_source(request["py"], request.get("seconds", 60))
            elif "follow" in request:
                answer = self._follow(request)
            elif "close" in request:
                answer = self._close(request["close"])
            else:
                answer = run_shell(request["sh"], request.get("user", ""), request.get("seconds", 60))
        except Exception:  # noqa: BLE001 - whatever it was, the host is told
            answer = {"code": 1, "out": "", "err": traceback.format_exc()}
        self.say(id=number, **answer)

    def _follow(self, request: dict[str, Any]) -> dict[str, Any]:
        process = subprocess.Popen(
            ["/bin/sh", "-c", request["follow"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            **identity(request.get("user", "")),
        )
        self._followed[request["id"]] = process
        assert process.stdout is not None
        for line in process.stdout:
            self.say(id=request["id"], line=line.decode(errors="replace"))
        process.wait()
        return {"code": process.returncode, "out": "", "err": ""}

    def _close(self, number: int) -> dict[str, Any]:
        process = self._followed.get(number)
        if process is not None and process.stdin is not None:
            process.stdin.close()
        return {"code": 0, "out": "", "err": ""}


def identity(user: str) -> dict[str, Any]:
    """What subprocess needs to be somebody else."""
    if not user:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "umask": 0o002}


def run_source(source: str, seconds: float) -> dict[str, Any]:
    """Run Python in a fork of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        answer: dict[str, Any] = {"code": 0, "out": "", "err": ""}
        try:
            names: dict[str, Any] = {"os": os, "time": time}
            exec(compile(source, "<lab>", "exec"), names)
            answer["result"] = names.get("result")
        except BaseException:  # noqa: BLE001 - the host is told
            answer = {"code": 1, "out": "", "err": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
    timer.start()
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    timer.cancel()
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(text) if text else {"code": 124, "out": "", "err": f"not done in {seconds} s"}
    return found


def run_shell(text: str, user: str, seconds: float) -> dict[str, Any]:
    """Run shell text to its end."""
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", text],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
            **identity(user),
        )
    except subprocess.TimeoutExpired as problem:
        out = problem.stdout or b""
        return {"code": 124, "out": out.decode(errors="replace"), "err": f"not done in {seconds} s"}
    return {
        "code": done.returncode,
        "out": done.stdout.decode(errors="replace"),
        "err": done.stderr.decode(errors="replace"),
    }


def opened() -> int:
    """Return the descriptor of the port that leads to the host."""
    for entry in PORTS.iterdir() if PORTS.exists() else ():
        if (entry / "name").read_text().strip() == NAME:
            return os.open(f"/dev/{entry.name}", os.O_RDWR)
    fd = os.open(SERIAL, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(fd)
    return fd


def main() -> None:
    """Serve for ever."""
    fd = opened()
    port = os.fdopen(fd, "wb", closefd=False)
    agent = Agent(port)
    agent.say(id=0, code=0)
    pending = b""
    while True:
        chunk = os.read(fd, 65536)
        if not chunk:  # nobody is at the other end
            time.sleep(0.05)
            continue
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                threading.Thread(target=agent.handle, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
