"""``CachedValue`` by a hand-driven clock: what is in memory is used while its lease is held, and never longer."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from appliance.bag.writing import Committed, NotCommitted, Unknown
from appliance.formats.framing import MESSAGE_BYTES_MAX
from appliance.recipes import cached_value as module
from appliance.recipes.cached_value import EARLY_RECALLS, UNKEPT_USES, CachedValue
from appliance.session import held
from appliance.session.endings import LossReason
from tests.support.cluster import HandSite, hand_sites
from tests.support.documents import blocks, run_program
from tests.support.mutants import Mutant, check_noticed
from timeagent.errors import BadRequest, BadTime, LeaseLost, NotTrusted, TenureError, TryAgain, UnknownOutcome
from timeagent.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from appliance.bag.writing import Outcome
    from appliance.lease.wire import Request
    from appliance.session.held import Lease
    from appliance.session.session import Session
    from tests.support.cluster import Site

LOG, NAME = "config", "limits"


class Stage:
    """Two processes with the same value in memory. Each hears what it is asked for while the other asks a shard."""

    def __init__(self, site: HandSite) -> None:
        self.site = site
        self.timers: list[Callable[[], None]] = []
        self.sessions = [site.session("one"), site.session("two")]
        self.one, self.two = (self.value(session) for session in self.sessions)
        self._inside = False
        self.deaf = False
        site.transports[0].before = self._others_hear

    def value(self, session: Session) -> CachedValue:
        value = CachedValue(session, LOG, NAME, timeout_s=5)
        value._later = lambda span, do: self.timers.append(do)  # noqa: ARG005 - as it is called
        return value

    def _others_hear(self, _: list[Request]) -> None:
        if not self._inside and not self.deaf:
            self._inside = True
            for session in self.sessions:
                with suppress(TenureError):
                    session.renew_due()
            self._inside = False

    def asked(self) -> int:
        """How many requests the shard has had."""
        return len(self.site.transports[0].calls)

    def ends(self, count: int = 1) -> None:
        """Let the time come at which what was put is written."""
        for _ in range(count):
            self.timers.pop(0)()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    for site in hand_sites(tmp_path):
        yield Stage(site)


def test_value_is_read_once_and_then_from_memory(stage: Stage) -> None:
    assert stage.one.get() is None
    stage.two.set(b"a")
    assert stage.one.get() == b"a"
    before = stage.asked()
    assert [stage.one.get() for _ in range(100)] == [b"a"] * 100
    assert stage.asked() == before, "nobody was asked"
    assert (stage.one.counts.hits, stage.one.counts.misses) == (100, 2)


def test_write_of_another_is_seen_by_the_next_read(stage: Stage) -> None:
    for number in range(8):
        value = b"%d" % number
        writer, reader = (stage.one, stage.two)[:: 1 if number % 2 else -1]
        assert writer.set(value) == Committed()
        assert reader.get() == value
        assert writer.get() == value


# A process that stood still past the expiry, and whose shard has forgotten it: another has written meanwhile.
def test_nothing_is_read_from_memory_past_the_expiry(stage: Stage) -> None:
    stage.two.set(b"a")
    assert stage.one.get() == b"a"
    stage.deaf = True
    stage.site.time.advance(stage.site.policy.lease_term_max_ns + SECOND)
    assert stage.two.set(b"b") == Committed()
    stage.deaf = False
    assert stage.one.get() == b"b"


def test_value_that_could_never_be_written_is_refused(stage: Stage) -> None:
    stage.one.put(b"a")
    with pytest.raises(BadRequest, match="message-too-large"):
        stage.one.put(bytes(MESSAGE_BYTES_MAX + 1))
    assert stage.one.get() == b"a"
    assert isinstance(stage.one.flush(), Committed)


def test_what_is_put_is_written_when_another_asks(stage: Stage) -> None:
    stage.one.put(b"a")
    stage.one.put(b"b")
    assert stage.one.get() == b"b"
    assert [each.payload for each in stage.site.settled(LOG)] == []
    assert stage.two.get() == b"b"
    assert [each.payload for each in stage.site.settled(LOG)] == [b"b"], "the latest of them, once"
    assert stage.one.counts.flushes == 1


def test_what_is_put_is_written_after_a_while_and_at_the_end(stage: Stage) -> None:
    stage.one.put(b"a")
    stage.one.put(b"b")
    assert len(stage.timers) == 1
    stage.ends()
    stage.one.put(b"c")
    assert stage.one.close() == Committed()
    assert [each.payload for each in stage.site.settled(LOG)] == [b"b", b"c"]
    stage.ends()
    assert stage.one.counts.writes == 2
    with stage.two as value:
        assert value.get() == b"c"


def test_what_is_put_while_the_shard_is_silent_is_written_before_the_lease_could_be_over(stage: Stage) -> None:
    stage.one.put(b"a")
    stage.ends()
    stage.site.transports[0].script = ["lost"] * 1_000
    policy = stage.site.policy
    stage.site.time.advance(policy.lease_term_max_ns - policy.holder_margin_ns - SECOND)
    stage.one.put(b"b")
    assert [each.payload for each in stage.site.settled(LOG)] == [b"a", b"b"], "there may be no later moment"


def test_what_could_not_be_written_is_said_once_and_then_read_anew(stage: Stage) -> None:
    stage.two.set(b"a")
    stage.one.put(b"b")
    stage.deaf = True
    stage.site.time.advance(stage.site.policy.lease_term_max_ns + SECOND)
    stage.ends()
    with pytest.raises(LeaseLost):
        stage.one.get()
    stage.deaf = False
    assert stage.one.get() == b"a"
    stage.one.put(b"c")
    stage.site.time.advance(stage.site.policy.lease_term_max_ns + SECOND)
    with pytest.raises(LeaseLost, match="could be written"):
        stage.one.set(b"d")
    assert stage.one.set(b"d") == Committed()


def test_value_that_could_not_be_written_is_not_read_from_memory(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> Outcome:
        raise NotTrusted("unknown-key", "planted: its key is not known")

    stage.one.set(b"a")
    stage.one.put(b"b")
    with monkeypatch.context() as planted:
        planted.setattr(stage.sessions[0], "publish", refused)
        stage.ends()
    with pytest.raises(NotTrusted):
        stage.one.get()
    assert stage.one.get() == b"a"


# Ctrl-C in a write whose message is there: the next step is made of that one, not of what was before it.
def test_write_that_was_interrupted_is_read_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = stage.sessions[0].publish

    def interrupted(log: str, payloads: list[bytes], *, under: list[Lease]) -> Outcome:
        publish(log, payloads, under=under)
        raise KeyboardInterrupt

    stage.one.set(b"a")
    with monkeypatch.context() as planted:
        planted.setattr(stage.sessions[0], "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stage.one.set(b"ab")
    assert stage.one.get() == b"ab"
    stage.one.update(lambda old: (old or b"") + b"c")
    assert stage.two.get() == b"abc"


# Ctrl-C while the lease is given back: what became of the value is said by the next call.
def test_what_could_not_be_written_is_said_though_that_was_interrupted(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> bool:
        raise KeyboardInterrupt

    stage.one.put(b"a")
    stage.one._note_unwritten(NotTrusted("unknown-key", "planted: its key is not known"))
    with monkeypatch.context() as planted:
        planted.setattr(stage.sessions[0], "relinquish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stage.one.get()
    with pytest.raises(NotTrusted):
        stage.one.get()
    assert stage.one.get() is None


def test_nothing_is_read_from_memory_once_the_lease_is_revoked(stage: Stage) -> None:
    stage.one.set(b"a")
    lease = stage.sessions[0].keeper.in_use(NAME)
    assert lease is not None
    lease.lose("revoked", LossReason.REVOKED)
    before = stage.asked()
    with suppress(TryAgain):
        stage.one.get()
    assert stage.asked() > before


def test_update_decides_on_the_newest_value(stage: Stage) -> None:
    stage.one.get()
    for number in range(6):
        assert (stage.one, stage.two)[number % 2].update(lambda old: (old or b"") + b"x") == Committed()
    assert stage.one.get() == b"x" * 6


def test_what_the_function_of_an_update_raises_is_raised_at_once(stage: Stage) -> None:
    asked = []

    def refuse(old: bytes | None) -> bytes:
        asked.append(old)
        raise LeaseLost("lease-lost", "planted: of another lease")

    with pytest.raises(LeaseLost, match="of another lease"):
        stage.one.update(refuse)
    assert asked == [None]
    assert stage.one.set(b"a") == Committed()


def test_block_whose_last_value_was_not_written_says_so(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.sessions[0], "publish", lambda *_, **__: NotCommitted("no room"))
    with pytest.raises(TryAgain, match="no room") as caught, stage.one as value:
        value.put(b"important")
    assert caught.value.code == "value-unwritten"


@pytest.mark.parametrize("when", ["not kept between uses", "its lease nearly over"])
@pytest.mark.parametrize("outcome", [Unknown("planted"), NotCommitted("planted")])
def test_what_became_of_a_value_that_is_written_within_put_is_said(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, when: str, outcome: Outcome
) -> None:
    stage.one.set(b"a")
    if when == "not kept between uses":
        stage.one._unkept_uses = UNKEPT_USES
    else:
        policy = stage.site.policy
        stage.site.transports[0].script = ["lost"] * 1_000
        stage.site.time.advance(policy.lease_term_max_ns - policy.holder_margin_ns - SECOND)
    with monkeypatch.context() as planted:
        planted.setattr(stage.sessions[0], "publish", lambda *_, **__: outcome)
        stage.one.put(b"b")
        if isinstance(outcome, NotCommitted) and when != "not kept between uses":
            assert len(stage.timers) == 1, "it is tried again"
    stage.site.transports[0].script = []
    stage.site.time.advance(stage.site.policy.lease_term_max_ns)
    with pytest.raises(UnknownOutcome if isinstance(outcome, Unknown) else LeaseLost):
        stage.one.get()
    assert stage.one.get() == b"a"


def test_name_that_is_written_from_all_sides_is_not_kept(stage: Stage) -> None:
    for number in range(EARLY_RECALLS):
        stage.one.set(b"a%d" % number)
        stage.two.set(b"b%d" % number)
    for number in range(UNKEPT_USES):
        recalls = stage.one.counts.recalls
        assert stage.one.update(lambda old: (old or b"") + b"!") == Committed()
        assert stage.sessions[0].keeper.in_use(NAME) is None
        assert stage.one.counts.recalls == recalls
        assert stage.two.get() is not None, number
    stage.one.get()
    before = stage.asked()
    stage.one.get()
    assert stage.asked() == before, "it is tried again after a while"


def test_value_that_is_the_same_again_was_asked_for_in_vain(stage: Stage) -> None:
    stage.one.set(b"a")
    stage.one.get()
    stage.two.get()
    assert stage.one.get() == b"a"
    assert (stage.one.counts.recalls, stage.one.counts.needless) == (1, 1)
    stage.two.set(b"b")
    assert stage.one.get() == b"b"
    assert (stage.one.counts.recalls, stage.one.counts.needless) == (2, 1)


def test_lease_that_is_not_renewed_for_ever_is_taken_anew(stage: Stage) -> None:
    session = stage.sessions[0]
    value = CachedValue(session, LOG, NAME, hold_s_max=3)
    value.get()
    stage.site.time.advance(4 * SECOND)
    session.renew_due()
    before = stage.asked()
    value.get()
    assert stage.asked() > before


def test_lease_that_others_take_each_time_before_it_is_of_use_is_an_error_in_the_end(stage: Stage) -> None:
    def revoked(*_: object, **__: object) -> list[object]:
        raise LeaseLost("lease-recalled", "planted: another asked for it")

    stage.sessions[0].read_domains = revoked  # type: ignore[method-assign, assignment]
    with pytest.raises(TryAgain, match="times running"):
        stage.one.get()


def test_counters_of_many_threads_and_two_processes_lose_no_step(site: Site) -> None:
    steps, problems = 15, []

    def count(value: CachedValue) -> None:
        done = 0
        try:
            while done < steps:
                with suppress(TryAgain):  # others asked for it again and again: nothing was written
                    assert value.update(lambda old: b"%d" % (int(old or b"0") + 1)) == Committed()
                    done += 1
        except Exception as problem:  # noqa: BLE001 - shown below
            problems.append(problem)

    with site.open() as one, site.open() as two, one.session("one") as first, two.session("two") as second:
        values = [CachedValue(first, LOG, NAME), CachedValue(second, LOG, NAME)]
        threads = [Thread(target=count, args=(values[n % 2],), daemon=True) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert problems == []
        assert [value.get() for value in values] == [b"%d" % (4 * steps)] * 2
        for value in values:
            value.close()


def test_program_of_the_page_counts_from_memory(repository: Path, site: Site, tmp_path: Path) -> None:
    (program,) = blocks((repository / "docs/recipes/cached.md").read_text(encoding="utf-8"), "python")
    assert run_program(program, "/srv/tenure", site, tmp_path) == "b'11' 2\n"


MUTANTS = {
    "memory-outlives-the-lease": Mutant(
        held,
        "Lease.surely_held",
        "keeper.time.now().surely_before(end)",
        "True",
        test_nothing_is_read_from_memory_past_the_expiry,
    ),
    "kept-although-given-back": Mutant(
        held,
        "Lease.surely_held",
        "self.ended is None",
        "True",
        test_nothing_is_read_from_memory_once_the_lease_is_revoked,
    ),
    "put-and-given-away": Mutant(
        module, "CachedValue._recalled", "kept.dirty", "False", test_what_is_put_is_written_when_another_asks
    ),
    "put-at-the-last-moment": Mutant(
        module,
        "CachedValue._leave_in_memory",
        "kept.lease.remaining_ns() <= self._flush_ns",
        "False",
        test_what_is_put_while_the_shard_is_silent_is_written_before_the_lease_could_be_over,
    ),
    "loss-is-not-said": Mutant(
        module,
        "CachedValue._give_back",
        "kept.dirty",
        "False",
        test_what_could_not_be_written_is_said_once_and_then_read_anew,
    ),
    "writes-without-reading": Mutant(
        module,
        "CachedValue._has",
        "covers(kept.lease.mode, mode)",
        "True",
        test_update_decides_on_the_newest_value,
    ),
    "kept-where-it-is-contended": Mutant(
        module,
        "CachedValue._using",
        "self._unkept_uses > 0",
        "False",
        test_name_that_is_written_from_all_sides_is_not_kept,
    ),
}


@pytest.mark.verify
@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_step_is_noticed(name: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    check_noticed(monkeypatch, MUTANTS[name], {"stage": stage})


# Without this nothing put later would be written until somebody asks for it.
def test_value_put_after_one_for_which_no_thread_was_to_be_had_is_written_in_time(stage: Stage) -> None:
    later = stage.one._later

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    stage.one._later = refuse
    with pytest.raises(RuntimeError):
        stage.one.put(b"1")
    stage.one._later = later
    stage.one.put(b"2")
    stage.ends()
    assert stage.one.counts.flushes == 1
    assert stage.two.get() == b"2"


def no_time(*_: object, **__: object) -> Outcome:
    raise BadTime("planted", "there is no time")


def test_value_that_could_not_be_put_is_neither_read_nor_written_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stage.one.set(b"a") == Committed()
    stage.site.transports[0].script = ["lost"] * 1_000
    policy = stage.site.policy
    stage.site.time.advance(policy.lease_term_max_ns - policy.holder_margin_ns - SECOND)
    with monkeypatch.context() as patched:
        patched.setattr(stage.sessions[0], "publish", no_time)
        with pytest.raises(BadTime):
            stage.one.put(b"b")
    stage.site.transports[0].script = []
    assert stage.one.get() == b"a"
    assert stage.one.close() == Committed()
    assert [each.payload for each in stage.site.settled(LOG)] == [b"a"]


def test_value_under_a_lease_that_is_not_kept_and_could_not_be_written_is_not_written_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stage.one.set(b"a") == Committed()
    stage.one._unkept_uses = 1
    with monkeypatch.context() as patched:
        patched.setattr(stage.sessions[0], "publish", no_time)
        stage.one.put(b"b")
    with pytest.raises(BadTime):
        stage.one.get()
    assert stage.one.get() == b"a"
    assert stage.one.close() == Committed()
    assert [each.payload for each in stage.site.settled(LOG)] == [b"a"]


# Another asked for the lease while the value was read under it.
def test_value_put_under_a_lease_that_is_asked_for_already_is_written_at_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(held.Lease, "on_recall", lambda lease, listener: listener(lease))
        stage.one.put(b"a")
    assert stage.one.close() == Committed()
    assert [each.payload for each in stage.site.settled(LOG)] == [b"a"]
