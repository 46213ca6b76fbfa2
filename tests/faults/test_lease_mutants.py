"""Each rule of the lease shard, broken once: the test named beside it must notice."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import Phase, given, settings

from appliance.lease import ceiling, client, shard, state, store
from appliance.lease.client import Suspect
from appliance.lease.state import Held
from tests.faults import test_lease_ceiling as chain_tests
from tests.property import test_lease_model as model_tests
from tests.support.mutants import plant
from tests.support.shards import TERM, World
from tests.unit import test_lease_client as client_tests
from tests.unit import test_lease_shard as shard_tests
from tests.unit import test_lease_state as state_tests
from tests.unit import test_lease_store as store_tests
from timeagent.units import MS


# The property without the search for the smallest example: that takes longest, and nobody reads it here.
@settings(phases=[Phase.generate])
@given(model_tests.STEPS)
def no_two_holders_can_write_the_same_instant(steps: list[tuple[object, ...]]) -> None:
    model_tests.follow(steps)


@dataclass(frozen=True)
class Mutant:
    module: ModuleType
    function: str
    old: str
    new: str
    caught_by: Callable[..., None]
    arguments: tuple[Any, ...] = ()


MUTANTS = {
    "granted when not surely past": Mutant(
        state,
        "_conflict",
        "bounds.now.surely_past(lease.expiry_ns)",
        "lease.expiry_ns <= bounds.now.latest",
        shard_tests.test_lease_is_broken_only_when_surely_past_and_in_somebodys_way,
    ),
    "broken when not surely past": Mutant(
        state,
        "_decide_taken",
        "bounds.now.surely_past(lease.expiry_ns)",
        "lease.expiry_ns <= bounds.now.earliest",
        state_tests.test_lease_is_broken_when_surely_past_and_not_a_nanosecond_before,
        (Held,),
    ),
    "younger request wounds": Mutant(
        state,
        "_conflict",
        "request.age < lease.age",
        "True",
        shard_tests.test_younger_request_does_not_touch_a_tentative_lease,
    ),
    "held lease is wounded": Mutant(
        state,
        "_conflict",
        "isinstance(state, Tentative) and request.age < lease.age",
        "request.age < lease.age",
        shard_tests.test_held_lease_is_not_withdrawn_by_an_older_request,
    ),
    "withdrawn lease moves the floor": Mutant(
        state,
        "_break",
        "isinstance(state, Tentative)",
        "False",
        shard_tests.test_expired_tentative_lease_ends_as_withdrawn_and_moves_nothing,
    ),
    "broken lease moves no floor": Mutant(
        state,
        "_break",
        "_end(domain, state, ending, state.lease.expiry_ns, state.lease.expiry_ns)",
        "_end(domain, state, ending, 0, state.lease.expiry_ns)",
        shard_tests.test_lease_is_broken_only_when_surely_past_and_in_somebodys_way,
    ),
    "broken lease moves no settle_to": Mutant(
        state,
        "_break",
        "_end(domain, state, ending, state.lease.expiry_ns, state.lease.expiry_ns)",
        "_end(domain, state, ending, state.lease.expiry_ns, 0)",
        shard_tests.test_lease_is_broken_only_when_surely_past_and_in_somebodys_way,
    ),
    "floor is not cumulative": Mutant(
        state,
        "_end",
        "max(before.floor_ns, floor)",
        "floor",
        shard_tests.test_floor_is_cumulative_over_holders,
    ),
    "settle_to is not cumulative": Mutant(
        state,
        "_end",
        "max(before.settle_to_ns, settle_to)",
        "settle_to",
        shard_tests.test_floor_is_cumulative_over_holders,
    ),
    "expiry beyond the ceiling": Mutant(
        state,
        "_expiry",
        "bounds.ceiling_ns",
        "2**62",
        shard_tests.test_expiry_never_exceeds_the_own_ceiling,
    ),
    "expiry later than asked": Mutant(
        state,
        "_expiry",
        "min(bounds.now.midpoint + term, expiry_ns_max, bounds.ceiling_ns, bounds.signed_ns_max)",
        "min(bounds.now.midpoint + term, bounds.ceiling_ns, bounds.signed_ns_max)",
        shard_tests.test_delayed_request_never_yields_a_later_expiry_than_asked,
    ),
    "expiry beyond what readers accept": Mutant(
        state,
        "_expiry",
        "min(bounds.now.midpoint + term, expiry_ns_max, bounds.ceiling_ns, bounds.signed_ns_max)",
        "min(bounds.now.midpoint + term, expiry_ns_max, bounds.ceiling_ns)",
        shard_tests.test_expiry_stays_within_what_readers_accept_with_an_older_signed_time,
    ),
    "renewal shortens": Mutant(
        state,
        "_prolong",
        "max(lease.expiry_ns, _expiry(command.term_ns, command.expiry_ns_max, bounds))",
        "_expiry(command.term_ns, command.expiry_ns_max, bounds)",
        shard_tests.test_renewal_never_states_an_earlier_expiry,
    ),
    "fence by the clock alone": Mutant(
        state,
        "_fence",
        "max(memory.fence, bounds.shard_floor_ns, bounds.now.midpoint)",
        "bounds.now.midpoint",
        shard_tests.test_fences_grow_even_when_the_clock_goes_back,
    ),
    "fence above the ceiling": Mutant(
        state,
        "_grant",
        "not bounds.now.surely_before(expiry) or fence > bounds.ceiling_ns",
        "not bounds.now.surely_before(expiry)",
        shard_tests.test_fence_above_the_ceiling_is_not_granted,
    ),
    "duplicate request granted twice": Mutant(
        state,
        "_decide_free",
        "command.request.request_id == state.memory.ended_request",
        "False",
        shard_tests.test_late_duplicate_of_an_acquire_grants_nothing_anew,
    ),
    "retried request denied to its own holder": Mutant(
        state,
        "_conflict",
        "request.request_id == lease.granted_by",
        "False",
        shard_tests.test_retried_acquire_has_the_same_answer_in_the_same_turn_and_later,
    ),
    "late duplicate hits the next lease": Mutant(
        state,
        "_decide_taken",
        "command.correlation_id != lease.correlation_id",
        "False",
        shard_tests.test_late_duplicate_of_an_acquire_grants_nothing_anew,
    ),
    "watermark at the expiry": Mutant(
        state,
        "_watermark_refused",
        "watermark >= lease.expiry_ns",
        "watermark > lease.expiry_ns",
        shard_tests.test_wrong_watermark_is_refused_and_the_lease_stays,
        ("watermark-not-below-expiry", TERM, {}),
    ),
    "watermark at the floor": Mutant(
        state,
        "_watermark_refused",
        "watermark <= lease.floor_ns",
        "watermark < lease.floor_ns",
        shard_tests.test_wrong_watermark_is_refused_and_the_lease_stays,
        ("watermark-below-floor", 0, {}),
    ),
    "watermark without R1": Mutant(
        state,
        "_watermark_refused",
        "not r1_holds(watermark, token, bounds.r1_tolerance_ns)",
        "False",
        shard_tests.test_wrong_watermark_is_refused_and_the_lease_stays,
        shard_tests.WRONG_WATERMARKS[-1],
    ),
    "ceiling may fall": Mutant(
        ceiling,
        "CeilingChain._next_record",
        "max(before.ceiling_ns, before.floor_ns, before.settle_to_ns, floor_ns, settle_to_ns)",
        "0",
        chain_tests.test_ceilings_never_fall_whatever_the_clock_says,
    ),
    "no look after the link": Mutant(
        ceiling,
        "CeilingChain._link",
        "self._look(record.number)",
        "[record.number]",
        chain_tests.test_pruned_slot_that_can_be_linked_again_gives_no_right,
    ),
    "listing without the own record counts": Mutant(
        ceiling,
        "CeilingChain._look",
        "number in numbers",
        "True",
        chain_tests.test_listing_that_does_not_show_the_own_record_does_not_count,
    ),
    "EEXIST ignored": Mutant(
        ceiling,
        "CeilingChain._link",
        "not self._port.link(record.number, data) and self._port.read(record.number) != data",
        "self._port.link(record.number, data) and False",
        chain_tests.test_number_with_foreign_content_ends_the_right,
    ),
    "EEXIST of the own record taken for another's": Mutant(
        ceiling,
        "CeilingChain._link",
        "not self._port.link(record.number, data) and self._port.read(record.number) != data",
        "not self._port.link(record.number, data)",
        chain_tests.test_no_fault_of_the_port_widens_the_right_or_ends_it,
        ("link", "repeated", 1),
    ),
    "ceiling used before it is linked": Mutant(
        ceiling,
        "CeilingChain._next_record",
        "return record, sign(Kind.CEILING, record, self._signer)",
        "self._ceiling_ns = ceiling\n    return (record, sign(Kind.CEILING, record, self._signer))",
        chain_tests.test_listing_that_does_not_show_the_own_record_does_not_count,
    ),
    "successor takes a running record's floor": Mutant(
        ceiling,
        "CeilingChain._before",
        "return _Before(number, record.ceiling_ns, record.ceiling_ns, record.ceiling_ns)",
        "return _Before(number, record.ceiling_ns, record.floor_ns, record.settle_to_ns)",
        chain_tests.test_running_record_gives_its_ceiling_as_floor_and_settle_to,
    ),
    "linked after a terminal record": Mutant(
        ceiling,
        "CeilingChain._before",
        "return self._depose(f'{where} is terminal: read the map anew')",
        "return _Before(number, record.ceiling_ns, record.floor_ns, record.settle_to_ns)",
        chain_tests.test_nobody_links_after_a_terminal_record,
    ),
    "newest records pruned": Mutant(
        ceiling,
        "CeilingChain._link",
        "number <= record.number - RECORDS_KEPT",
        "number < record.number",
        chain_tests.test_only_the_newest_records_and_those_of_others_are_kept,
    ),
    "orderly record without fences": Mutant(
        shard,
        "Shard.stop_orderly",
        "max(floor, fence, self._floor_ns)",
        "max(floor, self._floor_ns)",
        shard_tests.test_orderly_record_covers_every_fence,
    ),
    "orderly stop does not wait": Mutant(
        shard,
        "Shard.stop_orderly",
        "until is not None",
        "False",
        shard_tests.test_orderly_stop_waits_for_holders_and_leaves_two_numbers,
    ),
    "eviction leaves the shard floor": Mutant(
        shard,
        "Shard._make_room",
        "max(self._floor_ns, memory.floor_ns, memory.settle_to_ns, memory.fence)",
        "self._floor_ns",
        shard_tests.test_evicted_domain_comes_back_above_everything_it_was,
    ),
    "eviction leaves the shard's settle_to": Mutant(
        shard,
        "Shard._make_room",
        "max(self._settle_to_ns, memory.settle_to_ns)",
        "self._settle_to_ns",
        shard_tests.test_evicted_domain_comes_back_above_everything_it_was,
    ),
    "evicted too early": Mutant(
        shard,
        "Shard._make_room",
        "earliest - (policy.span_ns + policy.grace_ns + 4 * policy.radius_ns_max)",
        "earliest",
        shard_tests.test_full_shard_answers_busy_and_evicts_what_is_long_past,
    ),
    "deposed shard keeps its state": Mutant(
        shard,
        "Shard._drop",
        "self._store.domains",
        "False",
        shard_tests.test_deposed_shard_forgets_everything_and_grants_nothing,
    ),
    "holder believes a contradicted witness": Mutant(
        client,
        "LeaseClient._suspicion",
        "not r2_holds(before, head_time)",
        "False",
        client_tests.test_shard_that_signs_in_the_holders_past_is_refused,
        (-260 * MS - 1, Suspect),
    ),
    "holder believes a witness from its future": Mutant(
        client,
        "LeaseClient._suspicion",
        "not r2_holds(head_time, token)",
        "False",
        client_tests.test_shard_that_signs_in_the_holders_future_is_refused,
        (260 * MS + 1, Suspect),
    ),
    "holder believes any expiry": Mutant(
        client,
        "LeaseClient._suspicion",
        "witness.expiry_ns > bound",
        "False",
        client_tests.test_expiry_that_no_clock_within_bounds_gives_is_refused,
        (1, Suspect),
    ),
    "store keeps what was left": Mutant(
        store,
        "LeaseStore.__init__",
        "left.unlink(missing_ok=True)",
        "pass",
        store_tests.test_every_start_is_empty_whatever_was_left,
    ),
    "model: floor of a broken lease forgotten": Mutant(
        state,
        "_end",
        "max(before.floor_ns, floor)",
        "before.floor_ns",
        no_two_holders_can_write_the_same_instant,
    ),
    "model: shard floor forgotten after a restart": Mutant(
        shard,
        "Shard._unknown",
        "self._floor_ns",
        "0",
        no_two_holders_can_write_the_same_instant,
    ),
    "model: settle_to forgotten after a restart": Mutant(
        shard,
        "Shard._unknown",
        "self._settle_to_ns",
        "0",
        no_two_holders_can_write_the_same_instant,
    ),
    "model: broken too early": Mutant(
        state,
        "_conflict",
        "bounds.now.surely_past(lease.expiry_ns)",
        "lease.expiry_ns <= bounds.now.latest",
        no_two_holders_can_write_the_same_instant,
    ),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    each = World(tmp_path)
    yield each
    each.close()


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(name: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    ports: dict[str, Any] = {"world": world, "monkeypatch": monkeypatch, "tmp_path": tmp_path}
    # A property test shows its examples' arguments as none at all.
    parameters = [] if hasattr(mutant.caught_by, "hypothesis") else list(inspect.signature(mutant.caught_by).parameters)
    rest = [each for each in parameters if each not in ports]
    named = {each: ports[each] for each in parameters if each in ports} | dict(zip(rest, mutant.arguments, strict=True))
    plant(monkeypatch, mutant.module, mutant.function, mutant.old, mutant.new)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - an assertion of the test, or of the code under it
        mutant.caught_by(**named)
    assert not isinstance(caught.value, TypeError | NameError | SyntaxError), caught.value
