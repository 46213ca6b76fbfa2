"""The guards of the house are shown to work: in a small copy of it, each planted breach is named, and only that."""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = ("tenure", "tui", "auditor", "appliance", "timeagent")

# A small house with every edge that pyproject.toml allows by name.
HOUSE = {
    "tenure/__main__.py": "import tui.app\n",
    "tui/app.py": "import textual\nimport watchdog\n\nimport auditor.evidence.tree\nimport tui.widgets.lines\n",
    "tui/model/state.py": "",
    "tui/screens/cluster.py": "import tui.app\nimport tui.widgets.lines\n",
    "tui/sources/live.py": "import tui.model.state\n",
    "tui/widgets/lines.py": "import tui.model.state\n",
    "auditor/evidence/tree.py": "import appliance.formats.framing\nimport timeagent.keys\n",
    "auditor/evidence/fetched.py": "import obstore\n",
    "auditor/columns/audit_file.py": "import apsw\n",
    "auditor/columns/index.py": "",
    "appliance/errors.py": "",
    "appliance/formats/framing.py": "import appliance.errors\n",
    "appliance/bag/posix.py": "import appliance.formats.framing\n",
    "appliance/bag/objects.py": "import obstore\n",
    "appliance/bag/wakeup.py": "import watchdog\n",
    "appliance/lease/store.py": "import apsw\n",
    "appliance/lease/tls.py": "import cryptography\n",
    "appliance/session.py": "import appliance.bag.posix\nimport appliance.lease.store\nimport timeagent.clock\n",
    "appliance/cluster.py": "import appliance.session\n",
    "timeagent/clock.py": "",
    "timeagent/keys.py": "import cryptography\n",
    "timeagent/roughtime/wire.py": "import roughly\n",
}

# The files that ruff excuses from TID251, each with the families that it is excused from, and why. ruff can excuse a
# file only as a whole: this table is what keeps an excuse for one family from being one for all.
EXCUSES = {
    "appliance/bag/posix.py": {"mount"},  # the one place for calls on the shared mount
    "appliance/doctor/file_system.py": {"mount"},  # what a mount does with files, tried out in a directory of its own
    "appliance/node/runtime.py": {"mount", "flock"},  # directory and lock of this machine, on tmpfs
    "appliance/recipes/processes.py": {"mount"},  # lists /proc, and loads nothing for it
    "appliance/recipes/quick_run.py": {"clock"},  # the boot clock, before the one reader of clocks could be loaded
    "appliance/cluster.py": {"chance"},  # a main: wires the ports
    "appliance/cli/*": {"mount", "chance"},  # mains: files of the machine, not of the mount
    "auditor/evidence/tree.py": {"mount"},  # reads a copy
    "tui/cli.py": {"chance"},  # a main: the ids of revocations
    "timeagent/clock.py": {"clock"},  # the one reader of the machine's clocks
    "timeagent/keys.py": {"mount", "chance"},  # a private key: its mode from the first byte; its seed
    "tests/*": {"mount", "clock"},  # never chance: a test that draws without a seed cannot be repeated
    "tests/nfs_lab/lab.py": {"rename", "flock"},  # an image is put in place whole, and made by one at a time
    "tests/nfs_lab/referee.py": {"rename"},  # faults are planted into a copy
    "tests/nfs_lab/machine.py": {"chance"},  # what a machine without a source of its own begins with
    "tests/nfs_lab/loopback.py": {"chance"},  # a cluster's keys and id
    "tests/simulation/run.py": {"chance"},  # where to begin with fresh seeds; each one is printed
    "tests/simulation/test_schedules.py": {"chance"},  # the same
}


@pytest.fixture
def house(repository: Path, tmp_path: Path) -> Path:
    shutil.copy(repository / "pyproject.toml", tmp_path)
    for name, text in HOUSE.items():
        plant(tmp_path, name, text)
    return tmp_path


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in path.relative_to(root).parents:
        if folder.name and folder.parts[0] in PACKAGES:
            (root / folder / "__init__.py").touch()
    path.write_text((path.read_text() if path.exists() else "") + text)


def lint_imports(root: Path) -> tuple[int, str]:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def broken(report: str) -> list[str]:
    return re.findall(r"^(.+) BROKEN\b", report, re.MULTILINE)


def banned(root: Path) -> dict[str, set[str]]:
    """What TID251 says with every excuse taken away, by file: the families of the calls found."""
    command = ["check", "--select", "TID251", "--ignore-noqa", "--config", "lint.per-file-ignores={}", "--no-cache"]
    found: dict[str, set[str]] = {}
    for each in ruff(root, *command):
        family = each["message"].split(" is banned: ")[1].split(":")[0]
        found.setdefault(Path(each["filename"]).relative_to(root).as_posix(), set()).add(family)
    return found


def ruff(root: Path, *arguments: str) -> list[dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "--output-format", "json", "."],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 1}, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def excused(name: str) -> set[str]:
    return {family for glob, families in EXCUSES.items() if fnmatch.fnmatch(name, glob) for family in families}


def unexcused(found: dict[str, set[str]]) -> dict[str, set[str]]:
    return {name: rest for name, families in found.items() if (rest := families - excused(name))}


def test_small_house_keeps_every_contract(house: Path) -> None:
    status, report = lint_imports(house)
    assert (status, broken(report)) == (0, []), report


def circles(root: Path, repository: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-P", repository / "tests" / "support" / "circles.py", *PACKAGES],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.split()


def test_no_two_modules_import_each_other_in_a_circle(repository: Path) -> None:
    assert circles(repository, repository) == (0, [])


def test_circle_of_three_modules_in_two_rooms_is_named(house: Path, repository: Path) -> None:
    plant(house, "auditor/columns/index.py", "import auditor.evidence.tree\n")
    plant(house, "auditor/audit.py", "import auditor.columns.index\n")
    plant(
        house,
        "auditor/evidence/tree.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import auditor.audit\n",
    )
    assert circles(house, repository) == (1, ["auditor.audit", "auditor.columns.index", "auditor.evidence.tree"])


BREACHES = [
    ("timeagent/clock.py", "appliance.errors", "the house"),
    ("appliance/session.py", "auditor.evidence.tree", "the house"),
    ("auditor/evidence/tree.py", "appliance.bag.posix", "the judge"),
    ("auditor/evidence/tree.py", "appliance.errors", "the judge"),
    ("appliance/lease/store.py", "appliance.bag.posix", "inside appliance"),
    ("appliance/bag/posix.py", "apsw", "SQLite"),
    ("appliance/session.py", "cryptography", "cryptography"),
    ("auditor/evidence/tree.py", "textual", "the screen"),
    ("tui/app.py", "tui.sources.live", "screens reach sources"),
    ("tui/screens/cluster.py", "tui.sources.live", "screens reach sources"),
    ("tui/widgets/lines.py", "tui.sources.live", "inside tui"),
    ("tui/model/state.py", "tui.widgets.lines", "inside tui"),
    ("timeagent/clock.py", "roughly", "the Roughtime library"),
    ("appliance/bag/posix.py", "watchdog", "changes of local files"),
    ("appliance/session.py", "obstore", "object stores in two places"),
    ("auditor/evidence/tree.py", "auditor.columns.index", "inside the auditor"),
    ("timeagent/keys.py", "timeagent.clock", "inside timeagent"),
]


def test_forbidden_imports_are_named(house: Path) -> None:
    for name, imported, _ in BREACHES:
        plant(house, name, f"import {imported}\n")
    status, report = lint_imports(house)
    assert status == 1
    for name, imported, contract in BREACHES:
        assert any(each.startswith(contract) for each in broken(report)), (contract, report)
        importer = name.removesuffix(".py").replace("/", ".")
        assert re.search(rf"{re.escape(importer)}\s*->\s*{re.escape(imported)}\b", report), (importer, report)


# Nobody has to remember to forbid it: what is new in appliance is closed to the auditor, and has no layer yet.
def test_new_module_of_appliance_is_closed_to_the_auditor(house: Path) -> None:
    plant(house, "appliance/brandnew/inner.py", "")
    plant(house, "auditor/evidence/tree.py", "import appliance.brandnew.inner\n")
    status, report = lint_imports(house)
    assert status == 1
    assert [each.split(":")[0] for each in broken(report)] == [
        "inside appliance",
        "the judge shares the file format with the accused, never the logic",
    ], report


CALLS = [
    ("auditor/chains.py", "import os\n\nos.link('a', 'b')\n", "mount"),
    ("auditor/chains.py", "from os import link\n\nlink('a', 'b')\n", "mount"),
    ("appliance/session.py", "import time\n\ntime.time()\n", "clock"),
    ("appliance/session.py", "from datetime import UTC, datetime\n\ndatetime.now(UTC)\n", "clock"),
    ("appliance/session.py", "import datetime as dt\n\ndt.date.today()\n", "clock"),
    ("timeagent/units.py", "import os\n\nos.rename('a', 'b')\n", "rename"),
    ("tui/app.py", "import shutil\n\nshutil.move('a', 'b')\n", "rename"),
    ("tui/app.py", "import fcntl\n\nfcntl.flock(0, 2)\n", "flock"),
    ("tenure/__main__.py", "import random\n\nrandom.random()\n", "chance"),
    ("tenure/__main__.py", "import secrets\n\nsecrets.token_bytes(8)\n", "chance"),
    ("tenure/__main__.py", "import uuid\n\nuuid.uuid4()\n", "chance"),
]


def test_banned_calls_are_named_with_the_way_out(house: Path) -> None:
    for number, (name, text, _) in enumerate(CALLS):
        plant(house, f"{name.removesuffix('.py')}{number}.py", text)
    found = ruff(house, "check", "--select", "TID251", "--no-cache")
    assert {each["code"] for each in found} == {"TID251"}
    said = {Path(each["filename"]).relative_to(house).as_posix(): each["message"] for each in found}
    assert len(said) == len(CALLS)
    for number, (name, _, family) in enumerate(CALLS):
        assert f" is banned: {family}: " in said[f"{name.removesuffix('.py')}{number}.py"]


def test_seeded_generator_and_its_annotation_are_allowed(house: Path) -> None:
    plant(
        house,
        "timeagent/units.py",
        "import random\n\n\ndef draw(chance: random.Random) -> float: ...\n\n\nrandom.Random(7)\n",
    )
    assert ruff(house, "check", "--select", "TID251", "--no-cache") == []


# A file excused for its calls on the mount may still not read a clock.
def test_excuse_for_one_family_is_none_for_another(house: Path) -> None:
    text = "import os\nimport time\n\nos.link('a', 'b')\nos.rename('a', 'b')\ntime.time()  # noqa: TID251\n"
    plant(house, "appliance/bag/posix.py", text)
    assert ruff(house, "check", "--select", "TID251", "--no-cache") == []
    assert unexcused(banned(house)) == {"appliance/bag/posix.py": {"rename", "clock"}}


def test_repository_calls_only_what_each_file_is_excused_for(repository: Path) -> None:
    assert unexcused(banned(repository)) == {}


def test_make_names_every_target_that_says_what_it_does(repository: Path, tmp_path: Path) -> None:
    makefile = repository / "Makefile"
    shutil.copy(makefile, tmp_path)
    told = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    targets = re.findall(r"^([a-z0-9-]+):.* ## ", makefile.read_text(encoding="utf-8"), re.MULTILINE)
    assert [line.split()[0] for line in told.splitlines()[1:]] == targets
    assert "test-s3" in targets
