"""What a root, or a store of logs, is named by: a directory or an address in an object store; and what is there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from timeagent.errors import BadRequest

from .placed import PlacedStorage
from .posix import PosixStorage
from .storage import Storage

type Root = Path | str
"""A directory, absolute; or an address, which is a text."""

_ADDRESS: Final = re.compile(r"(s3|gs|az)://[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


def is_address(text: str | os.PathLike[str]) -> bool:
    """Whether a root's name is meant as an address in an object store."""
    return isinstance(text, str) and "://" in text


def parse_root(named: str | os.PathLike[str]) -> Root:
    """Return the root that a text or path names. Raises BadRequest for an address that is none. Touches nothing."""
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


def storage_at(root: Root) -> Storage:
    """Return the storage at a root. Touches nothing yet. Raises BadConfiguration where a library is missing."""
    if isinstance(root, Path):
        return PosixStorage(root)
    from .bucket import RemoteBucket  # noqa: PLC0415 - who has a directory need not load it
    from .objects import ObjectStorage  # noqa: PLC0415 - as above

    return ObjectStorage(RemoteBucket(root))


def cluster_storage_at(root: Root) -> Storage:
    """Return the storage of the cluster at a root, with the stores that its logs are in; as ``storage_at``."""
    return PlacedStorage(storage_at(root), lambda named: storage_at(parse_root(named)))
