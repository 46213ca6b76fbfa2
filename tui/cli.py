"""``leasehold top``: the live screen; ``--once`` prints one snapshot of it."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.cli.opening import add_cluster_options
from timeagent.clock import SystemClock
from timeagent.console import Command, print_json, say
from timeagent.errors import BadRequest, TryAgain
from timeagent.units import SECOND

if TYPE_CHECKING:
    from .live import LiveSource

PATIENCE_NS: Final = 5 * SECOND
"""How long one snapshot waits for an answer."""

START_PATIENCE_NS: Final = SECOND
"""How long the screen waits for the mount before it opens without it; until then a wrong path is refused at once."""


def _add_top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a root, a copy of one, or the directory of a demo (default: --root)"
    )
    add_cluster_options(parser)
    parser.add_argument(
        "--once", action="store_true", help="print one snapshot as text and exit; also where stdout is no terminal"
    )


def run_top(options: argparse.Namespace) -> int:
    """Show the screen until it is left, or print one snapshot."""
    from appliance.cluster import root_path  # noqa: PLC0415 - the cluster's library, only when called

    from .live import LiveSource  # noqa: PLC0415
    from .mount import Where  # noqa: PLC0415

    if options.path and options.root:
        raise BadRequest("two-roots", f"both {options.path} and --root {options.root} are named", hint="name one")
    node_dir = Path(options.node_dir).absolute() if options.node_dir else None
    where = Where(root_path(options.path or options.root), node_dir, options.allow_root)
    source = LiveSource(where, SystemClock())
    terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if options.once or options.json or not terminal:
        return _once(source, json=options.json)
    return _live(source)


def _once(source: LiveSource, *, json: bool) -> int:
    from .feed import ask_once  # noqa: PLC0415
    from .snapshot import json_fields, text_snapshot  # noqa: PLC0415

    state = ask_once(source, PATIENCE_NS)
    if not state.cluster_id:
        raise source.mount.error or TryAgain(
            "no-answer", f"no answer from the mount at {state.path}", hint="see whether its file server answers"
        )
    if json:
        print_json("leasehold.top", json_fields(state))
    else:
        say(text_snapshot(state, shutil.get_terminal_size((120, 36)).columns))
    return 0


def _live(source: LiveSource) -> int:
    from threading import Thread  # noqa: PLC0415

    first = Thread(target=source.mount.put, daemon=True)
    first.start()
    first.join(START_PATIENCE_NS / SECOND)
    if source.mount.error is not None:
        raise source.mount.error
    from .app import TopApp  # noqa: PLC0415 - the screen's library, only for the screen
    from .feed import Feed  # noqa: PLC0415

    app = TopApp(Feed(source, SystemClock()))
    app.run()
    return app.return_code or 0


COMMANDS: Final = {"top": Command("The live screen: nodes, leases, bags. Looks, changes nothing.", _add_top, run_top)}
