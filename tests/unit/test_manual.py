"""The manual and the completions say what the command takes: every word, verb and option, and no other."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from release import manual
from tenure.__main__ import FAMILIES

DATE = "2026-11-20"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return manual.manual(DATE)


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    return manual.completions()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    share = tmp_path_factory.mktemp("share")
    manual.write(share)
    return share


def plain(roff: str) -> str:
    """A page without its markup."""
    return re.sub(r"\\f[BIR]|\\&", "", roff).replace("\\-", "-")


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    return [parser, *(each for _, each in manual.verbs(parser).values())]


def taken_by(word: str) -> list[str]:
    """The options of a word and its verbs, without those that only the program itself gives."""
    return [
        option
        for parser in parsers(manual.family(word))
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for option in action.option_strings
    ]


def missing(word: str, page: str) -> list[str]:
    """What a word takes and its page does not have as an entry."""
    entries = plain(page).splitlines()
    taken = taken_by(word)
    named = [verb for verb in manual.verbs(manual.family(word)) if f".SS {verb}" not in entries]
    return named + [
        option for option in taken if not any(re.match(rf"(\S+, )?{option}\b(?!-)", each) for each in entries)
    ]


@pytest.mark.parametrize("word", FAMILIES)
def test_page_of_a_word_has_every_verb_and_option(pages: dict[str, str], word: str) -> None:
    assert missing(word, pages[f"tenure-{word}.1"]) == []


def test_verb_or_option_that_a_page_lacks_is_found(pages: dict[str, str]) -> None:
    page = pages["tenure-lease.1"]
    assert missing("lease", page.replace(".SS revoke", ".SS gone")) == ["revoke"]
    assert missing("lease", page.replace(r"\fB\-\-reason\fR", r"\fB\-\-because\fR")) == ["--reason"]


def test_page_of_all_has_every_word_and_exit_code(pages: dict[str, str], repository: Path) -> None:
    page = plain(pages["tenure.1"])
    assert [word for word in FAMILIES if f"tenure-{word}(1)" not in page] == []
    codes = re.findall(r"^\| (\d+) \|", (repository / "docs/exit-codes.md").read_text(), re.MULTILINE)
    assert [code for code in codes if f"\n.TP\n{code}\n" not in page] == []


def test_there_is_a_page_for_every_word_and_no_other(pages: dict[str, str]) -> None:
    words = {f"tenure-{word}.1" for word in FAMILIES}
    assert set(pages) == words | {"tenure.1", "tenure.7"}


def test_page_that_a_unit_names_is_there(pages: dict[str, str], repository: Path) -> None:
    named = {
        (name, section)
        for unit in (repository / "systemd").glob("*@.*")
        for name, section in re.findall(r"man:([\w@.-]+)\((\d)\)", unit.read_text())
    }
    assert named
    assert {f"{name}.{section}" for name, section in named} <= set(pages)


@pytest.mark.parametrize("shell", manual.COMPLETIONS)
def test_completions_know_every_option(scripts: dict[str, str], shell: str) -> None:
    options = {option.lstrip("-") for word in FAMILIES for option in taken_by(word)}
    script = scripts[shell]
    assert [option for option in sorted(options) if not re.search(rf"(?:-[ls] '?|--?){option}(?![\w-])", script)] == []
    verbs = {verb for word in FAMILIES for verb in manual.verbs(manual.family(word))}
    assert [word for word in sorted(verbs | set(FAMILIES)) if not re.search(rf"\b{word}\b", script)] == []


@pytest.mark.parametrize("shell", manual.COMPLETIONS)
def test_shell_reads_its_completions(written: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-n", written / manual.COMPLETIONS[shell]], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_words_verbs_and_options(written: Path) -> None:
    script = written / manual.COMPLETIONS["bash"]
    asked = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        compopt() { :; }
        _shtab_tenure; printf '%s\\n' "${COMPREPLY[@]}"
    """

    def offered(*words: str) -> list[str]:
        command = ["bash", "-c", asked, "bash", str(script), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout.split()

    assert offered("tenure", "do") == ["doctor"]
    assert offered("tenure", "lease", "rev") == ["revoke"]
    assert offered("tenure", "lease", "revoke", "--rea") == ["--reason"]


LINTERS = {"mandoc": ["mandoc", "-Tlint", "-W", "warning"], "man": ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8"]}


def complaints(tool: str, *paths: Path) -> str:
    done = subprocess.run([*LINTERS[tool], *paths], capture_output=True, text=True, check=False, timeout=200)
    return done.stderr if tool == "man" else done.stdout + done.stderr


@pytest.mark.parametrize("tool", LINTERS)
def test_manual_tools_find_nothing_wrong(written: Path, tool: str, tmp_path: Path) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    broken = tmp_path / "broken.1"
    broken.write_text(
        '.TH "X" "1" "2026-11-20" "a" "b"\n.SH NAME\nx \\- y\n.IP \\fBunknown\\fR x\n.XX\n.NO "\\[nope]\n'
    )
    if not complaints(tool, broken):
        pytest.skip(f"{tool} of this machine says nothing of a broken page")
    assert complaints(tool, *sorted(written.glob("man/man*/*"))) == ""


def test_manual_is_the_same_again_for_the_same_date(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1763596800")
    first, second = (manual.write(tmp_path / name, packed=True) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert any(b"2025-11-20" in text.encode() for text in manual.manual(manual.today()).values())
