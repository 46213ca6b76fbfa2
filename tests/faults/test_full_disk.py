"""A full disk or quota at every step: nothing acknowledged is lost, nobody is told a lie, with space all goes on."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.bag import posix, writing
from appliance.formats.birth import BagKind
from tests.support.filling import LATER_NS, STATES_MAX, FullDisk, Scene
from tests.support.mutants import plant

ROOT = Path(__file__).parents[2]


def refuse_at_any_call(place: Path, monkeypatch: pytest.MonkeyPatch, kind: BagKind, deed: str) -> None:
    for at in range(1, STATES_MAX):
        scene = Scene(place / str(at), kind, deed)
        disk = FullDisk(at, (errno.ENOSPC, errno.EDQUOT)[at % 2])
        with monkeypatch.context() as patched:
            patched.setattr(posix, "os", disk)
            done = scene.do()
            came_so_far = disk.full
            disk.freed()
            scene.go_on(again=at % 4 < 2)
        scene.judge()
        if not came_so_far:
            assert done
            assert at > 2
            return
    raise AssertionError("the deed takes more calls than expected")


@pytest.mark.parametrize("deed", list(LATER_NS))
@pytest.mark.parametrize("kind", list(BagKind))
def test_refusal_of_space_at_any_call_loses_nothing_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: BagKind, deed: str
) -> None:
    refuse_at_any_call(tmp_path, monkeypatch, kind, deed)


MUTANTS = {
    "what did not fit is not written again": (
        posix,
        "_write_all",
        "written += os.write(descriptor, memoryview(data)[written:])",
        "written = len(data)",
        BagKind.LOG,
    ),
    "no space means not committed": (
        writing,
        "LookingWriter._after_doubt",
        "Unknown(str(doubt))",
        "NotCommitted(str(doubt))",
        BagKind.MAILDIR,
    ),
    "what was prepared stays": (
        posix,
        "PosixStorage._prepare",
        "self._remove_litter(path)",
        "path = path",
        BagKind.MAILDIR,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_step_done_wrong_on_a_full_disk_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    module, name, old, new, kind = MUTANTS[mutant]
    plant(monkeypatch, module, name, old, new)
    with pytest.raises(AssertionError):
        refuse_at_any_call(tmp_path, monkeypatch, kind, "write")


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system is mounted and filled as root only")
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (BagKind.MAILDIR, "inodes"),
        (BagKind.LOG, "pages"),
        pytest.param(BagKind.MAILDIR, "pages", marks=pytest.mark.verify),
        pytest.param(BagKind.LOG, "inodes", marks=pytest.mark.verify),
    ],
)
def test_file_system_with_no_room_left_loses_nothing_and_all_goes_on_with_some(kind: BagKind, what: str) -> None:
    inside = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this root may not make a mount namespace: a container without CAP_SYS_ADMIN")
    words = [*inside, sys.executable, "-m", "tests.support.filling", str(kind), what]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    # An empty file takes no page: deleting goes on where the last page is gone.
    failed = {deed for deed, states in json.loads(done.stdout).items() if states}
    assert failed == {"write", "close", "seal", "pack"} | ({"retain"} if what == "inodes" else set())
