"""Each condition of the columns is needed: without it, some planted fault is judged otherwise than by rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from auditor.audit import Options, audit
from auditor.columns import domains, frames, ledgers, witnesses
from auditor.evidence.signatures import Signatures
from auditor.evidence.tree import Tree
from auditor.report.formats import json_bytes
from tests.fault_injection.plants import all_plants
from tests.fault_injection.shard import Shard
from tests.fault_injection.tree import ClusterTree
from tests.fault_injection.writer import Writer
from tests.support.mutants import plant
from tests.unit.test_auditor_shortcuts import OWN
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import ModuleType

    from tests.fault_injection.tree import Change


def one_lease(
    root: Path,
    *,
    settle_to: tuple[int, int] = (0, 0),
    beyond_ns: int = 0,
    moved: int = 0,
    late: bool = False,
    change: Change | None = None,
    named: str = "",
) -> None:
    """A lease and a frame, the one or the other not as it should be, and the lease of the same domain after it."""
    tree = ClusterTree(root)
    grid, shard, writer = tree.log(), Shard(tree), Writer(tree)
    tree.advance(3 * SECOND)
    early = tree.nodes[writer.node].time.token().encode()
    tree.advance(900 * MS)
    first, after = ({"settle_to_ns": tree.now_ns + each if each < 0 else each} for each in settle_to)
    if beyond_ns:
        first["expiry_ns"] = tree.now_ns + tree.policy.lease_term_max_ns + beyond_ns
    lease = shard.grant("alice", writer, change=first)
    lease.signed = msgspec.structs.replace(lease.signed, index=lease.signed.index + moved)
    tree.advance(20 * MS)
    path = root / writer.publish(grid, lease, change=change)
    if named:
        path.rename(path.with_name(path.name.replace(writer.node, named, 1)))
    if late:
        lease.written_time = early
    shard.end(lease, states={"settle_to_ns": lease.witness.settle_to_ns})
    tree.advance(20 * MS)
    heir = shard.grant("alice", writer, change=after)
    shard.end(heir, states={"settle_to_ns": heir.witness.settle_to_ns})
    tree.settle(grid)


def longer_than_the_policy_allows(root: Path) -> None:
    one_lease(root, beyond_ns=SECOND)


def at_another_place_in_its_batch(root: Path) -> None:
    one_lease(root, moved=1)


def written_before_the_log_was_settled(root: Path) -> None:
    one_lease(root, settle_to=(-500 * MS, -500 * MS))


def settle_to_above_that_of_its_own_end(root: Path) -> None:
    tree = ClusterTree(root)
    grid, shard, writer = tree.log(), Shard(tree), Writer(tree)
    tree.advance(SECOND)
    shard.end(shard.grant("alice", writer, change={"settle_to_ns": 5}), states={"settle_to_ns": 4})
    tree.settle(grid)


def settle_to_above_that_of_the_next(root: Path) -> None:
    one_lease(root, settle_to=(5, 0))


def watermark_with_a_time_before_the_grant(root: Path) -> None:
    one_lease(root, late=True)


def of_another_cluster(root: Path) -> None:
    one_lease(root, change={"cluster_id": bytes(16)})


def of_another_log(root: Path) -> None:
    one_lease(root, change={"log": "others"})


def of_another_writer(root: Path) -> None:
    one_lease(root, named="n1")


def of_later_keys(root: Path) -> None:
    one_lease(root, change={"trust_number": 2})


def settle_to_above_that_of_the_stop(root: Path) -> None:
    tree = ClusterTree(root)
    grid, shard, writer = tree.log(), Shard(tree), Writer(tree)
    tree.advance(SECOND)
    shard.end(shard.grant("alice", writer, change={"settle_to_ns": 5}), states={"settle_to_ns": 5})
    shard.stop_orderly()
    tree.settle(grid)


CRAFTED = (
    settle_to_above_that_of_the_stop,
    of_another_cluster,
    of_another_log,
    of_another_writer,
    of_later_keys,
    longer_than_the_policy_allows,
    at_another_place_in_its_batch,
    written_before_the_log_was_settled,
    settle_to_above_that_of_its_own_end,
    settle_to_above_that_of_the_next,
    watermark_with_a_time_before_the_grant,
)
"""Faults that leave everything else clean."""
BY_ROWS = Options(columns=False)
BAGS = "_Batch.within_bags"
FIT = "_fit"
GOOD = "Witnesses.good"
PLACES = "_Batch._check_places"
STATEMENTS = "_Chain.check_statements"
LINKS = "_Chain.check_links"
ENDS = "_Chain.check_ends"
STOPS = "_Chain._check_stops"
ORDER = "_Chain._check_order"
USES = "_check_uses"
TOKENS = "_Tokens.__init__"

type Mutant = tuple[ModuleType, str, str, str, tuple[str, ...]]

MUTANTS: dict[str, Mutant] = {
    "before the bag": (frames, BAGS, "cut.first >= start", "True", ("timestamp-outside-bag", "own")),
    "after the bag": (frames, BAGS, "cut.last < end", "True", ("timestamp-outside-bag", "own")),
    "too early for its time": (frames, BAGS, "cut.first >= tokens.midpoint - allowed", "True", ("r1-breach", "own")),
    "too late for its time": (frames, BAGS, "cut.last <= tokens.midpoint + allowed", "True", ("r1-breach", "own")),
    "the floor": (frames, FIT, "witnesses.floor[which] < batch.cut.first[frame]", "True", ("timestamp-below-floor",)),
    "the expiry": (frames, FIT, "batch.cut.last[frame] < witnesses.expiry[which]", "True", ("timestamp-after-expiry",)),
    "the term": (witnesses, GOOD, "self.expiry <= midpoint + term_ns_max + radius", "True", ("crafted",)),
    "a witness before its frame": (
        frames,
        FIT,
        "tokens.latest[frame] >= signed[which]",
        "True",
        ("r2-breach",),
    ),
    "the batch": (witnesses, GOOD, "self._holds", "True", ("crafted",)),
    "the batch's signature": (witnesses, GOOD, "known.refusal is None", "True", ("forged-witness", "forged-time")),
    "held": (witnesses, "usual", "witness.phase is Phase.HELD", "True", ("tentative-write",)),
    "may write": (witnesses, "usual", "witness.mode.may_write", "True", ("read-mode-write",)),
    "the holder": (
        frames,
        FIT,
        "witnesses.incarnation[which] == batch.incarnation[frame]",
        "True",
        ("foreign-lease", "own"),
    ),
    "under a session lease": (
        witnesses,
        "usual",
        "witness.session_id is None",
        "True",
        ("session-witness-missing", "ended-lease-write"),
    ),
    "the frame's time": (frames, TOKENS, "known.refusal is None", "True", ("forged-time",)),
    "closed before it was signed": (
        frames,
        TOKENS,
        "(stamp is None or r2_holds(token, stamp, effect_covers_cause=True))",
        "True",
        ("r2-breach",),
    ),
    "where it belongs": (
        frames,
        PLACES,
        "writer == wanted[file]",
        "True",
        ("crafted",),
    ),
    "which cluster": (
        frames,
        PLACES,
        "(cluster == numbers(b''.join([lock.cluster_id for lock in locks]), 2)[file]).all(axis=1)",
        "True",
        ("crafted",),
    ),
    "which log": (frames, PLACES, "log == wanted_log[file]", "True", ("crafted",)),
    "the keys": (
        frames,
        PLACES,
        "self.trust_number <= np.array([lock.trust_number for lock in locks])[file]",
        "True",
        ("crafted",),
    ),
    "the holder's node": (frames, FIT, "node[which] == batch.writer[frame]", "True", ("own",)),
    "the policy": (
        frames,
        PLACES,
        "heads.number('policy_number') == np.array([lock.policy_number for lock in locks])[file]",
        "True",
        ("stale-lock",),
    ),
    "the policy that is named": (
        frames,
        PLACES,
        "heads.number('policy_number') == np.array([lock.policy_number for lock in locks])[file]",
        "heads.number('policy_number') <= np.array([lock.policy_number for lock in locks])[file]",
        ("policy-misnamed",),
    ),
    "the ceiling": (domains, STATEMENTS, 'rows["expiry"] > heads.ceiling[head]', "False", ("grant-above-ceiling",)),
    "the term of a grant": (
        domains,
        STATEMENTS,
        'rows["expiry"] > heads.midpoint[head] + term + heads.radius[head]',
        "False",
        ("term-above-policy",),
    ),
    "the shard's floor": (domains, STATEMENTS, 'low & (rows["kind"] == GRANT)', "False", ("floor-fell",)),
    "the shard's floor and the fence": (
        domains,
        STATEMENTS,
        'rows["fence"] <= heads.floor[head]',
        "False",
        ("fence-not-growing",),
    ),
    "what a renewal repeats": (
        domains,
        STATEMENTS,
        "again & (rows[column] != granted[column])",
        "False",
        ("lease-changed",),
    ),
    "what a stop covers": (domains, STOPS, "asked > self.heads.end_floor[run]", "asked < 0", ("floor-fell",)),
    "what a stop asks to be settled": (
        domains,
        STOPS,
        "settle_to > self.heads.end_settle_to[run]",
        "settle_to < 0",
        ("crafted",),
    ),
    "the owner": (domains, STATEMENTS, "layout.shard_of(names[name]) != number", "False", ("wrong-shard",)),
    "the fence": (domains, LINKS, 'after["fence"] <= before["fence"]', "False", ("fence-not-growing",)),
    "the floor of the next": (domains, LINKS, 'after["floor"] < end["floor"][later - 1]', "False", ("grant-overlap",)),
    "settle_to of the next": (
        domains,
        LINKS,
        'after["settle_to"] < end["settle_to"][later - 1]',
        "False",
        ("crafted",),
    ),
    "the floor of the end": (
        domains,
        LINKS,
        'end["floor"] < np.maximum(grants["floor"], end["watermark"])',
        "False",
        ("floor-fell",),
    ),
    "settle_to of the end": (domains, LINKS, 'end["settle_to"] < grants["settle_to"]', "False", ("crafted",)),
    "the name of a lease": (
        domains,
        STATEMENTS,
        'rows["cid"][:, 0].byteswap() != rows["fence"].astype(np.uint64)',
        "False",
        ("misnamed-lease",),
    ),
    "an expiry that falls": (
        domains,
        STATEMENTS,
        'again[1:] & (rows["expiry"][1:] < rows["expiry"][:-1])',
        "False",
        ("expiry-fell",),
    ),
    "no lease": (witnesses, "Witnesses.once_each", "found[self.frame] = True", "found[:] = True", ("leaseless-write",)),
    "the clock of the frame": (
        frames,
        BAGS,
        "tokens.radius <= policy.radius_ns_max",
        "True",
        ("radius-above-policy",),
    ),
    "the clock of the shard": (
        witnesses,
        GOOD,
        "token.radius_ns <= policy.radius_ns_max",
        "True",
        ("radius-above-policy",),
    ),
    "the clock of the watermark": (
        domains,
        ENDS,
        'ends["radius"] > widest.radius_ns_max',
        "False",
        ("radius-above-policy",),
    ),
    "how stale the frame's time is": (frames, BAGS, "tokens.staleness <= STALENESS_NS", "True", ("stale-time",)),
    "how stale the watermark's time is": (
        domains,
        ENDS,
        'ends["staleness"] > STALENESS_NS',
        "False",
        ("stale-time",),
    ),
    "a watermark without its time": (
        domains,
        ENDS,
        'ends["timed"] != (ends["watermark"] != NOTHING)',
        "False",
        ("r1-breach",),
    ),
    "no keys": (frames, PLACES, "self.trust_number >= 1", "True", ("unknown-record",)),
    "the grant before": (
        domains,
        LINKS,
        "self.suspect(self.rows[says] & other & self.told)",
        "pass",
        ("chain-gap", "chain-fork"),
    ),
    "how the lease before ended": (
        domains,
        LINKS,
        "otherwise |= self.rows[column][telling] != told_of[column]",
        "pass",
        ("lease-changed",),
    ),
    "the last frame of the lease before": (
        domains,
        LINKS,
        "(self.rows['chain_head'][telling] != told_of['chain_head']).any(axis=1)",
        "np.zeros(len(telling), np.bool_)",
        ("lease-changed",),
    ),
    "how the lease before is said to have ended": (
        ledgers,
        "_plain",
        "entry.last_ended.outcome is not LeaseOutcome.RELINQUISHED",
        "False",
        ("lease-changed",),
    ),
    "who set the floor": (domains, LINKS, "self.rows['sets']", "False", ("lease-changed",)),
    "the last frame": (
        domains,
        USES,
        "_check_last_frames(chain, used, rows['digest'][of[np.append(firsts[1:], len(of)) - 1]])",
        "pass",
        ("last-frame-mismatch",),
    ),
    "which frame is the last": (
        domains,
        USES,
        "np.append(firsts[1:], len(of)) - 1",
        "firsts",
        ("last-frame-mismatch",),
    ),
    "the expiry of what was written": (
        domains,
        ENDS,
        "self.watermark >= self.expiry",
        "np.zeros(len(ends), np.bool_)",
        ("watermark-beyond-expiry",),
    ),
    "the watermark's time": (
        domains,
        ENDS,
        'np.abs(self.watermark - ends["midpoint"]) > allowed',
        "False",
        ("r1-breach",),
    ),
    "a watermark before its grant": (
        domains,
        ENDS,
        "latest < heads.midpoint[grant] - heads.radius[grant]",
        "False",
        ("crafted",),
    ),
    "an end before its watermark": (domains, ENDS, 'said < ends["midpoint"] - ends["radius"]', "False", ("r2-breach",)),
    "the order": (
        domains,
        ORDER,
        "self.suspect(~usual | (twice & ~begins))",
        "pass",
        ("renewed-after-end", "early-grant"),
    ),
    "how many": (domains, USES, 'messages != ends["messages"]', "False", ("count-mismatch",)),
    "how far": (domains, USES, "top > chain.watermark", "False", ("watermark-below-message",)),
    "what was settled": (
        domains,
        USES,
        "chain.bad[name[_unsettled(rows, uses, cluster)]] = True",
        "pass",
        ("crafted",),
    ),
    "how it ended": (
        ledgers,
        "_plain",
        "entry.ending.outcome is LeaseOutcome.RELINQUISHED",
        "True",
        ("broken-early", "early-grant"),
    ),
    "a number used twice": (
        domains,
        "judge_writers",
        'rows["sequence"][1:] == rows["sequence"][:-1]',
        "False",
        ("sequence-reused",),
    ),
    "frames in order": (
        domains,
        "judge_writers",
        'rows["first"][1:] <= rows["last"][:-1]',
        "False",
        ("sequence-disorder",),
    ),
    "frames that are named": (domains, "judge_writers", "not there.all()", "False", ("lost-frame",)),
    "a frame before the one that it names": (domains, "judge_writers", "before.any()", "False", ("r2-breach",)),
}

SETS: dict[str, Sequence[Callable[[Path], object]]] = {"own": OWN, "crafted": CRAFTED}

type Judged = Callable[[str], list[tuple[Path, bytes]]]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """What is said by rows of the trees in which a code was planted; made when it is first asked for."""
    made: dict[str, list[tuple[Path, bytes]]] = {}
    signatures = Signatures()

    def of(code: str) -> list[tuple[Path, bytes]]:
        if code not in made:
            made[code] = []
            for story in SETS.get(code) or all_plants()[code]:
                root = tmp_path_factory.mktemp("tree")
                story(root)
                made[code].append((root, json_bytes(audit(Tree(root), signatures=signatures, options=BY_ROWS))))
        return made[code]

    return of


@pytest.mark.verify
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_hole_in_the_columns_is_seen(judged: Judged, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    module, function, old, new, codes = MUTANTS[mutant]
    trees = [each for code in codes for each in judged(code)]
    plant(monkeypatch, module, function, old, new)
    signatures = Signatures()
    assert any(json_bytes(audit(Tree(root), signatures=signatures)) != said for root, said in trees)
