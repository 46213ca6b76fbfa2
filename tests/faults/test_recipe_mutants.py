"""Each rule of locks, semaphores, elections and gates, broken once: the test named beside it must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.node import hosted_shard
from appliance.recipes import election, exclusion, fence_gate, mount_election
from appliance.testing import stepped_cluster
from tests.support.cluster import HandSite, hand_sites
from tests.support.mutants import Mutant, check_noticed
from tests.unit import test_lease_counts as count_tests
from tests.unit import test_recipes_election as election_tests
from tests.unit import test_recipes_locks as lock_tests
from tests.unit import test_recipes_mount_election as mount_tests
from tests.unit import test_testing as stepped_tests
from tests.unit.test_recipes_election import gates  # noqa: F401 - the fixture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MUTANTS = {
    "a use that ends gives the lease back from under the others": Mutant(
        exclusion,
        "Hold.relinquish",
        "not self.lease.uses",
        "True",
        lock_tests.test_reentrant_use_has_the_same_fence_and_the_last_gives_it_back,
    ),
    "a use that ends twice counts twice": Mutant(
        exclusion,
        "Hold.relinquish",
        "self._over = True",
        "pass",
        lock_tests.test_reentrant_use_has_the_same_fence_and_the_last_gives_it_back,
    ),
    "who reads may write again": Mutant(
        exclusion,
        "Locked._again",
        "self._reentrant and covers(lease.mode, self._mode)",
        "self._reentrant",
        lock_tests.test_writer_may_read_again_and_a_reader_may_not_write,
    ),
    "nothing is checked before an act": Mutant(
        exclusion,
        "Hold.act",
        "self.check(margin_s=margin_s)",
        "pass",
        lock_tests.test_lost_mutex_is_told_and_acts_no_more,
    ),
    "slots of dead holders are of their size for ever": Mutant(
        exclusion,
        "Semaphore._next",
        "domain not in self._slots and (not (now.surely_past(expiry) and self._is_over(domain)))",
        "domain not in self._slots",
        lock_tests.test_slots_of_another_number_whose_holder_died_refuse_nobody_for_ever,
    ),
    "who waits for its turn hears of no other number": Mutant(
        exclusion,
        "Semaphore._taken",
        "misfits is None",
        "False",
        lock_tests.test_who_waits_for_its_turn_is_told_that_the_numbers_differ,
    ),
    "the slot whose lease expires last is waited for": Mutant(
        exclusion,
        "Semaphore._next",
        "expiries.get(slot, 0)",
        "-expiries.get(slot, 0)",
        lock_tests.test_slot_of_a_dead_holder_is_had_when_its_lease_is_past,
    ),
    "a slash in a name makes a tree": Mutant(
        exclusion,
        "tree_of",
        "name.replace('%', '%25').replace('/', '%2F')",
        "name.replace('/', '%2F')",
        lock_tests.test_names_are_kept_apart,
        ("a%2Fb",),
    ),
    "whoever comes first leads, whoever is nominated": Mutant(
        election,
        "Election._taken",
        "not nominations or self._own in nominations",
        "True",
        election_tests.test_lead_is_handed_over_to_the_one_who_is_named_whoever_comes_first,
    ),
    "a dead leader's nomination counts for ever": Mutant(
        election,
        "Election._out",
        "not now.surely_past(each.expiry_ns)",
        "True",
        election_tests.test_expired_leader_is_shown_to_nobody,
    ),
    "a lower fence passes": Mutant(
        fence_gate,
        "FenceGate._refused",
        "highest > fence",
        "highest > fence + 10",
        election_tests.test_gate_lets_the_highest_fence_pass_and_refuses_the_one_before,
    ),
    "a fence is not kept": Mutant(
        fence_gate,
        "FenceGate.passing",
        "self._execute(_KEEP, name, fence)",
        "pass",
        election_tests.test_fence_is_remembered_before_its_holder_passes_whatever_becomes_of_it,
    ),
    "others pass beside one who passes": Mutant(
        fence_gate,
        "FenceGate._alone",
        "self._execute('BEGIN IMMEDIATE')",
        "self._execute('BEGIN')",
        election_tests.test_nobody_passes_while_another_looks_whether_it_may,
    ),
    "who is not named follows a leader that resigned": Mutant(
        mount_election,
        "MountElection._may_follow",
        "newest.kind is EpochKind.RESIGNED and newest.successor in ('', self.candidate)",
        "newest.kind is EpochKind.RESIGNED",
        mount_tests.test_lead_is_handed_over_to_the_one_who_is_named,
    ),
    "a leader that lapsed goes on": Mutant(
        mount_election,
        "MountLeadership.extend",
        "not now.surely_before(self._newest.until_ns)",
        "False",
        mount_tests.test_leader_that_lapsed_is_over_for_good_and_is_told_so_once,
    ),
    "a look that fails ends a campaign": Mutant(
        mount_election,
        "MountElection.campaign",
        "(Environment, TryAgain)",
        "KeyError",
        mount_tests.test_mount_that_fails_for_a_while_is_waited_for,
    ),
    "who is paused renews": Mutant(
        stepped_cluster,
        "SteppedCluster._renew",
        "session not in self._paused",
        "True",
        stepped_tests.test_paused_holder_loses_its_lease_to_who_waits,
    ),
    "every name is a part of its own": Mutant(
        hosted_shard,
        "LeaseCounts._part",
        "len(self.parts) >= PARTS_MAX",
        "False",
        count_tests.test_names_of_which_too_many_come_are_counted_together,
    ),
    "what is left out of a large block is not counted": Mutant(
        hosted_shard,
        "LeaseCounts.count",
        "self.grants[part] += weight",
        "self.grants[part] += 1",
        count_tests.test_large_block_is_counted_by_a_sample,
    ),
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=1)


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(
    name: str,
    site: HandSite,
    gates: Callable[..., fence_gate.FenceGate],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stepped_cluster.SteppedCluster() as cluster:
        ports = {
            "site": site,
            "gates": gates,
            "town": mount_tests.Town(),
            "tenure_cluster": cluster,
            "monkeypatch": monkeypatch,
        }
        check_noticed(monkeypatch, MUTANTS[name], ports)
