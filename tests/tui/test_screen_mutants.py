"""What would be wrong with a screen, planted one by one: a test of the screens catches each."""

import pytest

import tui.app
import tui.feed
import tui.model.clocks
import tui.model.overview
import tui.model.words
import tui.widgets.bag_grid
import tui.widgets.row_table
from tests.support.mutants import plant
from tests.tui import test_screens as screens
from tests.tui import test_screens_bags as bags
from tests.tui import test_screens_details as details
from tests.tui import test_top_screen as shell
from tests.tui import test_words as words


def test_no_answer_shown_as_zero_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.model.words, "_known", "Cell('?', Tone.WARN)", "Cell('0')")
    with pytest.raises(AssertionError):
        words.test_silent_shard_is_not_zero()


def test_leases_of_a_silent_shard_counted_as_none_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch, tui.model.overview, "leases_count", "f'at least {known}' if silent else str(known)", "str(known)"
    )
    monkeypatch.setattr(words, "leases_count", tui.model.overview.leases_count)
    with pytest.raises(AssertionError):
        words.test_leases_of_silent_shards_are_not_counted_as_none()


def test_source_that_is_read_on_the_screens_thread_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.feed, "Feed.do", "self._thread('top work', run, failed)", "run()")
    monkeypatch.setattr(details.Hanging, "patience_s", 0.5)
    with pytest.raises(AssertionError):
        details.test_hung_mount_leaves_details_waiting_in_words_and_the_keys_alive()


@pytest.mark.verify
def test_hung_mount_taken_for_one_that_is_slow_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.feed, "AskedQuestion.freshness", "now - asked > SILENT_NS", "False")
    with pytest.raises(AssertionError):
        shell.test_hung_mount_leaves_the_keys_alive_and_is_named()


def test_cursor_that_keeps_its_place_and_loses_its_lease_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    same = "self._key is None or key_at(last) == self._key"
    plant(monkeypatch, tui.widgets.row_table, "PickTable._found", same, "True")
    with pytest.raises(AssertionError):
        screens.test_cursor_stays_with_its_lease_through_sort_filter_and_refresh()


def test_answer_about_another_subject_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.widgets.row_table, "DetailTable.ask", "number == self._asked", "True")
    with pytest.raises(AssertionError):
        details.test_answer_that_is_overtaken_is_not_shown()


def test_damage_hidden_by_a_coarse_zoom_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.widgets.bag_grid, "BagLayout.cell", "any((bag.damage for bag in bags))", "bags[0].damage")
    with pytest.raises(AssertionError):
        bags.test_coarser_zoom_keeps_what_most_wants_to_be_looked_at()


def test_clock_that_went_silent_shown_as_good_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.model.clocks, "ClockRows._standing", "self.asked and clock.ahead is None", "False")
    with pytest.raises(AssertionError):
        bags.test_clocks_stand_on_one_axis_with_what_is_wrong_in_words()


def test_pause_that_does_not_hold_the_picture_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, tui.app, "TopApp.on_state_arrived", "self.paused and (not self._one_more)", "False")
    with pytest.raises(AssertionError):
        shell.test_pause_holds_the_picture_until_it_is_released()
