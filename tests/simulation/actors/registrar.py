"""Who changes which keys count while everything works, and how each node comes to use its new ones: sooner or later.

A person with the root key: what is published is there at once. The end that it gives to a key lies a little ahead, as
no clock may be beyond it yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.admin.trust import issue, revoke_keys
from tests.simulation.cluster import signer
from tests.simulation.mount import SimulatedMount
from tests.simulation.scheduler import Scheduler
from timeagent.keys import Purpose
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.simulation.world import World
    from timeagent.keys import Signer
    from timeagent.units import Instant

AHEAD_NS = 150 * MS
"""More than two clocks that keep their bounds are apart."""
OVERLAPS = (None, 0, 500 * MS, 2 * SECOND)
"""How long the earlier key stays good beside the new one; None: for as long as it was to be."""


class Registrar:
    """Rotates keys of nodes, and revokes some of those that were replaced."""

    def __init__(
        self,
        world: World,
        nodes: Sequence[str],
        rotations: int,
        taken_up: Callable[[str, Purpose, Signer], object] = lambda *_: None,
    ) -> None:
        """Take whose keys change; ``rotations``: how often. ``taken_up`` is told who signs with what from then on."""
        self._world = world
        self._nodes = nodes
        self._taken_up = taken_up
        self._chance = world.scheduler.stream("registrar")
        console = SimulatedMount(world.server, "the console")
        self._console = console.scheduler = Scheduler("the console", start_ns=0, end_ns=0, steps_max=0)
        """Its own: what is done there is no step of anybody's."""
        self._records = world.founded.registers(console)
        self._taken: dict[tuple[str, Purpose], int] = {}
        """The trust record that brought the key that a node uses."""
        lasts = world.conditions.lasts_ns
        for number in range(rotations):
            at = world.scheduler.start_ns + int(self._chance.random() * 0.7 * lasts)
            self._at(at, self._rotation(number))

    def _at(self, instant: Instant, what: Callable[[], object]) -> None:
        """Let something happen at the console; its operations are the run's, as all others are."""

        def happens() -> None:
            what()
            self._world.scheduler.operations += self._console.operations
            self._console.operations = 0

        self._world.scheduler.call_at(instant, happens)

    def _rotation(self, number: int) -> Callable[[], None]:
        chance = self._chance
        node = chance.choice(self._nodes)
        purpose = chance.choice((Purpose.TIME, Purpose.TIME, Purpose.WITNESS))
        overlap = chance.choice(OVERLAPS)
        takes = int(chance.choice((0, 0, 0.2, 1.5)) * (0.5 + chance.random()) * SECOND)
        revokes = chance.random() < 0.5
        leaves = int(chance.random() * 3 * SECOND)

        def rotate() -> None:
            world = self._world
            now = world.scheduler.now
            before = world.keys[node][purpose]
            key = signer(f"{node} {purpose} {number}", real=world.founded.real)
            end = now + AHEAD_NS
            record = issue(self._records, world.founded.root, node, {purpose: key.public}, end, overlap_ns=overlap)
            world.scheduler.note("publishes", f"trust record {record}: a {purpose} key of {node}, overlap {overlap}")
            if overlap is not None:
                self._at(end + overlap, lambda: self._ends(node, purpose))
            self._at(now + takes, lambda: self._takes_up(node, purpose, key, record))
            if revokes:
                self._at(now + leaves, lambda: self._revoke(node, purpose, before))

        return rotate

    def _takes_up(self, node: str, purpose: Purpose, key: Signer, record: int) -> None:
        """Let a node use a new key: its agent does so at once, what runs a shard has to be started again."""
        world = self._world
        if record < self._taken.get((node, purpose), 0):
            return  # it uses a newer one
        self._taken[node, purpose] = record
        world.keys[node][purpose] = key
        world.scheduler.note("takes up", f"its new {purpose} key: {node}")
        self._ends(node, purpose)
        self._taken_up(node, purpose, key)
        if purpose is Purpose.TIME:
            world.times[node].rekey(key)
            return
        for process in list(world.machines[node].processes):
            if process.name.startswith("shard"):
                world.scheduler.crash(process)

    def _revoke(self, node: str, purpose: Purpose, key: Signer) -> None:
        world = self._world
        end = world.scheduler.now + AHEAD_NS
        record = revoke_keys(self._records, world.founded.root, [key.public], end)
        world.scheduler.note("publishes", f"trust record {record}: a key that was replaced is revoked")
        self._at(end, lambda: self._ends(node, purpose))

    def _ends(self, node: str, purpose: Purpose) -> None:
        """Note whose newest key is no longer good by now."""
        entries = self._records.trust(self._records.newest().trust).keys
        now, public = self._world.scheduler.now, self._world.keys[node][purpose].public
        entry = next(each for each in entries if each.public == public)
        if now >= min(entry.valid_until_ns, entry.revoked_from_ns or entry.valid_until_ns):
            self._world.history.overstayed.add(node)
