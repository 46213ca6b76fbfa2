"""AgentTime over a hand-driven agent: the interval it makes of the page, and what it refuses."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.machine import HandMachine, StatedSource
from tests.support.timeagent import KEY, HandAgent, own, page_fields
from timeagent.agent.discipline import DISRUPTED_NS
from timeagent.agent.page import PAGE_NAME, AgentTime, Page, PageReader, PageWriter, running_agent
from timeagent.errors import BadTime
from timeagent.keys import KeyInUse
from timeagent.signedtime import STALENESS_NS, ClockStatus
from timeagent.sources.nonce import bind_unix, nonce_door
from timeagent.units import HOUR, MS, SECOND

RADIUS = 5 * MS


class Bench:
    """An agent whose page is a file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.machine = HandMachine()
        self.hand = HandAgent(self.machine, own(StatedSource(self.machine, RADIUS)))
        self.writer = PageWriter(directory / PAGE_NAME)
        self.reader = PageReader(directory / PAGE_NAME)
        self.hand.agent._page = self.writer
        self.hand.ask()

    def time(self, **changed: int | bytes) -> AgentTime:
        given = {"key_id": KEY.id, "radius_ns_max": 250 * MS} | changed
        return AgentTime(self.directory, self.machine, **given)  # type: ignore[arg-type]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def code_of(time: AgentTime) -> str:
    with pytest.raises(BadTime) as refused:
        time.now()
    with pytest.raises(BadTime) as again:
        time.token()
    assert refused.value.code == again.value.code
    return refused.value.code


def test_now_is_the_page_carried_to_now(bench: Bench) -> None:
    time = bench.time()
    now = time.now()
    assert now.earliest <= bench.machine.real <= now.latest
    assert now.radius == RADIUS + 1
    bench.machine.pass_time(100 * MS)
    now = time.now()
    assert now.midpoint == bench.machine.real
    assert now.radius == RADIUS + 20_000 + 1


def test_token_is_the_agents_and_decoded_once_a_page(bench: Bench) -> None:
    time = bench.time()
    token = time.token()
    assert token.verified_by(KEY.verifier())
    bench.machine.pass_time(40 * MS)
    assert time.token() is token
    bench.hand.agent.turn()
    assert time.token().sequence > token.sequence


def test_setting_the_clock_changes_nothing_before_the_agent_has_judged_it(bench: Bench) -> None:
    time = bench.time()
    before = time.now()
    bench.machine.step(HOUR)
    assert time.now() == before


def half_written(directory: Path) -> None:
    """Leave the page as an agent does that has lost its processor in the midst of it."""
    with (directory / PAGE_NAME).open("r+b") as file:
        file.seek(16)
        generation = int.from_bytes(file.read(8), "little")
        file.seek(16)
        file.write((generation | 1).to_bytes(8, "little"))


def test_page_that_is_being_written_leaves_the_one_before_until_that_is_stale(bench: Bench) -> None:
    time = bench.time()
    token = time.token()
    half_written(bench.directory)
    assert time.token() == token
    bench.machine.pass_time(STALENESS_NS + 1)
    assert code_of(time) == "page-torn"
    bench.hand.agent.turn()
    assert time.token().sequence > token.sequence


def test_who_begins_while_a_page_is_being_written_waits_for_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def begun() -> AgentTime | None:
        return running_agent(
            bench.directory, bench.machine, key_id=KEY.id, radius_ns_max=250 * MS, is_own=lambda _: False
        )

    half_written(bench.directory)
    before = bench.machine.boot
    assert begun() is None
    assert MS <= bench.machine.boot - before <= SECOND
    slept: list[int] = []

    def sleep(span: int) -> None:
        slept.append(span)
        if len(slept) == 3:
            bench.hand.agent.turn()

    monkeypatch.setattr(bench.machine, "sleep", sleep)
    found = begun()
    assert found is not None
    assert found.token().verified_by(KEY.verifier())
    assert slept == [MS] * 3


# Between two turns of the agent a slew can outrun the drift bound: the reader sees it by itself.
@pytest.mark.parametrize("slew", [8 * MS, -8 * MS])
def test_slew_since_the_page_was_written_widens(bench: Bench, slew: int) -> None:
    time = bench.time()
    truth = bench.machine.real + 100 * MS
    bench.machine.pass_time(100 * MS)
    bench.machine.slew(slew)
    now = time.now()
    assert now.earliest <= truth - RADIUS
    assert truth + RADIUS <= now.latest


@pytest.mark.parametrize(("age", "good"), [(STALENESS_NS, True), (STALENESS_NS + 1, False)])
def test_page_is_refused_when_it_is_stale(bench: Bench, age: int, good: bool) -> None:  # noqa: FBT001
    time = bench.time()
    bench.machine.pass_time(age)
    if good:
        time.now()
    else:
        assert code_of(time) == "page-stale"
        bench.hand.agent.turn()
        time.now()


def test_page_of_another_boot_or_key_is_refused(bench: Bench) -> None:
    assert code_of(bench.time(key_id=bytes(16))) == "page-other-key"
    bench.writer.put((bytes(16), *page_fields(bench.reader.page())[1:]))
    assert code_of(bench.time()) == "page-other-boot"


# In another time namespace CLOCK_BOOTTIME counts from elsewhere: nothing could be compared.
def test_page_from_the_future_is_refused(bench: Bench) -> None:
    time = bench.time()
    bench.machine.boot -= 1
    assert code_of(time) == "page-ahead"


def test_interval_that_is_wider_than_the_policy_is_refused(bench: Bench) -> None:
    time = bench.time(radius_ns_max=RADIUS + 10_001)
    bench.machine.pass_time(50 * MS)
    time.now()
    bench.machine.pass_time(5 * MS)
    assert code_of(time) == "radius-too-wide"


def test_silence_of_the_agent_is_told_by_its_reason(bench: Bench) -> None:
    time = bench.time()
    bench.machine.step(HOUR)
    bench.hand.agent.turn()
    assert code_of(time) == "no-time"
    bench.hand.ask()
    assert code_of(time) == "clock-disrupted"
    bench.hand.run(DISRUPTED_NS, asking=False)
    assert code_of(time) == "no-time"  # its sources are silent now
    bench.hand.run(SECOND)
    time.now()


# It died, or stands still: nobody knows what it would say by now.
def test_silence_of_an_agent_that_is_no_more_is_not_taken_for_its_word(bench: Bench) -> None:
    clock, radius = bench.machine, 250 * MS
    time = bench.time()
    clock.step(HOUR)
    bench.hand.agent.turn()
    clock.pass_time(STALENESS_NS)
    assert code_of(time) == "no-time"
    clock.pass_time(1)
    assert code_of(time) == "page-stale"
    assert running_agent(bench.directory, clock, key_id=KEY.id, radius_ns_max=radius, is_own=lambda _: False) is None
    (bench.directory / PAGE_NAME).unlink()
    bench.hand.agent._page = PageWriter(bench.directory / PAGE_NAME)
    bench.hand.run(2 * DISRUPTED_NS)
    time.now()


def test_agent_whose_key_has_ended_says_so_and_runs(bench: Bench) -> None:
    in_use = KeyInUse(KEY)
    bench.hand.agent._signer = in_use
    in_use.use(KEY, bench.machine.real)
    bench.machine.pass_time(SECOND)
    bench.hand.ask()
    assert code_of(bench.time()) == "key-ended"
    clock, radius = bench.machine, 250 * MS
    assert running_agent(bench.directory, clock, key_id=KEY.id, radius_ns_max=radius, is_own=lambda _: False)
    in_use.use(KEY, None)
    bench.hand.ask()
    assert bench.time().now()


def test_agent_that_has_the_time_by_now_is_not_said_to_have_no_key(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = bench.time()
    bench.machine.step(HOUR)
    bench.hand.agent.turn()
    bench.hand.ask()
    bench.hand.run(DISRUPTED_NS, asking=False)
    assert code_of(time) == "no-time"
    page = PageReader.page

    def published_meanwhile(reader: PageReader) -> Page:
        monkeypatch.undo()
        bench.hand.run(SECOND)
        return page(reader)

    monkeypatch.setattr(PageReader, "page", published_meanwhile)
    time.now()


def test_agent_that_was_never_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTime) as refused:
        AgentTime(tmp_path, HandMachine(), key_id=KEY.id, radius_ns_max=MS)
    assert refused.value.code == "page-absent"


def test_directory_that_was_made_anew_is_found(bench: Bench) -> None:
    time = bench.time()
    time.now()
    (bench.directory / PAGE_NAME).unlink()
    bench.hand.agent._page = PageWriter(bench.directory / PAGE_NAME)
    bench.machine.pass_time(STALENESS_NS + 1)
    bench.hand.agent.turn()
    time.now()


def test_page_whose_token_is_damaged_is_refused(bench: Bench) -> None:
    time = bench.time()
    page: Page = time._reader.page()
    bench.writer.put(page_fields(replace(page, status=ClockStatus.SYNCHRONIZED, token=b"\1" * 128)))
    assert code_of(time) == "page-damaged"


@pytest.fixture
def open_door(bench: Bench) -> Iterator[Bench]:
    stopped = threading.Event()
    door = nonce_door(bind_unix(bench.directory), bench.hand.agent, local_door=True)
    thread = threading.Thread(target=door.serve, args=(stopped.is_set,), daemon=True)
    thread.start()
    yield bench
    stopped.set()
    door.wake()
    thread.join(10)
    door.close()


def test_digest_is_signed_by_the_agents_door(open_door: Bench) -> None:
    token = open_door.time().token_over(bytes(range(32)))
    assert token.verified_by(KEY.verifier(), bytes(range(32)))


def test_door_refuses_with_the_agents_own_words(open_door: Bench) -> None:
    time = open_door.time()
    open_door.machine.step(HOUR)
    open_door.hand.agent.turn()
    with pytest.raises(BadTime, match="no time source has a bound") as refused:
        time.token_over(bytes(32))
    assert refused.value.code == "no-time"


def test_token_of_the_door_is_held_against_the_policy_too(open_door: Bench) -> None:
    with pytest.raises(BadTime) as refused:
        open_door.time(radius_ns_max=MS).token_over(bytes(32))
    assert refused.value.code == "radius-too-wide"
    with pytest.raises(BadTime) as refused:
        open_door.time(key_id=bytes(16)).token_over(bytes(32))
    assert refused.value.code == "page-other-key"


def test_door_without_an_agent_is_refused(bench: Bench) -> None:
    with pytest.raises(BadTime) as refused:
        bench.time().token_over(bytes(32))
    assert refused.value.code == "door-absent"


# The descriptor is the parent's, and so are the answers that come to it.
def test_child_after_fork_asks_by_itself(open_door: Bench) -> None:
    time = open_door.time()
    time.token_over(bytes(32))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            token = time.token_over(bytes(range(32)))
            status = 0 if token.verified_by(KEY.verifier(), bytes(range(32))) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    time.token_over(bytes(32))
