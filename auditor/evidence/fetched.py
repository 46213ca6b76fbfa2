"""The tree in an object store, as a copy that lasts as long as it is judged.

Every object is fetched once, a chunk at a time, into a directory below TMPDIR; then that is judged as any copy is. So
the disk needs room for the whole tree, and the bill has one request for each object. What is deleted between the
listing and its turn is not in the copy, as of a tree in use that rsync copies.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadConfiguration, Damaged, Environment

from .tree import Tree

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

_FOLDED: Final = re.compile(r"(s3|gs|az):/(?=[^/])")
_CLIENT: Final[ClientConfig] = {"timeout": "60s", "connect_timeout": "5s", "allow_http": True}
_AT_ONCE: Final = 16


def address_of(path: Path) -> str | None:
    """Return the address that a path stands for, or None: a Path makes one slash of two."""
    folded = _FOLDED.match(str(path))
    return None if folded is None else f"{folded[1]}://{str(path)[folded.end() :]}"


class FetchedTree(Tree):
    """A copy of what is at an address."""

    def __init__(self, address: str) -> None:
        """Fetch it. Blocks. Raises Environment, BadConfiguration; Damaged for names that no file can have."""
        place = Path(tempfile.mkdtemp(prefix="tenure-audit-"))
        weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        _fetch(address, place)
        super().__init__(place)
        self.said = address


def _fetch(address: str, place: Path) -> None:
    try:
        import obstore  # noqa: PLC0415 - an extra; and a directory is judged without it
    except ImportError:
        what = f"{address} needs the library obstore"
        raise BadConfiguration("no-obstore", what, hint="pip install 'tenure[s3]'") from None
    from obstore.exceptions import BaseError  # noqa: PLC0415 - as above

    try:
        store = obstore.store.from_url(address, client_options=_CLIENT)
        keys = [each["path"] for each in chain.from_iterable(obstore.list(store))]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for _ in threads.map(lambda key: _fetch_one(store, key, place), keys):
                pass
    except (BaseError, ValueError) as problem:
        what = f"{address}: " + " ".join(str(problem).partition("\n\nDebug source:")[0].split())[:300]
        raise Environment("store-failed", what, hint="check the address, the keys and the way") from None
    if not keys:
        raise Environment("no-root", f"{address} holds nothing", hint="name BUCKET/PREFIX of a cluster's root")


def _fetch_one(store: ObjectStore, key: str, place: Path) -> None:
    import obstore  # noqa: PLC0415 - loaded by now

    path = place / key
    if not path.resolve().is_relative_to(place.resolve()):
        raise Damaged("bad-name", f"an object is named {key!r}", hint="no file can be named so: move it away")
    try:
        found = obstore.get(store, key)
    except FileNotFoundError:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for chunk in found.stream():
                file.write(chunk)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Damaged(
            "bad-name", f"{key!r} is an object, and there are objects below it", hint="move one of them away"
        ) from None
