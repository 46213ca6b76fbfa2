"""A session over a hand-driven clock: what is in the record, in which order, whatever fails or stops in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.outcome import Committed, NotCommitted, Unknown
from appliance.formats.frame import LEASES_MAX, MESSAGE_BYTES_MAX
from appliance.lease.wire import Acquire, Relinquish, Renew, Request
from tests.support.cluster import HandSite, hand_sites
from tests.support.storage import WrappedStorage
from timeagent.errors import BadRequest, BadTime, Environment, LeaseLost, TryAgain
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.bag.storage import Storage
    from appliance.session.leases import Leases
    from appliance.session.session import Session

LOG = "log"


class Planted(WrappedStorage):
    """Does something at chosen calls: at a verb on a path that ends so. Each plan is used once."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.plans: list[tuple[str, str, Callable[[Callable[[], object]], object]]] = []
        self.refused = ""

    def at(self, verb: str, ending: str, what: Callable[[Callable[[], object]], object]) -> None:
        self.plans.append((verb, ending, what))

    def before(self, verb: str, ending: str, what: Callable[[], object]) -> None:
        """Let something happen before the call is done: the process was stopped there."""

        def stopped(call: Callable[[], object]) -> object:
            what()
            return call()

        self.at(verb, ending, stopped)

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if self.refused and self.refused in path:
            raise Environment("planted", f"{verb} {path} is refused")
        for plan in self.plans:
            if plan[0] == verb and path.endswith(plan[1]):
                self.plans.remove(plan)
                return plan[2](call)  # type: ignore[return-value]
        return call()


def done_but_failed(call: Callable[[], object]) -> object:
    call()
    raise Environment("planted", "done, and reported as failed")


def not_done(call: Callable[[], object]) -> object:
    raise Environment("planted", "not done")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path)


@pytest.fixture
def mount(site: HandSite) -> Planted:
    return Planted(site.storage)


def files(site: HandSite) -> set[str]:
    return {path for path in site.storage.files if path.endswith(".msg")}


def payloads(site: HandSite) -> list[bytes]:
    return [message.payload for message in site.settled(LOG)]


def sent[R](site: HandSite, kind: type[R]) -> list[R]:
    return [request for request in site.transports[0].calls if isinstance(request, kind)]


def publish(session: Session, leases: Leases, *batch: bytes) -> object:
    return session.publish(LOG, list(batch), under=leases)


# -- publishing --------------------------------------------------------------------------------------------------------


def test_published_messages_are_read_back_in_order_with_their_domains(site: HandSite) -> None:
    session = site.session("test")
    with session.acquire("b", "a") as leases:
        assert [lease.domain for lease in leases] == ["a", "b"]
        assert publish(session, leases, b"1", b"2") == Committed()
        found = session.read(LOG, under=leases)
    assert [message.payload for message in found] == [b"1", b"2"]
    assert found[0].domains == ("a", "b")
    assert payloads(site) == [b"1", b"2"]


def test_reading_without_leases_shows_what_is_settled_only(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a") as leases:
        publish(session, leases, b"1")
        assert session.read(LOG) == []
        assert [m.payload for m in session.read(LOG, level="latest")] == [b"1"]
        assert session.read(LOG, under=leases, level="settled") == []
    site.settled(LOG)
    assert [m.payload for m in site.session().read(LOG)] == [b"1"]


def test_write_after_the_lease_may_be_over_is_impossible(site: HandSite) -> None:
    session = site.session()
    (lease,) = leases = session.acquire("a")
    publish(session, leases, b"1")
    before = files(site)
    site.time.advance(lease.usable_until_ns(site.policy.holder_margin_ns) - site.time.midpoint_ns)
    with pytest.raises(LeaseLost) as lost:
        publish(session, leases, b"2")
    assert lost.value.code == "lease-expired"
    with pytest.raises(LeaseLost):
        session.read(LOG, under=leases)
    with pytest.raises(LeaseLost):
        session.check_held(leases)
    assert files(site) == before


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        ([], "empty-batch"),
        ([b"x" * (MESSAGE_BYTES_MAX + 1)], "message-too-large"),
        ([b"x" * MESSAGE_BYTES_MAX] * 33, "batch-too-large"),
        (["text"], "bad-payloads"),
        (b"bytes", "bad-payloads"),
    ],
)
def test_batch_over_a_limit_is_refused_before_even_the_log_is_made(site: HandSite, batch: object, code: str) -> None:
    session = site.session()
    with session.acquire("a") as leases:
        before = dict(site.storage.files)
        with pytest.raises(BadRequest) as refused:
            session.publish(LOG, batch, under=leases)  # type: ignore[arg-type]
        assert refused.value.code == code
        assert refused.value.hint
        assert site.storage.files == before


def test_largest_message_is_taken(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a") as leases:
        assert publish(session, leases, b"x" * MESSAGE_BYTES_MAX) == Committed()


def test_more_leases_than_a_frame_may_name_are_refused_before_anything_is_written(site: HandSite) -> None:
    session = site.session()
    with session.acquire(*site.domains(LEASES_MAX + 1)) as leases:
        with pytest.raises(BadRequest, match=str(LEASES_MAX)):
            publish(session, leases, b"1")
        assert files(site) == set()
        assert session.publish(LOG, [b"1"], under=leases[:-1]) == Committed()


def test_publishing_without_a_lease_or_under_another_sessions_is_refused_by_name(site: HandSite) -> None:
    session, other = site.session(), site.session()
    leases = other.acquire("a")
    with pytest.raises(BadRequest) as none:
        session.publish(LOG, [b"1"], under=[])
    assert none.value.code == "no-lease"
    uses: tuple[Callable[[], object], ...] = (
        lambda: publish(session, leases, b"1"),
        lambda: session.relinquish(leases),
    )
    for use in uses:
        with pytest.raises(BadRequest) as foreign:
            use()
        assert foreign.value.code == "foreign-lease"
    assert publish(other, leases, b"1") == Committed()


def test_lease_that_is_named_twice_counts_once(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a") as leases:
        session.publish(LOG, [b"1"], under=[*leases, *leases])
        assert session.read(LOG, under=leases)[0].domains == ("a",)
    (given,) = sent(site, Relinquish)
    assert given.messages == 1


# -- outcomes ----------------------------------------------------------------------------------------------------------


def test_lost_reply_to_the_link_is_found_out_at_once(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        mount.at("publish", ".msg", done_but_failed)
        assert publish(session, leases, b"1") == Committed()
    assert payloads(site) == [b"1"]


def test_attempt_that_was_not_done_is_repeated_as_the_same_attempt(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        mount.at("publish", ".msg", not_done)
        assert publish(session, leases, b"1") == Committed()
        assert len(files(site)) == 1
    assert payloads(site) == [b"1"]


def test_unknown_is_resolved_by_closing_the_bag(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        mount.at("publish", ".msg", not_done)
        mount.at("publish", ".msg", not_done)
        assert isinstance(publish(session, leases, b"1"), Unknown)
        assert isinstance(session.resolve("another", leases), Committed)
        assert isinstance(session.resolve(LOG, leases), NotCommitted)
        assert session.resolve(LOG, leases) == Committed()  # nothing is unknown any more
        assert publish(session, leases, b"2") == Committed()
    (given,) = sent(site, Relinquish)
    assert given.messages == 1
    assert payloads(site) == [b"2"]


def test_unknown_that_was_done_is_resolved_to_committed_and_counted(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        mount.at("publish", ".msg", done_but_failed)
        for _ in range(2):
            mount.at("look", site.bag_now(LOG).path, not_done)
        assert isinstance(publish(session, leases, b"1", b"2"), Unknown)
        assert session.resolve(LOG, leases) == Committed()
        assert (leases[0].messages, leases[0].chain_head is None) == (2, False)
    assert payloads(site) == [b"1", b"2"]


# Somebody found a prelock and finished: the bag is closed long before it is due.
def test_attempt_that_is_late_is_made_again_in_a_later_bag_under_the_same_id(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        bag = site.bag_now(LOG)
        mount.before("publish", ".msg", lambda: site.close_early(bag))
        assert session.publish(LOG, [b"1"], under=leases, attempt_id=b"i" * 16) == Committed()
    (message,) = site.settled(LOG)
    assert message.attempt_id == b"i" * 16
    assert message.bag_path != bag.path
    assert message.sequence == 2


def test_attempt_that_is_late_every_time_is_not_committed(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        for _ in range(3):
            mount.before("publish", ".msg", lambda: site.close_early(site.bag_now(LOG)))
        assert isinstance(publish(session, leases, b"1"), NotCommitted)
    assert payloads(site) == []
    (given,) = sent(site, Relinquish)
    assert (given.messages, given.chain_head) == (0, None)
    assert given.watermark_ns is not None  # a void message may lie there: the watermark is an upper bound


def test_lease_that_runs_out_between_two_attempts_is_lost_and_nothing_is_in_the_record(
    site: HandSite, mount: Planted
) -> None:
    session = site.session(storage=mount)
    leases = session.acquire("a")
    bag = site.bag_now(LOG)

    def stopped() -> None:
        site.time.advance(site.policy.lease_term_max_ns)
        site.close_early(bag)

    mount.before("publish", ".msg", stopped)
    with pytest.raises(LeaseLost):
        publish(session, leases, b"1")
    assert payloads(site) == []


def test_id_of_an_unknown_attempt_is_not_published_again_until_it_is_known(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        mount.at("publish", ".msg", done_but_failed)
        for _ in range(2):
            mount.at("look", site.bag_now(LOG).path, not_done)
        first = session.publish(LOG, [b"1"], under=leases, attempt_id=b"i" * 16)
        assert isinstance(first, Unknown)
        site.time.advance(SECOND)  # another bag
        assert session.publish(LOG, [b"1"], under=leases, attempt_id=b"i" * 16) == Committed()
        assert len(files(site)) == 1
    assert payloads(site) == [b"1"]


def test_id_of_an_attempt_that_stays_unknown_stays_so(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        mount.at("publish", ".msg", not_done)
        mount.at("publish", ".msg", not_done)
        assert isinstance(session.publish(LOG, [b"1"], under=leases, attempt_id=b"i" * 16), Unknown)
        assert isinstance(session.publish(LOG, [b"1"], under=leases, attempt_id=b"i" * 16), Unknown)
        site.time.advance(4 * SECOND)
        assert session.publish(LOG, [b"1"], under=leases, attempt_id=b"i" * 16) == Committed()
    assert payloads(site) == [b"1"]


def test_attempt_id_has_sixteen_bytes(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a") as leases, pytest.raises(BadRequest, match="15 bytes"):
        session.publish(LOG, [b"1"], under=leases, attempt_id=bytes(15))


# -- giving back -------------------------------------------------------------------------------------------------------


def test_relinquishing_says_watermark_count_and_chain_head(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", "b") as leases:
        publish(session, leases, b"1", b"2")
        session.publish(LOG, [b"3"], under=leases[:1])
        last = session.read(LOG, under=leases)[-1]
    a, b = sorted(sent(site, Relinquish), key=lambda given: given.domain)
    assert (a.messages, b.messages) == (3, 2)
    assert a.watermark_ns == last.timestamp_ns
    assert b.watermark_ns is not None
    assert b.watermark_ns < last.timestamp_ns
    assert a.chain_head not in (None, b.chain_head)
    assert [lease.ended for lease in leases] == ["relinquished"] * 2


def test_next_holder_writes_above_the_watermark_and_need_not_wait(site: HandSite) -> None:
    first, second = site.session(), site.session()
    with first.acquire("a") as leases:
        publish(first, leases, b"1")
        watermark = leases[0].watermark_ns
    before = site.time.midpoint_ns
    with second.acquire("a") as leases:
        assert (leases[0].floor_ns, leases[0].settle_to_ns) == (watermark, 0)
        assert [m.payload for m in second.read(LOG, under=leases)] == [b"1"]
        assert publish(second, leases, b"2") == Committed()
    assert site.time.midpoint_ns == before
    assert payloads(site) == [b"1", b"2"]


def test_who_wrote_nothing_relinquishes_without_a_watermark(site: HandSite) -> None:
    with site.session().acquire("a"):
        pass
    (given,) = sent(site, Relinquish)
    assert (given.watermark_ns, given.watermark_time, given.messages) == (None, None, 0)


def test_exception_in_the_block_gives_the_leases_back_and_comes_out(site: HandSite) -> None:
    session = site.session()
    with pytest.raises(ZeroDivisionError), session.acquire("a", "b"):
        raise ZeroDivisionError
    assert len(sent(site, Relinquish)) == 2
    site.session().acquire("a", "b", timeout_ns=0)


def test_closing_gives_everything_back_once(site: HandSite) -> None:
    session = site.session()
    session.acquire("a")
    leases = session.acquire("b")
    session.close()
    session.close()
    session.relinquish(leases)
    assert len(sent(site, Relinquish)) == 2
    with pytest.raises(LeaseLost) as lost:
        publish(session, leases, b"1")
    assert lost.value.code == "lease-relinquished"
    with pytest.raises(BadRequest) as closed:
        session.acquire("c")
    assert closed.value.code == "session-closed"


def test_lease_that_is_granted_while_the_session_closes_is_given_back(site: HandSite) -> None:
    session = site.session()

    def close(requests: list[Request]) -> None:
        site.transports[0].before = lambda _: None
        session.close()

    site.transports[0].before = close
    with pytest.raises(BadRequest, match="closed"):
        session.acquire("a")
    site.session().acquire("a", timeout_ns=0)


def test_lease_that_expired_here_is_given_back_all_the_same(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    publish(session, leases, b"1")
    site.time.advance(site.policy.lease_term_max_ns)
    with pytest.raises(LeaseLost):
        publish(session, leases, b"2")
    session.relinquish(leases)
    (next_one,) = site.session().acquire("a")
    assert (next_one.floor_ns, next_one.settle_to_ns) == (leases[0].watermark_ns, 0)


def test_lease_under_an_attempt_that_stays_unknown_is_abandoned_to_its_expiry(site: HandSite, mount: Planted) -> None:
    session, other = site.session(storage=mount), site.session()
    leases = session.acquire("a", "b")
    publish(session, leases, b"1")
    mount.refused = f"logs/{LOG}/2026"
    assert isinstance(session.publish(LOG, [b"2"], under=leases[:1]), Unknown)
    before = site.time.midpoint_ns
    session.close()
    longest = (
        site.policy.span_ns + site.policy.grace_ns + 2 * site.policy.radius_ns_max + site.policy.attempt_timeout_ns
    )
    assert site.time.midpoint_ns - before <= longest + SECOND
    assert [lease.ended for lease in leases] == ["abandoned", "relinquished"]
    assert [given.domain for given in sent(site, Relinquish)] == ["b"]
    (next_one,) = other.acquire("a", timeout_ns=20 * SECOND)
    assert next_one.settle_to_ns == leases[0].expiry_ns
    assert [m.payload for m in other.read(LOG, under=[next_one])] == [b"1"]


def test_relinquishing_waits_for_what_another_thread_is_writing(site: HandSite, mount: Planted) -> None:
    session, other = site.session(storage=mount), site.session()
    leases = session.acquire("a")
    seen: list[list[bytes]] = []

    def given_back_and_taken() -> None:
        session.relinquish(leases)
        with other.acquire("a", timeout_ns=0) as later:
            seen.append([m.payload for m in other.read(LOG, under=later)])
            publish(other, later, b"later")

    mount.before("publish", ".msg", given_back_and_taken)
    with pytest.raises(LeaseLost) as lost:  # the attempt is late, and there is no other
        publish(session, leases, b"earlier")
    assert lost.value.code == "lease-relinquished"
    assert seen == [[]]
    assert payloads(site) == [b"later"]


def test_relinquishing_counts_what_another_thread_has_just_written(site: HandSite, mount: Planted) -> None:
    session, other = site.session(storage=mount), site.session()
    leases = session.acquire("a")

    def written_and_stopped(call: Callable[[], object]) -> object:
        result = call()
        session.relinquish(leases)
        with other.acquire("a", timeout_ns=0) as later:
            assert [m.payload for m in other.read(LOG, under=later)] == [b"earlier"]
            publish(other, later, b"later")
        return result

    mount.at("publish", ".msg", written_and_stopped)
    assert publish(session, leases, b"earlier") == Committed()
    assert sent(site, Relinquish)[0].messages == 1
    assert leases[0].messages == 1
    assert payloads(site) == [b"earlier", b"later"]


def test_interrupted_write_is_accounted_for_before_the_lease_is_given_back(site: HandSite, mount: Planted) -> None:
    def interrupted(call: Callable[[], object]) -> object:
        call()
        raise KeyboardInterrupt

    session = site.session(storage=mount)
    mount.at("publish", ".msg", interrupted)
    with pytest.raises(KeyboardInterrupt), session.acquire("a") as leases:
        publish(session, leases, b"1")
    (given,) = sent(site, Relinquish)
    assert given.messages == 1
    assert payloads(site) == [b"1"]


# -- a dead or paused holder -------------------------------------------------------------------------------------------


def die(site: HandSite) -> None:
    """Let the term of whoever is stopped run out."""
    site.time.advance(site.policy.lease_term_max_ns + 2 * site.time.radius_ns + 1)


def test_log_is_settled_before_its_first_use_under_a_broken_lease(site: HandSite) -> None:
    first, second = site.session(), site.session()
    leases = first.acquire("a")
    publish(first, leases, b"1")
    die(site)
    (lease,) = second.acquire("a")
    assert lease.settle_to_ns == leases[0].expiry_ns
    book = second._logs.opened(LOG)
    assert book.horizon.reached < lease.settle_to_ns
    assert [m.payload for m in second.read(LOG, under=[lease])] == [b"1"]
    assert book.horizon.reached >= lease.settle_to_ns


@pytest.mark.parametrize("first_use", ["read", "publish"])
def test_paused_holder_that_goes_on_after_a_takeover_is_late(site: HandSite, mount: Planted, first_use: str) -> None:
    paused, other = site.session(storage=mount), site.session()
    leases = paused.acquire("a")
    publish(paused, leases, b"1")
    seen: list[list[bytes]] = []

    def taken_over() -> None:
        die(site)
        with other.acquire("a") as later:
            if first_use == "read":
                seen.append([m.payload for m in other.read(LOG, under=later)])
            publish(other, later, b"2")

    mount.before("publish", ".msg", taken_over)
    with pytest.raises(LeaseLost):
        publish(paused, leases, b"late")
    assert seen in ([], [[b"1"]])
    assert payloads(site) == [b"1", b"2"]


# The paused holder is the first to use the log: there is nothing to settle but what it might still begin.
@pytest.mark.parametrize("ending", ["/log", ".msg"])
def test_log_that_does_not_exist_yet_can_not_begin_in_the_past(site: HandSite, mount: Planted, ending: str) -> None:
    paused, other = site.session(storage=mount), site.session()
    leases = paused.acquire("a")

    def taken_over() -> None:
        die(site)
        with other.acquire("a") as later:
            assert other.read(LOG, under=later) == []
            publish(other, later, b"2")

    mount.before("publish", ending, taken_over)
    with pytest.raises(LeaseLost):
        publish(paused, leases, b"late")
    assert payloads(site) == [b"2"]


def test_every_log_is_settled_for_itself(site: HandSite, mount: Planted) -> None:
    paused, other = site.session(storage=mount), site.session()
    leases = paused.acquire("a")
    for log in ("one", "two"):
        paused.publish(log, [b"1"], under=leases)

    def taken_over() -> None:
        die(site)
        later = other.acquire("a")
        other.read("one", under=later)
        other.publish("two", [b"2"], under=later)

    mount.before("publish", ".msg", taken_over)
    with pytest.raises(LeaseLost):
        paused.publish("two", [b"late"], under=leases)
    assert [m.payload for m in site.settled("two")] == [b"1", b"2"]


def test_shard_that_died_leaves_no_gap_for_its_holders_either(site: HandSite, mount: Planted) -> None:
    paused, other = site.session(storage=mount), site.session()
    leases = paused.acquire("a")
    publish(paused, leases, b"1")

    def shard_restarted() -> None:
        site.start()
        with other.acquire("a") as later:
            assert later[0].settle_to_ns > leases[0].expiry_ns
            assert [m.payload for m in other.read(LOG, under=later)] == [b"1"]
            publish(other, later, b"2")

    mount.before("publish", ".msg", shard_restarted)
    with pytest.raises(LeaseLost):
        publish(paused, leases, b"late")
    assert payloads(site) == [b"1", b"2"]


def test_settling_is_compared_again_when_a_lease_asks_for_more(site: HandSite) -> None:
    session = site.session()
    (lease,) = leases = session.acquire("a")
    publish(session, leases, b"1")
    lease.settle_to_ns = site.time.midpoint_ns + SECOND  # as an upgrade may
    session.read(LOG, under=leases)
    assert session._logs.opened(LOG).horizon.reached >= lease.settle_to_ns


def test_lease_is_renewed_while_its_log_is_settled(site: HandSite) -> None:
    first, second = site.session(), site.session()
    publish(first, first.acquire("a"), b"1")
    site.start()
    (lease,) = second.acquire("a")
    granted = lease.expiry_ns
    site.transports[0].calls.clear()
    second.read(LOG, under=[lease])
    assert site.time.midpoint_ns > granted  # the wait was longer than the term
    assert len(sent(site, Renew)) >= 3
    second.check_held([lease])


def test_lease_that_cannot_be_renewed_while_its_log_is_settled_is_lost(site: HandSite) -> None:
    first, second = site.session(), site.session()
    publish(first, first.acquire("a"), b"1")
    site.start()
    leases = second.acquire("a")
    site.transports[0].shard = None
    with pytest.raises(LeaseLost):
        second.read(LOG, under=leases)


def test_settle_to_further_ahead_than_any_ceiling_is_refused_not_waited_for(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    leases[0].settle_to_ns = site.time.midpoint_ns + 3_600 * SECOND
    with pytest.raises(BadTime) as refused:
        session.read(LOG, under=leases)
    assert refused.value.code == "floor-too-far-ahead"


def test_floor_ahead_is_waited_for_while_the_lease_is_renewed(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    leases[0].floor_ns = site.time.midpoint_ns + 11 * SECOND
    assert publish(session, leases, b"1") == Committed()
    (message,) = session.read(LOG, under=leases)
    assert message.timestamp_ns > leases[0].floor_ns
    assert sent(site, Renew)


def test_what_was_read_is_below_what_is_written_next(site: HandSite) -> None:
    reader, writer = site.session(), site.session()
    with writer.acquire("a") as leases:
        publish(writer, leases, *[b"x"] * 1_000)
    with reader.acquire("b") as leases:
        last = reader.read(LOG, under=leases)[-1].timestamp_ns
        publish(reader, leases, b"y")
        assert reader.read(LOG, under=leases)[-1].timestamp_ns == last + 1


# -- renewing ----------------------------------------------------------------------------------------------------------


def test_lease_is_renewed_once_its_period_is_used_up_and_not_before(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    first = leases[0].expiry_ns
    site.time.advance(site.policy.renew_period_ns - site.time.radius_ns - 1)
    session.renew_due()
    assert sent(site, Renew) == []
    site.time.advance(1)
    session.renew_due()
    assert len(sent(site, Renew)) == 1
    assert leases[0].expiry_ns == first + site.policy.renew_period_ns - site.time.radius_ns


def test_message_under_a_renewed_lease_carries_the_newer_witness(site: HandSite) -> None:
    session = site.session()
    (lease,) = leases = session.acquire("a")
    first = lease.expiry_ns
    for _ in range(4):
        site.time.advance(site.policy.renew_period_ns)
        session.renew_due()
    assert site.time.midpoint_ns > first
    assert publish(session, leases, b"1") == Committed()
    session.relinquish(leases)
    assert payloads(site) == [b"1"]


def test_short_terms_are_asked_for_again_as_such(site: HandSite) -> None:
    session = site.session()
    short, long = session.acquire("a", term_ns=2 * SECOND), session.acquire("b")
    site.time.advance(SECOND)
    session.renew_due()
    (asked,) = sent(site, Renew)
    assert asked.domain == "a"
    assert asked.term_ns == 2 * SECOND
    assert short[0].expiry_ns < long[0].expiry_ns


def test_renewal_that_is_not_answered_leaves_the_lease_as_it_is(site: HandSite) -> None:
    session = site.session()
    (lease,) = leases = session.acquire("a")
    before = lease.expiry_ns
    site.time.advance(site.policy.renew_period_ns)
    site.transports[0].script = ["lost"] * 3
    session.renew_due()
    assert (lease.expiry_ns, lease.ended) == (before, None)
    session.renew_due()
    assert lease.expiry_ns > before
    session.check_held(leases)


def test_lease_that_its_shard_does_not_know_any_more_is_lost_by_name(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    site.start()
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    with pytest.raises(LeaseLost) as lost:
        publish(session, leases, b"1")
    assert lost.value.code == "lease-unknown"


# -- being somebody else -----------------------------------------------------------------------------------------------


def test_child_after_fork_can_neither_write_nor_give_back(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a")
    session._process += 1
    uses: tuple[Callable[[], object], ...] = (
        lambda: publish(session, leases, b"1"),
        lambda: session.acquire("b"),
        lambda: session.read(LOG, under=leases),
    )
    for use in uses:
        with pytest.raises(BadRequest) as refused:
            use()
        assert refused.value.code == "forked"
    session.relinquish(leases)
    session.close()
    assert sent(site, Relinquish) == []
    session._process -= 1
    assert publish(session, leases, b"1") == Committed()


@pytest.mark.parametrize(
    "use",
    [
        lambda session: session.acquire(),
        lambda session: session.acquire(""),
        lambda session: session.acquire("x" * 513),
        lambda session: session.acquire("a\nb"),
        lambda session: session.acquire("\ud800"),
        lambda session: session.acquire("a", term_ns=0),
        lambda session: session.acquire("a", term_ns=500 * MS),
        lambda session: session.read(LOG, level="all"),
        lambda session: session.read("nolog"),
        lambda session: session.horizon("nolog"),
    ],
)
def test_bad_request_is_refused_before_any_shard_is_asked(site: HandSite, use: Callable[[Session], object]) -> None:
    before = dict(site.storage.files)
    with pytest.raises(BadRequest) as refused:
        use(site.session())
    assert refused.value.hint
    assert site.transports[0].calls == []
    assert site.storage.files == before


def test_purpose_with_control_characters_is_refused(site: HandSite) -> None:
    with pytest.raises(BadRequest):
        site.session("a\tb")


def test_leases_are_a_sequence(site: HandSite) -> None:
    with site.session().acquire("a", "b", "a") as leases:
        assert len(leases) == 2
        assert [lease.domain for lease in leases[1:]] == ["b"]
        assert leases[0] in leases


def test_two_holders_never_hold_at_once(site: HandSite) -> None:
    site.session("the first").acquire("a")
    with pytest.raises(TryAgain) as busy:
        site.session().acquire("a", timeout_ns=SECOND)
    assert busy.value.code == "busy"
    assert len({request.request_id for request in sent(site, Acquire)}) == 2


# What is done outside the record is not protected by settling: the wait has to come before it begins.
def test_lease_for_work_outside_the_record_waits_until_no_earlier_holder_can_believe_in_his(site: HandSite) -> None:
    first = site.session()
    (dead,) = first.acquire("a")
    site.time.advance(dead.expiry_ns - site.time.midpoint_ns + site.policy.radius_ns_max + MS)
    second = site.session()
    (lease,) = second.acquire("a", outside_record=True)
    assert lease.settle_to_ns == dead.expiry_ns
    assert site.time.now().surely_past(dead.expiry_ns)


def test_lease_for_work_outside_the_record_is_given_back_when_the_wait_is_too_long(site: HandSite) -> None:
    site.start()
    (held,) = site.session().acquire("a")
    site.start()  # the shard's next incarnation knows nothing of it, but its floor does
    second = site.session()
    with pytest.raises(TryAgain) as waited:
        second.acquire("a", outside_record=True, timeout_ns=10 * MS)
    assert waited.value.code == "warming"
    assert not site.time.now().surely_past(held.expiry_ns)
    (third,) = site.session().acquire("a", outside_record=True, timeout_ns=60 * SECOND)
    assert site.time.now().surely_past(held.expiry_ns)
    assert third.fence > held.fence
