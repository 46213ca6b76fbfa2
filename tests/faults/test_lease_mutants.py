"""Each rule of the lease shard, broken once: the test named beside it must notice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings

from appliance.formats.lease import Mode, Phase
from appliance.lease import decisions, domain, shard, store, whole_shard, witness_ledger
from tests.property import test_lease_model as model_tests
from tests.support.cluster import HandSite, hand_sites
from tests.support.mutants import Mutant, check_noticed
from tests.support.shards import TERM, World
from tests.unit import test_lease_decisions as state_tests
from tests.unit import test_lease_endings as ending_tests
from tests.unit import test_lease_held_ends as held_tests
from tests.unit import test_lease_modes as mode_tests
from tests.unit import test_lease_shard as shard_tests
from tests.unit import test_lease_store as store_tests
from tests.unit import test_lease_waiting as waiting_tests
from tests.unit import test_shard_life as life_tests


# The property without the search for the smallest example: that takes longest, and nobody reads it here.
@settings(phases=[Stage.generate])
@given(model_tests.STEPS)
def no_two_holders_can_write_the_same_instant(steps: list[tuple[object, ...]]) -> None:
    model_tests.follow(steps)


MUTANTS = {
    "granted when not surely past": Mutant(
        decisions,
        "_breakable",
        "bounds.now.surely_past(lease.expiry_ns)",
        "lease.expiry_ns <= bounds.now.latest",
        shard_tests.test_lease_is_broken_only_when_surely_past_and_in_somebodys_way,
    ),
    "broken when not surely past": Mutant(
        decisions,
        "_decide_break",
        "bounds.now.surely_past(each.expiry_ns)",
        "each.expiry_ns <= bounds.now.earliest",
        state_tests.test_lease_is_broken_when_surely_past_and_not_a_nanosecond_before,
        (Phase.HELD,),
    ),
    "younger request wounds": Mutant(
        decisions,
        "_breakable",
        "age < lease.age",
        "True",
        shard_tests.test_younger_request_does_not_touch_a_tentative_lease,
    ),
    "held lease is wounded": Mutant(
        decisions,
        "_breakable",
        "lease.phase is Phase.TENTATIVE and age < lease.age",
        "age < lease.age",
        shard_tests.test_held_lease_is_not_withdrawn_by_an_older_request,
    ),
    "withdrawn lease moves the floor": Mutant(
        decisions,
        "broken",
        "lease.phase is Phase.TENTATIVE",
        "False",
        shard_tests.test_expired_tentative_lease_ends_as_withdrawn_and_moves_nothing,
    ),
    "broken lease moves no floor": Mutant(
        decisions,
        "broken",
        "(lease.expiry_ns, lease.expiry_ns)",
        "(0, lease.expiry_ns)",
        shard_tests.test_lease_is_broken_only_when_surely_past_and_in_somebodys_way,
    ),
    "broken lease moves no settle_to": Mutant(
        decisions,
        "broken",
        "(lease.expiry_ns, lease.expiry_ns)",
        "(lease.expiry_ns, 0)",
        shard_tests.test_lease_is_broken_only_when_surely_past_and_in_somebodys_way,
    ),
    "floor is not cumulative": Mutant(
        decisions,
        "end_lease",
        "max(before.floor_ns, floor)",
        "floor",
        ending_tests.test_floor_is_cumulative_over_holders,
    ),
    "settle_to is not cumulative": Mutant(
        decisions,
        "end_lease",
        "max(before.settle_to_ns, settle_to)",
        "settle_to",
        ending_tests.test_floor_is_cumulative_over_holders,
    ),
    "expiry beyond the ceiling": Mutant(
        domain,
        "Bounds.expiry",
        "self.ceiling_ns",
        "2**62",
        shard_tests.test_expiry_never_exceeds_the_own_ceiling,
    ),
    "expiry later than asked": Mutant(
        domain,
        "Bounds.expiry",
        "min(self.now.midpoint + term, expiry_ns_max, self.ceiling_ns, self.signed_ns_max)",
        "min(self.now.midpoint + term, self.ceiling_ns, self.signed_ns_max)",
        shard_tests.test_delayed_request_never_yields_a_later_expiry_than_asked,
    ),
    "expiry beyond what readers accept": Mutant(
        domain,
        "Bounds.expiry",
        "min(self.now.midpoint + term, expiry_ns_max, self.ceiling_ns, self.signed_ns_max)",
        "min(self.now.midpoint + term, expiry_ns_max, self.ceiling_ns)",
        shard_tests.test_expiry_stays_within_what_readers_accept_with_an_older_signed_time,
    ),
    "renewal shortens": Mutant(
        decisions,
        "_later_expiry",
        "later_expiry(lease.expiry_ns, command, bounds)",
        "bounds.expiry(command.term_ns, command.expiry_ns_max)",
        ending_tests.test_renewal_never_states_an_earlier_expiry,
    ),
    "fence by the clock alone": Mutant(
        decisions,
        "_fence",
        "max(memory.fence, bounds.shard_floor_ns, bounds.now.midpoint)",
        "bounds.now.midpoint",
        shard_tests.test_fences_grow_even_when_the_clock_goes_back,
        (Mode.S,),
    ),
    "fence above the ceiling": Mutant(
        decisions,
        "_grant",
        "not bounds.now.surely_before(expiry) or fence > bounds.ceiling_ns",
        "not bounds.now.surely_before(expiry)",
        shard_tests.test_fence_above_the_ceiling_is_not_granted,
    ),
    "duplicate request granted twice": Mutant(
        decisions,
        "_decide_grant",
        "request.request_id == memory.ended_request",
        "False",
        ending_tests.test_late_duplicate_of_an_acquire_grants_nothing_anew,
    ),
    "retried request denied to its own holder": Mutant(
        decisions,
        "_decide_grant",
        "lease.granted_by == request.request_id",
        "False",
        ending_tests.test_retried_acquire_has_the_same_answer_in_the_same_turn_and_later,
    ),
    "late duplicate hits the next lease": Mutant(
        decisions,
        "named",
        "each.correlation_id == correlation_id",
        "True",
        ending_tests.test_late_duplicate_of_an_acquire_grants_nothing_anew,
    ),
    "watermark at the expiry": Mutant(
        decisions,
        "watermark_refused",
        "watermark >= expiry_ns",
        "watermark > expiry_ns",
        ending_tests.test_wrong_watermark_is_refused_and_the_lease_stays,
        ("watermark-not-below-expiry", TERM, {}),
    ),
    "watermark at the floor": Mutant(
        decisions,
        "_watermark_refused",
        "watermark <= lease.lowest_ns",
        "watermark < lease.lowest_ns",
        ending_tests.test_wrong_watermark_is_refused_and_the_lease_stays,
        ("watermark-below-floor", 0, {}),
    ),
    "watermark without R1": Mutant(
        decisions,
        "watermark_refused",
        "watermark not in r1_range(token, bounds.r1_tolerance_ns)",
        "False",
        ending_tests.test_wrong_watermark_is_refused_and_the_lease_stays,
        ending_tests.WRONG_WATERMARKS[-1],
    ),
    "orderly record without fences": Mutant(
        shard,
        "Shard._link_end",
        "max(floor, fence, self._eviction.floor_ns, alone)",
        "max(floor, self._eviction.floor_ns, alone)",
        life_tests.test_orderly_record_covers_every_fence,
    ),
    "orderly stop does not wait": Mutant(
        shard,
        "Shard._link_end",
        "until is not None",
        "False",
        life_tests.test_orderly_stop_waits_for_holders_and_leaves_two_numbers,
    ),
    "eviction leaves the shard floor": Mutant(
        whole_shard,
        "Eviction.evict",
        "max(self.floor_ns, newest)",
        "self.floor_ns",
        life_tests.test_evicted_domain_comes_back_above_everything_it_was,
    ),
    "eviction leaves the shard's settle_to": Mutant(
        whole_shard,
        "Eviction.evict",
        "max(self.settle_to_ns, memory.settle_to_ns)",
        "self.settle_to_ns",
        life_tests.test_evicted_domain_comes_back_above_everything_it_was,
    ),
    "evicted too early": Mutant(
        whole_shard,
        "Eviction.long_past",
        "earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)",
        "earliest",
        life_tests.test_full_shard_answers_busy_and_evicts_what_is_long_past,
    ),
    "deposed shard keeps its state": Mutant(
        shard,
        "Shard._drop",
        "self._store.clear()",
        "pass",
        life_tests.test_deposed_shard_forgets_everything_and_grants_nothing,
    ),
    "store keeps what was left": Mutant(
        store,
        "LeaseStore.__init__",
        "each.unlink(missing_ok=True)",
        "pass",
        store_tests.test_every_start_is_empty_whatever_was_left,
    ),
    "what finds no room is tried for ever": Mutant(
        store,
        "LeaseStore._write",
        "self._unwritten[domain] = None",
        "self._unwritten = {domain: None, **self._unwritten}",
        store_tests.test_what_finds_no_room_is_in_no_others_way,
    ),
    "conflicting mode granted beside another": Mutant(
        decisions,
        "_decide_grant",
        "conflicts(each.mode, request.mode)",
        "request.mode is not Mode.SIX and conflicts(each.mode, request.mode)",
        state_tests.test_two_holders_are_granted_exactly_what_the_matrix_allows,
        (Mode.IX, Mode.SIX),
    ),
    "watermark of a shared holder forgotten": Mutant(
        decisions,
        "relinquished",
        "command.watermark_ns or 0",
        "0 if len(state.leases) > 1 else command.watermark_ns or 0",
        state_tests.test_floor_and_settle_to_gather_what_all_holders_left,
    ),
    "grant beside others forgets settle_to": Mutant(
        decisions,
        "_grant",
        "memory_under(memory, lease)",
        "msgspec.structs.replace(memory_under(memory, lease), settle_to_ns=0)",
        mode_tests.test_what_a_broken_lease_left_reaches_all_that_are_granted_beside_each_other,
    ),
    "second reader counts as the last grant's successor": Mutant(
        decisions,
        "end_lease",
        "dated(state.leases, before)",
        "state.leases",
        state_tests.test_renewal_repeats_the_past_of_its_grant_whatever_ended_since,
    ),
    "others are not counted": Mutant(
        decisions,
        "end_lease",
        "gone = (*gone, last)",
        "pass",
        state_tests.test_witness_counts_the_leases_that_it_does_not_describe,
    ),
    "some are broken for a request that is denied": Mutant(
        decisions,
        "_denied",
        "not _breakable(each, age, bounds)",
        "not any(_breakable(some, age, bounds) for some in in_the_way)",
        state_tests.test_request_breaks_all_that_is_in_its_way_or_nothing,
    ),
    "stronger mode keeps its fence": Mutant(
        decisions,
        "_upgrade",
        "lease.fence if mode is lease.mode else _fence(state.memory, bounds)",
        "lease.fence",
        state_tests.test_stronger_mode_has_a_fence_above_all_that_were_granted_meanwhile,
    ),
    "stronger mode looks at nobody": Mutant(
        decisions,
        "_upgrade",
        "each is not lease and conflicts(each.mode, mode)",
        "False",
        state_tests.test_stronger_mode_waits_for_what_it_excludes_and_breaks_what_is_past,
    ),
    "who comes later passes those who wait": Mutant(
        decisions,
        "_behind",
        "tentative and request.age < min(ahead.ages)",
        "True",
        waiting_tests.test_reader_that_comes_after_a_waiting_writer_waits_behind_it,
    ),
    "younger passes older ones by wounding": Mutant(
        decisions,
        "_behind",
        "tentative and request.age < min(ahead.ages)",
        "tentative",
        state_tests.test_only_who_is_older_than_all_that_wait_wounds_past_them,
    ),
    "oldest that wounds nobody waits behind younger ones": Mutant(
        decisions,
        "_decide_grant",
        "_behind(domain, request, command.ahead, leases, bounds)",
        "_behind(domain, request, command.ahead, in_the_way, bounds)",
        state_tests.test_oldest_passes_those_who_wait_also_where_it_goes_with_what_is_tentative,
    ),
    "oldest passes where nothing is tentative": Mutant(
        decisions,
        "_behind",
        "tentative and request.age < min(ahead.ages)",
        "request.age < min(ahead.ages)",
        state_tests.test_oldest_passes_those_who_wait_also_where_it_goes_with_what_is_tentative,
    ),
    "held end: waits for ever": Mutant(
        witness_ledger,
        "BatchSigner.hold",
        "boot_ns >= (self.held_until_boot_ns or boot_ns + HOLD_NS)",
        "False",
        held_tests.test_many_that_are_given_back_one_after_the_other_wait_no_longer_than_the_first,
    ),
    "held end: waits longer with each that follows": Mutant(
        witness_ledger,
        "BatchSigner.hold",
        "self.held_until_boot_ns = self.held_until_boot_ns or boot_ns + HOLD_NS",
        "self.held_until_boot_ns = boot_ns + HOLD_NS",
        held_tests.test_many_that_are_given_back_one_after_the_other_wait_no_longer_than_the_first,
    ),
    "held end: waits with any number of others": Mutant(
        witness_ledger,
        "BatchSigner.hold",
        "0 < len(entries) <= HELD_MAX",
        "0 < len(entries)",
        held_tests.test_no_more_than_some_hundred_wait,
    ),
    "held end: has the right of whoever signs": Mutant(
        witness_ledger,
        "BatchSigner.sign_held",
        "self._signed(self._first[:count], then, right)",
        "self._signed(self._first[:count], then, self._right())",
        held_tests.test_record_that_was_linked_meanwhile_is_left_to_the_turn_that_knows_of_it,
    ),
    "held end: is signed with a record that came later": Mutant(
        witness_ledger,
        "BatchSigner.sign_held",
        "self._first[:count]",
        "self._first",
        held_tests.test_record_that_was_linked_meanwhile_is_left_to_the_turn_that_knows_of_it,
    ),
    "held end: is signed by the time of whoever signs": Mutant(
        witness_ledger,
        "BatchSigner.sign_held",
        "self._signed(self._first[:count], then, right)",
        "self._signed(self._first[:count], time or then, right)",
        held_tests.test_clock_that_steps_back_signs_what_ended_by_the_time_of_its_end,
    ),
    "held end: is left to a turn before it": Mutant(
        witness_ledger,
        "BatchSigner.sign_held",
        "time.midpoint_ns >= self._held[0].midpoint_ns",
        "True",
        held_tests.test_clock_that_steps_back_signs_what_ended_by_the_time_of_its_end,
    ),
    "held end: is forgotten by a turn that may sign it": Mutant(
        shard,
        "Shard._begin_turn",
        "self._batch_signer.waiting()",
        "[]",
        held_tests.test_end_is_signed_with_the_next_grant_and_stands_before_it,
    ),
    "held end: is lost with the clock": Mutant(
        shard,
        "Shard.encoded",
        "self._publish(self._batch_signer.sign_held())",
        "self._publish(None)",
        held_tests.test_clock_that_nobody_may_use_signs_what_ended_before,
    ),
    "held end: is lost with the right to grant": Mutant(
        shard,
        "Shard._drop",
        "self._publish(self._batch_signer.sign_held())",
        "self._publish(None)",
        held_tests.test_shard_that_is_deposed_signs_what_ended_before,
    ),
    "held end: is signed by a map that came later": Mutant(
        shard,
        "Shard.go_by",
        "self._publish(self._batch_signer.sign_held())",
        "self._publish(None)",
        held_tests.test_what_ended_by_a_map_is_signed_by_it,
    ),
    "held end: wakes nobody": Mutant(
        shard,
        "Shard.due_in",
        "signs if waits is None else min(signs, waits)",
        "waits",
        held_tests.test_end_is_signed_soon_where_nothing_else_comes,
    ),
    "ceiling: goes on for what has run out": Mutant(
        shard,
        "Shard._may_be_held",
        "not now.surely_past(self._held_until_ns)",
        "True",
        life_tests.test_ceiling_is_not_extended_for_leases_that_have_run_out,
    ),
    "ceiling: stops when the first lease has run out": Mutant(
        shard,
        "Shard._may_be_held",
        "self._store.latest_expiry() or 0",
        "self._held_until_ns or self._store.latest_expiry() or 0",
        life_tests.test_ceiling_is_not_extended_for_leases_that_have_run_out,
    ),
    "held end: is not seen by whoever keeps house": Mutant(
        shard,
        "Shard.housekeeping",
        "self.due_in() == 0",
        "False",
        held_tests.test_end_is_signed_by_whoever_keeps_house_where_nobody_serves,
    ),
    "model: floor of a broken lease forgotten": Mutant(
        decisions,
        "end_lease",
        "max(before.floor_ns, floor)",
        "before.floor_ns",
        no_two_holders_can_write_the_same_instant,
    ),
    "model: shard floor forgotten after a restart": Mutant(
        whole_shard,
        "Eviction.memory",
        "Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns, hints=hints)",
        "Memory(fence=0, floor_ns=0, settle_to_ns=self.settle_to_ns, hints=hints)",
        no_two_holders_can_write_the_same_instant,
    ),
    "model: settle_to forgotten after a restart": Mutant(
        whole_shard,
        "Eviction.memory",
        "Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns, hints=hints)",
        "Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=0, hints=hints)",
        no_two_holders_can_write_the_same_instant,
    ),
    "model: broken too early": Mutant(
        decisions,
        "_breakable",
        "bounds.now.surely_past(lease.expiry_ns)",
        "lease.expiry_ns <= bounds.now.latest",
        no_two_holders_can_write_the_same_instant,
    ),
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    place = tmp_path / "site"
    place.mkdir()
    yield from hand_sites(place, shards=3)


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(
    name: str, world: World, site: HandSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: dict[str, Any] = {"world": world, "site": site, "monkeypatch": monkeypatch, "tmp_path": tmp_path}
    check_noticed(monkeypatch, MUTANTS[name], ports)
