"""The command's entry and the public names: usage, errors as exit codes, each family loaded when it is called."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import leasehold
import leasehold.__main__ as entry
from timeagent import errors
from timeagent.console import Command

if TYPE_CHECKING:
    from collections.abc import Callable


def leasehold_command(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leasehold", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[argparse.Namespace], int]], None]:
    """Let the word ``read`` do something else."""

    def plant(run: Callable[[argparse.Namespace], int]) -> None:
        family = importlib.import_module("appliance.cli.reading")
        monkeypatch.setitem(family.COMMANDS, "read", Command("planted", lambda _: None, run))

    return plant


def test_without_a_word_the_commands_are_shown_and_it_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(f"  {word}" in err for word in entry.FAMILIES)


@pytest.mark.parametrize(
    "words", [["nonsense"], ["read"], ["read", "log", "--nonsense"], ["bag"], ["bag", "x"], ["--json"]]
)
def test_wrong_usage_is_exit_code_2_on_stderr(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(words)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: leasehold")


@pytest.mark.parametrize("words", [["--help"], ["publish", "--help"], ["lease", "hold", "-h"], ["time", "now", "-h"]])
def test_help_is_data(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(words)
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: leasehold")
    assert err == ""


@pytest.mark.parametrize("word", list(entry.FAMILIES))
def test_every_family_has_its_command_and_its_arguments(word: str) -> None:
    try:
        commands = importlib.import_module(entry.FAMILIES[word][0]).COMMANDS
    except ModuleNotFoundError as missing:  # a family that this version of the tree does not have yet
        pytest.skip(str(missing))
    parser = argparse.ArgumentParser(prog=word)
    commands[word].add_arguments(parser)
    assert parser.format_help()


def test_version_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr() == (f"leasehold {version('leasehold')}\n", "")


def test_help_of_a_verb_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        entry.main(["lease", "revoke", "--help"])
    assert "End somebody's lease; asks for its name and a reason." in capsys.readouterr().out


# A number below the least would be taken for another: the last -1 racks are all but one.
@pytest.mark.parametrize(
    "words",
    [
        ("bag", "ls", "log", "--last", "-1"),
        ("bag", "forecast", "log", "--days", "0"),
        ("replay", ".", "--newest", "-1"),
        ("status", "--watch", "--count", "0"),
        ("time", "sources", "--watch", "--count", "x"),
    ],
)
def test_number_below_the_least_is_refused_with_the_rule(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(list(words))
    assert ended.value.code == 2
    assert f"argument {words[-2]}: '{words[-1]}' is not a whole number of 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize("before", [("--root", "/x", "--node-dir", "/n", "--allow-root", "--json"), ()])
@pytest.mark.parametrize("verb", [("ls",), ("move", "0", "b", "--root-key", "k"), ()])
def test_options_between_the_word_and_its_verb_count(before: tuple[str, ...], verb: tuple[str, ...]) -> None:
    parser = argparse.ArgumentParser()
    importlib.import_module("appliance.cli.shards").COMMANDS["shards"].add_arguments(parser)
    options = parser.parse_args([*before, *verb])
    told = (options.root, options.node_dir, options.allow_root, options.json)
    assert told == (("/x", "/n", True, True) if before else (None, None, False, False))


ERRORS = {
    errors.TryAgain: 75,
    errors.ShardUnavailable: 69,
    errors.LeaseLost: 76,
    errors.UnknownOutcome: 4,
    errors.BadRequest: 2,
    errors.BadConfiguration: 78,
    errors.BadTime: 75,
    errors.Damaged: 65,
    errors.Environment: 74,
    errors.NotTrusted: 77,
}


@pytest.mark.parametrize("error", list(ERRORS))
def test_every_error_has_its_exit_code_its_code_and_its_way_out(
    error: type[errors.LeaseholdError],
    planted: Callable[[Callable[[argparse.Namespace], int]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise error("some-code", "what is wrong", hint="do this")

    planted(run)
    assert entry.main(["read"]) == ERRORS[error]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "leasehold: what is wrong [some-code]\n  way out: do this\n"


def test_every_error_that_can_be_raised_is_in_the_table() -> None:
    def below(error: type[errors.LeaseholdError]) -> set[type[errors.LeaseholdError]]:
        return {error}.union(*(below(each) for each in error.__subclasses__()))

    assert below(errors.LeaseholdError) - {errors.LeaseholdError} == set(ERRORS)


def test_exit_code_of_a_command_is_passed_on(planted: Callable[[Callable[[argparse.Namespace], int]], None]) -> None:
    planted(lambda _: 3)
    assert entry.main(["read"]) == 3


def test_interrupt_is_exit_code_130_without_a_traceback(
    planted: Callable[[Callable[[argparse.Namespace], int]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    planted(run)
    assert entry.main(["read"]) == 130
    assert capsys.readouterr().err == "leasehold: interrupted\n"


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "/x/y"), "/x/y: No such file or directory"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_what_the_system_refuses_names_the_file_and_the_way_out(
    problem: OSError,
    said: str,
    planted: Callable[[Callable[[argparse.Namespace], int]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise problem

    planted(run)
    assert entry.main(["read"]) == 74
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first == f"leasehold: {said} [input-output]"
    assert second.startswith("  way out: ")


DEFECT = "leasehold: this is a defect of the program, and no answer [defect]"


# 1 means findings, or no: whoever reads exit codes must not take a bug for that.
@pytest.mark.parametrize("bug", [AssertionError(), UnicodeEncodeError("utf-8", "\udcff", 0, 1, "planted"), KeyError(1)])
def test_bug_is_a_traceback_and_an_exit_code_of_its_own(
    bug: Exception,
    planted: Callable[[Callable[[argparse.Namespace], int]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise bug

    planted(run)
    assert entry.main(["read"]) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Traceback (most recent call last):")
    assert type(bug).__name__ in err
    assert err.splitlines()[-1] == DEFECT


def test_family_that_cannot_be_imported_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(entry.FAMILIES, "read", ("appliance.cli.there_is_none", "planted"))
    assert entry.main(["read"]) == 70
    assert capsys.readouterr().err.splitlines()[-1] == DEFECT


def test_defect_keeps_its_code_where_nobody_reads_what_it_says() -> None:
    script = (
        "import sys, leasehold.__main__ as entry, appliance.cli.reading as family, timeagent.console as console\n"
        "family.COMMANDS['read'] = console.Command('planted', lambda _: None, lambda _: 1 // 0)\n"
        "sys.stdin.read()\n"
        "sys.exit(entry.main(['read']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stderr
        process.stderr.close()
        process.stdin.close()
        assert process.wait(60) == 70


# With and without a buffer: what is left in it must not be tried again at the end.
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_goes_away_is_no_traceback(unbuffered: str) -> None:
    script = (
        "import sys, leasehold.__main__ as entry, appliance.cli.reading as family, timeagent.console as console\n"
        "def run(_):\n    while True:\n        sys.stdout.write('x' * 65536)\n        sys.stdout.flush()\n"
        "family.COMMANDS['read'] = console.Command('planted', lambda _: None, run)\n"
        "sys.exit(entry.main(['read']))\n"
    )
    command = [sys.executable, "-c", script]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 141


def test_python_without_assertions_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "leasehold", "time", "now"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "-O" in done.stderr


def test_it_runs_as_a_module_from_anywhere(tmp_path: Path, repository: Path) -> None:
    done = leasehold_command("--help", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(repository)})
    assert done.returncode == 0
    assert "commands:" in done.stdout


# -- the public names --------------------------------------------------------------------------------------------------


def test_public_names_are_listed_and_every_one_is_there() -> None:
    assert sorted(leasehold.__all__) == list(leasehold.__all__)
    assert set(leasehold._HOMES) == set(leasehold.__all__)
    for name in leasehold.__all__:
        assert getattr(leasehold, name).__name__ in (name, "Outcome")


def test_what_leases_are_asked_for_with_is_public() -> None:
    assert list(leasehold.Mode) == ["X", "S", "IX", "IS", "SIX"]


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = leasehold.nonsense


def test_importing_the_public_package_loads_nothing_heavy(repository: Path) -> None:
    script = (
        "import sys, leasehold; print([m for m in ('apsw', 'numpy', 'textual', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=repository, timeout=60
    )
    assert done.stdout == "[]\n"
