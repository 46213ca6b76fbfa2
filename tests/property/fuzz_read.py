"""Hostile bytes and wrong objects for what the native core does for readers and audits, beside the Python reference.

    python -m tests.property.fuzz_read --inputs 10000000 [--seed N] [--core FILE]

An input is a file of frames, a record, or a leaf with its path, in which something was altered, cut, doubled or mixed:
both take it, and have to say the same of it, or both refuse. They come by the hundred from one honest model, so that
ten million are a matter of minutes. Beside them functions of the core are called with what no caller of ours gives
them: they may refuse, and the process goes on. ``--core``: one that watches every step, started as
tests/property/test_read_fuzz.py does.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from appliance.formats.framing import FrameHead, Kind, pack
from appliance.formats.lease import Ending, Holder, LeaseOutcome, Mode, Phase
from appliance.formats.merkle import path, tree
from appliance.formats.witness import SignedWitness, Witness, WitnessKind, decode_entry
from auditor.columns.frames import check_paths, cut
from auditor.columns.layout import NotPlain
from auditor.columns.records import Records, Reference, Shape, Shapes
from tests.support.native import loaded
from timeagent import core
from timeagent.canonical import decode, encode
from timeagent.core import NativeCore
from timeagent.errors import Damaged

AT_ONCE: Final = 240
"""So many inputs are made of one model."""
PROBES: Final = 30
"""Wrong calls beside each so many inputs."""
_ODD: Final = np.array([*(0, 0x1F, 0x20, 0x7F, 0x80, 0xC0, 0xC4, 0xCC, 0xCF, 0xD9, 0xDD, 0xFF), *range(256)], np.uint8)
"""What bytes become: lengths and tags of MessagePack sooner than others."""
WRONG: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1, 2**31, 2**63 - 1, 2**63, 1.5, "", "a", (), (1, 2), {}, object(), max),
    *(b"", b"\0", bytes(8), bytes(32), bytes(300), b"\xff" * 64, bytearray(3), bytearray(4096)),
    *([], [b""], [b"", None], [(b"", b"")], [(b"a", bytes(12))], [struct.pack("=iiii", 0, 3, 1, 600)]),
    *([(b"ab", struct.pack("=iii", what, *at))] for what in range(3) for at in ((-1, 1), (2, 1), (0, 2**31 - 1))),
    *(struct.pack("=ii", *at) for at in ((0, 2**31 - 1), (2**31 - 1, 1), (-1, 5), (0, -1), (1, 1))),
    struct.pack("=qq", 5, 2**40),
)


class Changing:
    """Alters bytes."""

    def __init__(self, chance: random.Random) -> None:
        """Take what is left to chance."""
        self.chance = chance
        self._last = [b"\x90"]

    def altered(self, data: bytes, most: int = 3) -> bytes:
        """Return bytes in which up to so many pieces are not what they were."""
        chance, found = self.chance, bytearray(data)
        self._last = [*self._last[-7:], data]
        for _ in range(chance.randint(0, most)):
            at = chance.randrange(len(found) + 1)
            match chance.randrange(7):
                case 0:
                    found[at : at + 1] = bytes(
                        [chance.choice([0, 0x20, 0x7F, 0x80, 0xC0, 0xC4, 0xCC, 0xCF, 0xDD, 0xFF])]
                    )
                case 1:
                    found[at : at + 1] = chance.randbytes(1)
                case 2:
                    del found[at : at + chance.choice([1, 8, 34])]
                case 3:
                    found[at:at] = found[at : at + chance.choice([1, 34, 200])]
                case 4:
                    found[at : at + 4] = chance.choice(
                        [bytes(4), b"\xff" * 4, struct.pack("<I", chance.randrange(300))]
                    )
                case 5:
                    found[at : at + 1] = bytes([found[at] ^ 1 << chance.randrange(8)]) if at < len(found) else b""
                case _:
                    other = chance.choice(self._last)
                    found[at:] = other[chance.randrange(len(other) + 1) :]
        return bytes(found)

    def many(self, data: bytes, count: int) -> list[bytes]:
        """Return bytes so often, with up to three of them altered in each; some of another length."""
        chance, rows = self.chance, np.tile(np.frombuffer(data, np.uint8), (count, 1))
        for _ in range(chance.randint(1, 3)):
            at, odd = np.frombuffer(chance.randbytes(8 * count), "<u4").reshape(2, count)
            rows[np.arange(count), at % len(data)] = _ODD[odd % len(_ODD)]
        found = [row.tobytes() for row in rows]
        found[::6] = [self.altered(each, 2) for each in found[::6]]
        return found


def a_frame(chance: random.Random) -> bytes:
    """Return the payload of a frame, in small."""
    count = chance.choice([1, 1, 2, 3, 9])
    stamps = sorted(chance.sample(range(-3, 2 ** chance.choice([5, 62])), count))
    if chance.random() < 0.3:
        stamps[-1] = stamps[-2:][0]
    lengths = [chance.choice([0, 1, 20]) for _ in range(count)]
    head = chance.randbytes(chance.choice([0, 5, 60]))
    columns = struct.pack(f"<{count}q{count}I", *stamps, *lengths)
    return struct.pack("<I", len(head)) + head + struct.pack("<I", count) + columns + bytes(sum(lengths))


def longer(chance: random.Random, data: bytes) -> bytes:
    """Return a record in which a number of one byte, if there is one, would have a shorter form."""
    at = chance.choice([n for n, byte in enumerate(data) if byte == 0xCC] or [len(data)])
    return data[: at + 1] + b"\x7f" + data[at + 2 :]


def number(chance: random.Random) -> int:
    """Return a number of any width."""
    return chance.choice([0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1, chance.randrange(2**63)])


def a_witness(chance: random.Random) -> Witness:
    """Return a witness."""
    ending = Ending(
        correlation_id=chance.randbytes(16),
        outcome=chance.choice(list(LeaseOutcome)),
        ended_ns=number(chance),
        watermark_ns=chance.choice([None, number(chance)]),
        watermark_time=chance.choice([None, bytes(128)]),
        messages=number(chance),
        chain_head=chance.choice([None, bytes(32)]),
    )
    return Witness(
        kind=chance.choice(list(WitnessKind)),
        domain=chance.choice(["a", "account/7", "ä", "x" * 40]),
        mode=chance.choice(list(Mode)),
        phase=chance.choice(list(Phase)),
        holder=Holder(node="n1", process=number(chance), boot=bytes(16), incarnation=bytes(8)),
        correlation_id=chance.randbytes(16),
        fence=number(chance),
        expiry_ns=number(chance),
        floor_ns=number(chance),
        settle_to_ns=number(chance),
        session_id=chance.choice([None, bytes(16)]),
        previous_id=chance.choice([None, bytes(16)]),
        last_ended=chance.choice([None, ending]),
        floor_set_by=None,
        others=number(chance),
        others_digest=None,
    )


def a_record(chance: random.Random, kind: type[msgspec.Struct]) -> bytes:
    """Return an encoded record of a kind."""
    witness = a_witness(chance)
    if kind is Witness:
        return encode(witness)
    way = tuple(chance.randbytes(32) for _ in range(chance.randrange(4)))
    signed = SignedWitness(
        entry=encode(witness), index=number(chance), path=way, head=chance.randbytes(9), signature=bytes(64)
    )
    if kind is SignedWitness:
        return encode(signed)
    return encode(
        FrameHead(
            cluster_id=bytes(16),
            log=chance.choice(["orders", "ö"]),
            writer="n1",
            incarnation=chance.randbytes(8),
            sequence=number(chance),
            attempts=(),
            committed=None,
            time=bytes(128),
            witnesses=tuple(chance.choice([b"one", b"two", chance.randbytes(3)]) for _ in range(chance.randrange(4))),
            trust_number=number(chance),
            policy_number=7,
        )
    )


KINDS: Final[dict[type[msgspec.Struct], Callable[[bytes], msgspec.Struct]]] = {
    FrameHead: lambda raw: decode(FrameHead, raw),
    SignedWitness: lambda raw: decode(SignedWitness, raw),
    Witness: decode_entry,
}
LISTS: Final = {FrameHead: "witnesses", SignedWitness: "path"}


def told(records: Records, of_lists: str | None) -> list[object]:
    """Return all that columns say of records."""
    found: list[object] = [records.kinds() and len(records.kinds())]
    for name in sorted({each for shape in records._shapes for each in shape.fields}):
        which, values = records.distinct(name)
        found += [name, records.there(name).tolist(), records.raw(name), which.tolist(), values]
        sizes = {shape.place(name)[1] for shape in records._shapes if name in shape.fields}
        if sizes <= {1, 2, 4, 8}:
            found.append(records.number(name, -1).tolist())
        for width in sizes:
            try:
                found.append(records.octets(name, width).tobytes())
            except ValueError:
                found.append("other sizes")
    if of_lists is not None:
        rows, which, values = records.distinct_items(of_lists)
        found += [rows.tolist(), which.tolist(), values, records.items(of_lists)]
    return found


def by_both(native: NativeCore, say: Callable[[], object]) -> bool:
    """Have the reference and the core say something, which has to be the same; whether neither refused."""
    said = []
    for chosen in (None, native):
        core.native = chosen
        try:
            said.append(say())
        except (NotPlain, Damaged, ValueError):
            said.append(None)
    assert said[0] == said[1], "the reference and the core say different things: " + repr(said)[:2_000]
    return said[0] is not None


def frames(native: NativeCore, change: Changing) -> int:
    """Cut files in which something was altered: before the checksums were made, or behind. Returns how many hold."""
    chance = change.chance
    models = [a_frame(chance) for _ in range(chance.randint(1, 3))]
    behind = b"".join(pack(Kind.FRAME, each) for each in models[1:])
    files = [pack(Kind.FRAME, each) + behind for each in change.many(models[0], AT_ONCE // 2)]
    files += change.many(files[0], AT_ONCE - len(files))
    hashed = chance.random() < 0.7

    def say(*several: bytes) -> object:
        return [cut(each, hashed=hashed) for each in several]

    taken = [each for each in files if by_both(native, partial(say, each))]
    by_both(native, partial(say, *chance.choices(files, k=3)))
    if taken:
        by_both(native, partial(say, *taken[-3:]))
    return len(taken)


def records(native: NativeCore, change: Changing) -> int:
    """Read records in which something was altered, by the shapes of honest ones. Returns how many have one of these."""
    chance = change.chance
    kind = chance.choice(list(KINDS))
    models = [a_record(chance, kind) for _ in range(2)]
    raw = [each for model in models for each in change.many(model, AT_ONCE // 2)]
    raw[1::12] = [longer(chance, each) for each in raw[1::12]]
    known = [Shape(model, KINDS[kind](model)) for model in models]
    models_of, kinds = [shape.model for shape in known], bytearray(4)
    taken = [each for each in raw if Reference().match([each], 0, models_of, kinds)]
    by_core = [each for each in raw if native.match([each], 0, models_of, kinds)]
    assert by_core == taken, "the core has another opinion of what has a shape"
    for each in taken:
        KINDS[kind](each)  # decodes, or it could have no shape
    shapes = Shapes(KINDS[kind])
    shapes._known += known
    by_both(native, lambda: told(shapes.read([*taken, *models]), LISTS.get(kind)))
    few = chance.sample(raw, 3)
    by_both(native, lambda: told(Shapes(KINDS[kind]).read([models[0], *few]), LISTS.get(kind)))
    return len(taken)


def paths(native: NativeCore, change: Changing) -> int:
    """Check paths in which something was altered. Returns how many lead to a root."""
    chance = change.chance
    entries, ways, batch, index, counts, roots = [], [], [], [], [], []
    for number_of in range(2):
        leaves = [chance.randbytes(chance.choice([0, 3, 60])) for _ in range(chance.randint(1, 40))]
        levels = tree(leaves)
        counts.append(len(leaves) if chance.random() < 0.9 else chance.choice([1, 5, 2**31, 2**63 - 1]))
        roots.append(levels[-1][0])
        for _ in range(AT_ONCE // 2):
            at = chance.randrange(len(leaves))
            way = list(path(levels, at))
            if chance.random() < 0.2:
                way = chance.choice([way[:-1], [*way, bytes(32)], [*way[:-1], bytes(32)], way[::-1]])
            joined = bytearray(b"\xc4\x20".join(way))
            if joined and chance.random() < 0.2:
                joined[chance.randrange(len(joined))] ^= 1 << chance.randrange(8)
            entries.append(leaves[at] if chance.random() < 0.95 else b"other")
            ways.append(bytes(joined))
            batch.append(number_of)
            index.append(at if chance.random() < 0.9 else chance.choice([-1, 0, 7, 2**62]))
    of, at_leaf = np.array(batch, np.int64), np.array(index, np.int64)
    good: list[bool] = []

    def say() -> object:
        good[:] = check_paths(entries, ways, of, at_leaf, counts, roots).tolist()
        return list(good)

    by_both(native, say)
    return sum(good)


def probe(native: NativeCore, chance: random.Random) -> None:
    """Call a function of the core with an argument that no caller of ours gives it."""
    records, kinds, places = [b"abcdef", b"ghi"], struct.pack("=ii", 0, 1), struct.pack("=iiii", 0, 3, 1, 2)
    column = struct.pack("=qq", 0, 0)
    honest: dict[str, list[Any]] = {
        "cut": [pack(Kind.FRAME, a_frame(chance)), True, 9, 400],
        "match": [records, 0, [(b"abcdef", struct.pack("=iii", 0, 0, 6))], bytearray(8)],
        "column": [records, kinds, places, 8],
        "distinct": [records, kinds, [places, places]],
        "check_paths": [records, [b"", bytes(32)], column, struct.pack("=qq", 2, 2), bytes(64)],
    }
    name = chance.choice(list(honest))
    arguments = honest[name]
    for _ in range(chance.randint(1, 2)):
        arguments[chance.randrange(len(arguments))] = chance.choice(WRONG)
    if chance.random() < 0.1:
        arguments = arguments[: chance.randrange(len(arguments) + 1)]
    try:
        getattr(native, name)(*arguments)
    except Exception:  # noqa: BLE001 - it may refuse in whatever words
        return


WAYS: Final[Sequence[Callable[[NativeCore, Changing], int]]] = (frames, records, paths)


def fuzz(native: NativeCore, inputs: int, seed: int, say: Callable[[int], None] = lambda _: None) -> int:
    """Try at least so many inputs; return how many of them both took."""
    change, taken = Changing(random.Random(seed)), 0
    before = core.native
    try:
        for n in range(-(-inputs // AT_ONCE)):
            taken += WAYS[n % len(WAYS)](native, change)
            for _ in range(PROBES):
                probe(native, change.chance)
            if n % 400 == 0:
                say(n * AT_ONCE)
    finally:
        core.native = before
    return taken


def main() -> int:
    """Fuzz; an AssertionError, or the sanitizer, ends the process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--core", type=Path, help="a core that is not the one at work")
    options = parser.parse_args()
    native = loaded(options.core) if options.core else core.chosen("native")
    assert native is not None
    taken = fuzz(native, options.inputs, options.seed, lambda n: print(f"{n} of {options.inputs}", file=sys.stderr))
    print(f"{options.inputs} inputs, {taken} of them taken by both, the others refused by both")
    return 0


if __name__ == "__main__":
    sys.exit(main())
