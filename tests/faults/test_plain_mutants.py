"""Each condition of a plain turn, broken once: the property that compares with the general turn must notice."""

from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings

from appliance.lease import domain, fast_path, state_rows
from tests.property import test_lease_plain as plain_tests
from tests.property import test_lease_rows as row_tests
from tests.support.mutants import Mutant, check_noticed


def the_same() -> None:
    for seed in range(60):
        plain_tests.both(plain_tests.history(seed, 40), None)


# Without the search for the smallest example: that takes longest, and nobody reads it here.
@settings(phases=[Stage.generate], max_examples=2000)
@given(row_tests.SOME_PLAIN)
def rows_say_what_was(states: list[row_tests.Plain]) -> None:
    row_tests.read_back_plain(states)


ALL, BACK, GRANT = "FastPath.answered", "FastPath._take_back", "FastPath._grant"
MUTANTS: dict[str, tuple[ModuleType, str, str, str, Callable[[], None]]] = {
    **{
        f"given back although {condition}": (fast_path, BACK, condition, "False", the_same)
        for condition in (
            "had.correlation_id != name",
            "request.watermark_time is not None",
            "request.watermark_ns not in (None, had.defaults.memory.floor_ns)",
            "request.messages",
            "request.chain_head is not None",
            "request.abandoned",
        )
    },
    **{
        f"granted although {condition}": (fast_path, GRANT, condition, "False", the_same)
        for condition in (
            "request.mode is not Mode.X",
            "request.phase is not Phase.HELD",
            "request.session_id is not None",
            "not since <= request.map_number <= newest",
            "expiry <= latest",
            "fence > ceiling",
        )
    },
    "granted although somebody waits": (
        fast_path,
        GRANT,
        "domain in queues",
        "False",
        the_same,
    ),
    "asked for although given back": (fast_path, BACK, "self._recalls.ended(name)", "pass", the_same),
    "new although it may not be": (fast_path, GRANT, "self._refused_new(request) is not None", "False", the_same),
    "term longer than the longest": (fast_path, GRANT, "min(request.term_ns, term_max)", "request.term_ns", the_same),
    "expiry later than asked for": (fast_path, GRANT, "request.expiry_ns_max", "highest", the_same),
    "expiry above the ceiling": (
        fast_path,
        ALL,
        "min(ceiling, bounds.signed_ns_max)",
        "bounds.signed_ns_max",
        the_same,
    ),
    "expiry later than the signed time allows": (
        fast_path,
        ALL,
        "min(ceiling, bounds.signed_ns_max)",
        "ceiling",
        the_same,
    ),
    "fence of the domain forgotten": (fast_path, GRANT, "max(fence, fence_min) + 1", "fence_min + 1", the_same),
    "fence of the shard forgotten": (fast_path, ALL, "max(bounds.shard_floor_ns, now)", "now", the_same),
    "granted twice to one request": (
        fast_path,
        "_past",
        "kept.request_id != request.request_id",
        "True",
        the_same,
    ),
    "granted again after a general end": (
        fast_path,
        "_past",
        "kept.memory.ended_request == request.request_id",
        "False",
        the_same,
    ),
    "others that ended are left out": (fast_path, "_past", "kept.memory.before_last", "False", the_same),
    "new domains are not counted": (fast_path, GRANT, "self._store.domains += kept is None", "pass", the_same),
    "leases are not counted": (fast_path, GRANT, "self._store.leases += 1", "pass", the_same),
    "ends are not counted": (fast_path, BACK, "self._store.leases -= 1", "pass", the_same),
    "a grant that failed is not taken back": (fast_path, GRANT, "changed.setdefault(domain, kept)", "pass", the_same),
    "an end that failed is not taken back": (fast_path, BACK, "changed.setdefault(domain, had)", "pass", the_same),
    "the witness of this turn is forgotten": (
        fast_path,
        GRANT,
        "entry = answers[name] = len(entries)",
        "entry = len(entries)",
        the_same,
    ),
    "who asked last is forgotten": (domain, "memory_of", "freed.request_id", "None", the_same),
    "hints are not given": (fast_path, GRANT, "request.hints_wanted", "False", the_same),
    "hints are given unasked": (fast_path, GRANT, "request.hints_wanted", "True", the_same),
    "hints are those of a domain that is not known": (
        fast_path,
        GRANT,
        "_hints(defaults)",
        "_hints(unknown)",
        the_same,
    ),
    "the floor's lease is forgotten": (fast_path, "_past", "kept.defaults.setter", "_NIL", the_same),
    "rows: short on another ground": (
        state_rows,
        "StateRows._plain",
        "plain.defaults != self.defaults",
        "False",
        rows_say_what_was,
    ),
    "rows: freed on another ground": (
        state_rows,
        "StateRows.row",
        "kept.defaults is self.defaults or kept.defaults == self.defaults",
        "True",
        rows_say_what_was,
    ),
    "rows: short with another age": (
        state_rows,
        "StateRows._plain",
        "plain.age.request_id != plain.request_id",
        "False",
        rows_say_what_was,
    ),
    "rows: short behind what is not plain": (
        state_rows,
        "StateRows._plain",
        "before != self._unknown",
        "False",
        rows_say_what_was,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_plain_turn_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, Mutant(*MUTANTS[name]), typos=(NameError, SyntaxError))
