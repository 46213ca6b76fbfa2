"""Each condition of the columns is needed: without it, some planted fault is judged otherwise than by rules alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from auditor.columns import frames, records
from auditor.evidence.signatures import Signatures
from auditor.rules import suspects
from tests.fault_injection.crafted import CRAFTED
from tests.fault_injection.plants import all_plants
from tests.support.by_rules import by_columns_first, by_rules
from tests.support.mutants import plant
from tests.unit.test_auditor_shortcuts import OWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import ModuleType


type Mutant = tuple[ModuleType, str, str, str, tuple[str, ...]]

_OF: dict[tuple[ModuleType, str], dict[str, tuple[str, str, str]]] = {
    (frames, "FrameBatch.within_bags"): {
        "before the bag": ("self.first >= start", "True", "timestamp-outside-bag own"),
        "after the bag": ("self.last < end", "True", "timestamp-outside-bag own"),
        "too early for its time": ("self.first >= tokens.midpoint - allowed", "True", "r1-breach own"),
        "too late for its time": ("self.last <= tokens.midpoint + allowed", "True", "r1-breach own"),
        "the clock of the frame": (
            "~breaks('radius-above-policy', tokens.radius, policy.radius_ns_max)",
            "True",
            "radius-above-policy",
        ),
        "how stale the frame's time is": (
            "~breaks('stale-time', tokens.staleness, STALENESS_NS)",
            "True",
            "stale-time",
        ),
    },
    (frames, "check_witnesses"): {
        "the floor": (
            "~breaks('timestamp-below-floor', batch.first[frame], witnesses.floor[witnesses.which])",
            "True",
            "timestamp-below-floor",
        ),
        "the expiry": (
            "~breaks('timestamp-after-expiry', batch.last[frame], witnesses.expiry[saying])",
            "True",
            "timestamp-after-expiry",
        ),
        "a witness before its frame": ("tokens.latest[frame] >= signed[which]", "True", "r2-breach"),
        "the holder": ("witnesses.incarnation[which] == batch.incarnation[frame]", "True", "foreign-lease own"),
        "the holder's node": ("node[which] == batch.writer[frame]", "True", "own"),
    },
    (frames, "Witnesses.good"): {
        "the term": ("~breaks('term-above-policy', self.expiry, midpoint + term_ns_max + radius)", "True", "crafted"),
        "the batch": ("self._holds", "True", "crafted"),
        "the batch's signature": ("known.refusal is None", "True", "forged-witness forged-time"),
        "the clock of the shard": ("known.token.radius_ns <= policy.radius_ns_max", "True", "radius-above-policy"),
        "half a lease": ("known.head.half is Half.WHOLE", "True", "half-lease-write"),
    },
    (frames, "usual"): {
        "held": ("witness.phase is Phase.HELD", "True", "tentative-write"),
        "may write": ("witness.mode.may_write", "True", "read-mode-write"),
    },
    (frames, "Witnesses.with_sessions"): {
        "under a session lease": ("end - at == 1", "end - at < 2", "session-witness-missing"),
        "twice under a session lease": ("end - at == 1", "end - at > 0", "crafted"),
        "under another's session lease": ("holder[of] == holder[self.which]", "True", "crafted"),
        "a lease that was ended alone": (
            "(self._told.identifiers(f'ended.{place}', 2)[of] != lease).any(axis=1)",
            "True",
            "ended-lease-write",
        ),
        "the expiry of a session lease": ("np.where(under, of, self.which)", "self.which", "crafted"),
    },
    (frames, "FrameTokens.__init__"): {
        "the frame's time": ("known.refusal is None", "True", "forged-time"),
        "closed before it was signed": (
            "(stamp is None or r2_holds(token, stamp, effect_covers_cause=True))",
            "True",
            "r2-breach",
        ),
    },
    (frames, "FrameBatch._check_places"): {
        "where it belongs": ("writer == wanted[file]", "True", "crafted"),
        "which cluster": (
            "(cluster == numbers(b''.join([lock.cluster_id for lock in locks]), 2)[file]).all(axis=1)",
            "True",
            "crafted",
        ),
        "which log": ("log == wanted_log[file]", "True", "crafted"),
        "the keys": ("self.trust_number <= np.array([lock.trust_number for lock in locks])[file]", "True", "crafted"),
        "the policy": (
            "heads.number('policy_number') == np.array([lock.policy_number for lock in locks])[file]",
            "True",
            "stale-lock",
        ),
        "the policy that is named": (
            "heads.number('policy_number') == np.array([lock.policy_number for lock in locks])[file]",
            "heads.number('policy_number') <= np.array([lock.policy_number for lock in locks])[file]",
            "policy-misnamed",
        ),
        "no keys": ("self.trust_number >= 1", "True", "unknown-record"),
    },
    (suspects, "_Leases.check_statements"): {
        "the ceiling": ("np.maximum(rows['expiry'], rows['fence'])", "False", "grant-above-ceiling"),
        "the term of a grant": (
            "breaks('term-above-policy', rows['expiry'], heads.midpoint[head] + term + heads.radius[head])",
            "False",
            "term-above-policy",
        ),
        "the shard's floor": ("low & ~renewal", "False", "floor-fell"),
        "what a renewal repeats": (
            "(after[column] < before[column]) | (again & (after[column] != before[column]))",
            "False",
            "lease-changed",
        ),
        "the owner": ("number not in shards.shards_of(names[name])", "False", "wrong-shard"),
        "the name of a lease": ("(named > fence) | ((named != fence) & self.begins)", "False", "misnamed-lease"),
        "an expiry that falls": ('(after["expiry"] < before["expiry"]) & ~after["under"]', "False", "expiry-fell"),
    },
    (suspects, "_Leases.check_order_of_claims"): {
        "the shard's floor and the fence": (
            "breaks('fence-not-growing', rows['fence'], self.heads.floor[self.head])",
            "False",
            "fence-not-growing",
        ),
        "the fence": ("column == 'fence'", "False", "fence-not-growing crafted"),
        "what only grows": ("self.bad[name[1:][same & fell]] = True", "pass", "grant-overlap"),
        "settle_to of what follows": ("('floor', 'settle_to')", "('floor',)", "crafted"),
    },
    (suspects, "_Leases._check_stops"): {
        "what a stop covers": ("asked > self.heads.end_floor[run]", "asked < 0", "floor-fell"),
        "what a stop asks to be settled": ("settle_to > self.heads.end_settle_to[run]", "settle_to < 0", "crafted"),
    },
    (suspects, "_Leases.check_ends"): {
        "the floor of the end": ("given & (ends['floor'] < word)", "False", "floor-fell"),
        "a watermark without its time": (
            "given & ~ends['timed'] & (self.watermark != floor)",
            "False & given",
            "r1-breach",
        ),
        "the expiry of what was written": (
            "breaks('watermark-beyond-expiry', self.watermark, self.expiry)",
            "False",
            "watermark-beyond-expiry",
        ),
        "broken early": ("breaks('broken-early', ends['last_ended'], self.expiry)", "False", "crafted"),
        "an end that was to come": ("self.ended & late", "self.ended & False", "crafted"),
        "what expiry leaves": (
            "(ends['floor'] < self.expiry) | (ends['settle_to'] < self.expiry)",
            "False",
            "floor-fell",
        ),
    },
    (frames, "Witnesses.once_each"): {
        "no lease": ("found[self.frame] = True", "found[:] = True", "leaseless-write"),
    },
    (suspects, "_Leases._unfounded"): {
        "the clock of the watermark": (
            "breaks('radius-above-policy', ends['radius'], widest.radius_ns_max)",
            "False",
            "radius-above-policy",
        ),
        "how stale the watermark's time is": (
            "breaks('stale-time', ends['staleness'], STALENESS_NS)",
            "False",
            "stale-time",
        ),
        "the watermark's time": (
            "breaks('r1-breach', np.abs(self.watermark - ends['midpoint']), allowed)",
            "False",
            "r1-breach",
        ),
        "a watermark before its grant": ("latest < heads.midpoint[grant] - heads.radius[grant]", "False", "crafted"),
        "an end before its watermark": ('said < ends["midpoint"] - ends["radius"]', "False", "r2-breach"),
    },
    (suspects, "_Leases.check_ends_told"): {
        "the grant before": ("self.suspect_leases(grants['follows'] & wrong)", "pass", "chain-gap chain-fork"),
        "how the lease before ended": (
            "otherwise |= rows[f'{who}_{column}'] != said[f'last_{column}']",
            "pass",
            "lease-changed",
        ),
        "the last frame of the lease before": (
            "(rows[f'{who}_head'] != said['last_head']).any(axis=1)",
            "False",
            "lease-changed",
        ),
        "who set the floor": ("('last', 'set_by')", "('last',)", "lease-changed"),
    },
    (suspects, "_check_uses"): {
        "the last frame": (
            "_check_last_frames(leases, used, rows['digest'][of[np.append(firsts[1:], len(of)) - 1]])",
            "pass",
            "last-frame-mismatch",
        ),
        "which frame is the last": ("np.append(firsts[1:], len(of)) - 1", "firsts", "last-frame-mismatch"),
        "how many": ('messages != ends["last_messages"]', "False", "count-mismatch"),
        "how far": ("breaks('watermark-below-message', leases.watermark, top)", "False", "watermark-below-message"),
        "what was settled": ("leases.bad[name[_unsettled(rows, uses, cluster)]] = True", "pass", "crafted"),
    },
    (suspects, "_Leases.check_shape"): {
        "nothing after an end": ("self.suspect(inside & ~self.told)", "pass", "crafted"),
        "a grant at first": ("self.suspect(self.begins != (rows['kind'] == GRANT))", "pass", "ungranted-lease"),
    },
    (suspects, "_Leases.check_conflicts"): {
        "one at a time": ("others > 0", "False", "early-grant"),
    },
    (suspects, "_Leases._check_left_over"): {
        "what a run left out": (
            "np.minimum(grant['floor'], grant['settle_to']) < before",
            "False & (before > 0)",
            "grant-overlap floor-fell early-grant",
        ),
    },
    (suspects, "_Leases.check_sessions"): {
        "session leases that are over": ("final > sessions.over[session]", "False", "crafted"),
        "dropped with its session lease": (
            "~self.ended[under] & (sessions.over[session] < NEVER)",
            "False",
            "count-mismatch last-frame-mismatch",
        ),
    },
    (records, "_plain"): {
        "how it ended": ("entry.ending.outcome in _PLAIN", "True", "revocation-incomplete ended-lease-forgotten"),
    },
    (suspects, "_Leases.check_moves"): {
        "who is overtaken": ("self.held & ~self.given & overtaken", "self.held & False", "overtaken-lease"),
        "what counts by itself": (
            "self.first_of_chain.sum() == len(np.unique(self.name_of))",
            "True",
            "whole-too-early",
        ),
    },
}
"""By module and function: what is there, what stands in its place, and in which trees that is seen."""

MUTANTS: dict[str, Mutant] = {
    name: (*place, old, new, tuple(codes.split()))
    for place, planted in _OF.items()
    for name, (old, new, codes) in planted.items()
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


# What no policy is asked for is judged all the same.
@pytest.mark.parametrize("code", ["r2-breach", "stale-time"])
def test_watermark_of_a_copy_that_lacks_a_policy_is_judged_by_columns_as_by_rules(code: str, tmp_path: Path) -> None:
    for number, story in enumerate(all_plants()[code]):
        tree = story(tmp_path / str(number))
        lost = tree.change_policy()
        tree.change_policy()
        (tree.root / f"policy/{lost:08d}").unlink()
        assert by_columns_first(tree.root) == by_rules(tree.root), story.__name__


@pytest.mark.verify
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_hole_in_the_columns_is_seen(judged: Judged, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    module, function, old, new, codes = MUTANTS[mutant]
    trees = [each for code in codes for each in judged(code)]
    plant(monkeypatch, module, function, old, new)
    signatures = Signatures()
    assert any(by_columns_first(root, signatures) != said for root, said in trees)
