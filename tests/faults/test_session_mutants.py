"""Each rule of session leases, broken once: the test named beside it must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.lease import sessions
from appliance.session import session_leases
from tests.support.cluster import HandSite, hand_sites
from tests.support.mutants import plant
from tests.support.shards import World
from tests.unit import test_lease_sessions as shard_tests
from tests.unit import test_session_leases as holder_tests
from timeagent.errors import TryAgain

SHARD: dict[str, tuple[Any, str, str, str, Callable[[World], None]]] = {
    "lease that runs out while its session lives": (
        sessions,
        "as_of",
        "msgspec.structs.replace(each, expiry_ns=session.expiry_ns)",
        "each",
        shard_tests.test_one_renewal_keeps_every_lease_and_touches_none,
    ),
    "lease that outlives its session": (
        sessions,
        "as_of",
        "session.over is not None",
        "session.over is not None and session.leases < 2",
        shard_tests.test_all_leases_are_over_when_their_session_is_surely_past_and_not_before,
    ),
    "session of a domain that is not the first": (
        sessions,
        "Sessions.bring_up",
        "in_sessions(state)",
        "in_sessions(state)[:1]",
        shard_tests.test_all_sessions_of_a_domain_that_are_past_are_over_for_who_comes_next,
    ),
    "session broken when not surely past": (
        sessions,
        "expired",
        "bounds.now.surely_past(session.expiry_ns)",
        "session.expiry_ns <= bounds.now.latest",
        shard_tests.test_all_leases_are_over_when_their_session_is_surely_past_and_not_before,
    ),
    "renewal that forgets what ended alone": (
        sessions,
        "witness_of",
        "session.ended",
        "()",
        shard_tests.test_lease_that_the_shard_ends_alone_is_named_by_every_later_witness,
    ),
    "end alone that nobody writes down": (
        sessions,
        "Sessions.decided",
        "each.ending.outcome in ENDED_ALONE",
        "False",
        shard_tests.test_lease_that_the_shard_ends_alone_is_named_by_every_later_witness,
    ),
    "session of another holder": (
        sessions,
        "Sessions.expiry_for",
        "session.holder != request.holder",
        "False",
        shard_tests.test_lease_is_not_granted_under_a_session_of_another_or_one_that_is_nearly_over,
    ),
    "session that shortens": (
        sessions,
        "renewed",
        "decisions.later_expiry(expiry, request, bounds)",
        "bounds.expiry(request.term_ns, request.expiry_ns_max)",
        shard_tests.test_expiry_of_a_session_is_bounded_as_that_of_a_lease,
    ),
    "waiters that nobody wakes": (
        sessions,
        "Sessions.waits",
        "in_sessions(state)",
        "()",
        shard_tests.test_everybody_who_waits_for_a_lease_of_a_session_is_woken_by_its_end,
    ),
    "leases that nobody counts": (
        sessions,
        "Sessions._count",
        "1 if name in are else -1",
        "0",
        shard_tests.test_orderly_stop_waits_for_sessions_and_counts_leases_that_nobody_met,
    ),
}

HOLDER: dict[str, tuple[Any, str, str, str, Callable[[HandSite], None]]] = {
    "holder that goes on under what ended alone": (
        session_leases,
        "SessionLease.take",
        "(lease := self.leases.pop(name, None)) is not None",
        "False",
        holder_tests.test_lease_that_was_revoked_is_lost_before_the_next_renewal_is_used,
    ),
    "lost word that is not said again": (
        session_leases,
        "SessionLeases.renew",
        "self.give_again(session_lease)",
        "pass",
        holder_tests.test_word_that_was_lost_is_said_again_with_its_watermark,
    ),
    "lease that nobody knows of and nobody gives back": (
        session_leases,
        "SessionLeases._give_back_unknown",
        "each.correlation_id not in known",
        "False",
        holder_tests.test_grant_whose_answer_was_lost_does_not_live_on_under_the_session,
    ),
    "lease given back that is on its way": (
        session_leases,
        "SessionLeases._quiet",
        "None if self._asking.get(shard, 0) else self._asked.get(shard, 0)",
        "0",
        holder_tests.test_lease_that_is_on_its_way_is_not_given_back,
    ),
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=2)


@pytest.mark.verify
@pytest.mark.parametrize("name", SHARD)
def test_broken_rule_of_the_shard_is_noticed(name: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, old, new, caught_by = SHARD[name]
    plant(monkeypatch, module, function, old, new)
    with pytest.raises((AssertionError, KeyError)):
        caught_by(world)


@pytest.mark.verify
@pytest.mark.parametrize("name", HOLDER)
def test_broken_rule_of_the_holder_is_noticed(name: str, site: HandSite, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, old, new, caught_by = HOLDER[name]
    plant(monkeypatch, module, function, old, new)
    with pytest.raises((AssertionError, pytest.fail.Exception, TryAgain)):
        caught_by(site)
