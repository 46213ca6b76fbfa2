"""One process of a comparison: it runs a program of docs/recipes/compare.md with steps that leave a line each.

``python worker.py LIBRARY FUNCTION NAME PROGRAM EFFECTS PLACE``: the file that holds the program, the file that gets a
line for each step, and where the library's service or directory is. Standard library only, but for the library itself.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any

STEPS, STEP_S = 300, 0.05
QUEUE = Path(__file__).parents[2] / "docs" / "recipes" / "queue.md"
SESSION_S = 4


def steps(name: str, effects: Path) -> list[Any]:
    file = os.open(effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def step() -> None:
        os.write(file, f"{name}\n".encode())
        time.sleep(STEP_S)

    return [step] * STEPS


def jobs(library: str, first: Any, scene: str, *, put: bool) -> Any:  # noqa: ANN401 - of each library its own
    """Put a job where the program looks for it, and no other is; return what the program is given."""
    if library == "filelock" and put:
        (first / "1.job").touch()
    elif library == "kazoo" and put:
        first.LockingQueue("/jobs").put(b"1")
    elif library == "etcd3gw" and put:
        first.delete_prefix("/jobs/")
        first.put("/jobs/1", "1")
    elif library == "tenure":
        names: dict[str, Any] = {}
        shown = QUEUE.read_text(encoding="utf-8").partition("```python\n")[2].partition("\n\n\nwith Cluster")[0]
        exec(shown, names)
        first = names["Queue"](first, first.session("worker"), scene)
        if put:
            first.put("1")
    return first


def main(library: str, function: str, name: str, program: str, effects: str, place: str) -> None:
    names: dict[str, Any] = {
        "Event": Event, "sleep": time.sleep, "suppress": suppress, "ExitStack": ExitStack,
        "PurePosixPath": PurePosixPath,
    }  # fmt: skip
    scene = Path(effects).parent.name
    first: Any
    if library == "filelock":
        from filelock import FileLock, Timeout  # type: ignore[import-not-found]

        first = Path(place, scene)
        first.mkdir(exist_ok=True)
        names |= {"FileLock": FileLock, "Timeout": Timeout}
    elif library == "kazoo":
        from kazoo.client import KazooClient, KazooState  # type: ignore[import-not-found]

        first = KazooClient(f"{place}/{scene}", timeout=SESSION_S)
        first.start()
        first.ensure_path("/")
        names["KazooState"] = KazooState
    elif library == "etcd3gw":
        from etcd3gw.client import Etcd3Client  # type: ignore[import-not-found]

        host, _, port = place.rpartition(":")
        first = Etcd3Client(host, int(port), api_path="/v3/")
    else:
        from tenure import Cluster, Mutex, PathLock

        root, node_dir = place.split("|")
        first = Cluster.open(root, node_dir=node_dir, allow_root=True)
        names |= {"Mutex": Mutex, "PathLock": PathLock}
    if function == "work_off":
        first = jobs(library, first, scene, put=name == "first")
    exec(compile(Path(program).read_text(encoding="utf-8"), program, "exec"), names)
    paths = ["/a/b"] if function == "in_folder" else []
    names[function](first, *paths, steps(name, Path(effects)))


if __name__ == "__main__":
    main(*sys.argv[1:])
