"""Tables in documents that a program writes: between two marks, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def write_between(document: str, begins: str, ends: str, lines: Iterable[str]) -> None:
    """Replace what stands between two marks of a document of the repository."""
    path = Path(__file__).parents[2] / document
    text = path.read_text(encoding="utf-8")
    begin, end = text.index(begins) + len(begins), text.index(ends)
    path.write_text("\n".join((text[:begin], *lines, text[end:])), encoding="utf-8")
