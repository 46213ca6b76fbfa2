"""Every mutant of the tables of the tests, under one name, and how it is planted for a whole process.

A table's own test plants a mutant while it runs, where the table says. Here it is planted before any test begins, and
wherever a function that it replaces is known by name.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from appliance import views
from auditor.columns import records
from auditor.evidence import records as trust_rules
from auditor.rules import sequences, timestamps
from tests import conftest as _profile  # noqa: F401 - how properties are tried: before any of them is made
from tests.faults import test_bag_mutants as bag
from tests.faults import test_crowd_mutants as crowd
from tests.faults import test_failover_mutants as tenancy
from tests.faults import test_full_disk as full_disk
from tests.faults import test_hint_mutants as hint
from tests.faults import test_lease_mutants as lease
from tests.faults import test_limit_mutants as limit
from tests.faults import test_pace_mutants as pace
from tests.faults import test_packing_mutants as packing
from tests.faults import test_plain_mutants as plain
from tests.faults import test_queue_mutants as queue
from tests.faults import test_reading_mutants as reading
from tests.faults import test_recall_mutants as recall
from tests.faults import test_recipe_mutants as recipe
from tests.faults import test_restart_mutants as restart
from tests.faults import test_route_mutants as route
from tests.faults import test_session_mutants as session
from tests.faults import test_several_mutants as several
from tests.faults import test_several_session_mutants as several_session
from tests.faults import test_store_mutants as store
from tests.faults import test_view_races as races
from tests.mutation import reach
from tests.property import test_auditor_records as shapes
from tests.property import test_auditor_sequences as sequence
from tests.simulation import test_kept_turns as turns
from tests.simulation.exhaustive import table as exhaustive
from tests.simulation.mutant import Mutant
from tests.simulation.mutants import MUTANTS as SIMULATION
from tests.simulation.planting import Planter
from tests.support.mutants import plant, plant_in_text, plant_step
from tests.tui import test_record_drawings as drawings
from tests.unit import test_auditor_columns_mutants as columns
from tests.unit import test_auditor_dropped as dropped
from tests.unit import test_auditor_lineage as lineage
from tests.unit import test_auditor_named_frames as named
from tests.unit import test_auditor_shortcuts as shortcuts
from tests.unit import test_auditor_trust as trust
from tests.unit import test_bag_given_up as given_up
from tests.unit import test_replay_kept as kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pytest

PACKAGES = ("tenure", "tui", "auditor", "appliance", "timeagent", "tests")

type Planting = Callable[[pytest.MonkeyPatch], None]
type Table = dict[str, Planting]


def _in_text(module: ModuleType, function: str, old: str, new: str, *_: object) -> Planting:
    return lambda patch: plant(patch, module, function, old, new)


def _in_string(module: ModuleType, function: str, old: str, new: str, *_: object) -> Planting:
    return lambda patch: plant_in_text(patch, module, function, old, new)


def _in_lines(module: ModuleType, function: str, old: str, new: str, *_: object) -> Planting:
    return lambda patch: Planter(patch).plant(module, function, old, new)


def _step(owner: type, step: str, wrong: Callable[..., object]) -> Planting:
    return lambda patch: plant_step(patch, owner, step, wrong)


def _noticed(module: ModuleType) -> Table:
    """Read a table of ``tests.support.mutants.Mutant``."""
    table: Mapping[str, Any] = module.MUTANTS
    return {name: _in_text(each.module, each.function, each.old, each.new) for name, each in table.items()}


def _tuples(table: Mapping[str, tuple[Any, ...]], planting: Callable[..., Planting] = _in_text) -> Table:
    return {name: planting(*each) for name, each in table.items()}


def _steps(table: list[tuple[type, str, Callable[..., object]]]) -> Table:
    return {wrong.__name__: _step(owner, step, wrong) for owner, step, wrong in table}


def _within(module: ModuleType, table: Mapping[str, tuple[Any, ...]], planting: Callable[..., Planting]) -> Table:
    """Read a table whose mutants are all of one module, and do not name it."""
    return {name: planting(module, *each) for name, each in table.items()}


TABLES: dict[str, Table] = {
    "simulation": {each.name: each.plant for each in SIMULATION},
    "turns": {name: Mutant(name, breaks, "").plant for name, breaks in turns.MUTANTS.items()},
    "exhaustive": {name: each.apply for name, each in exhaustive.MUTANTS.items()},
    **{
        name: _noticed(module)
        for name, module in {
            "crowd": crowd,
            "given up": given_up,
            "lease": lease,
            "limit": limit,
            "pace": pace,
            "queue": queue,
            "recipe": recipe,
            "restart": restart,
            "route": route,
            "tenancy": tenancy,
        }.items()
    },
    "columns": _tuples(columns.MUTANTS),
    "plain": _tuples(plain.MUTANTS),
    "recall": _tuples(recall.MUTANTS),
    "session": _tuples(session.SHARD) | _tuples(session.HOLDER),
    "several": _tuples(several.MUTANTS | several_session.MUTANTS, _in_lines),
    "store": _tuples(store.MUTANTS),
    "full disk": _tuples(full_disk.MUTANTS),
    "hint": _tuples(hint.MUTANTS, _in_lines) | {name: _in_lines(*fault) for name, (fault, _) in hint.NAMED.items()},
    "reading": {each[0]: _in_lines(*each[1:]) for each in reading.MUTANTS},
    "bag": _steps(bag.MUTANTS),
    "log": _steps(bag.LOG_MUTANTS),
    "packing": _steps(packing.MUTANTS),
    "view": _within(views, {name: ("View.advance", *each) for name, each in races.MUTANTS.items()}, _in_lines),
    "drawing": {
        f"{each[1]}: {each[3]}": _in_text(drawings.DRAWINGS[each[0]][0], *each[1:]) for each in drawings.MUTANTS
    },
    "kept": {f"{each[1]}: {each[3]}": _in_string(*each) for each in kept.MUTANTS},
    "check": {f"{each[1]}: {each[2]}: {each[3]}": _in_text(*each) for each in lineage.MUTANTS},
    "dropped": _tuples(dropped.MUTANTS),
    "trust": _within(trust_rules, trust.MUTANTS, _in_text),
    "shortcut": _within(timestamps, shortcuts.MUTANTS, _in_text),
    "named frame": _within(sequences, {n: ("_signed_before_named", *e) for n, e in named.MUTANTS.items()}, _in_text),
    "sequence": {name: _in_string(sequences, *each) for name, each in sequence.MUTANTS.items()},
    "record": _within(records, {name: ("_pattern", *each) for name, each in shapes.MUTANTS.items()}, _in_string),
}


class _Everywhere:
    """A function that is set in one module is set wherever else it is known by name, as if imported only now."""

    def __init__(self) -> None:
        self.functions: list[str] = []

    def setattr(self, owner: Any, attribute: str, value: object) -> None:  # noqa: ANN401 - a module or a class
        before = getattr(owner, attribute)
        # Of what is no function, or is replaced twice: whoever makes an object of the class.
        function = reach.named(owner, attribute) or reach.named(owner, "__init__")
        assert function is not None, f"{owner} {attribute}: no function of ours"
        self.functions.append(function)
        setattr(owner, attribute, value)
        if not isinstance(owner, ModuleType):
            return  # a method is looked up when it is called
        for known, module in list(sys.modules.items()):
            if known.partition(".")[0] in PACKAGES:
                for name in [name for name, each in vars(module).items() if each is before]:
                    setattr(module, name, value)


def names() -> list[str]:
    """Return every mutant's name, "table: mutant"."""
    return [f"{table}: {name}" for table, mutants in TABLES.items() for name in mutants]


def plant_for_good(name: str) -> list[str]:
    """Plant a mutant in this process, and return the functions that it replaces, as ``reach.named`` names them."""
    table, _, mutant = name.partition(": ")
    patch = _Everywhere()
    TABLES[table][mutant](cast("pytest.MonkeyPatch", patch))
    return patch.functions
