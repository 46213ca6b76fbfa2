"""What is loaded when: the judge loads nothing of the accused, and a command only its own family."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.corpus.build import build


def modules_after(statement: str, root: Path) -> set[str]:
    """Names in sys.modules of a fresh interpreter after that statement."""
    script = f"{statement}\nimport sys\nprint('\\n'.join(['', *sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def loaded(modules: set[str], *unwanted: str) -> list[str]:
    return sorted(name for name in modules if any(name == u or name.startswith(f"{u}.") for u in unwanted))


def test_auditor_loads_nothing_of_the_accused(repository: Path) -> None:
    modules = modules_after("import auditor.cli, auditor.commands.explain, auditor.commands.replay", repository)
    assert "auditor.commands.explain" in modules
    assert loaded(modules, "textual", "watchdog", "tui", "appliance.bag", "appliance.lease") == []
    assert set(loaded(modules, "tenure")) <= {"tenure", "tenure._core"}  # names, and the native core


# What a tree is fetched by, other forms of report, other commands: a third of the start of an ordinary audit.
def test_audit_loads_nothing_that_it_does_not_use(repository: Path, tmp_path: Path) -> None:
    build(tmp_path / "tree", 100)
    ran = f"import tenure.__main__ as m\nassert m.main(['audit', {str(tmp_path / 'tree')!r}, '--jobs', '1']) == 0"
    modules = modules_after(ran, repository)
    assert loaded(modules, "urllib", "http", "email", "ssl", "xml", "concurrent", "multiprocessing") == []
    assert loaded(modules, "importlib.metadata") == []
    assert loaded(modules, "auditor.explain", "auditor.commands.selftest", "auditor.report.comparing") == []
    assert "auditor.report.formats" in modules


# What judges, and what a mount in use is read with: a third of the time to the first picture of a copy.
def test_screens_of_a_copy_load_nothing_that_they_do_not_use(repository: Path) -> None:
    modules = modules_after("import tui.app, tui.sources.record", repository)
    assert loaded(modules, "auditor.audit", "appliance.cluster", "appliance.lease") == []
    assert {"textual", "auditor.explain.archive"} <= modules


# Its threads spin: half of what loading numpy costs.
def test_audit_starts_no_threads_for_linear_algebra(repository: Path) -> None:
    script = (
        "import auditor.cli, numpy\nfrom pathlib import Path\nassert len(list(Path('/proc/self/task').iterdir())) == 1"
    )
    modules_after(script, repository)


def test_command_loads_no_family_before_it_is_called(repository: Path) -> None:
    modules = modules_after("import tenure.__main__", repository)
    assert "tenure.__main__" in modules
    assert loaded(modules, "textual", "watchdog", "cryptography", "apsw", "numpy", "tui") == []


def test_help_loads_no_family(repository: Path) -> None:
    statement = "import tenure.__main__ as m\ntry: m.main(['--help'])\nexcept SystemExit: pass"
    assert loaded(modules_after(statement, repository), "textual", "watchdog", "cryptography") == []


def test_a_module_loaded_on_the_way_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "deep.py").touch()
    (tmp_path / "outer.py").write_text("import inner.deep\n")
    modules = modules_after("import outer", tmp_path)
    assert loaded(modules, "inner", "out", "deep") == ["inner", "inner.deep"]


# One line in an __init__.py would load a package's inside for everybody who names any of its modules.
# The release stands in one of them; an import stands in none.
def test_no_init_but_the_facades_loads_anything(repository: Path) -> None:
    packages = ("tui", "auditor", "appliance", "timeagent")
    inits = [path for package in packages for path in sorted((repository / package).rglob("__init__.py"))]
    assert len(inits) >= len(packages)
    assert [path for path in inits if "import" in path.read_text()] == []
    assert [path.parent.name for path in inits if path.read_bytes()] == ["timeagent"]


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_optimised_python_is_refused_at_start(repository: Path, by: str) -> None:
    flags, environment = (["-O"], {}) if by == "flag" else ([], {"PYTHONOPTIMIZE": "1"})
    done = subprocess.run(
        [sys.executable, *flags, "-m", "tenure", "--help"],
        cwd=repository,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "-O" in done.stderr
    assert done.stdout == ""


# A fifth of a second that only who judges a report has to wait.
def test_time_command_loads_no_roughtime_before_it_is_asked_for(repository: Path) -> None:
    modules = modules_after("import appliance.cli.clock", repository)
    assert "appliance.cli.clock" in modules
    assert loaded(modules, "roughly", "asyncio") == []
