"""What may become of a request to the simulated mount that fails, and of a listing while others write."""

from __future__ import annotations

from tests.simulation.client import MountMishaps
from tests.simulation.test_mount import Scene
from timeagent.errors import Environment
from timeagent.units import SECOND


def test_a_failed_append_was_done_was_done_in_part_or_not_or_will_be_done() -> None:
    sizes = set()
    for seed in range(300):
        scene = Scene(seed, MountMishaps(failure=2))

        def body(scene: Scene = scene) -> None:
            try:
                scene.a.append("d/x", b"123456", 0)
            except Environment:
                file = scene.server.find("d/x")
                before = -1 if file is None else len(file.data)
                scene.scheduler.sleep(60 * SECOND)
                file = scene.server.find("d/x")
                sizes.add((before, -1 if file is None else len(file.data)))

        scene.play(body)
    assert {(-1, -1), (-1, 0), (0, 0), (0, 6), (6, 6), (3, 3)} <= sizes


def test_a_failure_was_done_was_not_done_or_will_be_done() -> None:
    found = set()
    for seed in range(100):
        scene = Scene(seed, MountMishaps(failure=1))

        def body(scene: Scene = scene) -> None:
            try:
                scene.a.ensure_marker("d/x")
            except Environment as problem:
                now = scene.server.find("d/x") is not None
                scene.scheduler.sleep(60 * SECOND)
                found.add((problem.code, now, scene.server.find("d/x") is not None))

        scene.play(body)
    assert found == {
        ("mount-failed", True, True),
        ("mount-failed", False, True),
        ("mount-failed", False, False),
        ("mount-full", False, False),
    }


def test_a_listing_may_miss_what_appears_while_it_runs_and_never_what_was_there() -> None:
    both = set()
    for seed in range(400):
        scene = Scene(seed)

        def maker(scene: Scene = scene) -> None:
            scene.a.ensure_marker("d/old")
            scene.saw.append("old")
            scene.a.ensure_marker("d/new")

        def lister(scene: Scene = scene) -> None:
            known = set(map(str, scene.saw))
            names = set(scene.b.list_afresh("d") or ())
            assert names >= known
            both.add(frozenset(names))

        scene.play(maker, lister)
    assert both == {frozenset(), frozenset({"old"}), frozenset({"new", "old"})} | (both & {frozenset({"new"})})
