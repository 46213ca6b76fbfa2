"""The explorer finds what there is: against itself without its short cuts, and in toys whose answers are known."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.simulation.exhaustive.bag_casts import BagCast, closer, latest, packer, sealer, settler, writer
from tests.simulation.exhaustive.bag_promises import BagPromises
from tests.simulation.exhaustive.birth_casts import BirthCast, creator, opener
from tests.simulation.exhaustive.chain_casts import ChainCast, contender, terminator
from tests.simulation.exhaustive.nodes import empty_log
from tests.simulation.exhaustive.table import MUTANTS, Cast, explored
from tests.simulation.exhaustive.tree import ANY_FAULT, PIECES, ROUGH, Mount, Tree, TreeWorld
from tests.support.explorer import Answer, Explorer, Kind, Refusal
from tests.support.storage import Crash
from timeagent.errors import TryAgain

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tests.support.explorer import Notes, Port, Request


class Counter:
    """A number that anybody may read and write: a lost update is one of its histories."""

    def start(self) -> int:
        return 0

    def answers(self, tree: int, request: Request, _memory: Hashable) -> tuple[Answer, ...]:
        if request[0] == "read":
            return (Answer(tree, tree),)
        return (Answer(None, request[1]), Answer(None, tree, cost=1))

    def by_itself(self, _tree: int) -> Iterable[tuple[str, int]]:
        return ()


@dataclass
class AtMost:
    """The only promise: the number never exceeds this one."""

    most: int

    def in_step(self, _before: int, _after: int) -> list[str]:
        return []

    def in_state(self, tree: int, _notes: list[Notes]) -> list[str]:
        return ["too much"] if tree > self.most else []

    def at_end(self, _tree: int, _notes: list[Notes]) -> list[str]:
        return []


def add_one(port: Port) -> None:
    port.ask("write", port.ask("read") + 1)


def counting(*kinds: Kind, most: int = 9, **options: Any) -> Explorer:  # noqa: ANN401 - as Explorer
    return Explorer(Counter(), kinds, AtMost(most), **options)


@pytest.mark.parametrize("reduced", [True, False])
def test_every_result_of_three_unprotected_additions_is_found(*, reduced: bool) -> None:
    found = counting(Kind("adder", add_one, 3)).run()
    assert {tree for tree, *_ in found.endings} == {1, 2, 3}
    assert not found.bounded


@pytest.mark.parametrize("reduced", [True, False])
def test_faults_are_spent_once_in_a_run(*, reduced: bool) -> None:
    found = counting(Kind("adder", add_one, 2), faults=1).run()
    assert {tree for tree, *_ in found.endings} == {1, 2}
    found = counting(Kind("adder", add_one, 2), faults=2).run()
    assert {tree for tree, *_ in found.endings} == {0, 1, 2}


def test_breach_comes_with_its_schedule() -> None:
    found = counting(Kind("one", add_one), Kind("other", add_one), most=1).run()
    assert [breach.promise for breach in found.breaches] == ["too much"]
    assert found.breaches[0].schedule[-1].endswith("write 2; ends with ()")
    assert [line.split()[1] for line in found.breaches[0].schedule] == ["read", "write", "read", "write"]


def test_bound_that_was_hit_is_said() -> None:
    assert counting(Kind("adder", add_one, 3), states_max=3).run().bounded


def test_actor_that_is_no_function_of_its_answers_is_refused() -> None:
    seen = []

    def moody(port: Port) -> None:
        seen.append(1)
        port.ask("read", len(seen))
        port.ask("read")

    with pytest.raises(AssertionError, match="no function of its answers"):
        counting(Kind("moody", moody)).run()


def test_refusal_ends_an_actor_and_any_other_exception_is_noted() -> None:
    def refuse(port: Port) -> None:
        raise TryAgain("later", "not now")

    def fail(port: Port) -> None:
        raise ZeroDivisionError

    told = counting(Kind("refuser", refuse), Kind("failing", fail)).run().told()
    assert told == {("raised", "later"), ("broke", "ZeroDivisionError()")}


ENDINGS: list[Cast] = [
    BagCast((writer(), closer(count=2))),
    BagCast((writer(), closer()), PIECES),
    BagCast((writer(again=1), closer()), faults=1),
    BagCast((writer(), closer()), Mount(pieces=True, absences=True), 1, rack=False),
    BagCast((writer(), sealer()), ANY_FAULT, 1),
    BagCast((packer(count=2),), before=(writer(), sealer())),
    BagCast((writer(), settler())),
    BagCast((writer(), latest()), PIECES),
    BirthCast((creator(1), creator(2), opener())),
    BirthCast((creator(1), creator(2)), ROUGH, 1),
    ChainCast((contender("a"), contender("b", orderly=True))),
    ChainCast((contender("a", extends=2), contender("b", extends=0)), records_kept=1),
    ChainCast((contender("a"), terminator()), PIECES, 1),
]


@pytest.mark.verify
@pytest.mark.parametrize("cast", ENDINGS)
def test_short_cut_leaves_out_no_ending(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    short, whole = explored(cast, monkeypatch), explored(replace(cast, reduced=False), monkeypatch)
    assert not short.bounded
    assert not whole.bounded
    assert short.states < whole.states
    assert short.endings == whole.endings


CRASHING = ["bag listed before its prelock", "rack listed before its prelock", "late taken for not committed"]


# Breaches that are seen only while somebody stands still: the short cut must not run past them.
@pytest.mark.verify
@pytest.mark.parametrize("name", CRASHING)
def test_short_cut_leaves_out_no_breach(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.apply(monkeypatch)
    breaches = [
        {breach.promise for breach in cast.explorer().run(to_first_breach=False).breaches}
        for cast in (mutant.cast, replace(mutant.cast, reduced=False))
    ]
    assert breaches[0] == breaches[1]
    assert mutant.breaks in breaches[0]


# -- dying -------------------------------------------------------------------------------------------------------------

DIES = Refusal(lambda *_: Crash(), "dies")


class Mortal(TreeWorld):
    """Whoever asks for something may die of it: before it is done, or after."""

    def answers(self, tree: Tree, request: Request, memory: frozenset[str] | None) -> tuple[Answer, ...]:
        each = super().answers(tree, request, memory)
        trees = dict.fromkeys([tree, *(answer.tree for answer in each)])
        return (*each, *(Answer(DIES, left, memory, cost=1) for left in trees))


def mortal(kind: Kind) -> Kind:
    def body(port: Port) -> None:
        with suppress(Crash):
            kind.body(port)

    return Kind(kind.name, body, kind.count)


class Seen(BagPromises):
    """Remembers every state that it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.states: set[Hashable] = set()

    def in_state(self, tree: Tree, notes: list[Notes]) -> list[str]:
        self.states.add((tree, tuple(sorted(map(repr, notes)))))
        return super().in_state(tree, notes)


MORTALS = [(writer(), closer(count=2)), (writer(), sealer()), (writer(again=1), settler())]


@pytest.mark.verify
@pytest.mark.parametrize("cast", MORTALS)
def test_who_dies_leaves_nothing_that_standing_still_for_ever_does_not(cast: tuple[Kind, ...]) -> None:
    living, dying, mount = Seen(), Seen(), Mount(faults=frozenset())
    Explorer(TreeWorld(empty_log(), mount), cast, living).run()
    found = Explorer(Mortal(empty_log(), mount), [mortal(kind) for kind in cast], dying, faults=1).run()
    assert not found.breaches
    assert not found.bounded
    assert dying.states == living.states


# -- the mount ---------------------------------------------------------------------------------------------------------

TREE = Tree(frozenset({("d/x", b"1")}), frozenset({"", "d"}))


def values(mount: Mount, request: Request, memory: frozenset[str] | None = None) -> set[Hashable]:
    return {answer.value for answer in TreeWorld(TREE, mount).answers(TREE, request, memory)}


def test_look_in_pieces_may_miss_what_came_after_its_opening() -> None:
    assert values(Mount(), ("look", "d", ("x", "y"))) == {frozenset({"x"})}
    assert values(PIECES, ("look on", "d", "x")) == {False, True}
    assert values(Mount(), ("look on", "d", "x")) == {False}


def test_listing_in_pieces_may_miss_what_came_after_its_opening() -> None:
    assert values(PIECES, ("list on", "d", frozenset())) == {frozenset(), frozenset({"x"})}
    assert values(Mount(), ("list on", "d", frozenset())) == {frozenset()}


def test_cached_absence_may_answer_for_a_name_and_for_what_is_below_it() -> None:
    assert values(ROUGH, ("read", "d/x"), frozenset({"d/x"})) == {None, b"1"}
    assert values(ROUGH, ("read", "d/x"), frozenset({"d"})) == {None, b"1"}
    assert values(ROUGH, ("look", "d", ("x",)), frozenset({"d"})) == {None, frozenset({"x"})}
    assert values(ROUGH, ("look", "d", ("x",)), frozenset({"d/x"})) == {frozenset({"x"})}


def test_what_is_looked_at_without_opening_stays_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TreeWorld, "revalidates", False)
    assert values(ROUGH, ("look", "d", ("x",)), frozenset({"d/x"})) == {frozenset()}


def test_failed_request_was_done_or_not_or_is_on_the_way() -> None:
    world = TreeWorld(TREE, Mount())
    failed = [answer.tree for answer in world.answers(TREE, ("publish", "d/y", b"2"), None) if answer.cost]
    done = TREE.with_file("d/y", b"2")
    late = TREE.sent(("publish", "d/y", b"2"))
    assert failed == [TREE, done, late]
    assert {after for _, after in world.by_itself(late)} == {TREE, done}
