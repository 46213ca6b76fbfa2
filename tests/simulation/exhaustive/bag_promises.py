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
from tests.simulation.exhaustive.tree import parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.exhaustive.afterwards import Read
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
BEGUN = "what is begun stays begun"
ONE_PACK = "a pack is for ever"
PACKED_FIRST = "a listed file goes when the pack holds it"
PACK_THERE = "who packed a rack was told what is there"
READ_ONCE = "a reader that comes afterwards is given the record, once"
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

    def __init__(self, read: Callable[[Tree], Read | str] | None = None, *, decided: bool = False) -> None:
        """``read``: what a reader would deliver that came to a tree when nobody else does anything any more."""
        self._read = read
        self._decided = decided

    def in_step(self, before: Tree, after: Tree) -> list[str]:
        too_soon = after.has(f"{NEXT_RACK.path}/seal") and not after.has(f"{RACK.path}/seal")
        lost = (_lost(after, path, data) for path, data in sorted(before.files - after.files))
        return [IN_ORDER] * too_soon + [promise for promise in lost if promise is not None]

    def in_state(self, tree: Tree, notes: list[Notes]) -> list[str]:
        listed = record(tree)
        broken = [name for each in notes for note in each for name in _broken(tree, listed, note)]
        if self._read is not None and self._read(tree) != _each(listed):
            broken.append(f"{READ_ONCE}: {self._read(tree)}" if isinstance(self._read(tree), str) else READ_ONCE)
        return broken

    def at_end(self, _tree: Tree, notes: list[Notes]) -> list[str]:
        if not self._decided:
            return []
        undecided = ("raised", "not due")
        return [
            f"{ALL_DECIDED}: {note}" for each in notes for note in each if note[0] in undecided or note[-1] == "Unknown"
        ]


def _each(listed: Listed) -> Read:
    return tuple(sorted((bag, name) for bag, names in listed.items() for name in names or ()))


def _lost(after: Tree, path: str, data: bytes) -> str | None:
    """Return what is broken when a file goes, or becomes another one."""
    directory, _, name = path.rpartition("/")
    if name in _FOR_EVER:
        # A bag's prelock and lock file may go once a seal holds what they say.
        swept = after.read(path) is None and after.has(f"{parent(directory)}/seal")
        return None if swept and name in ("prelock", "lock") else _FOR_EVER[name]
    seal = after.read(f"{parent(directory)}/seal")
    if seal is None:
        return PACKED_FIRST
    listed = name in seal_names(seal).get(directory.rpartition("/")[2], ())
    return PACKED_FIRST if listed and data not in (after.read(f"{parent(directory)}/pack") or b"") else None


_FOR_EVER = {"prelock": BEGUN, "lock": ONE_LOCK, "seal": ONE_SEAL, "pack": ONE_PACK}


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
        case "packed":
            # Nobody gives up a pack here. Who found no seal was told nothing that lasts.
            packed = tree.has(f"{RACK.path}/pack")
            if said[0] != "unsealed" and said[0] != ("packed" if packed else "empty"):
                yield PACK_THERE
        case "broke":
            yield f"{NO_BUG}: {said[0]}"


def _settled(tree: Tree, listed: Listed, below: tuple[str, ...], files: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """``below``: the bags whose instants all lie below the horizon that the reader had."""
    if tuple(each for each in files if each[0] in below) != _each({bag: listed.get(bag) for bag in below}):
        yield SETTLED_AGREE
    if not all(tree.has(f"{bag}/lock") or tree.has(f"{RACK.path}/seal") for bag in below):
        yield SETTLED_CLOSED
