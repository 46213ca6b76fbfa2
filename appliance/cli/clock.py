"""``tenure time``: what timeagent says, by the node's agent where one runs, with the radius a policy assumes."""

from __future__ import annotations

import os
import random
from argparse import Namespace
from pathlib import Path
from typing import Final

from timeagent.agent.settings import FILE, load_agent_settings, own_sources, parse_agent_settings
from timeagent.cli import time_command
from timeagent.clock import AgentClock
from timeagent.console import argument
from timeagent.errors import TenureError
from timeagent.sources.nonce import DOOR_NAME
from timeagent.sources.port import Source
from timeagent.units import Span

from ..admin.founding import read_marker
from ..bag.roots import Root, parse_root, storage_at
from ..formats.marker import ROOT_VARIABLE
from ..node.runtime import refuse_strangers, runtime_of, user_directory
from ..node.settings import find_settings, load_settings
from .opening import registers_at


def _root(options: Namespace) -> str | None:
    """Return the root that is named: it is read only then, and needs not be joined."""
    return options.root or os.environ.get(ROOT_VARIABLE)


def find_agent(root: str | None, node_dir: str | None) -> Path | None:
    """Return the directory of the agent's door: of the node that is named, else of the only one of this user."""
    if root is None and node_dir is None:
        refuse_strangers(user_directory())
        doors = list(user_directory().glob(f"*/{DOOR_NAME}"))
        return doors[0].parent if len(doors) == 1 else None
    try:
        path = parse_root(root) if root else load_settings(Path(node_dir or "")).root
        marker = read_marker(storage_at(path), path)
        settings = find_settings(marker.cluster_id, path, Path(node_dir) if node_dir else None)
    except TenureError:
        return None  # whatever is wrong there: it is not what was asked
    directory = runtime_of(settings, marker.cluster_id)
    return directory if (directory / DOOR_NAME).exists() else None


def machine_sources(clock: AgentClock, node_dir: str | Path | None) -> list[Source]:
    """Return this machine's time services, as the node's own settings have them where it is named."""
    settings = load_agent_settings(Path(node_dir)) if node_dir else parse_agent_settings("", Path(FILE))
    return own_sources(clock, settings, random.Random(os.urandom(8)))  # noqa: S311 - numbers of questions


def assumed_radius_ns(root: Root) -> Span:
    """Return the radius that the policy of a root states. Touches the mount."""
    return registers_at(storage_at(root), root).newest_policy().assumed_radius_ns


def _run_agent(options: Namespace) -> int:
    from .agent import run_agent  # with all that an agent is made of

    return run_agent(options)


COMMANDS: Final = {
    "time": time_command(
        lambda options: assumed_radius_ns(parse_root(root)) if (root := _root(options)) else 0,
        argument("--root", metavar="DIR", help=f"a cluster's root (default: {ROOT_VARIABLE})"),
        argument("--node-dir", metavar="DIR", help="this node's settings and keys (default: the usual places)"),
        argument("--allow-root", action="store_true", help="work as the superuser, whom no file mode stops"),
        summary="What this machine knows of the time.",
        sources=lambda clock, options: machine_sources(clock, options.node_dir),
        find_agent=lambda options: find_agent(_root(options), options.node_dir),
        run_agent=_run_agent,
    )
}
