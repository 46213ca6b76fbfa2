"""Builds the native core, ``tenure._core``, of the sources in ``native/``: for `make install`, wheels and packages.

Without a C compiler, Python.h or openssl/evp.h it is left out, and everything works without it. One binary serves all
Pythons from 3.12 on. ``python -m release.core`` builds it beside the sources; ``--sanitize DIRECTORY`` builds one there
that watches every step (AddressSanitizer and UBSan).
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REPOSITORY: Final = Path(__file__).parents[1]
NAME: Final = "tenure/_core.abi3.so"
SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")


def build(into: Path, flags: Sequence[str] = (), sources: Path = REPOSITORY / "native") -> Path | None:
    """Compile the core below a directory and return its path; None: there is no compiler, or a header is missing."""
    from setuptools import Distribution, Extension  # type: ignore[import-untyped]  # no types with it
    from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

    extension = Extension(
        "tenure._core",
        [str(path) for path in sorted(sources.glob("*.c"))],
        depends=[str(path) for path in sources.glob("*.h")],
        define_macros=[("Py_LIMITED_API", "0x030C0000")],
        extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden", *flags],
        extra_link_args=list(flags),
        libraries=["crypto"],
        py_limited_api=True,
        optional=True,
    )
    made = into / NAME
    made.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as place:
        command = build_ext(Distribution({"name": "tenure", "ext_modules": [extension]}))
        command.build_lib, command.build_temp = str(into), place
        command.ensure_finalized()
        command.run()
    return made if made.exists() else None


class CoreHook(BuildHookInterface[Any]):
    """Puts the core into a wheel, or beside the sources of an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, and say what the wheel is for then."""
        editable = version == "editable"
        made = build(REPOSITORY if editable else Path(self.directory) / "core")
        if made is not None and not editable:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp312-abi3-{platform}"
            build_data["force_include"][str(made)] = NAME


def main() -> int:
    """Build; print the path. 1: it could not be built."""
    parser = argparse.ArgumentParser(prog="python -m release.core", description="Build the native core.")
    parser.add_argument("--sanitize", type=Path, metavar="DIRECTORY", help="build one there that watches every step")
    options = parser.parse_args()
    made = build(options.sanitize or REPOSITORY, SANITIZERS if options.sanitize else ())
    if made is None:
        sys.stderr.write("core: not built: it needs a C compiler, Python.h and openssl/evp.h\n")
        return 1
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
