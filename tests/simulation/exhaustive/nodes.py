"""Production nodes over explored ports, with signatures that are made and verified once each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from appliance.formats.birth import BagKind, LogBirth
from appliance.formats.lease import Holder
from appliance.formats.paths import Grid
from tests.simulation.exhaustive.tree import ExploredStorage, ExploredTime, Tree
from tests.support.bags import CLUSTER, KEYS, LOG, POLICY, T0, FixedRecords, Node, frame_file, witness
from tests.support.bags import TIME_KEY as SLOW_KEY
from tests.support.clocks import HandTime
from tests.support.storage import MemoryStorage
from timeagent.keys import Signer, Verifier
from timeagent.trust import Keyring
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from appliance.bag.writing import FrameFile
    from tests.support.explorer import Port
    from timeagent.units import Instant

GRID = Grid(
    LogBirth(
        cluster_id=CLUSTER,
        log=LOG,
        kind=BagKind.MAILDIR,
        created_ns=T0,
        span_ns=POLICY.span_ns,
        grace_ns=POLICY.grace_ns,
        rack_ns=POLICY.rack_ns,
        created_by="n1",
    )
)
RACK = GRID.rack(T0)
NEXT_RACK = GRID.next_rack(RACK)
BAG = GRID.bag(T0)
NEXT_BAG = GRID.bag(T0 + SECOND)

EARLY: Instant = T0 + 500 * MS
DUE: Instant = T0 + 9 * SECOND
"""Every bag that is written to may be closed, and the rack not sealed."""
PAST: Instant = T0 + 60 * SECOND
"""Both racks may be sealed."""


@cache
def _signed(seed: bytes, context: str, payload: bytes) -> bytes:
    return Signer(seed).sign(context, payload)


class RememberingSigner(Signer):
    """Real signatures; each is computed once, because an exploration asks for the same ones over and over."""

    def __init__(self, seed: bytes) -> None:
        super().__init__(seed)
        self.seed = seed

    def sign(self, context: str, payload: bytes) -> bytes:
        return _signed(self.seed, context, payload)


@cache
def _verified(public: bytes, context: str, payload: bytes, signature: bytes) -> bool:
    return Verifier(public).verifies(context, payload, signature)


class RememberingVerifier(Verifier):
    """Real verification, of each signature once."""

    def verifies(self, context: str, payload: bytes, signature: bytes) -> bool:
        return _verified(self.public, context, payload, signature)


class RememberingKeyring(Keyring):
    """The keys of a trust record."""

    def verifier(self, identifier: bytes) -> Verifier | None:
        entry = self._entries.get(identifier)
        return None if entry is None else RememberingVerifier(entry.public)


TIME_KEY = RememberingSigner(b"t" * 32)
assert TIME_KEY.public == SLOW_KEY.public
RECORDS = FixedRecords(keyrings={1: RememberingKeyring(KEYS)})


def node(port: Port, *instants: Instant) -> Node:
    """Return everything that works on the log, fresh, on explored ports.

    All have one name and say one time in what they sign: so lock files that list the same are the same bytes, and who
    of several made one is no difference that has to be explored.
    """
    return Node(ExploredStorage(port), "n1", ExploredTime(port, TIME_KEY, instants or (PAST,)), RECORDS, GRID)


@cache
def file_of(writer: str, bag_second: int = 0, sequence: int = 1) -> FrameFile:
    """Return one file of a writer: a whole frame of one message, under a lease of its own."""
    maker = Node(MemoryStorage(), writer, HandTime(TIME_KEY, EARLY), RECORDS, GRID)
    incarnation = writer.encode().ljust(8, b"-")
    holder = Holder(node=writer, process=1, boot=bytes(16), incarnation=incarnation)
    return frame_file(
        maker,
        (f"{sequence} of {writer}".encode(),),
        sequence=sequence,
        incarnation=incarnation,
        timestamps=(EARLY + bag_second * SECOND + sequence,),
        witnesses=(witness(maker.time, f"{writer} {sequence}", holder=holder),),
    )


def empty_log(*, rack: bool = True) -> Tree:
    """Return a tree in which nothing was written yet."""
    tree = Tree(frozenset(), frozenset({""})).with_directory(GRID.log_path)
    return tree.with_directory(RACK.path) if rack else tree
