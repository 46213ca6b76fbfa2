"""What all command-line families share: a command's shape, JSON and error output, progress on a terminal.

stdout is data, stderr is diagnostics. Each family is a module with a ``COMMANDS`` table; ``tenure`` imports a family
only when one of its commands is called.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from .errors import BROKEN_PIPE, INPUT_OUTPUT, INTERRUPTED, BadRequest, Environment, TenureError
from .units import Instant, rfc3339

type Argument = Callable[[argparse.ArgumentParser], object]
"""What adds a word or options to a parser."""

type Work = Callable[[argparse.Namespace], int]
"""Returns the exit code (docs/exit-codes.md); may raise TenureError."""


@dataclass(frozen=True, slots=True)
class Command:
    """One word of the command line, or a verb behind one."""

    summary: str
    add_arguments: Argument
    run: Work


def argument(names: str, text: str | None = None, **settings: Any) -> Argument:  # noqa: ANN401 - of add_argument
    """Return what adds a word (``"log LOG"``), an option (``"--wait SPAN"``) or a flag (``"--json"``), and its help."""
    name, _, metavar = names.partition(" ")
    if metavar:
        settings["metavar"] = metavar
        if name.startswith("--"):
            settings.setdefault("type", partial(_said, name))
    elif name.startswith("--") and not {"choices", "type"} & settings.keys():
        settings.setdefault("action", "store_true")
    return lambda parser: parser.add_argument(name, help=text, **settings)


def _said(option: str, value: str) -> str:
    """Return an option's value. Raises BadRequest for an empty one, which must not mean "all", or "this one"."""
    if not value:
        what = f"{option} is given an empty value, as a shell makes of a variable that is not set"
        raise BadRequest("empty-value", what, hint=f"say one, or leave {option} out")
    return value


def together(*arguments: Argument) -> Argument:
    """Return what adds these, in this order."""

    def add(parser: argparse.ArgumentParser) -> None:
        for each in arguments:
            each(parser)

    return add


def one_of(*arguments: Argument) -> Argument:
    """Return what adds these, of which only one may be given."""
    return lambda parser: together(*arguments)(parser.add_mutually_exclusive_group())  # type: ignore[arg-type]


def epilog(text: str) -> Argument:
    """Return what has the help end with a text, as it stands."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = text

    return add


def command(summary: str, run: Work, *arguments: Argument) -> Command:
    """Return a command that takes these arguments, in this order."""
    return Command(summary, together(*arguments), run)


def with_verbs(summary: str, verbs: Mapping[str, Command], *own: Argument, default: str | None = None) -> Command:
    """Return a word that is followed by a verb, and takes ``own`` before it. ``default``: the verb where none is."""

    def add_verbs(parser: argparse.ArgumentParser) -> None:
        places = parser.add_subparsers(dest="verb", metavar="VERB", required=default is None)
        for name, verb in verbs.items():
            verb.add_arguments(places.add_parser(name, help=verb.summary))

    return command(summary, lambda options: verbs[str(options.verb or default)].run(options), add_verbs, *own)


def present(options: argparse.Namespace, schema: str, fields: Mapping[str, Any], *lines: str, status: int = 0) -> int:
    """Print what a command did or found: with --json as one object, else as lines. Return its exit code, ``status``."""
    if options.json:
        print_json(schema, fields)
    else:
        say_all(lines)
        sys.stdout.flush()  # who reads a pipe is told now: a command may go on for hours
    return status


def print_json(schema: str, fields: Mapping[str, Any], *, version: int = 1) -> None:
    """Print one object with its schema and version, keys in the order given, on one line."""
    sys.stdout.write(json_bytes({"schema": schema, "version": version, **fields}).decode() + "\n")
    sys.stdout.flush()


def json_bytes(value: object) -> bytes:
    """Return a value as JSON: in its texts, bytes of file names that are no UTF-8 are shown as ``printable`` does."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def _encodable(value: object) -> object:
    match value:
        case str():
            return value.encode(errors=ESCAPED).decode()
        case list():
            return [*map(_encodable, value)]
        case dict():
            return {_encodable(name): _encodable(inner) for name, inner in value.items()}
    return value


def instant_fields(name: str, instant: Instant | None) -> dict[str, Any]:
    """Return an instant as JSON shows it: ``name`` in RFC 3339 and ``name_ns`` as an integer."""
    return {name: None if instant is None else rfc3339(instant), f"{name}_ns": instant}


def bound_fields(name: str, instant: Instant | None) -> dict[str, Any]:
    """Return a floor, a watermark or the like as JSON shows it: no text (null) for 0, which nothing has ever moved."""
    return {name: rfc3339(instant) if instant else None, f"{name}_ns": instant}


def own_name() -> str:
    """Return by which words a shell calls this command again: its name, or its path where that does not find it."""
    called = Path(sys.argv[0])
    if called.name != "tenure" or not called.exists():
        return "tenure"
    found = shutil.which("tenure")
    return "tenure" if found and called.samefile(found) else os.path.relpath(called)


def say(text: str = "") -> None:
    sys.stdout.write(text + "\n")


def say_all(lines: Iterable[str]) -> None:
    for line in lines:
        say(line)


def note(text: str) -> None:
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:  # nobody reads it, or the disk is full: what is done, and its exit code, stay what they are
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)


def guarded(work: Callable[[], int]) -> int:
    """Do a command's work and say all on stdout: the one place where what went wrong becomes words and an exit code.

    What nobody expected is raised: so is SystemExit, once what it ends is said.
    """
    try:
        try:
            status = work()
        except SystemExit:  # a help is whole only when it is out
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except TenureError as problem:
        return report_error(problem)
    except KeyboardInterrupt:
        note("tenure: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return BROKEN_PIPE
    except OSError as problem:
        return report_os_error(problem)
    except RuntimeError as problem:
        if str(problem) != "can't start new thread":
            raise
        return report_error(Environment("no-threads", str(problem), hint="raise TasksMax, LimitNPROC or ulimit -u"))
    return status


def report_error(problem: TenureError) -> int:
    """Print an error with its code and way out on stderr; return its exit code."""
    note(f"tenure: {_lines(problem.message)} [{problem.code}]")
    if problem.hint:
        note(f"  way out: {_lines(problem.hint)}")
    return problem.exit_status


def report_os_error(problem: OSError) -> int:
    """Print what the operating system refuses; return its exit code.

    What the mount does is classified where it happens; left are our own output, and files that were named.
    """
    where = "" if problem.filename is None else f"{printable(os.fsdecode(problem.filename))}: "
    note(f"tenure: {where}{problem.strerror or problem} [input-output]")
    note("  way out: see whether the path is right, and whether there is room and permission")
    return INPUT_OUTPUT


def _lines(text: str) -> str:
    return "\n".join(map(printable, _QUOTED_BYTE.sub(r"\1\\x\2", text).split("\n")))


_QUOTED_BYTE: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\udc([89a-f][0-9a-f])")
"""A byte of a name that is no UTF-8, as ``repr`` writes it."""


def whole_from(least: int) -> Callable[[str], int]:

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number of {least} or more")
        return int(text)

    return read


def printable(text: str) -> str:
    """Return text that can be shown and encoded: control characters and bytes that are no UTF-8 are escaped.

    File names and domains are whatever somebody wrote there; a terminal must not obey them.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # as Python reads a byte of a file name that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _escape(problem: UnicodeError) -> tuple[str, int]:
    assert isinstance(problem, UnicodeEncodeError)
    return "".join(map(_escaped, problem.object[problem.start : problem.end])), problem.end


ESCAPED: Final = "tenure.escaped"
"""How an encoder is told (``errors``) to escape what it cannot encode, as ``printable`` does."""
codecs.register_error(ESCAPED, _escape)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 file``, ``2,000 files``: a number with its noun, of which ``plural`` is the irregular one."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _columns() -> int:
    """Return how wide the terminal of stderr is."""
    wide = 0
    with contextlib.suppress(OSError):
        wide = os.get_terminal_size(sys.stderr.fileno()).columns
    return wide or 80  # where it does not say


class Progress:
    """One line on stderr that is rewritten in place, and gone after the block; silent where stderr is no terminal."""

    def __init__(self, label: str, total: int | None = None) -> None:
        """Start with nothing done. ``total``: how many units there are, if known."""
        self._label = label
        self._total = total
        self._shown = sys.stderr.isatty()
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def show(self, done: int, detail: str = "") -> None:
        if not self._shown:
            return
        share = f"{done}/{self._total}" if self._total else f"{done}"
        line = printable(f"{self._label}: {share} {detail}")[: _columns() - 1]
        if line != self._last:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
            self._last = line

    def done(self) -> None:
        if self._shown and self._last:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._last = ""
