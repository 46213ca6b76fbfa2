"""Each rule of the lease store and of its rows, broken once: the property named beside it must notice."""

from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings

from appliance.lease import state_rows, store
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


SHORT, WRITE, TURN = "StateRows._short", "LeaseStore._write", "LeaseStore.transaction"
MUTANTS: dict[str, tuple[ModuleType, str, str, str, Callable[[], None]]] = {
    "short although it says more": (
        state_rows,
        SHORT,
        "lone_lease(plain, lease.mode, lease.phase, lease.answered, lease.session_id) != state",
        "False",
        rows_say_what_was,
    ),
    "freed although it says more": (state_rows, SHORT, "expanded(freed) == state", "True", rows_say_what_was),
    "all are held": (state_rows, SHORT, "lease.phase is Phase.HELD", "True", rows_say_what_was),
    "who asked last is left out": (state_rows, SHORT, "lease.answered != lease.granted_by", "False", rows_say_what_was),
    "the session is left out": (state_rows, SHORT, "lease.session_id is not None", "False", rows_say_what_was),
    "a failed turn is remembered": (store, TURN, "self.states.update(self.changed)", "pass", one_dict),
    "a failed turn is counted": (
        store,
        TURN,
        "self.domains, self.leases, self.hint_bytes, self.dead_leases = numbers",
        "pass",
        one_dict,
    ),
    "a turn is never written": (
        store,
        TURN,
        "self._unwritten.update(dict.fromkeys(self.changed))",
        "self._unwritten.update(dict.fromkeys(each for each in self.changed if self.states[each] is None))",
        one_dict,
    ),
    "what is forgotten stays in the file": (store, TURN, "self._forgotten[domain] = None", "pass", one_dict),
    "what could not be written is forgotten": (
        store,
        WRITE,
        "self._unwritten[domain] = None",
        "pass",
        one_dict,
    ),
    "what could not be deleted is there again": (
        store,
        WRITE,
        "not self._changed_file(_DELETE, [(each,) for each in self._forgotten])",
        "not self._changed_file(_DELETE, [(each,) for each in self._forgotten]) and False",
        one_dict,
    ),
    "what the turn has changed is written before it counts": (
        store,
        "LeaseStore._row",
        "self.changed[domain] if domain in self.changed else self.states[domain]",
        "self.states[domain]",
        one_dict,
    ),
    "what is not in the file is dropped": (
        store,
        "LeaseStore._trim",
        "each not in self._unwritten",
        "True",
        one_dict,
    ),
    "what could not be deleted is dropped": (
        store,
        "LeaseStore._trim",
        "each not in self._forgotten",
        "True",
        one_dict,
    ),
    "what could not be written is in no answer": (
        store,
        "LeaseStore._ask",
        "where = 'entry_or_missing'",
        "pass",
        one_dict,
    ),
    "what could not be deleted is in an answer": (
        store,
        "LeaseStore._ask",
        "((each, -1, 0, 0, 0, 0, 0, b'') for each in self._forgotten)",
        "()",
        one_dict,
    ),
    "an answer has what was missing before": (
        store,
        "LeaseStore._ask",
        "self._connection.execute('DELETE FROM missing')",
        "pass",
        one_dict,
    ),
    "neighbours that are not in the file are left out": (
        store,
        "LeaseStore.neighbours",
        "found.update((each for each in self._unwritten if behind < each and (each <= until or not until)))",
        "pass",
        one_dict,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_store_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, Mutant(*MUTANTS[name]))
