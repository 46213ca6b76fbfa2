"""Each rule of recalls, revocations and sticky leases, broken once: the test named beside it must notice."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from appliance.lease import decisions, recall, request_handler
from appliance.session import recalls, session
from tests.support.cluster import hand_sites
from tests.support.mutants import plant
from tests.support.shards import World
from tests.support.values import NOW_NS
from tests.unit import test_lease_recall as shard_tests
from tests.unit import test_recalls as session_tests
from tests.unit import test_session_handover as handover_tests
from timeagent.units import HOUR, MINUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

    from tests.support.cluster import HandSite

type Fault = tuple[ModuleType, str, str, str, Callable[..., None]]


def waits(site: HandSite, ages: tuple[int, ...], sticky_ns: int | None, code: str) -> None:
    """Wait with a lease in hand, while requests of these ages wait for it."""
    with pytest.MonkeyPatch.context() as patch:
        session_tests.test_who_waits_gives_way_only_to_an_older_one_that_goes_on_waiting_for_what_it_uses(
            site, patch, ages, sticky_ns, code
        )


MUTANTS: dict[str, Fault] = {
    "tentative leases are recalled": (
        recall,
        "asked_back",
        "each.phase is Phase.HELD",
        "True",
        shard_tests.test_tentative_leases_are_not_recalled_until_they_are_held,
    ),
    "leases that are in nobody's way are recalled": (
        recall,
        "asked_back",
        "conflicts(each.mode, mode)",
        "True",
        shard_tests.test_shared_leases_are_recalled_by_whoever_excludes_them_and_by_nobody_else,
    ),
    "who asks is told to give back": (
        recall,
        "asked_back",
        "each is not own",
        "True",
        shard_tests.test_upgrade_recalls_those_beside_it_and_not_itself,
    ),
    "a lost answer is not given again": (
        recall,
        "Recalls.attend",
        "each.told_ns = each.told_ns or now",
        "self.asked.pop(each.wanted.correlation_id, None)\n            self._by_holder = {}",
        shard_tests.test_lost_answer_is_given_again_and_nothing_is_told_twice,
    ),
    "what was heard of another incarnation counts": (
        recall,
        "Recalls._heard",
        "attend.heard if attend.run == self._run else 0",
        "attend.heard",
        shard_tests.test_successor_of_the_shard_tells_what_it_recalls_whatever_was_heard_before,
    ),
    "what has ended is told of": (
        recall,
        "_Theirs.after",
        "each.wanted.correlation_id in self.of",
        "True",
        shard_tests.test_many_leases_that_are_asked_for_are_told_page_by_page,
    ),
    "the last of a page is told twice": (
        recall,
        "_Theirs.after",
        "bisect_right(self.numbered, number, key=lambda each: each.number)",
        "max(0, bisect_right(self.numbered, number, key=lambda each: each.number) - 1)",
        shard_tests.test_lost_answer_is_given_again_and_nothing_is_told_twice,
    ),
    "an answer names all": (
        recall,
        "_Theirs.after",
        "len(found) < TOLD_MAX",
        "True",
        shard_tests.test_many_leases_that_are_asked_for_are_told_page_by_page,
    ),
    "what has ended is asked for": (
        recall,
        "Recalls.ended",
        "recall is not None",
        "False",
        shard_tests.test_what_has_ended_is_asked_for_no_more,
    ),
    "who is gone counts as told": (
        recall,
        "Recalls._want",
        "not listener.waiter.gone",
        "True",
        shard_tests.test_listener_whose_connection_is_closed_is_not_told_and_not_counted_as_told,
    ),
    "a shard that stops asks for nothing": (
        recall,
        "Recalls.stop",
        "self._stopping = True",
        "pass",
        shard_tests.test_orderly_stop_asks_for_everything_back_and_holders_who_answer_end_it,
    ),
    "a listener is held back for ever": (
        recall,
        "Recalls.attend",
        "min(attend.wait_ns, ATTEND_NS_MAX)",
        "attend.wait_ns",
        shard_tests.test_listener_is_answered_when_its_time_is_up,
    ),
    "a revoked lease moves no floor": (
        decisions,
        "broken",
        "(lease.expiry_ns, lease.expiry_ns)",
        "(bounds.now.midpoint, bounds.now.midpoint)",
        shard_tests.test_revoked_lease_is_over_and_its_successor_lies_above_its_expiry,
    ),
    "the ledger does not say who revoked": (
        request_handler,
        "RequestHandler.answer",
        "self.revocations.note(turn, request, entries)",
        "pass",
        shard_tests.test_ledger_says_who_revoked_and_why_once,
    ),
    "whichever lease is there is revoked": (
        decisions,
        "named",
        "each.correlation_id == correlation_id",
        "True",
        shard_tests.test_only_the_grant_that_is_named_is_revoked,
    ),
    "any reason goes into the ledger": (
        request_handler,
        "RequestHandler.answer",
        "(stranger := holder_refused(request, request.by)) is not None",
        "(stranger := None) is not None",
        shard_tests.test_reason_that_is_no_plain_text_is_refused,
    ),
    "a recall does not tell that the lease is lost": (
        recalls,
        "RecallListener._answer",
        "lease.lose('recalled', LossReason.RECALLED)",
        "pass",
        session_tests.test_lease_is_given_back_at_once_with_its_watermark,
    ),
    "who flushes loses the lease before": (
        recalls,
        "RecallListener._answer",
        "self._flush(lease)",
        "self._give_back([lease]) or self._flush(lease)",
        session_tests.test_flushing_holder_publishes_under_the_lease_and_then_it_is_given_back,
    ),
    "a recall that came early is forgotten": (
        recalls,
        "RecallListener._recalled",
        "self._early |= wanted",
        "pass",
        session_tests.test_recall_that_comes_before_the_session_knows_of_its_grant_is_not_forgotten,
    ),
    "a holder that finishes loses the lease": (
        recalls,
        "RecallListener._answer",
        "lease.recall is Recall.RELINQUISH",
        "True",
        session_tests.test_finishing_holder_is_told_once_and_keeps_the_lease_to_the_end_of_its_block,
    ),
    "a sticky lease is kept past its expiry": (
        recalls,
        "use_again",
        "now.surely_before(lease.usable_until_ns(keeper.policy.holder_margin_ns))",
        "True",
        session_tests.test_lease_that_may_be_over_is_not_handed_out,
    ),
    "a sticky lease that is asked for is kept": (
        recalls,
        "keep_unused",
        "lease.recalled",
        "False",
        session_tests.test_lease_in_use_goes_back_at_the_end_of_its_block_if_another_asks,
    ),
    "nobody gives back what is not used": (
        session,
        "Session.renew_due",
        "recalls.unused_for_long(self.keeper)",
        "[]",
        session_tests.test_lease_that_nobody_used_for_long_is_given_back,
    ),
    "a set is made of what is kept and what is asked for": (
        recalls,
        "use_again",
        "len(found) < len(wanted)",
        "not found",
        session_tests.test_set_that_is_kept_in_part_is_taken_anew,
    ),
    "its last user goes on": (
        recalls,
        "keep_unused",
        "lease.ended = 'relinquished'",
        "pass",
        session_tests.test_what_its_user_gave_back_is_over_for_that_user,
    ),
    "a weaker mode is handed out": (
        recalls,
        "use_again",
        "covers(lease.mode, wanted[lease.domain])",
        "True",
        session_tests.test_stronger_mode_than_the_one_that_is_kept_is_asked_for_anew,
    ),
    "what a session lease keeps is handed out with bounds": (
        recalls,
        "use_again",
        "together or lease.session_lease is None",
        "True",
        lambda site: session_tests.test_sticky_lease_under_a_session_lease_is_not_handed_out_with_bounds(
            site, {"hold_s_max": 3}
        ),
    ),
    "who waits for a log to be settled does not get on": (
        session,
        "Session._renew_meanwhile",
        "self._renewer.note_progress(leases)",
        "pass",
        handover_tests.test_holder_that_has_to_get_on_keeps_its_lease_while_its_log_is_settled,
    ),
    "somebody has to get on with what nobody uses": (
        recalls,
        "keep_unused",
        "replace(lease, recall_listeners=(), loss_listeners=(), progress_within_ns=None, asking=None)",
        "replace(lease, recall_listeners=(), loss_listeners=(), asking=None)",
        session_tests.test_nobody_has_to_get_on_with_what_nobody_uses,
    ),
    "a lease is kept while an attempt under it is undecided": (
        session,
        "Session.relinquish",
        "each in undecided",
        "False",
        session_tests.test_lease_with_an_undecided_attempt_is_not_kept,
    ),
    "a younger one that waits is taken for an older one": (
        recalls,
        "RecallListener.waited_for",
        "each.oldest < age",
        "True",
        lambda site: waits(site, (NOW_NS + HOUR,), None, "busy"),
    ),
    "one look at who waits is enough": (
        recalls,
        "RecallListener.in_no_circle",
        "seen.get(name) == oldest",
        "True",
        lambda site: waits(site, (1, 0), None, "busy"),
    ),
    "a lease that nobody uses is in a circle": (
        recalls,
        "RecallListener.waited_for",
        "each not in self._keeper.unused",
        "True",
        lambda site: waits(site, (1,), MINUTE, "busy"),
    ),
    "nobody is told of a circle": (
        recalls,
        "RecallListener.in_no_circle",
        "self.give_up(closed)",
        "()",
        lambda site: waits(site, (1,), None, "deadlock"),
    ),
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    place = tmp_path / "site"
    place.mkdir()
    yield from hand_sites(place)


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(name: str, world: World, site: HandSite, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, old, new, caught_by = MUTANTS[name]
    ports = {"world": world, "site": site}
    named = {each: ports[each] for each in inspect.signature(caught_by).parameters}
    plant(monkeypatch, module, function, old, new)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - an assertion of the test, or of the code under it
        caught_by(**named)
    assert not isinstance(caught.value, TypeError | NameError | SyntaxError), caught.value
