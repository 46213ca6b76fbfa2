"""Which writer a log's kind asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from appliance.formats.birth import BagKind

from .logfile import LogFileWriter
from .maildir import MaildirWriter

if TYPE_CHECKING:
    from appliance.formats.paths import Grid

    from .authority import Authority
    from .context import BagContext
    from .looks import Writer


def writer_for(context: BagContext, grid: Grid, authority: Authority) -> Writer:
    """Return the writer of a log's kind. Touches nothing."""
    match grid.birth.kind:
        case BagKind.MAILDIR:
            return MaildirWriter(context, grid, authority)
        case BagKind.LOG:
            return LogFileWriter(context, grid, authority)
    assert_never(grid.birth.kind)
