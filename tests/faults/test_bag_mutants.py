"""The order of the steps is the protocol: each step done wrong is caught by some interleaving, done right by none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.closing import Authority, Closed, Closer, Contents, Sealer
from appliance.bag.horizon import Horizon
from appliance.bag.message import MessageBatch
from appliance.bag.ports import Published
from appliance.bag.reader import Files, Reader
from appliance.bag.writing import Committed, LogFileWriter, LookingWriter, MaildirWriter, NotCommitted, Unknown
from appliance.formats.birth import BagKind
from appliance.formats.closed import LockEntry, SealEntry, open_lock
from appliance.formats.framing import pieces
from appliance.formats.paths import LOCK, PRELOCK, SEAL
from tests.support.bag_world import World
from tests.support.bags import T0, TIME_KEY, Node
from tests.support.clocks import HandTime
from tests.support.mutants import plant_step
from tests.support.storage import MemoryStorage, WrappedStorage
from timeagent.errors import Environment, TenureError
from timeagent.units import MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.message import Position
    from appliance.bag.ports import Storage
    from appliance.bag.writing import FrameFile, Outcome
    from appliance.formats.closed import RackSeal
    from appliance.formats.paths import Bag, Rack
    from timeagent.units import Instant

SEEDS = 1_000


def broken(seeds: int, *, revalidates: bool = True, kind: BagKind = BagKind.MAILDIR) -> tuple[int, list[str]] | None:
    """Return the first seed that breaks a promise, and which. Half of the runs have crashes, half lost replies."""
    for seed in range(seeds):
        world = World(seed, revalidates=revalidates, crashes=seed % 2 == 1, losses=seed % 4 > 1, kind=kind)
        found = world.run().violations()
        if found:
            return seed, found
    return None


@pytest.mark.verify
@pytest.mark.parametrize("kind", list(BagKind))
def test_protocol_as_designed_breaks_no_promise(kind: BagKind) -> None:
    assert broken(SEEDS, kind=kind) is None


def test_same_seed_gives_the_same_run() -> None:
    first, second = World(7, crashes=True, losses=True), World(7, crashes=True, losses=True)
    assert first.run() == second.run()
    assert first.schedule.trace == second.schedule.trace


def test_nobody_revalidates() -> None:
    assert broken(SEEDS, revalidates=False) is not None


def list_before_prelock(self: Closer, bag: Bag) -> Closed | None:
    found = self._contents(bag)
    if not self._begin(bag):
        return None
    if found is not None:
        self._promise(bag, found)
    return self.read(bag)


def trust_own_list(self: Closer, bag: Bag) -> Closed | None:
    if not self._begin(bag):
        return None
    found = self._contents(bag)
    if found is None:
        return self.read(bag)
    self._promise(bag, found)
    closed = self.read(bag)
    if closed is None:
        return None
    fields = {name: getattr(closed.lock, name) for name in closed.lock.__struct_fields__}
    own = tuple(LockEntry(name=name, size=size, digest=digest) for name, size, digest in found)
    return Closed(type(closed.lock)(**(fields | {"entries": own})), closed.raw)


def replace_the_lock(self: Closer, bag: Bag, entries: tuple[object, ...]) -> None:
    promise(self, bag, entries)  # type: ignore[arg-type]
    server = self._storage
    while hasattr(server, "inner"):
        server = server.inner
    raw = server.read(f"{bag.path}/{LOCK}")
    assert raw is not None
    lock, _ = open_lock(raw, "")
    if lock.entries != entries:
        server.unlink(f"{bag.path}/{LOCK}")
        promise(self, bag, entries)  # type: ignore[arg-type]


promise = Closer._promise


def look_before_publish(self: LookingWriter, file: FrameFile) -> Outcome:
    seen = self._storage.look(file.bag.path, (PRELOCK,))
    if seen or self._authority.rack_begun(file.bag.rack):
        return write(self, file)
    self._publish(file)
    return Committed()


write = LookingWriter.write


def no_look_at_the_rack(self: LookingWriter, file: FrameFile) -> Outcome:
    seen = self._storage.look(file.bag.path, (self._file_name(file), PRELOCK))
    return Committed() if seen and PRELOCK not in seen else look(self, file)


def no_look_at_the_bag(self: LookingWriter, file: FrameFile) -> Outcome:
    return look(self, file) if self._authority.rack_begun(file.bag.rack) else Committed()


def late_means_not_committed(self: LookingWriter, file: FrameFile) -> Outcome:
    seen = self._storage.look(file.bag.path, (PRELOCK,))
    return NotCommitted("late") if seen else look(self, file)


look = LookingWriter._look


def eexist_is_not_ours(self: MaildirWriter, file: FrameFile) -> Outcome:
    self._storage.ensure_directory(file.bag.path)
    try:
        published = self._storage.publish(f"{file.bag.path}/{file.name.text()}", file.data, self._tmp)
        return NotCommitted("taken") if published is Published.LOST else self._look(file)
    except TenureError as problem:
        return Unknown(str(problem))


def doubt_is_not_committed(self: LookingWriter, file: FrameFile, doubt: Exception) -> Outcome:
    return NotCommitted(f"{self}: {file} {doubt}")


def one_look_after_doubt(self: MaildirWriter, file: FrameFile, _: Exception) -> Outcome:
    name = file.name.text()
    seen = self._storage.look(file.bag.path, (PRELOCK, name))
    if seen and name in seen and PRELOCK not in seen:
        return Committed()
    return Unknown("cannot tell")


def lock_without_rack(self: Authority, bag: Bag, closed: Closed | None) -> Contents:
    return self.by_seal(bag) if closed is None else Contents(closed.lock)


def rack_looked_at_before_the_lock(self: Authority, bag: Bag) -> object:
    begun = self.rack_begun(bag.rack)
    closed = self.closer.close(bag)
    if begun or closed is None:
        return self.by_seal(bag)
    return Contents(closed.lock) if isinstance(closed, Closed) else closed


def rack_listed_before_its_prelock(self: Sealer, rack: Rack) -> list[Bag] | None:
    names = self._storage.list_afresh(rack.path) or []
    self._storage.ensure_marker(f"{rack.path}/{PRELOCK}")
    if self._storage.look(rack.path, (SEAL,)):
        return None
    found = [bag for name in names if (bag := self._grid.parse_bag(rack, name)) is not None]
    return sorted(found, key=lambda bag: bag.name)


def seal_without_closing(self: Sealer, rack: Rack) -> RackSeal:
    """Seal the bags that have a lock file, and leave out the others."""
    from appliance.formats.closed import RackSeal
    from appliance.formats.framing import Kind
    from appliance.formats.stamped import stamp

    self._storage.ensure_directory(rack.path)
    closed = [(bag, self._closer.read(bag)) for bag in self._begin_and_list(rack) or ()]
    entries = tuple(SealEntry(bag=bag.name, lock=each.raw) for bag, each in closed if each is not None)
    seal = RackSeal(cluster_id=b"c" * 16, log=rack.log, rack=rack.path, sealer="mutant", entries=entries)
    self._storage.publish(f"{rack.path}/{SEAL}", stamp(Kind.SEAL, seal, self._time), self._tmp)
    return self._read(rack)


def skip_empty_bags(self: Horizon) -> Instant | None:
    bag = self._grid.bag(self.reached)
    if self._storage.look(bag.path, ()) is None:
        self._reach(bag.end_ns)
        return None
    return step(self)


step = Horizon.step


def latest_without_a_look(
    self: Reader, bag: Bag, after: Position, until: Instant, only: Files = None
) -> MessageBatch | None:
    files = self._files_there(bag, only)
    if files is None:
        return open_bag(self, bag, after, until, only)
    found = ((name, pieces(data)[0]) for name, data in files.items())
    parts = self._accepted(bag, found, self._records.newest())
    return MessageBatch(parts, settled=False) if parts else None


open_bag = Reader._open_bag

MUTANTS: list[tuple[type, str, Callable[..., object]]] = [
    (Closer, "help", list_before_prelock),
    (Closer, "help", trust_own_list),
    (Closer, "_promise", replace_the_lock),
    (MaildirWriter, "write", look_before_publish),
    (MaildirWriter, "_look", no_look_at_the_rack),
    (MaildirWriter, "_look", no_look_at_the_bag),
    (MaildirWriter, "_look", late_means_not_committed),
    (MaildirWriter, "write", eexist_is_not_ours),
    (MaildirWriter, "_after_doubt", doubt_is_not_committed),
    (MaildirWriter, "_after_doubt", one_look_after_doubt),
    (Authority, "answer", lock_without_rack),
    (Sealer, "_begin_and_list", rack_listed_before_its_prelock),
    (Sealer, "_seal_one", seal_without_closing),
    (Horizon, "step", skip_empty_bags),
]


@pytest.mark.verify
@pytest.mark.parametrize(("owner", "step", "wrong"), MUTANTS, ids=[wrong.__name__ for _, _, wrong in MUTANTS])
def test_step_done_wrong_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: type, step: str, wrong: Callable[..., object]
) -> None:
    plant_step(monkeypatch, owner, step, wrong)
    assert broken(SEEDS) is not None


def append_behind_a_torn_frame(self: LogFileWriter, file: FrameFile) -> None:
    """Stay in the file after a failed append: go on wherever it ends by now."""
    self._ensure(file.bag)
    own, place = self._begin(file)
    path = f"{file.bag.path}/{place.name}"
    try:
        place.sure = bool(self._storage.append(path, file.data, own.size))
    finally:
        size = self._storage.size_of(path) or 0
        place.end = size if place.sure else place.end
        self._give_back(file, own, size)


def size_not_checked(self: LogFileWriter, file: FrameFile) -> None:
    """Append to whatever is there: what came late from an append in doubt is in the middle then."""
    self._ensure(file.bag)
    with self._lock:
        for files in self._files.values():
            files.free = [each for each in files.free if each.size] or files.free
    own, place = self._begin(file)
    path = f"{file.bag.path}/{place.name}"
    try:
        own.size = self._storage.append(path, file.data, self._storage.size_of(path) or 0)
        place.sure, place.end = True, own.size
    except Environment:
        own.size = self._storage.size_of(path) or 0
        raise
    finally:
        self._give_back(file, own, own.size)


def listed_by_name_only(self: LogFileWriter, file: FrameFile, contents: Contents) -> Outcome:
    assert contents.lock is not None
    listed = contents.lock.by_name()
    named = any(place.name in listed for place in self._tried_of(file).places)
    return Committed() if named else listed_by_size(self, file, contents)


def only_the_last_file_counts(self: LogFileWriter, file: FrameFile, contents: Contents) -> Outcome:
    assert contents.lock is not None
    last = self._tried_of(file).places[-1]
    entry = contents.lock.by_name().get(last.name)
    return Committed() if entry and entry.size >= last.end else NotCommitted("late")


def size_without_ours(self: LogFileWriter, file: FrameFile, contents: Contents) -> Outcome:
    """Take where the attempt begins for where it ends, and what is listed for ours."""
    assert contents.lock is not None
    listed, places = contents.lock.by_name(), self._tried_of(file).places
    begun = [each for each in places if each.name in listed and listed[each.name].size >= each.end - len(file.data)]
    return Committed() if begun else listed_by_size(self, file, contents)


listed_by_size = LogFileWriter._listed

LOG_MUTANTS: list[tuple[type, str, Callable[..., object]]] = [
    (Closer, "help", list_before_prelock),
    (LogFileWriter, "write", look_before_publish),
    (LogFileWriter, "_look", no_look_at_the_rack),
    (LogFileWriter, "_look", no_look_at_the_bag),
    (LogFileWriter, "_look", late_means_not_committed),
    (LogFileWriter, "_after_doubt", doubt_is_not_committed),
    (LogFileWriter, "_publish", append_behind_a_torn_frame),
    (LogFileWriter, "_publish", size_not_checked),
    (LogFileWriter, "_listed", listed_by_name_only),
    (LogFileWriter, "_listed", only_the_last_file_counts),
    (LogFileWriter, "_listed", size_without_ours),
]


@pytest.mark.verify
@pytest.mark.parametrize(("owner", "step", "wrong"), LOG_MUTANTS, ids=[wrong.__name__ for _, _, wrong in LOG_MUTANTS])
def test_step_of_a_log_bag_done_wrong_is_caught(
    monkeypatch: pytest.MonkeyPatch, owner: type, step: str, wrong: Callable[..., object]
) -> None:
    plant_step(monkeypatch, owner, step, wrong)
    assert broken(SEEDS, kind=BagKind.LOG) is not None


class Stalling(WrappedStorage):
    """Before the first call of a verb on a path, something else happens: the process was paused there."""

    def __init__(self, inner: Storage, verb: str, path: str, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self._point: tuple[str, str] | None = (verb, path)
        self._meanwhile = meanwhile

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if self._point == (verb, path):
            self._point = None
            self._meanwhile()
        return call()


# The look at the rack comes last: while this closer was paused the rack was sealed without the bag, then written to.
@pytest.mark.parametrize("mutant", [False, True])
def test_rack_looked_at_before_the_lock(monkeypatch: pytest.MonkeyPatch, *, mutant: bool) -> None:
    if mutant:
        monkeypatch.setattr(Authority, "close", rack_looked_at_before_the_lock)
    server = MemoryStorage()
    writer = Node(server)
    sealer = Node(server, "f", HandTime(TIME_KEY, T0 + MINUTE), grid=writer.grid)
    file = writer.file()
    server.ensure_directory(file.bag.rack.path)

    def meanwhile() -> None:
        sealer.sealer.seal(file.bag.rack)
        assert isinstance(writer.writer.write(file), NotCommitted)

    stalling = Stalling(server, "ensure_directory", file.bag.path, meanwhile)
    closer = Node(stalling, "c", HandTime(TIME_KEY, T0 + 9 * SECOND), grid=writer.grid)
    contents = closer.authority.close(file.bag)
    assert isinstance(contents, Contents)
    assert (contents.lock is not None) is mutant


# The look at the rack comes after the reading: the sealer listed the rack without this bag, and links its seal next.
@pytest.mark.parametrize("mutant", [False, True])
def test_latest_read_without_a_look_at_the_rack(monkeypatch: pytest.MonkeyPatch, *, mutant: bool) -> None:
    if mutant:
        monkeypatch.setattr(Reader, "_open_bag", latest_without_a_look)
    server = MemoryStorage()
    node = Node(server)
    file = node.file(b"m")
    seen: list[bytes] = []

    def meanwhile() -> None:
        server.ensure_directory(file.bag.path)
        server.publish(f"{file.bag.path}/{file.name.text()}", file.data, "tmp")
        seen.extend(node.again().latest())

    stalling = Stalling(server, "publish", f"{file.bag.rack.path}/{SEAL}", meanwhile)
    sealer = Node(stalling, "f", HandTime(TIME_KEY, T0 + MINUTE), grid=node.grid)
    sealer.sealer.seal(file.bag.rack)
    assert seen == [b"m"]
    assert (node.again().settled() == []) is mutant
