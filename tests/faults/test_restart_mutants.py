"""Each step of a restart, broken once: the test named beside it must notice."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from appliance.lease import ceiling, shard, store, whole_shard, witness_ledger
from appliance.lease.store import LeaseStore
from tests.support.mutants import Mutant, check_noticed
from tests.unit import test_lease_store as store_tests
from tests.unit import test_shard_restarts as tests

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.shards import World

TAKE, LEAVE, RESUME, SUSPEND = "LeaseStore._take", "LeaseStore.leave", "Shard.resume", "Shard.suspend"
MUTANTS = {
    "a file is found twice": Mutant(
        store, TAKE, "self._connection.execute('UPDATE stopped SET taken = 1')", "pass", tests.test_file_is_found_once
    ),
    "a copy of the file will do": Mutant(
        store, TAKE, "(digest, left) != (self._digest(), file)", "digest != self._digest()",
        tests.test_copy_of_the_file_is_nobodys,
    ),
    "a file that was changed will do": Mutant(
        store, TAKE, "(digest, left) != (self._digest(), file)", "left != file",
        tests.test_file_that_is_not_what_was_left_is_nobodys, ("DELETE FROM holder",),
    ),
    "session leases are in no digest": Mutant(
        store, "LeaseStore._digest", "('entry', 'holder', 'session')", "('entry', 'holder')",
        tests.test_file_that_is_not_what_was_left_is_nobodys, ("DELETE FROM session",),
    ),
    "a file of another form will do": Mutant(
        store, TAKE, "self._connection.pragma('user_version') != FORM", "False",
        tests.test_file_that_is_not_what_was_left_is_nobodys, ("PRAGMA user_version = 99",),
    ),
    "holders have other numbers": Mutant(
        store, TAKE, "self._connection.execute('SELECT record FROM holder ORDER BY number')",
        "reversed(list(self._connection.execute('SELECT record FROM holder ORDER BY number')))",
        tests.test_leases_of_several_holders_stay_theirs,
    ),
    "holders are named once more": Mutant(
        store, TAKE, "self.rows.named = len(self.rows.holders)", "pass", tests.test_run_that_went_on_can_stop_again
    ),
    "who began a session is forgotten": Mutant(
        store, TAKE, "self._begun[session.begun_by] = session.session_id", "pass",
        tests.test_session_leases_go_on_with_all_that_is_under_them,
    ),
    "what finds no room is left all the same": Mutant(
        store, LEAVE, "self._write(len(self._unwritten))", "(self._write(len(self._unwritten)) or True)",
        tests.test_nothing_is_left_where_the_tmpfs_has_no_room,
    ),
    "a share is written each time, however much there is": Mutant(
        store, "LeaseStore.write_some", "-(-len(each) // SHARES)", "0",
        store_tests.test_whatever_comes_is_in_the_file_after_twice_the_shares_and_the_dict_stays_small,
    ),
    "the file says nothing of session leases": Mutant(
        store, "LeaseStore.write_some", "self._write_sessions(self._session_share)", "pass",
        store_tests.test_file_says_who_holds_what_and_until_when,
    ),
    "session leases that are over stay in the file": Mutant(
        store, "LeaseStore._write_sessions", "[(each,) for each in some if each not in self.sessions]", "[]",
        store_tests.test_file_says_who_holds_what_and_until_when,
    ),
    "who reads the file ends the shard": Mutant(
        store, "LeaseStore._changed_file", "(apsw.FullError, apsw.BusyError)", "apsw.FullError",
        store_tests.test_whoever_reads_the_file_for_long_keeps_no_turn_waiting,
    ),
    "the very same bytes are one's own": Mutant(
        ceiling, "link_record", "must_win or port.read(number) != data", "port.read(number) != data",
        tests.test_of_two_who_link_the_same_bytes_one_goes_on,
    ),
    "the newest record of the chain may be another": Mutant(
        ceiling, "CeilingChain._goes_on", "newest is None or newest not in (record, pending)", "newest is None",
        tests.test_nobody_goes_on_once_another_has_linked_a_record,
    ),
    "a record in doubt must not be there": Mutant(
        ceiling, "CeilingChain._goes_on", "(record, pending)", "(record,)",
        tests.test_record_in_doubt_of_the_run_before_may_be_there_or_not, (True,),
    ),
    "a record is never in doubt again": Mutant(
        ceiling, "CeilingChain._link_and_look", "self._must_win = False", "pass",
        tests.test_link_that_was_won_is_won_though_the_look_failed,
    ),
    "any clock will do": Mutant(
        whole_shard, "Suspension.clock_difference", "behind > 0", "False",
        tests.test_clock_behind_what_was_signed_is_waited_for,
    ),
    "what was signed last is the last batch": Mutant(
        shard, SUSPEND, "max(said.signed_ns, turn.token.midpoint_ns)", "said.signed_ns",
        tests.test_record_that_a_shard_links_last_counts_as_signed,
    ),
    "any boot will do": Mutant(
        whole_shard, "Suspension.difference", "('the machine has begun anew: boot', self.boot, boot)", "('', 0, 0)",
        tests.test_what_is_anothers_is_named,
    ),
    "any node will do": Mutant(
        whole_shard, "Suspension.difference", "('it was left by node', self.node, fresh.node)", "('', 0, 0)",
        tests.test_what_is_anothers_is_named,
    ),
    "any ledger will do": Mutant(
        whole_shard, "Suspension.ledger_difference", "head_digest(open_block(piece, where).head) == self.head", "True",
        tests.test_ledger_has_to_end_with_the_batch_that_was_the_last,
    ),
    "what is tentative stays": Mutant(
        shard, SUSPEND, "self._break(turn, self._store.tentative(), Break(stopping=True))", "pass",
        tests.test_what_is_tentative_is_withdrawn,
    ),
    "who stops grants on": Mutant(
        shard, SUSPEND, "self._handler.stopping = True", "pass", tests.test_who_stops_grants_nothing_more
    ),
    "recalls are numbered anew": Mutant(
        shard, RESUME, "self._waiting.recalls.number = said.recalls", "pass",
        tests.test_recalls_go_on_with_their_numbers_and_revocations_are_told_still,
    ),
    "revocations are forgotten": Mutant(
        shard, RESUME, "self._handler.revocations.update({each.correlation_id: each for each in said.revoked})", "pass",
        tests.test_recalls_go_on_with_their_numbers_and_revocations_are_told_still,
    ),
    "rows are read by the numbers of the chain": Mutant(
        shard, RESUME, "self._eviction.begin(said.begun_floor_ns, said.begun_settle_to_ns)",
        "self._eviction.begin(self._chain.floor_ns, self._chain.settle_to_ns)",
        tests.test_rows_are_read_by_the_numbers_with_which_the_run_began,
    ),
    "evictions are forgotten": Mutant(
        shard, RESUME,
        "self._eviction.floor_ns, self._eviction.settle_to_ns = (said.floor_ns, said.settle_to_ns)", "pass",
        tests.test_evicted_domains_have_the_raised_floor,
    ),
    "the chain of batches begins anew": Mutant(
        witness_ledger, "BatchSigner.resume",
        "self.head, self.batches, self.blocks_lost = (said.head, said.batches, said.blocks_lost)", "pass",
        tests.test_leases_are_renewed_and_given_back_by_who_goes_on_in_the_same_incarnation,
    ),
}  # fmt: skip


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_broken_step_is_noticed(name: str, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(LeaseStore(tmp_path / "own.db")) as own:
        ports = {"world": world, "tmp_path": tmp_path, "monkeypatch": monkeypatch, "store": own}
        check_noticed(monkeypatch, MUTANTS[name], ports)
