"""An object store, and what its clients see of it: a Storage for each machine, with the production verbs over requests.

The store is the file server's truth (server.py), where a directory comes with its first object and goes with its last.
The rules are those that docs/objectstores.md asks for, and the mishaps those that it says are borne:

- one put of a name wins, for ever; nothing is replaced;
- what was put before a listing began is in it; what comes or goes while its pages are fetched may or may not be;
- a request may be late, its reply too: it takes effect at any time between call and return, and a list may be slow;
- a reply that is lost lets the library ask again, and the second put is refused though the first had won;
- a store that is busy with a name refuses a put of it, though nobody's object is there;
- what throttles for longer than the library repeats, or does not answer in time, fails: it was done, was not done, or
  will be done later; what only looks fails too;
- Last-Modified shows whole seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.objects import ObjectStatus, ObjectStorage
from appliance.bag.ports import Published
from tests.simulation.client import Client, MountMishaps
from timeagent.units import SECOND

if TYPE_CHECKING:
    from tests.simulation.server import Server


class SimulatedObjects(ObjectStorage, Client):
    """A Storage, and its own Bucket, shared by the processes of one machine."""

    def __init__(self, server: Server, name: str, mishaps: MountMishaps) -> None:
        Client.__init__(self, server, name, mishaps)
        ObjectStorage.__init__(self, self)
        self._busy_in = self._draw(mishaps.busy)

    def heal(self) -> None:
        super().heal()
        self._busy_in = self._draw(0)

    def put(self, key: str, data: bytes) -> bool:
        def make() -> bool:
            self.server.mkdir(key.rpartition("/")[0])
            return self.server.link(key, self.server.new(data)) is Published.WON

        self.scheduler.operations += 1
        self._busy_in -= 1
        if self._busy_in <= 0:
            self._busy_in = self._draw(self.mishaps.busy)
            self.repeats += 1
            self.scheduler.step("put, refused by a busy store", key, self._extra())
            return False
        made = self._change("put", key, make)
        self._repeat_in -= 1
        if self._repeat_in <= 0 and made:
            self._repeat_in = self._draw(self.mishaps.lost_reply)
            self.repeats += 1
            self.scheduler.step("put again, the reply was lost", key)
            return False
        return made

    def get(self, key: str, offset: int = 0, limit: int | None = None) -> bytes | None:
        self.scheduler.operations += 1
        self._look("get", key)
        file = self.server.find(key)
        return None if file is None else file.data[offset : None if limit is None else offset + limit]

    def status(self, key: str) -> ObjectStatus | None:
        self.scheduler.operations += 1
        self._look("look for", key)
        file = self.server.find(key)
        return None if file is None else ObjectStatus(len(file.data), file.ctime_ns // SECOND * SECOND)

    def names(self, directory: str) -> list[str]:
        """List in one page or in two: between them others go on."""
        self.scheduler.operations += 1
        self._look("list", directory)
        names = set(self.server.directories.get(directory, ()))
        if self._random() < 0.25:
            self._look("list the next page", directory)
            for name in sorted(names ^ set(self.server.directories.get(directory, ()))):
                if self._random() < 0.5:
                    names ^= {name}
        return list(names)

    def delete(self, key: str) -> None:
        def remove() -> None:
            self.server.unlink(key)
            directory = key.rpartition("/")[0]
            while directory and not self.server.directories.get(directory):
                self.server.rmdir(directory)
                directory = directory.rpartition("/")[0]

        self.scheduler.operations += 1
        self._change("delete", key, remove)
