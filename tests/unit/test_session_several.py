"""What a session does with one message, lease, shard or attempt it does with each of several."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.bag.ports import RecordNumbers
from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.lease.wire import Acquire, DropSession, Relinquish, Revoke
from appliance.session.endings import LossReason
from tests.support.cluster import HandSite, HandTransport, hand_sites
from tests.support.session_world import LOG
from tests.support.values import keyring, trust_record
from timeagent.errors import LeaseLost, NotTrusted, ShardUnavailable, TryAgain
from timeagent.keys import Purpose
from timeagent.trust import Keyring
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from appliance.bag.writing import Outcome
    from appliance.lease.wire import Request
    from appliance.session.held import Lease
    from appliance.session.session import Session
    from timeagent.units import TimeInterval
from timeagent.signedtime import SignedTime


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from hand_sites(tmp_path, shards=2)


def in_shard(site: HandSite, shard: int, count: int = 1) -> list[str]:
    return [name for name in site.domains(9 * count + 9) if site.shard_of(name) == shard][:count]


def sent[R: Request](site: HandSite, kind: type[R]) -> list[R]:
    return [request for transport in site.transports for request in transport.calls if isinstance(request, kind)]


def write(session: Session, under: Sequence[Lease], *batch: bytes) -> None:
    assert isinstance(session.publish(LOG, batch, under=under), Committed)


# -- watermarks --------------------------------------------------------------------------------------------------------


def test_watermark_of_a_lease_is_the_last_message_of_its_batches(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a", "b") as leases:
        write(session, leases, b"1", b"2", b"3")
        last = session.read(LOG, under=leases)[-1].timestamp_ns
        assert [lease.watermark_ns for lease in leases] == [last, last]
    assert [each.watermark_ns for each in sent(site, Relinquish)] == [last, last]
    assert [lease.floor_ns for lease in site.session().acquire("a", "b")] == [last, last]


def test_session_lease_is_dropped_with_the_highest_watermark_and_all_that_was_written(site: HandSite) -> None:
    session = site.session(session_leases=True)
    leases = [session.acquire(name)[0] for name in in_shard(site, 0, session._leasing.session_leases.drop_from)]
    for number, which in enumerate((0, -1, 3, 7, 5), 1):
        write(session, [leases[which]], *[b"m"] * number)
    last = leases[5].watermark_ns
    assert last == max(lease.watermark_ns or 0 for lease in leases)
    session.close()
    dropped = next(each for each in sent(site, DropSession) if each.messages)
    assert (dropped.watermark_ns, dropped.watermark_time) == (last, leases[5].watermark_time)
    assert (dropped.messages, dropped.chain_head) == (15, leases[5].chain_head)
    assert site.session().acquire(leases[0].domain)[0].floor_ns == last


# -- several leases under one batch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1])
def test_timestamps_lie_above_the_floor_of_each_lease(site: HandSite, ahead: int) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    leases[ahead].floor_ns = floor = site.time.midpoint_ns + MS
    write(session, leases, b"m")
    assert leases[0].watermark_ns == leases[1].watermark_ns == floor + 1


@pytest.mark.parametrize("over", [0, 1])
def test_nothing_is_done_under_leases_one_of_which_is_over(site: HandSite, over: int) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    leases[over].own_expiry_ns = site.time.midpoint_ns + site.policy.holder_margin_ns
    with pytest.raises(LeaseLost):
        session.check_held(leases)
    with pytest.raises(LeaseLost):
        session.publish(LOG, [b"m"], under=leases)
    with pytest.raises(LeaseLost):
        session.read(LOG, under=leases)


@pytest.mark.parametrize("restarted", [0, 1])
def test_log_is_settled_as_far_as_any_of_its_leases_asks(site: HandSite, restarted: int) -> None:
    domains = [in_shard(site, shard)[0] for shard in (0, 1)]
    site.start(restarted)
    session = site.session()
    leases = session.acquire(*domains, record_only=True)
    asked = [lease.settle_to_ns for lease in leases]
    assert max(asked) > site.time.midpoint_ns
    assert min(asked) == 0
    write(session, leases, b"m")
    assert session._logs.opened(LOG).horizon.reached >= max(asked)


def test_each_lease_of_a_batch_knows_what_was_written_under_it(site: HandSite) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    for lease in leases:
        lease.progress_within_ns, lease.progress_boot_ns = SECOND, -1
    write(session, leases, b"1", b"2")
    assert [(each.messages, len(each.own.places), each.progress_boot_ns >= 0) for each in leases] == [(2, 1, True)] * 2
    assert len({each.chain_head for each in leases}) == 1


@pytest.mark.parametrize("over", [0, 1])
def test_leases_that_run_out_before_a_frame_is_stamped_are_looked_at_again(
    site: HandSite, monkeypatch: pytest.MonkeyPatch, over: int
) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    leases[over].own_expiry_ns -= 5 * SECOND
    look = site.time.now_and_token

    def held_up() -> tuple[TimeInterval, SignedTime]:
        site.time.advance(leases[over].expiry_ns - site.policy.holder_margin_ns - site.time.midpoint_ns)
        return look()

    monkeypatch.setattr(site.time, "now_and_token", held_up)
    with pytest.raises(LeaseLost):
        session.publish(LOG, [b"m"], under=leases)
    assert leases[over].ended == "expired"
    assert not [path for path in site.storage.files if path.endswith(".msg")]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_no_witness_of_several_may_be_one_that_readers_distrust(site: HandSite, order: Sequence[int]) -> None:
    session = site.session()
    leases = [*session.acquire("a")]
    since = site.time.midpoint_ns + 1
    site.time.advance(MS)
    leases += session.acquire("b")
    keys = [
        msgspec.structs.replace(each, revoked_from_ns=since) if each.purpose is Purpose.WITNESS else each
        for each in trust_record().keys
    ]
    site.records.keyrings[2] = Keyring(keys)
    write(session, leases[:1], b"m")
    with pytest.raises(NotTrusted):
        session.publish(LOG, [b"m"], under=[leases[number] for number in order])


class Known:
    """Records of which a process has seen the first ones only; counts how often it looks for the newest."""

    def __init__(self, site: HandSite, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        self._newest = site.records.newest
        monkeypatch.setattr(site.records, "newest", self.newest)
        monkeypatch.setattr(type(site.records), "known", RecordNumbers(1, 1))

    def newest(self) -> RecordNumbers:
        self.looks += 1
        return self._newest()


def test_publishing_goes_by_the_records_that_are_known_and_looks_for_none(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.session()
    leases = session.acquire("a")
    write(session, leases, b"1")
    known = Known(site, monkeypatch)
    site.records.keyrings[2] = keyring()
    write(session, leases, b"2")
    assert known.looks == 0


def test_key_that_only_the_newest_trust_record_has_is_found_there(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.session()
    leases = session.acquire("a")
    site.records.keyrings[2] = keyring()
    others = [each for each in trust_record().keys if each.purpose is not Purpose.WITNESS]
    site.records.keyrings[1] = Keyring(others)
    known = Known(site, monkeypatch)
    write(session, leases, b"1")
    assert known.looks > 0
    site.records.keyrings[2] = Keyring(others)
    with pytest.raises(NotTrusted):
        session.publish(LOG, [b"2"], under=leases)


# -- reading what several domains are named by -------------------------------------------------------------------------


def narrow(session: Session, leases: Sequence[Lease], last: int | None = None) -> list[bytes]:
    return [each.payload for each in session.read_domains(LOG, under=leases, last=last)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_narrow_reading_has_the_messages_of_each_domain(site: HandSite, order: Sequence[int]) -> None:
    first = site.session()
    with first.acquire("a", "b") as leases:
        for number in range(1, 6):
            write(first, [leases[number % 2]], b"%d" % number)
            assert isinstance(first.publish("other", [b"x"], under=leases), Committed)
            site.time.advance(400 * MS)
            first.renew_due()
    session = site.session()
    taken = session.acquire("a", "b")
    leases_in_order = [taken[number] for number in order]
    assert narrow(session, leases_in_order) == [b"1", b"2", b"3", b"4", b"5"]
    assert [narrow(session, leases_in_order, last) for last in (1, 2, 3)] == [
        [b"5"],
        [b"4", b"5"],
        [b"3", b"4", b"5"],
    ]
    assert narrow(session, taken[:1]) == [b"2", b"4"]


def test_narrow_reading_above_an_instant_has_the_rest_of_that_bag(site: HandSite) -> None:
    first = site.session()
    with first.acquire("a") as leases:
        for number in range(1, 4):
            write(first, leases, b"%d" % number)
        stamps = [each.timestamp_ns for each in first.read(LOG, under=leases)]
    session = site.session()
    taken = session.acquire("a")
    for number, stamp in enumerate(stamps):
        found = session.read_domains(LOG, under=taken, after_ns=stamp)
        assert [each.timestamp_ns for each in found] == stamps[number + 1 :]


@pytest.mark.parametrize("died", ["a", "b"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_narrow_reading_looks_where_the_least_is_known_of_any_domain(
    site: HandSite, died: str, order: Sequence[int]
) -> None:
    first, dead = site.session(), site.session()
    (lease,) = dead.acquire(died)
    write(dead, [lease], b"1")
    site.time.advance(MS)
    with first.acquire("ab".replace(died, "")) as leases:
        write(first, leases, b"2")
    site.time.advance(site.policy.lease_term_max_ns + 2 * site.time.radius_ns + 1)
    session = site.session()
    taken = session.acquire("a", "b")
    assert narrow(session, [taken[number] for number in order]) == [b"1", b"2"]


# -- earlier holders who may still believe -----------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [0, 1])
def test_acquire_waits_for_the_last_of_the_earlier_holders_of_all_its_domains(site: HandSite, restarted: int) -> None:
    domains = [in_shard(site, shard)[0] for shard in (0, 1)]
    (held,) = site.session().acquire(domains[restarted])
    site.start(restarted)
    leases = site.session().acquire(*domains, timeout_s=60)
    assert {lease.settle_to_ns for lease in leases} == {0, max(lease.settle_to_ns for lease in leases)}
    assert site.time.now().surely_past(max(held.expiry_ns, *(lease.settle_to_ns for lease in leases)))


@pytest.mark.parametrize("restarted", [0, 1])
def test_all_leases_are_given_back_where_acquire_cannot_wait_for_earlier_holders(
    site: HandSite, restarted: int
) -> None:
    domains = [in_shard(site, shard)[0] for shard in (0, 1)]
    site.start(restarted)
    with pytest.raises(TryAgain, match="may believe"):
        site.session().acquire(*domains, timeout_s=0.001)
    assert len(site.session().acquire(*domains, timeout_s=0, record_only=True)) == 2


@pytest.mark.parametrize("lost", [0, 1])
def test_lease_that_is_lost_while_acquire_waits_for_earlier_holders_ends_the_wait(site: HandSite, lost: int) -> None:
    domains = [in_shard(site, shard)[0] for shard in (0, 1)]
    site.start(0)
    session = site.session()

    def lose() -> bool:
        held = {site.shard_of(lease.domain): lease for lease in session.keeper.held}
        if lost in held:
            held[lost].lose("revoked", LossReason.BROKEN)
        return False

    with pytest.raises(LeaseLost):
        session.acquire(*domains, timeout_s=60, given_up=lose)


# -- giving back within a time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [False, True], ids=["alone", "under session leases"])
@pytest.mark.parametrize("silent", [(), (0,), (1,), (0, 1)])
def test_giving_back_takes_no_longer_than_it_may_and_says_what_was_delivered(
    site: HandSite, silent: tuple[int, ...], *, together: bool
) -> None:
    session = site.session(session_leases=together)
    session._leasing.session_leases.drop_from = 1 + len(silent) % 2  # dropped as a whole, or one by one
    leases = session.acquire(*(in_shard(site, shard)[0] for shard in (0, 1)))
    for transport in site.transports:
        transport.before = partial(_answers_late, site, transport, silent)
    limit = site.policy.attempt_timeout_ns
    began = site.time.boot_ns()
    assert session.relinquish(leases, timeout_s=(limit) / SECOND) is not bool(silent)
    assert site.time.boot_ns() - began <= limit
    assert [lease.delivered for lease in leases] == [site.shard_of(lease.domain) not in silent for lease in leases]
    assert all(lease.ended == "relinquished" for lease in leases)
    heard = [site.shard_of(lease.domain) for lease in leases if lease.delivered]
    free = site.session().acquire(*(in_shard(site, shard)[0] for shard in heard), timeout_s=0) if heard else ()
    assert len(free) == len(heard)


def test_giving_back_that_resolves_what_is_in_doubt_ends_in_time(
    site: HandSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = site.session()
    leases = session.acquire(in_shard(site, 0)[0])
    writer = type(session._logs.opened_or_made("log").writer)
    deadlines: list[int] = []

    def resolve(_: object, __: object, deadline: int) -> Unknown:
        deadlines.append(deadline)
        return Unknown("planted")

    monkeypatch.setattr(writer, "write", lambda *_: Unknown("planted"))
    monkeypatch.setattr(writer, "resolve", resolve)
    session.publish("log", [b"m"], under=leases)
    until = site.time.boot_ns() + 10 * MS
    assert not session.relinquish(leases, timeout_s=0.01)
    assert max(deadlines) <= until
    assert not leases[0].delivered


def _answers_late(site: HandSite, transport: HandTransport, silent: tuple[int, ...], _: list[Request]) -> None:
    """Have a shard that is silent let the time of each call pass."""
    if site.transports.index(transport) in silent:
        transport.script = ["lost"]
        site.time.advance(transport.timeout_ns)


# -- several leases under one session lease ----------------------------------------------------------------------------


def test_all_leases_that_were_ended_alone_are_lost_with_the_next_renewal(site: HandSite) -> None:
    session = site.session(session_leases=True)
    leases = [session.acquire(name)[0] for name in in_shard(site, 0, 4)]
    for lease in leases[1:]:
        request = Revoke(
            request_id=site.chance.randbytes(16),
            domain=lease.domain,
            correlation_id=lease.correlation_id,
            by=lease.signed.witness().holder,
        )
        site.transports[0].call([request], SECOND)
    site.time.advance(4 * SECOND)
    session.renew_due()
    assert [lease.ended for lease in leases] == [None, "revoked", "revoked", "revoked"]


def test_all_session_leases_that_are_over_are_found(site: HandSite) -> None:
    session = site.session(session_leases=True)
    leases = session.acquire(*(in_shard(site, shard)[0] for shard in (0, 1)))
    for transport in site.transports:
        transport.shard = None
    site.time.advance(site.policy.lease_term_max_ns)
    session.renew_due()
    assert [lease.ended for lease in leases] == ["expired", "expired"]


def test_session_leases_of_one_shard_are_told_apart(site: HandSite) -> None:
    session = site.session(session_leases=True)
    session_leases = session._leasing.session_leases
    (older,) = session.acquire(in_shard(site, 0)[0])
    assert older.session_lease is not None
    session_leases.retire(older.session_lease)
    (newer,) = session.acquire(in_shard(site, 0, 2)[1])
    assert newer.session_lease is not None
    assert newer.session_lease is not older.session_lease
    for lease in (older, newer):
        assert lease.session_lease is not None
        assert session_leases.named(0, lease.session_lease.session_id) is lease.session_lease
    assert session_leases.named(1, newer.session_lease.session_id) is None


def test_every_word_that_was_lost_is_said_again(site: HandSite) -> None:
    session = site.session(session_leases=True)
    kept, *leases = [session.acquire(name)[0] for name in in_shard(site, 0, 4)]
    for lease in leases:
        write(session, [lease], b"m")
    site.transports[0].script = ["lost"] * 3
    session.relinquish(leases)
    site.transports[0].script = []
    site.time.advance(4 * SECOND)
    session.renew_due()
    taken = [site.session().acquire(lease.domain, timeout_s=0)[0] for lease in leases]
    assert [(each.floor_ns, each.settle_to_ns) for each in taken] == [(each.watermark_ns, 0) for each in leases]
    session.check_held([kept])


# -- leases of different ends ------------------------------------------------------------------------------------------


def test_renewals_are_given_up_at_the_first_end_that_can_still_be_met(site: HandSite) -> None:
    session = site.session()
    leases = [session.acquire(name, term_s=term)[0] for name, term in (("a", 1), ("b", 3), ("c", None))]
    site.time.advance(2 * SECOND)
    for each in (leases, leases[::-1]):
        end = leases[1].usable_until_ns(site.policy.holder_margin_ns)
        assert session._leasing._first_end(each) == end


def test_leases_of_every_term_are_renewed(site: HandSite) -> None:
    session = site.session()
    leases = [session.acquire(name, term_s=term)[0] for name, term in (("a", 4), ("b", 5))]
    before = [lease.expiry_ns for lease in leases]
    site.time.advance(3 * SECOND)
    session.renew_due()
    assert all(lease.expiry_ns > expiry for lease, expiry in zip(leases, before, strict=True))


def test_all_session_leases_with_one_shard_are_renewed(site: HandSite) -> None:
    session = site.session(session_leases=True)
    one, other = in_shard(site, 0, 2)
    (older,) = session.acquire(one)
    assert older.session_lease is not None
    session._leasing.session_leases.retire(older.session_lease)
    leases = [older, session.acquire(other)[0]]
    before = [lease.expiry_ns for lease in leases]
    site.time.advance(4 * SECOND)
    session.renew_due()
    assert all(lease.expiry_ns > expiry for lease, expiry in zip(leases, before, strict=True))


# -- several obstacles, and several who ask ----------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_obstacle_that_no_waiting_mends_counts_beside_one_that_is_waited_for(tmp_path: Path, names: str) -> None:
    held, new = names[0], names[1]
    site = HandSite(tmp_path, domains_max=1)
    other = site.session()
    leases = other.acquire(held)

    def give_back() -> bool:
        if any(each.domain == new for each in sent(site, Acquire)):
            other.relinquish(leases)
        return False

    with pytest.raises(ShardUnavailable, match=f"no lease on '{new}'"):
        site.session().acquire("a", "b", timeout_s=1, given_up=give_back)
    site.close()


def test_every_lease_that_is_asked_for_is_given_back(site: HandSite) -> None:
    session, rival = site.session(), site.session("rival")
    domains = [*in_shard(site, 0, 3), *in_shard(site, 1, 3)]
    leases = session.acquire(*domains, recall="relinquish")
    for domain in domains:
        with pytest.raises(TryAgain):
            rival.acquire(domain, timeout_s=0)
    session.renew_due()
    assert [lease.ended for lease in leases] == ["recalled"] * 6
    assert len(rival.acquire(*domains, timeout_s=0)) == 6


# -- several attempts --------------------------------------------------------------------------------------------------

YES, NO, NOBODY_KNOWS = Committed(), NotCommitted("late"), Unknown("planted")


@pytest.fixture
def doubted(site: HandSite, monkeypatch: pytest.MonkeyPatch) -> dict[int, Outcome]:
    """What becomes of attempts, by their sequence: each is in doubt until it is asked for."""
    found: dict[int, Outcome] = {}
    writer = type(site.session()._logs.opened_or_made(LOG).writer)
    monkeypatch.setattr(writer, "write", lambda *_: NOBODY_KNOWS)
    monkeypatch.setattr(writer, "resolve", lambda _, file, *__: found.get(file.name.sequence, NOBODY_KNOWS))
    return found


@pytest.mark.parametrize(
    ("outcomes", "together"),
    [
        ((YES, YES), Committed),
        ((YES, NO), NotCommitted),
        ((NO, YES), NotCommitted),
        ((NO, NOBODY_KNOWS), Unknown),
        ((NOBODY_KNOWS, NO), Unknown),
        ((NOBODY_KNOWS, YES), Unknown),
        ((YES, NOBODY_KNOWS), Unknown),
    ],
)
def test_what_became_of_several_attempts_is_the_least_that_is_known(
    site: HandSite, doubted: dict[int, Outcome], outcomes: Sequence[Outcome], together: type
) -> None:
    session = site.session()
    leases = session.acquire("a")
    for each in outcomes:
        assert session.publish(LOG, [b"m"], under=leases) == NOBODY_KNOWS
        doubted[len(doubted) + 1] = each
    assert isinstance(session.resolve(LOG, leases), together)
    assert leases[0].messages == outcomes.count(YES)


@pytest.mark.parametrize("which", [0, 1])
def test_attempt_in_doubt_is_one_of_each_lease_that_it_was_made_under(
    site: HandSite, doubted: dict[int, Outcome], which: int
) -> None:
    session = site.session()
    leases = session.acquire("a", "b")
    assert session.publish(LOG, [b"m"], under=leases) == NOBODY_KNOWS
    assert isinstance(session.resolve(LOG, [leases[which]]), Unknown)
    session.relinquish([leases[which]])
    assert leases[which].ended == "abandoned"
    assert leases[1 - which].ended is None


def test_every_lease_of_an_attempt_that_stays_in_doubt_is_abandoned(
    site: HandSite, doubted: dict[int, Outcome]
) -> None:
    session = site.session()
    leases = session.acquire("a", "b", "c")
    assert session.publish(LOG, [b"m"], under=leases[:2]) == NOBODY_KNOWS
    session.relinquish(leases)
    assert [each.ended for each in leases] == ["abandoned", "abandoned", "relinquished"]
    assert [each.domain for each in sent(site, Relinquish)] == ["c"]


# Logs keep the span and the grace of the policy under which they began.
@pytest.mark.parametrize("order", [("quick", "slow"), ("slow", "quick")])
def test_outcomes_are_waited_for_as_long_as_the_slowest_log_needs(
    site: HandSite, monkeypatch: pytest.MonkeyPatch, order: Sequence[str]
) -> None:
    session = site.session()
    quick = session._logs.opened_or_made("quick").writer
    slower = msgspec.structs.replace(site.policy, number=2, grace_ns=site.policy.grace_ns + 20 * SECOND)
    site.records.policies[2] = slower
    session._logs.opened_or_made("slow")
    until: list[int] = []
    monkeypatch.setattr(type(quick), "write", lambda *_: NOBODY_KNOWS)

    def resolve(_: object, __: object, deadline: int) -> Outcome:
        until.append(deadline)
        return NOBODY_KNOWS

    monkeypatch.setattr(type(quick), "resolve", resolve)
    leases = session.acquire("a")
    for log in order:
        session.publish(log, [b"m"], under=leases)
    began = site.time.boot_ns()
    session.relinquish(leases)
    assert len(until) == 2
    assert min(until) - began >= slower.span_ns + slower.grace_ns
