"""``tenure probe PATH --peer HOST | --second MOUNT``: what two clients see of each other on one mount, measured.

The other client is a process that answers one JSON object a line: over ssh on another machine, or here, on a second
mount of the same export (``-o nosharecache``, or the mount of another network namespace). Nothing stays behind.

Exit codes: 0 all is well; 1 something failed; 3 something could not be made sure of.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from timeagent.console import Command, Progress, say
from timeagent.errors import BadRequest, Environment, TenureError

if TYPE_CHECKING:
    from appliance.bag.hands import LocalHands
    from appliance.doctor.check import HealthCheck
    from appliance.doctor.twohands import TwoHands

PATIENCE_S: Final = 60.0
VERBS: Final = ("make", "append", "link", "sees", "sees_afresh", "read")


def _add_probe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the shared directory, as this machine mounts it")
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--peer", metavar="HOST", help="another machine that has it mounted, by ssh")
    other.add_argument("--second", metavar="MOUNT", help="a second mount of the same export on this machine")
    other.add_argument("--serve", metavar="TOKEN", help="be the other client, on stdin and stdout")
    parser.add_argument("--peer-path", metavar="PATH", help="where the peer mounts it (default: the same path)")
    parser.add_argument("--peer-command", metavar="WORDS", default="tenure", help="tenure there (default: that)")
    parser.add_argument("--json", action="store_true", help="machine-readable output")


class FarHands:
    """The other client's hands, over a pipe."""

    def __init__(self, command: Sequence[str], patience_s: float = PATIENCE_S) -> None:
        """Start it. Raises Environment."""
        self._patience_s = patience_s
        try:
            self._process = subprocess.Popen(  # noqa: S603 - ssh, or this program, with words of their own
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as problem:
            raise Environment(
                "peer-absent", f"cannot start {command[0]}: {problem.strerror}", hint="is ssh installed?"
            ) from None

    def make(self, name: str, data: str) -> bool:
        """Create exclusively."""
        return bool(self._ask("make", name, data))

    def append(self, name: str, data: str) -> bool:
        """Append and close."""
        return bool(self._ask("append", name, data))

    def link(self, name: str, source: str) -> bool:
        """Link."""
        return bool(self._ask("link", name, source))

    def sees(self, name: str) -> bool:
        """A bare stat."""
        return bool(self._ask("sees", name))

    def sees_afresh(self, name: str) -> bool:
        """Open the directory, then look."""
        return bool(self._ask("sees_afresh", name))

    def read(self, name: str) -> str:
        """Open and read."""
        return str(self._ask("read", name))

    def end(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # what it did not take any more is of no use to anybody
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, verb: str, *words: str) -> object:
        from appliance.cli.doctor import MountHangsError, within

        try:
            answer = within(self._patience_s, lambda: self._exchange(verb, words))
        except MountHangsError:
            raise Environment(
                "peer-silent", f"the other client does not answer: {verb}", hint="does the mount hang there?"
            ) from None
        if "problem" in answer:
            raise Environment("peer-failed", f"the other client: {answer['problem']}", hint="run tenure doctor there")
        return answer["said"]

    def _exchange(self, verb: str, words: Sequence[str]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([verb, *words]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            answer = json.loads(line)
        except (OSError, ValueError):
            answer = None
        if not isinstance(answer, dict) or not {"said", "problem"} & answer.keys():
            raise Environment(
                "peer-gone",
                "the other client ended, or does not speak as tenure does",
                hint="try it by hand: ssh HOST tenure probe PATH --serve x",
            )
        return answer


def serve(hands: LocalHands) -> int:
    """Be the other client until stdin ends."""
    for line in sys.stdin:
        try:
            verb, *words = json.loads(line)
            if verb not in VERBS:
                raise BadRequest("bad-verb", f"{verb!r} is no verb of a probe")
            answer: dict[str, Any] = {"said": getattr(hands, verb)(*words)}
        except OSError as problem:
            answer = {"problem": problem.strerror or str(problem)}
        except (TenureError, ValueError, TypeError) as problem:
            answer = {"problem": str(problem)}
        say(json.dumps(answer))
        sys.stdout.flush()
    return 0


def _other(options: argparse.Namespace, token: str) -> list[str]:
    if options.second:
        return [sys.executable, "-m", "tenure", "probe", str(Path(options.second).absolute()), "--serve", token]
    path = options.peer_path or str(Path(options.path).absolute())
    if options.peer.startswith("-"):
        raise BadRequest("bad-peer", f"{options.peer!r} is no host", hint="--peer HOST or --peer USER@HOST")
    there = [*shlex.split(options.peer_command), "probe", path, "--serve", token]
    return ["ssh", "-o", "BatchMode=yes", "--", options.peer, shlex.join(there)]


def run_probe(options: argparse.Namespace) -> int:
    """Run every experiment, say a line for each."""
    from appliance.bag.hands import LocalHands
    from appliance.cli.doctor import told
    from appliance.doctor.twohands import TwoHands
    from timeagent.clock import SystemClock

    path = Path(options.path).absolute()
    if options.serve:
        return serve(LocalHands(path, options.serve))
    token = os.urandom(6).hex()
    here = LocalHands(path, token)
    try:
        here.begin()
    except OSError as problem:
        raise Environment("mount-refused", f"{path}: {problem.strerror}", hint="tenure doctor says more") from None
    try:
        there = FarHands(_other(options, token))
        try:
            chance = random.Random(os.urandom(8))  # noqa: S311 - jitter
            checks = _experiments(TwoHands(here, there, chance, SystemClock()))
        finally:
            there.end()
    finally:
        here.end()
    return told("tenure.probe", {"path": options.path, "other": options.peer or options.second}, checks, options)


def _experiments(two: TwoHands) -> list[HealthCheck]:
    first = two.same_place()
    rest: list[Callable[[], HealthCheck]] = [
        two.names_seen,
        two.absences,
        two.bytes_seen,
        two.link_race,
        two.exclusive_race,
    ]
    from appliance.doctor.check import CheckVerdict

    if first.verdict is CheckVerdict.FAIL:
        return [first]
    progress, found = Progress("probe", len(rest)), [first]
    for number, experiment in enumerate(rest):
        progress.show(number, experiment.__name__.replace("_", " "))
        found.append(experiment())
    progress.done()
    return found


COMMANDS: Final = {"probe": Command("What two clients see of each other on one mount.", _add_probe, run_probe)}
