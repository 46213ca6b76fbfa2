"""Leases kept together, in a cluster on a real file system: what readers accept and what the audit says of it."""

from __future__ import annotations

from appliance.bag.writing import Committed
from auditor.audit import audit
from auditor.evidence.finding import Verdict
from auditor.evidence.tree import Tree
from tests.support.cluster import Site


def test_what_is_written_under_session_leases_is_read_and_audited_clean(site: Site) -> None:
    with site.open() as cluster:
        with cluster.session("together", session_leases=True) as session:
            leases = session.acquire(*(f"tenant/{number}" for number in range(20)))
            assert all(lease.session_lease is not None for lease in leases)
            for lease in leases[:3]:
                assert isinstance(session.publish("log", [lease.domain.encode()], under=[lease]), Committed)
            session.relinquish(leases[:1])
        with cluster.session("after") as session:
            again = session.acquire("tenant/0", "tenant/1")
            found = [message.payload for message in session.read("log", under=again)]
        assert sorted(found) == sorted(lease.domain.encode() for lease in leases[:3])
        cluster.logs.opened("log").horizon.settle(cluster.time.now().latest)
    result = audit(Tree(site.root))
    assert [each.code for each in result.findings if each.verdict is Verdict.VIOLATION] == []
    assert result.summary.messages >= 3
