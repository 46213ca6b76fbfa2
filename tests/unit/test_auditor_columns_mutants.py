"""Each condition of the columns is needed: without it, some planted fault is judged otherwise than by rules alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from auditor.columns import domains, frames, witnesses
from auditor.evidence.signatures import Signatures
from tests.fault_injection.crafted import CRAFTED
from tests.fault_injection.plants import all_plants
from tests.support.by_rules import by_columns_first, by_rules
from tests.support.mutants import plant
from tests.unit.test_auditor_shortcuts import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import ModuleType


BAGS = "FrameBatch.within_bags"
FIT = "check_witnesses"
GOOD = "Witnesses.good"
UNDER = "Witnesses.with_sessions"
PLACES = "FrameBatch._check_places"
ORDER = "_Leases.check_shape"
STATEMENTS = "_Leases.check_statements"
TOLD = "_Leases.check_ends_told"
CLAIMS = "_Leases.check_order_of_claims"
SESSIONS = "_Leases.check_sessions"
ENDS = "_Leases.check_ends"
WORD = "_Leases._unfounded"
STOPS = "_Leases._check_stops"
CONFLICTS = "_Leases.check_conflicts"
LEFT = "_Leases._check_left_over"
USES = "_check_uses"
TOKENS = "FrameTokens.__init__"

type Mutant = tuple[ModuleType, str, str, str, tuple[str, ...]]

MUTANTS: dict[str, Mutant] = {
    "before the bag": (frames, BAGS, "self.first >= start", "True", ("timestamp-outside-bag", "own")),
    "after the bag": (frames, BAGS, "self.last < end", "True", ("timestamp-outside-bag", "own")),
    "too early for its time": (frames, BAGS, "self.first >= tokens.midpoint - allowed", "True", ("r1-breach", "own")),
    "too late for its time": (frames, BAGS, "self.last <= tokens.midpoint + allowed", "True", ("r1-breach", "own")),
    "the floor": (
        frames,
        FIT,
        "witnesses.floor[witnesses.which] < batch.first[frame]",
        "True",
        ("timestamp-below-floor",),
    ),
    "the expiry": (
        frames,
        FIT,
        "batch.last[frame] < witnesses.expiry[saying]",
        "True",
        ("timestamp-after-expiry",),
    ),
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
    "under a session lease": (witnesses, UNDER, "end - at == 1", "end - at < 2", ("session-witness-missing",)),
    "twice under a session lease": (witnesses, UNDER, "end - at == 1", "end - at > 0", ("crafted",)),
    "under another's session lease": (witnesses, UNDER, "holder[of] == holder[self.which]", "True", ("crafted",)),
    "a lease that was ended alone": (
        witnesses,
        UNDER,
        "(self._told.identifiers(f'ended.{place}', 2)[of] != lease).any(axis=1)",
        "True",
        ("ended-lease-write",),
    ),
    "the expiry of a session lease": (
        witnesses,
        UNDER,
        "np.where(under, of, self.which)",
        "self.which",
        ("crafted",),
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
    "the shard's floor": (domains, STATEMENTS, "low & ~renewal", "False", ("floor-fell",)),
    "the shard's floor and the fence": (
        domains,
        CLAIMS,
        'rows["fence"] <= self.heads.floor[self.head]',
        "False",
        ("fence-not-growing",),
    ),
    "what a renewal repeats": (
        domains,
        STATEMENTS,
        "(after[column] < before[column]) | (again & (after[column] != before[column]))",
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
    "the owner": (domains, STATEMENTS, "number not in shards.shards_of(names[name])", "False", ("wrong-shard",)),
    "the fence": (domains, CLAIMS, "column == 'fence'", "False", ("fence-not-growing", "crafted")),
    "what only grows": (domains, CLAIMS, "self.bad[name[1:][same & fell]] = True", "pass", ("grant-overlap",)),
    "settle_to of what follows": (domains, CLAIMS, "('floor', 'settle_to')", "('floor',)", ("crafted",)),
    "the floor of the end": (domains, ENDS, "given & (ends['floor'] < word)", "False", ("floor-fell",)),
    "the name of a lease": (
        domains,
        STATEMENTS,
        "(named > fence) | ((named != fence) & self.begins)",
        "False",
        ("misnamed-lease",),
    ),
    "an expiry that falls": (
        domains,
        STATEMENTS,
        '(after["expiry"] < before["expiry"]) & ~after["under"]',
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
        "known.token.radius_ns <= policy.radius_ns_max",
        "True",
        ("radius-above-policy",),
    ),
    "the clock of the watermark": (
        domains,
        WORD,
        'ends["radius"] > widest.radius_ns_max',
        "False",
        ("radius-above-policy",),
    ),
    "how stale the frame's time is": (frames, BAGS, "tokens.staleness <= STALENESS_NS", "True", ("stale-time",)),
    "how stale the watermark's time is": (
        domains,
        WORD,
        'ends["staleness"] > STALENESS_NS',
        "False",
        ("stale-time",),
    ),
    "a watermark without its time": (
        domains,
        ENDS,
        "given & ~ends['timed'] & (self.watermark != floor)",
        "False & given",
        ("r1-breach",),
    ),
    "no keys": (frames, PLACES, "self.trust_number >= 1", "True", ("unknown-record",)),
    "the grant before": (
        domains,
        TOLD,
        "self.suspect_leases(grants['follows'] & wrong)",
        "pass",
        ("chain-gap", "chain-fork"),
    ),
    "how the lease before ended": (
        domains,
        TOLD,
        "otherwise |= rows[f'{who}_{column}'] != said[f'last_{column}']",
        "pass",
        ("lease-changed",),
    ),
    "the last frame of the lease before": (
        domains,
        TOLD,
        "(rows[f'{who}_head'] != said['last_head']).any(axis=1)",
        "False",
        ("lease-changed",),
    ),
    "who set the floor": (domains, TOLD, "('last', 'set_by')", "('last',)", ("lease-changed",)),
    "the last frame": (
        domains,
        USES,
        "_check_last_frames(leases, used, rows['digest'][of[np.append(firsts[1:], len(of)) - 1]])",
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
        "False",
        ("watermark-beyond-expiry",),
    ),
    "the watermark's time": (
        domains,
        WORD,
        'np.abs(self.watermark - ends["midpoint"]) > allowed',
        "False",
        ("r1-breach",),
    ),
    "a watermark before its grant": (
        domains,
        WORD,
        "latest < heads.midpoint[grant] - heads.radius[grant]",
        "False",
        ("crafted",),
    ),
    "an end before its watermark": (domains, WORD, 'said < ends["midpoint"] - ends["radius"]', "False", ("r2-breach",)),
    "nothing after an end": (
        domains,
        ORDER,
        "self.suspect(inside & ~self.told)",
        "pass",
        ("crafted",),
    ),
    "a grant at first": (
        domains,
        ORDER,
        "self.suspect(self.begins != (rows['kind'] == GRANT))",
        "pass",
        ("ungranted-lease",),
    ),
    "one at a time": (domains, CONFLICTS, "others > 0", "False", ("early-grant",)),
    "what a run left out": (
        domains,
        LEFT,
        "np.minimum(grant['floor'], grant['settle_to']) < before",
        "False & (before > 0)",
        ("grant-overlap", "floor-fell", "early-grant"),
    ),
    "broken early": (domains, ENDS, "ends['last_ended'] <= self.expiry", "False", ("crafted",)),
    "an end that was to come": (domains, ENDS, "self.ended & late", "self.ended & False", ("crafted",)),
    "what expiry leaves": (
        domains,
        ENDS,
        "(ends['floor'] < self.expiry) | (ends['settle_to'] < self.expiry)",
        "False",
        ("floor-fell",),
    ),
    "session leases that are over": (
        domains,
        SESSIONS,
        "final > sessions.over[session]",
        "False",
        ("crafted",),
    ),
    "dropped with its session lease": (
        domains,
        SESSIONS,
        "~self.ended[under] & (sessions.over[session] < NEVER)",
        "False",
        ("count-mismatch", "last-frame-mismatch"),
    ),
    "how many": (domains, USES, 'messages != ends["last_messages"]', "False", ("count-mismatch",)),
    "how far": (domains, USES, "top > leases.watermark", "False", ("watermark-below-message",)),
    "what was settled": (
        domains,
        USES,
        "leases.bad[name[_unsettled(rows, uses, cluster)]] = True",
        "pass",
        ("crafted",),
    ),
    "how it ended": (
        witnesses,
        "_plain",
        "entry.ending.outcome in _PLAIN",
        "True",
        ("revocation-incomplete", "ended-lease-forgotten"),
    ),
    "half a lease": (
        witnesses,
        GOOD,
        "known.head.half is Half.WHOLE",
        "True",
        ("half-lease-write",),
    ),
    "who is overtaken": (
        domains,
        "_Leases.check_moves",
        "self.held & ~self.given & overtaken",
        "self.held & False",
        ("overtaken-lease",),
    ),
    "what counts by itself": (
        domains,
        "_Leases.check_moves",
        "self.first_of_chain.sum() == len(np.unique(self.name_of))",
        "True",
        ("whole-too-early",),
    ),
}

SETS: dict[str, Sequence[Callable[[Path], object]]] = {"own": OWN, "crafted": CRAFTED}

type Judged = Callable[[str], list[tuple[Path, bytes]]]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """What the rules alone say of the trees in which a code was planted; made when it is first asked for."""
    made: dict[str, list[tuple[Path, bytes]]] = {}
    signatures = Signatures()

    def of(code: str) -> list[tuple[Path, bytes]]:
        if code not in made:
            made[code] = []
            for story in SETS.get(code) or all_plants()[code]:
                root = tmp_path_factory.mktemp("tree")
                story(root)
                made[code].append((root, by_rules(root, signatures)))
        return made[code]

    return of


@pytest.mark.parametrize("story", [*CRAFTED, *all_plants()["r2-breach"]], ids=lambda story: story.__name__)
def test_columns_say_of_a_fault_alone_what_the_rules_say(story: Callable[[Path], object], tmp_path: Path) -> None:
    story(tmp_path)
    assert by_columns_first(tmp_path) == by_rules(tmp_path)


@pytest.mark.verify
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_hole_in_the_columns_is_seen(judged: Judged, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    module, function, old, new, codes = MUTANTS[mutant]
    trees = [each for code in codes for each in judged(code)]
    plant(monkeypatch, module, function, old, new)
    signatures = Signatures()
    assert any(by_columns_first(root, signatures) != said for root, said in trees)
