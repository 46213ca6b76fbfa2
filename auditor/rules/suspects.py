"""Domains, all of a bucket at once: which of them are clean, so that no rule over leases finds anything there.

A domain is clean if each of its leases was granted, perhaps renewed and upgraded, and ended at most once, by its
holder's word, its expiry, or before it was held, and every condition of ``auditor.rules`` that can apply to such leases
holds by its columns. Everything else is *suspect*, which says nothing but that its history is made and judged by those
rules, one lease after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from appliance.formats.lease import LeaseOutcome, conflicts
from appliance.formats.shardmap import chain_of
from auditor.evidence.finding import breaks
from timeagent.signedtime import STALENESS_NS

from ..columns.layout import (
    ENDED,
    GRANT,
    NOTHING,
    NUMBER_MAX,
    RENEWAL,
    Column,
    Flags,
    HeadName,
    RowBucket,
    Rows,
    numbers,
)
from ..columns.records import MODES, OUTCOMES
from .grants import signed_within
from .history import ClusterFacts, HeadFact, Position, SessionHistory, SessionName, shard_of

_RELINQUISHED, _EXPIRED, _WITHDRAWN = (
    OUTCOMES.index(each) for each in (LeaseOutcome.RELINQUISHED, LeaseOutcome.EXPIRED, LeaseOutcome.WITHDRAWN)
)
_CONFLICTS: Final = np.array([[conflicts(one, other) for other in MODES] for one in MODES])
PLACES: Final = 2**32
"""More than there are entries in a batch."""
NEVER: Final = 2**63 - 1
"""The position of what does not happen."""
_MIXER: Final = np.uint64(0x9E3779B97F4A7C15)


class Heads:
    """All heads that are known, in the order in which their shards signed them, as columns: made once."""

    def __init__(self, cluster: ClusterFacts) -> None:
        """Take what is known beside one domain's history."""
        ordered = sorted(
            cluster.heads.values(),
            key=lambda fact: (
                fact.head.map_number,
                cluster.runs[fact.head.incarnation].first_ceiling,
                fact.head.incarnation,
                fact.head.sequence,
            ),
        )
        names = [(fact.head.incarnation, fact.head.sequence, fact.digest) for fact in ordered]
        self.number: dict[HeadName, int] = {name: place for place, name in enumerate(names)}
        claims = Counter(name[:2] for name in names)
        self.once = {name[:2]: place for place, name in enumerate(names) if claims[name[:2]] == 1}
        """Which head has a place that only one claims."""
        self.shard, self.shards = _numbered((shard_of(fact.head), fact.head.going_by) for fact in ordered)
        """The number of each shard, and by which map it goes."""
        self.map, _ = _numbered(fact.head.map_number for fact in ordered)
        """Which map the chain of its shard began under: these are numbered in order."""
        self.run, self.runs = _numbered(fact.head.incarnation for fact in ordered)
        which, shards = _numbered(shard_of(fact.head) for fact in ordered)
        self.overtaken = np.array([_overtaken(each, cluster) for each in shards], np.int64)[which]
        """Before this a chain that follows counted by itself; NEVER where none did."""
        figures = np.array([_figures(fact, cluster) for fact in ordered], np.int64).reshape(-1, 6)
        self.plain = (figures < NUMBER_MAX).all(axis=1) & np.array([name[:2] in self.once for name in names], np.bool_)
        """Whether nothing about the head itself makes a statement in it suspicious."""
        figures[~self.plain] = 0
        self.midpoint, self.radius, self.staleness, self.ceiling, self.floor, self.settle_to = figures.T
        ends = np.array([_stopped_with(fact, cluster) for fact in ordered], np.int64).reshape(-1, 2)
        self.end_floor, self.end_settle_to = ends.T
        """With which the run stopped orderly, where it did."""


def _numbered[T](values: Iterable[T]) -> tuple[Column, list[T]]:
    known: dict[T, int] = {}
    return np.array([known.setdefault(each, len(known)) for each in values], np.int64), list(known)


def _figures(fact: HeadFact, cluster: ClusterFacts) -> tuple[int, ...]:
    token = fact.token
    return token.midpoint_ns, token.radius_ns, token.staleness_ns, fact.head.ceiling_ns, *cluster.lowest(fact.head)


def _stopped_with(fact: HeadFact, cluster: ClusterFacts) -> tuple[int, int]:
    chain = cluster.ceilings.get((fact.head.map_number, fact.head.shard))
    end = chain.ends.get(fact.head.incarnation) if chain else None
    return (end.record.floor_ns, end.record.settle_to_ns) if end else (NUMBER_MAX, NUMBER_MAX)


def _overtaken(own: int, cluster: ClusterFacts) -> int:
    coming = [each.layout.shards for each in cluster.moves.get(own, ())]
    facts = [cluster.counts[name] for shards in coming for each in shards if (name := chain_of(each)) in cluster.counts]
    return min((signed_within(each.token)[1] for each in facts), default=NEVER)


def marks(names: Column, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number for each id of a lease of a domain: equal for equal ones, and mostly different for others."""
    found: NDArray[np.uint64] = (ids[:, 0] * _MIXER + ids[:, 1]) * _MIXER + names.astype(np.uint64)
    return found


class SessionColumns:
    """All session leases that are known, and behind them, in the last place, one that stands for all others."""

    def __init__(self, known: Mapping[SessionName, SessionHistory], heads: Heads) -> None:
        self._heads = heads
        self._number = {name: number for number, name in enumerate(known)}
        self.over = np.full(len(known) + 1, NEVER)
        """Position of the end of each; NEVER: it is not over."""
        self.suspect = np.zeros(len(known) + 1, np.bool_)
        """Whether something is told of it where more is told than once, or with numbers that are too large."""
        self.suspect[-1] = True
        words, ended = [(NOTHING, NOTHING, NOTHING)], list[bytes]()
        for number, history in enumerate(known.values()):
            highest = 0
            for told in history.told:
                highest = max(highest, told.witness.expiry_ns)
                words.append((number, self._place(told.position, number), min(highest, NUMBER_MAX)))
                ended += told.witness.ended
            self.suspect[number] |= highest >= NUMBER_MAX
            if history.over is not None:
                self.over[number] = self._place(history.over.position, number)
        self._session, self._position, self._expiry = np.array(words, np.int64).T
        """Of each word on a session lease: of which, where, and the highest expiry by then."""
        self._positions = np.unique(self._position)
        self._order = self._key(self._session, self._position)
        each = numbers(b"".join(ended), 2)
        self.ended = np.unique(marks(np.zeros(len(each), np.int64), each))
        """Marks of the leases that were ended alone."""

    def _key(self, session: Column, position: Column) -> Column:
        """Return a number for each session lease and position, in order of both."""
        return session * (len(self._positions) + 1) + np.searchsorted(self._positions, position)

    def _place(self, position: Position, number: int) -> int:
        *_, incarnation, sequence, place = position
        head = self._heads.once.get((incarnation, sequence))
        if head is None or not self._heads.plain[head] or place >= PLACES:
            self.suspect[number] = True
            return 0
        return head * PLACES + place

    def of(self, run: Column, ids: NDArray[np.uint64]) -> Column:
        """Return the number of the session lease of each run with each id; that of the last place if none is known."""
        keys, first, which = np.unique(marks(run, ids), return_index=True, return_inverse=True)
        found = np.full(len(keys), len(self._number))
        for number, at in enumerate(first.tolist()):
            name = (self._heads.runs[int(run[at])], ids[at].tobytes())
            found[number] = self._number.get(name, len(self._number))
        same = (run == run[first][which]) & (ids == ids[first][which]).all(axis=1)
        return np.where(same, found[which], len(self._number))

    def expiry_before(self, session: Column, position: Column) -> Column:
        """Return the latest expiry that was told of each session lease before a position; NOTHING where none was."""
        last = np.searchsorted(self._order, self._key(session, position)) - 1
        return np.where(self._session[last] == session, self._expiry[last], NOTHING)


def judge_domains(
    entries: RowBucket,
    uses: RowBucket,
    heads: Heads,
    sessions: SessionColumns,
    cluster: ClusterFacts,
) -> tuple[list[str], int]:
    """Return which domains of a bucket are suspect, and how many different witnesses the clean ones have."""
    known, used, names = entries.names.values, uses.rows(), list(uses.names.values)
    odd = {names[n] for n in np.unique(used["name"][~used["plain"]]).tolist()}
    without = [*odd.union(uses.names.values).difference(known)]
    bad = np.fromiter(map(odd.__contains__, known), np.bool_, len(known))
    rows = entries.rows()
    if not len(rows):
        return without, 0
    leases = _Leases(rows, entries, heads, bad)
    leases.check_shape()
    leases.check_statements(cluster)
    leases.check_ends_told()
    leases.check_order_of_claims()
    leases.check_sessions(sessions)
    leases.check_ends(cluster)
    leases.check_conflicts()
    leases.check_moves()
    _check_uses(leases, uses, used, cluster)
    names = list(known)
    suspects = [*without, *(names[n] for n in np.flatnonzero(bad).tolist())]
    return suspects, int((leases.told & ~bad[leases.name]).sum())


class _Leases:
    """The entries of all domains, lease by lease in the order of their grants, those of each in order of time."""

    def __init__(self, rows: Rows, entries: RowBucket, heads: Heads, bad: Flags) -> None:
        """Put them in order. ``bad``: takes which domains are suspect."""
        self.bad = bad
        self.entries = entries
        self.heads = heads
        number = np.fromiter((heads.number[each] for each in entries.heads.values), np.int64, len(entries.heads.values))
        position = number[rows["head"]] * PLACES + np.minimum(rows["position"], PLACES - 1)
        name = rows["name"].astype(np.int64)
        order = np.lexsort((position, name))
        position, name = position[order], name[order]
        self.bad[name[~_begins(position, name)]] = True  # told twice in one place
        known, first, lease = np.unique(marks(name, rows["cid"][order]), return_index=True, return_inverse=True)
        granted = np.argsort(first, kind="stable")
        place = np.empty(len(granted), np.int64)
        place[granted] = np.arange(len(granted))
        self._known: tuple[NDArray[np.uint64], Column] = known, place
        lease = place[lease]
        by_lease = np.argsort(lease, kind="stable")
        self.rows = rows = rows[order[by_lease]]
        self.lease: Column = lease[by_lease]
        """The number of each row's lease: those of a domain in the order of their grants."""
        self.name = name[by_lease]
        self.position: Column = position[by_lease]
        self.head: Column = self.position // PLACES
        self.told: Flags = rows["kind"] != ENDED
        self.begins = _begins(self.lease)
        self.start: Column = np.flatnonzero(self.begins)
        self.last: Column = np.append(self.start[1:], len(rows)) - 1
        self.ended: Flags = ~self.told[self.last]
        self.cid = rows["cid"][self.start]
        self.name_of: Column = self.name[self.start]
        self.first_of_chain = _begins(self.name_of, heads.map[self.head[self.start]])
        self.chain: Column = np.cumsum(self.first_of_chain) - 1
        """Of each lease: which domain under which chain. Each is judged by itself."""
        self.run: Column = heads.run[self.head[self.start]]
        self.outcome = np.where(self.ended, rows["last_outcome"][self.last], 0)
        self.held: Flags = np.logical_or.reduceat(rows["held"], self.start)
        self.expiry: Column = self._highest("expiry")
        """Of each lease the latest that is known."""

    def check_shape(self) -> None:
        """Check that each lease begins with its grant and ends with its end, in one run, and that rows are its own."""
        rows, lease = self.rows, self.lease
        self.suspect(~rows["plain"] | (rows["position"] >= PLACES) | ~self.heads.plain[self.head])
        inside = np.ones(len(rows), np.bool_)
        inside[self.last] = False
        self.suspect(self.begins != (rows["kind"] == GRANT))
        self.suspect(inside & ~self.told)
        self.suspect(self.heads.run[self.head] != self.run[lease])
        other = (rows["cid"] != self.cid[lease]).any(axis=1) | (self.name != self.name_of[lease])
        self.suspect(other)  # two leases with one mark: so is whose rows these are taken for
        self.bad[self.name_of[lease[other]]] = True

    def suspect(self, which: Flags) -> None:
        self.bad[self.name[which]] = True

    def suspect_leases(self, which: Flags) -> None:
        self.bad[self.name_of[which]] = True

    def _highest(self, column: str) -> Column:
        """Return the highest number that the witnesses of each lease state."""
        found: Column = np.maximum.reduceat(np.where(self.told, self.rows[column], 0), self.start)
        return found

    def check_statements(self, cluster: ClusterFacts) -> None:
        """Check what one witness may say, by itself and after the one before it."""
        rows, heads, head, told = self.rows, self.heads, self.head, self.told
        wrong = breaks("grant-above-ceiling", np.maximum(rows["expiry"], rows["fence"]), heads.ceiling[head])
        widest = cluster.policies.widest
        if widest is not None:
            term = min(widest.lease_term_max_ns, NUMBER_MAX)
            wrong |= breaks("term-above-policy", rows["expiry"], heads.midpoint[head] + term + heads.radius[head])
        low = (rows["floor"] < heads.floor[head]) | (rows["settle_to"] < heads.settle_to[head])
        renewal = rows["kind"] == RENEWAL
        wrong |= low & ~renewal
        fence, named = rows["fence"].astype(np.uint64), rows["cid"][:, 0].byteswap()
        wrong |= (named > fence) | ((named != fence) & self.begins)
        self.suspect(wrong & told)
        later = np.flatnonzero(told & ~self.begins)
        after, before, again = rows[later], rows[later - 1], renewal[later]
        wrong = after["under"] != before["under"]
        for column in ("holder", "session"):
            wrong |= (after[column] != before[column]).any(axis=1)
        for column in ("fence", "floor", "settle_to"):
            wrong |= (after[column] < before[column]) | (again & (after[column] != before[column]))
        for column in ("mode", "held"):
            wrong |= again & (after[column] != before[column])
        wrong |= (after["expiry"] < before["expiry"]) & ~after["under"]
        self.bad[self.name[later[wrong]]] = True
        names = list(self.entries.names.values)
        for pair in np.unique(self.name[told] * len(heads.shards) + heads.shard[head[told]]).tolist():
            name, place = divmod(pair, len(heads.shards))
            number, going_by = heads.shards[place]
            shards = cluster.maps.get(going_by)
            if shards is not None and number not in shards.shards_of(names[name]):
                self.bad[name] = True

    def check_ends_told(self) -> None:
        """Check that each grant follows the one before it, and that what witnesses tell of ends is what was said."""
        grants = self.rows[self.start]
        wrong = (grants["previous"] != np.roll(self.cid, 1, axis=0)).any(axis=1) | self.first_of_chain
        self.suspect_leases(grants["follows"] & wrong)
        known, place = self._known
        for who in ("last", "set_by"):
            telling = np.flatnonzero(self.rows[f"{who}_told"] & self.told)
            if not len(telling):
                continue
            rows, name = self.rows[telling], self.name[telling]
            at = np.searchsorted(known, marks(name, rows[f"{who}_cid"]))
            lease = place[np.minimum(at, len(known) - 1)]
            end = self.last[lease]
            said = self.rows[end]
            otherwise = (self.cid[lease] != rows[f"{who}_cid"]).any(axis=1) | (self.name_of[lease] != name)
            otherwise |= ~self.ended[lease] | (self.position[end] >= self.position[telling])
            otherwise |= (rows[f"{who}_head"] != said["last_head"]).any(axis=1)
            for column in ("outcome", "ended", "watermark", "messages", "chained"):
                otherwise |= rows[f"{who}_{column}"] != said[f"last_{column}"]
            self.bad[name[otherwise]] = True

    def check_order_of_claims(self) -> None:
        """Check that fences grow with each grant and change of mode, and that with these and ends nothing falls.

        A fence that is chosen then lies above the shard's own floor too.
        """
        rows = self.rows
        self.claims = claims = self.begins | (self.told & _begins(rows["mode"]))
        self.suspect(claims & breaks("fence-not-growing", rows["fence"], self.heads.floor[self.head]))
        stating = np.flatnonzero(claims | ~self.told)
        stating = stating[np.lexsort((self.position[stating], self.name[stating]))]
        self.stating: Column = stating
        """Grants, changes of mode and ends, domain by domain, in order of time."""
        for chosen, columns in ((stating, ("floor", "settle_to")), (stating[claims[stating]], ("fence",))):
            name, chain, stated = self.name[chosen], self.chain[self.lease[chosen]], rows[chosen]
            same = chain[1:] == chain[:-1]
            for column in columns:
                fell = stated[column][1:] < stated[column][:-1] + (column == "fence")
                self.bad[name[1:][same & fell]] = True

    def check_sessions(self, sessions: SessionColumns) -> None:
        """Check leases under session leases, whose expiry is theirs: none may be told of when that is over."""
        under = np.flatnonzero(self.rows["under"][self.start])
        if not len(under):
            return
        grants, names = self.rows[self.start[under]], self.name_of[under]
        session = sessions.of(self.run[under], grants["session"])
        last = np.where(self.ended[under], self.position[self.last[under]], NEVER)
        final = np.where(self.ended[under], last, self.position[self.last[under]])
        wrong = sessions.suspect[session] | (final > sessions.over[session])
        wrong |= ~self.ended[under] & (sessions.over[session] < NEVER)
        wrong |= np.isin(marks(np.zeros_like(names), self.cid[under]), sessions.ended)
        self.bad[names[wrong]] = True
        expiry = sessions.expiry_before(session, last)
        self.expiry[under] = np.where(expiry >= 0, expiry, self.expiry[under])

    def check_ends(self, cluster: ClusterFacts) -> None:
        """Check how leases ended: what holders said when they relinquished, and that those that expired had."""
        heads, ends, head = self.heads, self.rows[self.last], self.head[self.last]
        late = ends["last_ended"] > heads.midpoint[head] + heads.radius[head] + heads.staleness[head]
        self.suspect_leases(self.ended & late)
        floor, given = self._highest("floor"), self.ended & (self.outcome == _RELINQUISHED)
        word: Column = ends["last_watermark"]
        self.watermark: Column = np.where(word == NOTHING, floor, word)
        beyond = breaks("watermark-beyond-expiry", self.watermark, self.expiry)
        self.suspect_leases(given & ends["timed"] & (self._unfounded(ends, cluster) | beyond))
        self.suspect_leases(given & ~ends["timed"] & (self.watermark != floor))
        self.suspect_leases(given & (ends["floor"] < word))
        expired = self.ended & (self.outcome == _EXPIRED)
        early = breaks("broken-early", ends["last_ended"], self.expiry) | ~self.held
        early |= heads.midpoint[head] - heads.radius[head] + heads.staleness[head] <= self.expiry
        self.suspect_leases(expired & (early | (ends["floor"] < self.expiry) | (ends["settle_to"] < self.expiry)))
        withdrawn = self.ended & (self.outcome == _WITHDRAWN)
        self.suspect_leases(withdrawn & self.held)
        self.given = given
        self._check_stops(floor)

    def _unfounded(self, ends: Rows, cluster: ClusterFacts) -> Flags:
        """Say of each lease whether the signed time of its watermark may be another's, or of a clock that is off."""
        heads, grant, end = self.heads, self.head[self.start], self.head[self.last]
        wrong = breaks("stale-time", ends["staleness"], STALENESS_NS)
        widest = cluster.policies.widest
        if widest is not None:
            wrong |= breaks("radius-above-policy", ends["radius"], widest.radius_ns_max)
            allowed = ends["radius"] + min(widest.r1_tolerance_ns, NUMBER_MAX)
            wrong |= breaks("r1-breach", np.abs(self.watermark - ends["midpoint"]), allowed)
        latest = ends["midpoint"] + ends["radius"] + ends["staleness"]
        wrong |= latest < heads.midpoint[grant] - heads.radius[grant]
        said = heads.midpoint[end] + heads.radius[end] + heads.staleness[end]
        wrong |= said < ends["midpoint"] - ends["radius"]
        return wrong

    def _check_stops(self, floor: Column) -> None:
        """Check that the record with which a run stopped covers what it granted. ``floor``: of each lease."""
        run = self.head[self.start]
        asked = np.maximum(floor, self._highest("fence"))
        settle_to = self._highest("settle_to")
        asked = np.where(self.given, np.maximum(asked, self.watermark), asked)
        out = self.held & ~self.given
        asked = np.where(out, np.maximum(asked, self.expiry), asked)
        settle_to = np.where(out, np.maximum(settle_to, self.expiry), settle_to)
        self.suspect_leases((asked > self.heads.end_floor[run]) | (settle_to > self.heads.end_settle_to[run]))

    def check_conflicts(self) -> None:
        """Check that nothing was granted beside a lease that excludes it, unless that was of an earlier run."""
        rows, at = self.rows, self.stating
        name, run = self.name[at], self.run[self.lease[at]]
        claim, is_first = self.claims[at], self.begins[at]
        mode = rows["mode"][at].astype(np.int64)
        before = rows["mode"][at - 1].astype(np.int64)
        """Which mode the lease had until a change of mode, or its end."""
        changes = _begins(name, run)
        begin = np.flatnonzero(changes)[np.cumsum(changes) - 1]
        for each in np.unique(mode[claim]).tolist():
            step = (claim & (mode == each)).astype(np.int64) - (~is_first & (before == each))
            out = np.cumsum(step) - step
            others = out - out[begin] - (~is_first & (before == each))
            self.bad[name[claim & _CONFLICTS[mode, each] & (others > 0)]] = True
        self._check_left_over()

    def _check_left_over(self) -> None:
        """Check that each run begins, in each domain, above what an earlier run had out there to its end."""
        left = np.where(~self.ended & self.held, self.expiry, 0)
        if not left.any():
            return
        firsts = np.flatnonzero(self.first_of_chain | _begins(self.run))
        name, grant = self.name_of[firsts], self.rows[self.start[firsts]]
        before = _highest_before(self.chain[firsts], np.maximum.reduceat(left, firsts))
        self.bad[name[np.minimum(grant["floor"], grant["settle_to"]) < before]] = True

    def check_moves(self) -> None:
        """Check that what was held from a chain begins above all that was held from those before, in each domain.

        Then nothing that was written under the one lies above what was under the other.
        """
        overtaken = self.expiry > self.heads.overtaken[self.head[self.start]]
        self.suspect_leases(self.held & ~self.given & overtaken)
        if self.first_of_chain.sum() == len(np.unique(self.name_of)):
            return
        grant, firsts = self.rows[self.start], np.flatnonzero(self.first_of_chain)
        asked = np.where(self.held, np.where(self.given, self.watermark, self.expiry), 0)
        settle_to = np.where(self.held & ~self.given, self.expiry, 0)
        for column, left in (("floor", asked), ("settle_to", settle_to)):
            before = _highest_before(self.name_of[firsts], np.maximum.reduceat(left, firsts))[self.chain]
            self.suspect_leases(self.held & (grant[column] < before))


def _begins(*columns: NDArray[Any]) -> Flags:
    """Say of each row whether it differs from the one before it in any of these columns, as the first row does."""
    differs: Flags = np.logical_or.reduce([each[1:] != each[:-1] for each in columns])
    return np.append(True, differs)


def _highest_before(name: Column, values: Column) -> Column:
    """Return for each value the highest of those before it that have its name, 0 where none is. Names are in order."""
    known, rank = np.unique(values, return_inverse=True)
    reached = np.maximum.accumulate(name * PLACES + rank)
    found = np.zeros_like(values)
    same = name[1:] == name[:-1]
    found[1:][same] = known[(reached[:-1] % PLACES)[same]]
    return found


def _check_uses(leases: _Leases, uses: RowBucket, rows: Rows, cluster: ClusterFacts) -> None:
    """Check what was written under each lease: how much, up to where, after what was written before, and settled."""
    count = len(leases.start)
    messages = np.zeros(count, np.int64)
    low, top = np.zeros(count, np.int64), np.full(count, NOTHING)
    known = leases.entries.names.values
    name = np.fromiter((known.get(each, -1) for each in uses.names.values), np.int64, len(uses.names.values))
    rows = rows[rows["plain"] & (name[rows["name"]] >= 0)]
    if len(rows):
        number = np.fromiter(
            (leases.heads.number[each] for each in uses.heads.values), np.int64, len(uses.heads.values)
        )
        name = name[rows["name"]]
        wanted = number[rows["head"]] * PLACES + np.minimum(rows["position"], PLACES - 1)
        order = np.argsort(leases.position, kind="stable")
        at = order[np.minimum(np.searchsorted(leases.position[order], wanted), len(order) - 1)]
        found = (
            (leases.position[at] == wanted)
            & (leases.name[at] == name)
            & (leases.rows["cid"][at] == rows["cid"]).all(axis=1)
            & leases.told[at]
        )
        leases.bad[name[~found]] = True
        leases.bad[name[_unsettled(rows, uses, cluster)]] = True
        of = np.lexsort((rows["sequence"], leases.lease[at]))
        lease = leases.lease[at][of]
        firsts = np.flatnonzero(_begins(lease))
        used = lease[firsts]
        _check_last_frames(leases, used, rows["digest"][of[np.append(firsts[1:], len(of)) - 1]])
        messages[used] = np.add.reduceat(rows["messages"][of], firsts)
        low[used] = np.minimum.reduceat(rows["first"][of], firsts)
        top[used] = np.maximum.reduceat(rows["last"][of], firsts)
        _check_crossing(leases, used, low[used], top[used])
    ends = leases.rows[leases.last]
    above = breaks("watermark-below-message", leases.watermark, top)
    leases.suspect_leases(leases.given & ((messages != ends["last_messages"]) | above))


def _check_crossing(leases: _Leases, used: Column, low: Column, top: Column) -> None:
    """Check that what was written under a lease lies above all that was under an earlier one that excludes it.

    ``low``, ``top``: the first and the last instant under each lease that was used, these in the order of their grants.
    """
    name, mode = leases.name_of[used], leases.rows["mode"][leases.start[used]].astype(np.int64)
    for each in np.unique(mode).tolist():
        before = _highest_before(leases.chain[used], np.where(mode == each, top, 0))
        leases.bad[name[(low <= before) & _CONFLICTS[mode, each]]] = True


def _check_last_frames(leases: _Leases, used: Column, digests: NDArray[np.uint64]) -> None:
    """Check what holders called their last frame. ``digests``: of the last frame under each of these leases."""
    end = leases.last[used]
    known = leases.given[used] & leases.rows["last_chained"][end] & digests.any(axis=1)
    other = known & (leases.rows["last_head"][end] != digests).any(axis=1)
    leases.bad[leases.name[end[other]]] = True


def _unsettled(rows: Rows, uses: RowBucket, cluster: ClusterFacts) -> Flags:
    """Say of each use whether a bag that its lease asks to be closed may have been open still."""
    found = np.zeros(len(rows), np.bool_)
    logs: dict[str, int] = {}
    paths = uses.paths.values
    log = np.fromiter((logs.setdefault(each.split("/")[1], len(logs)) for each in paths), np.int64, len(paths))
    of = log[rows["path"]]
    for name, number in logs.items():
        chosen = np.flatnonzero(of == number)
        found[chosen] = cluster.closings.of(name, rows["settle_to"][chosen]) > rows["signed"][chosen]
    return found
