"""The auditor's commands. They are in ``commands/``, and each is loaded when it is asked for."""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import Any, Final

from timeagent.console import Command

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""numpy starts threads for linear algebra when it is loaded: two fifths of its start. There is none here."""


def _command(summary: str, module: str, add_arguments: str = "add_arguments", run: str = "run") -> Command:
    def call(name: str, given: object) -> Any:  # noqa: ANN401 - whatever it returns
        return getattr(importlib.import_module(module), name)(given)

    return Command(summary, partial(call, add_arguments), partial(call, run))


COMMANDS: Final[dict[str, Command]] = {
    "audit": _command(
        "Judge a copy of a tree: what was violated, when and by whom, or that nothing was.", "auditor.commands.audit"
    ),
    "bundle": _command(
        "One finding's signed objects and keys in a tar file.",
        "auditor.commands.explain",
        "add_bundle_arguments",
        "run_bundle",
    ),
    "explain": _command("Show one finding's evidence in words.", "auditor.commands.explain"),
    "replay": _command(
        "The state of a copied cluster at an instant, step by step, and what if.", "auditor.commands.replay"
    ),
}
