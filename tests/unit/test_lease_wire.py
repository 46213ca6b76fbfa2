import msgspec
import pytest

from appliance.formats.lease import LeaseOutcome, Mode, Phase
from appliance.lease import wire
from appliance.lease.wire import (
    LENGTH_BYTES,
    REPLY_FRAME_BYTES_MAX,
    REQUEST_FRAME_BYTES_MAX,
    REQUESTS_MAX,
    Acquire,
    Age,
    Reply,
    Request,
    body_length,
    decode_answer,
    decode_call,
    decode_reply,
    encode_answer,
    encode_call,
)
from tests.support.shards import HOLDER
from timeagent.errors import BadRequest, Damaged

ID = bytes(16)
REQUESTS: list[Request] = [
    Acquire(
        map_number=1,
        request_id=ID,
        domain="a",
        mode=Mode.X,
        phase=Phase.HELD,
        holder=HOLDER,
        age=Age(first_try_ns=1, request_id=ID),
        term_ns=2,
        expiry_ns_max=3,
    ),
    wire.Upgrade(map_number=1, request_id=ID, domain="a", correlation_id=ID, term_ns=1, expiry_ns_max=2),
    wire.Renew(map_number=1, request_id=ID, domain="a", correlation_id=ID, term_ns=1, expiry_ns_max=2),
    wire.Relinquish(
        request_id=ID,
        domain="a",
        correlation_id=ID,
        watermark_ns=1,
        watermark_time=bytes(128),
        messages=1,
        chain_head=bytes(32),
    ),
    wire.Revoke(request_id=ID, domain="a", correlation_id=ID, by=HOLDER),
    wire.Attend(request_id=ID, holder=HOLDER, run=bytes(8), heard=1, wait_ns=2),
    wire.Inspect(after_domain="", leases_max=1),
    wire.AskClock(),
    wire.Hello(version=1, cluster_id=ID),
]
REPLIES: list[Reply] = [
    wire.Granted(request_id=ID, signed=b"x"),
    wire.Recalled(
        request_id=ID,
        run=bytes(8),
        heard=1,
        wanted=(wire.WantedLease(domain="a", correlation_id=ID, mode=Mode.X, by=HOLDER, since_ns=1),),
    ),
    wire.Denied(
        request_id=ID,
        domain="a",
        reason=wire.Reason.HELD,
        holder=HOLDER,
        since_ns=1,
        until_ns=2,
        earliest_ns=3,
    ),
    wire.Over(request_id=ID, outcome=LeaseOutcome.UNKNOWN, ending=None),
    wire.Refused(request_id=ID, code="a", message="b", hint="c"),
    wire.Unavailable(request_id=ID, code="a", message="b"),
    wire.Welcome(version=1, node="n", map_number=1, shard=0, incarnation=bytes(8)),
    wire.ClockTold(node="n", earliest_ns=1, latest_ns=2, token=bytes(128)),
    wire.ClockTold(node="n", problem="no source has a bound"),
]


def test_calls_and_answers_come_back_as_they_were() -> None:
    frame = encode_call(REQUESTS)
    assert body_length(frame, REQUEST_FRAME_BYTES_MAX) == len(frame) - LENGTH_BYTES
    assert decode_call(frame[LENGTH_BYTES:]) == REQUESTS
    frame = encode_answer(REPLIES)
    assert body_length(frame, REPLY_FRAME_BYTES_MAX) == len(frame) - LENGTH_BYTES
    assert decode_answer(frame[LENGTH_BYTES:], len(REPLIES)) == REPLIES


@pytest.mark.parametrize(
    "asking",
    [
        wire.Inspect(after_domain="", leases_max=wire.PAGE_LEASES_MAX),
        wire.Attend(request_id=ID, holder=HOLDER, run=bytes(8), heard=0),
    ],
)
def test_call_asks_for_so_many_lists_and_no_more(asking: wire.Request) -> None:
    most = [asking] * wire.LISTS_MAX
    assert decode_call(encode_call([*REQUESTS[:1] * 100, *most])[LENGTH_BYTES:])[-1] == asking
    with pytest.raises(Damaged, match="17 lists, more than 16"):
        decode_call(encode_call([*most, asking])[LENGTH_BYTES:])


def test_answer_may_hold_replies_that_are_encoded_already() -> None:
    for count in (1, 15, 16, 300):
        replies = (REPLIES * 100)[:count]
        mixed = [msgspec.msgpack.encode(each) if number % 2 else each for number, each in enumerate(replies)]
        assert encode_answer(mixed) == encode_answer(replies)
        body = msgspec.msgpack.encode(replies)
        assert encode_answer(replies) == len(body).to_bytes(4, "big") + body
    assert [decode_reply(msgspec.msgpack.encode(each)) for each in REPLIES] == REPLIES


@pytest.mark.parametrize("cut", range(1, 40))
def test_every_truncation_is_noticed(cut: int) -> None:
    with pytest.raises(Damaged):
        decode_call(encode_call(REQUESTS[:1])[LENGTH_BYTES:-cut])
    with pytest.raises(Damaged):
        decode_answer(encode_answer(REPLIES)[LENGTH_BYTES:-cut], len(REPLIES))


WRONG = [
    {"request_id": bytes(15)},
    {"domain": ""},
    {"domain": "x" * 513},
    {"mode": "XX"},
    {"phase": "asleep"},
    {"term_ns": -1},
    {"expiry_ns_max": 2**63},
    {"holder": "me"},
]


@pytest.mark.parametrize("changes", WRONG)
def test_value_out_of_range_is_refused(changes: dict[str, object]) -> None:
    body = msgspec.msgpack.encode([msgspec.structs.replace(REQUESTS[0], **changes)])
    with pytest.raises(Damaged, match="no list of requests"):
        decode_call(body)


def test_limits_of_a_call_are_kept_on_both_sides() -> None:
    with pytest.raises(BadRequest, match="exceed 1024 requests"):
        encode_call(REQUESTS[-1:] * (REQUESTS_MAX + 1))
    with pytest.raises(Damaged, match="more than 1024"):
        decode_call(msgspec.msgpack.encode(REQUESTS[-1:] * (REQUESTS_MAX + 1)))
    assert len(decode_call(encode_call(REQUESTS[-1:] * REQUESTS_MAX)[LENGTH_BYTES:])) == REQUESTS_MAX
    with pytest.raises(BadRequest, match="1048576 bytes"):
        encode_call([wire.Inspect(after_domain="x" * REQUEST_FRAME_BYTES_MAX, leases_max=1)])
    with pytest.raises(Damaged, match="exceeds the limit"):
        body_length((REQUEST_FRAME_BYTES_MAX + 1).to_bytes(4, "big"), REQUEST_FRAME_BYTES_MAX)


def test_answer_with_another_number_of_replies_is_damaged() -> None:
    with pytest.raises(Damaged, match="9 replies to 5 requests"):
        decode_answer(encode_answer(REPLIES)[LENGTH_BYTES:], 5)


# An age decides who is older: by its instant, then by its id.
def test_ages_are_a_total_order() -> None:
    ages = [Age(first_try_ns=n, request_id=bytes([i] * 16)) for n in (1, 2) for i in (0, 1)]
    assert sorted([*ages[2:], *ages[:2]]) == ages
