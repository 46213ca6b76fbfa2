"""A real daemon, and an application of the same machine that writes to a log now and then, whose racks are long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.admin.trust import next_policy, publish_policy
from appliance.formats.paths import LOCK
from tests.support.cluster import wait_until
from tests.support.daemons import Daemons
from timeagent.clock import SystemClock
from timeagent.units import HOUR, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_NS = 60 * SECOND


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    with Daemons(tmp_path, "node1") as each:
        yield each


# Nobody looks at the log for most of an hour; nobody here settles or reads it.
def test_daemon_closes_what_was_written_to_a_log_that_it_had_left_alone(daemons: Daemons) -> None:
    site = daemons.site
    publish_policy(site.registers, site.root_key, next_policy(site.policy, {"rack_ns": HOUR}))
    daemons.start("node1")
    with site.open() as cluster, cluster.session() as session, session.acquire("d") as leases:
        for _ in range(3):
            session.publish("log", [b"m"], under=leases)
            newest = max(site.root.glob("logs/log/*/*/*/*.msg"))
            wait_until(SystemClock(), (newest.parent / LOCK).exists, PATIENCE_NS)
