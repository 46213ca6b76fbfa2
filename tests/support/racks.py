"""A sealed rack on a storage, for tests of packing: what its messages are, and what is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.packer import Packer, Retention
from appliance.formats.birth import BagKind
from tests.support.bags import T0, Node
from tests.support.storage import MemoryStorage
from timeagent.units import DAY, MINUTE, SECOND

if TYPE_CHECKING:
    from appliance.bag.ports import Storage
    from appliance.bag.writing import FrameFile
    from appliance.formats.paths import Rack

FILES = 4
MESSAGES = [f"{number}{letter}".encode() for number in range(1, FILES + 1) for letter in "ab"]


class SealedRack:
    """One rack of three bags with four files, the second bag with two; sealed, a minute ago."""

    def __init__(self, storage: Storage | None = None, kind: BagKind = BagKind.MAILDIR) -> None:
        self.storage: Storage = storage or MemoryStorage()
        self.node = node = Node(self.storage, kind=kind)
        self.files: list[FrameFile] = []
        for number in range(1, FILES + 1):
            payloads = [f"{number}{letter}".encode() for letter in "ab"]
            self.files.append(node.file(*payloads, sequence=number))
            node.writer.write(self.files[-1])
            node.time.advance(SECOND // 4 if number == 2 else SECOND)
        node.time.advance(MINUTE)
        self.rack: Rack = node.grid.rack(T0)
        node.sealer.seal(self.rack)

    def process(self, storage: Storage | None = None) -> Node:
        return self.node.again(storage or self.storage)

    def packer(self, storage: Storage | None = None) -> Packer:
        node = self.process(storage)
        return Packer(node.context, node.grid, node.sealer)

    def retention(self, storage: Storage | None = None) -> Retention:
        node = self.process(storage)
        return Retention(node.context, node.grid, DAY)

    def names(self) -> list[str]:
        return self.storage.list_afresh(self.rack.path) or []
