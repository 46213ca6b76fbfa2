"""A program that is forked is as if it were executed: whose child, by which signals, with what streams."""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.support.warm import WarmProcess, ran

TOLD = """
import json, os, signal, sys, threading
handlers = [signal.getsignal(number) is handler for number, handler in (
    (signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL), (signal.SIGPIPE, signal.SIG_IGN))]
opened = [each for each in range(3, 64) if os.path.exists(f"/proc/self/fd/{each}")]
print(json.dumps({
    "parent": os.getppid(), "pid": os.getpid(), "words": sys.argv[1:], "cwd": os.getcwd(), "handlers": handlers,
    "named": os.environ.get("TENURE_NAMED"), "path": os.environ.get("PATH"), "heard": sys.stdin.read(),
    "threads": threading.active_count(), "opened": opened,
}))
print("beside", file=sys.stderr)
sys.exit(7)
"""


def test_child_has_its_own_words_streams_environment_and_parent(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with WarmProcess(
        "-c", [TOLD, "a", "b c"], stdin=pipe, stdout=pipe, stderr=pipe, env={"TENURE_NAMED": "x"}, cwd=tmp_path
    ) as child:
        out, err = child.communicate("given\n", timeout=60)
    said = json.loads(out)
    assert (child.returncode, err) == (7, "beside\n")
    assert (said["parent"], said["pid"]) == (os.getpid(), child.pid)
    assert (said["words"], said["heard"], said["cwd"]) == (["a", "b c"], "given\n", str(tmp_path))
    assert (said["named"], said["path"]) == ("x", None)
    assert (said["handlers"], said["threads"], said["opened"]) == ([True, True, True], 1, [])


def test_two_children_draw_other_numbers() -> None:
    draw = "import os, random, sys; print(os.getpid(), random.random(), os.urandom(8).hex())"
    first, other = (ran("-c", [draw]).stdout.split() for _ in range(2))
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_child_dies_by_a_signal_and_its_parent_is_told() -> None:
    with WarmProcess("-c", ["import time; print(1, flush=True); time.sleep(600)"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "1\n"
        assert child.poll() is None
        child.kill()
        assert child.wait(60) == -signal.SIGKILL
