"""Processes that die by SIGKILL at a chosen line of writing, closing, sealing, packing or deleting, on real files.

Lines are counted in the modules that touch the mount or decide, and bytes are written in pieces: so a process dies also
within an append, between a file's creation and its link, and between link and unlink. Run as a script, in a process of
its own that has one thread and may fork: ``python -m tests.support.killing DIR KIND DEED FIRST STRIDE``. Prints, as
JSON, one object for each death: where the root is, and which messages were acknowledged before.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.bag import closedbags, closing, packer, posix, writing
from appliance.bag.closing import Authority
from appliance.bag.horizon import Horizon
from appliance.bag.logs import create_log, open_log
from appliance.bag.packer import Packer, Retention
from appliance.bag.ports import BagContext
from appliance.bag.posix import PosixStorage
from appliance.bag.reader import Reader
from appliance.bag.writing import Committed, FrameFile, writer_for
from appliance.formats.birth import BagKind
from appliance.formats.framing import Attempt, FrameHead, encode_frame
from appliance.formats.lease import Holder, Mode, Phase
from appliance.formats.paths import DataName, Grid, ledger_path
from appliance.formats.witness import NO_HEAD, Half, Witness, WitnessKind, block_bytes, sign_batch
from appliance.node.records import Registers
from tests.fault_injection.tree import START_NS, ClusterTree
from tests.support.clocks import HandTime
from timeagent.canonical import encode
from timeagent.keys import Verifier
from timeagent.units import DAY, MINUTE, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from timeagent.units import Instant

type Acknowledge = Callable[[int], object]

LOG = "orders"
INCARNATION = b"killed!!"
MESSAGES = 3
LINES_MAX = 4_000
COUNTED = {module.__file__ for module in (closing, writing, closedbags, packer, posix)}


class Process:
    """What one process has of a tree."""

    def __init__(self, tree: ClusterTree, kind: BagKind, name: str = "n1", later_ns: int = 0) -> None:
        self.tree = tree
        self.time = tree.nodes[name].time
        self.signer = tree.nodes["n1"].time_key
        self.time.midpoint_ns = START_NS + SECOND // 2 + later_ns
        storage = PosixStorage(tree.root)
        registers = Registers(storage, tree.cluster_id, Verifier(tree.root_key.public))
        self.context = BagContext(storage, self.time, registers, name)
        self.grid = Grid(open_log(self.context, LOG) or create_log(self.context, LOG, kind))
        self.authority = Authority(self.context, self.grid)
        self.writer = writer_for(self.context, self.grid, self.authority)
        self.horizon = Horizon(self.context, self.grid, self.authority)
        self.reader = Reader(self.context, self.grid, self.horizon)
        self._lease(START_NS)  # granted before anything goes wrong

    def _lease(self, at_ns: Instant) -> bytes:
        """Return the witness of a lease from an instant on, the same whoever asks; its ledger is in the tree."""
        granter, run, fence = self.tree.nodes["n1"], (at_ns // SECOND).to_bytes(8, "big"), at_ns + 1
        witness = Witness(
            kind=WitnessKind.GRANT,
            domain="d",
            mode=Mode.X,
            phase=Phase.HELD,
            holder=Holder(node="n1", process=1, boot=bytes(16), incarnation=INCARNATION),
            correlation_id=fence.to_bytes(8, "big") + run,
            fence=fence,
            expiry_ns=at_ns + self.tree.policy.lease_term_max_ns,
            floor_ns=0,
            settle_to_ns=0,
            session_id=None,
            previous_id=None,
            last_ended=None,
            floor_set_by=None,
            others=0,
            others_digest=None,
        )
        batch = sign_batch(
            [witness],
            granter.witness_key,
            cluster_id=self.tree.cluster_id,
            node="n1",
            map_number=1,
            shard=0,
            incarnation=run,
            going_by=1,
            half=Half.WHOLE,
            ceiling_number=1,
            ceiling_ns=witness.expiry_ns,
            sequence=1,
            previous=NO_HEAD,
            time=HandTime(self.signer, at_ns).token(),
        )
        ledger = ledger_path(1, 0, run)
        if not (self.tree.root / ledger).exists():
            self.tree.put(ledger, block_bytes(batch))
        return encode(batch.signed_witness(0))

    def attempt(self, sequence: int, payload: bytes, at_ns: Instant = START_NS) -> FrameFile:
        """Return an attempt of node n1: the same bytes, whoever asks, and when."""
        stamp = at_ns + SECOND // 2 + sequence
        head = FrameHead(
            cluster_id=self.context.records.cluster_id,
            log=LOG,
            writer="n1",
            incarnation=INCARNATION,
            sequence=sequence,
            attempts=(Attempt(id=sequence.to_bytes(16, "big"), messages=1),),
            committed=None,
            time=HandTime(self.signer, at_ns + SECOND // 2).token().encode(),
            witnesses=(self._lease(at_ns),),
            trust_number=1,
            policy_number=1,
        )
        data, _ = encode_frame(head, [stamp], [payload])
        return FrameFile(self.grid.bag(stamp), DataName("n1", INCARNATION, sequence), data)


def payload_of(sequence: int) -> bytes:
    return b"%d " % sequence + b"x" * 300


def write(tree: ClusterTree, kind: BagKind, acknowledge: Acknowledge) -> None:
    process = Process(tree, kind)
    for sequence in range(1, MESSAGES + 1):
        attempt = process.attempt(sequence, payload_of(sequence))
        if process.writer.write(attempt) == Committed():
            acknowledge(sequence)


def close(tree: ClusterTree, kind: BagKind, acknowledge: Acknowledge) -> None:
    del acknowledge
    process = Process(tree, kind, "n2", later_ns=4 * SECOND)
    process.authority.close(process.grid.bag(START_NS))


def seal(tree: ClusterTree, kind: BagKind, acknowledge: Acknowledge) -> None:
    del acknowledge
    process = Process(tree, kind, "n2", later_ns=MINUTE)
    process.authority.sealer.seal(process.grid.rack(START_NS))


def pack(tree: ClusterTree, kind: BagKind, acknowledge: Acknowledge) -> None:
    del acknowledge
    process = Process(tree, kind, "n2", later_ns=MINUTE)
    rack = process.grid.rack(START_NS)
    Packer(process.context, process.grid, process.authority.sealer).pack(rack)


class LaterServer(PosixStorage):
    """A file server on which two days have passed."""

    def server_clock(self, tmp: str) -> Instant:
        return max(super().server_clock(tmp), START_NS + 2 * DAY)


def delete_old(process: Process, root: Path) -> None:
    context = dataclasses.replace(process.context, storage=LaterServer(root))
    Retention(context, process.grid, DAY).turn(10)


def retain(tree: ClusterTree, kind: BagKind, acknowledge: Acknowledge) -> None:
    del acknowledge
    process = Process(tree, kind, "n2", later_ns=2 * DAY)
    delete_old(process, tree.root)


DEEDS = {"write": write, "close": close, "seal": seal, "pack": pack, "retain": retain}
BEFORE = {"write": (), "close": (write,), "seal": (write,), "pack": (write, seal), "retain": (write, seal, pack)}
"""What has been done when a deed begins."""


def run(root: Path, kind: BagKind, deed: str, line: int) -> tuple[bool, list[int]]:
    """Fork a process that dies at its n-th line; return whether it came that far, and what was acknowledged."""
    tree = ClusterTree(root)
    Process(tree, kind)
    told: list[int] = []
    for before in BEFORE[deed]:
        before(tree, kind, told.append)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write = _piecemeal  # type: ignore[assignment]
            sys.settrace(_Killer(line).trace)
            DEEDS[deed](tree, kind, lambda sequence: _WRITE(writing, bytes([sequence])))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told += pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status), told


def run_stopped(root: Path, kind: BagKind, line: int, meanwhile: Callable[[], None]) -> list[str] | None:
    """Fork a writer that is stopped at its n-th line, and goes on after ``meanwhile``.

    Return the names of its outcomes; None if it was done before it came that far.
    """
    tree = ClusterTree(root)
    Process(tree, kind)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            process = Process(tree, kind)
            sys.settrace(_Killer(line, signal.SIGSTOP).trace)
            for sequence in range(1, MESSAGES + 1):
                outcome = process.writer.write(process.attempt(sequence, payload_of(sequence)))
                _WRITE(writing, type(outcome).__name__.encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    stopped = os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    if stopped:
        try:
            meanwhile()
        finally:
            os.kill(child, signal.SIGCONT)
            os.waitpid(child, 0)
    with os.fdopen(reading, "r") as pipe:
        told = pipe.read().split()
    return told if stopped else None


_WRITE = os.write


def _piecemeal(descriptor: int, data: bytes) -> int:
    return _WRITE(descriptor, memoryview(data)[:200])


class _Killer:
    """Counts lines, and ends, or stops, the process at one."""

    def __init__(self, line: int, how: signal.Signals = signal.SIGKILL) -> None:
        self._left = line
        self._how = how

    def trace(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - a trace function returns the next one
        if frame.f_code.co_filename not in COUNTED:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), self._how)
        return self.trace


def main() -> None:
    place, kind, deed, first, stride = Path(sys.argv[1]), BagKind(sys.argv[2]), *sys.argv[3:6]
    for line in range(int(first), LINES_MAX, int(stride)):
        root = place / f"{line:04d}"
        died, told = run(root, kind, deed, line)
        print(json.dumps({"root": str(root), "died": died, "told": told}), flush=True)
        if not died:
            return
    raise AssertionError(f"more than {LINES_MAX} lines")


if __name__ == "__main__":
    main()
