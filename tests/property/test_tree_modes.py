"""The five modes on small trees: what is locked from the root down excludes exactly what touches the same node.

Who writes a node (and all below it) takes X there, who reads it S, and an intention on every ancestor: IX for a writer,
IS for a reader; who does both on one path takes the mode that includes both.
"""

import itertools

import pytest

from appliance.formats.lease import Mode, conflicts, covers

TREE = ("/", "/a", "/b", "/a/x", "/a/y")
INTENTION = {Mode.S: Mode.IS, Mode.X: Mode.IX}

type Want = tuple[tuple[str, Mode], ...]
"""What one holder does: reads (S) or writes (X) of nodes, each with all that is below."""


def is_below(node: str, above: str) -> bool:
    return above in (node, "/") or node.startswith(above + "/")


def include(one: Mode, other: Mode) -> Mode:
    """The weakest mode that includes both."""
    both = [mode for mode in Mode if covers(mode, one) and covers(mode, other)]
    (weakest,) = [mode for mode in both if all(covers(other, mode) for other in both)]
    return weakest


def locks(want: Want) -> dict[str, Mode]:
    taken: dict[str, Mode] = {}
    for node, mode in want:
        for each in TREE:
            if is_below(node, each):
                needed = mode if each == node else INTENTION[mode]
                taken[each] = include(taken[each], needed) if each in taken else needed
    return taken


def excluded(one: dict[str, Mode], other: dict[str, Mode]) -> bool:
    return any(conflicts(one[node], other[node]) for node in one.keys() & other.keys())


def touch(one: Want, other: Want) -> bool:
    """Whether one writes a node that the other reads or writes."""
    return any(
        Mode.X in (mine, yours) and (is_below(node, place) or is_below(place, node))
        for (node, mine), (place, yours) in itertools.product(one, other)
    )


SINGLE: list[Want] = [((node, mode),) for node in TREE for mode in (Mode.S, Mode.X)]
DOUBLE: list[Want] = [(*one, *other) for one, other in itertools.combinations(SINGLE, 2)]


# Sound: who touches what another writes is excluded. As concurrent as can be: nobody else is, for single wants.
@pytest.mark.parametrize("want", SINGLE)
def test_holders_exclude_each_other_exactly_where_they_touch(want: Want) -> None:
    for other in SINGLE:
        assert excluded(locks(want), locks(other)) is touch(want, other), other


# Who reads the root while writing below takes SIX there: the lock that reads the root must not get lost in IX.
def test_holders_of_several_nodes_exclude_whoever_touches_any_of_them() -> None:
    for one, other in itertools.product(DOUBLE, SINGLE + DOUBLE):
        assert not touch(one, other) or excluded(locks(one), locks(other)), (one, other)
        assert touch(one, other) or not excluded(locks(one), locks(other)), (one, other)


def test_reading_the_root_while_writing_a_part_excludes_writing_another() -> None:
    both: Want = (("/", Mode.S), ("/a", Mode.X))
    assert locks(both)["/"] is Mode.SIX
    assert excluded(locks(both), locks((("/b", Mode.X),)))
    assert not excluded(locks(both), {"/": Mode.IS, "/b": Mode.S})
