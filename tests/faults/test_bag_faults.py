"""Every call of every step fails in every way, on real files; new processes find one record that keeps the promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.logs import create_log, open_log
from appliance.bag.posix import PosixStorage
from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.birth import BagKind
from appliance.formats.paths import PRELOCK, Grid
from tests.support.bags import LOG, T0, TIME_KEY, Node
from tests.support.clocks import HandTime
from tests.support.shares import shares
from tests.support.storage import Crash, FailingStorage, Fault, WrappedStorage
from timeagent.errors import TenureError
from timeagent.units import MINUTE, MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from appliance.bag.ports import Storage
    from appliance.bag.writing import Outcome

CALLS_MAX = 120


class Scene:
    """A log with one committed message, and a second process to which something happens."""

    def __init__(self, root: Path, kind: BagKind) -> None:
        root.mkdir()
        self.storage = PosixStorage(root)
        self.time = HandTime(TIME_KEY, T0 + 500 * MS)
        self.healthy = Node(self.storage, time=self.time, kind=kind)
        self.early = self.healthy.file(b"early")
        assert self.healthy.writer.write(self.early) == Committed()
        self.file = self.healthy.file(b"late", sequence=2)
        self.outcome: Outcome | None = None

    def process(self, storage: Storage | None = None) -> Node:
        return Node(storage or self.storage, "n1", self.time, grid=self.healthy.grid)

    def write(self, node: Node) -> None:
        self.outcome = node.writer.write(self.file)


def write(scene: Scene, node: Node) -> None:
    scene.write(node)


def write_in_doubt(scene: Scene, node: Node) -> None:
    """The bag's prelock is there: the writer finishes the closing."""
    scene.storage.ensure_marker(f"{scene.file.bag.path}/{PRELOCK}")
    scene.write(node)


def write_late(scene: Scene, node: Node) -> None:
    scene.process().closer.help(scene.file.bag)
    scene.write(node)


def write_while_sealing(scene: Scene, node: Node) -> None:
    scene.storage.ensure_marker(f"{scene.file.bag.rack.path}/{PRELOCK}")
    scene.write(node)


def resolve(scene: Scene, node: Node) -> None:
    scene.time.advance(2_400 * MS)  # due soon: some waiting, not all of it
    scene.outcome = node.writer.resolve(scene.file)


def close(scene: Scene, node: Node) -> None:
    scene.time.advance(4 * SECOND)
    node.authority.close(scene.file.bag)


def settle(scene: Scene, node: Node) -> None:
    scene.time.advance(5 * SECOND)
    node.horizon.settle(T0 + 2 * SECOND)


def seal(scene: Scene, node: Node) -> None:
    scene.time.advance(MINUTE)
    node.sealer.seal(scene.file.bag.rack)


def turn(scene: Scene, node: Node) -> None:
    scene.time.advance(12 * SECOND)
    node.metronome.turn(node.time.now())


STEPS: list[Callable[[Scene, Node], None]] = [
    write,
    write_in_doubt,
    write_late,
    write_while_sealing,
    resolve,
    close,
    settle,
    seal,
    turn,
]


def suffer(scene: Scene, step: Callable[[Scene, Node], None], fault: Fault, at: int) -> bool:
    """Let the step meet the fault; true if it came that far."""
    storage = FailingStorage(scene.storage, fault, at)
    try:
        step(scene, scene.process(storage))
    except (Crash, TenureError):
        assert storage.calls >= at
    return storage.calls >= at


def judge(scene: Scene) -> None:
    """A new process decides the attempt, settles and seals; another one reads the same."""
    before = scene.outcome
    node = scene.process()
    decided = node.writer.resolve(scene.file)
    assert isinstance(decided, Committed | NotCommitted)
    if before is not None and not isinstance(before, Unknown):
        assert type(before) is type(decided)
    expected = [b"early", b"late"] if decided == Committed() else [b"early"]
    node.horizon.settle(T0 + 2 * SECOND)
    assert scene.process().settled() == scene.process().latest() == expected
    scene.time.advance(MINUTE)
    scene.process().sealer.seal(scene.file.bag.rack)
    assert scene.process().settled() == expected
    assert type(scene.process().writer.write(scene.file)) is type(decided)


@pytest.mark.parametrize("share", shares(2))
@pytest.mark.parametrize("kind", list(BagKind))
@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("step", STEPS)
def test_step_that_meets_a_fault_anywhere_leaves_one_record(
    tmp_path: Path, step: Callable[[Scene, Node], None], fault: Fault, kind: BagKind, share: int
) -> None:
    first = 1 + (share + list(Fault).index(fault)) % 2
    for at in range(first, CALLS_MAX, 2):
        scene = Scene(tmp_path / str(at), kind)
        if not suffer(scene, step, fault, at):
            assert at > 3
            judge(scene)
            return
        judge(scene)
    raise AssertionError("the step has more calls than expected")


@pytest.mark.parametrize("fault", list(Fault))
def test_birth_that_meets_a_fault_anywhere_can_be_repeated(tmp_path: Path, fault: Fault) -> None:
    for at in range(1, CALLS_MAX):
        scene = Scene(tmp_path / str(at), BagKind.MAILDIR)
        storage = FailingStorage(scene.storage, fault, at)
        try:
            create_log(scene.process(storage).context, "other")
        except (Crash, TenureError):
            assert storage.calls >= at
        scene.time.advance(MINUTE)
        birth = create_log(scene.healthy.context, "other")
        assert open_log(scene.process().context, "other") == birth
        assert Grid(birth).first_ns == birth.created_ns
        if storage.calls < at:
            return
    raise AssertionError("making a log has more calls than expected")


# A write error is no outcome: the file may be there, or come later.
@pytest.mark.parametrize("kind", list(BagKind))
def test_write_reports_committed_only_for_what_it_has_seen(tmp_path: Path, kind: BagKind) -> None:
    scene = Scene(tmp_path / "a", kind)

    class Refusing(WrappedStorage):
        def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
            if verb == "look":
                raise TenureError("planted", f"{verb} {path}")
            return call()

    scene.write(scene.process(Refusing(scene.storage)))
    assert isinstance(scene.outcome, Unknown)
    assert LOG in scene.outcome.reason
    judge(scene)
