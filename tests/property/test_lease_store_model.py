"""The store against a dict: its own dict and the file make one set of states, also after a failure."""

from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.formats.hints import NOTHING_WRITTEN
from appliance.lease import store as store_module
from appliance.lease.domain import Free, Memory, State, Taken
from appliance.lease.store import LeaseStore
from tests.property.test_lease_rows import FLOOR, SETTLE_TO, first_lease

DOMAINS = "abcdef"
CHANGE = st.tuples(st.sampled_from(DOMAINS), st.sampled_from(("lease", "free", "forget", "past", "look", "count")))
FULL = st.sampled_from((False, False, False, True))
TURNS = st.lists(st.tuples(st.lists(CHANGE, max_size=4), st.booleans(), FULL), max_size=12)
"""What each turn changes, whether it fails, and whether there is no room in the file from then on."""

type Turns = list[tuple[list[tuple[str, str]], bool, bool]]


class PlantedError(Exception):
    """A turn that fails."""


class Tight:
    """A connection to a file that has room for no state more while ``full``."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.full = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a connection has
        return getattr(self._connection, name)

    def __enter__(self) -> apsw.Connection:
        return self._connection.__enter__()

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> Any:  # noqa: ANN401, PYI036 - as apsw's
        return self._connection.__exit__(kind, problem, trace)

    def executemany(self, statement: str, values: Any) -> Any:  # noqa: ANN401 - as apsw's
        if self.full and "entry" in statement and "SELECT" not in statement:
            raise apsw.FullError
        return self._connection.executemany(statement, values)


def fail(fails: bool) -> None:  # noqa: FBT001 - drawn
    if fails:
        raise PlantedError


def free(number: int) -> Free:
    return Free(memory=Memory(fence=number, floor_ns=FLOOR, settle_to_ns=number, hints=NOTHING_WRITTEN))


def change(store: LeaseStore, model: dict[str, State], domain: str, what: str, number: int) -> None:
    match what:
        case "look":
            store.look_up(DOMAINS)
        case "count":
            agree(store, model)
        case "forget":
            if isinstance(model.get(domain), Free):
                store.put(domain, None)
                del model[domain]
        case "past":
            store.past(2**62, 99)
        case _:
            model[domain] = free(number) if what == "free" else first_lease(expiry_ns=number)
            store.put(domain, model[domain])


def agree(store: LeaseStore, model: dict[str, State]) -> None:
    leased = {domain: state for domain, state in model.items() if isinstance(state, Taken)}
    assert (store.domains, store.leases) == (len(model), len(leased))
    assert {domain: state for domain in DOMAINS if (state := store.read(domain))} == model


def asked(store: LeaseStore, model: dict[str, State]) -> None:
    """Check the questions about many rows: they are asked between turns, or before anything of one is written."""
    leases = {domain: state.leases[0] for domain, state in model.items() if isinstance(state, Taken)}
    assert store.past(2**62, 99) == sorted(leases, key=lambda each: (leases[each].expiry_ns, each))
    assert dict(store.page("", 99)[0]) == {domain: model[domain] for domain in leases}
    assert store.latest_expiry() == max((each.expiry_ns for each in leases.values()), default=None)
    memories = [state.memory for state in model.values()]
    assert store.highest() == (
        max((each.fence for each in memories), default=0),
        max((each.floor_ns for each in memories), default=0),
        max((each.settle_to_ns for each in memories), default=0),
    )
    assert sorted(store.idle(2**62, 99)) == sorted(model.keys() - leases)
    around = [store.neighbours() for _ in range(len(model) + 1)]  # two at once, or more of what is missing
    assert {each for some in around for each in some} >= set(model)
    assert all(some == sorted(some) for some in around)


def follow(turns: Turns) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_module, "UNWRITTEN_MAX", 3)
        patch.setattr(store_module, "RECENT_MAX", 2)
        patch.setattr(store_module, "NEIGHBOURS_MAX", 2)
        store = LeaseStore(Path(":memory:"))
        try:
            store.rows.begin(FLOOR, SETTLE_TO)
            tight = Tight(store._connection)
            store._connection = tight  # type: ignore[assignment]
            model: dict[str, State] = {}
            number = 1000
            for changes, fails, full in turns:
                tight.full = full
                after = dict(model)
                try:
                    with store.transaction():
                        for domain, what in changes:
                            number += 1
                            change(store, after, domain, what, number)
                        fail(fails)
                    model = after
                except PlantedError:
                    pass
                agree(store, model)
                if len(changes) % 2:
                    asked(store, model)
            asked(store, model)
            tight.full = False
            asked(store, model)
            with store.transaction():
                for name in "uvwxyz":
                    store.put(name, free(number))
            assert not store.full
        finally:
            store.close()


# What was forgotten is in the file still when its place among the newest is needed.
@example([([("a", "lease")], False, False), ([("a", "free"), ("a", "forget")], False, False), ([], False, False)])
@given(TURNS)
def test_store_is_one_dict_in_two_places(turns: Turns) -> None:
    follow(turns)
