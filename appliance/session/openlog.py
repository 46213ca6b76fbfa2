"""A log that a session uses: its grid with the writer, horizon and reader of the bag protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from appliance.bag.horizon import Horizon
from appliance.bag.logs import create_log, open_log
from appliance.bag.reader import Reader
from appliance.bag.writers import writer_for
from appliance.formats.birth import BagKind
from appliance.formats.names import check_log
from appliance.formats.paths import Grid
from timeagent.errors import BadRequest, check_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from appliance.bag.context import BagContext
    from appliance.bag.looks import Writer


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
        """Open nothing yet."""
        self._context = context
        self._share = share
        self._logs: dict[str, OpenLog] = {}

    def opened(self, name: str) -> OpenLog:
        """Return an existing log. Raises BadRequest that names it when there is none. Touches the mount once."""
        log = self._find(name)
        if log is None:
            raise BadRequest("no-such-log", f"there is no log {name!r} in this cluster", hint="publish to it first")
        return log

    def opened_or_made(self, name: str, kind: BagKind | None = None) -> OpenLog:
        """Return the log; the first to ask makes it. Touches the mount once.

        ``kind``: of the log that is made, a maildir by default. Raises BadRequest if that is named, and there is a log
        of another kind.
        """
        log = self._find(name) or self._wired(Grid(create_log(self._context, name, kind or BagKind.MAILDIR)))
        there = log.grid.birth.kind
        if kind not in (None, there):
            raise BadRequest(
                "other-kind",
                f"the log {name!r} is of kind {there}, not {kind}: its birth record fixes that for ever",
                hint=f"publish to it without naming a kind, or choose another name for a log of kind {kind}",
            )
        return log

    def _find(self, name: str) -> OpenLog | None:
        check_type(str, log=name)
        if name in self._logs:
            return self._logs[name]
        birth = open_log(self._context, check_log(name))
        return None if birth is None else self._wired(Grid(birth))

    def _wired(self, grid: Grid) -> OpenLog:
        context = self._context
        horizon = Horizon(context, grid)
        writer = writer_for(context, grid, horizon.authority)
        if self._share is not None:
            writer = self._share(writer, grid, horizon)
        log = OpenLog(grid, writer, horizon, Reader(context, grid, horizon))
        self._logs[grid.birth.log] = log
        return log
