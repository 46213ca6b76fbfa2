"""``leasehold status --watch``: the overview as text, again and again. Without ``--watch``, the status of appliance.

In a terminal the whole overview is drawn over what was there; in a pipe it is a line a second, with ``--json`` an
object a line. It looks only, as ``top`` does.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options
from timeagent.clock import SystemClock
from timeagent.console import Command, print_json, say, whole_from
from timeagent.errors import BadRequest
from timeagent.units import SECOND, rfc3339

from .state import Reach

if TYPE_CHECKING:
    from .state import ClusterState

HOME, REST_OF_LINE, REST, CLEAR = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"
EVERY_NS: Final = SECOND


def _add_status(parser: argparse.ArgumentParser) -> None:
    add_cluster_options(parser)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="the overview as text, once a second, until Ctrl-C; in a pipe a line each time",
    )
    parser.add_argument("--count", type=whole_from(1), metavar="N", help="with --watch: stop after N times")


def run_status(options: argparse.Namespace) -> int:
    """Say once whether the cluster works, or show the overview again and again."""
    if options.watch:
        return watch(options)
    if options.count is not None:
        raise BadRequest("no-watch", "--count is of --watch", hint="say --watch too")
    from appliance.cli import status  # noqa: PLC0415 - the cluster's library, only when called

    return status.run_status(options)


def watch(options: argparse.Namespace) -> int:
    """Show the overview until it is interrupted, or so many times. Raises LeaseholdError for what is no root."""
    from appliance.cluster import root_path  # noqa: PLC0415

    from .feed import Feed, ask_once  # noqa: PLC0415
    from .live import LiveSource  # noqa: PLC0415
    from .mount import Where  # noqa: PLC0415

    node_dir = Path(options.node_dir).absolute() if options.node_dir else None
    source = LiveSource(Where(root_path(options.root), node_dir, options.allow_root), SystemClock())
    ask_once(source, EVERY_NS)
    if source.mount.error is not None:
        raise source.mount.error
    states: SimpleQueue[ClusterState | BaseException] = SimpleQueue()
    feed = Feed(source, SystemClock(), EVERY_NS)
    screen = sys.stdout.isatty() and not options.json
    shown = 0
    try:
        feed.start(states.put, states.put)
        while options.count is None or shown < options.count:
            state = states.get()
            if isinstance(state, BaseException):
                raise state
            if _begun(state):
                _show(state, json=options.json, screen=screen, first=not shown)
                shown += 1
    except KeyboardInterrupt:
        return 0  # that is how it is left
    finally:
        feed.stop()
    return 0


def _begun(state: ClusterState) -> bool:
    """Whether there is an answer, or it is certain that there is none now."""
    return state.mount.reach is not Reach.WAITING


def _show(state: ClusterState, *, json: bool, screen: bool, first: bool) -> None:
    from .snapshot import json_fields, text_snapshot  # noqa: PLC0415

    if json:
        print_json("leasehold.top", json_fields(state))
    elif screen:
        size = shutil.get_terminal_size((120, 36))
        lines = text_snapshot(state, size.columns - 1).split("\n")[: size.lines - 1]
        drawn = "".join(f"{line}{REST_OF_LINE}\n" for line in lines)
        sys.stdout.write((CLEAR if first else "") + HOME + drawn + REST)
        sys.stdout.flush()
    else:
        say(status_line(state))
        sys.stdout.flush()


def status_line(state: ClusterState) -> str:
    """Return the overview in one line: when, how it is, the numbers, and every reason."""
    from .health import LEVEL_CELLS, health  # noqa: PLC0415
    from .overview import numbers_words  # noqa: PLC0415

    judged = health(state)
    when = rfc3339(state.clock.now.midpoint)[: len("2026-11-20T22:10:07")]
    parts = [f"{when}Z  {LEVEL_CELLS[judged.level].text}", numbers_words(state), *judged.reasons]
    return " · ".join(part for part in parts if part)


COMMANDS: Final = {"status": Command("Whether the cluster works, as seen from here.", _add_status, run_status)}
