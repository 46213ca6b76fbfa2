"""Needless steps that the model has to notice: each is planted in the product, and a small cast no longer fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from appliance.bag import metronome
from appliance.daemon import pace
from appliance.lease import shard
from appliance.node import record_watch
from tests.support.mutants import plant

if TYPE_CHECKING:
    from types import ModuleType

    import pytest

MUTANTS: Final[dict[str, tuple[ModuleType, str, str, str]]] = {
    "the metronome looks at each beat": (
        metronome, "Metronome.turn", "next_ns = self._seal_due(self._unsealed())", "next_ns = now.earliest",
    ),
    "every node follows every log in use": (pace, "Pace._turn", "log.follow_to_ns", "2 ** 62"),
    "who watches trust lists the policies too": (
        record_watch, "TrustWatch._newest", "self._registers.newest_trust().number", "self._registers.newest().trust",
    ),
    "a ceiling is extended at each tick": (
        shard, "Shard.housekeeping", "self._gain_ns((now := self._time.now())) < self._policy.ceiling_period_ns",
        "self._gain_ns((now := self._time.now())) < 0",
    ),
}  # fmt: skip


def plant_needless(patch: pytest.MonkeyPatch, name: str) -> None:
    """Plant one of them."""
    plant(patch, *MUTANTS[name])
