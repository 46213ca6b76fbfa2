"""Roughtime servers of the tests: they answer in this process, and say whatever time they are told to say."""

from __future__ import annotations

import hashlib
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timeagent.clock import SystemClock
from timeagent.errors import BadTime
from timeagent.keys import Signer
from timeagent.roughtime.client import RoughtimeServer, RoughtimeSource
from timeagent.roughtime.malfeasance import Queried, RoughChain, judge
from timeagent.roughtime.wire import answer_batch, chained_nonce, delegate, make_request
from timeagent.sources.port import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

NOW_S = 1_795_212_607


def signer(name: str) -> Signer:
    return Signer(hashlib.sha256(name.encode()).digest())


@dataclass
class Witness:
    """A server with a clock of its own."""

    name: str
    midpoint_s: int = NOW_S
    radius_s: int = 3

    def __post_init__(self) -> None:
        self.long_term = signer(self.name)
        self.online = delegate(self.long_term, signer(f"{self.name} online"), 0, 2 * NOW_S)

    @property
    def public(self) -> bytes:
        return self.long_term.public

    def answer(self, request: bytes) -> bytes:
        (answer,) = answer_batch(self.online, [request], self.midpoint_s, self.radius_s)
        assert answer is not None
        return answer

    def exchange(self, request: bytes, wanted: Callable[[bytes], bool]) -> bytes:
        """The port of the client: over no network."""
        answer = self.answer(request)
        assert wanted(answer)
        return answer


def chain_of(said: Iterable[tuple[Witness, int, int]], chance: random.Random | None = None) -> list[Queried]:
    """Ask one after the other: each says this midpoint and radius, in seconds."""
    chance = chance or random.Random(0)
    chain: list[Queried] = []
    for witness, midpoint_s, radius_s in said:
        witness.midpoint_s, witness.radius_s = midpoint_s, radius_s
        rand = chance.randbytes(32)
        nonce = chained_nonce(chain[-1].response if chain else b"", rand)
        request = make_request(witness.public, nonce)
        chain.append(Queried(witness.public, request, witness.answer(request), rand if chain else None))
    return chain


class Lines:
    """Evidence in memory."""

    def __init__(self) -> None:
        self.lines: list[Queried] = []

    def keep(self, queried: Queried) -> None:
        self.lines.append(queried)

    def report(self, chain: Sequence[Queried]) -> None:
        raise AssertionError(f"an honest server was accused: {chain}")


def ask_twice(public: bytes, port: int) -> Lines:
    """Ask a server that is being started, with our client: two answers, chained, that hold this machine's time."""
    kept = Lines()
    chain = RoughChain(random.Random(7), kept)
    deadline = time.monotonic() + 60
    while len(kept.lines) < 2:
        source = RoughtimeSource(SystemClock(), RoughtimeServer("peer", public, Endpoint("127.0.0.1", port)), chain)
        try:
            sample = source.sample()
        except BadTime as problem:
            if problem.code != "no-answer" or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
            continue
        assert sample.offset.earliest <= 0 <= sample.offset.latest
    verdict = judge(kept.lines)
    assert verdict.word == "consistent"
    return kept
