"""Each rule by which idle logs cost nothing, and logs in use are closed promptly, broken once: a test notices it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag import horizon, metronome, packer, writing
from appliance.daemon import pace
from appliance.node import runtime
from tests.support.bags import Node
from tests.support.mutants import Mutant, check_noticed
from tests.support.storage import MemoryStorage
from tests.unit import test_bag_horizon as horizon_tests
from tests.unit import test_bag_pace as packing_tests
from tests.unit import test_pace as pace_tests

if TYPE_CHECKING:
    from pathlib import Path

MUTANTS = {
    "a log is polled": Mutant(
        metronome,
        "Metronome.turn",
        "next_ns = self._seal_due(self._unsealed())",
        "next_ns = now.earliest",
        pace_tests.test_nobody_looks_at_an_idle_log_before_something_can_be_due,
    ),
    "packing is polled": Mutant(
        metronome,
        "Packing._next_pack",
        "max(self._calm_until_ns, self._next.end_ns + DELAY_NS + wait)",
        "self._next.end_ns",
        packing_tests.test_racks_are_packed_some_at_a_turn_when_writers_had_their_time,
    ),
    "a turn that finds everything packed is followed by the next": Mutant(
        metronome,
        "Packing.turn",
        "self._calm_until_ns = now.latest + min(CALM_NS, self._grid.birth.rack_ns)",
        "pass",
        packing_tests.test_turns_that_find_everything_packed_are_far_apart,
    ),
    "a rack that could not be packed is passed over": Mutant(
        metronome,
        "Packing.turn",
        "self._next = racks[0]",
        "pass",
        packing_tests.test_rack_that_the_mount_did_not_let_be_packed_is_packed_by_the_next_turn,
    ),
    "retention is asked before anything can be old": Mutant(
        packer,
        "Retention.due_ns",
        "self._grid.rack(max(self._grid.first_ns, self._done_ns)).end_ns + self._keep_ns",
        "0",
        packing_tests.test_retention_does_not_begin_before_the_first_rack_can_be_old,
    ),
    "retention looks again at what is gone": Mutant(
        packer,
        "Retention._racks_before",
        "self._done_ns = rack.end_ns",
        "pass",
        packing_tests.test_retention_looks_once_at_a_rack_of_which_nothing_is_left,
    ),
    "all logs at one time": Mutant(
        metronome,
        "Metronome._seal_due",
        "self.sealer.expected_ns(rack) + waits",
        "self.sealer.expected_ns(rack)",
        pace_tests.test_looks_at_many_logs_are_spread_in_time,
    ),
    "all nodes at one time": Mutant(
        metronome,
        "stagger",
        "f'{node}\\x00{path}'.encode()",
        "path.encode()",
        horizon_tests.test_every_node_seals_a_rack_at_another_time,
    ),
    "writers wake nobody": Mutant(
        writing,
        "LookingWriter._ensure",
        "self._wake(bag.log)",
        "pass",
        pace_tests.test_log_that_is_used_again_after_idling_is_closed_as_promptly_as_one_in_use,
    ),
    "who asks for the horizon wakes nobody": Mutant(
        horizon,
        "Horizon.refresh",
        "self._wake(self._grid.birth.log)",
        "pass",
        pace_tests.test_bag_of_a_writer_that_woke_nobody_is_closed_where_somebody_asks_for_the_horizon,
    ),
    "the daemon wakes itself": Mutant(
        pace,
        "Pace.__init__",
        "replace(context, wake=wake_nobody)",
        "context",
        pace_tests.test_daemons_own_looks_wake_nobody,
    ),
    "a woken log waits for its rack": Mutant(
        pace,
        "Pace._wake",
        "soon_ns < log.due_ns",
        "False",
        pace_tests.test_every_bag_of_bursts_at_any_time_is_closed_promptly,
        (0,),
    ),
    "every node follows every log in use": Mutant(
        pace,
        "Pace._turn",
        "log.follow_to_ns",
        "2 ** 62",
        pace_tests.test_log_in_use_is_followed_by_nodes_that_use_it_and_by_no_other,
    ),
    "who packs looks for what is to be closed": Mutant(
        pace,
        "Pace._turn",
        "now.surely_past(log.close_ns)",
        "True",
        pace_tests.test_idle_log_is_looked_at_once_a_rack_and_node,
    ),
    "a log that is due twice has two turns": Mutant(
        pace,
        "Pace._due",
        "self._logs[name].due_ns = _TAKEN",
        "pass",
        pace_tests.test_log_that_was_woken_often_has_one_turn_when_it_is_due,
    ),
    "what is open is not looked for": Mutant(
        metronome,
        "Metronome.turn",
        "reached < in_use_ns",
        "False",
        pace_tests.test_log_that_is_used_again_after_idling_is_closed_as_promptly_as_one_in_use,
    ),
    "a turn that failed is the last": Mutant(
        pace,
        "Pace._turn",
        "next_ns = log.close_ns = now.latest + RETRY_NS",
        "next_ns = log.close_ns = 2 ** 62",
        pace_tests.test_turn_that_fails_is_tried_again_and_does_not_stop_the_others,
    ),
    "a server's clock that is behind is asked again at once": Mutant(
        metronome,
        "Metronome._seal",
        "max(sealed.due_ns, now.latest + SECOND_OPINION_NS)",
        "0",
        horizon_tests.test_file_server_whose_clock_is_behind_is_asked_again_later,
    ),
    "a file is taken away after its log was told": Mutant(
        runtime,
        "Wakes.taken",
        "path.unlink()",
        "pass",
        pace_tests.test_what_is_woken_is_told_once_and_again_when_it_is_woken_again,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_rule_is_noticed(
    name: str, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MemoryStorage()
    node = Node(server)
    ports = {"caplog": caplog, "monkeypatch": monkeypatch, "tmp_path": tmp_path, "server": server, "node": node}
    check_noticed(monkeypatch, MUTANTS[name], ports)
