"""Planting faults: what the audit must name afterwards. Each does what the real accident would do to the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.demo.director import Director


def during(fault: str, director: Director) -> None:
    """Plant what has to happen while the cluster runs."""


def afterwards(fault: str, director: Director, narrate: Callable[[str], None]) -> None:
    """Plant what happens to the tree when the cluster has stopped."""
