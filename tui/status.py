"""``tenure status``: whether the cluster works, as seen from this machine: a line for each thing, and what to do.

``--watch``: the overview as text, again and again. In a terminal the whole overview is drawn over what was there; in a
pipe it is a line a second, with ``--json`` an object a line. It only looks, and judges, as ``top`` does.

Exit codes as of `doctor`: 0 all is well; 1 something does not work; 3 it works, and something should be known. Those of
``--watch`` say so of what was shown last.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options
from appliance.doctor.check import unknown
from timeagent.clock import SystemClock
from timeagent.console import Command, print_json, say, whole_from
from timeagent.errors import BadRequest
from timeagent.units import SECOND, rfc3339

from .model.state import Reach

if TYPE_CHECKING:
    from .model.state import ClusterState
    from .sources.live import LiveSource


HOME, REST_OF_LINE, REST, CLEAR = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"
EVERY_NS: Final = SECOND
PATIENCE_NS: Final = 5 * SECOND
"""How long each answer is waited for: longer than a shard's owner that stands still is given."""
NOTHING_SHOWN: Final = unknown("mount", "no answer yet", "wait a moment")


def _add_status(parser: argparse.ArgumentParser) -> None:
    add_cluster_options(parser)
    parser.add_argument(
        "--watch",
        action="store_true",
        help="the overview as text, once a second, until Ctrl-C; in a pipe a line each time; exit code as of the last",
    )
    parser.add_argument("--count", type=whole_from(1), metavar="N", help="with --watch: stop after N times")


def run_status(options: argparse.Namespace) -> int:
    """Say once whether the cluster works, or show the overview again and again."""
    if options.count is not None and not options.watch:
        raise BadRequest("no-watch", "--count is of --watch", hint="say --watch too")
    from .sources.live import live_source  # noqa: PLC0415 - the cluster's library, only when called

    source = live_source(options.root, options.node_dir, allow_root=options.allow_root, needs_node=not options.watch)
    try:
        return watch(source, options) if options.watch else _once(source, options)
    finally:
        source.close()


def _once(source: LiveSource, options: argparse.Namespace) -> int:
    """Look at everything, say a line for each. Raises TenureError for what is no root, or not this machine's."""
    from appliance.cli.doctor import told  # noqa: PLC0415

    from .feed import ask_once  # noqa: PLC0415
    from .model.overview import health  # noqa: PLC0415

    state = ask_once(source, PATIENCE_NS)
    answer = source.mount.answer
    if answer is None and source.mount.error is not None:
        raise source.mount.error
    fields = {
        "root": state.path,
        "cluster": state.cluster_id or None,
        "node": answer.own_node if answer else None,
        "map": answer.shard_map.number if answer else None,
    }
    return told("tenure.status", fields, health(state), options)


def watch(source: LiveSource, options: argparse.Namespace) -> int:
    """Show the overview once a second, until it is interrupted, or so many times; return how it was in the end.

    Raises TenureError for what is no root.
    """
    from appliance.doctor.check import exit_status  # noqa: PLC0415

    from .feed import Feed, ask_once  # noqa: PLC0415
    from .model.overview import health  # noqa: PLC0415

    clock = SystemClock()
    ask_once(source, EVERY_NS)
    if source.mount.error is not None:
        raise source.mount.error
    failed: list[BaseException] = []
    feed = Feed(source, clock, EVERY_NS)
    screen = sys.stdout.isatty() and not options.json
    shown, checks, due_ns = 0, [NOTHING_SHOWN], clock.boot_ns()
    try:
        feed.start(lambda _: None, failed.append)
        while options.count is None or shown < options.count:
            state = source.state_at()
            if _begun(state):
                checks = health(state)
                _show(state, json=options.json, screen=screen, first=not shown)
                shown += 1
            if failed:
                raise failed[0]
            # What took longer than a second, a suspend for example, is not made up for.
            due_ns = max(due_ns + EVERY_NS, clock.boot_ns())
            if shown != options.count:
                clock.sleep(due_ns - clock.boot_ns())
    except KeyboardInterrupt:
        pass  # that is how it is left
    finally:
        feed.stop()
    return exit_status(checks)


def _begun(state: ClusterState) -> bool:
    """Whether there is an answer, or it is certain that there is none now."""
    return state.mount.reach is not Reach.WAITING


def _show(state: ClusterState, *, json: bool, screen: bool, first: bool) -> None:
    from .model.overview import json_fields, text_snapshot  # noqa: PLC0415

    if json:
        print_json("tenure.top", json_fields(state))
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
    """Return the overview in one line: when, how it is, the numbers, and every reason with its way out."""
    from appliance.doctor.check import not_well  # noqa: PLC0415

    from .model.overview import (  # noqa: PLC0415
        health,
        level_cell,
        numbers_words,
    )

    checks = health(state)
    when = rfc3339(state.clock.now.midpoint)[: len("2026-11-20T22:10:07")]
    reasons = [f"{check.words} → {check.way_out}" if check.way_out else check.words for check in not_well(checks)]
    return " · ".join(part for part in (f"{when}Z  {level_cell(checks).text}", numbers_words(state), *reasons) if part)


COMMANDS: Final = {"status": Command("Whether the cluster works, as seen from here.", _add_status, run_status)}
