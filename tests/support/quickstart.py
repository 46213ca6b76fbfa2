"""The lines of README.md that set up a cluster, taken out of it and typed on machines, literally.

A block belongs to the machines that its first line names: `# on alpha`, `# on alpha, beta and gamma`. Two things are
done as a person would: what waits for somebody else (`tenure join`) is left running while the next block is typed,
and ``SHA256:...`` in `trust approve NODE` is replaced by what NODE's screen says.

``python -m tests.support.quickstart`` prints the lines, each after the machine that it is typed on.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    type Run = Callable[[str, str], str]
    """Type a line on a machine: (machine, line) to what it printed. Raises where it ends with another code than 0."""

SECTION: Final = "## A cluster of three"
_BLOCK: Final = re.compile(r"^```sh\n# on (?P<machines>[^\n]+)\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_BLOCK: Final = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
_APPROVES: Final = re.compile(r"\btrust approve (\S+) .*SHA256:\.\.\.")
_SHOWN: Final = re.compile(r"--fingerprint (SHA256:[A-Za-z0-9+/]{43})")
_SCREEN: Final = "/tmp/quickstart.screen"
_CODE: Final = "/tmp/quickstart.code"


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and where it is typed."""

    machine: str
    text: str


def lines(readme: str) -> list[Line]:
    """Return every line in order. Raises ValueError for a section that cannot be followed."""
    _, found, rest = readme.partition(f"\n{SECTION}\n")
    section = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    blocks = list(_BLOCK.finditer(section))
    if not found or not blocks:
        raise ValueError(f"there is no section {SECTION!r} with blocks that begin with `# on MACHINE`")
    if len(blocks) != len(_ANY_BLOCK.findall(section)):
        raise ValueError(f"a block of {SECTION!r} does not say on which machine it is typed")
    return [
        Line(machine, text)
        for block in blocks
        for machine in re.split(r", | and ", block["machines"])
        for text in block["lines"].replace("\\\n", " ").splitlines()
        if text.strip() and not text.lstrip().startswith("#")
    ]


def machines(readme: str) -> list[str]:
    """Return the machines that lines are typed on, in the order of their first."""
    return list(dict.fromkeys(line.machine for line in lines(readme)))


def follow(typed: list[Line], run: Run, pause: Callable[[], None], tries: int = 600) -> Iterator[tuple[Line, str]]:
    """Type every line; yield each with what it printed, what waits with an empty answer. ``pause``: between two looks.

    Raises RuntimeError for what waits and does not end well, or never.
    """
    waiting: list[Line] = []
    for line in typed:
        if " tenure join " in line.text:
            inner = f"sh -c {shlex.quote(line.text)} >{_SCREEN} 2>&1; echo $? >{_CODE}"
            run(line.machine, f"rm -f {_CODE}; ({inner}) </dev/null >/dev/null 2>&1 &")
            waiting.append(line)
            yield line, ""
            continue
        text = line.text
        approves = _APPROVES.search(text)
        if approves:
            text = text.replace("SHA256:...", _fingerprint(approves[1], run, pause, tries))
        yield line, run(line.machine, text)
        if approves:
            waiting = [each for each in waiting if not _ended(each, approves[1], run, pause, tries)]
    if waiting:
        raise RuntimeError(f"nobody let in {waiting[0].machine}: {waiting[0].text}")


def _fingerprint(machine: str, run: Run, pause: Callable[[], None], tries: int) -> str:
    for _ in range(tries):
        shown = _SHOWN.search(run(machine, f"cat {_SCREEN} 2>/dev/null || true"))
        if shown:
            return shown[1]
        pause()
    raise RuntimeError(f"the screen of {machine} shows no fingerprint")


def _ended(line: Line, machine: str, run: Run, pause: Callable[[], None], tries: int) -> bool:
    if line.machine != machine:
        return False
    for _ in range(tries):
        code = run(machine, f"cat {_CODE} 2>/dev/null || true").strip()
        if code:
            if code != "0":
                raise RuntimeError(f"{line.text} ended with {code}: {run(machine, f'cat {_SCREEN}')}")
            return True
        pause()
    raise RuntimeError(f"{line.text} does not end")


if __name__ == "__main__":
    for each in lines((Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")):
        print(f"{each.machine}\t{each.text}")
