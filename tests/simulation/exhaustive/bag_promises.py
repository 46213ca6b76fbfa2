"""What must hold of bags in every state, without a line of what is judged.

The record is what the tree says for ever: a seal's list; where there is none, a lock file's; where there is none
either, what a closer would list that were alone from now on. If that can still change, a promise that was given on it
is asked again in the states in which it has.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from tests.simulation.exhaustive.nodes import NEXT_RACK, RACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.exhaustive.tree import Tree
    from tests.support.explorer import Notes

type Listed = dict[str, tuple[str, ...] | None]
"""By the path of a bag: the files that it holds, or None where it does not exist."""

COMMITTED_LISTED = "committed is in the record"
NEVER_LISTED = "not committed is not in the record"
CLOSERS_AGREE = "who closed a bag was told the record"
SETTLED_AGREE = "settled reads are the record"
SETTLED_CLOSED = "below the horizon every bag is closed"
LATEST_FINAL = "latest reads are in the record"
SEALS_AGREE = "who sealed a rack was told the record"
ONE_LOCK = "a lock file is for ever"
ONE_SEAL = "a seal is for ever"
IN_ORDER = "racks are sealed in order"
NO_BUG = "nothing breaks"
ALL_DECIDED = "without faults everybody is answered"

_HEAD, _CHECKSUM = 12, 16


@cache
def _body(piece: bytes) -> list[Any]:
    stamped = msgspec.msgpack.decode(piece[_HEAD:-_CHECKSUM])
    body: list[Any] = msgspec.msgpack.decode(stamped[0])
    return body


def lock_names(lock: bytes) -> tuple[str, ...]:
    """Return the names that a lock file lists."""
    return tuple(entry[0] for entry in _body(lock)[6])


def seal_names(seal: bytes) -> dict[str, tuple[str, ...]]:
    """Return the bags that a seal lists, with the names that they hold."""
    return {entry[0]: lock_names(entry[1]) for entry in _body(seal)[4]}


@cache
def record(tree: Tree) -> Listed:
    """Return the bags of the rack. Those that a seal leaves out, and that are there, do not exist."""
    there = [name for name in tree.names(RACK.path) if name[0].isdigit()]
    seal = tree.read(f"{RACK.path}/seal")
    if seal is not None:
        sealed = seal_names(seal)
        return {f"{RACK.path}/{name}": sealed.get(name) for name in {*there, *sealed}}
    listed: Listed = {}
    for name in there:
        bag = f"{RACK.path}/{name}"
        lock = tree.read(f"{bag}/lock")
        files = tuple(sorted(each for each in tree.names(bag) if each.endswith(".msg")))
        listed[bag] = files if lock is None else lock_names(lock)
    return listed


class BagPromises:
    """The promises of docs/protocol/bag.md. ``decided``: everything is due and nothing fails, so nobody may give up."""

    def __init__(self, *, decided: bool = False) -> None:
        self._decided = decided

    def in_step(self, before: Tree, after: Tree) -> list[str]:
        too_soon = after.has(f"{NEXT_RACK.path}/seal") and not after.has(f"{RACK.path}/seal")
        return [IN_ORDER] * too_soon + [
            ONE_SEAL if path.endswith("seal") else ONE_LOCK
            for path, data in before.files
            if path.endswith(("/lock", "/seal")) and not _kept(after, path, data)
        ]

    def in_state(self, tree: Tree, notes: list[Notes]) -> list[str]:
        listed = record(tree)
        return [name for each in notes for note in each for name in _broken(tree, listed, note)]

    def at_end(self, _tree: Tree, notes: list[Notes]) -> list[str]:
        if not self._decided:
            return []
        undecided = ("raised", "not due")
        return [
            f"{ALL_DECIDED}: {note}" for each in notes for note in each if note[0] in undecided or note[-1] == "Unknown"
        ]


def _kept(after: Tree, path: str, data: bytes) -> bool:
    """Whether it is there still; a lock file may go once a seal holds what it says."""
    found = after.read(path)
    return found == data or (found is None and path.endswith("/lock") and after.has(f"{RACK.path}/seal"))


def _broken(tree: Tree, listed: Listed, note: Any) -> Iterator[str]:  # noqa: ANN401 - a note is what an actor wrote
    what, *said = note
    match what:
        case "outcome":
            (bag, file), outcome = said
            there = file in (listed.get(bag) or ())
            if outcome == "Committed" and not there:
                yield COMMITTED_LISTED
            if outcome == "NotCommitted" and there:
                yield NEVER_LISTED
        case "contents":
            bag, names = said
            if listed.get(bag) != names:
                yield CLOSERS_AGREE
        case "settled":
            yield from _settled(tree, listed, *said)
        case "latest":
            if not all(file in (listed.get(bag) or ()) for bag, file in said[0]):
                yield LATEST_FINAL
        case "sealed":
            if dict(said[0]) != {bag: names for bag, names in listed.items() if names is not None}:
                yield SEALS_AGREE
        case "broke":
            yield f"{NO_BUG}: {said[0]}"


def _settled(tree: Tree, listed: Listed, below: tuple[str, ...], files: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """``below``: the bags whose instants all lie below the horizon that the reader had."""
    expected = {(bag, name) for bag in below for name in listed.get(bag) or ()}
    if expected != {each for each in files if each[0] in below}:
        yield SETTLED_AGREE
    if not all(tree.has(f"{bag}/lock") or tree.has(f"{RACK.path}/seal") for bag in below):
        yield SETTLED_CLOSED
