"""Each rule of the lease store and of its rows, broken once: the property named beside it must notice."""

from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings

from appliance.lease import rows, store
from appliance.lease.domain import State
from tests.property import test_lease_rows as row_tests
from tests.property import test_lease_store_model as store_tests
from tests.support.mutants import Mutant, check_noticed


# The properties without the search for the smallest example: that takes longest, and nobody reads it here.
@settings(phases=[Stage.generate], max_examples=2000)
@given(row_tests.SOME_STATES)
def rows_say_what_was(states: list[State]) -> None:
    row_tests.read_back(states)


@settings(phases=[Stage.generate], max_examples=1000)
@given(store_tests.TURNS)
def one_dict(turns: store_tests.Turns) -> None:
    store_tests.follow(turns)


SHORT = "StateRows._short"
MUTANTS: dict[str, tuple[ModuleType, str, str, str, Callable[[], None]]] = {
    **{
        f"short although {condition}": (rows, SHORT, condition, "False", rows_say_what_was)
        for condition in (
            "memory.fence != fence",
            "first[:8] != fence.to_bytes(8, 'big')",
            "(memory.floor_ns, memory.settle_to_ns) != numbers",
            "(lease.floor_ns, lease.settle_to_ns) != numbers",
            "lease.lowest_ns != lease.floor_ns",
            "lease.granted_ns != fence - 1",
            "lease.granted_by != lease.age.request_id",
            "memory.previous_id != first",
            "memory.hints != self._hints",
            "lease.hints != NOTHING_WRITTEN",
            "lease.answered != lease.granted_by",
            "lease.session_id is not None",
        )
    },
    **{
        f"short although there is {field}": (rows, SHORT, field, "None", rows_say_what_was)
        for field in (
            "memory.ended_request",
            "memory.floor_set_by",
            "memory.before_last",
            "lease.previous_id",
            "lease.past",
        )
    },
    "short although one has ended": (
        rows,
        "StateRows.row",
        "memory.last_ended is not None",
        "False",
        rows_say_what_was,
    ),
    "short although there are two": (rows, "StateRows.row", "len(leases) > 1", "False", rows_say_what_was),
    "all are held": (rows, SHORT, "lease.phase is Phase.HELD", "True", rows_say_what_was),
    "a failed turn is remembered": (store, "LeaseStore.transaction", "self._turn.clear()", "pass", one_dict),
    "what could not be written is forgotten": (
        store,
        "LeaseStore._put",
        "return False",
        "[unwritten.pop(each) for each in domains]",
        one_dict,
    ),
    "what could not be written is in no answer": (
        store,
        "LeaseStore._all",
        "return 'entry_or_missing'",
        "return 'entry'",
        one_dict,
    ),
    "an answer has what was missing before": (
        store,
        "LeaseStore._copy",
        "self._execute('DELETE FROM missing')",
        "self._execute('UPDATE missing SET kind = kind')",
        one_dict,
    ),
    "a question about neighbours is about all that is missing": (
        store,
        "LeaseStore._crowded",
        "first <= each <= last",
        "True",
        one_dict,
    ),
    "a question about neighbours is about those of before": (
        store,
        "LeaseStore._crowded",
        "self._execute('DELETE FROM crowd')",
        "pass",
        one_dict,
    ),
    "what is forgotten while it is missing comes back": (
        store,
        "LeaseStore._adopt",
        "unwritten.pop(domain, None)",
        "pass",
        one_dict,
    ),
    "there is no room for ever": (store, "LeaseStore._put", "self._no_room = False", "pass", one_dict),
    "what is forgotten comes back": (store, "LeaseStore.forget", "self._turn[domain] = None", "pass", one_dict),
    "what is unwritten is not looked at": (store, "LeaseStore._kept", "self._unwritten", "self._recent", one_dict),
    "what is forgotten in vain stays so": (
        store,
        "LeaseStore.look_up",
        "missing.difference_update(self._turn)",
        "pass",
        one_dict,
    ),
    "what is forgotten is remembered as read": (
        store,
        "LeaseStore._adopt",
        "self._recent[domain] = None",
        "pass",
        one_dict,
    ),
    "what is written is not there any more": (
        store,
        "LeaseStore._put",
        "self._recent[domain] = unwritten.pop(domain)",
        "self._recent[domain] = unwritten.pop(domain) and None",
        one_dict,
    ),
    "a question about what is in the file alone": (store, "LeaseStore._ask", "self._all()", "'entry'", one_dict),
    "the file keeps what was first": (store, "LeaseStore._adopt", "unwritten.update(turn)", "pass", one_dict),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_store_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, Mutant(*MUTANTS[name]))
