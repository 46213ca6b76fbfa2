"""The register of planted faults: trees with one breach each, by the code that must name it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .tree import ClusterTree

type Plant = Callable[[Path], ClusterTree]

type Twins = Callable[[Path, Path], ClusterTree]
"""Makes two copies of one tree, at two places; returns the first."""

_PLANTS: dict[str, list[Plant]] = {}
_TWINS: dict[str, list[Twins]] = {}
_MODULES: Final = (
    "faults_bytes",
    "faults_trust",
    "faults_bags",
    "faults_packs",
    "faults_time",
    "faults_leases",
    "faults_sessions",
    "faults_words",
    "faults_chains",
    "faults_moves",
    "faults_missing",
    "faults_copies",
)


def plants(code: str) -> Callable[[Plant], Plant]:
    """Register a tree with one breach, and the code that must name it."""

    def register(plant: Plant) -> Plant:
        _PLANTS.setdefault(code, []).append(plant)
        return plant

    return register


def twins(code: str) -> Callable[[Twins], Twins]:
    """Register two copies that contradict each other, and the code that must name it."""

    def register(pair: Twins) -> Twins:
        _TWINS.setdefault(code, []).append(pair)
        return pair

    return register


def all_twins() -> dict[str, list[Twins]]:
    """Return every planted pair of copies by its code."""
    all_plants()
    return _TWINS


def all_plants() -> dict[str, list[Plant]]:
    """Return every planted fault by its code; the modules register theirs when they are imported."""
    for module in _MODULES:
        import_module(f".{module}", __package__)
    return _PLANTS
