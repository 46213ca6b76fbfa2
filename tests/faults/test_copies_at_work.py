"""Copies that cp, rsync, tar and zip make of real nodes at work: what they lack accuses nobody, what is wrong is found.

While a tool stands still, messages are committed, bags closed, racks sealed and packed, packs deleted. The same by the
thousand, on a simulated file server: ``python -m tests.simulation.copied``.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from appliance.formats.closed import PACK
from appliance.formats.paths import LOCK, RETAINED, SEAL
from auditor.audit import Options, audit
from auditor.columns import index as coverage
from auditor.evidence.finding import Verdict
from auditor.evidence.opening import open_tree
from auditor.report.comparing import compared
from tests.support.atwork import CLOCK, PATIENCE_NS, AtWork
from tests.support.cluster import wait_until
from tests.support.copiers import MORE_WAYS, WAYS, Way, copy
from tests.support.mutants import plant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from auditor.rules.result import Audit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROUNDS = 6
"""How often the slow test goes through all ways of copying."""


def judged(work: AtWork, path: Path, options: Options | None = None) -> Audit:
    return audit(open_tree(path), root_key=work.root_key, options=options or Options())


def accusations(result: Audit) -> set[tuple[str, str]]:
    """Return the code and the subject of each finding that says somebody broke a rule."""
    return {(each.code, each.subject) for each in result.findings if each.verdict is Verdict.VIOLATION}


def made(work: AtWork, way: Way, to: Path) -> Path:
    """Copy the root; meanwhile messages are committed, and retention deletes a pack, which others sealed and packed."""
    halts = 0

    def halt() -> None:
        nonlocal halts
        halts += 1
        if halts == 2:
            work.deleted(work.racks(RETAINED) + 1)
        else:
            work.more(1)

    before = work.racks(RETAINED)
    path = copy(way, work.root, to, halt)
    assert work.racks(RETAINED) > before
    return path


def copies(work: AtWork, place: Path, subtests: pytest.Subtests) -> dict[str, Path]:
    """Copy in every way that this machine has the tools for; skip the others, and say so."""
    place.mkdir()
    found = {}
    for way in WAYS:
        with subtests.test(way.name):
            if missing := way.missing():
                pytest.skip(f"no {' and no '.join(missing)} on this machine: its copies are not tried")
            found[way.name] = made(work, way, place / way.name)
    return found


def altered(work: AtWork) -> str:
    """Change a byte of a file that its bag was closed with, on the mount; return its path below the root."""
    while True:
        path = closed_file(work)
        try:
            with path.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                (last,) = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last ^ 1]))
        except FileNotFoundError:  # packed meanwhile
            continue
        rack = path.parents[1]
        wait_until(CLOCK, lambda: any(each > rack for each in packed(work)), PATIENCE_NS)  # noqa: B023 - called at once
        if path.exists():  # no packer had read it before: none touches it from now on
            return str(path.relative_to(work.root))


def closed_file(work: AtWork) -> Path:
    """Wait for a closed bag with a data file, in a rack that is not sealed; return the file."""
    found: list[Path] = []

    def look() -> bool:
        for path in sorted(work.root.glob("logs/mails/*/*/*/*.msg"), reverse=True):
            if (path.parent / LOCK).exists() and not (path.parents[1] / SEAL).exists():
                found.append(path)
                return True
        return False

    wait_until(CLOCK, look, PATIENCE_NS)
    return found[0]


def packed(work: AtWork) -> Iterator[Path]:
    """Yield the racks of that log which were packed."""
    for name in (PACK, RETAINED):
        yield from (path.parent for path in work.root.glob(f"logs/mails/*/*/{name}"))


def test_copies_made_at_work_accuse_nobody_and_hide_nothing(
    tmp_path: Path, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    with AtWork(tmp_path, "node1", "node2") as work:
        work.deleted(1)
        clean = copies(work, tmp_path / "clean", subtests)
        where = altered(work)
        late = copies(work, tmp_path / "late", subtests)
        work.finish()
        for name, path in clean.items():
            result = judged(work, path)
            assert (name, accusations(result)) == (name, set())
            assert result.summary.messages > 0
        for name, path in late.items():
            assert (name, accusations(judged(work, path))) == (name, {("altered-file", where)})
        # As it is run by people: nothing in its way, and the exit code that is documented.
        for path, code in ((clean["cp"], 0), (late["cp"], 1)):
            done = work.daemons.command("audit", str(path), "--fail-on", "violation")
            assert (done.returncode, done.stderr) == (code, "")
    # The copies can tell a judge who holds against somebody what a copy has not reached: he accuses.
    old = "Verdict.INDETERMINATE if closed or last_ns < self.settled_ns else None"
    plant(monkeypatch, coverage, "Coverage.missing_frame", old, "None if blind else Verdict.VIOLATION")
    assert any(accusations(judged(work, path)) for path in clean.values())


@pytest.mark.timeout(3000)
def test_many_copies_while_nodes_die_accuse_nobody(tmp_path: Path) -> None:
    ways = [way for way in (*WAYS, *MORE_WAYS) if not way.missing()]
    chance = random.Random(3)
    doubts: dict[str, int] = {}
    with ExitStack() as stack:
        work = stack.enter_context(AtWork(tmp_path, "node1", "node2", "node3"))
        work.deleted(4)
        older: tuple[Path, Audit] | None = None
        kept, index = tmp_path / "kept", tmp_path / "kept.db"
        for number in range(ROUNDS * len(ways)):
            way = ways[number % len(ways)]
            victim = chance.choice(("node2", "node3")) if number % 3 == 0 else None
            if victim:
                work.daemons.kill(victim)
            path = made(work, way, kept if way.keeps else tmp_path / f"copy{number}")
            if victim:
                work.start(victim)
            result = judged(work, path)
            assert (way.name, accusations(result)) == (way.name, set())
            for each in result.findings:
                doubts[each.code] = doubts.get(each.code, 0) + 1
            if older is not None:  # two instants of one history
                before, then = older
                assert accusations(compared(result, then, open_tree(path), open_tree(before))) == set()
                if before != kept:
                    shutil.rmtree(before) if before.is_dir() else before.unlink()
            if way.keeps:  # what was read before is read again where it changed, and nowhere else
                assert judged(work, path, Options(index_file=index)) == result
            older = (path, result)
            assert accusations(judged(work, work.root)) == set()
        work.finish()
    print(f"{ROUNDS * len(ways)} copies; {doubts}")
