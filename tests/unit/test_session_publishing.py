"""What a session publishes: timestamps, outcomes, and what is told when a mount fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.framing import LEASES_MAX, MESSAGE_BYTES_MAX
from appliance.lease.wire import Relinquish
from appliance.session import stamping
from tests.support.cluster import HandSite, hand_sites
from timeagent.errors import BadRequest, LeaseLost
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

from tests.support.session_world import LOG, Planted, done_but_failed, files, not_done, payloads, publish, sent


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path)


@pytest.fixture
def mount(site: HandSite) -> Planted:
    return Planted(site.storage)


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


@pytest.mark.parametrize(
    ("batch", "said"), [([b"ok", 5, "text"], "[1] is int"), ("text", "they are str"), (None, "they are NoneType")]
)
def test_payload_that_is_no_bytes_is_named(site: HandSite, batch: object, said: str) -> None:
    session = site.session()
    with session.acquire("a") as leases, pytest.raises(BadRequest) as refused:
        session.publish(LOG, batch, under=leases)  # type: ignore[arg-type]
    assert refused.value.message.endswith(said)


# A destructor, or who handles a signal, publishes while this thread is between two lines.
@pytest.mark.parametrize("line", ["r1_range", "Attempt", "encode_frame"])
def test_message_of_the_same_thread_within_another_gets_a_name_and_a_timestamp_of_its_own(
    site: HandSite, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    session = site.session()
    leases = session.acquire("a")
    call = getattr(stamping, line)

    def interrupted(*given: object, **named: object) -> object:
        monkeypatch.undo()
        assert isinstance(publish(session, leases, b"within"), Committed)
        return call(*given, **named)

    monkeypatch.setattr(stamping, line, interrupted)
    assert isinstance(publish(session, leases, b"around"), Committed)
    assert isinstance(publish(session, leases, b"after"), Committed)
    found = site.settled(LOG)
    assert sorted(each.payload for each in found) == [b"after", b"around", b"within"]
    assert len({each.timestamp_ns for each in found}) == len(found)


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
def test_attempt_that_is_late_is_made_again_in_a_later_bag(site: HandSite, mount: Planted) -> None:
    session = site.session(storage=mount)
    with session.acquire("a") as leases:
        bag = site.bag_now(LOG)
        mount.before("publish", ".msg", lambda: site.close_early(bag))
        assert session.publish(LOG, [b"1"], under=leases) == Committed()
    (message,) = site.settled(LOG)
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


# What docs/guarantees.md says of writing once: an id in the message, a decision, a look. By the next session as well.
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("crashes", [False, True])
def test_message_in_doubt_is_there_once_by_who_resolves_and_looks_before_writing_again(
    site: HandSite, mount: Planted, *, done: bool, crashes: bool
) -> None:
    session = site.session(storage=mount)
    leases = session.acquire("a")
    if done:
        mount.at("publish", ".msg", done_but_failed)
        for _ in range(2):
            mount.at("look", site.bag_now(LOG).path, not_done)
    else:
        mount.at("publish", ".msg", not_done)
        mount.at("publish", ".msg", not_done)
    assert isinstance(publish(session, leases, b"id 1"), Unknown)
    if crashes:
        site.time.advance(site.policy.lease_term_max_ns + SECOND)
        session = site.session()
        leases = session.acquire("a")
    assert not isinstance(session.resolve(LOG, leases), Unknown)
    there = [each.payload for each in session.read(LOG, under=leases)]
    assert (b"id 1" in there) == done
    if not done:
        assert publish(session, leases, b"id 1") == Committed()
    session.relinquish(leases)
    assert payloads(site) == [b"id 1"]
