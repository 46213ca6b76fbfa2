"""The program in a real terminal, under tmux: started, gone through, left; and after a crash."""

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.terminal import PATIENCE_S, Terminal

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here: no terminal to try it in")

CRASHING = """
import sys
from tenure.__main__ import main
from tests.support.screens import RecordedSource, busy_state
from timeagent.console import Command
from tui import cli

class Broken(RecordedSource):
    told = 0
    def state_at(self, instant=None):
        self.told += 1
        assert self.told < 8, "a planted bug"
        return __import__("dataclasses").replace(super().state_at(instant), path=f"/srv/{self.told}")

cli.COMMANDS["top"] = Command("planted", lambda _: None, lambda _: cli._open_screen(Broken(busy_state())))
sys.exit(main(["top"]))
"""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    try:
        opened.until_words("ready>")
        yield opened
    finally:
        opened.kill()


def settings_of(terminal: Terminal, file: Path) -> str:
    """What the terminal line is set to, as the shell sees it."""
    terminal.run(f"stty -a > {file}.part; mv {file}.part {file}; clear")
    end = time.monotonic() + PATIENCE_S
    while not file.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    terminal.until(lambda text: text.strip() == "ready>", "an empty screen")
    return file.read_text()


@pytest.fixture(scope="module")
def tree(repository: Path) -> Path:
    trees = sorted((repository / "tests/golden/trees").glob("*/tree"))
    assert trees
    return trees[0]


def test_session_in_a_terminal_leaves_it_as_it_was(terminal: Terminal, tree: Path, tmp_path: Path) -> None:
    before = settings_of(terminal, tmp_path / "before")
    top = shlex.join([sys.executable, "-m", "tenure", "top", "--offline", str(tree)])
    terminal.run(f"{top}; echo left with $?")
    terminal.until_words("[1 Overview]")
    assert terminal.alternate()
    terminal.type("2")
    terminal.until_words("[2 Leases]")
    terminal.type("3")
    terminal.until_words("[3 Bags]")
    terminal.type("?")
    terminal.until_words("esc closes")
    terminal.type("Escape")
    terminal.until(lambda text: "esc closes" not in text, "the help closed")
    terminal.type("q")
    terminal.until_words("left with 0")
    assert not terminal.alternate()
    terminal.run("clear")
    assert settings_of(terminal, tmp_path / "after") == before
    terminal.run("echo typed $((6*7))")
    terminal.until_words("typed 42")


def started(terminal: Terminal, tree: Path, directory: Path) -> int:
    """Start it on a copy, and return its process's number."""
    file = directory / "pid"
    top = shlex.join([sys.executable, "-m", "tenure", "top", "--offline", str(tree)])
    terminal.run(f"sh -c 'echo $$ > {file}; exec {top}'")
    terminal.until_words("[1 Overview]")
    return int(file.read_text())


def test_program_that_is_terminated_gives_the_terminal_back(terminal: Terminal, tree: Path, tmp_path: Path) -> None:
    before = settings_of(terminal, tmp_path / "before")
    os.kill(started(terminal, tree, tmp_path), signal.SIGTERM)
    terminal.until(lambda text: "ready>" in text and not terminal.alternate(), "the shell")
    terminal.run("echo left with $?")
    terminal.until_words("left with 143")
    terminal.run("clear")
    assert settings_of(terminal, tmp_path / "after") == before


def test_program_goes_into_the_background_and_comes_back(terminal: Terminal, tree: Path, tmp_path: Path) -> None:
    before = settings_of(terminal, tmp_path / "before")
    started(terminal, tree, tmp_path)
    terminal.type("2")
    terminal.until_words("[2 Leases]")
    terminal.type("C-z")
    terminal.until(lambda text: "ready>" in text and not terminal.alternate(), "the shell")
    terminal.run("echo typed $((6*7))")
    terminal.until_words("typed 42")
    terminal.run("fg")
    terminal.until_words("[2 Leases]")
    assert terminal.alternate()
    terminal.type("3")
    terminal.until_words("[3 Bags]")
    terminal.type("C-c")
    terminal.until(lambda text: "ready>" in text and not terminal.alternate(), "the shell")
    terminal.run("clear")
    assert settings_of(terminal, tmp_path / "after") == before


def test_crash_gives_the_terminal_back_and_says_why(terminal: Terminal, repository: Path, tmp_path: Path) -> None:
    before = settings_of(terminal, tmp_path / "before")
    script = tmp_path / "crashing.py"
    script.write_text(CRASHING)
    command = f"PYTHONPATH=. {sys.executable} {script} 2>{tmp_path}/error"
    terminal.run(f"cd {shlex.quote(str(repository))}; {command}; echo left with $?")
    terminal.until_words("left with 70")
    assert not terminal.alternate()
    error = (tmp_path / "error").read_text()
    assert error.count("AssertionError: a planted bug") == 1
    assert error.splitlines()[-1] == "tenure: this is a defect of the program, and no answer [defect]"
    terminal.run("clear")
    assert settings_of(terminal, tmp_path / "after") == before
