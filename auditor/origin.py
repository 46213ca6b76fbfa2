"""Which cluster a part of a tree is of that has neither the marker nor a record signed by the root key."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from appliance.formats.birth import LogBirth
from appliance.formats.ceiling import open_ceiling
from appliance.formats.framing import Kind, Piece
from appliance.formats.ledger import open_block
from appliance.formats.paths import BIRTH, LOGS
from appliance.formats.stamped import open_stamped
from timeagent.canonical import decode
from timeagent.errors import Damaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .load import Tree

RECORD_BYTES_MAX = 64 * 1024
"""More than a birth or ceiling record is long."""


def named_clusters(tree: Tree) -> Iterator[bytes]:
    """Yield the clusters that birth records, ceiling records and ledgers name, whether or not signatures hold.

    Nothing is believed of it: without keys nothing in a copy can be verified, and all of it is judged as of the first.
    """
    for log in tree.logs():
        path = f"{LOGS}/{log}/{BIRTH}"
        with suppress(Damaged):
            yield decode(LogBirth, open_stamped(Kind.BIRTH, _read(tree, path), path).body, path).cluster_id
    for chained in tree.chains():
        with suppress(Damaged):
            yield open_ceiling(_read(tree, chained.path), chained.path)[0].cluster_id
    for file in tree.ledgers():
        first = next(tree.pieces(file.path), None)
        if isinstance(first, Piece):
            with suppress(Damaged):
                yield open_block(first, file.path).batch_head(file.path).cluster_id


def _read(tree: Tree, path: str) -> bytes:
    return tree.read(path, RECORD_BYTES_MAX) or b""
