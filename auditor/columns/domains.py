"""Domains, all of a bucket at once: which of them are clean, so that no rule over leases finds anything there.

A domain is clean if its ledger entries are a row of exclusive leases, each granted, perhaps renewed, and relinquished
before the next is granted (the last may still be out), and every condition of ``auditor.rules`` that can
apply to such a row holds by its columns. Everything else is *suspect*, which says nothing but that its history is made
and judged by those rules, one lease after another.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from timeagent.embedded import STALENESS_NS

from .layout import ENDED, GRANT, NOTHING, NUMBER_MAX, RENEWAL, Bucket

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from auditor.chains import HeadFact
    from auditor.rules.agreement import ClusterFacts

    from .layout import Rows

type HeadName = tuple[bytes, int, bytes]
"""Incarnation, sequence, digest."""


class Heads:
    """All heads that are known, in the order in which their shards signed them."""

    def __init__(self, facts: Iterable[HeadFact], cluster: ClusterFacts) -> None:
        """Take them with everything that is known beside one domain's history."""
        runs = cluster.runs
        ordered = sorted(
            facts,
            key=lambda fact: (
                fact.head.map_number,
                runs[fact.head.incarnation].first_ceiling,
                fact.head.incarnation,
                fact.head.sequence,
            ),
        )
        claims = Counter((fact.head.incarnation, fact.head.sequence) for fact in ordered)
        self.number: dict[HeadName, int] = {
            (fact.head.incarnation, fact.head.sequence, fact.digest): place for place, fact in enumerate(ordered)
        }
        self.shards = [(fact.head.map_number, fact.head.shard) for fact in ordered]
        count = len(ordered)
        self.plain = np.zeros(count, np.bool_)
        """Whether nothing about the head itself makes a statement in it suspicious."""
        self.midpoint, self.radius, self.staleness, self.ceiling, self.floor, self.settle_to = np.zeros(
            (6, count), np.int64
        )
        self.end_floor, self.end_settle_to = np.full((2, count), NUMBER_MAX, np.int64)
        """With which the run stopped orderly, where it did."""
        for place, fact in enumerate(ordered):
            head, token = fact.head, fact.token
            floor, settle_to = _lowest(fact, cluster)
            figures = (token.midpoint_ns, token.radius_ns, token.staleness_ns, head.ceiling_ns, floor, settle_to)
            once = claims[head.incarnation, head.sequence] == 1
            if not once or max(figures) >= NUMBER_MAX:
                continue
            self.plain[place] = True
            chain = cluster.ceilings.get((head.map_number, head.shard))
            end = chain.end_of(head.incarnation) if chain else None
            if end is not None:
                self.end_floor[place] = min(end.record.floor_ns, NUMBER_MAX)
                self.end_settle_to[place] = min(end.record.settle_to_ns, NUMBER_MAX)
            for column, figure in zip(
                (self.midpoint, self.radius, self.staleness, self.ceiling, self.floor, self.settle_to),
                figures,
                strict=True,
            ):
                column[place] = figure


def _lowest(fact: HeadFact, cluster: ClusterFacts) -> tuple[int, int]:
    """Return what no grant of the run may go below: floor and settle_to."""
    chain = cluster.ceilings.get((fact.head.map_number, fact.head.shard))
    return (chain.floor_of(fact.head.incarnation) if chain else None) or (0, 0)


type Flags = NDArray[np.bool_]
type Column = NDArray[np.int64]

_PLACES: Final = 2**32
"""More than there are entries in a batch."""


@dataclass(frozen=True, slots=True)
class DomainsSeen:
    """What a bucket came to."""

    suspects: list[str]
    witnesses: int
    """How many different ones the clean domains have."""


def judge_domains(
    entries: Bucket, uses: Bucket, heads: Heads, cluster: ClusterFacts, by_rows: AbstractSet[str]
) -> DomainsSeen:
    """Say which domains of a bucket are suspect. ``by_rows``: of which something is known that is in no column."""
    known = entries.names.values
    without = [name for name in uses.names.values if name not in known]
    bad = np.fromiter((name in by_rows for name in known), np.bool_, len(known))
    rows = entries.rows()
    if len(rows):
        chain = _Chain(rows, entries, heads, bad)
        chain.check_statements(cluster)
        chain.check_links()
        chain.check_ends(cluster)
        _check_uses(chain, uses, heads, cluster)
        witnesses = int((chain.told & ~bad[chain.name]).sum())
    else:
        witnesses = 0
    names = list(known)
    return DomainsSeen([*without, *(names[n] for n in np.flatnonzero(bad).tolist())], witnesses)


class _Chain:
    """The entries of all domains, in order, cut into leases: a grant and all that follows, up to the next."""

    def __init__(self, rows: Rows, entries: Bucket, heads: Heads, bad: Flags) -> None:
        """Put them in order. ``bad``: takes which domains are suspect."""
        self.bad = bad
        self.entries = entries
        self.heads = heads
        number = np.fromiter((heads.number[each] for each in entries.heads.values), np.int64, len(entries.heads.values))
        head = number[rows["head"]]
        position = head * _PLACES + np.minimum(rows["position"], _PLACES - 1)
        order = np.lexsort((position, rows["name"]))
        self.rows = rows = rows[order]
        self.head = head = head[order]
        self.position = position = position[order]
        self.name = name = rows["name"].astype(np.int64)
        self.told: Flags = rows["kind"] != ENDED
        self.begins = np.ones(len(rows), np.bool_)
        """Where a domain begins."""
        self.begins[1:] = name[1:] != name[:-1]
        starts = self.begins | (rows["kind"] == GRANT)
        self.lease: Column = np.cumsum(starts) - 1
        """The number of each row's lease."""
        self.start: Column = np.flatnonzero(starts)
        self.last: Column = np.append(self.start[1:], len(rows)) - 1
        self.ended: Flags = ~self.told[self.last]
        self.cid = rows["cid"][self.start]
        self.first_of_domain: Flags = self.begins[self.start]
        self.suspect(~rows["plain"] | (rows["position"] >= _PLACES) | ~heads.plain[head])
        self._check_order()

    def suspect(self, which: Flags) -> None:
        """Say that the domains of these rows are suspect."""
        self.bad[self.name[which]] = True

    def suspect_leases(self, which: Flags) -> None:
        """Say that the domains of these leases are suspect."""
        self.bad[self.name[self.start[which]]] = True

    def _check_order(self) -> None:
        rows, begins = self.rows, self.begins
        grant = rows["kind"] == GRANT
        after_end = np.zeros(len(rows), np.bool_)
        after_end[1:] = ~self.told[:-1]
        same = np.zeros(len(rows), np.bool_)
        same[1:] = (rows["cid"][1:] == rows["cid"][:-1]).all(axis=1)
        twice = np.zeros(len(rows), np.bool_)
        twice[1:] = self.position[1:] == self.position[:-1]
        usual = np.where(begins, grant, np.where(grant, after_end, same & ~after_end))
        self.suspect(~usual | (twice & ~begins))
        order = np.lexsort((self.cid[:, 1], self.cid[:, 0], self.name[self.start]))
        name, cid = self.name[self.start][order], self.cid[order]
        again = np.zeros(len(order), np.bool_)
        again[order[1:]] = (name[1:] == name[:-1]) & (cid[1:] == cid[:-1]).all(axis=1)
        self.suspect_leases(again)

    def check_statements(self, cluster: ClusterFacts) -> None:
        """Check what one witness may say."""
        rows, heads, head, told = self.rows, self.heads, self.head, self.told
        wrong = (rows["expiry"] > heads.ceiling[head]) | (rows["fence"] > heads.ceiling[head])
        widest = cluster.policies.widest
        if widest is not None:
            term = min(widest.lease_term_max_ns, NUMBER_MAX)
            wrong |= rows["expiry"] > heads.midpoint[head] + term + heads.radius[head]
        low = (rows["floor"] < heads.floor[head]) | (rows["settle_to"] < heads.settle_to[head])
        low |= rows["fence"] <= heads.floor[head]
        wrong |= low & (rows["kind"] == GRANT)
        again = rows["kind"] == RENEWAL
        granted = rows[self.start][self.lease]
        for column in ("fence", "floor", "settle_to", "holder"):
            wrong |= again & (rows[column] != granted[column])
        wrong |= rows["cid"][:, 0].byteswap() != rows["fence"].astype(np.uint64)
        wrong[1:] |= again[1:] & (rows["expiry"][1:] < rows["expiry"][:-1])
        self.suspect(wrong & told)
        names = list(self.entries.names.values)
        places: dict[tuple[int, int], int] = {}
        shard = np.fromiter(
            (places.setdefault(each, len(places)) for each in heads.shards), np.int64, len(heads.shards)
        )
        shards = list(places)
        pairs = np.unique(np.stack((self.name[told], shard[head[told]])), axis=1)
        for name, place in pairs.T.tolist():
            map_number, number = shards[place]
            layout = cluster.maps.get(map_number)
            if layout is not None and layout.owners and layout.shard_of(names[name]) != number:
                self.bad[name] = True

    def check_links(self) -> None:
        """Check how one grant follows another."""
        grants, first = self.rows[self.start], self.first_of_domain
        later = np.flatnonzero(~first)
        before, after = grants[later - 1], grants[later]
        wrong = np.zeros(len(grants), np.bool_)
        end: Rows = self.rows[self.last]
        wrong[later] = (
            (after["fence"] <= before["fence"])
            | (after["floor"] < end["floor"][later - 1])
            | (after["settle_to"] < end["settle_to"][later - 1])
        )
        wrong |= self.ended & (
            (end["floor"] < np.maximum(grants["floor"], end["watermark"])) | (end["settle_to"] < grants["settle_to"])
        )
        self.suspect_leases(wrong)
        of_row, none_before = self.lease, first[self.lease]
        previous = self.cid[of_row - 1]
        for says, which in (("follows", "previous"), ("tells", "last_ended")):
            other = none_before | (self.rows[which] != previous).any(axis=1)
            self.suspect(self.rows[says] & other & self.told)
        telling = np.flatnonzero(self.rows["tells"])
        told_of = end[of_row[telling] - 1]
        otherwise = (self.rows["chain_head"][telling] != told_of["chain_head"]).any(axis=1)
        for column in ("ended", "watermark", "messages", "chained"):
            otherwise |= self.rows[column][telling] != told_of[column]
        self.bad[self.name[telling[otherwise]]] = True
        self.suspect(self.rows["sets"])  # told beside the last lease only where it is another

    def check_ends(self, cluster: ClusterFacts) -> None:
        """Check what holders said when they relinquished: the watermark, and the signed time that it keeps."""
        ends = self.rows[self.last]
        self.expiry = np.maximum.reduceat(np.where(self.told, self.rows["expiry"], 0), self.start)
        floor = np.maximum.reduceat(np.where(self.told, self.rows["floor"], 0), self.start)
        self.watermark: Column = np.where(ends["watermark"] == NOTHING, floor, ends["watermark"])
        wrong = self.watermark >= self.expiry
        widest = cluster.policies.widest
        if widest is not None:
            wrong |= (ends["radius"] > widest.radius_ns_max) | (ends["staleness"] > STALENESS_NS)
            heads, grant, end = self.heads, self.head[self.start], self.head[self.last]
            allowed = ends["radius"] + min(widest.r1_tolerance_ns, NUMBER_MAX)
            wrong |= np.abs(self.watermark - ends["midpoint"]) > allowed
            latest = ends["midpoint"] + ends["radius"] + ends["staleness"]
            wrong |= latest < heads.midpoint[grant] - heads.radius[grant]
            said = heads.midpoint[end] + heads.radius[end] + heads.staleness[end]
            wrong |= said < ends["midpoint"] - ends["radius"]
        self.suspect_leases(self.ended & ((wrong & ends["timed"]) | (ends["timed"] != (ends["watermark"] != NOTHING))))
        self._check_stops(floor)

    def _check_stops(self, floor: Column) -> None:
        """Check that the record with which a run stopped covers what it granted. ``floor``: of each lease."""
        rows, run = self.rows, self.head[self.start]
        fence = np.maximum.reduceat(np.where(self.told, rows["fence"], 0), self.start)
        settle_to = np.maximum.reduceat(np.where(self.told, rows["settle_to"], 0), self.start)
        asked = np.maximum(np.maximum(floor, fence), np.where(self.ended, self.watermark, self.expiry))
        settle_to = np.where(self.ended, settle_to, np.maximum(settle_to, self.expiry))
        self.suspect_leases((asked > self.heads.end_floor[run]) | (settle_to > self.heads.end_settle_to[run]))


def _check_uses(chain: _Chain, uses: Bucket, heads: Heads, cluster: ClusterFacts) -> None:
    """Check what was written under each lease: how much, up to where, after what was written before, and settled."""
    rows = uses.rows()
    count = len(chain.start)
    messages = np.zeros(count, np.int64)
    low, top = np.zeros(count, np.int64), np.full(count, NOTHING)
    if len(rows):
        known = chain.entries.names.values
        name = np.fromiter((known.get(each, -1) for each in uses.names.values), np.int64, len(uses.names.values))
        rows = rows[name[rows["name"]] >= 0]
    if len(rows):
        number = np.fromiter((heads.number[each] for each in uses.heads.values), np.int64, len(uses.heads.values))
        name = name[rows["name"]]
        wanted = number[rows["head"]] * _PLACES + np.minimum(rows["position"], _PLACES - 1)
        order = np.argsort(chain.position, kind="stable")
        at = order[np.minimum(np.searchsorted(chain.position[order], wanted), len(order) - 1)]
        found = (
            (chain.position[at] == wanted)
            & (chain.name[at] == name)
            & (chain.rows["cid"][at] == rows["cid"]).all(axis=1)
            & chain.told[at]
        )
        chain.bad[name[~found]] = True
        chain.bad[name[_unsettled(rows, uses, cluster)]] = True
        of = np.lexsort((rows["sequence"], chain.lease[at]))
        lease = chain.lease[at][of]
        firsts = np.flatnonzero(np.append(True, lease[1:] != lease[:-1]))
        used = lease[firsts]
        _check_last_frames(chain, used, rows["digest"][of[np.append(firsts[1:], len(of)) - 1]])
        messages[used] = np.add.reduceat(rows["messages"][of], firsts)
        low[used] = np.minimum.reduceat(rows["first"][of], firsts)
        top[used] = np.maximum.reduceat(rows["last"][of], firsts)
        name_of = chain.name[chain.start][used]
        crossing = (name_of[1:] == name_of[:-1]) & (low[used][1:] <= top[used][:-1])
        chain.bad[name_of[1:][crossing]] = True
    ends = chain.rows[chain.last]
    chain.suspect_leases(chain.ended & ((messages != ends["messages"]) | (top > chain.watermark)))


def _check_last_frames(chain: _Chain, used: Column, digests: NDArray[np.uint64]) -> None:
    """Check what holders called their last frame. ``digests``: of the last frame under each of these leases."""
    end = chain.last[used]
    known = chain.ended[used] & chain.rows["chained"][end] & digests.any(axis=1)
    other = known & (chain.rows["chain_head"][end] != digests[:, :2]).any(axis=1)
    chain.bad[chain.name[end[other]]] = True


def _unsettled(rows: Rows, uses: Bucket, cluster: ClusterFacts) -> Flags:
    """Say of each use whether a bag that its lease asks to be closed may have been open still."""
    found = np.zeros(len(rows), np.bool_)
    logs: dict[str, int] = {}
    paths = uses.paths.values
    log = np.fromiter((logs.setdefault(each.split("/")[1], len(logs)) for each in paths), np.int64, len(paths))
    of = log[rows["path"]]
    for name, number in logs.items():
        chosen = np.flatnonzero(of == number)
        found[chosen] = cluster.closings.of_many(name, rows["settle_to"][chosen]) > rows["signed"][chosen]
    return found


type Writer = tuple[str, bytes]
"""Name and incarnation."""


def judge_writers(frames: Bucket, by_rows: AbstractSet[Writer]) -> list[Writer]:
    """Return which writers of a bucket are suspect. ``by_rows``: of which there are frames that are in no column."""
    names: list[Writer] = list(frames.names.values)
    bad = np.fromiter((name in by_rows for name in names), np.bool_, len(names))
    rows = frames.rows()
    if not len(rows):
        return []
    rows = rows[np.lexsort((rows["sequence"], rows["name"]))]
    name = rows["name"]
    same = name[1:] == name[:-1]
    disorder = (rows["sequence"][1:] == rows["sequence"][:-1]) | (rows["first"][1:] <= rows["last"][:-1])
    bad[name[1:][same & disorder]] = True
    bounds = np.searchsorted(name, np.arange(len(names) + 1))
    for number in range(len(names)):
        run = rows[bounds[number] : bounds[number + 1]]
        naming = run[run["committed"] != NOTHING]
        at = np.minimum(np.searchsorted(run["sequence"], naming["committed"]), len(run) - 1)
        there = (run["sequence"][at] == naming["committed"]) & (
            (run["digest"][at] == naming["committed_digest"]).all(axis=1)
            | ~naming["committed_digest"].any(axis=1)  # which one it was is not known: no digest is
        )
        before = naming["latest"] < run["earliest"][at] - naming["staleness"]
        if not there.all() or before.any():
            bad[number] = True
    return [names[n] for n in np.flatnonzero(bad).tolist()]
