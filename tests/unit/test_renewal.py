"""The thread that keeps leases: it calls, it survives refusals, it stops."""

import logging
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.session import renewal as renewal_module
from appliance.session.renewal import PAUSE_NS_MIN, RenewalThread
from tests.support.cluster import fast_policy
from timeagent.errors import BadTime
from timeagent.units import SECOND

BOUND_S = 20.0


def test_it_calls_again_and_again_until_it_is_stopped() -> None:
    calls: list[None] = []
    enough = Event()

    def renew() -> None:
        calls.append(None)
        if len(calls) == 3:
            enough.set()

    renewal = RenewalThread(fast_policy(), renew)
    renewal.start(PAUSE_NS_MIN)
    assert enough.wait(BOUND_S)
    renewal.stop()
    after = len(calls)
    renewal.start(PAUSE_NS_MIN)  # stopped for good
    assert renewal._thread is None
    assert len(calls) == after


def test_refusal_is_logged_and_the_next_round_comes(caplog: pytest.LogCaptureFixture) -> None:
    again = Event()
    rounds = iter([BadTime("no-time", "no bound"), None])

    def renew() -> None:
        problem = next(rounds, None)
        if problem is not None:
            raise problem
        again.set()

    renewal = RenewalThread(fast_policy(), renew)
    with caplog.at_level(logging.WARNING):
        renewal.start(PAUSE_NS_MIN)
        assert again.wait(BOUND_S)
        renewal.stop()
    assert "renewal-failed code=no-time" in caplog.text


# A pool that may begin no thread, a descriptor too many, a bug: the other leases of the session have done nothing.
@pytest.mark.parametrize("problem", [RuntimeError("can't start new thread"), OSError(24, "Too many open files")])
def test_whatever_ends_a_round_is_logged_and_the_next_comes(
    caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    again = Event()
    rounds = iter([problem])

    def renew() -> None:
        for each in rounds:
            raise each
        again.set()

    renewal = RenewalThread(fast_policy(), renew)
    renewal.start(PAUSE_NS_MIN)
    assert again.wait(BOUND_S)
    renewal.stop()
    assert "renewal-failed\nTraceback" in caplog.text
    assert str(problem) in caplog.text


def test_starting_twice_makes_one_thread_and_shorter_leases_quicken_it() -> None:
    renewal = RenewalThread(fast_policy(), lambda: None)
    slow = renewal._pause_ns()
    renewal.start(8 * slow)
    thread = renewal._thread
    renewal.start(4 * slow)
    assert renewal._thread is thread
    assert renewal._pause_ns() == slow // 2
    renewal.stop()
    renewal.stop()
    assert thread is not None
    assert not thread.is_alive()


def test_policy_that_is_taken_up_quickens_a_session_that_acquires_nothing_any_more() -> None:
    policy: Any = SimpleNamespace(renew_period_ns=SECOND)
    renewal = RenewalThread(policy, lambda: None)
    renewal.start(2 * SECOND)
    slow = renewal._pause_ns()
    policy.renew_period_ns = SECOND // 4
    renewal.stop()
    assert renewal._pause_ns() == slow // 4


# Who is told of a loss there may close the session.
def test_it_is_stopped_from_within_as_from_elsewhere() -> None:
    stopped = Event()

    def renew() -> None:
        renewal.stop()
        stopped.set()

    renewal = RenewalThread(fast_policy(), renew)
    renewal.start(PAUSE_NS_MIN)
    assert stopped.wait(BOUND_S)


# A signal comes while the thread is being begun, and whoever handles it closes the session.
def test_it_is_stopped_while_it_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Thread):
        def start(self) -> None:
            super().start()
            renewal.stop()

    monkeypatch.setattr(renewal_module, "Thread", Interrupted)
    renewal = RenewalThread(fast_policy(), lambda: None)
    starting = Thread(target=renewal.start, args=(PAUSE_NS_MIN,), daemon=True)
    starting.start()
    starting.join(BOUND_S)
    assert not starting.is_alive()


def test_stopping_what_never_started_is_nothing() -> None:
    renewal = RenewalThread(fast_policy(), lambda: None)
    renewal.stop()
