"""The logs that a session uses, and how they are read for the domains that it holds.

``LogBook`` opens each log once: its grid with the writer, horizon and reader of the bag protocol. ``hinted_reads``
gives the messages of held domains: it reads where hints say that they are, and looks through the log where they do not
reach, below the instant from which they are complete. What hints name is read as any reader reads it, so the answer is
that of a full reading, without the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from appliance.bag.horizon import Horizon
from appliance.bag.message import MessageBatch
from appliance.bag.reader import Level, Message, Reader
from appliance.formats.birth import BagKind, store_of
from appliance.formats.names import check_log
from appliance.formats.paths import Grid
from timeagent.errors import BadRequest, check_type
from timeagent.units import INSTANT_MAX, Instant

from ..bag.logs import Store, create_log, names_there, open_log
from ..bag.message import before
from ..bag.ports import BagContext
from ..bag.roots import PlacedStorage, Root, storage_at
from ..bag.writing import Writer, writer_for
from ..formats.hints import ANY_FILE
from .held import Lease

LOGS_NAMED: Final = 20
"""How many logs are named to who asks for one that does not exist."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Everything that is done with one log, wired once."""

    grid: Grid
    writer: Writer
    horizon: Horizon
    reader: Reader


type Share = Callable[[Writer, Grid, Horizon], Writer]
"""Put something before the writer of a log: the node's, which batches for all processes of a machine."""


class LogBook:
    """The logs that one process has opened."""

    def __init__(self, context: BagContext, share: Share | None = None) -> None:
        self._context = context
        self._share = share
        self.by_name: dict[str, OpenLog] = {}
        """Those that have been opened here."""

    def opened(self, name: str) -> OpenLog:
        """Return an existing log. Raises BadRequest that names those there are. Touches the mount."""
        log = self.find(name)
        if log is None:
            there = ", ".join(names_there(self._context.storage)[:LOGS_NAMED])
            hint = f"its logs are {there}; who publishes to another makes it" if there else "publish to it first"
            raise BadRequest("no-such-log", f"there is no log {name!r} in this cluster", hint=hint)
        return log

    def opened_or_made(self, name: str, kind: BagKind | None = None, store: Root | None = None) -> OpenLog:
        """Return the log; the first to ask makes it. Touches the mount once.

        ``kind``: of the log that is made, a maildir by default; ``store``: where its bags are to be, by default at the
        root. Raises BadRequest if these are named, and there is a log of another kind, or elsewhere.
        """
        log = self.find(name)
        if log is None:
            place = None if store is None else Store(str(store), storage_at(store))
            log = self._wired(Grid(create_log(self._context, name, kind or BagKind.MAILDIR, place)))
        where = store_of(log.grid.birth)
        if store is not None and where != str(store):
            raise BadRequest(
                "other-store",
                f"the log {name!r} is {f'in {where}' if where else 'at the root'}, not in {store}: its birth record "
                "fixes that for ever",
                hint="publish to it without naming a store, or choose another name for a log in that one",
            )
        there = log.grid.birth.kind
        if kind not in (None, there):
            raise BadRequest(
                "other-kind",
                f"the log {name!r} is of kind {there}, not {kind}: its birth record fixes that for ever",
                hint=f"publish to it without naming a kind, or choose another name for a log of kind {kind}",
            )
        return log

    def find(self, name: str) -> OpenLog | None:
        """Return an existing log, or None. Touches the mount unless it has been opened here."""
        check_type(str, log=name)
        if name in self.by_name:
            return self.by_name[name]
        birth = open_log(self._context, check_log(name))
        return None if birth is None else self._wired(Grid(birth))

    def _wired(self, grid: Grid) -> OpenLog:
        context, storage = self._context, self._context.storage
        if isinstance(storage, PlacedStorage):  # a store that cannot be asked is found out before it is used
            context = replace(context, storage=storage.of(grid.birth.log))
        horizon = Horizon(context, grid)
        writer = writer_for(context, grid, horizon.authority)
        if self._share is not None:
            writer = self._share(writer, grid, horizon)
        log = OpenLog(grid, writer, horizon, Reader(context, grid, horizon))
        # Of threads that open it at once all take the first: two writers would give files of one run the same names.
        return self.by_name.setdefault(grid.birth.log, log)


def hinted_reads(
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
