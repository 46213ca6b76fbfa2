"""Rules about trust records as a row: what a later one says of a key that an earlier one had said otherwise.

Only the root key can say it, and nothing forbids it, so that neither is a breach. But commands of ours never do either:
they add keys, shorten what a key is valid for, and let a revocation stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditor.finding import NamedInterval
from timeagent.keys import fingerprint
from timeagent.units import rfc3339

from .registry import found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from auditor.finding import Evidence, Finding
    from timeagent.trust import KeyEntry, TrustRecord


@dataclass(frozen=True, slots=True)
class _Said:
    """What a record said of a key."""

    entry: KeyEntry
    number: int
    where: Evidence


def check_trust(records: Iterable[tuple[TrustRecord, Evidence]]) -> Iterator[Finding]:
    """key-moved and revocation-undone. ``records``: those that hold, in order of number; some may be missing.

    Of a key that a record leaves out, what the last one before it said is compared with the next that has it.
    """
    named: dict[bytes, _Said] = {}
    revoked: dict[bytes, _Said] = {}
    for record, where in records:
        for entry in record.keys:
            now = _Said(entry, record.number, where)
            before = named.get(entry.public)
            if before is not None and (before.entry.node, before.entry.purpose) != (entry.node, entry.purpose):
                yield _moved(before, now)
            named[entry.public] = now
            ended = revoked.get(entry.public)
            if ended is not None and _later(entry.revoked_from_ns, ended.entry.revoked_from_ns):
                yield _undone(ended, now)
            if entry.revoked_from_ns is None:
                revoked.pop(entry.public, None)  # told once, and not of every record from here on
            else:
                revoked[entry.public] = now


def _later(now: int | None, before: int | None) -> bool:
    """Whether a key is revoked from a later instant than before, or not at all any more."""
    return before is not None and (now is None or now > before)


def _moved(before: _Said, now: _Said) -> Finding:
    old, new = before.entry, now.entry
    name = f"key {fingerprint(new.public)}"
    reason = (
        f"trust record {before.number} has {name} as the {old.purpose} key of {old.node}, record {now.number} as the "
        f"{new.purpose} key of {new.node}"
    )
    to = "another node" if old.node != new.node else "another purpose"
    title = f"a later trust record gives a key to {to}"
    return found("key-moved", f"{now.where.path}, {name}", reason, [before.where, now.where], title=title)


def _undone(before: _Said, now: _Said) -> Finding:
    old, new = before.entry.revoked_from_ns, now.entry.revoked_from_ns
    assert old is not None
    name = f"key {fingerprint(now.entry.public)}"
    word = "does not revoke it" if new is None else f"revokes it from {rfc3339(new)}"
    reason = (
        f"trust record {before.number} revokes {name} of {before.entry.node} from {rfc3339(old)}, record {now.number} "
        f"{word}"
    )
    times = [NamedInterval.at(f"revoked by record {before.number}", old)]
    times += [] if new is None else [NamedInterval.at(f"revoked by record {now.number}", new)]
    title = f"a later trust record {'takes a revocation back' if new is None else 'puts a revocation off'}"
    return found(
        "revocation-undone", f"{now.where.path}, {name}", reason, [before.where, now.where], times, title=title
    )
