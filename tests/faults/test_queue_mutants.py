"""Each rule of chains, queues and holders, broken once: the test named beside it must notice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.lease import ceiling, client, waiting
from appliance.lease.client import Suspect
from appliance.session import held, leasing, renewal, session
from tests.faults import test_lease_ceiling as chain_tests
from tests.support.cluster import HandSite, hand_sites
from tests.support.mutants import Mutant, check_noticed
from tests.support.shards import World
from tests.unit import test_lease_client as client_tests
from tests.unit import test_lease_waiting as waiting_tests
from tests.unit import test_leasing as leasing_tests
from tests.unit import test_losses as losses_tests
from timeagent.units import MS

MUTANTS = {
    "ceiling may fall": Mutant(
        ceiling,
        "CeilingChain._next_record",
        "max(before_ns, floor_ns, settle_to_ns)",
        "0",
        chain_tests.test_ceilings_never_fall_whatever_the_clock_says,
    ),
    "no look after the link": Mutant(
        ceiling,
        "CeilingChain._link_and_look",
        "look_for(self._port, number)",
        "[number]",
        chain_tests.test_pruned_slot_that_can_be_linked_again_gives_no_right,
        (70,),
    ),
    "listing without the own record counts": Mutant(
        ceiling,
        "look_for",
        "number in numbers",
        "True",
        chain_tests.test_listing_that_does_not_show_the_own_record_does_not_count,
    ),
    "EEXIST ignored": Mutant(
        ceiling,
        "link_record",
        "not port.link(number, data) and (must_win or port.read(number) != data)",
        "port.link(number, data) and False",
        chain_tests.test_number_with_foreign_content_ends_the_right,
    ),
    "EEXIST of the own record taken for another's": Mutant(
        ceiling,
        "link_record",
        "not port.link(number, data) and (must_win or port.read(number) != data)",
        "not port.link(number, data)",
        chain_tests.test_no_fault_of_the_port_widens_the_right_or_ends_it,
        ("link", "repeated", 1),
    ),
    "ceiling used before it is linked": Mutant(
        ceiling,
        "CeilingChain._next_record",
        "return _signed(self._identity, number + 1, kind, ceiling, begins, self._time, self._signer)",
        "self.ceiling_ns = ceiling\n"
        "    return _signed(self._identity, number + 1, kind, ceiling, begins, self._time, self._signer)",
        chain_tests.test_listing_that_does_not_show_the_own_record_does_not_count,
    ),
    "successor takes a running record's floor": Mutant(
        ceiling,
        "_after",
        "record.kind is CeilingKind.RUNNING",
        "False",
        chain_tests.test_running_record_gives_its_ceiling_as_floor_and_settle_to,
    ),
    "linked after a terminal record": Mutant(
        ceiling,
        "CeilingChain._begins",
        "record.kind is CeilingKind.TERMINAL",
        "False",
        chain_tests.test_nobody_links_after_a_terminal_record,
    ),
    "newest records pruned": Mutant(
        ceiling,
        "CeilingChain._link_and_look",
        "each <= number - RECORDS_KEPT",
        "each < number",
        chain_tests.test_only_the_newest_records_and_those_of_others_are_kept,
    ),
    "holder believes a contradicted witness": Mutant(
        client,
        "contradiction",
        "not r2_holds(before, shards)",
        "False",
        client_tests.test_shard_that_signs_in_the_holders_past_is_refused,
        (-260 * MS - 1, Suspect),
    ),
    "holder believes a witness from its future": Mutant(
        client,
        "contradiction",
        "not r2_holds(shards, after)",
        "False",
        client_tests.test_shard_that_signs_in_the_holders_future_is_refused,
        (260 * MS + 1, Suspect),
    ),
    "holder believes any expiry": Mutant(
        client,
        "LeaseClient._beyond",
        "expiry_ns > longest",
        "False",
        client_tests.test_expiry_that_no_clock_within_bounds_gives_is_refused,
        (1, Suspect),
    ),
    "two that want a stronger mode both wait": Mutant(
        waiting,
        "WaitingRoom._may_not_wait",
        "isinstance(request, Upgrade) and number > 1",
        "False",
        waiting_tests.test_change_of_mode_is_denied_at_once_where_another_waits,
    ),
    "oldest that waits already is not looked at": Mutant(
        waiting,
        "WaitingRoom._call_in_firsts",
        "draft.reason is Reason.TENTATIVE",
        "False",
        waiting_tests.test_oldest_passes_as_soon_as_the_first_waits_for_somebody_who_may_be_waiting_too,
    ),
    "oldest that is gone gets the lease": Mutant(
        waiting,
        "WaitingRoom._call_in_oldest",
        "not place.waiter.gone",
        "True",
        waiting_tests.test_oldest_that_is_gone_or_between_two_calls_does_not_pass,
    ),
    "waiter of a closed connection gets the lease": Mutant(
        waiting,
        "WaitingRoom._call_in_firsts",
        "place.waiter.gone",
        "False",
        waiting_tests.test_waiter_that_is_gone_when_its_turn_comes_gets_nothing,
    ),
    "closed connection keeps its place": Mutant(
        waiting,
        "WaitingRoom.abandon",
        "waiter in self._of",
        "False",
        waiting_tests.test_waiter_whose_connection_has_closed_gets_nothing_and_is_in_nobodys_way,
    ),
    "nobody looks who is behind a closed connection": Mutant(
        waiting,
        "WaitingRoom.abandon",
        "self._look_at(domain, self._time.boot_ns())",
        "pass",
        waiting_tests.test_those_behind_a_closed_connection_are_looked_at_at_once,
    ),
    "who was woken in a turn that raises is told of it in the next": Mutant(
        waiting,
        "WaitingRoom.waking",
        "self._woken.clear()",
        "pass",
        waiting_tests.test_who_was_woken_in_a_turn_that_raises_is_told_nothing_of_it,
    ),
    "nobody follows a place that was kept in vain": Mutant(
        waiting,
        "WaitingRoom._send_away",
        "first_has_gone or number == 1",
        "first_has_gone",
        waiting_tests.test_those_behind_a_place_that_was_kept_in_vain_are_served_when_its_time_is_over,
    ),
    "place between two calls is lost": Mutant(
        waiting,
        "WaitingRoom._send_away",
        "kept = keep > 0",
        "kept = False",
        waiting_tests.test_place_is_kept_between_two_calls_of_the_same_request,
    ),
    "nobody looks when the lease in the way is past": Mutant(
        waiting,
        "WaitingRoom._look_when_possible",
        "boot + (ahead if ahead > 0 else _RETRY_NS)",
        "2**62",
        waiting_tests.test_waiter_is_woken_when_the_lease_in_its_way_is_surely_past,
    ),
    "queue that was looked at in time is not looked at again": Mutant(
        waiting,
        "WaitingRoom.call_in",
        "min(place.until_boot_ns for place in self.domains[domain].values())",
        "2**62",
        waiting_tests.test_each_waiter_is_answered_when_its_own_time_is_over,
    ),
    "only the first of those who can is woken": Mutant(
        waiting,
        "WaitingRoom._call_in_firsts",
        "self._woken.append((place.waiter, place.request.request_id, draft))",
        "return self._woken.append((place.waiter, b'', draft)) or self._remove(domain, place)",
        waiting_tests.test_reader_that_comes_after_a_waiting_writer_waits_behind_it,
    ),
    "set asks again with another age": Mutant(
        leasing,
        "Leasing._ask",
        "ask(domain, attempt.age, attempt.wanted[domain], sent)",
        "ask(domain, None, attempt.wanted[domain], sent)",
        leasing_tests.test_denied_set_keeps_its_age_while_it_asks_again,
    ),
    "set writes what it has tentatively": Mutant(
        leasing,
        "Leasing._take_all",
        "self._upgrade(attempt) if attempt.tentative else None",
        "None",
        leasing_tests.test_set_over_all_shards_is_taken_tentatively_and_then_held,
    ),
    "reader may write": Mutant(
        session,
        "Session.publish",
        "check_covering(leases)",
        "None",
        leasing_tests.test_readers_share_a_domain_and_write_nothing,
    ),
    "lease that is over is told to nobody": Mutant(
        renewal,
        "LeaseRenewer._end_what_is_over",
        "each.end_if_over(now, self._policy.holder_margin_ns)",
        "pass",
        losses_tests.test_lease_of_a_silent_shard_is_told_as_such_when_it_is_over_and_not_before,
    ),
    "lease is renewed past the cap on its hold": Mutant(
        leasing,
        "_caps",
        "cap is not None",
        "cap is None",
        losses_tests.test_cap_on_the_hold_is_kept_by_a_renewal_that_is_under_way_for_long,
    ),
    "who gets on no more is renewed for as long as its request is late": Mutant(
        held,
        "Lease.cap_ns",
        "cap if (until := self.until_ns) is None else min(cap, until)",
        "self.until_ns",
        losses_tests.test_holder_that_gets_on_no_more_has_its_lease_no_longer_however_late_it_asks,
    ),
    "lease that lasts up to its cap is renewed again and again": Mutant(
        renewal,
        "LeaseRenewer._is_wanted",
        "lease.until_ns is not None",
        "False",
        losses_tests.test_lease_that_lasts_up_to_its_cap_is_not_renewed_in_vain,
    ),
    "who hangs is renewed": Mutant(
        renewal,
        "LeaseRenewer._is_wanted",
        "boot_ns - lease.progress_boot_ns > lease.progress_within_ns",
        "False",
        losses_tests.test_lease_is_renewed_only_while_its_holder_gets_on,
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
