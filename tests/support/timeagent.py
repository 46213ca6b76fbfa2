"""A whole time agent over a hand-driven machine: its sources, its page in memory, its evidence in a list."""

import random
import zlib
from collections.abc import Callable
from typing import Any

from tests.support.machine import HandMachine, StatedSource
from timeagent.agent import page as page_module
from timeagent.agent.agent import Agent
from timeagent.agent.bounded_clock import PERIOD_NS
from timeagent.agent.discipline import OWN_GROUP, Listed, Rules
from timeagent.agent.page import Page, PageFields
from timeagent.clock import boot_id
from timeagent.keys import Signer
from timeagent.signedtime import ClockStatus, SignedTime
from timeagent.sources.nonce import PeerSource, answer
from timeagent.units import MS, Span, TimeInterval

BOOT = boot_id()
KEY = Signer(b"the time key of the hand agent..")


def page_fields(page: Page) -> PageFields:
    """Return what a page says, for a PageSink."""
    ends = (page.ahead.earliest, page.ahead.latest)
    head = (page.boot, page.as_of_boot_ns, page.as_of_raw_ns, *ends, page.drift_ppm, page.status, page.clock_epoch)
    return (*head, page.stale_ns, page.silent_until_ns, page.token)


def encode_page(page: Page) -> bytes:
    """Return the 256 bytes."""
    data = page_module._BODY.pack(*page_module._KIND, int.from_bytes(page.generation, "little"), *page_fields(page))
    return data + zlib.crc32(data).to_bytes(4, "little")


class HandPage:
    """A page that is only kept."""

    def __init__(self) -> None:
        self.written: list[Page] = []

    def put(self, fields: PageFields) -> None:
        boot, as_of_boot, as_of_raw, low, high, drift, status, epoch, stale, until, token = fields
        ahead = TimeInterval(low, high)
        page = Page(b"", boot, as_of_boot, as_of_raw, ahead, drift, ClockStatus(status), epoch, stale, until, token)
        self.written.append(page)

    @property
    def last(self) -> Page:
        return self.written[-1]


class HandEvidence:
    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def keep(self, record: dict[str, Any]) -> None:
        self.kept.append(record)


def own(source: StatedSource) -> Listed:
    return Listed(source, group=OWN_GROUP)


class HandAgent:
    """An agent that is turned, and whose sources are asked, by the test."""

    def __init__(
        self,
        machine: HandMachine,
        *listed: Listed,
        signer: Signer = KEY,
        radius_ns_max: Span = 250 * MS,
        liars: int | None = None,
    ) -> None:
        self.machine = machine
        self.page = HandPage()
        self.evidence = HandEvidence()
        self.signer = signer
        self.trusted = signer.verifier()
        """Whom others take it for."""
        self.listed = listed
        self.agent = Agent(
            machine,
            signer,
            listed,
            self.page,
            self.evidence,
            Rules(radius_ns_max, liars),
            clock_epoch=100,
        )

    def ask(self) -> None:
        """Ask every source, then take a turn."""
        for each in self.listed:
            self.agent.poll(each)
        self.agent.turn()

    def run(self, span: Span, *, asking: bool = True) -> None:
        """Turn every period, and ask once a second."""
        for count in range(span // PERIOD_NS):
            self.machine.pass_time(PERIOD_NS)
            if asking and count % 20 == 19:
                for each in self.listed:
                    self.agent.poll(each)
            self.agent.turn()

    def said(self) -> TimeInterval:
        """What the page says of now."""
        page = self.page.last
        assert page.status.usable, page.status
        return page.ahead.shifted(page.as_of_boot_ns)

    def asked_by(
        self, other: "HandAgent", name: str = "there", *, round_trip: Callable[[], None] = lambda: None
    ) -> PeerSource:
        """The source by which another agent asks this one."""
        return peer_source(other.machine, name, lambda: self, lambda: other, round_trip)


def peer_source(
    machine: HandMachine,
    name: str,
    there: Callable[[], HandAgent],
    here: Callable[[], HandAgent],
    round_trip: Callable[[], None] = lambda: None,
) -> PeerSource:
    """The source by which one agent asks another; both may be made later."""

    def exchange(request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        round_trip()
        data = answer(there().agent, request, local_door=False)
        round_trip()
        assert data is not None
        assert wanted(data)
        return data

    def refuses(token: SignedTime, covered: bytes) -> str | None:
        return None if token.verified_by(there().trusted, covered) else "another key signed it"

    def own_word(chance: bytes) -> bytes:
        return here().agent.own_word(chance)

    return PeerSource(machine, name, exchange, refuses, random.Random(7), own_word=own_word)
