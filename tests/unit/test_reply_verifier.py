"""What a holder believes of an answer: the clocks are judged once for many witnesses, and for each as if alone."""

import msgspec
import pytest

from appliance.lease.reply_verifier import Reading, ReplyVerifier, opened, opened_alone
from appliance.lease.wire import Granted, Reply, Unavailable
from tests.support.shards import POLICY, TERM, World, acquire
from tests.support.shards import opened as read
from tests.support.values import NOW_NS, page_token
from timeagent.errors import Damaged
from timeagent.interval import TimeInterval
from timeagent.units import SECOND

OTHER = Unavailable(request_id=bytes(16), code="late", message="planted")


def answer(world: World, count: int) -> list[Reply]:
    return world.started().turn([acquire(world, f"d{number}") for number in range(count)])


def test_witnesses_of_an_answer_are_read_together_in_their_places(world: World) -> None:
    first, second = answer(world, 2)
    assert opened([first, OTHER, second]) == [read(first), None, read(second)]
    assert opened([OTHER]) == [None]
    assert isinstance(first, Granted)
    assert opened_alone(first.signed, "it") == read(first)


# One that is damaged must not keep the others from being read; each is looked at alone then.
@pytest.mark.parametrize("part", ["signed", "entry"])
def test_one_damaged_witness_leaves_each_to_be_looked_at_alone(world: World, part: str) -> None:
    first, second = answer(world, 2)
    assert isinstance(second, Granted)
    raw = second.signed[:-1] if part == "signed" else second.signed.replace(b"witness", b"ceiling", 1)
    bad = msgspec.structs.replace(second, signed=raw)
    assert opened([first, bad]) == [None, None]
    assert isinstance(first, Granted)
    assert opened_alone(first.signed, "it") == read(first)
    with pytest.raises(Damaged):
        opened_alone(bad.signed, "it")


def verifier() -> ReplyVerifier:
    return ReplyVerifier(Reading(0, TimeInterval.around(NOW_NS, 0), page_token(NOW_NS)), POLICY)


def test_each_pair_of_clocks_is_judged_for_itself() -> None:
    come = verifier()
    expiry = NOW_NS + TERM
    good, early, late = page_token(NOW_NS), page_token(NOW_NS - 5 * SECOND), page_token(NOW_NS + 5 * SECOND)
    for _ in range(2):
        assert come.suspicion(expiry, good, good) is None
        assert "asked for" in str(come.suspicion(expiry, good, late))
        assert "was here" in str(come.suspicion(expiry, late, good))
        assert come.suspicion(expiry, good, early) is None
        assert "lies beyond" in str(come.suspicion(expiry + 10 * TERM, good, good))


def test_head_is_read_once_and_refused_each_time_it_is_damaged(world: World) -> None:
    (reply,) = answer(world, 1)
    signed, _ = read(reply)
    come = verifier()
    assert come.head_time(signed, "it") is come.head_time(signed, "it")
    for _ in range(2):
        with pytest.raises(Damaged, match="it"):
            come.head_time(msgspec.structs.replace(signed, head=signed.head[:-1]), "it")
