"""Puts the story on disk: data files, lock files, seals, packs; and breaks files where that is planted."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Final

from appliance.formats.birth import BagKind, LogBirth
from appliance.formats.closed import LockEntry, LockFile, PackMaker, RackSeal, SealEntry
from appliance.formats.framing import Kind, measure
from appliance.formats.paths import DataName, Grid
from appliance.formats.stamped import stamp
from timeagent.units import SECOND

from .bank import BankStory
from .cast import START_NS, TICK_NS, Cluster, StampAt
from .faults import FILE_FAULTS, victims
from .story import MESSAGES, PER_WRITER, SLOTS, WRITERS, Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from appliance.formats.paths import Bag, Rack

    from .cast import Writer

LOGS: Final = ("orders", "payments")


def build(
    root: Path,
    messages: int,
    *,
    message_bytes: int = 100,
    kind: str = "log",
    packed: bool = False,
    plant: Mapping[str, int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Make a tree in an empty directory; return how many messages it was told. A multiple of ten."""
    frames = max(1, messages // MESSAGES)
    shelves = _Shelves(Cluster(root), BagKind(kind), packed=packed, progress=progress, messages=MESSAGES)
    story = Story(
        shelves.cluster,
        frames,
        message_bytes=message_bytes,
        planted=victims(plant or {}, _clean_frames(frames, sum((plant or {}).values()))),
        write=shelves.write,
    )
    shelves.finish(story.tell())
    return frames * MESSAGES


def build_bank(
    root: Path,
    messages: int,
    *,
    message_bytes: int = 100,
    progress: Callable[[int], None] | None = None,
    story_of: type[BankStory] = BankStory,
) -> int:
    """Make a tree of the bank in an empty directory; return how many messages it was told."""
    shelves = _Shelves(Cluster(root), BagKind.LOG, packed=False, progress=progress, messages=1)
    story = story_of(shelves.cluster, messages, message_bytes=message_bytes, write=shelves.write)
    shelves.finish(story.tell())
    return story.made


def _clean_frames(frames: int, faults: int) -> Iterator[int]:
    """Yield frames to plant in, each of another file: leases of one tick, with a lease before and a frame after."""
    ticks_per_bag = SECOND // TICK_NS
    ticks = frames // SLOTS
    room = (ticks - 3) // ticks_per_bag * WRITERS + WRITERS
    stride = max(1, room // faults - 1) if faults else 1
    for number in itertools.count():
        bag, writer = divmod(number * stride, WRITERS)
        first = bag * ticks_per_bag + 2
        choice = min(ticks_per_bag // 2, ticks - 2 - first)
        if choice <= 0:
            return
        yield (first + number % choice) * SLOTS + writer * PER_WRITER + 1 + number % 3


class _Shelves:
    """Bags and racks of both logs, filled in order of time."""

    def __init__(
        self, cluster: Cluster, kind: BagKind, *, packed: bool, progress: Callable[[int], None] | None, messages: int
    ) -> None:
        """``messages``: in each frame."""
        self.cluster = cluster
        self._messages = messages
        self._packed = packed
        self._progress = progress
        self._done = 0
        self._grids: dict[str, Grid] = {}
        self._listed: dict[Bag, list[LockEntry]] = {}
        self._locks: dict[Rack, list[SealEntry]] = {}
        self._broken: list[tuple[str, Bag, str]] = []
        for log in LOGS:
            birth = LogBirth(
                cluster_id=cluster.cluster_id,
                log=log,
                kind=kind,
                created_ns=START_NS,
                span_ns=cluster.policy.span_ns,
                grace_ns=cluster.policy.grace_ns,
                rack_ns=cluster.policy.rack_ns,
                created_by="n1",
            )
            self._grids[log] = Grid(birth)
            cluster.put(f"logs/{log}/log", stamp(Kind.BIRTH, birth, StampAt(cluster.nodes["n1"], START_NS)))

    def write(self, writer: Writer, instant: int, frames: list[tuple[int, bytes]], faults: list[str]) -> None:
        """Write the frames of one writer in one bag; close the bags before it."""
        grid = self._grids[writer.log]
        bag = grid.bag(instant)
        for earlier in [each for each in self._listed if each.end_ns <= bag.start_ns]:
            self._close(earlier)
        if grid.birth.kind is BagKind.LOG:
            writer.files += 1
            files = [(writer.files, b"".join(piece for _, piece in frames))]
        else:
            files = frames
        for number, data in files:
            suffix = grid.birth.kind.suffix
            name = DataName(writer.node.name, writer.holder.incarnation, number, suffix).text()
            self.cluster.put(f"{bag.path}/{name}", data)
            entry = LockEntry(name=name, size=len(data), digest=measure(data)[2])
            self._listed.setdefault(bag, []).append(entry)
        self._broken += [(fault, bag, name) for fault in faults if fault in FILE_FAULTS]
        self._done += len(frames) * self._messages
        if self._progress:
            self._progress(self._done)

    def _close(self, bag: Bag) -> None:
        entries = sorted(self._listed.pop(bag), key=lambda entry: entry.name)
        lock = LockFile(
            cluster_id=self.cluster.cluster_id,
            log=bag.log,
            bag=bag.path,
            closer="n2",
            trust_number=1,
            policy_number=1,
            entries=tuple(entries),
        )
        raw = stamp(Kind.LOCK, lock, StampAt(self.cluster.nodes["n2"], bag.due_ns + SECOND // 10))
        self.cluster.put(f"{bag.path}/prelock", b"")
        self.cluster.put(f"{bag.path}/lock", raw)
        self._locks.setdefault(bag.rack, []).append(SealEntry(bag=bag.name, lock=raw))

    def finish(self, now: int) -> None:
        """Close and seal everything, up to the rack that holds an instant; then break and pack what is asked for."""
        for bag in list(self._listed):
            self._close(bag)
        seals: dict[Rack, bytes] = {}
        for grid in self._grids.values():
            rack = grid.rack(grid.first_ns)
            while rack.start_ns < now:
                seals[rack] = self._seal(rack)
                rack = grid.next_rack(rack)
        if self._packed:
            for rack, raw in seals.items():
                self._pack(rack, raw)
        for fault, bag, name in self._broken:
            self._break(fault, bag, name)

    def _seal(self, rack: Rack) -> bytes:
        entries = tuple(sorted(self._locks.pop(rack, []), key=lambda entry: entry.bag))
        seal = RackSeal(cluster_id=self.cluster.cluster_id, log=rack.log, rack=rack.path, sealer="n3", entries=entries)
        at = rack.end_ns + self.cluster.policy.seal_delay_ns + SECOND
        raw = stamp(Kind.SEAL, seal, StampAt(self.cluster.nodes["n3"], at))
        self.cluster.put(f"{rack.path}/prelock", b"")
        self.cluster.put(f"{rack.path}/seal", raw)
        return raw

    def _pack(self, rack: Rack, raw: bytes) -> None:
        maker = PackMaker(raw, rack.path)
        place = self.cluster.root / rack.path
        with (place / "pack").open("wb") as file:
            file.write(maker.head)
            for each in maker.listed:
                data = (place / each.bag / each.entry.name).read_bytes()
                maker.add(data)
                file.write(data)
            file.write(maker.tail())
        for bag in maker.bags:
            shutil.rmtree(place / bag)

    def _break(self, fault: str, bag: Bag, name: str) -> None:
        place = self.cluster.root / bag.path / name
        if self._packed:
            raise ValueError(f"{fault} is planted in files, and these are packed")
        if fault == "altered-file":
            data = bytearray(place.read_bytes())
            data[len(data) // 2] ^= 0x40
            place.write_bytes(data)
        elif fault == "lost-file":
            place.unlink()
        else:
            writer, incarnation, _, suffix = name.split(".")
            place.with_name(f"{writer}.{incarnation}.99999999.{suffix}").write_bytes(place.read_bytes())
