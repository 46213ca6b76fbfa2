"""What checkers go by is told them: no two publications look alike."""

from __future__ import annotations

from collections import Counter

from tests.simulation.scenarios import SCENARIOS

SEEDS = 40


# Readers may accept a message that a writer repeats after a restart, and not the one that was committed.
def test_no_two_publications_say_the_same_also_when_their_writer_began_again() -> None:
    restarts = 0
    for seed in range(SEEDS):
        world = SCENARIOS["bags"](seed)
        world.run()
        restarts += world.scheduler.crashes
        payloads = Counter(payload for attempt in world.history.attempts for payload in attempt.payloads)
        assert set(payloads.values()) <= {1}, payloads
    assert restarts
