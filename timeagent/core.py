"""Which of two does the bulk work: the native core ``tenure._core``, where it was built, or the Python beside it.

The Python is the reference: what the core makes of the same input is the same, byte by byte. ``TENURE_CORE=python``
chooses the reference, ``TENURE_CORE=native`` refuses to go without the core. The only module that knows of the choice;
others ask whether ``native`` is None. The sources are in ``native/``.
"""

from __future__ import annotations

import importlib
import os
from typing import Final, Protocol, cast

from .errors import BadConfiguration

VARIABLE: Final = "TENURE_CORE"


class NativeCore(Protocol):
    """What the core can do. None of it blocks, or touches a file."""

    LIBRARY: str
    """The libcrypto that hashes."""

    def sha256(self, data: bytes, /) -> bytes:
        """Return the 32 bytes of the digest."""


def chosen(wanted: str) -> NativeCore | None:
    """Return the core; None: Python does the work. ``wanted``: the variable's value. Raises BadConfiguration."""
    if wanted not in ("", "native", "python"):
        raise BadConfiguration("bad-core", f"{VARIABLE} is {wanted!r}", hint="say native, python, or nothing")
    if wanted == "python":
        return None
    try:
        # By name: no module may import what stands above it, and this one holds no Python.
        return cast("NativeCore", importlib.import_module("tenure._core"))
    except ImportError as problem:
        if wanted:
            hint = "make install builds it where there are cc, Python.h and openssl/evp.h"
            raise BadConfiguration("no-core", f"the native core is not here: {problem}", hint=hint) from None
        return None


native: Final = chosen(os.environ.get(VARIABLE, ""))


def said() -> str:
    """Return which is at work, for people."""
    return "Python" if native is None else f"native ({native.LIBRARY})"
