"""What costs an audit more than it is long: none of what somebody can write down is looked at once for each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec

from appliance.formats.framing import Kind
from appliance.formats.shardmap import ShardMap
from auditor.audit import audit, audit_with_timeline
from auditor.evidence.finding import Evidence, found
from auditor.evidence.records import ClusterRecords
from auditor.evidence.tree import Tree
from auditor.rules.endings import _forgotten
from auditor.rules.history import SessionHistory, ShardRun
from auditor.timeline.timeline_reader import StoredEvents
from tests.fault_injection import sessions
from tests.fault_injection.faults_sessions import kept_together
from tests.fault_injection.fixtures import small_tree
from tests.support.by_rules import all_suspect
from tests.support.steps import steps
from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from auditor.evidence.finding import Finding
    from auditor.rules.history import ToldOfSession
    from auditor.timeline.timeline_reader import Posting


def test_gaps_of_a_ledger_are_not_gone_over_for_each_lease() -> None:
    def asked(count: int) -> int:
        run = ShardRun(b"run", (1, 0), 1)
        for number in range(count):
            run.take(2 * number + 1, in_ledger=True)
        assert [run.whole(*each) for each in ((1, 1), (1, 3), (3, 3), (2, 3), (2 * count + 1, 2 * count + 1))] == [
            *(True, False, True, False, False)
        ]
        return steps(lambda: [run.whole(2 * number + 1, 2 * number + 2) for number in range(count)])

    assert asked(800) < 20 * asked(100)


def test_renewals_of_a_session_lease_are_not_gone_over_for_each_lease_under_it(tmp_path: Path) -> None:
    def judged(count: int) -> int:
        story, session, _ = kept_together(tmp_path / str(count), *(f"domain{number}" for number in range(count)))
        for _ in range(count):
            story.tree.advance(MS)
            sessions.renew(session)
        sessions.end(session)
        tree = story.done()
        found: list[Finding] = []
        spent = steps(lambda: found.extend(audit(Tree(tree.root)).findings))
        assert not found
        return spent

    assert judged(240) < 9 * judged(30)


class Compared(bytes):
    """Bytes that count how often they are compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Compared.compared += 1
        return super().__eq__(other)

    __hash__ = bytes.__hash__


def test_leases_that_were_ended_alone_are_not_compared_each_with_each(tmp_path: Path) -> None:
    _, session, _ = kept_together(tmp_path)
    names = tuple(Compared(number.to_bytes(16, "big")) for number in range(500))
    witness = msgspec.structs.replace(session.witness, ended=names)
    told = [SimpleNamespace(witness=witness, position=(1, 1, b"", at, 0), where=None) for at in range(2)]
    assert not [*_forgotten(SessionHistory(witness.session_id, cast("list[ToldOfSession]", told)), [])]
    assert Compared.compared < 5_000


def test_what_cannot_be_read_is_not_gone_over_for_each_directory(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for number in range(400):
        tree.unreadable[f"logs/{number}/x"] = "it is a link"
    tree.unreadable["logs"] = "no"
    assert tree.barred("logs/3") == ["logs/3/x"]
    assert tree.barred("logs") == ["logs"]
    assert steps(lambda: [tree.barred(f"logs/{number}") for number in range(400)]) < 40_000


def test_maps_are_not_gone_over_for_each_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def leaving(own: ShardMap) -> tuple[int, ...]:
        asked.append(own.number)
        return get(own)

    get = cast("Callable[[ShardMap], tuple[int, ...]]", cast("property", ShardMap.leaving).fget)
    story, *_ = kept_together(tmp_path, *(f"domain{number}" for number in range(40)))
    tree = story.done()
    monkeypatch.setattr(ShardMap, "leaving", property(leaving))
    with all_suspect():
        audit(Tree(tree.root))
    assert 0 < len(asked) < 20 + story.shard.sequence


def test_events_of_a_file_are_not_gone_over_for_each_finding_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def listed_with(events: StoredEvents, posting: Posting, key: str) -> object:
        asked.append(key)
        return get(events, posting, key)

    get = StoredEvents.listed_with
    monkeypatch.setattr(StoredEvents, "listed_with", listed_with)
    tree = small_tree(tmp_path)
    findings = [found("r2-breach", str(n), "planted", [Evidence("ledger/x", n)]) for n in range(100)]
    assert len(audit_with_timeline(Tree(tree.root), findings=findings)[1].findings) == 100
    assert asked == ["ledger/x"]


def test_directories_of_a_made_up_path_are_not_looked_for_one_by_one(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.unreadable["logs/a"] = "it is a link"
    assert tree.hides("logs/a")
    assert tree.hides("logs/a" + "/x" * 100_000)
    found: list[bool] = []
    assert steps(lambda: found.append(tree.hides("logs/b" + "/x" * 100_000))) < 100
    assert found == [False]


def test_records_that_are_none_are_not_gone_over_for_each_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Kind] = []

    def there(records: ClusterRecords, kind: Kind) -> object:
        asked.append(kind)
        return get(records, kind)

    get = ClusterRecords.there
    monkeypatch.setattr(ClusterRecords, "there", there)
    records = ClusterRecords(bytes(16), None, pinned=False, rejected={Kind.POLICY: {1, 7}})
    assert [records.unknown(Kind.POLICY, number) for number in (0, 1, 7, 8)] == [True, False, False, True]
    assert all(records.unknown(Kind.TRUST, number) for number in range(100))
    assert len(asked) < 10
