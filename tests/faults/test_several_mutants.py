"""One taken for all: the first of several, a verdict kept for another. Planted, the test beside it must notice."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

from appliance.bag import acceptance, closedbags, closing, horizon, message, packer, reader
from appliance.bag.acceptance import Refusal
from appliance.bag.writing import Committed, Unknown
from appliance.formats import chains, hints
from appliance.formats.framing import Kind
from appliance.lease import ceiling, decisions
from appliance.lease import sessions as lease_sessions
from appliance.node import records, writer_client, writer_server
from tests.faults import test_lease_ceiling as ceilings
from tests.faults.test_hint_mutants import plant
from tests.unit import test_bag_packing as packs
from tests.unit import test_bag_several as bags
from tests.unit import test_lease_several as alone
from tests.unit import test_nodewriter_several as writers
from tests.unit import test_registers as registries
from tests.unit import test_session_hints as hints_tests
from tests.unit import test_session_several as sessions
from timeagent.errors import TenureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

node, server = bags.node, bags.server
site = alone.site
registers, storage = registries.registers, registries.storage

type Fault = tuple[ModuleType, str, str, str, Callable[..., None], tuple[Any, ...]]

MUTANTS: dict[str, Fault] = {
    "cursor that skips the rest of a bag": (
        reader,
        "Reader._closed_bag",
        "min(closed.bag.end_ns, until + 1)",
        "closed.bag.end_ns",
        bags.test_reading_that_ended_inside_a_bag_is_gone_on_with_where_it_ended,
        (10, False),
    ),
    "batch complete up to its last message only": (
        reader,
        "Reader._closed_bag",
        "min(closed.bag.end_ns, until + 1)",
        "min(closed.bag.end_ns, until)",
        bags.test_batch_says_how_far_it_is_complete_and_no_further,
        (5,),
    ),
    "position that goes back": (
        reader,
        "Reading._move",
        "max(self.position, to)",
        "to",
        bags.test_reading_that_ends_below_where_it_begins_does_not_go_back,
        (),
    ),
    "seal read up to and without the last instant": (
        reader,
        "Reader._then_open",
        "in_seal(found, rack, start, until + 1, gone)",
        "in_seal(found, rack, start, until, gone)",
        bags.test_latest_reading_up_to_the_beginning_of_a_bag_has_its_first_message,
        (0,),
    ),
    "narrow reading that leaves out the rest of a bag": (
        reader,
        "Reader.in_files",
        "bag.end_ns > after_ns + 1",
        "bag.start_ns > after_ns",
        sessions.test_narrow_reading_above_an_instant_has_the_rest_of_that_bag,
        (),
    ),
    "verdict of another trust record": (
        reader,
        "Reader._judged",
        "(judge, bag.path, name, piece.digest)",
        "(bag.path, name, piece.digest)",
        bags.test_verdict_on_a_frame_is_of_the_trust_record_that_its_lock_names,
        (),
    ),
    "verdict of another bag": (
        reader,
        "Reader._judged",
        "(judge, bag.path, name, piece.digest)",
        "(judge, name, piece.digest)",
        bags.test_verdict_on_a_frame_is_of_its_bag,
        (),
    ),
    "verdict of another file": (
        reader,
        "Reader._judged",
        "(judge, bag.path, name, piece.digest)",
        "(judge, bag.path, piece.digest)",
        bags.test_verdict_on_a_frame_is_of_the_name_of_its_file,
        (),
    ),
    "judge of another trust record": (
        reader,
        "Reader._judge",
        "self._judges.get(numbers)",
        "next((each for known, each in self._judges.items() if known.policy == numbers.policy), None)",
        bags.test_each_bag_is_judged_by_both_records_that_its_lock_names,
        (),
    ),
    "judge of another policy": (
        reader,
        "Reader._judge",
        "self._judges.get(numbers)",
        "next((each for known, each in self._judges.items() if known.trust == numbers.trust), None)",
        bags.test_each_bag_is_judged_by_both_records_that_its_lock_names,
        (),
    ),
    "witness good for whoever shows it": (
        acceptance,
        "Judge.__init__",
        "lru_cache(_SIGNATURES_KEPT)(self._read_witness)",
        "(lambda kept: lambda raw, *who: kept.setdefault(raw, self._read_witness(raw, *who)))({})",
        bags.test_verdict_on_a_witness_is_of_who_shows_it,
        (),
    ),
    "any signature of a batch that was good once": (
        acceptance,
        "Judge.__init__",
        "lru_cache(_SIGNATURES_KEPT)(self._head_refused)",
        "(lambda kept: lambda head, by: kept.setdefault(head, self._head_refused(head, by)))({})",
        bags.test_verdict_on_a_signature_is_of_all_its_bytes,
        (),
    ),
    "only the first message judged": (
        acceptance,
        "Judge.verdict",
        "refusal(int(frame.timestamps[0])) is None and refusal(int(frame.timestamps[-1])) is None",
        "refusal(int(frame.timestamps[0])) is None",
        bags.test_rule_is_kept_by_each_message_of_a_frame,
        (Refusal.EXPIRED, (0, 1, 2, 3), {"expiry_ns": 2}, b"01"),
    ),
    "only the last message judged": (
        acceptance,
        "Judge.verdict",
        "refusal(int(frame.timestamps[0])) is None and refusal(int(frame.timestamps[-1])) is None",
        "refusal(int(frame.timestamps[-1])) is None",
        bags.test_rule_is_kept_by_each_message_of_a_frame,
        (Refusal.FLOOR, (0, 1, 2, 3), {"floor_ns": 1}, b"23"),
    ),
    "closer that keeps the records of before": (
        closing,
        "Closer._promise",
        "looked, named = (self._time.now(), self._records.newest())",
        "looked, named = (self._time.now(), self.__dict__.setdefault('_first', self._records.newest()))",
        bags.test_closer_names_the_newest_records_at_each_bag,
        (),
    ),
    "registers that keep the trust record of before": (
        records,
        "Registers.newest",
        "self._newest(Kind.TRUST)",
        "self.__dict__.setdefault('_first', self._newest(Kind.TRUST))",
        registries.test_each_register_is_looked_at_afresh_whenever_both_are_asked_for,
        (Kind.TRUST, (2, 1)),
    ),
    "record that is gone taken for one's own": (
        ceiling,
        "link_record",
        "port.read(number) != data",
        "port.read(number) not in (None, data)",
        ceilings.test_record_that_is_gone_when_it_is_read_is_nobodys_own,
        (),
    ),
    "record that cannot be read taken for one's own": (
        ceiling,
        "link_record",
        "return InDoubt(f'record {number} may be linked or not: {problem.message}')",
        "taken = number not in port.list_afresh()",
        ceilings.test_record_that_cannot_be_read_is_nobodys_own,
        (),
    ),
    "stretches that are gone, and what lies between": (
        closedbags,
        "Stretches.meet",
        "self.met[-1].end_ns == stretch.start_ns",
        "True",
        bags.test_stretches_that_are_gone_are_one_only_where_they_touch,
        (),
    ),
    "frame whole where its first message is wanted": (
        message,
        "BatchPart.up_to",
        "self.last_ns <= until_ns",
        "self.first_ns <= until_ns",
        bags.test_reading_that_ended_inside_a_bag_is_gone_on_with_where_it_ended,
        (10, False),
    ),
    "settled as the first of several logs": (
        message,
        "merged",
        "all((batch.settled for batch in batches))",
        "any((batch.settled for batch in batches))",
        bags.test_messages_of_several_logs_are_settled_and_complete_as_the_least_of_them,
        ((True, False),),
    ),
    "bag left out in which a reading begins": (
        closedbags,
        "ClosedBags.there",
        "bag.end_ns > start",
        "bag.start_ns >= start",
        bags.test_reading_that_begins_inside_a_bag_has_its_rest_however_many_bags_follow,
        (True,),
    ),
    "what is known of some bags taken for all of the rack": (
        closedbags,
        "ClosedBags._names",
        "begin <= start and end <= until",
        "until",
        bags.test_reading_that_begins_inside_a_bag_has_its_rest_however_many_bags_follow,
        (False,),
    ),
    "lease as long as the longest session lease": (
        acceptance,
        "Judge._standing",
        "= (session.expiry_ns,",
        "= (max((each.expiry_ns for each, _ in sessions.values())),",
        bags.test_lease_is_over_with_its_own_session_lease,
        ((0, 1),),
    ),
    "horizon that is followed through one rack": (
        horizon,
        "Horizon.refresh",
        "while self._follow",
        "if self._follow",
        bags.test_horizon_that_is_looked_at_afresh_lies_behind_every_bag_that_is_closed,
        (),
    ),
    "one pack more than a turn may delete": (
        packer,
        "Retention.turn",
        "len(deleted) >= most",
        "len(deleted) > most",
        packs.test_one_turn_of_retention_deletes_as_many_packs_as_it_may,
        (1,),
    ),
    "one bound too many forgotten of several": (
        hints,
        "_fewer_bounds",
        "while len(bounds) > LOGS_MAX:",
        "if len(bounds) > LOGS_MAX:",
        hints_tests.test_number_of_bounds_is_limited_and_the_highest_are_kept,
        (),
    ),
    "file as far as one of two says": (
        hints,
        "joined",
        "known is None or known.last_ns <= place.last_ns",
        "known is None",
        hints_tests.test_file_that_two_name_reaches_as_far_as_either_says,
        (),
    ),
    "highest bound forgotten of too many": (
        hints,
        "_fewer_bounds",
        "min(bounds, key=bounds.__getitem__)",
        "max(bounds, key=bounds.__getitem__)",
        hints_tests.test_number_of_bounds_is_limited_and_the_highest_are_kept,
        (),
    ),
    "one place capped": (
        hints,
        "capped",
        "if each.last_ns > highest_ns else each",
        "if each is hints.places[0] and each.last_ns > highest_ns else each",
        hints_tests.test_nothing_of_what_is_capped_lies_above,
        (),
    ),
    "no bound capped": (
        hints,
        "capped",
        "if each.above_ns > highest_ns else each",
        "if False else each",
        hints_tests.test_nothing_of_what_is_capped_lies_above,
        (),
    ),
    "first file of the node's writer searched": (
        writer_client,
        "SharedWriter._searched",
        "for entry in contents.lock.entries:",
        "for entry in contents.lock.entries[:1]:",
        writers.test_frame_is_found_wherever_the_nodes_writer_has_put_it,
        (),
    ),
    "first frame of a file searched": (
        writer_client,
        "SharedWriter._searched",
        "in self._files.pieces_of(file.bag, entry)",
        "in self._files.pieces_of(file.bag, entry)[:1]",
        writers.test_frame_is_found_wherever_the_nodes_writer_has_put_it,
        (),
    ),
    "attempts of one bag taken for one": (
        writer_client,
        "_key",
        "file.bag.path, file.name.text()",
        "file.bag.path, file.name.writer",
        writers.test_each_attempt_in_doubt_is_decided_for_itself,
        (),
    ),
    "first frame of a submission checked": (
        writer_server,
        "NodeWriter._checked",
        "for piece in found:",
        "for piece in found[:1]:",
        writers.test_every_frame_of_a_submission_is_one_of_this_node_and_bag,
        (2,),
    ),
    "first message of a frame checked": (
        writer_server,
        "NodeWriter._checked",
        "int(frame.timestamps[-1]) < bag.end_ns",
        "int(frame.timestamps[0]) < bag.end_ns",
        writers.test_every_frame_of_a_submission_is_one_of_this_node_and_bag,
        (0,),
    ),
    "one log for all": (
        writer_server,
        "NodeWriter._log",
        "self._logs.get(name)",
        "next(iter(self._logs.values()), None)",
        writers.test_each_log_has_its_own_bags,
        (),
    ),
    "file named although there may be two": (
        writer_server,
        "NodeWriter._write",
        "isinstance(outcome, Committed) and attempt",
        "False",
        writers.test_file_of_frames_is_named_only_where_they_were_written_once,
        ((Unknown("lost"), Committed("g")), None),
    ),
    "room of the first submission only": (
        writer_server,
        "Batcher._flush",
        "len(data)",
        "len(taken[0][0])",
        writers.test_what_several_have_handed_in_makes_room_again_once_it_is_written,
        (),
    ),
    "next number of another overlooked": (
        ceiling,
        "look_for",
        "numbers[-1] > number",
        "numbers[-1] > number + 1",
        ceilings.test_pruned_slot_that_can_be_linked_again_gives_no_right,
        (3,),
    ),
    "right without a look where nothing is listed": (
        ceiling,
        "look_for",
        "return InDoubt(f'record {number} is linked and not seen: {problem.message}')",
        "return [number]",
        ceilings.test_record_that_nobody_can_list_gives_no_right,
        (),
    ),
    "record of another shard taken for one's own chain's": (
        chains,
        "ceiling_of",
        "record.map_number, record.shard, record.number",
        "record.map_number, shard, record.number",
        ceilings.test_record_of_another_chain_is_damage,
        ({"shard": 1},),
    ),
    "ceiling below what the record says": (
        ceiling,
        "CeilingChain._next_record",
        "max(before_ns, floor_ns, settle_to_ns)",
        "before_ns",
        ceilings.test_last_record_says_no_more_than_its_ceiling,
        ((5, 9),),
    ),
    "lease beside one that has ended not kept by its session": (
        lease_sessions,
        "as_of",
        "each.correlation_id == lease.correlation_id",
        "each is lease",
        alone.test_each_of_those_who_share_a_domain_lives_as_long_as_its_own_session_lease,
        (0,),
    ),
    "first lease of a domain kept by its session": (
        lease_sessions,
        "as_of",
        "for lease, session_id in in_sessions(state):",
        "for lease, session_id in in_sessions(state)[:1]:",
        alone.test_each_of_those_who_share_a_domain_lives_as_long_as_its_own_session_lease,
        (0,),
    ),
    "first of those who share told of the end of another": (
        lease_sessions,
        "Sessions.decided",
        "lease.correlation_id in alone",
        "alone and lease is in_sessions(before)[0][0]",
        alone.test_who_of_several_is_ended_alone_hears_of_it_and_the_others_do_not,
        (1,),
    ),
    "first lease in the way named": (
        decisions,
        "_denied",
        "max(blocking, key=lambda each: (each.expiry_ns, each.fence))",
        "blocking[0]",
        alone.test_who_is_refused_is_told_of_the_lease_that_is_in_the_way_for_longest,
        ((0, 1, 2),),
    ),
    "settled reading up to its last instant without it": (
        reader,
        "Reader.batches",
        "min(horizon, until + 1)",
        "min(horizon, until)",
        bags.test_settled_reading_up_to_the_beginning_of_a_bag_has_its_first_message,
        (0,),
    ),
    "rack that is not packed keeps all others": (
        packer,
        "Retention.old",
        "yield NotPacked(rack)\ncontinue",
        "yield NotPacked(rack)\nreturn",
        packs.test_rack_that_is_not_packed_keeps_no_other_from_being_deleted,
        (),
    ),
}


def check_noticed(fault: Fault, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault, and see its test fail, in its own words or in those of the code under it."""
    module, function, old, new, caught_by, arguments = fault
    parameters = list(inspect.signature(caught_by).parameters)
    given = dict(zip(parameters[len(parameters) - len(arguments) :], arguments, strict=True))
    given |= {each: request.getfixturevalue(each) for each in parameters if each not in given}
    plant(monkeypatch, (module, function, old, new))
    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception, TenureError)):
        caught_by(**given)


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_one_taken_for_all_is_noticed(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_noticed(MUTANTS[name], request, monkeypatch)
