"""One process of a comparison: it runs a program of docs/recipes/compare.md with steps that leave a line each.

``python worker.py LIBRARY FUNCTION NAME PROGRAM EFFECTS PLACE``: the file that holds the program, the file that gets a
line for each step, and where the library's service or directory is. Standard library only, but for the library itself.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any

STEPS, STEP_S = 300, 0.05
SESSION_S = 4


def steps(name: str, effects: Path) -> list[Any]:
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def step() -> None:
        os.write(file, f"{name}\n".encode())
        time.sleep(STEP_S)

    return [step] * STEPS


def main(library: str, function: str, name: str, program: str, effects: str, place: str) -> None:
    names: dict[str, Any] = {
        "Event": Event, "sleep": time.sleep, "ExitStack": ExitStack, "PurePosixPath": PurePosixPath
    }  # fmt: skip
    first: Any
    if library == "filelock":
        from filelock import FileLock

        first = Path(place)
        names["FileLock"] = FileLock
    elif library == "kazoo":
        from kazoo.client import KazooClient, KazooState

        first = KazooClient(place, timeout=SESSION_S)
        first.start()
        names["KazooState"] = KazooState
    elif library == "etcd3gw":
        from etcd3gw.client import Etcd3Client

        host, _, port = place.rpartition(":")
        first = Etcd3Client(host, int(port), api_path="/v3/")
    else:
        from tenure import Cluster, Mutex, PathLock

        root, node_dir = place.split("\0") if "\0" in place else place.split("|")
        first = Cluster.open(root, node_dir=node_dir, allow_root=True)
        names |= {"Mutex": Mutex, "PathLock": PathLock}
    exec(compile(Path(program).read_text(encoding="utf-8"), program, "exec"), names)
    paths = ["/a/b"] if function == "in_folder" else []
    names[function](first, *paths, steps(name, Path(effects)))


if __name__ == "__main__":
    main(*sys.argv[1:])
