"""Documents: tables that a program writes, between two marks; programs that they show, run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.warm import ran

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.cluster import Site

REPOSITORY = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    return [body for found, body in _BLOCK.findall(text) if found == language]


def run_program(program: str, place: str | None, site: Site, directory: Path) -> str:
    """Run a program that opens a root there, with that of a site in its place; return what it says. stderr is empty.

    ``place`` None: it opens none.
    """
    opened = program.replace(f'"{place}"', f"{str(site.root)!r}, node_dir={str(site.node_dir())!r}, allow_root=True")
    assert (opened != program) == (place is not None), f"the program opens {place}"
    done = ran("-c", [opened], cwd=directory)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def write_between(document: str, begins: str, ends: str, lines: Iterable[str]) -> None:
    """Replace what stands between two marks of a document of the repository."""
    path = REPOSITORY / document
    text = path.read_text(encoding="utf-8")
    begin, end = text.index(begins) + len(begins), text.index(ends)
    path.write_text("\n".join((text[:begin], *lines, text[end:])), encoding="utf-8")
