"""``tenure view``: materialised views: what is there, what the newest says, and making a newer one."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from appliance.cli.opening import add_cluster_options, open_cluster
from timeagent.console import Command, Progress, counted, instant_fields, note, print_json, say
from timeagent.errors import BadRequest, Environment
from timeagent.units import rfc3339

if TYPE_CHECKING:
    from appliance.cluster import Cluster
    from appliance.formats.view import Checkpoint
    from appliance.views.fold import Fold

    from ..views.view import View

EXIT_NO: Final = 1
KEPT: Final = 8

FOLDS: Final = {"balances": "appliance.demo.balances:BALANCES"}
"""Folds that come with tenure, by the name of their view."""


def _add_view(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    ls = verbs.add_parser("ls", help="the views that have checkpoints, their folds, how far they are")
    show = verbs.add_parser("show", help="the state of a view at its newest checkpoint, as the fold wrote it")
    advance = verbs.add_parser("advance", help="take in what was settled since, and publish a checkpoint")
    advance.add_argument("--settle", action="store_true", help="first wait until everything up to now is final")
    prune = verbs.add_parser("prune", help="delete all but the newest checkpoints of a fold")
    prune.add_argument("--keep", type=int, default=KEPT, metavar="N", help=f"how many stay (default {KEPT})")
    for verb in (show, advance, prune):
        verb.add_argument("view", metavar="VIEW", help=f"{', '.join(FOLDS)}, or what --fold is called here")
        verb.add_argument("--fold", metavar="MODULE:NAME", help="a fold of yours, to be imported")
    for verb in (ls, show, advance, prune):
        add_cluster_options(verb)


def run_view(options: argparse.Namespace) -> int:
    """Run one verb."""
    with open_cluster(options) as cluster:
        if options.verb == "ls":
            return _list(cluster, options)
        from ..views.view import View

        view = View(cluster.context, cluster.logs, named_fold(options.view, options.fold))
        verbs = {"show": _show, "advance": _advance, "prune": _prune}
        return verbs[options.verb](cluster, view, options)


def named_fold(view: str, spec: str | None) -> Fold[Any]:
    """Return the fold of a view: one that comes with tenure, or the one that ``spec`` names. Raises BadRequest."""
    from appliance.views.fold import Fold

    spec = spec or FOLDS.get(view)
    if spec is None:
        raise BadRequest(
            "no-such-view",
            f"no fold is known for the view {view!r}",
            hint=f"name it: --fold MODULE:NAME; known: {', '.join(FOLDS)}",
        )
    module, _, name = spec.partition(":")
    try:
        fold = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise BadRequest(
            "bad-fold",
            f"{spec!r} cannot be imported: {problem}",
            hint="write MODULE:NAME, with the module on PYTHONPATH",
        ) from None
    if not isinstance(fold, Fold) or fold.view != view:
        kind = f"the fold of the view {fold.view}" if isinstance(fold, Fold) else f"a {type(fold).__name__}"
        raise BadRequest("bad-fold", f"{spec!r} is {kind}, not a fold of {view}", hint="name the view as its fold does")
    return fold


def _list(cluster: Cluster, options: argparse.Namespace) -> int:
    from appliance.formats.view import VIEWS, parse_fold, parse_horizon

    for view in _names(cluster, VIEWS):
        for fold in _names(cluster, f"{VIEWS}/{view}"):
            if parse_fold(fold) is None:
                continue
            path = f"{VIEWS}/{view}/{fold}"
            horizons = [at for name in _names(cluster, path) if (at := parse_horizon(name)) is not None]
            newest = max(horizons, default=None)
            if options.json:
                fields = {"view": view, "path": path, "checkpoints": len(horizons), **instant_fields("newest", newest)}
                print_json("tenure.view", fields)
            else:
                reached = "" if newest is None else f", the newest at {rfc3339(newest)}"
                say(f"{path}  {counted(len(horizons), 'checkpoint')}{reached}")
    return 0


def _names(cluster: Cluster, directory: str) -> list[str]:
    """Return what is in a directory; nothing for a foreign file that stands in its place."""
    try:
        return cluster.context.storage.list_afresh(directory) or []
    except Environment as problem:
        if problem.code != "not-a-directory":
            raise
        return []


def _fields(view: View[Any], checkpoint: Checkpoint) -> dict[str, object]:
    return {
        "view": checkpoint.view,
        "path": view.path,
        "messages": checkpoint.messages,
        "state_bytes": len(checkpoint.state),
        **instant_fields("horizon", checkpoint.horizon_ns),
    }


def _show(cluster: Cluster, view: View[Any], options: argparse.Namespace) -> int:
    del cluster
    checkpoint = view.newest()
    if checkpoint is None:
        note(f"tenure: {view.path} has no checkpoint yet; tenure view advance {options.view} makes one")
        return EXIT_NO
    if options.json:
        import base64

        try:
            state: dict[str, object] = {"state": msgspec.json.decode(checkpoint.state)}
        except msgspec.DecodeError:
            state = {"state_base64": base64.b64encode(checkpoint.state).decode("ascii")}
        print_json("tenure.view-state", {**_fields(view, checkpoint), **state})
        return 0
    reached = f"{counted(checkpoint.messages, 'message')} before {rfc3339(checkpoint.horizon_ns)}"
    note(f"tenure: {options.view} after {reached}")
    sys.stdout.buffer.write(checkpoint.state + b"\n")
    return 0


def _advance(cluster: Cluster, view: View[Any], options: argparse.Namespace) -> int:
    if options.settle:
        target = cluster.time.now().latest
        for log in view.logs:
            cluster.settle(log, target)
    progress = Progress("folded")
    checkpoint = view.advance(progress.show)
    progress.done()
    if options.json:
        print_json("tenure.view-advance", _fields(view, checkpoint))
    else:
        say(f"{view.path}/{checkpoint.horizon_ns:019d}  {counted(checkpoint.messages, 'message')}")
    return 0


def _prune(cluster: Cluster, view: View[Any], options: argparse.Namespace) -> int:
    del cluster
    deleted = view.prune(options.keep)
    if options.json:
        print_json("tenure.view-prune", {"view": options.view, "path": view.path, "deleted": deleted})
    else:
        say(f"deleted {counted(deleted, 'checkpoint')}")
    return 0


COMMANDS: Final = {"view": Command("Materialised views: what settled messages add up to.", _add_view, run_view)}
