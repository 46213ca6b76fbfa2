"""The daemon's threads: a source that hangs, one that breaks, evidence that cannot be written."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.timeagent import KEY, HandEvidence
from timeagent.agent import agent as agent_module
from timeagent.agent.agent import Agent, Daemon, QueuedEvidence
from timeagent.agent.discipline import Listed, Rules, Weight
from timeagent.agent.page import PAGE_NAME, PageReader, PageWriter
from timeagent.clock import SystemClock, boot_id
from timeagent.notify import Notifier
from timeagent.signedtime import ClockStatus
from timeagent.sources.local import AssumedSource
from timeagent.sources.port import Sample, Source
from timeagent.units import MS, SECOND

BOOT = boot_id()


class Hanging:
    """A mount that does not answer."""

    def __init__(self, name: str = "hanging") -> None:
        self.name = name
        self.release = threading.Event()

    def sample(self) -> Sample:
        self.release.wait(60)
        raise AssertionError("broken")


class Breaking:
    name = "breaking"

    def sample(self) -> Sample:
        raise AssertionError("broken")


class Running:
    """A daemon in a thread."""

    def __init__(self, directory: Path, *sources: Source) -> None:
        clock = SystemClock()
        listed = [Listed(AssumedSource(clock, 5 * MS), Weight.ASSUMED), *map(Listed, sources)]
        evidence = QueuedEvidence(HandEvidence())
        agent = Agent(clock, KEY, listed, PageWriter(directory / PAGE_NAME), evidence, Rules(250 * MS))
        self.stop = threading.Event()
        self.raised: BaseException | None = None
        daemon = Daemon(agent, clock, listed, [], evidence, Notifier({}))

        def run() -> None:
            try:
                daemon.run(self.stop.is_set)
            except AssertionError as problem:
                self.raised = problem

        self.thread = threading.Thread(target=run, daemon=True)
        self.reader = PageReader(directory / PAGE_NAME)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def seen(self, status: ClockStatus) -> bool:
        generations = set()
        for _ in range(2000):
            page = self.reader.page()
            generations.add(page.generation)
            if page.status is status and len(generations) > 3:
                return True
            self.stop.wait(0.01)
        return False


@pytest.fixture
def tmpfs(tmp_path: Path) -> Path:
    PageWriter(tmp_path / PAGE_NAME).close()
    return tmp_path


def first_page(running: Running) -> None:
    from timeagent.errors import BadTime

    for _ in range(2000):
        try:
            running.reader.page()
        except BadTime:
            running.stop.wait(0.01)
        else:
            return
    raise AssertionError("nothing was published")


# A mount that hangs must not keep the time of a node.
def test_source_that_hangs_delays_nobody(tmpfs: Path) -> None:
    hanging = Hanging()
    running = Running(tmpfs, hanging)
    first_page(running)
    assert running.seen(ClockStatus.FREE_RUNNING)
    running.end()
    hanging.release.set()


# As many as there are peers whose names nobody resolves.
def test_sources_that_hang_delay_the_end_together_no_longer_than_one(
    tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "_JOIN_NS", SECOND)
    hanging = [Hanging(f"hanging {number}") for number in range(30)]
    running = Running(tmpfs, *hanging)
    first_page(running)
    began = time.monotonic()
    running.end()
    assert time.monotonic() - began < 15
    for each in hanging:
        each.release.set()


# What a thread did not expect ends the daemon, so that whoever supervises it starts the next run.
def test_thread_that_breaks_ends_the_daemon(tmpfs: Path) -> None:
    running = Running(tmpfs, Breaking())
    running.thread.join(60)
    assert not running.thread.is_alive()
    assert isinstance(running.raised, AssertionError)


def test_evidence_waits_for_its_disk_and_is_bounded() -> None:
    sink = HandEvidence()
    queued = QueuedEvidence(sink)
    records: list[dict[str, Any]] = [{"number": number} for number in range(100)]
    for record in records:
        queued.keep(record)
    queued.drain()
    assert sink.kept == records[:64]
    queued.wake()
    queued.drain(wait=True)  # comes back, or the test hangs
