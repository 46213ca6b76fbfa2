"""A bucket of S3, Google or Azure, by ``obstore``: the only module of the appliance that knows it.

The library repeats what a server refuses for the moment (503, 429, connections that break), and lets a put that gets no
answer in time fail: whether it was done is not known then. Keys and endpoints come from where the library looks for
them, for S3 the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...) and the machine's role.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from timeagent.errors import BadConfiguration, Environment

from .objects import ObjectStatus

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

_CLIENT: Final[ClientConfig] = {"timeout": "10s", "connect_timeout": "5s", "allow_http": True}
_RETRIES: Final[RetryConfig] = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}


class RemoteBucket:
    """A Bucket at an address. A child after fork needs one of its own."""

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
                return bytes(self._library.get(self._store, key).bytes())
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
        return [path.rpartition("/")[2] for path in paths]

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
        return Environment("store-failed", said, hint="the request may or may not have been done: ask again")


def _said(problem: Exception) -> str:
    """Return what the library says, without the source of its own objects that it adds."""
    return " ".join(str(problem).partition("\n\nDebug source:")[0].split())[:300]
