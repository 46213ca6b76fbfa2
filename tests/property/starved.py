"""Fails each allocation that a call of the native core makes, one call after another: an error comes back, or a result.

    python -m tests.property.starved

Needs an interpreter with ``_testcapi``. Whoever gives something back twice then, or uses what it has not got, ends the
process.
"""

from __future__ import annotations

import importlib
import random
import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from appliance.formats.framing import Kind, pack
from tests.property.fuzz_core import nothing, own_places
from tests.property.fuzz_read import a_frame
from tests.property.test_core_fuzz import honest_calls
from timeagent import core
from timeagent.core import NativeCore


def calls(native: NativeCore) -> Iterator[tuple[Callable[..., object], Callable[[], tuple[Any, ...]]]]:
    """Yield functions with what makes honest arguments for them, new ones each time."""

    def of_turn(seen: tuple[Any, ...]) -> tuple[Any, ...]:
        kinds, words, ports, places, numbers, requests = own_places(seen)
        ports = (nothing, nothing, ports[2], ports[3], random.Random(1).randbytes, nothing, nothing)
        return kinds, words, ports, places, numbers, requests

    for seen in honest_calls(native):
        assert None not in native.answered(*of_turn(seen["answered"])), "made again, a request is plain still"
        yield native.answered, partial(of_turn, seen["answered"])
        yield native.replies, partial(tuple, seen["replies"])
        yield native.tree, partial(tuple, [seen["replies"][3]])
    records = [struct.pack("<I", n) * 8 for n in range(600)]
    kinds, places, column = bytes(2400), struct.pack("=ii", 4, 20), struct.pack("=qq", 0, 1)
    model = bytes(32), struct.pack("=iii", 0, 0, 0)
    frame = pack(Kind.FRAME, a_frame(random.Random(1)))
    for function, arguments in (
        (native.cut, (frame * 3, True, 9, 400)),
        (native.match, (records, 0, [model] * 3, bytearray(2400))),
        (native.column, (records, kinds, places, 32)),
        (native.distinct, (records, kinds, [places] * 2)),
        (native.check_paths, (records[:2], [bytes(32)] * 2, column, struct.pack("=qq", 2, 2), bytes(64))),
    ):
        yield function, partial(tuple, arguments)


def starve(native: NativeCore) -> int:
    """Make each call so often that each of its allocations fails, alone and with those after it; return how often."""
    hooks: Any = importlib.import_module("_testcapi")
    failed = 0
    for function, made in calls(native):
        for several in (1, 3):
            left = 5  # as many calls that wanted no more
            start = 0
            while left:
                arguments = made()
                try:
                    hooks.set_nomemory(start, start + several)
                    try:
                        function(*arguments)
                    finally:
                        hooks.remove_mem_hooks()
                except MemoryError:
                    failed += 1
                else:
                    left -= 1
                start += 1
    return failed


if __name__ == "__main__":
    at_work = core.chosen("native")
    assert at_work is not None
    print(f"{starve(at_work)} allocations failed")
