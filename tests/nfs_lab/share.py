"""What the host shares with every machine, as one read-only disk: interpreter, packages, and versions of tenure.

```
python/      the interpreter that this process runs in, without what no daemon needs
packages/    what tenure depends on, with its dependencies
current/     this checkout; another version beside it under its own name
systemd/     the units of this checkout
lab/         the programs that the lab runs inside
given/       files that somebody gives to each machine
```
"""

from __future__ import annotations

import compileall
import re
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Sequence

REPOSITORY: Final = Path(__file__).parents[2]
PACKAGES: Final = ("tenure", "tui", "auditor", "appliance", "timeagent")
CURRENT: Final = "current"
NOT_NEEDED: Final = (
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "config-*",
    "*.a",
    "site-packages",
)
DISK_BYTES: Final = 1 << 30


def dependencies(name: str) -> dict[str, Distribution]:
    """Return the distributions that one needs, with all that they need."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        for text in distribution(waiting.pop()).requires or ():
            requirement = Requirement(text)
            key = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if key not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
                found[key] = distribution(requirement.name)
                waiting.append(requirement.name)
    return found


def stage_python(target: Path) -> None:
    """Copy this interpreter: it finds its library by where it lies."""
    base = Path(sys.base_prefix)
    library = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (target / "bin").mkdir(parents=True)
    shutil.copy(base / "bin" / library, target / "bin" / "python3")
    shutil.copytree(base / "lib" / library, target / "lib" / library, ignore=shutil.ignore_patterns(*NOT_NEEDED))
    for shared in (base / "lib").glob("libpython*.so*"):
        shutil.copy(shared, target / "lib" / shared.name)


def stage_packages(target: Path) -> None:
    """Copy what tenure depends on."""
    for found in dependencies("tenure").values():
        for file in found.files or ():
            if ".." in file.parts:
                continue  # a script for people
            place = target / Path(*file.parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(str(found.locate_file(file))), place)  # bytecode is good for one time of its source


def stage_version(checkout: Path, target: Path) -> None:
    """Copy one version of tenure."""
    for package in PACKAGES:
        shutil.copytree(checkout / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))


def make_disk(image: Path, versions: dict[str, Path], given: Sequence[Path], scratch: Path) -> None:
    """Write the disk. ``versions``: checkouts beside this one, by the name they get. ``given``: files."""
    stage = scratch / "share"
    shutil.rmtree(stage, ignore_errors=True)
    stage_python(stage / "python")
    stage_packages(stage / "packages")
    for name, checkout in {CURRENT: REPOSITORY, **versions}.items():
        stage_version(checkout, stage / name)
    shutil.copytree(REPOSITORY / "systemd", stage / "systemd")
    shutil.copytree(Path(__file__).parent / "inside", stage / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    for compiled in (CURRENT, *versions, "lab"):  # the disk is read-only, and emulated machines compile slowly
        compileall.compile_dir(str(stage / compiled), quiet=2, stripdir=str(stage), prependdir="/opt/tenure")
    (stage / "given").mkdir()
    for file in given:
        shutil.copy(file, stage / "given")
    with image.open("wb") as disk:
        disk.truncate(DISK_BYTES)
    plain = ["-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"]
    subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", *plain, "-d", str(stage), str(image)], check=True)
    shutil.rmtree(stage)
