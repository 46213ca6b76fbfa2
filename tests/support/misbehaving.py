"""A command that does what its words say, one after the other: for what ends commands. Run with python -S -E.

deaf: ignores signals; fork, session, daemon, stopped, flood, chain: a process or some of that kind; ready=PATH: says
that all of them are there; after=MS: waits; then exit=N, die=N (a signal), stop (this one stops itself), or sleep.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

LONGEST_S = 120
"""After so long everything ends by itself."""


def sleep() -> None:
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        time.sleep(0.2)
    os._exit(99)


def child(after: Callable[[], object] = sleep) -> int:
    pid = os.fork()
    if not pid:
        after()
        os._exit(0)
    return pid


def family() -> None:
    child()
    child()
    sleep()


def session() -> None:
    os.setsid()
    sleep()


def daemon() -> None:
    os.setsid()
    child()


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    sleep()


def flood() -> None:
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        os.write(1, b"flood" * 1000)


def chain(links: int = 60) -> None:
    """Each begins the next and ends: whoever looks sees another one each time."""
    time.sleep(0.01)
    if links:
        child(lambda: chain(links - 1))
    else:
        sleep()


CHILDREN = {"fork": family, "session": session, "stopped": stopped, "flood": flood, "chain": chain}


def main(words: list[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for word in words:
        name, _, value = word.partition("=")
        if name == "deaf":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        elif name == "daemon":
            os.waitpid(child(daemon), 0)
        elif name in CHILDREN:
            child(CHILDREN[name])
        elif name == "ready":
            Path(value).touch()
        elif name == "after":
            time.sleep(int(value) / 1000)
        elif name == "exit":
            os._exit(int(value))
        elif name == "die":
            os.kill(os.getpid(), int(value))
        elif name == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            assert name == "sleep", name
            sleep()


if __name__ == "__main__":
    main(sys.argv[1:])
