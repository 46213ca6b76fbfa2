"""The command's entry and the public names: usage, errors as exit codes, each family loaded when it is called."""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tenure
import tenure.__main__ as entry
from release.manual import family
from timeagent import VERSION, core, errors
from timeagent.console import Command

if TYPE_CHECKING:
    from collections.abc import Callable


def tenure_command(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tenure", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[argparse.Namespace], int]], None]:
    """Let the word ``read`` do something else."""

    def plant(run: Callable[[argparse.Namespace], int]) -> None:
        family = importlib.import_module("appliance.cli.messages")
        monkeypatch.setitem(family.COMMANDS, "read", Command("planted", lambda _: None, run))

    return plant


def test_without_a_word_the_commands_are_shown_and_it_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(f"  {word}" in err for word in entry.FAMILIES)


@pytest.mark.parametrize(
    "words",
    [
        *(["nonsense"], ["read"], ["read", "log", "--nonsense"], ["bag"], ["bag", "x"], ["--json"]),
        # short for --root-key, and for --json: no option is known by its beginning
        *(["audit", "--root", "a"], ["shards", "ls", "--js"]),
    ],
)
def test_wrong_usage_is_exit_code_2_on_stderr(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(words)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: tenure")


@pytest.mark.parametrize("words", [["--help"], ["publish", "--help"], ["lease", "hold", "-h"], ["time", "now", "-h"]])
def test_help_is_data(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(words)
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: tenure")
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
    _, _, named = entry.FAMILIES[word][1].partition(": ")
    verbs = [
        each for action in parser._actions if isinstance(action, argparse._SubParsersAction) for each in action.choices
    ]
    assert not verbs or not named or set(named.split(", ")) == set(verbs)


def test_version_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr() == (f"tenure {VERSION}, core: {core.said()}\n", "")


def test_help_of_a_verb_says_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        entry.main(["lease", "revoke", "--help"])
    assert "End somebody's lease; asks for its name and a reason." in capsys.readouterr().out


def value_of(action: argparse.Action, number: int) -> str:
    """Return a value that an argument takes, if possible another than with another number."""
    tried = [*(str(each) for each in action.choices or ()), f"x{number}", f"{number}", "2026-11-20T22:10:07Z"]
    for text in tried:
        try:
            (action.type or str)(text)  # type: ignore[operator]
        except (argparse.ArgumentTypeError, ValueError):
            continue
        return text
    raise AssertionError(f"no value for {action}: name one")


def leaves(verbs: list[str], parser: argparse.ArgumentParser) -> list[tuple[list[str], argparse.ArgumentParser]]:
    """Return every parser that takes words, with the words that lead to it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return [leaf for verb, each in action.choices.items() for leaf in leaves([*verbs, verb], each)]
    return [(verbs, parser)] if any(not each.option_strings for each in parser._actions) else []


def listening(word: str, monkeypatch: pytest.MonkeyPatch) -> list[argparse.Namespace]:
    """Let a command only keep what it is told."""
    told: list[argparse.Namespace] = []

    def run(options: argparse.Namespace) -> int:
        told.append(options)
        return 0

    commands = importlib.import_module(entry.FAMILIES[word][0]).COMMANDS
    monkeypatch.setitem(commands, word, Command("planted", commands[word].add_arguments, run))
    return told


LEAVES = {" ".join(verbs): (verbs, parser) for word in entry.FAMILIES for verbs, parser in leaves([word], family(word))}


# argparse takes an optional word for missing at the first option, and refuses it when it comes.
@pytest.mark.parametrize("name", LEAVES)
def test_words_of_every_command_may_stand_before_between_and_behind_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verbs, parser = LEAVES[name]
    told = listening(verbs[0], monkeypatch)
    either = [other for group in parser._mutually_exclusive_groups for other in group._group_actions[1:]]
    greedy = [name for each in parser._actions if each.nargs == "?" for name in each.option_strings]
    words: list[str] = []
    options: list[list[str]] = []
    for action in parser._actions:
        if not action.option_strings:
            words += [value_of(action, len(words) + n) for n in range(2 if action.nargs in ("*", "+") else 1)]
        elif action not in either and action.nargs != 0:
            options.append([action.option_strings[-1], *([] if action.nargs == "?" else [value_of(action, 1)])])
        elif action not in either and isinstance(action, argparse._StoreTrueAction):
            options.append([action.option_strings[-1]])
    assert entry.main([*verbs, *(part for each in options for part in each), *words]) == 0
    for place in range(len(options) + 1):
        mixed = [list(each) for each in options]
        for number, word in enumerate(words):
            mixed.insert(min(place + 2 * number, len(mixed)), [word])
        if any(first[0] in greedy and second[0] in words for first, second in pairwise(mixed)):
            continue  # an option that may have a value takes the word behind it for that
        assert entry.main([*verbs, *(part for each in mixed for part in each)]) == 0, mixed
    assert entry.main([*verbs, words[0], *(part for each in options for part in each), "--", *words[1:]]) == 0
    assert [each for each in told if each != told[0]] == []


def test_word_that_looks_like_an_option_stands_behind_two_dashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = listening("lease", monkeypatch)
    assert entry.main(["lease", "show", "--root", "r", "--", "--json"]) == 0
    assert entry.main(["lease", "hold", "a", "--root", "r", "--", "-b"]) == 0
    assert [(each.root, each.json) for each in told] == [("r", False)] * 2
    assert (told[0].domain, told[1].domains) == ("--json", ["a", "-b"])
    with pytest.raises(SystemExit):
        entry.main(["lease", "show", "-b"])


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
    error: type[errors.TenureError],
    planted: Callable[[Callable[[argparse.Namespace], int]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_: argparse.Namespace) -> int:
        raise error("some-code", "what is wrong", hint="do this")

    planted(run)
    assert entry.main(["read"]) == ERRORS[error]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "tenure: what is wrong [some-code]\n  way out: do this\n"


def test_every_error_that_can_be_raised_is_in_the_table() -> None:
    def below(error: type[errors.TenureError]) -> set[type[errors.TenureError]]:
        return {error}.union(*(below(each) for each in error.__subclasses__()))

    assert below(errors.TenureError) - {errors.TenureError} == set(ERRORS)


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
    assert capsys.readouterr().err == "tenure: interrupted\n"


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
    assert first == f"tenure: {said} [input-output]"
    assert second.startswith("  way out: ")


DEFECT = "tenure: this is a defect of the program, and no answer [defect]"


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


# The operating system refuses it, as a descriptor: no defect of the program.
def test_thread_that_cannot_be_had_is_the_systems_word(
    planted: Callable[[Callable[[argparse.Namespace], int]], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    def run(_: argparse.Namespace) -> int:
        threading.Thread(target=print).start()
        return 0

    planted(run)
    monkeypatch.setattr(threading, "_start_joinable_thread", refuse)
    assert entry.main(["read"]) == 74
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tenure: can't start new thread [no-threads]"
    assert lines[1].startswith("  way out: ")


def test_family_that_cannot_be_imported_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(entry.FAMILIES, "read", ("appliance.cli.there_is_none", "planted"))
    assert entry.main(["read"]) == 70
    assert capsys.readouterr().err.splitlines()[-1] == DEFECT


def test_defect_keeps_its_code_where_nobody_reads_what_it_says() -> None:
    script = (
        "import sys, tenure.__main__ as entry, appliance.cli.messages as family, timeagent.console as console\n"
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


def test_who_reads_a_standard_input_that_is_closed_is_refused(repository: Path) -> None:
    words = [sys.executable, "-m", "tenure", "time", "verify", "-"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *words], cwd=repository, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (errors.INPUT_OUTPUT, "")
    assert "Traceback" not in done.stderr


# With and without a buffer: what is left in it must not be tried again at the end.
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_goes_away_is_no_traceback(unbuffered: str) -> None:
    script = (
        "import sys, tenure.__main__ as entry, appliance.cli.messages as family, timeagent.console as console\n"
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


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["bag", "--help"], ["time", "now", "--json"]])
@pytest.mark.parametrize(("where", "code"), [("/dev/full", 74), ("| sleep 0", 141)])
def test_what_cannot_be_shown_at_the_end_has_the_code_of_that(words: list[str], where: str, code: int) -> None:
    to = where if where.startswith("|") else f"> {where}"
    script = f'set -o pipefail; (sleep 0.5; exec "$@") {to}'
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    command = ["bash", "-c", script, "-", sys.executable, "-m", "tenure", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert done.returncode == code
    assert "Exception ignored" not in done.stderr


# Also where Python is told to have no buffer, and would take what of one write was written for the whole.
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_finds_half_of_its_room_is_not_taken_for_shown(tmp_path: Path, unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with (tmp_path / "said").open("wb") as said:
        done = subprocess.run(
            [sys.executable, "-m", "tenure", "time", "now", "--json"],
            stdout=said,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            env=environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16)),
        )
    assert (tmp_path / "said").stat().st_size == 16
    assert done.returncode == errors.INPUT_OUTPUT
    assert b"File too large" in done.stderr


def test_python_without_assertions_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-m", "tenure", "time", "now"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "-O" in done.stderr


def test_it_runs_as_a_module_from_anywhere(tmp_path: Path, repository: Path) -> None:
    done = tenure_command("--help", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(repository)})
    assert done.returncode == 0
    assert "commands:" in done.stdout


# -- the public names --------------------------------------------------------------------------------------------------


def test_public_names_are_listed_and_every_one_is_there() -> None:
    assert sorted(tenure.__all__) == list(tenure.__all__)
    assert set(tenure._HOMES) == set(tenure.__all__)
    for name in tenure.__all__:
        assert getattr(tenure, name).__name__ in (name, "Outcome")


def test_what_leases_are_asked_for_with_is_public() -> None:
    assert list(tenure.Mode) == ["X", "S", "IX", "IS", "SIX"]


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tenure.nonsense


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("tenure", ("apsw", "numpy", "textual", "cryptography")),
        ("appliance.cluster", ("numpy", "cryptography.x509", "email", "textual")),
    ],
)
def test_importing_loads_nothing_heavy(module: str, heavy: tuple[str, ...], repository: Path) -> None:
    script = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=repository, timeout=60
    )
    assert done.stdout == "[]\n"
