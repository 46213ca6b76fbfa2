"""Hostile bytes and wrong objects for the native core, beside the Python that it is held equal to.

    python -m tests.property.fuzz_core --inputs 1000000 [--seed N] [--core FILE]

Frames of calls that were cut, doubled, mixed and altered, as they come in at a shard's door: those that are calls
still are taken through a turn of a shard with the core, of one without, and of the general one, which have to agree.
And the core's functions are called with what no caller of ours gives them: they may refuse it, or make something of it,
and the process goes on. ``--core``: one that watches every step (``python -m release.core --sanitize DIRECTORY``), in
an interpreter that has the sanitizer's library loaded first and takes its memory from malloc, as
tests/property/test_core_fuzz.py starts it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from appliance.formats import merkle
from appliance.formats.witness import Witness
from appliance.lease.wire import Granted, Request, decode_call, encode_call
from tests.property.test_lease_plain import Sides
from tests.support.native import loaded
from tests.support.shards import HOLDER, RIVAL, World, acquire, opened, relinquish
from timeagent import core
from timeagent.core import NativeCore
from timeagent.errors import Damaged
from timeagent.units import MS

SIDES_LAST: Final = 500
"""How many inputs one set of shards gets: what they remember slows them down."""
PROBES: Final = 4
"""How many wrong calls of the core's functions there are beside each frame."""
WRONG: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 2**31, 2**63 - 1, 2**63, 2**64, 1.5, b"", b"\0", bytes(8), bytes(16), bytes(32), bytes(300)),
    *("", "a", "\ud800", "x" * 70_000, (), (1, 2, 3), [], [b""], {}, object(), max, int, HOLDER),
)


class Frames:
    """Makes frames of calls, and tells which leases there are."""

    def __init__(self, chance: random.Random) -> None:
        """Take what is left to chance."""
        self.chance = chance
        self.world = World(Path("unused"))
        self.leases: list[Witness] = []
        self._last = [b"\x90"]

    def honest(self) -> list[Request]:
        """Return a call that could be somebody's."""
        chance, made = self.chance, list[Request]()
        for _ in range(chance.randint(1, 6)):
            if self.leases and chance.random() < 0.5:
                made.append(relinquish(self.world, self.leases.pop(chance.randrange(len(self.leases)))))
            else:
                holder = chance.choice([HOLDER, HOLDER, RIVAL])
                made.append(
                    acquire(self.world, chance.choice("abcdefgh") * chance.choice([1, 2, 40, 300]), holder=holder)
                )
        return made

    def next(self) -> bytes:
        """Return the body of a frame, which may be no call."""
        chance = self.chance
        body = bytearray(encode_call(self.honest())[4:])
        self._last = [*self._last[-7:], bytes(body)]
        for _ in range(chance.choice([0, 1, 1, 2, 4])):
            at = chance.randrange(len(body) + 1)
            match chance.randrange(6):
                case 0:
                    body[at : at + 1] = bytes(
                        [chance.choice([0, 0x7F, 0x80, 0x90, 0xC0, 0xC2, 0xC3, 0xC4, 0xCF, 0xFF])]
                    )
                case 1:
                    body[at : at + 1] = chance.randbytes(1)
                case 2:
                    del body[at : at + chance.choice([1, 8, 16])]
                case 3:
                    body[at:at] = body[at : at + chance.choice([1, 9, 40])]
                case 4:
                    body[at : at + 8] = chance.choice([bytes(8), b"\xff" * 8, b"\x7f" + b"\xff" * 7])
                case _:
                    other = chance.choice(self._last)
                    body[at:] = other[chance.randrange(len(other) + 1) :]
        return bytes(body)

    def told(self, reply: object) -> None:
        """Hear of a grant."""
        if isinstance(reply, Granted):
            self.leases = [*self.leases[-40:], opened(reply)[1]]


def turned(sides: Sides, frames: Frames, body: bytes) -> bool:
    """Take the body of a frame through a turn; whether it was a call."""
    try:
        requests = decode_call(body)
    except Damaged:
        return False
    for each in (frames.world, *(side.world for side in sides.all)):
        each.time.advance(frames.chance.choice([0, 0, 1, 50 * MS]) if each is frames.world else 0)
    at = frames.world.time.midpoint_ns
    for side in sides.all:
        side.world.time.advance(max(0, at - side.world.time.midpoint_ns))
    replies = sides.serve(list(requests))
    assert not isinstance(replies, str)
    for reply in replies:
        frames.told(reply)
    return True


def garbled(chance: random.Random, value: object, depth: int = 0) -> object:
    """Return a value in which something is not what it was."""
    if isinstance(value, tuple | list) and value and depth < 3 and chance.random() < 0.9:
        found = list(value)
        match chance.randrange(8):
            case 0:
                del found[chance.randrange(len(found))]
            case 1:
                found.append(chance.choice(WRONG))
            case _:
                at = chance.randrange(len(found))
                found[at] = garbled(chance, found[at], depth + 1)
        return type(value)(found)
    return chance.choice(WRONG)


def nothing(*_: object) -> None:
    """Stand for a port."""


def probe(native: NativeCore, seen: dict[str, tuple[Any, ...]], chance: random.Random) -> None:
    """Call a function of the core with an argument that is not what it was in an honest call, which is made too."""
    leaves = [chance.randbytes(chance.choice([0, 1, 55, 64, 200])) for _ in range(chance.randint(1, 20))]
    native_tree = native.tree(leaves)
    core.native = None
    assert native_tree == merkle.tree(leaves)
    name = chance.choice([*seen, "tree"])
    arguments = list(seen.get(name, (leaves,)))
    if name == "answered":  # what an honest shard draws, writes and counts is not touched
        _, _, past, hints, _, _, _ = arguments[2]
        arguments[2] = (nothing, nothing, past, hints, chance.randbytes, nothing, nothing)
        arguments[:] = own_places(arguments)
    function: Callable[..., object] = getattr(native, name)
    function(*arguments)
    if chance.random() < 0.9:
        at = chance.randrange(len(arguments))
        arguments[at] = garbled(chance, arguments[at])
    else:
        arguments = arguments[: chance.randrange(len(arguments) + 1)]
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - it may refuse in whatever words
        return


def own_places(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments of ``answered`` with places that no other call changes: made again, it does the same."""
    kinds, words, ports, places, numbers, requests = arguments
    copies = tuple(each.copy() if isinstance(each, dict | list) else each for each in places)
    return kinds, words, ports, copies, numbers, requests


class Recording:
    """A core that tells what it was called with last."""

    def __init__(self, native: NativeCore, seen: dict[str, tuple[Any, ...]]) -> None:
        """Take the core, and where to tell it."""
        self._native, self._seen = native, seen

    def __getattr__(self, name: str) -> object:
        """Return one of the core's functions."""
        function = getattr(self._native, name)

        def called(*arguments: object) -> object:
            self._seen[name] = own_places(arguments) if name == "answered" else arguments
            return function(*arguments)

        return called if name in ("answered", "replies") else function


def fuzz(native: NativeCore, inputs: int, seed: int, told: Callable[[int], None] = lambda _: None) -> tuple[int, int]:
    """Try so many frames, and as many wrong calls for each as PROBES says; return how many were calls, and granted."""
    calls = granted = 0
    chance = random.Random(seed)
    frames, sides = Frames(chance), None
    seen: dict[str, tuple[Any, ...]] = {}
    try:
        for n in range(inputs):
            if n % SIDES_LAST == 0:
                if sides is not None:
                    sides.close()
                frames, sides = Frames(chance), Sides(Recording(native, seen))  # type: ignore[arg-type]
                told(n)
            assert sides is not None
            before = len(frames.leases)
            calls += turned(sides, frames, frames.next())
            granted += len(frames.leases) > before
            for _ in range(PROBES):
                probe(native, seen, chance)
    finally:
        if sides is not None:
            sides.close()
    return calls, granted


def main() -> int:
    """Run; 0: both agreed on every frame, and nothing was read or written where it may not be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--core", type=Path)
    options = parser.parse_args()
    native = core.chosen("native") if options.core is None else loaded(options.core.resolve())
    assert native is not None

    def told(number: int) -> None:
        sys.stderr.write(f"\r{number} of {options.inputs}")

    calls, granted = fuzz(native, options.inputs, options.seed, told)
    print(f"\n{options.inputs} frames, {calls} of them calls, {granted} with a grant")
    print(f"{PROBES * options.inputs} wrong calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
