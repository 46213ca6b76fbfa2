"""A NodeTime that only moves when it is told to."""

from __future__ import annotations

from auditor.planting.handtime import HandTime

__all__ = ["HandTime"]
