"""Man pages and completions, made from the definitions that the command itself parses with: `make man`.

A page for each word of the command, ``tenure(1)`` for the whole, and completions for bash, zsh and fish. Nothing is
said here that the command does not say of itself, but for ``tenure(7)``, which is written by hand.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import shtab

from tenure.__main__ import FAMILIES, overview
from timeagent import VERSION

REPOSITORY: Final = Path(__file__).parents[1]
BY_HAND: Final = REPOSITORY / "release/man"
EXIT_CODES: Final = REPOSITORY / "docs/exit-codes.md"
WIDTH: Final = 72

COMPLETIONS: Final = {
    "bash": "bash-completion/completions/tenure",
    "zsh": "zsh/vendor-completions/_tenure",
    "fish": "fish/vendor_completions.d/tenure.fish",
}
"""Where each shell looks, below /usr/share or ~/.local/share."""

FILES: Final = (
    ("/etc/tenure/CLUSTER/", "settings and keys of this machine's node: node.toml, time.toml, *.key"),
    ("~/.config/tenure/CLUSTER/", "the same, of a user"),
    ("/run/tenure/", "what the service's shards and time agent keep until the machine stops"),
    ("/dev/shm/tenure-UID/", "the same, of another user"),  # noqa: S108 - named
)


def family(word: str) -> argparse.ArgumentParser:
    """Return the parser of one word, as the command makes it."""
    command = importlib.import_module(FAMILIES[word][0]).COMMANDS[word]
    parser = argparse.ArgumentParser(prog=f"tenure {word}", description=command.summary)
    command.add_arguments(parser)
    return parser


def whole() -> argparse.ArgumentParser:
    """Return one parser of everything, for completions: the command itself loads one word at a time."""
    parser = argparse.ArgumentParser(prog="tenure", description=overview().description)
    words = parser.add_subparsers(metavar="COMMAND", dest="command")
    for word, (module, summary) in FAMILIES.items():
        command = importlib.import_module(module).COMMANDS[word]
        command.add_arguments(words.add_parser(word, help=summary, description=command.summary))
    return parser


def verbs(parser: argparse.ArgumentParser) -> dict[str, tuple[str, argparse.ArgumentParser]]:
    """Return a parser's verbs, with what each is for."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {each.dest: each.help or "" for each in action._choices_actions}
            return {verb: (summaries.get(verb, ""), each) for verb, each in action.choices.items()}
    return {}


def escaped(text: str) -> str:
    """Return words as roff prints them, character by character."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("^", "\\(ha").replace("~", "\\(ti").replace('"', "\\(dq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter(prog=parser.prog, width=WIDTH)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups, prefix="")
    yield ".nf"
    yield escaped(formatter.format_help().strip("\n"))
    yield ".fi"


def _called(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    """Return how an argument is written: its names in bold, its value in italics."""
    if not action.option_strings:
        return (
            rf"\fI{escaped(formatter._format_args(action, formatter._get_default_metavar_for_positional(action)))}\fR"
        )
    names = ", ".join(rf"\fB{escaped(name)}\fR" for name in action.option_strings)
    if action.nargs == 0:
        return names
    value = formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
    return rf"{names} \fI{escaped(value)}\fR"


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        yield ".TP"
        yield _called(action, formatter)
        yield escaped(formatter._expand_help(action)) if action.help else r"\&"


def _head(name: str, summary: str, date: str) -> Iterator[str]:
    yield f'.TH "{escaped(name.upper())}" "1" "{date}" "tenure {VERSION}" "tenure"'
    yield ".SH NAME"
    yield f"{escaped(name)} \\- {escaped(summary)}"
    yield ".SH SYNOPSIS"


def _see_also(word: str) -> Iterator[str]:
    yield ".SH SEE ALSO"
    others = ["tenure(1)"] * bool(word) + [f"tenure-{each}(1)" for each in FAMILIES if each != word]
    chosen = others if not word else ["tenure(1)"]
    yield ",\n".join(rf"\fB{escaped(each[:-3])}\fR({each[-2]})" for each in [*chosen, "tenure(7)"])


def page(word: str, date: str) -> str:
    """Return the page of one word: what it is for, its verbs, every argument."""
    parser, summary = family(word), FAMILIES[word][1]
    lines = [*_head(f"tenure-{word}", summary, date), *_usage(parser)]
    lines += [".SH DESCRIPTION", escaped(parser.description or summary)]
    inner = verbs(parser)
    lines += [".SH OPTIONS", *_arguments(parser)]
    if inner:
        lines += [".SH COMMANDS"]
    for verb, (what, each) in inner.items():
        lines += [f".SS {escaped(verb)}", *_usage(each), ".PP", escaped(f"{what or verb}."), *_arguments(each)]
    lines += [".SH EXIT STATUS", r"0: it is done, or the answer is yes. Every other is in \fBtenure\fR(1)."]
    return "\n".join([*lines, *_see_also(word)]) + "\n"


def page_of_all(date: str) -> str:
    """Return tenure(1): every word, the exit codes, environment and files."""
    parser = overview()
    lines = [*_head("tenure", "leases, messages and their audit over one shared directory", date)]
    lines += [r"\fBtenure\fR \fICOMMAND\fR [\fIARGUMENT\fR ...]", ".br", r"\fBtenure\fR \fB\-\-version\fR"]
    lines += [".SH DESCRIPTION", escaped(parser.description or ""), ".SH COMMANDS"]
    for word, (_, summary) in FAMILIES.items():
        lines += [".TP", rf"\fBtenure\-{escaped(word)}\fR(1)", escaped(summary)]
    lines += [".SH EXIT STATUS"]
    for code, meaning in exit_codes():
        lines += [".TP", rf"\fB{code}\fR", escaped(meaning)]
    lines += [".SH ENVIRONMENT", ".TP", r"\fBTENURE_ROOT\fR", escaped("the root, where --root does not name one")]
    lines += [".SH FILES"]
    for path, what in FILES:
        lines += [".TP", rf"\fI{escaped(path)}\fR", escaped(what)]
    return "\n".join([*lines, *_see_also("")]) + "\n"


def exit_codes() -> list[tuple[str, str]]:
    """Return the table of docs/exit-codes.md: a code, and what it means."""
    table = re.findall(r"^\| (\d+) \| (.+?) \| .+? \|$", EXIT_CODES.read_text(encoding="utf-8"), re.MULTILINE)
    assert table, EXIT_CODES
    return table


def manual(date: str) -> dict[str, str]:
    """Return every page by its file name."""
    pages = {"tenure.1": page_of_all(date)} | {f"tenure-{word}.1": page(word, date) for word in FAMILIES}
    marks = {"@DATE@": date, "@VERSION@": VERSION}
    for path in sorted(BY_HAND.glob("*.[1-9]")):
        text = path.read_text(encoding="utf-8")
        for mark, value in marks.items():
            text = text.replace(mark, value)
        pages[path.name] = text
    return pages


def completions() -> dict[str, str]:
    return {shell: shtab.complete(whole(), shell) for shell in COMPLETIONS}


def today() -> str:
    """Return the date of the pages: that of SOURCE_DATE_EPOCH, so that a build can be repeated, or of the changelog."""
    told = os.environ.get("SOURCE_DATE_EPOCH")
    seconds = int(told) if told else (REPOSITORY / "CHANGELOG.md").stat().st_mtime
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def write(share: Path, *, packed: bool = False) -> list[Path]:
    """Write everything below a ``share`` directory; return the files. ``packed``: pages with gzip, as Debian has it."""
    made = {f"man/man{name[-1]}/{name}": text for name, text in manual(today()).items()}
    made |= {COMPLETIONS[shell]: text for shell, text in completions().items()}
    paths = []
    for name, text in made.items():
        zipped = packed and name.startswith("man/")
        path = share / (name + ".gz" * zipped)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if zipped else text.encode())
        paths.append(path)
    return paths


if __name__ == "__main__":
    for file in write(Path(sys.argv[1])):
        print(file)
