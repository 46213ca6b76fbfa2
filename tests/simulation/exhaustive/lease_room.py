"""One shard as a world to explore: holders call it, their calls fail in every way, and time passes at any moment.

The shard is the production one. A state is the calls that changed something, each with the instant at which it came:
the shard that they lead to is made anew from its beginning, once for every such list. What a call may come to:

- it is answered; or it is answered, and a copy of it comes again, at any time later or never;
- nobody hears the answer of what was done, was not done, or comes at any time later, or never.

Time has few instants, the same for the shard and for all holders: it moves on by itself, between any two steps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from appliance.formats.shardmap import ShardMap
from appliance.lease.ceiling import CeilingChain, ShardIdentity
from appliance.lease.shard import Shard
from tests.simulation.exhaustive.nodes import TIME_KEY, RememberingSigner
from tests.simulation.store import MemoryStore
from tests.support.bags import CLUSTER, POLICY
from tests.support.clocks import HandTime
from tests.support.explorer import Answer, Refusal
from tests.support.shards import ListLedger, MemoryChain
from timeagent.errors import ShardUnavailable
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from appliance.formats.witness import Entry
    from appliance.lease.wire import Reply, Request
    from tests.support.explorer import Request as Asked
    from timeagent.units import Instant

type Calls = tuple[Request, ...]
type Served = tuple[tuple[Instant, Calls], ...]

NO_ANSWER = Refusal(ShardUnavailable, "no-answer")
START: Instant = 1_000 * SECOND
WITNESS_KEY = RememberingSigner(b"w" * 32)


@dataclass(frozen=True, slots=True)
class Room:
    """What the shard has taken, what is on its way to it, and how far time has come. Immutable."""

    served: Served = ()
    on_the_way: frozenset[Calls] = frozenset()
    moment: int = 0


def _replayed(served: Served) -> tuple[tuple[Reply, ...], tuple[Entry, ...], str]:
    """Return the replies to the last call, all that was signed, in order, and what the shard remembers."""
    time, ledger = HandTime(TIME_KEY, served[0][0] if served else START), ListLedger()
    identity = ShardIdentity(CLUSTER, 1, 0, "s", b"s" * 8)
    chain = CeilingChain(MemoryChain(), time, WITNESS_KEY, POLICY, identity)
    store = MemoryStore()
    shard = Shard(
        identity, ShardMap(number=1, cluster_id=CLUSTER, owners=("s",)), POLICY,
        store=store, chain=chain, time=time, signer=WITNESS_KEY, ledger=ledger, randomness=random.Random(1),
    )  # fmt: skip
    shard.start()
    replies: list[Reply] = []
    for instant, calls in served:
        time.midpoint_ns, time._sequence = instant, 0
        shard.housekeeping()
        replies = shard.turn(list(calls))
    states = sorted((domain, repr(kept)) for domain, kept in store.states.items() if kept is not None)
    remembered = repr((states, sorted(map(repr, store.sessions.values()))))
    store.close()
    return tuple(replies), tuple(ledger.entries()), remembered


class LeaseWorld:
    """The world of one shard. ``instants``: those that time passes through."""

    def __init__(self, instants: tuple[Instant, ...]) -> None:
        self._instants = instants
        self._replayed = cache(_replayed)  # of this exploration only: another may be of a mutant

    def start(self) -> Room:
        return Room()

    def entries(self, room: Room) -> tuple[Entry, ...]:
        """Return all that the shard has signed, in order."""
        return self._replayed(room.served)[1]

    def answers(self, room: Room, request: Asked, _memory: object) -> tuple[Answer, ...]:
        verb, *rest = request
        if verb == "now":
            return (Answer(self._instants[room.moment], room),)
        if verb == "leases":
            return (Answer(self.entries(room), room),)
        assert verb == "call"
        calls: Calls = rest[0]
        after, replies = self._served(room, calls)
        return tuple(
            dict.fromkeys(
                (
                    Answer(replies, after),
                    Answer(replies, self._sent(after, calls), cost=1),
                    Answer(NO_ANSWER, after, cost=1),
                    Answer(NO_ANSWER, room, cost=1),
                    Answer(NO_ANSWER, self._sent(room, calls), cost=1),
                )
            )
        )

    def by_itself(self, room: Room) -> Iterable[tuple[str, Room]]:
        if room.moment + 1 < len(self._instants):
            yield "time passes", Room(room.served, room.on_the_way, room.moment + 1)
        for calls in sorted(room.on_the_way, key=repr):
            rest = Room(room.served, room.on_the_way - {calls}, room.moment)
            names = ", ".join(type(each).__name__ for each in calls)
            yield f"{names} is lost", rest
            yield f"{names} arrives late", self._served(rest, calls)[0]

    def _served(self, room: Room, calls: Calls) -> tuple[Room, Any]:
        """Let the shard take calls. A call that changes nothing leaves the state what it is."""
        served = (*room.served, (self._instants[room.moment], calls))
        replies, signed, remembered = self._replayed(served)
        if (signed, remembered) == self._replayed(room.served)[1:]:
            served = room.served
        return Room(served, room.on_the_way, room.moment), replies

    @staticmethod
    def _sent(room: Room, calls: Calls) -> Room:
        return Room(room.served, room.on_the_way | {calls}, room.moment)
