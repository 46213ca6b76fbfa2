"""What is known of one lease, in a few lines below the table. Asks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timeagent.console import counted

from ..facts import moment
from ..tones import MUTED
from ..words import lease_words
from .words_line import WordsLine

if TYPE_CHECKING:
    from ..state import ClusterState, LeaseRow

NOBODY_SAYS = "not known"


class LeaseFacts(WordsLine):
    """The lease under the cursor: a line each, cut where it is too long, so that none pushes another out."""

    def __init__(self) -> None:
        """Show nothing yet."""
        super().__init__(id="lease-facts", cut=True)

    def show(self, row: LeaseRow | None, state: ClusterState) -> None:
        """Show a lease."""
        if row is None:
            self.show_title("")
            self.say("")
            return
        self.show_title(row.domain)
        near = state.clock.now.midpoint
        waiting = NOBODY_SAYS if row.waiting is None else str(row.waiting)
        session = "" if row.session is None else f"   under session {row.session[-8:]}"
        written = "" if row.messages is None else f"   {counted(row.messages, 'message')}"
        written += "" if row.watermark_ns is None else f", up to {moment(row.watermark_ns, near)}"
        before = NOBODY_SAYS if row.previous is None else str(row.previous)
        lines = (
            (
                "holder",
                f"{row.node}/{row.process}  {row.purpose or '-'}   shard {row.shard}   mode {row.mode}{session}",
            ),
            ("lease", f"{row.correlation_id}   fence {row.fence}"),
            (
                "from",
                (
                    f"granted {moment(row.granted_ns, near)}   floor {moment(row.floor_ns, near)}   "
                    f"settle to {moment(row.settle_to_ns, near)}"
                ),
            ),
            (
                "until",
                (f"expiry {moment(row.expiry_ns, near)}   free by {moment(row.resumes_ns, near)}   waiting {waiting}"),
            ),
            ("stands", f"{lease_words(row, state.clock.now) or 'held'}   the one before: {before}{written}"),
        )
        self.say_lines([((f"{label:7} ", MUTED), text) for label, text in lines])
