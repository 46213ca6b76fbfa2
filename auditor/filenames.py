r"""File names as text: a name is any bytes, and everything that leaves the tree is UTF-8.

Inside the auditor a path is text that can be encoded, stored and shown (control characters: ``console.printable``).
Bytes of a name that are no UTF-8 stand in it as ``\xff``; where a name holds such characters itself, the backslash of
them is written ``\x5c``. So two names never have one text, and each text leads back to its name.
"""

from __future__ import annotations

import os
import re
from typing import Final

_AMBIGUOUS: Final = re.compile(rb"\\(?=x(?:[89a-f][0-9a-f]|5c))")
_WRITTEN: Final = re.compile(rb"\\x([89a-f][0-9a-f]|5c)")


def _plain(name: str) -> bool:
    return name.isascii() and "\\" not in name


def text_of(name: str) -> str:
    """Return the text of a name, or of a path, as the operating system gave it."""
    return name if _plain(name) else text_of_bytes(os.fsencode(name))


def text_of_bytes(name: bytes) -> str:
    """Return the text of a name, or of a path, as it is stored."""
    return _AMBIGUOUS.sub(rb"\\x5c", name).decode("utf-8", "backslashreplace")


def name_of(text: str) -> str:
    """Return what the operating system calls it."""
    if _plain(text):
        return text
    return os.fsdecode(_WRITTEN.sub(lambda found: bytes([int(found[1], 16)]), text.encode()))
