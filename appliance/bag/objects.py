"""Storage in an object store: the port's verbs made of five requests, each for one object or one listing.

A bag needs of storage that a name is taken once, and that who has written sees what was written before. An object
store with conditional puts and strong consistency gives both (docs/objectstores.md; ``tenure probe`` tries it out):

- every directory is there, and holds what was put into it: making one asks nothing, and none is ever ABSENT. Whatever
  is put into a directory that was removed makes it again; the seal says that it is void, as of a mount's;
- no object is ever replaced: each is put under the condition that its name is free;
- that a name is taken is believed only once it was read: a store that is busy with the name, or a repetition of our own
  put whose reply was lost, gets the same answer. What is there, and is ours byte by byte, was our own put;
- nothing is appended to: what writes on finds that the size is not expected, and begins a new file.

An Environment error means that a request may have been done, or may be done later: nothing here asks twice after one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from appliance.formats.framing import PIECE_BYTES_MAX, whole_pieces
from timeagent.errors import BadConfiguration, Environment
from timeagent.units import MINUTE, Instant, Span

from .ports import SIZE_NOT_EXPECTED, Published

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_TRIES: Final = 5


class ObjectStatus(NamedTuple):
    size: int
    """Bytes."""
    modified_ns: Instant
    """When it was put, by the store's clock, which may show whole seconds only."""


class Bucket(Protocol):
    """The requests. Each may block, and raises Environment for whatever is no answer to it."""

    def put(self, key: str, data: bytes) -> bool:
        """Put an object where there is none. False: refused, because there is one, or may be one in a moment."""

    def get(self, key: str, offset: int = 0, limit: int | None = None) -> bytes | None:
        """Return an object's bytes, or at most ``limit`` of them from an offset; None if it is not there.

        Without a limit, of one of more than PIECE_BYTES_MAX at least one byte more than that.
        """

    def status(self, key: str) -> ObjectStatus | None:
        """Return what is known of an object; None if it is not there."""

    def names(self, directory: str) -> list[str]:
        """Return the names right in a directory, those of directories in it too; "" is the root."""

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""


class ObjectStorage:
    """A Storage in a bucket. Safe to share between threads, as the bucket is."""

    listing_pause_ns: Span = 5 * MINUTE

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._fresh = itertools.count(1)

    def ensure_directory(self, path: str) -> None:
        """Do nothing: every directory is there."""

    def look(self, directory: str, names: Collection[str]) -> frozenset[str] | None:
        """Ask for one object after another: that is not one instant."""
        return frozenset(name for name in names if self._bucket.status(_key(directory, name)) is not None)

    def list_afresh(self, directory: str) -> list[str] | None:
        return sorted(self._bucket.names("" if directory == "." else directory))

    def read(self, path: str) -> bytes | None:
        data = self._bucket.get(path)
        if data is None or len(data) <= PIECE_BYTES_MAX:
            return data
        return b"".join(whole_pieces(lambda offset, limit: self._bucket.get(path, offset, limit) or b""))

    def read_each(self, directory: str, names: Sequence[str]) -> Iterator[bytes | None]:
        return (self.read(_key(directory, name)) for name in names)

    def size_of(self, path: str) -> int | None:
        status = self._bucket.status(path)
        return None if status is None else status.size

    def read_from(self, path: str, offset: int, limit: int) -> bytes | None:
        return self._bucket.get(path, offset, limit)

    def publish(self, path: str, data: bytes, tmp: str) -> Published:  # noqa: ARG002 - an object is put whole
        return Published.WON if self._is_ours(path, data) else Published.LOST

    def publish_stream(self, path: str, chunks: Iterable[bytes], tmp: str) -> Published:
        """As ``publish``: all of it is in memory, because what is put in parts is not put under a condition."""
        return self.publish(path, b"".join(chunks), tmp)

    def ensure_marker(self, path: str) -> bool:
        if self._bucket.status(path) is None:  # a head costs a tenth of a put, and most markers are there
            self._is_ours(path, b"")
        return True

    def append(self, path: str, data: bytes, expected_size: int) -> int:
        """Make a file; whatever has bytes already is not as expected."""
        if expected_size or not self._is_ours(path, data):
            raise Environment(SIZE_NOT_EXPECTED, f"{path} is there: no object is appended to", hint="begin a new file")
        return len(data)

    def unlink(self, path: str) -> None:
        self._bucket.delete(path)

    def remove_directory(self, path: str) -> bool:
        return not self._bucket.names(path)

    def server_clock(self, tmp: str) -> Instant:
        """Return when the store put a fresh object: up to a second early, where it shows whole seconds."""
        while True:
            key = f"{tmp}/{os.getpid()}.{next(self._fresh)}"
            if not self._bucket.put(key, b""):
                continue  # left by a process that had this number before, or in use on another host
            status = self._bucket.status(key)
            self._bucket.delete(key)
            if status is not None:
                return status.modified_ns

    def _is_ours(self, path: str, data: bytes) -> bool:
        """Put an object unless one is there; whether these bytes are there now."""
        for _ in range(_TRIES):
            if self._bucket.put(path, data):
                return True
            there = self._bucket.get(path, 0, len(data) + 1 if len(data) > PIECE_BYTES_MAX else None)
            if there is not None:
                return there == data
        raise Environment("store-busy", f"put {path}: refused {_TRIES} times, and there is nothing", hint="ask again")


def _key(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory not in ("", ".") else name


_CLIENT: Final[ClientConfig] = {"timeout": "10s", "connect_timeout": "5s", "allow_http": True}
_RETRIES: Final[RetryConfig] = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}


class RemoteBucket:
    """A Bucket of S3, Google or Azure at an address, by ``obstore``. A child after fork needs one of its own.

    The library repeats what a server refuses for the moment (503, 429, connections that break), and lets a put that
    gets no answer in time fail: whether it was done is not known then. Keys and endpoints come from where the library
    looks for them, for S3 the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...) and the machine's role.
    """

    def __init__(self, url: str) -> None:
        """Take the address, as ``roots.parse_root`` returned it. Asks nothing yet. Raises BadConfiguration."""
        try:
            import obstore  # noqa: PLC0415 - an extra; and who has a directory need not load it
        except ImportError:
            raise BadConfiguration(
                "no-obstore", f"{url} needs the library obstore", hint="pip install 'tenure[s3]'"
            ) from None
        from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: PLC0415 - as above

        self._url = url
        self._library = obstore
        self._problem, self._exists = BaseError, AlreadyExistsError
        try:
            self._store: ObjectStore = (
                obstore.store.S3Store.from_url(
                    url, config={"disable_bulk_delete": True}, client_options=_CLIENT, retry_config=_RETRIES
                )
                if url.startswith("s3:")
                else obstore.store.from_url(url, client_options=_CLIENT, retry_config=_RETRIES)
            )
        except (BaseError, ValueError) as problem:
            raise BadConfiguration(
                "bad-store", f"{url}: {_said(problem)}", hint="see docs/objectstores.md for addresses and keys"
            ) from None

    def put(self, key: str, data: bytes) -> bool:
        try:
            # Never in parts: no condition is asked of those.
            self._library.put(self._store, key, data, mode="create", use_multipart=False)
        except self._exists:
            return False
        except (self._problem, OSError) as problem:
            raise self._failed("put", key, problem) from None
        return True

    def get(self, key: str, offset: int = 0, limit: int | None = None) -> bytes | None:
        try:
            if limit is None:
                found = self._library.get(self._store, key)
                if found.meta["size"] <= PIECE_BYTES_MAX:
                    return bytes(found.bytes())
                limit = PIECE_BYTES_MAX + 1
            size = self._library.head(self._store, key)["size"]
            length = min(limit, size - offset)
            if length <= 0:
                return b""
            return bytes(self._library.get_range(self._store, key, start=offset, length=length))
        except FileNotFoundError:
            return None
        except (self._problem, OSError) as problem:
            raise self._failed("get", key, problem) from None

    def status(self, key: str) -> ObjectStatus | None:
        try:
            found = self._library.head(self._store, key)
        except FileNotFoundError:
            return None
        except (self._problem, OSError) as problem:
            raise self._failed("look for", key, problem) from None
        modified = found["last_modified"]
        return ObjectStatus(found["size"], int(modified.timestamp()) * 10**9 + modified.microsecond * 1_000)

    def names(self, directory: str) -> list[str]:
        try:
            found = self._library.list_with_delimiter(self._store, directory or None)
        except (self._problem, OSError) as problem:
            raise self._failed("list", directory, problem) from None
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return [path.rpartition("/")[2] for path in paths if path != directory]  # else it marks a folder

    def delete(self, key: str) -> None:
        try:
            self._library.delete(self._store, key)
        except FileNotFoundError:
            return
        except (self._problem, OSError) as problem:
            raise self._failed("delete", key, problem) from None

    def _failed(self, verb: str, key: str, problem: Exception) -> Environment:
        said = f"{verb} {self._url}/{key}: {_said(problem)}"
        if type(problem).__name__ in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError"):
            return Environment("store-refused", said, hint="check the keys, and what they may do in this bucket")
        if "invalid path" in said:  # the library lists no directory that has one
            hint = "no part of a cluster has such a key: delete or move that object, with the store's own tools"
            return Environment("foreign-key", said, hint=hint)
        return Environment("store-failed", said, hint="the request may or may not have been done: ask again")


def _said(problem: Exception) -> str:
    """Return what the library says, without the source of its own objects that it adds."""
    return " ".join(str(problem).partition("\n\nDebug source:")[0].split())[:300]
