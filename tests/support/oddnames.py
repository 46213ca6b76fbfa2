"""File names that Linux allows and programs stumble over, put wherever a name can stand in a tree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ODD_NAMES: Final = (
    b"\xff\xfe",
    b"\\xff\\xfe",  # not the one before
    b"\xed\xa0\x80",  # a surrogate, were it UTF-8
    b"two\nlines",
    b"\x1b[31mred\x1b]0;title\x07",
    b"<&\"'>]]>",
    "\u2028\u202e\ufeff\U0010ffff".encode(),
    b"%s {} ~",
    b"\x01" * 255,
    b"\xff" * 255,
)


def directories(root: Path) -> Iterator[Path]:
    """Yield the root and every directory below it."""
    yield root
    yield from sorted(path for path in root.rglob("*") if path.is_dir())


def scatter(root: Path) -> int:
    """Put a file and a directory, which holds one, of each odd name into every directory; return how many."""
    places = list(directories(root))
    for place in places:
        for name in map(os.fsdecode, ODD_NAMES):
            inner = place / os.fsdecode(os.fsencode(name)[:250] + b".dir")
            inner.mkdir()
            for path in (place / name, inner / name):
                path.write_bytes(b"x")
    return len(places) * len(ODD_NAMES)
