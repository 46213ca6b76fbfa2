"""A checkpoint of a view: what a fold made of all settled messages below a horizon (docs/protocol/views.md).

```
views/<view>/<fold digest>/<horizon>   the digest in hexadecimal, the horizon in nanoseconds, 19 digits
views/<view>/tmp/<node>/               where files are prepared before link(2)
```

Checksummed, and neither signed nor stamped: whoever computes it gets the same bytes, and that is its proof.
"""

from __future__ import annotations

import re
from typing import Final

from timeagent.canonical import U64, Bytes16, Bytes32, Record, decode, digest, encode, encode_for_ever
from timeagent.errors import Damaged
from timeagent.units import Instant

from .framing import Kind, pack, unpack

VIEWS: Final = "views"
_HORIZON: Final = re.compile(r"[0-9]{19}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class LogStart(Record, frozen=True):
    """One log that a fold reads, and the instant before which it has no message: another log of the name differs."""

    log: str
    created_ns: U64


class FoldIdentity(Record, frozen=True):
    """What a checkpoint depends on besides the messages. Who changes what a step does, changes the version."""

    cluster_id: Bytes16
    view: str
    version: U64
    logs: tuple[LogStart, ...]
    """In order of name, each once."""
    initial: Bytes32
    """The SHA-256 of the initial state."""

    def digest(self) -> bytes:
        return digest("fold", encode(self))


class Checkpoint(Record, frozen=True):
    """The state of a view after every settled message below the horizon."""

    cluster_id: Bytes16
    view: str
    fold: Bytes32
    horizon_ns: U64
    messages: U64
    """How many messages were taken in, from the beginning."""
    state: bytes
    """As the fold encodes it."""


def checkpoint_bytes(checkpoint: Checkpoint) -> bytes:
    """Return the whole file. Raises BadRequest for a state above the limit of a piece."""
    return pack(Kind.VIEW, encode_for_ever(checkpoint))


def open_checkpoint(data: bytes, where: str) -> Checkpoint:
    """Read a checkpoint. Raises Damaged, also for one that belongs under another path than ``where``."""
    checkpoint = decode(Checkpoint, unpack(data, Kind.VIEW, where), where)
    if checkpoint_path(checkpoint.view, checkpoint.fold, checkpoint.horizon_ns) != where:
        raise Damaged(
            "view-misplaced",
            f"{where} is a checkpoint of {checkpoint.view} at {checkpoint.horizon_ns}",
            hint="delete it: checkpoints are made again",
        )
    return checkpoint


def fold_path(view: str, fold: bytes) -> str:
    return f"{VIEWS}/{view}/{fold.hex()}"


def checkpoint_path(view: str, fold: bytes, horizon_ns: Instant) -> str:
    return f"{fold_path(view, fold)}/{horizon_ns:019d}"


def parse_fold(name: str) -> bytes | None:
    """Read the name of a fold's directory; None for anything else."""
    return bytes.fromhex(name) if _DIGEST.fullmatch(name) else None


def parse_horizon(name: str) -> Instant | None:
    """Read the name of a checkpoint; None for anything else."""
    return int(name) if _HORIZON.fullmatch(name) else None
