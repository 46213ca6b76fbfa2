"""Which of two does the bulk work: the native core ``tenure._core``, where it was built, or the Python beside it.

The Python is the reference: what the core makes of the same input is the same, byte by byte. ``TENURE_CORE=python``
chooses the reference, ``TENURE_CORE=native`` refuses to go without the core. The only module that knows of the choice;
others ask whether ``native`` is None. The sources are in ``native/``.

Here too: libraries that take long to load, loaded when something of them is used first. Many a command needs none of
them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from .errors import BadConfiguration

__all__ = ["VARIABLE", "LazyModule", "NDArray", "NativeCore", "chosen", "native", "np", "said"]

VARIABLE: Final = "TENURE_CORE"
_CORE: Final = "tenure._core"


class NativeCore(Protocol):
    """What the core can do. None of it blocks, or touches a file."""

    LIBRARY: str
    """The libcrypto that hashes."""

    def answered(
        self,
        kinds: tuple[object, ...],
        words: tuple[bytes, ...],
        ports: tuple[Callable[..., object], ...],
        places: tuple[object, ...],
        numbers: tuple[int, ...],
        requests: Sequence[object],
        /,
    ) -> list[Any]:
        """Return the drafts of ``FastPath.answered``, which says what is in the tuples."""

    def tree(self, leaves: Sequence[bytes], /) -> list[list[bytes]]:
        """Return what ``merkle.tree`` does."""

    def replies(
        self,
        drafts: list[Any],
        granted: bytes,
        witness: bytes,
        entries: tuple[bytes, ...],
        levels: list[list[bytes]],
        rest: bytes,
        finish: Callable[[Any], object],
        /,
    ) -> list[Any]:
        """Return the replies of drafts, as ``fast_path.replies`` does. ``finish``: makes one of what is not plain.

        ``granted``, ``witness``: what a Granted and a SignedWitness begin with; ``rest``: how the latter ends.
        """

    # What readers and the auditor do with every byte and record: native/read.c says what each takes and returns.

    def cut(
        self,
        file: bytes,
        hashed: bool,  # noqa: FBT001 - the core takes positions only
        messages_max: int,
        payload_max: int,
        /,
    ) -> tuple[bytes, bytes, list[bytes]] | None:
        """Cut a file into frames: rows, digests and heads. None: it is empty, or holds something else as well."""

    def match(self, records: list[bytes], begin: int, shapes: list[tuple[bytes, bytes]], kinds: bytearray, /) -> int:
        """Write the shape of each record up to the first that has none; return the number of that one."""

    def column(self, records: list[bytes], kinds: bytes, places: bytes, width: int, /) -> bytes:
        """Return a field of each record in so many bytes, behind zeros where it has fewer."""

    def distinct(self, records: list[bytes], kinds: bytes, places: list[bytes], /) -> tuple[bytes, bytes, list[bytes]]:
        """Number the different values of fields: columns of record and number, and the values."""

    def check_paths(
        self,
        entries: list[bytes],
        paths: list[bytes],
        index: bytes,
        counts: bytes,
        roots: bytes,
        /,
    ) -> bytes:
        """Say of each leaf, in a byte, whether its path leads to the root of its tree."""


def _imported() -> NativeCore | str:
    """Return the core, or why it is not to be had."""
    try:
        # By name: no module may import what stands above it, and this one holds no Python.
        return cast("NativeCore", importlib.import_module(_CORE))
    except ModuleNotFoundError:
        return "the native core is not here"
    except ImportError as problem:
        return f"the native core cannot be loaded: {problem}"


def chosen(wanted: str) -> NativeCore | None:
    """Return the core; None: Python does the work. ``wanted``: the variable's value. Raises BadConfiguration."""
    if wanted not in ("", "native", "python"):
        raise BadConfiguration("bad-core", f"{VARIABLE} is {wanted!r}", hint="say native, python, or nothing")
    found = None if wanted == "python" else _imported()
    if isinstance(found, str) and wanted:
        hint = "make install builds it where there are cc, Python.h and openssl/evp.h"
        raise BadConfiguration("no-core", f"{VARIABLE} is {wanted!r}, and {found}", hint=hint)
    return None if isinstance(found, str) else found


native = chosen(os.environ.get(VARIABLE, ""))
"""Who does the work. Looked at whenever there is some: tests let both do the same."""


def said() -> str:
    """Return which is at work, for people; where it is Python because the core cannot be had, why."""
    if native is not None:
        return f"native ({native.LIBRARY})"
    why = None if os.environ.get(VARIABLE) == "python" else _imported()
    return f"Python ({why})" if isinstance(why, str) else "Python"


class LazyModule:
    """Stands for a module; what is taken from it is kept, and costs an attribute from then on."""

    def __init__(self, name: str) -> None:
        """Load nothing yet."""
        self._name = name

    def __getattr__(self, name: str) -> object:
        """Load the module, and return what it has by that name."""
        found: object = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")
    NDArray = "numpy.typing.NDArray"
    """For annotations only, which nobody evaluates."""
