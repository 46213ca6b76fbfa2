"""Hints done wrong are caught: by some random history in which a narrow reading is not the full one, or by name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from appliance.bag import closedbags, reader
from appliance.formats import hints
from appliance.formats.birth import BagKind
from appliance.lease import decisions, domain, whole_shard
from appliance.session import leasing, open_logs, session
from tests.simulation.planting import Planter
from tests.support.hint_world import HintWorld
from tests.support.shares import shares
from tests.unit import test_session_hints as unit
from timeagent.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

SEEDS = 80

type Fault = tuple[ModuleType, str, str, str]

MUTANTS: dict[str, Fault] = {
    "complete_from is lowered": (
        hints,
        "joined",
        "max(one.complete_from_ns, other.complete_from_ns)",
        "min(one.complete_from_ns, other.complete_from_ns)",
    ),
    "broken holder's hints are kept": (
        decisions,
        "broken",
        "end_lease(domain, left, lease, ending, (lease.expiry_ns, lease.expiry_ns), None, bounds)",
        "end_lease(domain, left, lease, ending, (lease.expiry_ns, lease.expiry_ns), lease.hints, bounds)",
    ),
    "restarted shard claims to know": (
        whole_shard,
        "Eviction.memory",
        "nothing_known(self.floor_ns)",
        "nothing_known(0)",
    ),
    "hints where others may write": (domain, "hints_for", "mode.reads_all", "True"),
    "own messages are forgotten": (open_logs, "_files", "(*places, *lease.own.places)", "places"),
    "one file for frames in several": (session, "Session._account", "outcome.file_name if alone else None", "'x'"),
    "last time of an attempt in doubt is taken for the only one": (
        session,
        "Session._attempt",
        "alone=alone",
        "alone=True",
    ),
    "hints are believed below their reach": (
        open_logs,
        "_reach_ns",
        "return max(lease.hints.reach_ns(log), lease.own.reach_ns(log))",
        "return 0",
    ),
    "no hints are taken for all": (open_logs, "_reach_ns", "return INSTANT_MAX", "return 0"),
    "bound of the own messages is forgotten": (
        open_logs,
        "_reach_ns",
        "max(lease.hints.reach_ns(log), lease.own.reach_ns(log))",
        "0 if lease.own.places else lease.hints.reach_ns(log)",
    ),
    "messages of other domains": (open_logs, "_naming", "not domains.isdisjoint(part.origin.domains)", "True"),
    "closed bags are not read": (
        reader,
        "Reader._named_bag",
        "return None if closed is None else _unsettled(self._closed_bag(closed, after, INSTANT_MAX, files))",
        "return None",
    ),
    "any of a bag's files for one": (closedbags, "ListedFiles.pieces", "entry.name in only", "entry.name not in only"),
}

NAMED: dict[str, tuple[Fault, Callable[..., None]]] = {
    "renewal forgets hints": (
        (domain, "said", "hints is None", "True"),
        unit.test_renewals_say_where_and_relinquishing_need_not_repeat_it,
    ),
    "relinquishing forgets what renewals said": (
        (decisions, "relinquished", "joined(lease.hints, command.hints)", "command.hints"),
        unit.test_renewals_say_where_and_relinquishing_need_not_repeat_it,
    ),
    "unanswered renewal counts as heard": (
        (
            leasing,
            "Leasing._renewed",
            "isinstance(result, LeaseGranted) and lease.correlation_id in news",
            "lease.correlation_id in news",
        ),
        lambda site: unit.test_renewal_without_an_answer_loses_nothing(site, "lost"),
    ),
    "attempts in doubt are forgotten": (
        (open_logs, "_files", "dict.fromkeys(doubtful)", "{}"),
        unit.test_attempt_in_doubt_is_read_where_it_is,
    ),
    "bound is lowered": (
        (
            hints,
            "joined",
            "max(bounds.get(bound.log, 0), bound.above_ns)",
            "min(bounds.get(bound.log, bound.above_ns), bound.above_ns)",
        ),
        lambda _: unit.test_bound_of_a_log_never_falls(),
    ),
    "place forgotten and no bound raised": (
        (
            hints,
            "joined",
            "bounds[most] = min((each.last_ns for each in places if each.log == most))",
            "places = [each for each in places if each.log != most or each is not places[0]]",
        ),
        unit.test_number_of_places_is_limited_and_the_newest_are_kept,
    ),
    "whole bags are read": (
        (open_logs, "_files", "names.add(place.file_name)", "files[place.bag_start_ns] = None"),
        lambda site: unit.test_narrow_reading_touches_named_files_only(site, BagKind.MAILDIR, settled=False),
    ),
    "no word about what was written": (
        (
            decisions,
            "relinquished",
            "None if command.hints is None else joined(lease.hints, command.hints)",
            "joined(lease.hints, command.hints or lease.hints)",
        ),
        unit.test_holder_that_says_nothing_about_where_it_wrote_leaves_nothing_known,
    ),
    "open bag is not looked at afterwards": (
        (
            reader,
            "Reader._open_bag",
            "if files is not None and (not begun) and (not self._authority.rack_begun(bag.rack)):",
            "if files is not None:",
        ),
        unit.test_open_bag_that_is_named_is_looked_at_after_its_files_were_read,
    ),
    "hint taken as existence in a closed bag": (
        (
            closedbags,
            "ListedFiles.pieces",
            "for entry in lock.entries if entry.name in only",
            "for entry in [lock.by_name()[name] for name in only]",
        ),
        unit.test_what_is_named_and_is_not_there_holds_nothing,
    ),
    "hint taken as existence in an open bag": (
        (
            reader,
            "Reader._files_there",
            "[name for name in names if self._grid.data_name(name) and (only is None or name in only)]",
            "names if only is None else list(only)",
        ),
        unit.test_what_is_named_and_is_not_there_holds_nothing,
    ),
    "bag without a directory is waited for": (
        (reader, "Reader._named_bag", "is_there(self._storage, bag.path)", "True"),
        unit.test_what_is_named_and_is_not_there_holds_nothing,
    ),
}


def plant(patch: pytest.MonkeyPatch, fault: Fault) -> None:
    """Plant a fault, also where the function is known by a name of its own."""
    module, name = fault[:2]
    original = getattr(module, name, None)
    Planter(patch).plant(*fault)
    for other in [each for known, each in sys.modules.items() if known.startswith("appliance.")]:
        if original is not None and vars(other).get(name) is original:
            patch.setattr(other, name, getattr(module, name))


def wrong_in(path: Path, seed: int) -> bool:
    directory = path / str(seed)
    directory.mkdir()
    world = HintWorld(directory, seed)
    try:
        world.run()
    except (AssertionError, TenureError, KeyError):
        return True
    finally:
        world.close()
    return False


@pytest.mark.parametrize("share", shares(4))
def test_nothing_is_wrong_without_a_fault_and_hints_are_used(tmp_path: Path, share: int) -> None:
    narrow_readings = 0
    for seed in range(share, SEEDS, 4):
        directory = tmp_path / str(seed)
        directory.mkdir()
        world = HintWorld(directory, seed)
        world.run()
        world.close()
        narrow_readings += world.narrow
    assert narrow_readings > SEEDS // 4


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_fault_is_noticed_in_some_history(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, MUTANTS[name])
    assert any(wrong_in(tmp_path, seed) for seed in range(SEEDS))


@pytest.mark.verify
@pytest.mark.parametrize("name", NAMED)
def test_fault_is_noticed_by_its_test(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fault, test = NAMED[name]
    for site in unit.sites(tmp_path):
        test(site)
        plant(monkeypatch, fault)
        break
    clean = tmp_path / "again"
    clean.mkdir()
    for site in unit.sites(clean):
        with pytest.raises((AssertionError, TenureError, KeyError)):
            test(site)
        break
