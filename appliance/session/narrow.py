"""Read the messages of held domains only, where hints say that they are, and by looking through the log where not.

Hints are advice about where to look: what they name is read as any reader reads it, and where they do not reach, below
the instant from which they are complete, the log is read. So the answer is that of a full reading, without the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.bag.batch import MessageBatch
from appliance.bag.message import before
from appliance.bag.reader import Level
from appliance.formats.hints import ANY_FILE
from timeagent.units import INSTANT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from appliance.bag.reader import Message, Reader
    from timeagent.units import Instant

    from .held import Lease


def messages_of(
    reader: Reader, leases: Sequence[Lease], doubtful: Iterable[Instant], after_ns: Instant, last: int | None
) -> list[Message]:
    """Return the messages above an instant whose frames name a domain of these leases, in order; the ``last`` of them.

    ``doubtful``: starts of bags in which the session's own attempts under these leases are not decided. The log is
    settled to what the leases ask. Raises as ``Reader.batches``. Touches the mount.
    """
    domains = frozenset(lease.domain for lease in leases)
    reach = max(_reach_ns(lease, reader.log) for lease in leases)
    files = _files(leases, reader.log, doubtful)
    found = list(_naming(domains, reader.in_files(files, max(after_ns, reach))))
    if after_ns < reach and (last is None or len(found) < last):
        scanned = reader.batches(before(after_ns + 1), reach, Level.LATEST)
        found = [*_naming(domains, scanned), *found]
    return found if last is None else found[max(0, len(found) - last) :]


def _reach_ns(lease: Lease, log: str) -> Instant:
    """Return the instant above which all messages of the domain are where the hints say."""
    if lease.hints is None:
        return INSTANT_MAX
    return max(lease.hints.reach_ns(log), lease.own.reach_ns(log))


def _files(leases: Sequence[Lease], log: str, doubtful: Iterable[Instant]) -> dict[Instant, set[str] | None]:
    """Return the files that hints name, by the start of their bags; None: all of the bag."""
    files: dict[Instant, set[str] | None] = dict.fromkeys(doubtful)
    for lease in leases:
        places = () if lease.hints is None else lease.hints.places
        for place in (*places, *lease.own.places):
            if place.log != log:
                continue
            names = files.setdefault(place.bag_start_ns, set())
            if place.file_name == ANY_FILE:
                files[place.bag_start_ns] = None
            elif names is not None:
                names.add(place.file_name)
    return files


def _naming(domains: frozenset[str], batches: Iterable[MessageBatch]) -> Iterator[Message]:
    for batch in batches:
        yield from MessageBatch([part for part in batch.parts if not domains.isdisjoint(part.origin.domains)])
