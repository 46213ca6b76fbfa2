import random
from collections.abc import Callable

import msgspec
import pytest

from appliance.formats.lease import LeaseOutcome, Phase
from appliance.formats.witness import SignedWitness
from appliance.lease import wire
from appliance.lease.client import (
    ATTEMPTS,
    Ask,
    LeaseClient,
    LeaseGranted,
    LeaseUnavailable,
    Suspect,
    contradiction,
)
from appliance.lease.shard import Shard
from appliance.lease.wire import (
    NO_REQUEST,
    Age,
    Denied,
    LeasePage,
    Over,
    Refused,
    Relinquish,
    Reply,
    Request,
)
from tests.support.clocks import HandTime
from tests.support.shards import HOLDER, POLICY, RIVAL, TERM, World, acquire, one
from tests.support.transport import InProcessTransport, acquire_within
from tests.support.values import NOW_NS, TIME_KEY, page_token
from timeagent.canonical import decode, encode
from timeagent.errors import BadTime, ShardUnavailable
from timeagent.signedtime import SignedTime
from timeagent.units import MS, SECOND, TimeInterval


class Line:
    """A transport that loses requests or replies as it is told, and changes replies on their way."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.script: list[str] = []
        self.calls: list[list[Request]] = []
        self.change: Callable[[Reply], Reply] = lambda reply: reply
        self.meanwhile: Callable[[], object] = lambda: None

    def call(self, requests: list[Request], timeout_ns: int) -> list[Reply]:
        assert timeout_ns >= POLICY.attempt_timeout_ns
        self.calls.append(requests)
        fault = self.script.pop(0) if self.script else ""
        if fault == "request lost":
            raise ShardUnavailable("no-answer", "planted: the request was lost")
        replies = self.shard.turn(requests)
        self.meanwhile()
        if fault == "reply lost":
            raise ShardUnavailable("no-answer", "planted: the reply was lost")
        return [self.change(reply) for reply in replies]


def client_of(world: World, line: Line | InProcessTransport, time: HandTime | None = None) -> LeaseClient:
    return LeaseClient(line, time or world.time, POLICY, HOLDER, random.Random(5))


def granted_one(results: list[object]) -> LeaseGranted:
    (result,) = results
    assert isinstance(result, LeaseGranted), result
    return result


def test_many_domains_are_taken_renewed_and_given_back_in_one_call_each(world: World) -> None:
    line = Line(world.started())
    client = client_of(world, line)
    taken = [each for each in client.acquire(["a", "b", "c"], phase=Phase.TENTATIVE) if isinstance(each, LeaseGranted)]
    held = [each for each in client.upgrade([each.witness for each in taken]) if isinstance(each, LeaseGranted)]
    assert [each.witness.phase for each in held] == [Phase.HELD] * 3
    world.time.advance(SECOND)
    renewed = [each for each in client.renew([each.witness for each in held]) if isinstance(each, LeaseGranted)]
    assert [each.witness.expiry_ns for each in renewed] == [world.time.midpoint_ns + TERM] * 3
    over = client.relinquish(
        [
            Relinquish(
                NO_REQUEST,
                each.witness.domain,
                each.witness.correlation_id,
                NOW_NS + 1,
                world.time.token().encode(),
                messages=1,
                chain_head=bytes(32),
            )
            for each in renewed
        ]
    )
    outcomes = [each.ending.watermark_ns for each in over if isinstance(each, Over) and each.ending is not None]
    assert outcomes == [NOW_NS + 1] * 3
    assert [len(call) for call in line.calls] == [3] * 4


@pytest.mark.parametrize("fault", ["request lost", "reply lost"])
@pytest.mark.parametrize("times", [1, 2])
def test_lost_request_or_reply_is_asked_again_under_the_same_id(world: World, fault: str, times: int) -> None:
    line = Line(world.started())
    client = client_of(world, line)
    line.script = [fault] * times
    lease = granted_one(list(client.acquire(["a"])))
    assert len(line.calls) == times + 1
    assert all(call == line.calls[0] for call in line.calls)
    line.script = [fault] * times
    granted_one(list(client.renew([lease.witness])))
    line.script = [fault] * times
    (over,) = client.relinquish([Relinquish(NO_REQUEST, "a", lease.witness.correlation_id)])
    assert isinstance(over, Over)
    assert over.outcome is LeaseOutcome.RELINQUISHED


# Long after the reply was lost: the witness is old by then, which is no reason to suspect it.
def test_acquire_whose_outcome_stayed_unknown_is_asked_again_with_its_ask(world: World) -> None:
    line = Line(world.started())
    client = client_of(world, line)
    line.script = ["reply lost"] * ATTEMPTS
    ask = client.ask("a")
    (unknown,) = client.acquire([ask])
    assert isinstance(unknown, LeaseUnavailable)
    assert unknown.code == "no-answer"
    world.time.advance(2 * SECOND)
    lease = granted_one(list(client.acquire([ask])))
    assert lease.witness.fence == NOW_NS + 1
    (other,) = client.acquire(["a"])
    assert isinstance(other, Denied)


def test_denial_carries_what_the_shard_said(world: World) -> None:
    shard = world.started()
    one(shard, acquire(world, "a", holder=RIVAL))
    (denied,) = client_of(world, InProcessTransport(shard)).acquire(["a"])
    assert isinstance(denied, Denied)
    assert (denied.holder, denied.until_ns, denied.domain, denied.place) == (RIVAL, NOW_NS + TERM, "a", 1)


def test_waiting_ends_at_the_instant_that_the_denial_names(world: World) -> None:
    shard = world.started()
    one(shard, acquire(world, "a", holder=RIVAL, term_ns=2 * SECOND))
    line = Line(shard)
    result = acquire_within(client_of(world, line), world.time, "a", 5 * SECOND)
    assert isinstance(result, LeaseGranted)
    earliest = NOW_NS + 2 * SECOND + world.time.radius_ns + 1
    assert earliest <= world.time.midpoint_ns <= earliest + 100 * MS
    ages = {request.age for call in line.calls for request in call if isinstance(request, wire.Acquire)}
    assert len(ages) == 1


def test_waiting_notices_that_the_lease_was_relinquished_early(world: World) -> None:
    shard = world.started()
    one(shard, acquire(world, "a", holder=RIVAL))
    line = Line(shard)

    def give_back() -> None:
        if len(line.calls) == 3:
            page = one(shard, wire.Inspect(after_domain="", leases_max=1))
            assert isinstance(page, LeasePage)
            client_of(world, InProcessTransport(shard)).relinquish(
                [Relinquish(NO_REQUEST, "a", page.leases[0].correlation_id)]
            )

    line.meanwhile = give_back
    assert isinstance(acquire_within(client_of(world, line), world.time, "a", 5 * SECOND), LeaseGranted)
    assert len(line.calls) == 4


def test_waiting_has_an_end(world: World) -> None:
    shard = world.started()
    one(shard, acquire(world, "a", holder=RIVAL))
    line = Line(shard)
    assert isinstance(acquire_within(client_of(world, line), world.time, "a", SECOND), Denied)
    assert world.time.midpoint_ns == NOW_NS + SECOND
    assert len(line.calls) <= 12


def test_waiting_outlasts_a_shard_that_does_not_answer(world: World) -> None:
    line = Line(world.started())
    line.script = ["request lost"] * (ATTEMPTS + 1)
    assert isinstance(acquire_within(client_of(world, line), world.time, "a", 20 * SECOND), LeaseGranted)


def test_those_who_wait_do_not_come_all_at_once(world: World) -> None:
    shard = world.started()
    delays = set()
    for seed in range(8):
        assert isinstance(one(shard, acquire(world, f"d{seed}", holder=RIVAL, term_ns=300 * MS)), wire.Granted)
        began = world.time.midpoint_ns
        client = LeaseClient(InProcessTransport(shard), world.time, POLICY, HOLDER, chance := random.Random(seed))
        assert isinstance(acquire_within(client, world.time, f"d{seed}", 5 * SECOND, chance=chance), LeaseGranted)
        delays.add(world.time.midpoint_ns - began)
    assert len(delays) == 8


# -- a holder's suspicion ----------------------------------------------------------------------------------------------


def shard_clock_off(world: World, off_ns: int) -> tuple[Shard, LeaseClient]:
    """A shard whose clock is off, and a holder whose clock is not."""
    shard = world.started()
    holders = HandTime(TIME_KEY, world.time.midpoint_ns - off_ns)
    return shard, client_of(world, InProcessTransport(shard), holders)


@pytest.mark.parametrize(("off_ns", "kind"), [(260 * MS, LeaseGranted), (260 * MS + 1, Suspect)])
def test_shard_that_signs_in_the_holders_future_is_refused(world: World, off_ns: int, kind: type) -> None:
    _, client = shard_clock_off(world, off_ns)
    (result,) = client.acquire(["a"])
    assert isinstance(result, kind)


@pytest.mark.parametrize(("off_ns", "kind"), [(-260 * MS, LeaseGranted), (-260 * MS - 1, Suspect)])
def test_shard_that_signs_in_the_holders_past_is_refused(world: World, off_ns: int, kind: type) -> None:
    _, client = shard_clock_off(world, off_ns)
    (result,) = client.acquire(["a"])
    assert isinstance(result, kind)


def forge(reply: Reply, **changes: object) -> Reply:
    assert isinstance(reply, wire.Granted)
    signed = decode(SignedWitness, reply.signed)
    entry = encode(msgspec.structs.replace(signed.witness(), **changes))
    return msgspec.structs.replace(reply, signed=encode(msgspec.structs.replace(signed, entry=entry)))


@pytest.mark.parametrize(("beyond_ns", "kind"), [(0, LeaseGranted), (1, Suspect)])
def test_expiry_that_no_clock_within_bounds_gives_is_refused(world: World, beyond_ns: int, kind: type) -> None:
    line = Line(world.started())
    expiry = world.time.now().latest + TERM + 2 * POLICY.radius_ns_max + beyond_ns

    def forged(reply: Reply) -> Reply:
        return forge(reply, expiry_ns=expiry) if isinstance(reply, wire.Granted) else reply

    line.change = forged
    (result,) = client_of(world, line).acquire(["a"])
    assert isinstance(result, kind)


def test_witness_about_something_else_is_refused_and_given_back(world: World) -> None:
    shard = world.started()
    line = Line(shard)
    line.change = lambda reply: forge(reply, domain="z") if isinstance(reply, wire.Granted) else reply
    (result,) = client_of(world, line).acquire(["a"])
    assert isinstance(result, Suspect)
    assert "'z'" in result.reason


# It may write: given back by who knows nothing of that, its lease would leave the next holder too low a floor.
def test_lease_of_another_holder_is_not_given_back_whatever_answer_brought_it(world: World) -> None:
    shard = world.started()
    rivals = one(shard, acquire(world, "a", holder=RIVAL))
    line = Line(shard)
    line.change = lambda reply: rivals if isinstance(reply, wire.Granted) else reply
    for domain in ("a", "b"):
        (result,) = client_of(world, line).acquire([domain])
        assert not isinstance(result, LeaseGranted)
    page = one(shard, wire.Inspect(after_domain="", leases_max=9))
    assert isinstance(page, LeasePage)
    assert [(each.domain, each.holder) for each in page.leases] == [("a", RIVAL), ("b", HOLDER)]


def test_suspect_grant_is_given_back_and_a_suspect_renewal_keeps_the_lease(world: World) -> None:
    shard, client = shard_clock_off(world, 0)
    lease = granted_one(list(client.acquire(["a"])))
    world.time.midpoint_ns += SECOND
    (renewed,) = client.renew([lease.witness])
    assert isinstance(renewed, Suspect)
    (other,) = client.acquire(["b"])
    assert isinstance(other, Suspect)
    page = one(shard, wire.Inspect(after_domain="", leases_max=9))
    assert isinstance(page, LeasePage)
    assert [each.domain for each in page.leases] == ["a"]


def damaged(raw: bytes, part: str) -> bytes:
    match part:
        case "signed":
            return raw[:-1]
        case "entry":
            return raw.replace(b"witness", b"ceiling", 1)
        case _:
            signed = decode(SignedWitness, raw)
            return encode(msgspec.structs.replace(signed, head=signed.head[:-1]))


# Each time, also beside others with a good head: nothing is remembered of one that could not be read.
@pytest.mark.parametrize("part", ["signed", "entry", "head"])
def test_damaged_witness_is_no_grant_and_keeps_no_other_from_being_one(world: World, part: str) -> None:
    line = Line(world.started())
    places = iter("gbbg")

    def change(reply: Reply) -> Reply:
        if isinstance(reply, wire.Granted) and next(places, "g") == "b":
            return msgspec.structs.replace(reply, signed=damaged(reply.signed, part))
        return reply

    line.change = change
    first, bad, again, last = client_of(world, line).acquire(["a", "b", "c", "d"])
    assert isinstance(first, LeaseGranted)
    assert isinstance(last, LeaseGranted)
    for domain, each in (("b", bad), ("c", again)):
        assert isinstance(each, LeaseUnavailable)
        assert (each.code, each.domain) == ("answer-damaged", domain)
        assert f"the shard's witness on {domain!r}" in each.message


def test_witness_without_a_head_is_no_grant(world: World) -> None:
    line = Line(world.started())
    line.change = lambda reply: (
        msgspec.structs.replace(
            reply, signed=encode(msgspec.structs.replace(decode(SignedWitness, reply.signed), head=b""))
        )
        if isinstance(reply, wire.Granted)
        else reply
    )
    (found,) = client_of(world, line).acquire(["a"])
    assert isinstance(found, LeaseUnavailable)
    assert found.code == "answer-damaged"


def test_each_pair_of_clocks_is_judged_for_itself() -> None:
    good, early, late = page_token(NOW_NS), page_token(NOW_NS - 5 * SECOND), page_token(NOW_NS + 5 * SECOND)
    assert contradiction(good, good, good) is None
    assert "asked for" in str(contradiction(good, late, good))
    assert "was here" in str(contradiction(late, good, good))
    assert contradiction(good, early, good) is None


# Two requests of one call, first sent at different times: each is held against its own.
def test_witnesses_with_one_head_are_judged_by_when_each_was_asked_for(world: World) -> None:
    client = client_of(world, InProcessTransport(world.started()))
    ahead = Ask("b", bytes(range(16)), Age(first_try_ns=NOW_NS, request_id=bytes(16)), page_token(NOW_NS + 5 * SECOND))
    first, suspect, last = client.acquire([client.ask("a"), ahead, client.ask("c")])
    assert isinstance(first, LeaseGranted)
    assert isinstance(suspect, Suspect)
    assert isinstance(last, LeaseGranted)


# -- too late ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spare_ns", "kind"), [(1, LeaseGranted), (0, LeaseUnavailable)])
def test_reply_that_leaves_less_than_the_margin_is_not_handed_over(world: World, spare_ns: int, kind: type) -> None:
    shard = world.started()
    line = Line(shard)
    usable = TERM - POLICY.holder_margin_ns - world.time.radius_ns - spare_ns
    # Only the first reply is slow; time stands still while the useless lease is given back.
    line.meanwhile = lambda: world.time.advance(usable if len(line.calls) == 1 else 0)
    (result,) = client_of(world, line).acquire(["a"])
    assert isinstance(result, kind)
    assert getattr(result, "code", "late") == "late"
    page = one(shard, wire.Inspect(after_domain="", leases_max=9))
    assert isinstance(page, LeasePage)
    assert len(page.leases) == (kind is LeaseGranted)


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_refusal_comes_back_as_a_value_beside_what_was_granted(world: World) -> None:
    client = client_of(world, InProcessTransport(world.started()))
    bad, good = client.acquire(["a\nb", "c"])
    assert isinstance(bad, Refused)
    assert isinstance(good, LeaseGranted)


# A clock may become better known between two looks: what was given back as too late stays too late.
def test_lease_that_was_given_back_is_never_handed_over(world: World) -> None:
    shard = world.started()
    line = Line(shard)
    radius = world.time.radius_ns

    def slow_then_sharp() -> None:
        if len(line.calls) == 1:
            world.time.advance(TERM - POLICY.holder_margin_ns - radius)
        else:
            world.time.radius_ns = 0

    line.meanwhile = slow_then_sharp
    (result,) = client_of(world, line).acquire(["a"])
    assert len(line.calls) == 2
    assert isinstance(result, LeaseUnavailable)


# A shard that is restarted refuses every call at once meanwhile.
@pytest.mark.parametrize(("giving_back", "least"), [(True, 2 * POLICY.attempt_timeout_ns), (False, 0)])
def test_who_gives_back_leaves_a_restarted_shard_time_to_come_back(
    world: World, *, giving_back: bool, least: int
) -> None:
    line = Line(world.started())
    client = client_of(world, line)
    held = granted_one([*client.acquire(["a"])])
    line.script = ["request lost"] * (ATTEMPTS - 1)
    began = world.time.boot_ns()
    if giving_back:
        assert isinstance(client.relinquish([Relinquish(NO_REQUEST, "a", held.witness.correlation_id)])[0], Over)
    else:
        assert isinstance(client.renew([held.witness])[0], LeaseGranted)
    assert least <= world.time.boot_ns() - began <= least + POLICY.attempt_timeout_ns // 2


# -- the holder's clock ------------------------------------------------------------------------------------------------


class CountedTime(HandTime):
    """Counts how often it is looked at; ``silent``: it has no bound."""

    looks = 0
    silent = False

    def now(self) -> TimeInterval:
        if self.silent:
            raise BadTime("no-time", "planted")
        self.looks += 1
        return super().now()

    def token(self) -> SignedTime:  # signs by ``now``: not another look
        before = self.looks
        token = super().token()
        self.looks = before
        return token


@pytest.mark.parametrize("count", [1, 30])
def test_clock_is_read_before_a_set_is_asked_for_and_when_it_has_come_whatever_its_size(
    world: World, count: int
) -> None:
    time = CountedTime(TIME_KEY, world.time.midpoint_ns)
    client = client_of(world, InProcessTransport(world.started()), time)
    taken = client.acquire([f"d{number}" for number in range(count)])
    assert all(isinstance(each, LeaseGranted) for each in taken)
    assert time.looks == 2


# What was written under it is stated already; nobody has to wait for its expiry because a clock has lost its bound.
def test_lease_is_given_back_without_a_look_at_the_clock(world: World) -> None:
    time = CountedTime(TIME_KEY, world.time.midpoint_ns)
    client = client_of(world, InProcessTransport(world.started()), time)
    lease = granted_one(list(client.acquire(["a"])))
    time.silent = True
    (over,) = client.relinquish([Relinquish(NO_REQUEST, "a", lease.witness.correlation_id)])
    assert isinstance(over, Over)


# One answer is granted and cannot be judged: nobody would ever give it back, and its domain would wait for a term.
@pytest.mark.parametrize("renewing", [False, True])
def test_what_is_granted_when_the_clock_has_lost_its_bound_is_given_back(world: World, *, renewing: bool) -> None:
    time = CountedTime(TIME_KEY, world.time.midpoint_ns)
    line = Line(world.started())
    client = client_of(world, line, time)
    lease = granted_one(list(client.acquire(["known"])))
    line.meanwhile = lambda: setattr(time, "silent", True)
    with pytest.raises(BadTime):
        client.renew([lease.witness]) if renewing else client.acquire(["a", "b"])
    page = one(line.shard, wire.Inspect(after_domain="", leases_max=9))
    assert isinstance(page, LeasePage)
    assert [each.domain for each in page.leases] == ["known"]


def test_grant_in_answer_to_giving_back_is_damage(world: World) -> None:
    line = Line(world.started())
    client = client_of(world, line)
    granted: list[Reply] = []
    line.change = lambda reply: granted.append(reply) or reply  # type: ignore[func-returns-value]
    lease = granted_one(list(client.acquire(["a"])))
    line.change = lambda _: granted[0]
    (odd,) = client.relinquish([Relinquish(NO_REQUEST, "a", lease.witness.correlation_id)])
    assert isinstance(odd, LeaseUnavailable)
    assert odd.code == "answer-damaged"


# Two calls' worth: what was in time when its own answer had come may be late when the last one has.
def test_late_is_what_is_late_when_the_last_answer_of_a_set_has_come(world: World) -> None:
    line = Line(world.started())
    slow = TERM - POLICY.holder_margin_ns - world.time.radius_ns
    line.meanwhile = lambda: world.time.advance(slow if len(line.calls) == 2 else 0)
    results = client_of(world, line).acquire([f"d{number}" for number in range(wire.REQUESTS_MAX + 1)])
    assert {getattr(each, "code", "granted") for each in results} == {"late"}
    page = one(line.shard, wire.Inspect(after_domain="", leases_max=9))
    assert isinstance(page, LeasePage)
    assert not page.leases
