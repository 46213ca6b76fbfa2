"""Who goes on after a restart has all that was left, on the same boot, and alone; a restart in order loses no lease.

What is left is found once on each machine, and gone on with once at all: not by a cloned machine too. It is what it
was, by the same map, or by a newer one in which it stays or leaves, which it looks for where its right had lapsed. The
first that is signed afterwards is not before the last that was signed before. Where nothing happens but restarts in
order, and moves, each of them is gone on with, and no holder of a lease for a full term loses it (a move:
``unmoved.py``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from appliance.formats.witness import Half

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.checkers.record import Record
    from tests.simulation.history import History, LeftState
    from timeagent.units import Span


def check(history: History, record: Record) -> Iterator[str]:
    left = {each.file: each for each in history.suspended}
    for (machine, file), count in Counter(history.taken).items():
        if count > 1:
            yield f"{file} was taken over {count} times on {machine.name}"
    for file, count in Counter(each.file for each in history.resumed).items():
        if count > 1:
            yield f"{count} runs went on with {file}"
    for each in history.resumed:
        if each.file not in left:
            yield f"shard {each.shard} goes on at {each.true_ns} with {each.file}, which nobody left in order"
        else:
            yield from _the_same(left[each.file], each)
    if history.only_restarts or history.only_moves:
        yield from _all_gone_on_with(history)
    if history.only_restarts:
        yield from _nobody_noticed(history, record.policy.lease_term_max_ns)


def _the_same(before: LeftState, after: LeftState) -> Iterator[str]:
    which = f"shard {after.shard} goes on at {after.true_ns}"
    if after.boot != before.boot:
        yield f"{which} on boot {after.boot} with what boot {before.boot} left"
    if after.incarnation != before.incarnation:
        yield f"{which} under another incarnation"
    if after.signed_ns < before.signed_ns:
        yield f"{which}, and signs at {after.signed_ns} after {before.signed_ns}"
    (number, half, alone), (known, was, said) = after.going, before.going
    if after.going != before.going and not (number > known and half in (was, Half.LEAVING) and alone >= said):
        yield f"{which} by {after.going}, and was left by {before.going}"
    yield from _compared(f"{which} with another state of domain", before.domains, after.domains)
    yield from _compared(f"{which} with another state of session lease", before.sessions, after.sessions)


def _compared[Name, Value](words: str, ours: dict[Name, Value], theirs: dict[Name, Value]) -> Iterator[str]:
    for name in ours.keys() | theirs.keys():
        if ours.get(name) != theirs.get(name):
            yield f"{words} {name!r}"


def _all_gone_on_with(history: History) -> Iterator[str]:
    resumed = {each.file for each in history.resumed}
    stopped = {each.incarnation: each for each in history.suspended}
    for incarnation, leases in history.told:
        if leases and incarnation not in stopped:
            yield f"run {incarnation.hex()} had {leases} leases when it stopped in order, and left none"
    for each in history.suspended:
        later = [start for start in history.starts if start.shard == each.shard and start.true_ns > each.true_ns]
        if later and each.file not in resumed:
            yield f"shard {each.shard} began at {later[0].true_ns} and did not go on with {each.file}"


def _nobody_noticed(history: History, term_ns: Span) -> Iterator[str]:
    for hold in history.holds:
        if hold.lost_ns is not None and hold.lease.term_ns == term_ns:
            yield f"{hold.who} lost {hold.domain} at {hold.lost_ns}, though its shard was only restarted"
