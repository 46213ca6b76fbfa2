"""``tenure view``: materialised views: what is there, what the newest says, and making a newer one."""

from __future__ import annotations

import base64
import importlib
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

import msgspec

from appliance.cluster import Cluster
from timeagent.console import (
    Argument,
    Command,
    Progress,
    argument,
    counted,
    instant_fields,
    note,
    present,
    print_json,
    with_verbs,
)
from timeagent.errors import BadRequest, Environment
from timeagent.units import rfc3339

from ..formats.view import VIEWS, Checkpoint, parse_fold, parse_horizon
from ..views import Fold, View
from .opening import cluster_command

EXIT_NO: Final = 1
KEPT: Final = 8

FOLDS: Final = {"balances": "appliance.demo.bank:BALANCES"}
"""Folds that come with tenure, by the name of their view."""


def named_fold(view: str, spec: str | None) -> Fold[Any]:
    """Return the fold of a view: one that comes with tenure, or the one that ``spec`` names. Raises BadRequest."""
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


def _list(cluster: Cluster, options: Namespace) -> int:
    for view in _names(cluster, VIEWS):
        for fold in _names(cluster, f"{VIEWS}/{view}"):
            if parse_fold(fold) is None:
                continue
            path = f"{VIEWS}/{view}/{fold}"
            horizons = [at for name in _names(cluster, path) if (at := parse_horizon(name)) is not None]
            newest = max(horizons, default=None)
            fields = {"view": view, "path": path, "checkpoints": len(horizons), **instant_fields("newest", newest)}
            reached = "" if newest is None else f", the newest at {rfc3339(newest)}"
            present(options, "tenure.view", fields, f"{path}  {counted(len(horizons), 'checkpoint')}{reached}")
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


def _show(_cluster: Cluster, view: View[Any], options: Namespace) -> int:
    checkpoint = view.newest()
    if checkpoint is None:
        note(f"tenure: {view.path} has no checkpoint yet; tenure view advance {options.view} makes one")
        return EXIT_NO
    if options.json:
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


def _advance(cluster: Cluster, view: View[Any], options: Namespace) -> int:
    if options.settle:
        target = cluster.time.now().latest
        for log in view.logs:
            cluster.settle(log, target)
    progress = Progress("folded")
    checkpoint = view.advance(progress.show)
    progress.done()
    words = f"{view.path}/{checkpoint.horizon_ns:019d}  {counted(checkpoint.messages, 'message')}"
    return present(options, "tenure.view-advance", _fields(view, checkpoint), words)


def _prune(_cluster: Cluster, view: View[Any], options: Namespace) -> int:
    deleted = view.prune(options.keep)
    fields = {"view": options.view, "path": view.path, "deleted": deleted}
    return present(options, "tenure.view-prune", fields, f"deleted {counted(deleted, 'checkpoint')}")


def _on_view(help_text: str, work: Callable[[Cluster, View[Any], Namespace], int], *own: Argument) -> Command:
    """Return a verb about one view."""

    def run(cluster: Cluster, options: Namespace) -> int:
        return work(cluster, View(cluster.context, cluster.logs, named_fold(options.view, options.fold)), options)

    view = argument("view", metavar="VIEW", help=f"{', '.join(FOLDS)}, or what --fold is called here")
    fold = argument("--fold", metavar="MODULE:NAME", help="a fold of yours, to be imported")
    return cluster_command(help_text, run, *own, view, fold)


_VERBS: Final = {
    "ls": cluster_command("the views that have checkpoints, their folds, how far they are", _list),
    "show": _on_view("the state of a view at its newest checkpoint, as the fold wrote it", _show),
    "advance": _on_view(
        "take in what was settled since, and publish a checkpoint",
        _advance,
        argument("--settle", action="store_true", help="first wait until everything up to now is final"),
    ),
    "prune": _on_view(
        "delete all but the newest checkpoints of a fold",
        _prune,
        argument("--keep", type=int, default=KEPT, metavar="N", help=f"how many stay (default {KEPT})"),
    ),
}
COMMANDS: Final = {"view": with_verbs("Materialised views: what settled messages add up to.", _VERBS)}
