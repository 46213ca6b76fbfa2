"""A cluster of one node whose root is an address: leases, messages, the audit, and a store with its bad moments."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from appliance.demo.place import set_up_place
from auditor.audit import audit
from auditor.evidence.opening import open_tree
from tenure import Cluster, Committed
from tests.support.object_store import s3_server
from timeagent.clock import SystemClock


@pytest.mark.parametrize("answers", [[], ["503", "done, 500", "", "409", "", "done, 500", "503"]], ids=["good", "bad"])
def test_what_is_committed_is_read_and_audited(
    answers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(monkeypatch) as server:
        chance = random.Random(str(tmp_path))
        place = set_up_place(tmp_path / "demo", 1, SystemClock().realtime_ns(), chance, "s3://bucket/root")
        try:
            with Cluster.open("s3://bucket/root", node_dir=place.machines[0].directory, allow_root=True) as cluster:
                cluster.create_log("batches", "log")
                with cluster.session() as session, session.acquire("account/7", record_only=True) as leases:
                    server.answers = list(answers)
                    for log in ("ledger", "batches", "ledger"):
                        assert isinstance(session.publish(log, [b"m"], under=leases), Committed)
                now = cluster.time.now().latest
                for log, count in (("ledger", 2), ("batches", 1)):
                    cluster.logs.opened(log).horizon.settle(now)
                    assert [message.payload for message in cluster.read(log)] == [b"m"] * count
        finally:
            place.forget()
        result = audit(open_tree(Path("s3://bucket/root")))
        assert result.findings == ()
        assert not any(key.startswith("root/tmp/") for key in server.objects)
