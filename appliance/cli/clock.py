"""``tenure time``: what timeagent says, by the node's agent where one runs, with the radius a policy assumes."""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Final

from timeagent.cli import time_command
from timeagent.console import Command
from timeagent.units import Span

if TYPE_CHECKING:
    from timeagent.clock import AgentClock
    from timeagent.sources.port import Source

ROOT_VARIABLE: Final = "TENURE_ROOT"


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", metavar="DIR", help=f"a cluster's root (default: {ROOT_VARIABLE})")
    parser.add_argument("--node-dir", metavar="DIR", help="this node's settings and keys (default: the usual places)")
    parser.add_argument("--allow-root", action="store_true", help="work as the superuser, whom no file mode stops")


def _add_time(parser: argparse.ArgumentParser) -> None:
    time_command(add_options=_add_cluster).add_arguments(parser)


def run_time(options: argparse.Namespace) -> int:
    """Run one verb. A root is read only when it is named, and needs not be joined; except to run the agent."""
    from appliance.cli.agent import find_agent, run_agent

    root = getattr(options, "root", None) or os.environ.get(ROOT_VARIABLE)
    node_dir = getattr(options, "node_dir", None)
    command = time_command(
        lambda: _assumed_radius_ns(root) if root else 0,
        sources=lambda clock: _own_sources(clock, node_dir),
        find_agent=lambda: find_agent(root, node_dir),
        run_agent=run_agent,
    )
    return command.run(options)


def _own_sources(clock: AgentClock, node_dir: str | None) -> list[Source]:
    """Return this machine's time services, as the node's own settings have them where it is named."""
    from timeagent.agent.settings import FILE, load_agent_settings, own_sources, parse_agent_settings

    settings = load_agent_settings(Path(node_dir)) if node_dir else parse_agent_settings("", Path(FILE))
    return own_sources(clock, settings, random.Random(os.urandom(8)))  # noqa: S311 - numbers of questions


def _assumed_radius_ns(root: str) -> Span:
    from appliance.admin.founding import read_marker
    from timeagent.keys import Verifier

    from ..bag.posix import PosixStorage
    from ..node.records import Registers

    path = Path(root).absolute()
    storage = PosixStorage(path)
    marker = read_marker(storage, path)
    return Registers(storage, marker.cluster_id, Verifier(marker.root_key)).newest_policy().assumed_radius_ns


COMMANDS: Final = {"time": Command("What this machine knows of the time.", _add_time, run_time)}
