"""The page that compares: its programs are there and no longer than others', and what plays them sees who is unsafe."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.compare.run import FAULTS, PAGE, TASKS, Program, Scene, programs, services, words
from tests.support.documents import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

FOUND = programs()
LIBRARIES = ("tenure", "filelock", "kazoo", "etcd3gw")


def test_each_task_is_shown_with_each_library() -> None:
    assert Counter((each.task, each.library) for each in FOUND) == Counter(
        (task, library) for task in TASKS for library in LIBRARIES
    )
    for each in FOUND:
        compile(each.text, each.library, "exec")


@pytest.mark.parametrize("task", TASKS)
def test_ours_is_no_longer_than_what_also_notices_a_lost_lease(task: str) -> None:
    lines = {each.library: each.lines for each in FOUND if each.task == task}
    assert lines["tenure"] <= min(lines["kazoo"], lines["etcd3gw"])


def test_table_has_each_program_with_its_length() -> None:
    page = (REPOSITORY / PAGE).read_text(encoding="utf-8")
    for each in FOUND:
        assert f"| {TASKS[each.task]} | {each.library} | {each.lines} |" in page


UNCHECKED = """def nightly(cluster, work):
    with cluster.session("nightly") as session, Mutex(session, "nightly"):
        for step in work:
            step()
"""


@pytest.mark.verify
@pytest.mark.timeout(120)
@pytest.mark.parametrize("checks", [True, False])
def test_program_that_does_not_check_is_seen_beside_the_next(tmp_path: Path, *, checks: bool) -> None:
    (shown,) = [each for each in FOUND if (each.library, each.task) == ("tenure", "nightly")]
    program = shown if checks else Program("tenure", "nightly", UNCHECKED)
    with services(tmp_path, ("tenure",)) as found:
        told = Scene(tmp_path, program, *found["tenure"]).play("stands still and wakes up")
    assert told.next_s is not None
    assert (told.beside == 0) is checks
    assert ("**" in words(next(iter(FAULTS)), told)) is not checks
