"""One taken for all in a session: its first lease, shard or attempt. Planted, the test beside it must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.writing import NotCommitted, Unknown
from appliance.session import leasing, open_logs, recalls, renewal, session, session_leases, stamping
from tests.faults.test_several_mutants import check_noticed
from tests.unit import test_session_several as sessions
from tests.unit import test_stamping as stamps

if TYPE_CHECKING:
    from tests.faults.test_several_mutants import Fault

site, doubted, desk = sessions.site, sessions.doubted, stamps.desk

MUTANTS: dict[str, Fault] = {
    "watermark of the first message of a batch": (
        session,
        "Session._stamped",
        "made.last_ns",
        "made.first_ns",
        sessions.test_watermark_of_a_lease_is_the_last_message_of_its_batches,
        (),
    ),
    "session lease dropped with its last watermark": (
        session_leases,
        "SessionLeases.drop",
        "max(wrote, key=lambda lease: lease.watermark_ns or 0, default=None)",
        "wrote[-1] if wrote else None",
        sessions.test_session_lease_is_dropped_with_the_highest_watermark_and_all_that_was_written,
        (),
    ),
    "wait that outlives the first lease only": (
        session,
        "Session._wait_for_earlier",
        "max(leases, key=lambda lease: lease.settle_to_ns)",
        "leases[0]",
        sessions.test_acquire_waits_for_the_last_of_the_earlier_holders_of_all_its_domains,
        (1,),
    ),
    "wait that ends with the first that is past": (
        session,
        "Session._wait_for_earlier",
        "max(leases, key=lambda lease: lease.settle_to_ns)",
        "min(leases, key=lambda lease: lease.settle_to_ns)",
        sessions.test_acquire_waits_for_the_last_of_the_earlier_holders_of_all_its_domains,
        (0,),
    ),
    "wait that looks after its first lease only": (
        session,
        "Session._wait_for_earlier",
        "self.check_held(leases)",
        "self.check_held(leases[:1])",
        sessions.test_lease_that_is_lost_while_acquire_waits_for_earlier_holders_ends_the_wait,
        (1,),
    ),
    "wait that gives back its first lease only": (
        session,
        "Session._wait_out",
        "self.relinquish(leases)",
        "self.relinquish(leases[:1])",
        sessions.test_all_leases_are_given_back_where_acquire_cannot_wait_for_earlier_holders,
        (0,),
    ),
    "only the first lease held": (
        session,
        "Session._checked",
        "for lease in leases:",
        "for lease in leases[:1]:",
        sessions.test_nothing_is_done_under_leases_one_of_which_is_over,
        (1,),
    ),
    "only the last lease held": (
        session,
        "Session._checked",
        "for lease in leases:",
        "for lease in leases[-1:]:",
        sessions.test_nothing_is_done_under_leases_one_of_which_is_over,
        (0,),
    ),
    "settled as the first lease asks": (
        session,
        "Session._settle_for",
        "max((lease.settle_to_ns for lease in leases), default=0)",
        "leases[0].settle_to_ns if leases else 0",
        sessions.test_log_is_settled_as_far_as_any_of_its_leases_asks,
        (1,),
    ),
    "settled as the least lease asks": (
        session,
        "Session._settle_for",
        "max((lease.settle_to_ns for lease in leases), default=0)",
        "min((lease.settle_to_ns for lease in leases), default=0)",
        sessions.test_log_is_settled_as_far_as_any_of_its_leases_asks,
        (0,),
    ),
    "the last outcome for all": (
        session,
        "Session.resolve",
        "not isinstance(outcome, Committed) and (not isinstance(worst, Unknown))",
        "True",
        sessions.test_what_became_of_several_attempts_is_the_least_that_is_known,
        ((sessions.NO, sessions.YES), NotCommitted),
    ),
    "what is unknown forgotten for what is not": (
        session,
        "Session.resolve",
        "not isinstance(outcome, Committed) and (not isinstance(worst, Unknown))",
        "not isinstance(outcome, Committed)",
        sessions.test_what_became_of_several_attempts_is_the_least_that_is_known,
        ((sessions.NOBODY_KNOWS, sessions.NO), Unknown),
    ),
    "attempt of its first lease only": (
        session,
        "Session._pending_under",
        "not set(leases).isdisjoint(each.leases)",
        "each.leases[0] in leases",
        sessions.test_attempt_in_doubt_is_one_of_each_lease_that_it_was_made_under,
        (1,),
    ),
    "outcomes waited for as the quickest log needs": (
        session,
        "Session._resolve_before_end",
        "max(spans, default=0)",
        "min(spans, default=0)",
        sessions.test_outcomes_are_waited_for_as_long_as_the_slowest_log_needs,
        (("quick", "slow"),),
    ),
    "one lease of an attempt abandoned": (
        session,
        "Session._give_back",
        "for lease in doubtful.intersection(mine):",
        "for lease in list(doubtful.intersection(mine))[:1]:",
        sessions.test_every_lease_of_an_attempt_that_stays_in_doubt_is_abandoned,
        (),
    ),
    "only the first lease gets on": (
        session,
        "Session.publish",
        "self._renewer.note_progress(leases)",
        "self._renewer.note_progress(leases[:1])",
        sessions.test_each_lease_of_a_batch_knows_what_was_written_under_it,
        (),
    ),
    "above the first floor only": (
        stamping,
        "FrameStamper._first_timestamp",
        "max(*floors,",
        "max(floors[0],",
        sessions.test_timestamps_lie_above_the_floor_of_each_lease,
        (1,),
    ),
    "only the first lease looked at again": (
        stamping,
        "FrameStamper._first_timestamp",
        "floors = [lease.floor_ns for lease in leases]",
        "floors = [lease.floor_ns for lease in leases]\nleases = leases[:1]",
        sessions.test_leases_that_run_out_before_a_frame_is_stamped_are_looked_at_again,
        (1,),
    ),
    "only the last witness trusted": (
        stamping,
        "_refuse_untrusted",
        "for proof in proofs:",
        "for proof in proofs[-1:]:",
        sessions.test_no_witness_of_several_may_be_one_that_readers_distrust,
        ((1, 0),),
    ),
    "only the first witness trusted": (
        stamping,
        "_refuse_untrusted",
        "for proof in proofs:",
        "for proof in proofs[:1]:",
        sessions.test_no_witness_of_several_may_be_one_that_readers_distrust,
        ((0, 1),),
    ),
    "as much known of all domains as of the first": (
        open_logs,
        "hinted_reads",
        "max((_reach_ns(lease, reader.log) for lease in leases))",
        "_reach_ns(leases[0], reader.log)",
        sessions.test_narrow_reading_looks_where_the_least_is_known_of_any_domain,
        ("b", (0, 1)),
    ),
    "the oldest of what was asked for": (
        open_logs,
        "hinted_reads",
        "found[max(0, len(found) - last):]",
        "found[:last]",
        sessions.test_narrow_reading_has_the_messages_of_each_domain,
        ((0, 1),),
    ),
    "messages of the first domain only": (
        open_logs,
        "hinted_reads",
        "frozenset((lease.domain for lease in leases))",
        "frozenset((leases[0].domain,))",
        sessions.test_narrow_reading_has_the_messages_of_each_domain,
        ((0, 1),),
    ),
    "one lease ended alone": (
        session_leases,
        "SessionLease.take",
        "for name in witness.ended:",
        "for name in witness.ended[:1]:",
        sessions.test_all_leases_that_were_ended_alone_are_lost_with_the_next_renewal,
        (),
    ),
    "one session lease that is over": (
        renewal,
        "LeaseRenewer._expiring",
        "*together,",
        "*together[:1],",
        sessions.test_all_session_leases_that_are_over_are_found,
        (),
    ),
    "session leases of a shard taken for one": (
        session_leases,
        "SessionLeases.named",
        "(each.shard, each.session_id) == (shard, session_id)",
        "each.shard == shard",
        sessions.test_session_leases_of_one_shard_are_told_apart,
        (),
    ),
    "one word said again": (
        session_leases,
        "SessionLeases.give_again",
        "list(session_lease.owed.values())",
        "list(session_lease.owed.values())[:1]",
        sessions.test_every_word_that_was_lost_is_said_again,
        (),
    ),
    "renewals given up at an end that is past": (
        leasing,
        "Leasing._first_end",
        "if end > latest",
        "if True",
        sessions.test_renewals_are_given_up_at_the_first_end_that_can_still_be_met,
        (),
    ),
    "renewals of one term": (
        leasing,
        "Leasing._renewed",
        "sorted({lease.term_ns for lease in leases})",
        "sorted({lease.term_ns for lease in leases})[:1]",
        sessions.test_leases_of_every_term_are_renewed,
        (),
    ),
    "only the first obstacle counts": (
        leasing,
        "Leasing._take_group",
        "next((each for each in results if not isinstance(each, LeaseGranted | wire.Denied)), None)",
        "results[0] if not isinstance(results[0], LeaseGranted | wire.Denied) else None",
        sessions.test_obstacle_that_no_waiting_mends_counts_beside_one_that_is_waited_for,
        ("ab",),
    ),
    "one recall answered": (
        recalls,
        "RecallListener._answer",
        "for lease in leases:",
        "for lease in list(leases)[:1]:",
        sessions.test_every_lease_that_is_asked_for_is_given_back,
        (),
    ),
    "one shard heard": (
        recalls,
        "RecallListener.poll",
        "list(self._ears.items())",
        "list(self._ears.items())[:1]",
        sessions.test_every_lease_that_is_asked_for_is_given_back,
        (),
    ),
    "only the first session lease renewed": (
        renewal,
        "LeaseRenewer._renew",
        "for each in due:",
        "for each in due[:1]:",
        sessions.test_all_session_leases_with_one_shard_are_renewed,
        (),
    ),
    "judged by the shortest of its leases": (
        stamping,
        "FrameStamper._judging",
        "longest = max(",
        "longest = min(",
        stamps.test_frame_names_a_policy_that_allows_the_longest_of_its_leases,
        (),
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_one_taken_for_all_is_noticed(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_noticed(MUTANTS[name], request, monkeypatch)
