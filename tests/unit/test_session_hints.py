"""Hints between a session, its shard and the next holder: what is said, what is read, and what is not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats import hints
from appliance.formats.birth import BagKind
from appliance.formats.hints import ANY_FILE, PLACES_MAX, HintedFile, Hints, LogBound
from appliance.formats.lease import Mode
from appliance.lease.client import LeaseClient
from appliance.lease.wire import NO_REQUEST, Relinquish, Renew
from appliance.session.open_logs import LogBook
from tests.support.cluster import HandSite, hand_sites
from tests.support.storage import WrappedStorage
from timeagent.errors import Environment
from timeagent.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.bag.ports import Storage
    from appliance.session.held import Lease

LOG = "log"
KINDS = tuple(BagKind)


def sites(path: Path) -> Iterator[HandSite]:
    yield from hand_sites(path)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HandSite]:
    yield from sites(tmp_path)


class Counted(WrappedStorage):
    """Remembers which data files were read; may do something before a read."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.files: list[str] = []
        self.before_read: Callable[[], None] | None = None

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        if verb in ("read", "read_from") and path.endswith((".msg", ".log", "/pack")):
            planned, self.before_read = self.before_read, None
            if planned is not None:
                planned()
            self.files.append(path)
        return call()


class Doubtful(WrappedStorage):
    """Appends are done, and reported failed."""

    def around[T](self, verb: str, path: str, call: Callable[[], T]) -> T:
        done = call()
        if verb == "append":
            raise Environment("planted", f"{verb} {path}: the reply was lost")
        return done


def make_log(site: HandSite, kind: BagKind) -> None:
    LogBook(site.context()).opened_or_made(LOG, kind)


def write(site: HandSite, domain: str, *payloads: bytes, log: str = LOG) -> None:
    """A process of its own takes a domain, writes a message at a time, and gives it back."""
    session = site.session()
    with session.acquire(domain) as leases:
        for payload in payloads:
            assert session.publish(log, [payload], under=leases) == Committed()
            site.time.advance(MS)


def hints_of(site: HandSite, domain: str, mode: Mode = Mode.X) -> Hints | None:
    """What the next holder is told."""
    with site.session().acquire(domain, mode=mode) as (lease,):
        return lease.hints


def named(told: Hints | None) -> int:
    assert told is not None
    return len(told.places)


# -- what is said ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_next_holder_is_told_where_the_messages_are(site: HandSite, kind: BagKind) -> None:
    make_log(site, kind)
    write(site, "a", b"1")
    write(site, "b", b"2")
    told = hints_of(site, "a")
    assert told is not None
    (place,) = told.places
    (message,) = (each for each in site.settled(LOG) if each.payload == b"1")
    assert place == HintedFile(
        log=LOG,
        bag_start_ns=place.bag_start_ns,
        file_name=message.file_name,
        last_ns=message.timestamp_ns,
    )
    assert told.complete_from_ns < message.timestamp_ns


@pytest.mark.parametrize(("mode", "told"), [(Mode.S, True), (Mode.SIX, True), (Mode.IX, False), (Mode.IS, False)])
def test_hints_go_with_modes_beside_which_nobody_writes(site: HandSite, mode: Mode, *, told: bool) -> None:
    write(site, "a", b"1")
    assert (hints_of(site, "a", mode) is not None) is told


def test_stronger_mode_is_told_what_others_wrote_meanwhile(site: HandSite) -> None:
    one, other = site.session(), site.session()
    (lease,) = mine = one.acquire("a", mode=Mode.IX)
    with other.acquire("a", mode=Mode.IX) as theirs:
        other.publish(LOG, [b"1"], under=theirs)
    one.publish(LOG, [b"2"], under=mine)
    one.upgrade(lease, Mode.X)
    assert named(lease.hints) == 1
    assert [each.payload for each in one.read_domains(LOG, under=mine)] == [b"1", b"2"]


def test_set_of_leases_is_told_when_it_is_held(site: HandSite) -> None:
    write(site, "a", b"1")
    write(site, "b", b"2", b"3")
    with site.session().acquire("a", "b") as leases:
        assert [named(lease.hints) for lease in leases] == [1, 2]


def test_renewals_say_where_and_relinquishing_need_not_repeat_it(site: HandSite) -> None:
    session = site.session()
    with session.acquire("a") as leases:
        session.publish(LOG, [b"1"], under=leases)
        site.time.advance(site.policy.renew_period_ns)
        session.renew_due()
    calls = site.transports[0].calls
    (renewal,) = (each for each in calls if isinstance(each, Renew))
    (giving,) = (each for each in calls if isinstance(each, Relinquish))
    assert renewal.hints is not None
    assert (len(renewal.hints.places), giving.hints) == (1, Hints())
    assert named(hints_of(site, "a")) == 1


@pytest.mark.parametrize("fault", ["lost", "done"])
def test_renewal_without_an_answer_loses_nothing(site: HandSite, fault: str) -> None:
    session = site.session()
    with session.acquire("a") as leases:
        session.publish(LOG, [b"1"], under=leases)
        site.time.advance(site.policy.renew_period_ns)
        site.transports[0].script = [fault] * 3
        session.renew_due()
    assert named(hints_of(site, "a")) == 1


def test_holder_that_says_nothing_about_where_it_wrote_leaves_nothing_known(site: HandSite) -> None:
    write(site, "a", b"1")
    session = site.session()
    (lease,) = session.acquire("a")
    session.publish(LOG, [b"2"], under=[lease])
    client = LeaseClient(site.transport(0), site.time, site.policy, lease.signed.witness().holder, site.chance)
    client.relinquish([Relinquish(NO_REQUEST, "a", lease.correlation_id, lease.watermark_ns, lease.watermark_time)])
    assert hints_of(site, "a") == Hints(complete_from_ns=lease.watermark_ns or 0)


def test_holder_that_wrote_nothing_changes_nothing(site: HandSite) -> None:
    write(site, "a", b"1")
    before = hints_of(site, "a")
    assert hints_of(site, "a") == before


def test_nothing_is_claimed_about_a_broken_lease(site: HandSite) -> None:
    session = site.session()
    (lease,) = session.acquire("a")
    session.publish(LOG, [b"1"], under=[lease])
    site.time.advance(site.policy.renew_period_ns)
    session.renew_due()
    site.time.advance(2 * site.policy.lease_term_max_ns)
    assert hints_of(site, "a") == Hints(complete_from_ns=lease.expiry_ns)


def test_shard_that_starts_claims_nothing_below_its_floor(site: HandSite) -> None:
    write(site, "a", b"1")
    site.start()
    session = site.session()
    (lease,) = leases = session.acquire("a")
    assert lease.hints == Hints(complete_from_ns=lease.floor_ns)
    assert [each.payload for each in session.read_domains(LOG, under=leases)] == [b"1"]


def test_number_of_places_is_limited_and_the_newest_are_kept(site: HandSite) -> None:
    write(site, "a", *(b"%d" % n for n in range(PLACES_MAX + 8)))
    write(site, "a", b"last")
    told = hints_of(site, "a")
    assert told is not None
    assert len(told.places) == PLACES_MAX
    messages = site.settled(LOG)
    assert told.reach_ns(LOG) == messages[-PLACES_MAX - 1].timestamp_ns
    assert told.reach_ns("other") < messages[0].timestamp_ns
    assert {each.file_name for each in told.places} == {each.file_name for each in messages[-PLACES_MAX:]}


def test_number_of_bounds_is_limited_and_the_highest_are_kept() -> None:
    one, other = (
        hints.Hints(bounds=tuple(hints.LogBound(log=f"{name}{n}", above_ns=low + n) for n in range(hints.LOGS_MAX)))
        for name, low in (("a", 10), ("b", 100))
    )
    for together in (hints.joined(one, other), hints.joined(other, one)):
        assert together.bounds == other.bounds
        assert together.complete_from_ns == 10 + hints.LOGS_MAX - 1


def place(last_ns: int, log: str = LOG, name: str = "f") -> HintedFile:
    return HintedFile(log=log, bag_start_ns=0, file_name=name, last_ns=last_ns)


def test_file_that_two_name_reaches_as_far_as_either_says() -> None:
    early, late = Hints(places=(place(5),)), Hints(places=(place(9),))
    bound = Hints(bounds=(LogBound(log=LOG, above_ns=7),))
    for one, other in ((early, late), (late, early)):
        assert hints.joined(one, other).places == (place(9),)
        assert hints.joined(hints.joined(one, other), bound).places == (place(9),)


def test_nothing_of_what_is_capped_lies_above() -> None:
    bounds = tuple(LogBound(log=name, above_ns=instant) for name, instant in (("a", 3), ("b", 8), ("c", 9)))
    places = tuple(place(instant, name=name) for name, instant in (("f", 3), ("g", 8), ("h", 9)))
    found = hints.capped(Hints(complete_from_ns=9, bounds=bounds, places=places), 5)
    assert found.complete_from_ns == 5
    assert [each.above_ns for each in found.bounds] == [3, 5, 5]
    assert [each.last_ns for each in found.places] == [3, 5, 5]


def test_bound_of_a_log_never_falls() -> None:
    high, low = (Hints(bounds=(LogBound(log=LOG, above_ns=instant),)) for instant in (5, 3))
    assert hints.joined(high, low).reach_ns(LOG) == hints.joined(low, high).reach_ns(LOG) == 5


def test_memory_for_hints_is_limited(tmp_path: Path) -> None:
    site = HandSite(tmp_path, hint_bytes_max=500)
    try:
        for number in range(20):
            write(site, f"d{number}", b"1")
        there = [named(hints_of(site, f"d{number}")) for number in range(20)]
        assert 0 < sum(there) < 8
        session = site.session()
        for number in range(20):
            with session.acquire(f"d{number}", mode=Mode.S) as leases:
                assert len(session.read_domains(LOG, under=leases)) == 1
    finally:
        site.close()


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settled", [False, True])
def test_narrow_reading_touches_named_files_only(site: HandSite, kind: BagKind, *, settled: bool) -> None:
    make_log(site, kind)
    write(site, "a", b"0")
    for number in range(12):
        write(site, f"other{number}", b"x")
    site.start()
    for number in range(12):
        write(site, f"other{number}", b"x")
        site.time.advance(100 * MS)
    write(site, "a", b"1")
    if settled:
        site.time.advance(10 * SECOND)
        site.settled(LOG)
    mount = Counted(site.storage)
    session = site.session(storage=mount)
    (lease,) = leases = session.acquire("a", mode=Mode.S)
    assert lease.hints is not None
    reach = lease.hints.reach_ns(LOG)
    for found in (
        session.read_domains(LOG, under=leases, after_ns=reach),
        session.read_domains(LOG, under=leases, last=1),
    ):
        assert [each.payload for each in found] == [b"1"]
    assert len(mount.files) == 2
    assert [each.payload for each in session.read_domains(LOG, under=leases)] == [b"0", b"1"]
    assert len(mount.files) == 2 + 13 + 1


def test_attempt_in_doubt_is_read_where_it_is(site: HandSite) -> None:
    make_log(site, BagKind.LOG)
    mount = Doubtful(site.storage)
    session = site.session(storage=mount)
    leases = session.acquire("a")
    assert isinstance(session.publish(LOG, [b"1"], under=leases), Unknown)
    (whole,) = session.read(LOG, under=leases)
    assert session.read_domains(LOG, under=leases, after_ns=whole.timestamp_ns - 1) == [whole]


# A holder may have been wrong about where it wrote, or lie: nobody else is misled about what is there.
def test_what_is_named_and_is_not_there_holds_nothing(site: HandSite) -> None:
    write(site, "a", b"1")
    book = LogBook(site.context()).opened(LOG)
    bag = book.grid.bag(site.time.midpoint_ns)
    session = site.session()
    (lease,) = leases = session.acquire("a")
    file_name = session.read(LOG, under=leases)[0].file_name
    assert lease.hints is not None
    strange = ["no.such.file", "../../log", "lock", file_name.replace("1.msg", "7.msg"), ANY_FILE]
    starts = [bag.start_ns, bag.start_ns + 1, bag.end_ns, bag.end_ns + 2 * SECOND, 0, 1, 2**62]
    places = [
        HintedFile(log=LOG, bag_start_ns=start, file_name=name, last_ns=2**62)
        for start in starts
        for name in (strange if start != bag.start_ns else strange[:-1])
    ]
    lease.hints = msgspec.structs.replace(lease.hints, places=(*lease.hints.places, *places))
    after = lease.hints.complete_from_ns
    assert [each.payload for each in session.read_domains(LOG, under=leases, after_ns=after)] == [b"1"]
    site.time.advance(4 * SECOND)
    session.renew_due()
    book.horizon.settle(bag.end_ns)
    for reader in (session, site.session()):
        assert reader is session or reader.read(LOG)
        session._logs.opened(LOG).horizon.refresh()
        assert [each.payload for each in session.read_domains(LOG, under=leases, after_ns=after)] == [b"1"]


# A closer comes between the listing and the reading, and the frame that is read was appended after it had measured.
def test_open_bag_that_is_named_is_looked_at_after_its_files_were_read(site: HandSite) -> None:
    make_log(site, BagKind.LOG)
    writer = site.session()
    mine: list[Lease] = list(writer.acquire("a"))
    assert writer.publish(LOG, [b"1"], under=mine) == Committed()
    mount = Counted(site.storage)
    book = LogBook(site.context(mount)).opened(LOG)
    bag = book.grid.bag(site.time.midpoint_ns)
    place = mine[0].own.places[0]

    def close_and_append() -> None:
        site.close_early(bag)
        outcomes = [writer._attempt(writer._logs.opened(LOG), [b"2"], mine, bytes(16))]
        assert isinstance(outcomes[0], NotCommitted)

    mount.before_read = close_and_append
    found = book.reader.in_files({place.bag_start_ns: {place.file_name}}, 0)
    assert [each.payload for batch in found for each in batch] == [b"1"]
