"""From one map's ceiling chains to the next one's (docs/protocol/lease.md, "From chain to chain").

Whoever carries out a new map ends every chain of the maps before it with a terminal record. Any number of nodes may do
that at once, stop at any line, and begin again: the first terminal record of a chain wins, and nobody links after it.
One look is not enough, not even for a record that another linked: a listing that takes long can show a terminal record
in a slot that was pruned after the listing began, and not what is newest. ``polite`` may hold a terminal record back
while an owner still stops in good order: that spares everybody a wait, and nothing rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from timeagent.clock import NodeTime
from timeagent.errors import Environment, TryAgain
from timeagent.keys import KeyInUse, Signer

from ..formats.chains import CeilingKind, CeilingRecord, ceiling_of, open_ceiling
from ..formats.framing import Kind
from ..formats.shardmap import chain_of
from ..formats.stamped import sign
from .ceiling import NOTHING_BEFORE, Beginning, ChainPort, InDoubt, newest_of

LOOKS_MAX: Final = 6
"""How often a chain is looked at in one call: its owner may extend it meanwhile."""

type Polite = Callable[[CeilingRecord], str | None]
"""Says why a running record's owner is to be given time, or None."""


def newest_record(port: ChainPort) -> CeilingRecord | None:
    """Return the newest record of a chain, unjudged, or None for an empty one. Raises Environment, TryAgain, Damaged.

    For looking, and for courtesy: the chain may have gone on since.
    """
    found = newest_of(port)
    return None if found is None else open_ceiling(found[1], f"record {found[0]} of a chain")[0]


@dataclass(slots=True)
class Succession:
    """One process's share in ending chains that others follow. Not thread-safe; touches the mount."""

    cluster_id: bytes
    predecessors: Callable[[int], Sequence[int]]
    """The shards after which those begin whose chains are of a map."""
    port_of: Callable[[int, int], ChainPort]
    """The chain of a map and a place."""
    time: NodeTime
    signer: Signer | KeyInUse
    node: str
    incarnation: bytes
    polite: Polite = lambda _: None
    _known: dict[int, Beginning] = field(default_factory=dict)

    def beginning(self, chain: int) -> Beginning | InDoubt:
        """End every chain that those of a map follow, and what these follow; return what each of the map's begins with.

        The latter too: a chain may end before it has taken on the numbers of those that it follows.
        InDoubt: not all have ended yet; ask again. Idempotent. Raises BadTime, Damaged.
        """
        if chain not in self._known:
            places = [chain_of(shard) for shard in self.predecessors(chain)]
            ended = [self._ended(*place) for place in places]
            ended += [self.beginning(earlier) for earlier in sorted({earlier for earlier, _ in places})]
            doubt = next((each for each in ended if isinstance(each, InDoubt)), None)
            if doubt is not None:
                return doubt
            numbers = [NOTHING_BEFORE, *(each for each in ended if isinstance(each, Beginning))]
            self._known[chain] = Beginning(
                max(each.floor_ns for each in numbers), max(each.settle_to_ns for each in numbers)
            )
        return self._known[chain]

    def _ended(self, chain: int, shard: int) -> Beginning | InDoubt:
        """End one chain; return the numbers of its terminal record."""
        port = self.port_of(chain, shard)
        where = f"the chain of shard {shard}, map {chain}"
        seen = 0
        try:
            for _ in range(LOOKS_MAX):
                numbers = port.list_afresh()
                number = numbers[-1] if numbers else 0
                data = port.read(number) if number else None
                newest = None if data is None else ceiling_of(data, (self.cluster_id, chain, shard), number)
                if number and newest is None:
                    continue
                if newest is not None and newest.kind is CeilingKind.TERMINAL:
                    if seen == number:
                        return Beginning(newest.floor_ns, newest.settle_to_ns)
                    seen = number
                    continue
                begins = self.beginning(chain) if newest is None else _after(newest)
                why = self.polite(newest) if newest is not None and newest.kind is CeilingKind.RUNNING else None
                if isinstance(begins, InDoubt):
                    return begins
                if why is not None:
                    return InDoubt(f"{where} is not ended yet: {why}")
                seen = self._link(port, chain, shard, number + 1, newest, begins)
        except (Environment, TryAgain) as problem:
            return InDoubt(f"{where} is perhaps not ended: {problem.message}")
        return InDoubt(f"{where} goes on while it is being ended")

    def _link(
        self, port: ChainPort, chain: int, shard: int, number: int, newest: CeilingRecord | None, begins: Beginning
    ) -> int:
        """Link a terminal record; return its number, or 0 if another was faster."""
        ceiling = 0 if newest is None else newest.ceiling_ns
        token = self.time.token()
        signer = self.signer.signer_at(token.midpoint_ns)
        record = CeilingRecord(
            cluster_id=self.cluster_id,
            map_number=chain,
            shard=shard,
            number=number,
            node=self.node,
            incarnation=self.incarnation,
            kind=CeilingKind.TERMINAL,
            ceiling_ns=max(ceiling, begins.floor_ns, begins.settle_to_ns),
            floor_ns=begins.floor_ns,
            settle_to_ns=begins.settle_to_ns,
            time=token.encode(),
        )
        return number if port.link(number, sign(Kind.CEILING, record, signer)) else 0


def _after(record: CeilingRecord) -> Beginning:
    """Return what follows from a chain's newest record: the ceiling of a run, or what it says when it stopped."""
    if record.kind is CeilingKind.RUNNING:
        return Beginning(record.ceiling_ns, record.ceiling_ns)
    return Beginning(record.floor_ns, record.settle_to_ns)
