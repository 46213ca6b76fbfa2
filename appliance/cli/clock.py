"""``leasehold time``: what timeagent says, with the radius that a cluster's policy assumes where a root is named."""

from __future__ import annotations

import argparse
import os
from typing import Final

from timeagent.cli import time_command
from timeagent.console import Command
from timeagent.units import Span

ROOT_VARIABLE: Final = "LEASEHOLD_ROOT"


def _add_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", metavar="DIR", help=f"a cluster's root: take what its policy assumes (default: {ROOT_VARIABLE})"
    )


def _add_time(parser: argparse.ArgumentParser) -> None:
    time_command(add_options=_add_root).add_arguments(parser)


def run_time(options: argparse.Namespace) -> int:
    """Run one verb. A root is read only when it is named, and needs not be joined."""
    root = getattr(options, "root", None) or os.environ.get(ROOT_VARIABLE)
    return time_command(lambda: _assumed_radius_ns(root) if root else 0).run(options)


def _assumed_radius_ns(root: str) -> Span:
    from pathlib import Path

    from appliance.bag.posix import PosixStorage
    from appliance.founding import read_marker
    from appliance.registers import Registers
    from timeagent.keys import Verifier

    path = Path(root).absolute()
    storage = PosixStorage(path)
    marker = read_marker(storage, path)
    return Registers(storage, marker.cluster_id, Verifier(marker.root_key)).newest_policy().assumed_radius_ns


COMMANDS: Final = {"time": Command("What this machine knows of the time.", _add_time, run_time)}
