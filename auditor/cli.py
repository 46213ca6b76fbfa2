"""The auditor's commands. They are in ``commands/``."""

from __future__ import annotations

from typing import Final

from timeagent.console import Command

from .commands import audit, explain, replay

COMMANDS: Final[dict[str, Command]] = {
    "audit": Command(
        "Judge a copy of a tree: what was violated, when and by whom, or that nothing was.",
        audit.add_arguments,
        audit.run,
    ),
    "bundle": Command(
        "One finding's signed objects and keys in a tar file.", explain.add_bundle_arguments, explain.run_bundle
    ),
    "explain": Command("Show one finding's evidence in words.", explain.add_arguments, explain.run),
    "replay": Command(
        "The state of a copied cluster at an instant, step by step, and what if.", replay.add_arguments, replay.run
    ),
}
