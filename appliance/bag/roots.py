"""Roots and stores of logs: how they are named, what is there, and the storage of a whole cluster, made of both.

A log's birth record stands at the root, and may name a store. Then all else of that log is there, under the same paths.
So whoever works on a log asks one Storage, and need not know where it is.

An address, or a directory, is a name only: another endpoint, or a file system that is not mounted, would give each
process a store of its own, and bags that contradict each other. So who made the log put the birth record in the store
too, before it was at the root; and nobody uses a store in which it does not find it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from appliance.formats.birth import open_birth, store_of
from appliance.formats.paths import BIRTH, LOGS, STORE
from timeagent.errors import BadRequest, Environment, TenureError
from timeagent.units import Instant, Span

from .ports import Published, Storage
from .posix import PosixStorage

type Root = Path | str
"""A directory, absolute; or an address, which is a text."""

_ADDRESS: Final = re.compile(r"(s3|gs|az)://[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


def is_address(text: str | os.PathLike[str]) -> bool:
    """Whether a root's name is meant as an address in an object store."""
    return isinstance(text, str) and "://" in text


def parse_root(named: str | os.PathLike[str]) -> Root:
    """Return the root that a text or path names. Raises BadRequest for an address that is none. Touches nothing."""
    if not named:
        raise BadRequest("bad-root", "the root's name is empty", hint="say which directory; `.` is the one one is in")
    if not isinstance(named, str) or not is_address(named):
        return Path(named).absolute()
    address = named.rstrip("/")
    if not _ADDRESS.fullmatch(address) or any(part in (".", "..") for part in address.split("/")):
        raise BadRequest(
            "bad-address",
            f"{named!r} is no address of an object store",
            hint="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, of letters, digits, '.', '_', '-'",
        )
    return address


def storage_at(root: Root, *, at_work: bool = False) -> Storage:
    """Return the storage at a root. Touches nothing yet. Raises BadConfiguration where a library is missing."""
    if isinstance(root, Path):
        return PosixStorage(root, at_work=at_work)
    from .objects import ObjectStorage, RemoteBucket  # noqa: PLC0415 - who has a directory need not load it

    return ObjectStorage(RemoteBucket(root))


_BELOW: Final = f"{LOGS}/"


class PlacedStorage:
    """A Storage: each path is at the root, or where its log is. Safe to share between threads, as those are.

    A verb raises Environment, naming log and store, where the store of its log cannot be asked or is another. What the
    birth record of a log says is read once.
    """

    def __init__(self, root: Storage, opened: Callable[[str], Storage]) -> None:
        """Touch nothing yet. ``opened``: return the storage of a store by its name; may raise TenureError."""
        self._root = root
        self._opened = opened
        self._logs: dict[str, Storage] = {}
        self._stores: dict[str, Storage] = {}

    @property
    def listing_pause_ns(self) -> Span:
        """Of the root, where records and new logs are looked for."""
        return self._root.listing_pause_ns

    def _at(self, path: str) -> Storage:
        if not path.startswith(_BELOW):
            return self._root
        log, _, rest = path.removeprefix(_BELOW).partition("/")
        return self._root if rest == BIRTH else self.of(log)

    def of(self, log: str) -> Storage:
        """Return where a log's bags are: who works on one log need not have each path looked at."""
        return self._logs.get(log) or self._found(log)

    def _found(self, log: str) -> Storage:
        directory = f"{LOGS}/{log}"
        birth = self._root.read(f"{directory}/{BIRTH}") if self._root.look(directory, (BIRTH,)) else None
        if birth is None:
            return self._root  # no log, or none yet
        named = store_of(open_birth(birth, f"{directory}/{BIRTH}")[0])
        self._logs[log] = storage = self._store(log, named, birth) if named else self._root
        return storage

    def _store(self, log: str, named: str, birth: bytes) -> Storage:
        directory = f"{LOGS}/{log}"
        try:
            store = self._stores.get(named) or self._stores.setdefault(named, self._opened(named))
            there = store.read(f"{directory}/{STORE}") if store.look(directory, (STORE,)) else None
        except TenureError as problem:
            raise Environment(
                "store-unreachable",
                f"the log {log!r} is in {named}, which cannot be asked: {problem.message}",
                hint=f"{problem.hint or 'see to that store'}; other logs go on without it",
            ) from None
        if there != birth:
            what = "is another log" if there else "it is not"
            raise Environment(
                "store-not-there",
                f"the log {log!r} is in {named}, and there {what}, as this machine sees it",
                hint="mount that file system at this path; of an object store check endpoint and keys",
            )
        return store

    def ensure_directory(self, path: str) -> None:
        self._at(path).ensure_directory(path)

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        """Look where the directory is; of a log's own the birth record is looked for at the root, by itself."""
        born = set(names) == {BIRTH} and directory.startswith(_BELOW) and directory.count("/") == 1
        return (self._root if born else self._at(directory)).look(directory, names)

    def list_afresh(self, directory: str) -> list[str] | None:
        return self._at(directory).list_afresh(directory)

    def read(self, path: str) -> bytes | None:
        return self._at(path).read(path)

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        return self._at(directory).read_each(directory, names)

    def size_of(self, path: str) -> int | None:
        return self._at(path).size_of(path)

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        return self._at(path).read_from(path, offset, limit)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:
        return self._at(path).publish(path, data, tmp)

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        return self._at(path).publish_stream(path, chunks, tmp)

    def ensure_marker(self, path: str) -> bool:
        return self._at(path).ensure_marker(path)

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        return self._at(path).append(path, data, expected_size)

    def unlink(self, path: str) -> None:
        self._at(path).unlink(path)

    def remove_directory(self, path: str) -> bool:
        return self._at(path).remove_directory(path)

    def server_clock(self, tmp: str) -> Instant:
        """Return the clock of the server that the bags are on."""
        return self._at(tmp).server_clock(tmp)


def cluster_storage_at(root: Root) -> Storage:
    """Return the storage of the cluster at a root, with the stores that its logs are in; as ``storage_at``."""
    return PlacedStorage(storage_at(root, at_work=True), lambda named: storage_at(parse_root(named), at_work=True))
