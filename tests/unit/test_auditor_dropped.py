"""What a holder says of all leases of a session lease together, when it drops that: compared with what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from auditor.audit import Options, audit
from auditor.evidence.tree import Tree
from auditor.rules import endings
from tests.fault_injection import sessions
from tests.fault_injection.faults_sessions import (
    dropped_before_the_time_in_its_watermark,
    dropped_with_a_last_frame_that_nobody_wrote,
    dropped_with_a_watermark_from_before_it_was_granted,
    dropped_with_no_last_frame,
    dropped_with_the_last_frame_of_another_lease,
    kept_together,
)
from tests.fault_injection.fixtures import Story
from tests.support.mutants import plant
from timeagent.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from tests.fault_injection.tree import ClusterTree


def codes(tree: ClusterTree, *, hashed: bool = True) -> set[str]:
    return {finding.code for finding in audit(Tree(tree.root), options=Options(hashed=hashed)).findings}


# The highest watermark may be that of an attempt that came to nothing, under whichever lease.
@pytest.mark.parametrize("which", [0, 1, None])
def test_last_frame_of_any_lease_is_good_where_the_watermark_is_that_of_a_void_attempt(
    tmp_path: Path, which: int | None
) -> None:
    story, session, leases = kept_together(tmp_path, "alice", "bob")
    for lease in leases:
        story.writer.publish(story.grid, lease)
        story.tree.advance(MS)
    highest = leases[1].written_ns
    assert highest is not None
    head = None if which is None else leases[which].chain_head
    sessions.end(session, change={"watermark_ns": highest + MS, "chain_head": head})
    assert codes(story.done()) == set()


# Who may not have heard that a lease was ended alone may count what it wrote under that one, and name its last frame.
def test_session_of_which_a_lease_was_ended_alone_is_not_judged(tmp_path: Path) -> None:
    story, session, (first, second) = kept_together(tmp_path, "alice", "bob")
    story.writer.publish(story.grid, first)
    story.tree.advance(MS)
    story.writer.publish(story.grid, second)
    sessions.end_alone(second)
    sessions.end(session, change={"chain_head": second.chain_head, "watermark_ns": second.written_ns})
    assert "last-frame-mismatch" not in codes(story.done())


def test_without_digests_nobody_says_which_frame_was_the_last(tmp_path: Path) -> None:
    tree = dropped_with_the_last_frame_of_another_lease(tmp_path)
    assert codes(tree) == {"last-frame-mismatch"}
    assert codes(tree, hashed=False) == set()


def test_session_under_which_nobody_wrote_has_no_last_frame(tmp_path: Path) -> None:
    story, session, _ = kept_together(tmp_path)
    sessions.end(session)
    assert codes(story.done()) == set()


# What was taken under it before may have been named in any ledger block that is not there.
@pytest.mark.parametrize("known", [False, True])
def test_count_of_a_session_is_judged_where_its_beginning_is_known(tmp_path: Path, *, known: bool) -> None:
    story = Story(tmp_path)
    story.shard.keeps_ledger = known
    session = sessions.begin(story.shard, story.writer)
    lease = sessions.under(session, "alice", story.writer)
    story.shard.keeps_ledger = True
    story.tree.advance(MS)
    sessions.renew(session)
    story.writer.publish(story.grid, lease)
    sessions.end(session, change={"messages": 7})
    assert ("count-mismatch" in codes(story.done())) == known


MUTANTS: dict[str, tuple[ModuleType, str, str, str, Callable[[Path], ClusterTree]]] = {
    "any lease's last frame will do": (
        endings,
        "_last_frame",
        "last_ns == watermark",
        "True",
        dropped_with_the_last_frame_of_another_lease,
    ),
    "no last frame will do": (
        endings,
        "_last_frame",
        "named not in allowed",
        "named is not None and named not in allowed",
        dropped_with_no_last_frame,
    ),
    "a void attempt excuses all": (
        endings,
        "_last_frame",
        "named not in allowed",
        "reached and named not in allowed",
        dropped_with_a_last_frame_that_nobody_wrote,
    ),
    "a watermark from before the grant": (
        endings,
        "check_watermark",
        "not r2_holds(told.token, token)",
        "False",
        dropped_with_a_watermark_from_before_it_was_granted,
    ),
    "a watermark from after the end": (
        endings,
        "check_watermark",
        "not r2_holds(token, word.token)",
        "False",
        dropped_before_the_time_in_its_watermark,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_part_of_the_rule_is_needed(tmp_path: Path, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function, old, new, planted = MUTANTS[mutant]
    tree = planted(tmp_path)
    assert codes(tree)
    plant(monkeypatch, module, function, old, new)
    assert codes(tree) == set()
