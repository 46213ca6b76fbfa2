"""Each limit of the wire, and each check of a version, removed or off by one: the test named beside it must notice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from appliance.lease import connection, listeners, request_handler, server, tls, transport, wire
from tests.support.loops import HandServer
from tests.support.mutants import Mutant, check_noticed
from tests.support.nodes import DoorWorld
from tests.support.shards import World
from tests.unit import test_lease_edges as edges
from tests.unit import test_lease_listeners as door_tests
from tests.unit import test_lease_modes as mode_tests
from tests.unit import test_lease_wire as wire_tests

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from appliance.lease.connection import ClientLimits

TAKE = "ShardServer._take_in"
CALLS = "ShardServer._take_calls"
LOOK = "ShardServer._look_around"
ALL = "len(self._connections) >= self._limits.connections_max"
PEER = "peer.connections >= self._limits.connections_per_peer"

MUTANTS = {
    "frame of any length": Mutant(
        wire,
        "body_length",
        "length > limit",
        "False",
        edges.test_frame_as_long_as_it_may_be_is_taken_and_one_byte_more_is_not,
    ),
    "frame one byte shorter": Mutant(
        wire,
        "body_length",
        "length > limit",
        "length >= limit",
        edges.test_frame_as_long_as_it_may_be_is_taken_and_one_byte_more_is_not,
    ),
    "frame one byte longer": Mutant(
        wire,
        "body_length",
        "length > limit",
        "length > limit + 1",
        edges.test_frame_as_long_as_it_may_be_is_taken_and_one_byte_more_is_not,
    ),
    "call as long as an answer": Mutant(
        connection,
        "Connection.next_frame",
        "wire.REQUEST_FRAME_BYTES_MAX",
        "16 * 1024 * 1024",
        edges.test_call_longer_than_a_call_may_be_is_refused_by_its_head,
    ),
    "answer of any length": Mutant(
        transport,
        "SocketTransport._exchange",
        "wire.REPLY_FRAME_BYTES_MAX",
        "2 ** 32",
        edges.test_answer_longer_than_an_answer_may_be_is_not_read,
    ),
    "call sent at any length": Mutant(
        wire,
        "encode_call",
        "len(requests) > REQUESTS_MAX or len(body) > REQUEST_FRAME_BYTES_MAX",
        "len(requests) > REQUESTS_MAX",
        wire_tests.test_limits_of_a_call_are_kept_on_both_sides,
    ),
    "any number of requests sent": Mutant(
        wire,
        "encode_call",
        "len(requests) > REQUESTS_MAX or len(body) > REQUEST_FRAME_BYTES_MAX",
        "len(body) > REQUEST_FRAME_BYTES_MAX",
        wire_tests.test_limits_of_a_call_are_kept_on_both_sides,
    ),
    "any number of requests taken": Mutant(
        wire,
        "decode_call",
        "len(requests) > REQUESTS_MAX",
        "False",
        wire_tests.test_limits_of_a_call_are_kept_on_both_sides,
    ),
    "one request fewer": Mutant(
        wire,
        "decode_call",
        "len(requests) > REQUESTS_MAX",
        "len(requests) >= REQUESTS_MAX",
        wire_tests.test_limits_of_a_call_are_kept_on_both_sides,
    ),
    "any number of connections": Mutant(
        server,
        TAKE,
        ALL,
        "False",
        edges.test_as_many_connections_as_there_may_be_are_in_and_the_next_is_told,
        ("connections_max",),
    ),
    "one connection more": Mutant(
        server,
        TAKE,
        ALL,
        ALL.replace(">=", ">"),
        edges.test_as_many_connections_as_there_may_be_are_in_and_the_next_is_told,
        ("connections_max",),
    ),
    "any number of connections of one peer": Mutant(
        server,
        TAKE,
        PEER,
        "False",
        edges.test_as_many_connections_as_there_may_be_are_in_and_the_next_is_told,
        ("connections_per_peer",),
    ),
    "one connection of a peer more": Mutant(
        server,
        TAKE,
        PEER,
        PEER.replace(">=", ">"),
        edges.test_as_many_connections_as_there_may_be_are_in_and_the_next_is_told,
        ("connections_per_peer",),
    ),
    "connections of a peer are not counted": Mutant(
        server,
        TAKE,
        "peer.connections += 1",
        "pass",
        edges.test_as_many_connections_as_there_may_be_are_in_and_the_next_is_told,
        ("connections_per_peer",),
    ),
    "connection that has ended counts": Mutant(
        server,
        "ShardServer._drop",
        "connection.peer.connections -= 1",
        "pass",
        edges.test_connection_that_ends_makes_room_for_one,
        ("connections_per_peer",),
    ),
    "idle for ever": Mutant(
        server,
        LOOK,
        "still > limits.idle_ns",
        "False",
        edges.test_connection_is_idle_for_so_long_and_not_a_nanosecond_longer,
    ),
    "idle a nanosecond less": Mutant(
        server,
        LOOK,
        "still > limits.idle_ns",
        "still >= limits.idle_ns",
        edges.test_connection_is_idle_for_so_long_and_not_a_nanosecond_longer,
    ),
    "who waits is idle": Mutant(
        server,
        LOOK,
        "still > limits.idle_ns and (not connection.owed)",
        "still > limits.idle_ns",
        edges.test_who_waits_for_a_lease_is_not_idle,
    ),
    "any number of waiters": Mutant(
        connection,
        "RequestBatch._held_back",
        "connection.peer.waiting >= self._limits.waiters_per_peer",
        "False",
        edges.test_as_many_wait_as_may_and_the_next_is_denied_at_once_until_one_waits_no_more,
    ),
    "one waiter more": Mutant(
        connection,
        "RequestBatch._held_back",
        "connection.peer.waiting >= self._limits.waiters_per_peer",
        "connection.peer.waiting > self._limits.waiters_per_peer",
        edges.test_as_many_wait_as_may_and_the_next_is_denied_at_once_until_one_waits_no_more,
    ),
    "one waiter fewer": Mutant(
        connection,
        "RequestBatch._held_back",
        "connection.peer.waiting >= self._limits.waiters_per_peer",
        "connection.peer.waiting + 1 >= self._limits.waiters_per_peer",
        edges.test_as_many_wait_as_may_and_the_next_is_denied_at_once_until_one_waits_no_more,
    ),
    "waiter that has gone counts": Mutant(
        server,
        "ShardServer._drop",
        "connection.peer.waiting -= len(waiters)",
        "pass",
        edges.test_as_many_wait_as_may_and_the_next_is_denied_at_once_until_one_waits_no_more,
    ),
    "any number of calls owed": Mutant(
        server,
        "ShardServer._send_all",
        "len(connection.owed) > self._limits.owed_per_connection",
        "False",
        edges.test_connection_is_owed_so_many_calls_and_cut_off_for_one_more,
    ),
    "one call owed fewer": Mutant(
        server,
        "ShardServer._send_all",
        "len(connection.owed) > self._limits.owed_per_connection",
        "len(connection.owed) >= self._limits.owed_per_connection",
        edges.test_connection_is_owed_so_many_calls_and_cut_off_for_one_more,
    ),
    "any rate": Mutant(
        server,
        CALLS,
        "peer.tokens < 1",
        "False",
        edges.test_peer_asks_so_much_at_once_and_then_as_much_as_time_gives,
    ),
    "one request above the rate": Mutant(
        server,
        CALLS,
        "peer.tokens < 1",
        "peer.tokens < 0",
        edges.test_peer_asks_so_much_at_once_and_then_as_much_as_time_gives,
    ),
    "one request below the rate": Mutant(
        server,
        CALLS,
        "peer.tokens < 1",
        "peer.tokens < 2",
        edges.test_peer_asks_so_much_at_once_and_then_as_much_as_time_gives,
    ),
    "long pause is worth any burst": Mutant(
        connection,
        "Peer.fill",
        "min(float(limits.burst), self.tokens + gained)",
        "self.tokens + gained",
        edges.test_peer_asks_so_much_at_once_and_then_as_much_as_time_gives,
    ),
    "time counts twice": Mutant(
        connection,
        "Peer.fill",
        "self.filled_ns = now",
        "pass",
        edges.test_peer_asks_so_much_at_once_and_then_as_much_as_time_gives,
    ),
    "call counts as one request": Mutant(
        server,
        CALLS,
        "max(1, len(calls[-1]))",
        "1",
        edges.test_call_counts_by_its_requests_and_for_all_connections_of_a_peer,
    ),
    "each connection has a measure of its own": Mutant(
        server,
        TAKE,
        "self._peers[name] = peer",
        "pass",
        edges.test_call_counts_by_its_requests_and_for_all_connections_of_a_peer,
    ),
    "peer that leaves is forgotten at once": Mutant(
        server,
        LOOK,
        "not peer.connections and peer.tokens >= limits.burst",
        "not peer.connections",
        edges.test_peer_that_leaves_and_comes_back_has_no_new_measure,
    ),
    "one connection fills the turn": Mutant(
        server,
        CALLS,
        "len(calls) == self._limits.calls_per_turn",
        "False",
        edges.test_turn_takes_so_many_calls_of_one_connection_and_so_many_requests,
    ),
    "one call of a connection more": Mutant(
        server,
        CALLS,
        "len(calls) == self._limits.calls_per_turn",
        "len(calls) > self._limits.calls_per_turn",
        edges.test_turn_takes_so_many_calls_of_one_connection_and_so_many_requests,
    ),
    "any number of requests in a turn": Mutant(
        server,
        "ShardServer._turn",
        "len(batch.requests) >= self._limits.requests_per_turn",
        "False",
        edges.test_turn_takes_so_many_calls_of_one_connection_and_so_many_requests,
    ),
    "one request in a turn more": Mutant(
        server,
        "ShardServer._turn",
        "len(batch.requests) >= self._limits.requests_per_turn",
        "len(batch.requests) > self._limits.requests_per_turn",
        edges.test_turn_takes_so_many_calls_of_one_connection_and_so_many_requests,
    ),
    "reader stands still for ever": Mutant(
        server,
        LOOK,
        "still > limits.unread_ns",
        "False",
        edges.test_reader_that_stands_still_is_cut_off_after_so_long_and_not_before,
    ),
    "reader stands still a nanosecond less": Mutant(
        server,
        LOOK,
        "still > limits.unread_ns",
        "still >= limits.unread_ns",
        edges.test_reader_that_stands_still_is_cut_off_after_so_long_and_not_before,
    ),
    "time of a frame begins with each of its bytes": Mutant(
        server,
        "ShardServer._receive",
        "came and begins",
        "came",
        edges.test_frame_of_which_a_byte_comes_now_and_then_is_too_slow,
    ),
    "reader that reads is cut off": Mutant(
        server,
        "ShardServer._send",
        "connection.since_ns = self._clock.boot_ns()",
        "pass",
        edges.test_reader_that_reads_a_little_has_its_time_anew,
    ),
    "any number of bytes unread": Mutant(
        server,
        "ShardServer._send",
        "len(connection.unsent) > self._limits.output_bytes_max",
        "False",
        edges.test_reader_leaves_so_many_bytes_unread_and_is_cut_off_for_one_more,
    ),
    "one byte unread fewer": Mutant(
        server,
        "ShardServer._send",
        "len(connection.unsent) > self._limits.output_bytes_max",
        "len(connection.unsent) >= self._limits.output_bytes_max",
        edges.test_reader_leaves_so_many_bytes_unread_and_is_cut_off_for_one_more,
    ),
    "frame never ends": Mutant(
        server,
        LOOK,
        "still > limits.frame_ns",
        "False",
        edges.test_rest_of_a_frame_takes_so_long_and_not_longer,
    ),
    "frame takes a nanosecond less": Mutant(
        server,
        LOOK,
        "still > limits.frame_ns",
        "still >= limits.frame_ns",
        edges.test_rest_of_a_frame_takes_so_long_and_not_longer,
    ),
    "who is read from later is too slow": Mutant(
        server,
        LOOK,
        "connection not in self._throttled",
        "True",
        edges.test_who_is_read_from_later_is_not_too_slow,
    ),
    "other version is let in": Mutant(
        wire,
        "foreign",
        "hello.version != PROTOCOL_VERSION",
        "False",
        edges.test_older_and_newer_version_are_refused_and_nothing_of_what_they_say_is_done,
        (wire.PROTOCOL_VERSION + 1,),
    ),
    "older version is let in": Mutant(
        wire,
        "foreign",
        "hello.version != PROTOCOL_VERSION",
        "hello.version > PROTOCOL_VERSION",
        edges.test_older_and_newer_version_are_refused_and_nothing_of_what_they_say_is_done,
        (wire.PROTOCOL_VERSION - 1,),
    ),
    "newer version is let in": Mutant(
        wire,
        "foreign",
        "hello.version != PROTOCOL_VERSION",
        "hello.version < PROTOCOL_VERSION",
        edges.test_older_and_newer_version_are_refused_and_nothing_of_what_they_say_is_done,
        (wire.PROTOCOL_VERSION + 1,),
    ),
    "who is refused by its version stays": Mutant(
        connection,
        "RequestBatch.frames",
        "hello and any((isinstance(each, wire.Refused) for each in answer))",
        "False",
        edges.test_older_and_newer_version_are_refused_and_nothing_of_what_they_say_is_done,
        (wire.PROTOCOL_VERSION + 1,),
    ),
    "map is not said": Mutant(
        request_handler,
        "welcome",
        "identity.map_number",
        "0",
        edges.test_own_version_is_said_with_the_map_under_which_the_shard_works,
    ),
    "domain that another map gives to another shard is granted": Mutant(
        request_handler,
        "RequestHandler.refused_new",
        "self._identity.number not in owners",
        "False",
        mode_tests.test_domain_of_another_shard_is_refused,
    ),
}

AT_THE_DOOR = {
    "door: Hello as long as a call": Mutant(
        listeners,
        "TlsListener._hand_over",
        "HELLO_BYTES_MAX",
        "1024 * 1024",
        door_tests.test_what_is_no_hello_is_refused,
        (b"\0\0\x10\x01",),
    ),
    "door: other version is let in": Mutant(
        wire,
        "foreign",
        "hello.version != PROTOCOL_VERSION",
        "hello.version < PROTOCOL_VERSION",
        door_tests.test_hello_that_does_not_fit_is_refused_with_the_reason,
        ({"version": 2}, "protocol-version", "version 2 was offered"),
    ),
    "door: older version is let in": Mutant(
        wire,
        "foreign",
        "hello.version != PROTOCOL_VERSION",
        "hello.version > PROTOCOL_VERSION",
        door_tests.test_hello_that_does_not_fit_is_refused_with_the_reason,
        ({"version": 0}, "protocol-version", "version 0 was offered"),
    ),
    "door: another cluster is let in": Mutant(
        wire,
        "foreign",
        "hello.cluster_id != cluster_id",
        "False",
        door_tests.test_hello_that_does_not_fit_is_refused_with_the_reason,
        ({"cluster_id": bytes(16)}, "other-cluster", bytes(16).hex()),
    ),
    "door: who cannot be read is dropped without a word": Mutant(
        tls,
        "_shown",
        "Exception",
        "ZeroDivisionError",
        door_tests.test_certificate_that_cannot_be_read_is_refused_and_the_door_stays,
        ("version 5",),
    ),
    "threshold: nobody makes room": Mutant(
        listeners,
        "BoundedListener._made_room",
        "now - each.since_ns >= PATIENCE_NS",
        "False",
        door_tests.test_those_of_the_address_with_the_most_places_make_room_first,
    ),
    "threshold: who has just come makes room": Mutant(
        listeners,
        "BoundedListener._made_room",
        "now - each.since_ns >= PATIENCE_NS",
        "True",
        door_tests.test_those_of_the_address_with_the_most_places_make_room_first,
    ),
    "threshold: the only one of an address makes room": Mutant(
        listeners,
        "BoundedListener._made_room",
        "crowd[each.whence]",
        "0",
        door_tests.test_those_of_the_address_with_the_most_places_make_room_first,
    ),
    "client: refusal is taken for damage": Mutant(
        transport,
        "SocketTransport._greet",
        "isinstance(reply, wire.Refused)",
        "False",
        door_tests.test_hello_that_does_not_fit_is_refused_with_the_reason,
        ({"version": 2}, "protocol-version", "version 2 was offered"),
    ),
}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[edges.Serve]:
    made: list[HandServer] = []

    def make(limits: ClientLimits) -> HandServer:
        made.append(HandServer(tmp_path, limits))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    each = DoorWorld(tmp_path)
    yield each
    each.close()


def follow(patch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    """Have whoever knows the function by a name of its own call the one that is planted."""
    original = getattr(mutant.module, mutant.function, None)

    def planted(*arguments: object, **named: object) -> object:
        return getattr(mutant.module, mutant.function)(*arguments, **named)

    for known, other in list(sys.modules.items()):
        ours = known.startswith(("appliance.", "tests.")) and other is not mutant.module
        if original is not None and ours and vars(other).get(mutant.function) is original:
            patch.setattr(other, mutant.function, planted)


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_limit_that_is_gone_or_off_by_one_is_noticed(
    name: str, serve: edges.Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    ports: dict[str, Any] = {"serve": serve, "world": world}
    follow(monkeypatch, MUTANTS[name])
    check_noticed(monkeypatch, MUTANTS[name], ports)
    world.close()


@pytest.mark.verify
@pytest.mark.parametrize("name", AT_THE_DOOR)
def test_check_at_the_door_that_is_gone_is_noticed(
    name: str, world: DoorWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: dict[str, Any] = {"world": world}
    follow(monkeypatch, AT_THE_DOOR[name])
    check_noticed(monkeypatch, AT_THE_DOOR[name], ports)
