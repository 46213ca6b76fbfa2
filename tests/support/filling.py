"""A disk that is full: what writing, closing, sealing, packing and deleting make of it, and that they go on afterwards.

Two ways to be full: ``FullDisk`` stands for the os module and refuses every call that takes space; run as a script, as
root in a mount namespace of its own, a small tmpfs is filled up to its last pages or inodes: ``python -m
tests.support.filling KIND pages|inodes``. Prints, as JSON, in how many states of the disk something failed, by deed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from appliance.bag.packer import Packer
from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.birth import BagKind
from appliance.formats.closed import PACK
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from tests.fault_injection.tree import START_NS, ClusterTree
from tests.support.killing import BEFORE, MESSAGES, Process, delete_old, payload_of
from timeagent.errors import Environment, TenureError
from timeagent.units import DAY, MINUTE, SECOND

if TYPE_CHECKING:
    from appliance.bag.writing import Outcome

LATER_NS: Final = {"write": 0, "close": 4 * SECOND, "seal": MINUTE, "pack": MINUTE, "retain": 2 * DAY}
EVERYTHING: Final = [payload_of(sequence) for sequence in range(1, MESSAGES + 1)]
LAST: Final = MESSAGES + 1
"""What is written when there is space again."""
STATES_MAX: Final = 200


class Scene:
    """One deed, by a process that lives on while its disk is full and when it is not any more."""

    def __init__(self, root: Path, kind: BagKind, deed: str) -> None:
        self.tree = ClusterTree(root)
        self.kind, self.deed = kind, deed
        Process(self.tree, kind)
        for before in BEFORE[deed]:
            before(self.tree, kind, lambda _: None)
        self.process = Process(self.tree, kind, "n1" if deed == "write" else "n2", LATER_NS[deed])
        self.rack = self.process.grid.rack(START_NS)
        self.packer = Packer(self.process.context, self.process.grid, self.process.authority.sealer)
        self.outcomes: dict[int, Outcome] = {}

    def do(self) -> bool:
        """Do the deed, also once more; say whether nothing was in its way."""
        try:
            match self.deed:
                case "write":
                    self.write(range(1, MESSAGES + 1))
                case "close":
                    self.process.authority.close(self.process.grid.bag(START_NS))
                case "seal":
                    self.process.authority.sealer.seal(self.rack)
                case "pack":
                    self.packer.pack(self.rack)
                case "retain":
                    delete_old(self.process, self.tree.root)
        except TenureError as problem:
            if not isinstance(problem, Environment) or problem.code != "mount-full":
                raise
            return False
        return not any(isinstance(outcome, Unknown) for outcome in self.outcomes.values())

    def write(self, sequences: range) -> None:
        for sequence in sequences:
            self.outcomes[sequence] = self.process.writer.write(self.process.attempt(sequence, payload_of(sequence)))

    def go_on(self, *, again: bool) -> None:
        """There is space. ``again``: what is in doubt is tried once more, else its bag decides it."""
        if self.deed != "write":
            assert self.do()
            return
        for sequence, outcome in tuple(self.outcomes.items()):
            # Nobody has closed anything yet, so that nothing can be late.
            assert not isinstance(outcome, NotCommitted)
            if again and isinstance(outcome, Unknown):
                self.write(range(sequence, sequence + 1))
                assert self.outcomes[sequence] == Committed()
        self.write(range(LAST, LAST + 1))
        assert self.outcomes[LAST] == Committed()

    def judge(self) -> None:
        """Another process reads the same before and after sealing, and so does the audit."""
        if self.deed != "retain":
            early = Process(self.tree, self.kind, "n2", max(LATER_NS[self.deed], 5 * SECOND))
            early.horizon.settle(START_NS + SECOND)
            read = [message.payload for message in early.reader.settled()]
            assert read == (self.expected(early) if self.deed == "write" else EVERYTHING)
            late = Process(self.tree, self.kind, "n2", MINUTE)
            late.authority.sealer.seal(self.rack)
            assert [message.payload for message in late.reader.settled()] == read
        findings = audit(Tree(self.tree.root)).findings
        assert [each for each in findings if each.verdict is Verdict.VIOLATION] == []
        rack = self.tree.root / self.rack.path
        assert (rack / PACK).exists() is (self.deed == "pack")
        assert list(self.tree.root.glob("logs/*/tmp/*/*")) == []

    def expected(self, judge: Process) -> list[bytes]:
        """Return what was acknowledged, and of what is in doubt what its own writer says now."""
        self.process.time.midpoint_ns = judge.time.midpoint_ns
        found = []
        for sequence, outcome in sorted(self.outcomes.items()):
            decided = self.process.writer.resolve(self.process.attempt(sequence, payload_of(sequence)))
            assert isinstance(decided, Committed if outcome == Committed() else Committed | NotCommitted)
            found += [payload_of(sequence)] if decided == Committed() else []
        return found


class FullDisk:
    """The os module, where from a call on every one that takes space is refused; what is written last is torn."""

    def __init__(self, at: int, number: int) -> None:
        self._left, self._number = at, number
        self.full = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever os has
        return getattr(os, name)

    def _take(self) -> None:
        self._left -= 1
        self.full = self.full or self._left == 0
        if self.full:
            raise OSError(self._number, os.strerror(self._number))

    def open(self, path: str, flags: int, *more: int, **options: int) -> int:
        if flags & os.O_CREAT:
            self._take()
        return os.open(path, flags, *more, **options)

    def write(self, descriptor: int, data: bytes) -> int:
        if self._left == 1 and len(data) > 1:
            self._left, self.full = 0, True
            return os.write(descriptor, data[: len(data) // 2])  # the rest finds no space
        self._take()
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        if not self.full:
            self._take()  # a file system that looks for space late, as NFS does, says so here; and what fits is flushed
        os.fsync(descriptor)

    def link(self, source: str, target: str) -> None:
        self._take()
        os.link(source, target)

    def mkdir(self, path: str, mode: int) -> None:
        self._take()
        os.mkdir(path, mode)  # noqa: PTH102 - it stands for os

    def freed(self) -> None:
        self.full, self._left = False, 0


def fill(place: Path, what: str, left: int) -> None:
    """Take every page or inode of a file system but so many."""
    ballast = place / "ballast"
    ballast.mkdir()
    if what == "pages":
        with (ballast / "pages").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError as problem:
                assert problem.errno == errno.ENOSPC  # noqa: PT017 - this is no test
            file.truncate(max(0, os.fstat(file.fileno()).st_size - 4096 * left))
        return
    for number in range(os.statvfs(place).f_ffree - left):
        (ballast / str(number)).touch()


def run(place: Path, kind: BagKind, deed: str, what: str) -> int:
    """Do a deed with ever more space left, until it is enough; return how often it was not."""
    for left in range(STATES_MAX):
        scene = Scene(place / "root", kind, deed)
        fill(place, what, left)
        done = scene.do()
        shutil.rmtree(place / "ballast")
        scene.go_on(again=left % 2 == 0)
        scene.judge()
        shutil.rmtree(place / "root")
        if done:
            return left
    raise AssertionError("never enough")


def main() -> None:
    kind, what = BagKind(sys.argv[1]), sys.argv[2]
    failed = {}
    for deed in LATER_NS:
        with tempfile.TemporaryDirectory() as place:
            options = "size=2m,nr_inodes=400,mode=0755"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tenure-test", place], check=True)
            try:
                failed[deed] = run(Path(place), kind, deed, what)
            finally:
                subprocess.run(["umount", place], check=True)
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
