"""Every cast and every mutant that is explored.

``python -m tests.simulation.exhaustive.table`` prints what they come to, as in docs/verification-exhaustive.md.
Short ones take part in `make test`; the others are marked slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from appliance.bag import logs
from appliance.bag.closing import Authority, Closer, Sealer
from appliance.bag.horizon import Horizon
from appliance.bag.reader import Reader
from appliance.bag.writing import Committed, FrameFile, MaildirWriter, Outcome
from appliance.formats.paths import PRELOCK
from appliance.lease import ceiling, whole_shard
from appliance.lease import shard as shards
from tests.faults import test_bag_mutants as wrong
from tests.simulation.exhaustive import bag_promises as bags
from tests.simulation.exhaustive import chain_promises as chains
from tests.simulation.exhaustive.bag_casts import BagCast, closer, latest, packer, sealer, settler, writer
from tests.simulation.exhaustive.birth_casts import ONE_BIRTH, BirthCast, creator, opener
from tests.simulation.exhaustive.chain_casts import EARLY as LOW
from tests.simulation.exhaustive.chain_casts import LATE as HIGH
from tests.simulation.exhaustive.chain_casts import MIDDLE, ChainCast, contender, shard, terminator
from tests.simulation.exhaustive.lease_casts import LeaseCast
from tests.simulation.exhaustive.lease_table import LEASE_LONG, LEASE_MUTANTS, LEASE_SHORT
from tests.simulation.exhaustive.nodes import DUE, EARLY, NEXT_RACK, PAST
from tests.simulation.exhaustive.pack_table import PACK_LONG, PACK_MUTANTS, PACK_SHORT
from tests.simulation.exhaustive.tree import ABSENCES, ANY_FAULT, EVERY_VERB, PIECES, ROUGH, Mount, TreeWorld
from tests.simulation.mutant import Break
from tests.simulation.planting import Planter
from tests.support.explorer import Explored
from tests.support.mutants import plant, plant_step

type Cast = BagCast | ChainCast | BirthCast | LeaseCast

_ANEW = ChainCast((contender("a"), contender("b", extends=0, maps=(1, 1), clocks=(LOW,))))
_TWO_TO_ONE = ChainCast(
    (
        contender("a", extends=0),
        contender("b", extends=0, shard=1, clocks=(HIGH,)),
        contender("c", extends=0, maps=(2, 1), clocks=(LOW,)),
    )
)
_PRUNED_ANEW = ChainCast((contender("a", clocks=(LOW,)), terminator("t"), terminator("u")), PIECES, records_kept=1)


SHORT: dict[str, Cast] = {
    "writer, 3 closers": BagCast((writer(), closer(count=3))),
    "writer, 3 closers, in pieces": BagCast((writer(), closer(count=3)), PIECES),
    "writer, 3 closers, 1 fault": BagCast((writer(), closer(count=3)), ANY_FAULT, faults=1),
    "2 writers, 2 closers": BagCast((writer("a"), writer("b"), closer(count=2))),
    "writer, sealer, late closer": BagCast((writer(), sealer(), closer())),
    "writer, sealer, late closer, absences": BagCast(
        (writer(), sealer(), closer()), ABSENCES, decided=False, rack=False
    ),
    "writer, sealer of the next rack, late closer": BagCast((writer(), sealer("next", rack=NEXT_RACK), closer())),
    "writer, sealer, settled reader": BagCast((writer(), sealer(), settler())),
    "attempt retried, closer, 2 lost links": BagCast((writer(again=1, resolve=True), closer()), faults=2),
    "log made by 2, opened": BirthCast((creator(1), creator(2), opener())),
    "chain, 3 contenders": ChainCast((contender("a"), contender("b"), contender("c", extends=0))),
    "chain, 2 contenders, pruning": ChainCast(
        (contender("a", extends=2, clocks=(LOW,)), contender("b", extends=2)), records_kept=1
    ),
    "chain, 2 contenders, terminator": ChainCast(
        (contender("a", orderly=True), contender("b", extends=0), terminator())
    ),
    "map anew, owner, terminator, successor": ChainCast(
        (contender("a", orderly=True), terminator(), contender("b", extends=0, maps=(1, 1), clocks=(LOW,)))
    ),
    "map anew, 2 chains become 1, owner, 2 successors": ChainCast(
        (
            contender("a", extends=0, shard=1),
            contender("b", extends=0, maps=(2, 1), clocks=(LOW,)),
            contender("c", extends=0, maps=(2, 1), clocks=(LOW,)),
        )
    ),
    "chain, 2 shards": ChainCast((shard("a"), shard("b"))),
    **PACK_SHORT,
    **LEASE_SHORT,
}

LONG: dict[str, Cast] = {
    "writer, 3 closers, 2 faults, in pieces": BagCast(
        (writer(), closer(count=3)), Mount(pieces=True, faults=EVERY_VERB), faults=2
    ),
    "writer, 3 closers, absences, in pieces": BagCast((writer(), closer(count=3)), ROUGH, decided=False, rack=False),
    "2 writers, 2 closers, in pieces": BagCast((writer("a"), writer("b"), closer(count=2)), PIECES),
    "2 writers, 2 closers, 1 fault": BagCast((writer("a"), writer("b"), closer(count=2)), ANY_FAULT, faults=1),
    "writer, sealer, late closer, in pieces": BagCast((writer(), sealer(), closer()), PIECES),
    "writer, sealer, late closer, 1 fault": BagCast((writer(), sealer(), closer()), ANY_FAULT, faults=1),
    "writer, sealer, late closer, any clock": BagCast(
        (
            writer(clocks=(EARLY, PAST)),
            sealer(clocks=(EARLY, DUE, PAST)),
            closer(clocks=(EARLY, DUE, PAST)),
        ),
        Mount(server_clocks=(DUE, PAST)),
        decided=False,
    ),
    "writer, 2 sealers, late closer": BagCast((writer(), sealer(count=2), closer())),
    "writer, sealer, sealer of the next rack, late closer": BagCast(
        (writer(), sealer(), sealer("next", rack=NEXT_RACK), closer())
    ),
    "writer, sealer, 2 settled readers": BagCast((writer(), sealer(), settler(count=2))),
    "writer, sealer, latest reader": BagCast((writer(), sealer(), latest())),
    "writer, closer, settled reader, latest reader": BagCast((writer(), closer(), settler(), latest())),
    "writer, sealer, settled reader, 1 fault": BagCast((writer(), sealer(), settler()), ANY_FAULT, faults=1),
    "writer, closer, latest reader, 1 fault": BagCast((writer(), closer(), latest()), ANY_FAULT, faults=1),
    "2 writers, sealer, closer": BagCast((writer("a"), writer("b"), sealer(), closer())),
    "attempt retried, closer, sealer, 1 lost link": BagCast(
        (writer(again=1, resolve=True), closer(), sealer()), faults=1
    ),
    "attempt retried, closer, sealer, 2 lost links": BagCast(
        (writer(again=1, resolve=True), closer(), sealer()), faults=2
    ),
    "log made by 3, 1 fault": BirthCast(
        (creator(1), creator(2), creator(5)), Mount(pieces=True, absences=True, faults=EVERY_VERB), faults=1
    ),
    "map anew, 2 terminators, pruning, in pieces": _PRUNED_ANEW,
    "map anew, terminator, successor, pruning, in pieces": ChainCast(
        (
            contender("a", extends=2, clocks=(LOW,)),
            terminator(),
            contender("b", extends=0, maps=(1, 1), clocks=(LOW,)),
        ),
        PIECES,
        records_kept=1,
    ),
    "map anew, owner, terminator, successor, 1 fault": ChainCast(
        (contender("a", extends=0), terminator(), contender("b", extends=0, maps=(1, 1), clocks=(LOW,))),
        ANY_FAULT,
        faults=1,
    ),
    "map anew, 2 owners, 2 successors of 2": ChainCast(
        (
            contender("a", extends=0),
            contender("b", extends=0, shard=1),
            contender("c", extends=0, maps=(2, 2), clocks=(LOW,)),
            contender("d", extends=0, maps=(2, 2), shard=1, clocks=(LOW,)),
        )
    ),
    "map anew twice, owner, successor, successor of that": ChainCast(
        (
            contender("a", extends=0),
            contender("b", extends=0, maps=(1, 2), clocks=(LOW,)),
            contender("c", extends=0, maps=(1, 2, 1), clocks=(LOW,)),
        )
    ),
    "chain, 3 contenders that extend": ChainCast(tuple(contender(name) for name in "abc")),
    "chain, 3 contenders, 3 clocks": ChainCast(tuple(contender(name, clocks=(LOW, MIDDLE, HIGH)) for name in "abc")),
    "chain, 3 contenders, in pieces": ChainCast(tuple(contender(name) for name in "abc"), PIECES),
    "chain, 3 contenders, 1 lost link": ChainCast(tuple(contender(name) for name in "abc"), faults=1),
    "chain, 3 contenders, orderly": ChainCast(tuple(contender(name, orderly=True) for name in "abc")),
    "chain, 2 contenders, orderly, 1 fault": ChainCast(
        tuple(contender(name, orderly=True) for name in "ab"), ANY_FAULT, faults=1
    ),
    "chain, 2 contenders, orderly, 2 lost links": ChainCast(
        tuple(contender(name, orderly=True) for name in "ab"), faults=2
    ),
    "chain, 2 contenders, any clock, pruning": ChainCast(
        (contender("a", extends=2), contender("b", extends=2)), records_kept=1
    ),
    "chain, restart on the node, third contender, pruning": ChainCast(
        (contender("a1", node="a", extends=2), contender("a2", node="a"), contender("b")), records_kept=1
    ),
    "chain, restart on the node, pruning, in pieces": ChainCast(
        (contender("a1", node="a", extends=2), contender("a2", node="a", extends=2)), PIECES, records_kept=1
    ),
    "chain, 2 contenders, 2 terminators": ChainCast(
        (contender("a", orderly=True), contender("b"), terminator("t"), terminator("u"))
    ),
    "chain, 2 shards, 1 fault": ChainCast((shard("a"), shard("b")), ANY_FAULT, faults=1),
    "chain, 3 shards": ChainCast((shard("a"), shard("b"), shard("c", orderly=False))),
    **PACK_LONG,
    **LEASE_LONG,
}

VERY_LONG: dict[str, Cast] = {
    "writer, sealer, settled reader, latest reader": BagCast((writer(), sealer(), settler(), latest())),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong step, where it is explored, and the promise that it breaks."""

    apply: Callable[[pytest.MonkeyPatch], None]
    cast: Cast
    breaks: str


def _instead(owner: type, step: str, mistake: Callable[..., object]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: plant_step(patch, owner, step, mistake)


def _in_chain(function: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: plant(patch, ceiling, function, old, new)


def _in_shard(function: str, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: plant(patch, shards, function, old, new)


def _in(*breaks: Break) -> Callable[[pytest.MonkeyPatch], None]:
    def planted(patch: pytest.MonkeyPatch) -> None:
        planter = Planter(patch)
        for each in breaks:
            planter.plant(*each)

    return planted


def rack_looked_at_before_publishing_only(self: MaildirWriter, file: FrameFile) -> Outcome:
    if self._authority.rack_begun(file.bag.rack):
        return _write(self, file)
    self._publish(file)
    seen = self._storage.look(file.bag.path, (file.name.text(), PRELOCK))
    return Committed() if seen and PRELOCK not in seen else self._look(file)


_write = MaildirWriter.write


def directory_gone_means_not_closed(self: MaildirWriter, file: FrameFile) -> Outcome:
    return Committed() if self._storage.look(file.bag.path, ()) is None else _look(self, file)


_look = MaildirWriter._look

_BORN = "context.storage.publish(_path(name), raw, context.tmp(name))"

_CLOSING = BagCast((writer(), closer()), decided=False)
_CLOSING_TWICE = BagCast((writer(), closer(count=2)), decided=False)
_SEALING = BagCast((writer(), sealer()), decided=False)
_LATE = BagCast((writer(), sealer(), closer()), decided=False)
_CHAIN = ChainCast((contender("a"), contender("b")))

MUTANTS: dict[str, Mutant] = {
    "bag listed before its prelock": Mutant(
        _instead(Closer, "help", wrong.list_before_prelock), _CLOSING, bags.COMMITTED_LISTED
    ),
    "EEXIST of the lock's link taken for the own content": Mutant(
        _instead(Closer, "help", wrong.trust_own_list), _CLOSING_TWICE, bags.CLOSERS_AGREE
    ),
    "lock file replaced": Mutant(_instead(Closer, "_promise", wrong.replace_the_lock), _CLOSING_TWICE, bags.ONE_LOCK),
    "looked at before publishing": Mutant(
        _instead(MaildirWriter, "write", wrong.look_before_publish), _CLOSING, bags.COMMITTED_LISTED
    ),
    "bag not looked at": Mutant(
        _instead(MaildirWriter, "_look", wrong.no_look_at_the_bag), _CLOSING, bags.COMMITTED_LISTED
    ),
    "rack not looked at": Mutant(
        _instead(MaildirWriter, "_look", wrong.no_look_at_the_rack), _SEALING, bags.COMMITTED_LISTED
    ),
    "rack looked at before publishing only": Mutant(
        _instead(MaildirWriter, "write", rack_looked_at_before_publishing_only), _SEALING, bags.COMMITTED_LISTED
    ),
    "late taken for not committed": Mutant(
        _instead(MaildirWriter, "_look", wrong.late_means_not_committed), _CLOSING, bags.NEVER_LISTED
    ),
    "EEXIST of the own file taken for another's": Mutant(
        _instead(MaildirWriter, "write", wrong.eexist_is_not_ours),
        BagCast((writer(again=1), closer()), decided=False),
        bags.NEVER_LISTED,
    ),
    "failed publication taken for not committed": Mutant(
        _instead(MaildirWriter, "_after_doubt", wrong.doubt_is_not_committed),
        BagCast((writer(), closer()), faults=1),
        bags.NEVER_LISTED,
    ),
    "one look after a failed publication": Mutant(
        _instead(MaildirWriter, "_after_doubt", wrong.one_look_after_doubt),
        BagCast((writer(), closer()), PIECES, faults=1),
        bags.COMMITTED_LISTED,
    ),
    "directory gone taken for not closed": Mutant(
        _instead(MaildirWriter, "_look", directory_gone_means_not_closed),
        BagCast((writer(), sealer(), packer()), decided=False),
        bags.COMMITTED_LISTED,
    ),
    "lock believed without a look at the rack": Mutant(
        _instead(Authority, "answer", wrong.lock_without_rack), _LATE, bags.CLOSERS_AGREE
    ),
    "rack looked at before the lock was read": Mutant(
        _instead(Authority, "close", wrong.rack_looked_at_before_the_lock), _LATE, bags.CLOSERS_AGREE
    ),
    "rack listed before its prelock": Mutant(
        _instead(Sealer, "_begin_and_list", wrong.rack_listed_before_its_prelock), _SEALING, bags.COMMITTED_LISTED
    ),
    "rack sealed without closing its bags": Mutant(
        _instead(Sealer, "_seal_one", wrong.seal_without_closing), _SEALING, bags.READ_ONCE
    ),
    "racks sealed out of order": Mutant(
        _instead(Sealer, "_seal_up_to", lambda self, rack: self._seal_one(rack)),
        BagCast((writer(), sealer("next", rack=NEXT_RACK)), decided=False),
        bags.IN_ORDER,
    ),
    "empty bags not closed": Mutant(
        _instead(Horizon, "step", wrong.skip_empty_bags),
        BagCast((writer(), settler()), decided=False),
        bags.SETTLED_CLOSED,
    ),
    "open bags read without a look": Mutant(
        _instead(Reader, "_open_bag", wrong.latest_without_a_look),
        BagCast((writer(), closer(), latest()), PIECES, decided=False),
        bags.LATEST_FINAL,
    ),
    "nothing is looked at afresh": Mutant(
        lambda patch: patch.setattr(TreeWorld, "revalidates", False),
        BagCast((writer(files=2), closer()), ABSENCES, decided=False),
        bags.COMMITTED_LISTED,
    ),
    "own birth believed": Mutant(
        lambda patch: plant(patch, logs, "create_log", _BORN, f"{_BORN}\n    return birth"),
        BirthCast((creator(1), creator(2))),
        ONE_BIRTH,
    ),
    "no look after linking a ceiling": Mutant(
        _in_chain("look_for", "numbers[-1] > number", "not numbers[-1]"),
        ChainCast((contender("a", extends=2), contender("b", extends=1)), records_kept=1),
        chains.ONE_OWNER,
    ),
    "EEXIST of a ceiling ignored": Mutant(
        _in_chain(
            "link_record",
            "not port.link(number, data) and (must_win or port.read(number) != data)",
            "port.link(number, data) and False",
        ),
        _CHAIN,
        chains.ONE_OWNER,
    ),
    "ceiling may fall": Mutant(
        _in_chain(
            "CeilingChain._next_record",
            "max(before_ns, floor_ns, settle_to_ns)",
            "0",
        ),
        _CHAIN,
        chains.CEILINGS_GROW,
    ),
    "ceiling used before it is linked": Mutant(
        _in_chain(
            "CeilingChain._next_record",
            "return _signed(self._identity, number + 1, kind, ceiling, begins, self._time, self._signer)",
            "self.ceiling_ns = ceiling\n"
            "    return _signed(self._identity, number + 1, kind, ceiling, begins, self._time, self._signer)",
        ),
        ChainCast((contender("a"), contender("b")), faults=2),
        chains.OWN_RECORD,
    ),
    "successor takes a running record's floor": Mutant(
        _in_chain(
            "_after",
            "record.kind is CeilingKind.RUNNING",
            "False",
        ),
        _CHAIN,
        chains.ONE_OWNER,
    ),
    "linked after a terminal record": Mutant(
        _in_chain(
            "CeilingChain._begins",
            "record.kind is CeilingKind.TERMINAL",
            "False",
        ),
        ChainCast((contender("a"), terminator())),
        chains.TERMINAL_LAST,
    ),
    "terminal record with the floor of the run": Mutant(
        _in_chain("_after", "record.kind is CeilingKind.RUNNING", "record is None"), _ANEW, chains.ONE_OWNER
    ),
    "terminal record not looked at": Mutant(
        _in_chain(
            "Succession._ended",
            "seen = number + 1 if port.link(number + 1, last.data) else 0",
            "return begins if port.link(number + 1, last.data) else InDoubt('taken')",
        ),
        ChainCast((contender("a", extends=2), terminator()), records_kept=1),
        chains.ALL_ENDED,
    ),
    "terminal record believed at first sight": Mutant(
        _in_chain("Succession._ended", "seen == number", "number"), _PRUNED_ANEW, chains.ALL_ENDED
    ),
    "chain of a new map begun before the old ones have ended": Mutant(
        _in_chain(
            "Succession.beginning",
            "next((each for each in ended if isinstance(each, InDoubt)), None)",
            "None if not ended or any((isinstance(each, Beginning) for each in ended)) else ended[0]",
        ),
        ChainCast(
            (contender("a", extends=0, shard=1), contender("b", extends=0, maps=(2, 1), clocks=(LOW,))),
            ANY_FAULT,
            faults=1,
        ),
        chains.ALL_ENDED,
    ),
    "one old chain forgotten": Mutant(
        _in_chain("Succession.beginning", "self.predecessors(chain)", "self.predecessors(chain)[:1]"),
        _TWO_TO_ONE,
        chains.ALL_ENDED,
    ),
    "lowest floor of the old chains": Mutant(
        _in_chain(
            "Succession.beginning", "max(each.floor_ns for each in numbers)", "min(each.floor_ns for each in numbers)"
        ),
        _TWO_TO_ONE,
        chains.ONE_OWNER,
    ),
    "chain of a new map begun with nothing": Mutant(
        _in_chain("CeilingChain._begins", "self._origin()", "NOTHING_BEFORE"), _ANEW, chains.ALL_ENDED
    ),
    "orderly record without fences": Mutant(
        _in_shard(
            "Shard._link_end",
            "max(floor, fence, self._eviction.floor_ns, alone)",
            "max(floor, self._eviction.floor_ns, alone)",
        ),
        ChainCast((shard("a"), shard("b"))),
        chains.FENCES_GROW,
    ),
    "floor of the run before forgotten": Mutant(
        _in(
            (
                whole_shard,
                "Eviction.memory",
                "Memory(fence=0, floor_ns=self.floor_ns, settle_to_ns=self.settle_to_ns, hints=hints)",
                "Memory(fence=0, floor_ns=0, settle_to_ns=self.settle_to_ns, hints=hints)",
            )
        ),
        ChainCast((shard("a"), shard("b"))),
        chains.ONE_OWNER,
    ),
    **{name: Mutant(_in(*where), cast, breaks) for name, (where, cast, breaks) in PACK_MUTANTS.items()},
    **{name: Mutant(_in(where), cast, breaks) for name, (where, cast, breaks) in LEASE_MUTANTS.items()},
}


def explored(
    cast: Cast, patch: pytest.MonkeyPatch, *, breadth_first: bool = False, states_max: int = 3_000_000
) -> Explored:
    """Explore a cast; ``patch`` takes back what it changes."""
    if isinstance(cast, ChainCast):
        patch.setattr(ceiling, "RECORDS_KEPT", cast.records_kept)
    return cast.explorer(breadth_first=breadth_first, states_max=states_max).run()


def _print_casts() -> None:
    print("| cast | states | transitions | seconds | result |\n|---|---:|---:|---:|---|")
    for name, cast in {**SHORT, **LONG, **VERY_LONG}.items():
        with pytest.MonkeyPatch.context() as patch:
            began = time.perf_counter()
            found = explored(cast, patch, states_max=20_000_000)
            seconds = time.perf_counter() - began
        result = "**bound hit**" if found.bounded else found.breaches[0].promise if found.breaches else "holds"
        print(f"| {name} | {found.states:,} | {found.transitions:,} | {seconds:.1f} | {result} |", flush=True)


def _print_mutants() -> None:
    print("| mutant | killed by | states until then |\n|---|---|---:|")
    for name, mutant in MUTANTS.items():
        with pytest.MonkeyPatch.context() as patch:
            mutant.apply(patch)
            found = explored(mutant.cast, patch, breadth_first=True)
        killer = found.breaches[0].promise if found.breaches else "**survives**"
        print(f"| {name} | {killer} | {found.states:,} |", flush=True)


if __name__ == "__main__":
    _print_mutants()
    _print_casts()
