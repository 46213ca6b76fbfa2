"""The clock that only moves when it is told to: the product's own, and what a clock does that is not well."""

from collections.abc import Iterator
from contextlib import contextmanager

from appliance.testing import stepped_cluster
from timeagent.units import Span


class HandTime(stepped_cluster.HandTime):
    """Hand-driven time that can be wrong for a while."""

    @contextmanager
    def set_back(self, span: Span) -> Iterator[None]:
        """Show an earlier time for a while, as a clock does that was set wrongly and then right again."""
        self.midpoint_ns -= span
        yield
        self.midpoint_ns += span

    @contextmanager
    def known_to(self, radius: Span) -> Iterator[None]:
        """Know the time no better than this for a while, as a node does whose guard against that has failed."""
        before, self.radius_ns = self.radius_ns, radius
        yield
        self.radius_ns = before
